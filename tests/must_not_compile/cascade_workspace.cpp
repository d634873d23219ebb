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

status decode(text& t, toy_source<float>& q, cascade_workspace<number>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<number>& work) {
  random_streams chooser(1);
  return oracle_decode(q, q, lossless{}, chooser, {.text = t, .most = 9, .work = work});
}
