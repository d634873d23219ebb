// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: after_round is a function of a round.s result and the workspace
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work);
status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work) {
  random_streams chooser(1);
#ifdef SPECAGG_BROKEN
  const auto count = [](const auto&) {};
#else
  const auto count = [](const auto&, const auto&) {};
#endif
  return speculative_decode(t, 9, q, q, lossless{}, chooser, work, with::after_round{count});
}
