// SPDX-License-Identifier: Apache-2.0
// The exact law of texts under a policy with state (policy/stateful.hpp). For tests and analysis:
// allocates; the time grows with the number of texts.
#pragma once
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/verify/stateful.hpp>

SPECAGG_BEGIN

// The law of texts of n tokens: each text has the product of the laws of its tokens. The text y is
// at index (y[0] V + y[1]) V + ... of V^n.
//   begin     the state before the first token
//   q_after(text), p_after(text)
//             the rows [V] after these tokens, a std::vector<token_id>. V does not change
// Empty, and `why` says the reason, if a parameter, `begin` or a row is invalid, or a token has no
// law after a text that has a probability above 0.
template <StatefulPolicy Policy, class Q, class P>
[[nodiscard]] std::vector<double> law_of_texts(const Policy& policy,
                                               const typename Policy::state& begin, std::size_t n,
                                               Q&& q_after, P&& p_after, status* why = nullptr) {
  constexpr bool confidence = reads_confidence<Policy>;
  struct reached {
    std::vector<token_id> text;
    typename Policy::state state;
    double probability;
  };
  status unread = status::ok;
  status& found = why ? *why : unread;
  found = specagg::valid(policy) && detail::is_state_of(policy, begin) ? status::ok
                                                                       : status::invalid_parameter;
  std::vector<reached> all{{{}, begin, 1}};
  for (std::size_t i = 0; i < n && found == status::ok; ++i) {
    std::vector<reached> longer;
    for (const reached& r : all) {
      const auto q = q_after(r.text), p = p_after(r.text);
      const auto row = specagg::normalise(p, confidence);
      std::vector<double> law(row.size());
      if (r.probability > 0) law = target_law(policy.at(r.state), q, p, &found);
      if (found != status::ok) return {};
      for (std::size_t v = 0; v < law.size(); ++v) {
        longer.push_back({r.text, r.state, r.probability * law[v]});
        longer.back().text.push_back(token_id(v));
        if (longer.back().probability > 0)
          longer.back().state = detail::advanced(
              policy, r.state, target_rows<confidence, std::decay_t<decltype(row)>>(row),
              token_id(v));
      }
    }
    all = std::move(longer);
  }
  std::vector<double> law;
  for (const reached& r : all)
    if (found == status::ok) law.push_back(r.probability);
  return law;
}

// A text of n tokens, written by rounds of `gamma` drafted tokens (fewer if the text lacks fewer),
// which `how` verifies (verify/verifiers.hpp). exact_law() of this function is the law of the
// texts. Shorter than n if a row is refused; `why` says the reason.
template <StatefulPolicy Policy, class Q, class P, class Verifier, class C>
std::vector<token_id> text_by_rounds(const Policy& policy, const typename Policy::state& begin,
                                     std::size_t n, Q&& q_after, P&& p_after, const Verifier& how,
                                     std::size_t gamma, C& chooser, status* why = nullptr) {
  std::vector<token_id> text;
  std::vector<typename Policy::state> states(gamma + 1);
  states[0] = begin;
  const stateful_verifier verifier(how, std::span(states));
  std::vector<emission> out(gamma + 1);
  verdict v;
  while (text.size() < n) {
    const auto start = std::uint32_t(text.size());
    std::vector<token_id> drafted = text;
    std::vector<decltype(q_after(text))> q;
    std::vector<decltype(p_after(text))> p;
    std::vector<double> scratch;
    for (std::size_t j = 0;; ++j) {
      q.push_back(q_after(drafted));
      p.push_back(p_after(drafted));
      const auto& row = specagg::as_row(q[j]);
      scratch.resize(verify_scratch(row.size(), gamma));
      if (j == gamma || drafted.size() == n) break;
      drafted.push_back(verifier.propose(row, start, j, chooser, scratch));
    }
    v = verifier.verify(draft{std::span(drafted).subspan(start), start}, q, p, policy, chooser, out,
                        scratch);
    for (std::size_t i = 0; i < v.emitted && text.size() < n; ++i) text.push_back(out[i].token);
    if (v.why != status::ok) break;
  }
  if (why) *why = v.why;
  return text;
}

SPECAGG_END
