// SPDX-License-Identifier: Apache-2.0
// What the benchmarks work on: rows of logits with a given acceptance, and the draft tokens drawn
// from them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <specagg/decoders.hpp>

namespace bench {

using namespace specagg;

// Numbers in [0, 1), the same in every run.
class numbers {
 public:
  explicit numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
  double operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return double(state_ >> 40) * 0x1p-24;
  }

 private:
  std::uint64_t state_;
};

// Requests of gamma drafted tokens. The target's rows are bell-shaped logits of standard deviation
// 2.5 (at V = 128,256 the most likely token has some 3 %, ten thousand have nine tenths of the
// mass); q = a p + (1 - a) p backwards, so that a draft from q is accepted with probability a or a
// little more. `drafts` sets of tokens per request, drawn from q.
struct requests {
  static constexpr std::size_t drafts = 32;
  std::size_t count, gamma, vocabulary;
  std::vector<float> q, p;  // count x gamma x V and count x (gamma + 1) x V logits
  std::vector<token_id> tokens;

  requests(std::size_t count_, std::size_t gamma_, std::size_t vocabulary_, double acceptance)
      : count(count_),
        gamma(gamma_),
        vocabulary(vocabulary_),
        q(count * gamma * vocabulary),
        p(count * (gamma + 1) * vocabulary),
        tokens(drafts * count * gamma) {
    numbers next(7);
    std::vector<double> scratch(verify_scratch(vocabulary, gamma));
    for (float& l : p)
      l = float(2.5 * std::sqrt(2.) * (next() + next() + next() + next() + next() + next() - 3));
    for (std::size_t r = 0; r < count; ++r)
      for (std::size_t j = 0; j < gamma; ++j) {
        const std::span<const float> from = target(r, j);
        float* to = q.data() + (r * gamma + j) * vocabulary;
        for (std::size_t v = 0; v < vocabulary; ++v)
          to[v] = float(std::log(acceptance * std::exp(from[v]) +
                                 (1 - acceptance) * std::exp(from[vocabulary - 1 - v])));
        const auto row = normalise(softmax_row<float>(draft_logits(r, j)));
        if (row.why() != status::ok) std::abort();
        for (std::size_t d = 0; d < drafts; ++d) {
          random_streams chooser(d, r);
          tokens[(d * count + r) * gamma + j] = draw_draft(row, 0, j, chooser, scratch);
        }
      }
  }
  std::span<const float> draft_logits(std::size_t r, std::size_t j) const {
    return std::span(q).subspan((r * gamma + j) * vocabulary, vocabulary);
  }
  std::span<const float> target(std::size_t r, std::size_t j) const {
    return std::span(p).subspan((r * (gamma + 1) + j) * vocabulary, vocabulary);
  }
  std::span<const token_id> drafted(std::size_t d, std::size_t r) const {
    return std::span(tokens).subspan((d % drafts * count + r) * gamma, gamma);
  }
};

}  // namespace bench
