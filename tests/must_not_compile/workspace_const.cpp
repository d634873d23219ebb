// SPDX-License-Identifier: Apache-2.0
// EXPECT: (no matching function for call|invalid initialization of reference)
// LATER: .*decode_request<
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include <utility>

using namespace specagg;

status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work);
status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return speculative_decode(q, q, lossless{}, random,
                            {.text = t, .most = 9, .work = std::as_const(work)});
#else
  return speculative_decode(q, q, lossless{}, random, {.text = t, .most = 9, .work = work});
#endif
}
