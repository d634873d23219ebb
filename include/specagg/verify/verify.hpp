// SPDX-License-Identifier: Apache-2.0
// What goes into a verification and what comes out: the same for every verifier.
#pragma once
#include <cstdint>
#include <span>

#include <specagg/policy/policy.hpp>
#include <specagg/random.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// The tokens a draft proposed for positions start, start + 1, ... of the text. A no_token (-1) ends the draft early
// (padding of ragged batches), and so does the first end-of-text token: what stands behind it is dropped.
struct draft {
  std::span<const token_id> tokens = {};
  std::uint32_t start = 0;
  token_id end_of_text = no_token;
  bool bonus = true;  // draw a token more when all were accepted and the text has not ended

  std::size_t size() const {
    std::size_t g = 0;
    while (g < tokens.size() && tokens[g] != no_token)
      if (tokens[g++] == end_of_text) break;
    return g;
  }
  bool ends_text(std::size_t g) const { return g > 0 && tokens[g - 1] == end_of_text; }
};

enum class origin : std::uint8_t { accepted, residual, bonus };
constexpr const char* name(origin o) {
  return o == origin::accepted ? "accepted" : o == origin::residual ? "residual" : "bonus";
}

// One emitted token. log_pi and log_p: its log-probability under the target law and under the target model's row.
struct emission {
  token_id token = no_token;
  origin from = origin::accepted;
  status why = status::ok;  // ok, draft_not_in_support or token_out_of_range
  double log_pi = 0, log_p = 0;
};

// What the rows say about a drafted position, whether it was reached or not: overlap = sum min(q, pi), the probability
// that a token from q is accepted there; ratio = min(1, pi(y) / q(y)), the probability that the drafted y is.
struct overlap {
  double acceptance = 0, ratio = 0;
};

// accepted: drafted tokens kept. emitted: tokens written (accepted, plus one residual or bonus token if there is one).
// why: ok, or what is wrong with row number `emitted`, for which no token could be emitted.
struct verdict {
  std::size_t accepted = 0, emitted = 0;
  status why = status::ok;
};

// Expected tokens per round from the overlaps of one draft, whatever was accepted:
// 1 + sum_k a_k prod_{j<k} min(1, pi_j(y_j) / q_j(y_j)). Unbiased for token verification.
inline double expected_tokens(std::span<const overlap> draft) {
  double expected = 1, reached = 1;
  for (const overlap& o : draft) {
    expected = fma(o.acceptance, reached, expected);
    reached *= o.ratio;
  }
  return expected;
}

namespace detail {

// rows(j) if it can be called, else rows[j]: the row of position j, made only when it is needed.
template <class Rows>
decltype(auto) row_number(Rows& rows, std::size_t j) {
  if constexpr (requires { rows(j); }) return as_row(rows(j));
  else return as_row(rows[j]);
}

template <class V>
SPECAGG_INLINE double number(V x) {
  return double(settled(x).v);
}

}  // namespace detail

// Doubles of scratch that a verifier needs for rows of V tokens.
constexpr std::size_t verify_scratch(std::size_t vocabulary) { return block_count(vocabulary); }

SPECAGG_END
