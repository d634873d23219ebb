// SPDX-License-Identifier: Apache-2.0
// Synthetic acceptance: how many drafted tokens are accepted is drawn, whatever the models say. A
// benchmark that replays a given acceptance length measures an engine without the quality of its
// drafter. The text has no law. vLLM: `rejection_sample_method` "synthetic" with
// `synthetic_acceptance_length` or `synthetic_acceptance_rates`; SGLang: SGLANG_SIMULATE_ACC_LEN
// with match-expected; TensorRT-LLM: TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS (length - 1).
#pragma once
#include <algorithm>
#include <limits>
#include <span>

#include <specagg/policy/lossless.hpp>
#include <specagg/verify/detail/decision.hpp>

SPECAGG_BEGIN

// length: the mean number of tokens of a step, with the one that the target adds; >= 1. With x =
// length - 1, floor(x) drafted tokens are accepted, and one more with probability x - floor(x). No
// other way to accept whole tokens with this mean has less variance. Drafts need ceil(x) tokens; of
// a shorter one all that are due are accepted, up to its end, so the mean is less.
//
// rates, if there are any: the probability that at least the first j + 1 drafted tokens are
// accepted, j from 0, in [0, 1] and none above the one before it. They say the whole law of how
// many are accepted, and length is then 1 + their sum. of_rates() sets both; the numbers stay the
// caller's.
struct synthetic_acceptance {
  double length = 1;
  std::span<const double> rates = {};
  // The length at which this share of gamma drafted tokens is accepted: 1 + rate gamma, rate in
  // [0, 1].
  static constexpr synthetic_acceptance of_rate(double rate, std::size_t gamma) {
    return {1 + rate * double(gamma)};
  }
  static constexpr synthetic_acceptance of_rates(std::span<const double> rates) {
    double sum = 1;
    for (const double r : rates) sum += r;
    return {sum, rates};
  }
  static constexpr double longest = 1 << 20;
  constexpr bool valid() const {
    double last = 1;
    for (const double r : rates) {
      if (!(r >= 0 && r <= last)) return false;
      last = r;
    }
    return length >= 1 && length <= longest;
  }
  // Drafted tokens that are always accepted, and the probability of one more, where no rates are.
  constexpr std::size_t always() const { return std::size_t(length - 1); }
  constexpr double one_more() const { return length - 1 - double(always()); }
  // The probability that at least the first j + 1 drafted tokens are accepted, j from 0: vLLM's
  // `synthetic_acceptance_rates`.
  constexpr double rate(std::size_t j) const {
    if (!rates.empty()) return j < rates.size() ? rates[j] : 0;
    return j < always() ? 1 : j == always() ? one_more() : 0;
  }
  // How many tokens of a draft of g are accepted, g >= 0, whose first token has this position.
  template <Chooser C>
  std::size_t accepted(std::size_t g, std::uint32_t start, C&& chooser) const {
    const auto coin = [&](std::size_t j, double weight, double total) {
      return chooser.coin(moment{stream::coin, std::uint32_t(start + j), start}, weight, total);
    };
    if (rates.empty()) {
      const std::size_t sure = always();
      return sure < g && coin(sure, one_more(), 1) ? sure + 1 : std::min(sure, g);
    }
    std::size_t n = 0;
    for (double last = 1; n < std::min(g, rates.size()) && rates[n] > 0; last = rates[n++])
      if (!coin(n, rates[n], last)) break;
    return n;
  }
};

// A verifier V whose result is replaced, if `synthetic` is not null: by the drafted tokens that it
// accepts, and one token drawn from the target's row after them (the bonus, if all are accepted).
// V verifies in any case, so a round costs what it costs with V. log_pi is NaN, since the text has
// no law, and log_p of drafted tokens is NaN. Errors: those of V and of the target's row;
// invalid_parameter if `synthetic` is invalid; token_out_of_range for a drafted token that the row
// after the accepted ones does not have.
template <class V>
struct synthetic_verifier : V {
  const synthetic_acceptance* synthetic = nullptr;

  synthetic_verifier(const V& verifier, const synthetic_acceptance* how)
      : V(verifier), synthetic(how) {}

  template <class Q, class P, class Policy, class C>
  verdict verify(const draft& drafted, Q&& q_rows, P&& p_rows, const Policy& policy, C&& chooser,
                 std::span<emission> out, std::span<double> scratch) const {
    verdict v = V::verify(drafted, q_rows, p_rows, policy, chooser, out, scratch);
    if (!synthetic) return v;
    if (!synthetic->valid()) return {.why = status::invalid_parameter};
    if (v.why != status::ok) return v;
    const std::size_t g = drafted.size(), n = synthetic->accepted(g, drafted.start, chooser);
    v = {};
    constexpr double none = std::numeric_limits<double>::quiet_NaN();
    for (std::size_t j = 0; j < n; ++j)
      detail::emit({.token = drafted.tokens[j], .log_pi = none, .log_p = none}, drafted.end_of_text,
                   out, v);
    v.accepted = n;
    if (n == g && !drafted.bonus_follows(g)) return v;
    const lossless target;
    const detail::law_source targets{target, q_rows, p_rows, scratch};
    const detail::drawing by{drafted.start, chooser, scratch};
    const stream use = n < g ? stream::residual : stream::bonus;
    emission e{.from = n < g ? origin::residual : origin::bonus};
    v.why = targets.with_law(n, [&](const auto& rows, const auto& pi) {
      for (std::size_t j = 0; j < n; ++j)
        if (const token_id y = drafted.tokens[j]; y < 0 || std::size_t(y) >= rows.size())
          return status::token_out_of_range;
      return by.draw_token(rows, pi, pi, by.at(use, n), e);
    });
    e.log_pi = none;
    if (v.why == status::ok) detail::emit(e, drafted.end_of_text, out, v);
    return v;
  }
};

SPECAGG_END
