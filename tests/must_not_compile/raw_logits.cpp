// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: raw_logits combines logits, not rows: .*raw_logits_verifier.*docs/mathematics.md
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using model = specagg::toy_source<float>;
specagg::status decode(specagg::text& t, model& q, model& p,
                       specagg::speculative_workspace<float>& work, std::span<float> memory);
specagg::status decode(specagg::text& t, model& q, model& p,
                       specagg::speculative_workspace<float>& work,
                       [[maybe_unused]] std::span<float> memory) {
#ifdef SPECAGG_BROKEN
  const specagg::token_verifier verifier;
#else
  const specagg::raw_logits_verifier verifier(specagg::token_verifier(), memory,
                                              specagg::sampling());
#endif
  specagg::random_streams chooser(1);
  return specagg::speculative_decode(q, p, specagg::raw_logits{specagg::geometric{1.5}}, chooser,
                                     {.text = t, .most = 9, .work = work}, verifier);
}
