// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .speculative_decode
// LATER: .*DraftLength
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

struct always {  // has not all members
  void begin() {}
  bool another(std::size_t) const { return true; }
};

status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work);
status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return speculative_decode(q, q, lossless{}, random, {.text = t, .most = 9, .work = work},
                            token_verifier{}, always{});
#else
  return speculative_decode(q, q, lossless{}, random, {.text = t, .most = 9, .work = work},
                            token_verifier{}, fixed_draft_length{});
#endif
}
