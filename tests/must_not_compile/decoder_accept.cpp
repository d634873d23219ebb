// SPDX-License-Identifier: Apache-2.0
// EXPECT: (no matching function for call|use of deleted function .*function_ref)
// LATER: .*(decode_request<|a function of the request takes other arguments)
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work) {
  random_streams chooser(1);
#ifdef SPECAGG_BROKEN
  const auto accept = [] { return true; };
#else
  const auto accept = [](const emission&) { return true; };
#endif
  return sequence_decode(q, q, 0.3, chooser,
                         {.text = t, .most = 9, .work = work, .accept = accept});
}
