// SPDX-License-Identifier: Apache-2.0
// EXPECT: (no matching function for call|use of deleted function .*function_ref)
// LATER: .*(decode_request<|a function of the request takes other arguments)
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
  return speculative_decode(q, q, lossless{}, chooser,
                            {.text = t, .most = 9, .work = work, .after_round = count});
}
