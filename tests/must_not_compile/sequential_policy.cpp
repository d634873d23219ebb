// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: sequential_decode decides before the target is called, so its policy reads q
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
  return sequential_decode(t, 9, q, q, policy, random_streams(1), work);
}
