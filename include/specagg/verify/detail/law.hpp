// SPDX-License-Identifier: Apache-2.0
// The law of a position: the checks of a policy and of the rows that it combines, and with_law(),
// by which every verifier reads them.
#pragma once
#include <specagg/policy/checked.hpp>
#include <specagg/policy/policies_of.hpp>
#include <specagg/rows/rows.hpp>

SPECAGG_BEGIN
namespace detail {

// The checks of a policy and of rows before a verification (detail/misfit.hpp).
template <class Policy>
struct check_combines_rows {
  static constexpr bool fits = !is_raw_logits<Policy>;
  SPECAGG_FUNCTION static void say() {
    static_assert(fits,
                  "specagg: raw_logits combines logits, not rows: verify by "
                  "raw_logits_verifier(token_verifier(), memory, sampling); a decoder is given it "
                  "after the request (docs/mathematics.md)");
  }
};
template <class Policy>
struct check_two_models {
  static constexpr bool fits = models_of<Policy> == 2;
  SPECAGG_FUNCTION static void say() {
    static_assert(fits,
                  "specagg: this policy combines another number of models than two (more models: "
                  "docs/decoders.md)");
  }
};
template <class QRows, class PRows>
struct check_value_types {
  static constexpr bool fits = std::is_same_v<value_of_rows<QRows>, value_of_rows<PRows>>;
  SPECAGG_FUNCTION static void say() {
    static_assert(fits,
                  "specagg: the rows of draft and target must have one value type, both float or "
                  "both double (docs/types.md)");
  }
};
template <class Policy, class PRows>
struct check_policy_of_rows {
  using check = check_policy<Policy, value_of_rows<PRows>>;
  static constexpr bool fits = check::fits;
  SPECAGG_FUNCTION static void say() { check::say(); }
};
template <class Policy, class QRows, class PRows>
using misfit_of_law =
    typename first_misfit<check_combines_rows<Policy>, check_two_models<Policy>, check_rows<QRows>,
                          check_rows<PRows>, check_value_types<QRows, PRows>,
                          check_policy_of_rows<Policy, PRows>>::type;

// Returns f(q, p) with the normalised rows of position j. missing_row: a row was not given;
// invalid_parameter: the policy reads the draft's row, and the row is cut; or why the rows cannot
// be read.
template <class Policy, class QRows, class P, class F>
SPECAGG_FUNCTION status with_draft_row(QRows& q_rows, const P& p_row, std::size_t j, F&& f) {
  constexpr bool confidence = reads_confidence<Policy>;
  return detail::with_row_at(q_rows, j, [&](const auto& q_row) {
    if (!detail::fit_together(q_row, p_row)) return status::vocabulary_mismatch;
    const auto& q = specagg::normalise(q_row, confidence);
    if (const status s = readable(q, confidence); s != status::ok) return s;
    const auto& p = specagg::normalise(p_row, confidence);
    if (const status s = readable(p, confidence); s != status::ok) return s;
    if constexpr (reads_draft<Policy> && is_cut<std::remove_cvref_t<decltype(q)>>)
      return status::invalid_parameter;
    else return f(q, p);
  });
}
template <class Policy, class QRows, class PRows, class F>
SPECAGG_FUNCTION status with_rows(QRows& q_rows, PRows& p_rows, std::size_t j, F&& f) {
  return detail::with_row_at(p_rows, j, [&](const auto& p_row) {
    return detail::with_draft_row<Policy>(q_rows, p_row, j, f);
  });
}
// Likewise with the target's row alone: f(p). Or f(p, sums): the row's pass leaves the sums of its
// blocks in scratch if it can, for a draw.
template <class Policy, class P, class F>
SPECAGG_FUNCTION status with_only(const P& p_row, std::span<double> scratch, F&& f) {
  constexpr bool confidence = reads_confidence<Policy>;
  row_sums sums{scratch};
  const auto& p = confidence || scratch.empty() ? specagg::normalise(p_row, confidence)
                                                : specagg::normalise(p_row, sums);
  if (const status s = readable(p, confidence); s != status::ok) return s;
  if constexpr (requires { f(p, sums); }) return f(p, sums);
  else return f(p);
}
template <class Policy, class PRows, class F>
SPECAGG_FUNCTION status with_target_row(PRows& p_rows, std::size_t j, F&& f) {
  return detail::with_row_at(
      p_rows, j, [&](const auto& p_row) { return detail::with_only<Policy>(p_row, {}, f); });
}
// The two rows of a position as a policy sees them.
template <class Policy, class Q, class P>
SPECAGG_FUNCTION auto pair_for(const Q& q, const P& p) {
  return detail::seen_by<Policy>(row_pair<reads_confidence<Policy>, Q, P>(q, p));
}

// When the draft's row is read: always; only if the policy reads it; or then and where the target's
// row is not greedy (rows/row.hpp), so that more than one token is left to choose.
enum class draft_row { always, if_read, unless_greedy };

// The laws of all positions: a policy, and the lists of the rows that it combines. scratch: memory
// for the sums of a target's row that is read alone, from when it is read until a token was drawn;
// may be empty.
template <class Policy, class QRows, class PRows>
struct law_source {
  const Policy& policy;
  QRows& q_rows;
  PRows& p_rows;
  std::span<double> scratch = {};

  // Likewise, by another policy.
  template <class Other>
  SPECAGG_FUNCTION law_source<Other, QRows, PRows> by(const Other& other) const {
    return {other, q_rows, p_rows, scratch};
  }
  // Calls f(rows, pi) with the normalised rows of position j and pi bound to them. Returns f's
  // status, or why the rows cannot be read. A list of policies, a policy chosen at run time
  // (policy/any_of.hpp) and a row of several kinds (rows/any_row.hpp) are resolved here, so f and
  // all loops in it are compiled for what was chosen.
  // alone: false makes unless_greedy always.
  template <draft_row Draft = draft_row::if_read, class F>
  SPECAGG_FUNCTION status with_law(std::size_t j, F&& f, bool alone = true) const {
    constexpr bool reads_q = Draft != draft_row::if_read || reads_draft<Policy>;
    using misfit = misfit_of_law<Policy, std::conditional_t<reads_q, QRows, PRows>, PRows>;
    if constexpr (PolicyList<Policy>) {
      const auto here = policy[j];
      if (!specagg::valid(here)) return status::invalid_parameter;
      return by(here).template with_law<Draft>(j, f, alone);
    } else if constexpr (CompiledForEach<Policy>) {
      return specagg::with_chosen(policy, [&](const auto& chosen) {
        return by(chosen).template with_law<Draft>(j, f, alone);
      });
    } else if constexpr (Misfit<misfit>) {
      misfit::say();
      return status::invalid_parameter;
    } else {
      return detail::with_row_at(p_rows, j, [&](const auto& p_row) {
        const auto with_target = [&](const auto& p, const row_sums& sums) {
          using P = std::remove_cvref_t<decltype(p)>;
          return detail::with_pi(policy, target_rows<reads_confidence<Policy>, P>(p, sums), f);
        };
        if constexpr (reads_q) {
          // a row that is cut says whether its token was kept
          if constexpr (Draft == draft_row::unless_greedy && !reads_draft<Policy> &&
                        !may_be_cut<row_of_list<QRows>> && requires { p_row.greedy(); })
            if (alone && p_row.greedy())
              return detail::with_only<Policy>(p_row, scratch, with_target);
          const auto with_pair = [&](const auto& q, const auto& p) {
            const auto rows = detail::pair_for<Policy>(q, p);
            return f(rows, detail::bind_law(rows, policy));
          };
          return detail::with_draft_row<Policy>(q_rows, p_row, j, with_pair);
        } else {
          return detail::with_only<Policy>(p_row, scratch, with_target);
        }
      });
    }
  }
};
template <class Policy, class QRows, class PRows>
law_source(const Policy&, QRows&, PRows&) -> law_source<Policy, QRows, PRows>;
template <class Policy, class QRows, class PRows>
law_source(const Policy&, QRows&, PRows&, std::span<double>) -> law_source<Policy, QRows, PRows>;

}  // namespace detail
SPECAGG_END
