// SPDX-License-Identifier: Apache-2.0
// What an engine writes to use specagg on its own logits: one speculative step of one request.
#include <specagg/decoders.hpp>

#include <cstdio>
#include <vector>

int main() {
  constexpr std::size_t V = 32000, gamma = 4;
  constexpr std::uint32_t position = 17;  // of the first drafted token in the request's text
  const specagg::sampling how{.temperature = 0.8, .top_k = 50, .top_p = 0.95};

  // From the engine: the draft model's logits for positions 0..gamma-1, and the target's for
  // 0..gamma.
  std::vector<float> draft_logits(gamma * V), target_logits((gamma + 1) * V);
  for (std::size_t i = 0; i < target_logits.size(); ++i) {
    target_logits[i] = float(i * 2654435761u % 1000) / 100;
    if (i < draft_logits.size()) draft_logits[i] = 0.98f * target_logits[i] + float(i % 7) / 1000;
  }
  // A policy that reads the draft (ensemble, say) needs the draft's row gamma as well.
  const auto q_rows = specagg::rows_of_logits(draft_logits, V, how);
  const auto p_rows = specagg::rows_of_logits(target_logits, V, how);

  // Memory: the engine's, once. Numbers depend on (seed, request, position) alone, never on batch
  // or thread.
  std::vector<double> scratch(specagg::verify_scratch(V));
  specagg::random_streams random(/*seed=*/42, /*request=*/7);

  // Draft, unless the engine drew the tokens itself: then q must be the row it really drew from.
  std::vector<specagg::token_id> drafted;
  for (std::size_t j = 0; j < gamma; ++j)
    drafted.push_back(draw_draft(q_rows[j], position, j, random, scratch));

  // Verify. Rows are made when they are looked at: none after the first rejection is read.
  specagg::emission out[gamma + 1];
  const auto verdict =
      specagg::verify_token({.tokens = drafted, .start = position, .end_of_text = 2}, q_rows,
                            p_rows, specagg::lossless{}, random, out, scratch);

  // Commit `emitted` tokens; roll the KV caches back to position + accepted.
  for (std::size_t i = 0; i < verdict.emitted; ++i)
    std::printf("position %zu: token %d (%s), log p %.3f\n", position + i, out[i].token,
                name(out[i].from), out[i].log_p);
  return verdict.why == specagg::status::ok && verdict.emitted == verdict.accepted + 1 ? 0 : 1;
}

// Output:
// position 17: token 10159 (accepted), log p -3.867
// position 18: token 12159 (accepted), log p -3.867
// position 19: token 14318 (residual), log p -3.880
