// SPDX-License-Identifier: Apache-2.0
// The kernels by their names in the papers, as functions of rows: distances of two rows, the
// acceptance rate of a draft, and a draw from the residual. Policies and verifiers compute with the
// same code. log_sum_exp(logits) is in kernel/softmax.hpp.
//
// q and p are Rows or other Distributions (rows/row.hpp) of one size V and one value type
// T, probabilities or softmax_row{logits}: they are normalised in a copy, and not changed. Nothing
// is allocated. Each function reads the rows once to normalise them, and once for its sum.
//
// Errors: the number is NaN, or the token is no_token and `why` says why, if
//   * a row is invalid (NaN, +inf, a negative probability, every token masked, none at all) or its
//     sum is further than 1e-3 from 1
//   * the sizes differ
//   * a parameter of the policy is out of range, or pi does not exist for these rows
#pragma once
#include <limits>
#include <span>

#include <specagg/kernel/softmax.hpp>
#include <specagg/verify/detail/decision.hpp>

SPECAGG_BEGIN

// Bounds of the error for rows of V tokens. overlap_error: of total_variation and acceptance_rate
// without a policy (with one, that of pi in total variation is added). kl_error: the error of
// kl_divergence is at most kl_error (1 + KL). Both count the rounding of the rows, a softmax
// included. T is float or double. For V = 131,072: 1.3e-5 and 1.1e-4 with floats, 1e-13 and
// 1.4e-12 with doubles. In rows like a model's the errors are a hundred times smaller.
template <class T>
constexpr double overlap_error(std::size_t V) noexcept {
  return 5 * softmax_error<T>(V);  // twice for each row, once for the sum
}
template <class T>
constexpr double kl_error(std::size_t V) noexcept {
  // An element of a softmax has the relative error of the total, of an exponential, and of its
  // logit, whose size is at most -ln of the smallest number.
  constexpr double largest = -0.7 * std::numeric_limits<T>::min_exponent;
  return 8 *
         (softmax_error<T>(V) + (4 + 2 * largest) * double(std::numeric_limits<T>::epsilon() / 2));
}

namespace detail {

// f(rows, pi) with the normalised rows of q and p and the law bound to them; or what is wrong.
template <class Q, class P, class Policy, class F>
status with_law_of_rows(const Q& q, const P& p, const Policy& policy, F&& f) {
  if (!specagg::valid(policy)) return status::invalid_parameter;
  const std::span<const Q, 1> q_rows(&q, 1);
  const std::span<const P, 1> p_rows(&p, 1);
  return law_source{policy, q_rows, p_rows}.template with_law<draft_row::always>(0, f);
}
// The number f(rows, pi); NaN where there is none. At most `most`: rounding may exceed it.
template <class Q, class P, class Policy, class F>
double number_of_rows(const Q& q, const P& p, const Policy& policy, double most, F&& f) {
  double x = std::numeric_limits<double>::quiet_NaN();
  (void)detail::with_law_of_rows(q, p, policy, [&](const auto& rows, const auto& pi) {
    x = f(rows, pi);
    return status::ok;
  });
  return x > most ? most : x;
}
// A Chooser that knows one number.
struct one_uniform {
  double u;
  bool coin(moment, double w, double t) const { return u * t < w; }
  template <class Weights>
  token_id draw(moment, const Weights& w) const {
    return specagg::inverse_transform(w, u);
  }
};

}  // namespace detail

// The total variation distance of q and p, in [0, 1]: half of sum |q - p|. Error: overlap_error.
template <Distribution Q, Distribution P>
double total_variation(const Q& q, const P& p) {
  return detail::number_of_rows(
      q, p, lossless(), 1, [](const auto& rows, const auto&) { return total_variation(rows); });
}

// KL(q || p) in nats. Infinite if p is 0 where q is not. A softmax is 0 below 2^-125 (floats) or
// 2^-1021 (doubles). A stored q that is subnormal counts as 0. Error: kl_error. It may be negative
// by as much.
template <Distribution Q, Distribution P>
double kl_divergence(const Q& q, const P& p) {
  return detail::number_of_rows(q, p, lossless(), infinity, [](const auto& rows, const auto& pi) {
    return kl_divergence(rows, [](auto at) { return at.q; }, pi);
  });
}

// The probability that a token drawn from q is accepted by token verification towards pi, in [0,
// 1]: sum min(q, pi). pi = p without a policy. Error: overlap_error.
template <Distribution Q, Distribution P, class Policy>
double acceptance_rate(const Q& q, const P& p, const Policy& policy) {
  return detail::number_of_rows(
      q, p, policy, 1, [](const auto& rows, const auto& pi) { return acceptance_rate(rows, pi); });
}
template <Distribution Q, Distribution P>
double acceptance_rate(const Q& q, const P& p) {
  return specagg::acceptance_rate(q, p, lossless());
}

// Contract: specagg.hpp.
template <Distribution Q, Distribution P, class Policy>
emission sample_residual(const Q& q, const P& p, const Policy& policy, double u,
                         std::span<double> scratch) {
  emission e;
  detail::one_uniform chooser{u};
  const detail::drawing by{0, chooser, scratch};
  e.why = detail::with_law_of_rows(q, p, policy, [&](const auto& rows, const auto& pi) {
    return by.draw_residual(rows, pi, 1, 0, e);
  });
  return e;
}
template <Distribution Q, Distribution P>
emission sample_residual(const Q& q, const P& p, double u, std::span<double> scratch) {
  return specagg::sample_residual(q, p, lossless(), u, scratch);
}

SPECAGG_END
