// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: a policy is a struct with a member `template.*docs/write-your-own-policy.md
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return oracle_decode(q, q, 0.3, random, {.text = t, .most = 9, .work = work});
#else
  return oracle_decode(q, q, opt{0.3}, random, {.text = t, .most = 9, .work = work});
#endif
}
