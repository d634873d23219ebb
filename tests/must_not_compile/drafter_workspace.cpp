// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: with a drafter the workspace is a drafting_workspace
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
  return speculative_decode(t, 9, drafter, p, lossless{}, chooser, work);
}
