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
  counts_drafter<float> drafter(q.vocab_size(), t.tokens.size(), 4);
  return collaborative_decode(std::tie(q, q), ensemble{0.5}, random,
                              {.text = t, .most = 9, .work = work}, drafter);
#else
  lookup_drafter<float> drafter(q.vocab_size(), t.tokens.size());
  return collaborative_decode(std::tie(q, q), ensemble{0.5}, random,
                              {.text = t, .most = 9, .work = work}, drafter);
#endif
}
