// SPDX-License-Identifier: Apache-2.0
// EXPECT: (no matching function for call|invalid initialization of reference)
// LATER: .*decode_request<
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, collaborative_workspace<float, 2>& work);
status decode(text& t, toy_source<float>& q, collaborative_workspace<float, 2>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  const auto accept = [](const emission& e) { return e.token != 3; };
  return collaborative_decode(std::tie(q, q), ensemble{0.5}, random,
                              {.text = t, .most = 9, .work = work, .processor = accept});
#else
  const auto accept = [](const emission& e) { return e.token != 3; };
  return collaborative_decode(std::tie(q, q), ensemble{0.5}, random,
                              {.text = t, .most = 9, .work = work, .accept = accept});
#endif
}
