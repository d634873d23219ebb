// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: here comes the workspace of this decoder, not const
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include <utility>

using namespace specagg;

status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work);
status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return speculative_decode(t, 9, q, q, lossless{}, random, std::as_const(work));
#else
  return speculative_decode(t, 9, q, q, lossless{}, random, work);
#endif
}
