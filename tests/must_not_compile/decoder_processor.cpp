// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: this is no Processor: .* give .. for what you leave out
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, collaborative_workspace<float, 2>& work);
status decode(text& t, toy_source<float>& q, collaborative_workspace<float, 2>& work) {
  random_streams chooser(1);
  const auto accept = [](const emission& e) { return e.token != 3; };
#ifdef SPECAGG_BROKEN
  return collaborative_decode(t, 9, std::tie(q, q), ensemble{0.5}, chooser, {{4, 1}}, work, accept);
#else
  return collaborative_decode(t, 9, std::tie(q, q), ensemble{0.5}, chooser, {{4, 1}}, work, {},
                              accept);
#endif
}
