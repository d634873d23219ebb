// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: a decoder takes one policy, or one with state \(policy/stateful.hpp\)
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work);
status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return speculative_decode(q, q,
                            policies_of([](std::size_t j) { return ensemble{1 / double(j + 1)}; }),
                            random, {.text = t, .most = 9, .work = work});
#else
  return speculative_decode(q, q, ensemble{0.5}, random, {.text = t, .most = 9, .work = work});
#endif
}
