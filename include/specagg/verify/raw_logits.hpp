// SPDX-License-Identifier: Apache-2.0
// Verification towards raw logits combined (policy/raw_logits.hpp), by any verifier: what it is given as the target's
// row is the combination, tempered and filtered, and its policy is `lossless`.
#pragma once
#include <array>
#include <span>

#include <specagg/policy/lossless.hpp>
#include <specagg/policy/raw_logits.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// The verifier of a decoder whose policy is raw_logits{...}: speculative_decode(..., raw_logits{geometric{1.5}}, ...,
// raw_logits_verifier{token_verifier(), memory, sample}). Arguments of verify() as for verify_token, where q_rows and
// p_rows give processed rows, whose logits are combined. Each may be asked for several times, and q_rows for row g if
// all was accepted and a bonus is wanted, as for any policy that reads the draft. A combination that does not exist is
// reported as an undefined target of a policy is. log_p is that of the target's own processed row.
template <class V, class T>
struct raw_logits_verifier : V {
  std::span<T> combined;  // memory for V logits
  sampling sample;        // of the combination

  raw_logits_verifier(const V& verifier, std::span<T> memory, const sampling& s)
      : V(verifier), combined(memory), sample(s) {}

  template <class Q, class P, class Policy, class C>
    requires is_raw_logits<Policy>
  verdict verify(const draft& drafted, Q& q_rows, P& p_rows, const Policy& raw, C& chooser, std::span<emission> out,
                 std::span<double> scratch, std::span<draft_acceptance> acceptances = {}) const {
    using row = processed_row<T>;
    for (draft_acceptance& o : acceptances) o = {};
    if (!valid(raw)) return {.why = status::invalid_parameter};
    std::size_t made = std::size_t(-1);  // the position whose combination is in memory: verifiers look at one at a time
    status defect = status::ok;
    row pi;
    const auto combine = [&](std::size_t j) -> const row& {
      if (made == j) return pi;
      made = j, pi = {};
      const row q = detail::row_at(q_rows, j), p = detail::row_at(p_rows, j);
      const std::array<std::span<const T>, 2> logits{{{q.logits(), q.size()}, {p.logits(), p.size()}}};
      status s =
          q.size() == combined.size() ? combine_logits(raw.policy, logits, combined) : status::vocabulary_mismatch;
      if (s == status::ok) pi = row(combined, sample), s = pi.normalise();
      if (s != status::ok) defect = s;
      return pi;
    };
    verdict v = V::verify(drafted, q_rows, combine, lossless(), chooser, out, scratch, acceptances);
    if (v.why != status::ok && defect != status::ok) v.why = defect;
    for (std::size_t i = 0; i < v.emitted; ++i) {
      row p = detail::row_at(p_rows, i);
      if (p.normalise() == status::ok) out[i].log_p = log(double(p[std::size_t(out[i].token)]));
    }
    return v;
  }
};

SPECAGG_END
