// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .sequential_decode
// LATER: .*decides_by_draft
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work) {
#ifdef SPECAGG_BROKEN
  const diff policy{0.3};  // compares both rows
#else
  const chow policy{0.3};
#endif
  return sequential_decode(q, q, policy, random_streams(1), {.text = t, .most = 9, .work = work});
}
