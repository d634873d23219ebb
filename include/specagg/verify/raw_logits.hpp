// SPDX-License-Identifier: Apache-2.0
// Verification for policies that combine raw logits (policy/raw_logits.hpp), with any verifier. The
// verifier gets the combined row, after temperature and filters, as the target's row, and the
// policy `lossless`.
#pragma once
#include <array>
#include <span>

#include <specagg/policy/lossless.hpp>
#include <specagg/policy/raw_logits.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// The verifier for a decoder whose policy is raw_logits{...}: speculative_decode(...,
// raw_logits{geometric{1.5}}, ..., raw_logits_verifier{token_verifier(), memory, sample}). The
// arguments of verify() are those of verify_token. q_rows and p_rows must be lists of processed
// rows; their logits are combined. Each row may be asked for several times. q_rows is asked for row
// g if all tokens were accepted and a bonus is drawn from pi, as for any policy that reads the
// draft. If the combination does not exist, the status is the same as for a policy without a law
// there (undefined_target). log_p is that of the target's own processed row.
template <class V, class T>
struct raw_logits_verifier : V {
  static constexpr bool reads_draft_rows(bool /*acceptances*/) { return true; }
  std::span<T> combined;  // memory for V logits
  sampling sample;        // of the combination

  raw_logits_verifier(const V& verifier, std::span<T> memory, const sampling& s)
      : V(verifier), combined(memory), sample(s) {}

  template <class Q, class P, class Policy, class C>
    requires is_raw_logits<Policy>
  verdict verify(const draft& drafted, Q&& q_rows, P&& p_rows, const Policy& raw, C&& chooser,
                 std::span<emission> out, std::span<double> scratch) const {
    using row = processed_row<T>;
    using normalised = normal_form<row>;
    for (draft_acceptance& o : drafted.acceptances) o = {};
    if (!specagg::valid(raw)) return {.why = status::invalid_parameter};
    // the position of the combination in memory: verifiers use one at a time
    std::size_t made = std::size_t(-1);
    status defect = status::ok;
    normalised pi;
    const auto combine = [&](std::size_t j) -> const normalised& {
      if (made == j) return pi;
      made = j;
      pi = {};
      if (j == drafted.size() && drafted.bonus.is_target()) {
        defect = detail::with_row_at(p_rows, j, [&](const row& p) {
          pi = specagg::normalise(p);
          return pi.why();
        });
        return pi;
      }
      const status s = detail::with_row_at(q_rows, j, [&](const row& q) {
        return detail::with_row_at(p_rows, j, [&](const row& p) {
          if (q.size() != combined.size()) return status::vocabulary_mismatch;
          const std::array<std::span<const T>, 2> logits{
              {{q.logits(), q.size()}, {p.logits(), p.size()}}};
          if (const status why = specagg::combine_logits(raw.policy, logits, combined);
              why != status::ok)
            return why;
          pi = specagg::normalise(row(combined, sample));
          return pi.why();
        });
      });
      if (s != status::ok) defect = s;
      return pi;
    };
    const auto rows = rows_of(drafted.size() + 1, combine);
    verdict v = V::verify(drafted, q_rows, rows, lossless(), chooser, out, scratch);
    if (v.why != status::ok && defect != status::ok) v.why = defect;
    for (std::size_t i = 0; i < v.emitted; ++i) {
      if (i == drafted.size() && drafted.bonus.is_given()) break;  // perhaps without a row
      const auto p = specagg::normalise(p_rows[i]);
      if (p.why() == status::ok) out[i].log_p = log(double(p[std::size_t(out[i].token)]));
    }
    return v;
  }
};

SPECAGG_END
