// SPDX-License-Identifier: Apache-2.0
// EXPECT: (no matching function|use of deleted function|no viable constructor|conversion function)
// What a text keeps needs a name.
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;
using memory = drafting_workspace<float, normal_form<one_hot_row<float>>>;
bool goes_on(text& t, lookup_drafter<>& drafter, toy_source<float>& p, memory& work);
bool goes_on(text& t, lookup_drafter<>& drafter, toy_source<float>& p, memory& work) {
  random_streams random(1);
  const lossless policy;
#ifdef SPECAGG_BROKEN
  together_text one(
      drafter, p, policy, random,
      {.text = t, .most = 9, .work = work, .accept = [](const emission&) { return true; }});
#else
  const auto accept = [](const emission&) { return true; };
  together_text one(drafter, p, policy, random,
                    {.text = t, .most = 9, .work = work, .accept = accept});
#endif
  return one.goes_on();
}
