// SPDX-License-Identifier: Apache-2.0
// Coupled verification: draft token y = argmin E/q and target token x = argmin E/pi are drawn with
// the same noise E. The draft is accepted while the two agree. Daliri, Musco, Suresh 2024
// (arXiv:2408.07978).
//
// x has exactly the law pi, and is a function of (seed, request, position, pi) alone. So the draft,
// the batch, a network delay and the number of drafted tokens cannot change a token. x and y agree
// with probability sum_i 1 / sum_j max(pi_j/pi_i, q_j/q_i), which is at least (1 - TV) / (1 + TV).
// For pi = p no row of the draft is needed.
#pragma once
#include <array>
#include <concepts>

#include <specagg/verify/detail/decision.hpp>

SPECAGG_BEGIN

// Exp(1) noise E(position, token). It is the same for everyone who has the seed and the request,
// and at all sites.
class coupled_noise {
 public:
  SPECAGG_FUNCTION constexpr explicit coupled_noise(std::uint64_t seed, std::uint64_t request = 0)
      : streams_(seed, request) {}
  // The members of random_streams (random.hpp): the noise of a token; the noise of a token whose
  // first word is known; the first words of 4 tokens, and of 64.
  SPECAGG_FUNCTION double operator()(std::uint32_t position, token_id v) const {
    return streams_.noise(position, v);
  }
  SPECAGG_FUNCTION double operator()(std::uint32_t position, token_id v, std::uint32_t word) const {
    return streams_.noise(position, v, word);
  }
  SPECAGG_FUNCTION philox_block four_words(std::uint32_t position, token_id v) const {
    return streams_.four_words(position, v);
  }
  std::array<std::uint32_t, 64> words(std::uint32_t position, token_id first) const {
    return streams_.noise_words(position, first);
  }

 private:
  random_streams streams_;
};

// A draft drawn by race(). It has its own type, because only coupled verification may verify it:
// its tokens share their noise with the target's draw and with later rounds, so other verifiers may
// be biased. Coupled verification of any other draft would accept too few tokens. Neither compiles.
struct coupled_draft {
  draft drafted;
  constexpr coupled_draft() = default;
  SPECAGG_FUNCTION constexpr explicit coupled_draft(const draft& d) : drafted(d) {}
  template <std::same_as<draft> Draft>
  constexpr coupled_draft(const Draft& d) : drafted(d) {
    static_assert(sizeof(Draft) == 0,
                  "specagg: this draft was not drawn with the coupled noise; token, block or match "
                  "verification verifies it");
  }
  template <std::same_as<draft> Draft>
  constexpr operator Draft() const {
    static_assert(sizeof(Draft) == 0,
                  "specagg: a coupled draft shares its noise with the target; only verify_coupled "
                  "verifies it without bias");
    return drafted;
  }
};

// A token's score in the race: its weight over its noise. The largest wins.
struct contender {
  token_id token = no_token;
  double score = 0;
};
// Whether a comes before b: larger score, then lower id.
SPECAGG_FUNCTION constexpr bool before(const contender& a, const contender& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

namespace detail {

// race() among the tokens [from, to) alone. A block begins at `from`.
template <class Rows, class F>
SPECAGG_FLATTEN contender race_in_order(const Rows& rows, const F& f, const coupled_noise& noise,
                                        std::uint32_t position, contender last, std::size_t from,
                                        std::size_t to) {
  using V = vec<typename Rows::value_type, 16>;
  contender best;
  for (std::size_t begin = from; begin < to; begin += block_size) {
    const std::size_t count = to - begin < block_size ? to - begin : block_size;
    const auto block = rows.open(begin, count);
    for (std::size_t k = 0; k < count; k += 64) {
      typename V::value_type w[64] = {};
      V most(0);
      for (std::size_t i = 0; i < 64 && k + i < count; i += 16) {
        const int lanes = count - k - i < 16 ? int(count - k - i) : 16;
        const V x = uncontracted(f(block.template operator()<V>(k + i, lanes)));
        x.store(w + i);
        most = max(x, most);
      }
      if (!any(most > V(0))) continue;
      const auto words = noise.words(position, token_id(begin + k));
      const std::size_t end = count - k < 64 ? count - k : 64;
      int hopeful = 0;
      double need[64];
      for (std::size_t i = 0; i < 64; ++i)
        need[i] = random_streams::least_noise(words[i]) * best.score;
      for (std::size_t i = 0; i < 64; ++i) hopeful |= double(w[i]) * (1 + 1e-9) >= need[i];
      if (!hopeful) continue;
      for (std::size_t i = 0; i < end; ++i) {
        if (!(w[i] > 0) || double(w[i]) * (1 + 1e-9) < need[i]) continue;
        const token_id v = token_id(begin + k + i);
        const contender c{v, double(w[i]) / noise(position, v, words[i])};
        if (before(last, c) && (best.token == no_token || before(c, best))) best = c;
      }
    }
  }
  return best;
}

}  // namespace detail

// The first contender after `last` in the order of before(); with the default `last`, the winner.
// The weights are f(at) of the rows. no_token if no other token has weight. One pass. A token
// cannot win if its weight is below its least noise times the best score so far. Such a token needs
// no logarithm and no second word, and nearly all tokens are like that.
template <class Rows, class F>
SPECAGG_FUNCTION contender race(const Rows& rows, const F& f, const coupled_noise& noise,
                                std::uint32_t position, contender last = {no_token, infinity}) {
  if constexpr (Walked<Rows>) return specagg::walker_of(rows).race(rows, f, noise, position, last);
  else return detail::race_in_order(rows, f, noise, position, last, 0, rows.size());
}
// Draws a coupled draft's token from a normalised row.
template <NormalisedRow R>
token_id race(const R& row, const coupled_noise& noise, std::uint32_t position) {
  // a one-hot row: nothing else can win
  if constexpr (requires { row.token(); }) return row.token();
  else return specagg::race(row, [](auto v) { return v; }, noise, position).token;
}

// Contract: specagg.hpp.
template <class Policy, class QRows = detail::in_braces, class PRows = detail::in_braces>
SPECAGG_FUNCTION verdict verify_coupled(const coupled_draft& coupled, QRows&& q_rows,
                                        PRows&& p_rows, const Policy& policy,
                                        const coupled_noise& noise, std::span<emission> out) {
  const draft& drafted = coupled.drafted;
  if (!detail::usable(drafted, policy, out)) return verdict{.why = status::invalid_parameter};
  verdict result;
  std::size_t g = drafted.size();
  const detail::law_source laws{policy, q_rows, p_rows};
  for (std::size_t j = 0; j < g || (j == g && drafted.bonus_follows(g)); ++j) {
    emission e;
    const auto draw = [&](const auto& rows, const auto& pi) {
      if (j < g) e.why = detail::examine(rows, pi, drafted.tokens[j]).e.why;
      if (e.why != status::ok) g = j;  // a token outside the support
      if (e.why != status::ok && !drafted.bonus) return e.why;
      const double total = rows.sum(pi);
      if (!(total > 0) || !(total < infinity)) return status::undefined_target;
      e.token = specagg::race(rows, pi, noise, std::uint32_t(drafted.start + j)).token;
      if (e.token == no_token) return status::undefined_target;  // another rank was wrong
      const auto seen = specagg::at(rows, std::size_t(e.token));
      e.log_pi = log_to_report(rows, as_double(pi(seen)));
      e.log_p = log_to_report(rows, as_double(seen.p));
      return status::ok;
    };
    result.why = detail::bonus_of(laws, drafted.bonus, j == g, j, e, draw);
    if (result.why != status::ok) return result;
    const bool kept = j < g && e.token == drafted.tokens[j];
    e.from = kept ? origin::accepted : j < g ? origin::residual : origin::bonus;
    detail::emit(e, drafted.end_of_text, out, result);
    if (!kept) break;
    if (!drafted.acceptances.empty()) drafted.acceptances[j] = {1, 1};
    ++result.accepted;
  }
  return result;
}

SPECAGG_END
