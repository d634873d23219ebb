// SPDX-License-Identifier: Apache-2.0
// Policies with state: the law of a token depends on the tokens and rows before it, as with a
// budget that a text spends. Here are such policies, and how they are verified.
#pragma once
#include <algorithm>
#include <span>
#include <variant>

#include <specagg/policy/catalogue.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// A policy with state has a type `state`, and
//   begin()                   the state before the first token
//   at(state)                 the policy of the next token
//   advance(state, y)         the state after token y, or
//   advance(state, rows, y)   likewise, also from the target's row of that position: rows.sum,
//                             at(rows, y).p and all else that a policy may use of p, but nothing of
//                             q
// It may have is_state(state): whether a text can have this state. A verifier refuses other states.
// advance() may use nothing but its arguments. Then the state is a function of the text, the law of
// a text is the product of the laws of its tokens, and drafts do not change it. A rule that looks
// ahead into the draft (FLy), or counts the tokens of a round, is no policy with state: its law
// changes with the draft's length.
template <class P>
concept StatefulPolicy = requires(const P& policy, const typename P::state& s) {
  { policy.begin() } -> std::same_as<typename P::state>;
  policy.at(s);
};

namespace detail {

template <class Policy>
constexpr bool advances_by_token =
    requires(const Policy& policy, const typename Policy::state& s) { policy.advance(s, 0); };

template <class Policy, class Rows>
SPECAGG_FUNCTION typename Policy::state advanced(const Policy& policy,
                                                 const typename Policy::state& s, const Rows& rows,
                                                 token_id y) {
  if constexpr (advances_by_token<Policy>) return policy.advance(s, y);
  else return policy.advance(s, rows, y);
}

template <class Policy>
constexpr bool is_state_of(const Policy& policy, const typename Policy::state& s) {
  if constexpr (requires { policy.is_state(s); }) return policy.is_state(s);
  else return true;
}

// The policy of one position. bind() also writes the state after the drafted token.
template <class Policy>
struct advancing {
  using state = typename Policy::state;
  const Policy* policy;
  const state* here;
  state* next;  // null: no token is drafted there
  token_id drafted;
  static constexpr bool reads_draft = specagg::reads_draft<Policy>;
  static constexpr bool reads_confidence = specagg::reads_confidence<Policy>;
  static constexpr bool reads_ids = specagg::reads_ids<Policy>;
  constexpr bool valid() const { return specagg::valid(policy->at(*here)); }

  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    if (next && outside_support(drafted, rows.size(), 1) == status::ok)
      *next = detail::advanced(*policy, *here, rows, drafted);
    return policy->at(*here).bind(rows);
  }
};

}  // namespace detail

// A verifier of policies with state, which verifies by V. The arguments of verify() are those of
// verify_token, but the policy is one with state. It declares what its policies read.
//   states   memory, one more than tokens are drafted. states[0] is the state after the text; after
//            verify() it is the state after the emitted tokens: the accepted ones and the token
//            drawn after them, if there is one. If no token was emitted it is as before
// invalid_parameter: there are too few states; no text has states[0] (is_state()); or the caller
// gives the bonus, and advance() needs its row. Acceptances are computed with the states along the
// draft, as if all of its tokens were accepted. Not for trees (policies_of() is).
template <class V, class State>
struct stateful_verifier : V {
  std::span<State> states;

  stateful_verifier(const V& verifier, std::span<State> memory) : V(verifier), states(memory) {}

  template <class Q, class P, StatefulPolicy Policy, class C>
  verdict verify(const draft& drafted, Q&& q_rows, P&& p_rows, const Policy& policy, C&& chooser,
                 std::span<emission> out, std::span<double> scratch) const {
    const std::size_t g = drafted.size();
    for (draft_acceptance& o : drafted.acceptances) o = {};
    if (!specagg::valid(policy) || states.size() < g + 1 ||
        !detail::is_state_of(policy, states[0]) ||
        (drafted.bonus.is_given() && !detail::advances_by_token<Policy>))
      return {.why = status::invalid_parameter};
    const auto policies = policies_of([&](std::size_t j) {
      return detail::advancing<Policy>{&policy, &states[j], j < g ? &states[j + 1] : nullptr,
                                       j < g ? drafted.tokens[j] : no_token};
    });
    verdict v = V::verify(drafted, q_rows, p_rows, policies, chooser, out, scratch);
    const State after = states[v.accepted];
    if (v.emitted == v.accepted) {
      states[0] = after;
      return v;
    }
    const token_id last = out[v.accepted].token;
    if constexpr (detail::advances_by_token<Policy>) {
      states[0] = policy.advance(after, last);
    } else {
      // The row was read when the token was drawn, so this cannot fail.
      (void)detail::with_target_row<reads_confidence<Policy>>(
          p_rows, v.accepted, [&](const auto& p) {
            using row = std::remove_cvref_t<decltype(p)>;
            states[0] = policy.advance(after, target_rows<reads_confidence<Policy>, row>(p), last);
            return status::ok;
          });
    }
    return v;
  }
};

// A budget of regret along the text, as ASD (arXiv:2608.03447) is described. Its paper was not
// available, so nothing here was compared with it. The regret of a token is ln(max p / p(v)) at
// temperature 1, in nats: the distance of its logit from the largest one. The law keeps q at tokens
// whose regret is at most `limit`, at most the rest of `budget`, and at most 36 (double loses much
// smaller numbers than e^-36 when it subtracts them from 1), so never at a token with p = 0. The
// rest of q is drawn from p, as in policy/token_cascade.hpp. An emitted token within these bounds
// spends its regret. Limits for each block of drafts depend on where a round begins, so they are no
// law of a text.
struct regret_budget {
  double budget = 0, limit = infinity;
  struct state {
    double spent = 0;
  };
  constexpr bool valid() const { return budget >= 0 && is_finite(budget) && limit >= 0; }
  constexpr state begin() const { return {}; }
  constexpr bool is_state(const state& s) const { return s.spent >= 0 && is_finite(s.spent); }
  // token_v3 keeps q where p(v) >= (1 - alpha) max p.
  SPECAGG_FUNCTION token_v3 at(const state& s) const {
    const double left = s.spent < budget ? budget - s.spent : 0, most = left < limit ? left : limit;
    return {1 - exp(most < 36 ? -most : -36)};
  }
  template <class Rows>
  SPECAGG_FUNCTION state advance(const state& s, const Rows& rows, token_id y) const {
    const double top = rows.max([](auto v) { return v.confidence_p; });
    const auto p = specagg::at(rows, std::size_t(y)).confidence_p;
    if (any(p < (1 - at(s).alpha) * top)) return s;  // as the policy compares
    return {s.spent + (log(top) - log(as_double(p)))};
  }
};

// An entropy gate, and tokens of law p after a token that it let through. The gate is open if the
// sum of -p ln p over the three most likely tokens, in nats at temperature 1, is at least
// `threshold`. Then the law keeps q wherever p > 0, and the rest of q is drawn from p; else pi = p.
// After a token of an open gate that is not p's most likely one, the next `window` tokens have the
// law p. The gate is that of FLy's code (arXiv:2511.22972). But the policy is not FLy: FLy takes
// such a token back if the draft's next tokens are rejected, so its law depends on the draft's
// length.
struct entropy_window {
  double threshold = 0.3, window = 6;
  struct state {
    double left = 0;  // tokens that have the law p
  };
  constexpr bool valid() const { return is_finite(threshold) && window >= 0 && is_finite(window); }
  constexpr state begin() const { return {}; }
  constexpr bool is_state(const state& s) const { return s.left >= 0 && s.left <= window; }

  template <class Rows>
  SPECAGG_FUNCTION static double entropy(const Rows& rows) {
    double h = 0, least = infinity;  // least: of those that were counted
    for (double left = 3; left > 0;) {
      least = rows.max([=](auto v) { return select(v.confidence_p < least, v.confidence_p, 0); });
      if (!(least > 0)) break;
      const double equal =
          rows.sum([=](auto v) { return select(v.confidence_p == least, decltype(v.p)(1), 0); });
      h -= (equal < left ? equal : left) * least * log(least);
      left -= equal;
    }
    return h;
  }
  // The law is p if the gate is `shut` or entropy() is below `threshold`. Else it is q where p > 0,
  // and the rest of q is drawn from p.
  struct gate {
    double threshold;
    bool shut;  // the law is p, whatever p is
    template <class Rows>
    SPECAGG_FUNCTION auto bind(const Rows& rows) const {
      const bool open = !shut && entropy(rows) >= threshold;
      const double eta = rows.sum([=](auto v) { return select(v.p > 0, 0, v.q); });
      return [=](auto v) { return select(open, fma(eta, v.p, select(v.p > 0, v.q, 0)), v.p); };
    }
  };
  SPECAGG_FUNCTION gate at(const state& s) const { return {threshold, s.left > 0}; }
  template <class Rows>
  SPECAGG_FUNCTION state advance(const state& s, const Rows& rows, token_id y) const {
    if (s.left > 0) return {s.left > 1 ? s.left - 1 : 0};  // a window may be no whole number
    const auto top = token_id(rows.argmax([](auto v) { return v.p; }));
    return {y != top && entropy(rows) >= threshold ? window : 0};
  }
};

// One policy inside a span of the text, another one outside. The span begins after a token of
// `open` and ends with the next token of `close`, which still has the law of the inside.
// TensorRT-LLM and MAX relax verification in this way between the marks of a model's thinking.
template <class Inside, class Outside>
struct phase {
  Inside inside;
  Outside outside;
  std::span<const token_id> open, close;
  struct state {
    bool is_inside = false;
  };
  static constexpr bool reads_draft = specagg::reads_draft<Inside> || specagg::reads_draft<Outside>;
  static constexpr bool reads_confidence =
      specagg::reads_confidence<Inside> || specagg::reads_confidence<Outside>;
  static constexpr bool reads_ids = specagg::reads_ids<Inside> || specagg::reads_ids<Outside>;
  constexpr bool valid() const { return specagg::valid(inside) && specagg::valid(outside); }
  constexpr state begin() const { return {}; }
  using one = std::conditional_t<std::is_same_v<Inside, Outside>, Inside, any_of<Inside, Outside>>;
  one at(const state& s) const {
    if (s.is_inside) return inside;
    return outside;
  }
  state advance(const state& s, token_id y) const {
    const auto is_in = [y](std::span<const token_id> tokens) {
      return std::find(tokens.begin(), tokens.end(), y) != tokens.end();
    };
    return {s.is_inside ? !is_in(close) : is_in(open)};
  }
};

// The policies with state whose parameters are numbers, as in the catalogue of the others
// (policy/catalogue.hpp). phase has policies and tokens for parameters.
inline constexpr std::tuple stateful_catalogue{
    catalogued("regret-budget", "q where ln(max p / p(v)) <= limit and what is left; rest from p",
               {regret_budget{}, regret_budget{1, 0.8}},
               {{"budget", &regret_budget::budget, 0},
                {"limit", &regret_budget::limit, 0, infinity, false, "none"}}),
    catalogued("entropy-window",
               "q if H of p's 3 most likely >= threshold; after a less likely token p",
               {entropy_window{}, entropy_window{0.7, 1}},
               {{"threshold", &entropy_window::threshold}, {"window", &entropy_window::window, 0}}),
};

namespace detail {
template <class... P>
any_of<P..., entropy_window::gate> any_of_positions(const any_of<P...>&);
}  // namespace detail

// Any of the policies above, chosen at run time. Its state is one number: the regret that was
// spent, the tokens left of a window, or 1 inside a phase.
struct any_stateful {
  std::variant<regret_budget, entropy_window, phase<any_catalogued, any_catalogued>> chosen;
  struct state {
    double x = 0;
  };
  static constexpr bool reads_draft = true, reads_confidence = true;
  static constexpr bool reads_ids = any_catalogued::reads_ids;
  // what at() gives
  using one = compiled_once<decltype(detail::any_of_positions(std::declval<any_catalogued>()))>;

  bool valid() const {
    return std::visit([](const auto& policy) { return specagg::valid(policy); }, chosen);
  }
  state begin() const { return {}; }
  bool is_state(const state& s) const {
    return std::visit(
        [&]<class Policy>(const Policy& policy) {
          using own = typename Policy::state;
          if constexpr (requires { own{s.x}; }) return policy.is_state(own{s.x});
          else return s.x == 0 || s.x == 1;
        },
        chosen);
  }
  one at(const state& s) const {
    one made;
    const auto set = [&](const auto& policy) { made.chosen = policy; };
    std::visit(
        [&](const auto& policy) {
          const auto here = policy.at(of(policy, s));
          if constexpr (requires { here.chosen; }) std::visit(set, here.chosen);
          else set(here);
        },
        chosen);
    return made;
  }
  template <class Rows>
  state advance(const state& s, const Rows& rows, token_id y) const {
    return std::visit(
        [&](const auto& policy) {
          const auto& [x] = detail::advanced(policy, of(policy, s), rows, y);
          return state{double(x)};
        },
        chosen);
  }

 private:
  template <class Policy, class State = typename Policy::state>
  static State of(const Policy&, const state& s) {
    if constexpr (requires { State{s.x}; }) return State{s.x};
    else return State{s.x > 0};
  }
};

SPECAGG_END
