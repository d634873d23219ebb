// SPDX-License-Identifier: Apache-2.0
// EXPECT: (no matching function for call|invalid initialization of reference)
// LATER: .*decode_request<
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

#ifdef SPECAGG_BROKEN
using number = double;  // of floats
#else
using number = float;
#endif

status decode(text& t, toy_source<float>& q, collaborative_workspace<number, 2>& work);
status decode(text& t, toy_source<float>& q, collaborative_workspace<number, 2>& work) {
  random_streams chooser(1);
  return collaborative_decode(std::tie(q, q), ensemble{0.3}, chooser,
                              {.text = t, .most = 9, .work = work});
}
