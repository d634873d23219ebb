// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: here comes the workspace of this decoder, not const
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include <functional>

using namespace specagg;

status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return oracle_decode(t, 9, q, q, opt{}, random, std::ref(work));
#else
  return oracle_decode(t, 9, q, q, opt{}, random, work);
#endif
}
