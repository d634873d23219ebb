// SPDX-License-Identifier: Apache-2.0
// EXPECT: (no matching function for call|invalid initialization of reference)
// LATER: .*decode_request<
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

#ifdef SPECAGG_BROKEN
using workspace = speculative_workspace<float>;  // of a draft model
#else
using workspace = drafting_workspace<float, normal_form<one_hot_row<float>>>;
#endif

status decode(text& t, lookup_drafter<>& drafter, toy_source<float>& p, workspace& work);
status decode(text& t, lookup_drafter<>& drafter, toy_source<float>& p, workspace& work) {
  random_streams chooser(1);
  return speculative_decode(drafter, p, lossless{}, chooser, {.text = t, .most = 9, .work = work});
}
