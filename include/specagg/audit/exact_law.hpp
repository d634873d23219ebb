// SPDX-License-Identifier: Apache-2.0
// The exact law of any algorithm written against the Chooser concept. Every branch of its decisions
// is executed, so no seed is needed and nothing depends on chance. For tests and analysis:
// allocates; the time grows with the number of branches.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include <specagg/policy/checked.hpp>
#include <specagg/verify/token.hpp>

SPECAGG_BEGIN

// A chooser that follows one branch of the tree of decisions and remembers where other branches
// begin. Every moment has one number u in [0, 1), as in random_streams: a decision tells in which
// part of [0, 1) it lies, and a later decision at the same moment divides only that part. So a
// draft that is drawn again from the same row is the same draft. `reused` counts such decisions:
// where numbers must not be reused, it must be 0.
class exhaustive_chooser {
 public:
  double probability = 1;  // of the branch that is followed
  std::size_t reused = 0;

  bool coin(moment m, double w, double t) {
    // The branch "true" comes first. A branch is taken only if its probability is above 0. If w is
    // negative or NaN (then it belongs to no law), the result is false, as with random_streams.
    const double yes = !(w > 0) ? 0.0 : t > 0 ? std::min(1.0, w / t) : 1.0;
    return choose(m, {{1, yes}, {0, 1 - yes}}) == 1;
  }
  token_id draw(moment m, const auto& w) {
    if (step_ < path_.size()) return choose(m, {});
    std::vector<branch> all;
    double total = 0;
    for (std::size_t v = 0; v < w.size(); ++v)
      if (const double x = w[v]; x > 0) {
        all.push_back({token_id(v), x});
        total += x;
      }
    for (branch& b : all) b.probability /= total;
    return choose(m, std::move(all));
  }

  // Goes to the next branch. False if all branches were executed.
  [[nodiscard]] bool next() {
    while (!path_.empty() && ++path_.back().taken == path_.back().all.size()) path_.pop_back();
    step_ = 0;
    probability = 1;
    reused = 0;
    used_.clear();
    return !path_.empty();
  }

 private:
  struct branch {
    token_id choice;
    double probability, from = 0, to = 0;  // from, to: of u
  };
  struct fork {
    std::vector<branch> all;
    std::size_t taken = 0;
  };
  struct number {
    std::tuple<stream, std::uint32_t, std::uint32_t, std::uint32_t> of;
    double from = 0, to = 1;  // u is in [from, to)
  };
  token_id choose(moment m, std::vector<branch> all) {
    number& u = number_of(m);
    if (step_ == path_.size()) {
      const bool fresh = u.from == 0 && u.to == 1;
      double end = 0;
      for (branch& b : all) {
        b.from = std::max(u.from, end);
        end += b.probability;
        b.to = &b == &all.back() ? u.to : std::min(u.to, end);
        if (!fresh) b.probability = (b.to - b.from) / (u.to - u.from);
      }
      std::erase_if(all, [](const branch& b) { return !(b.probability > 0); });
      path_.push_back({std::move(all)});
    }
    const fork& f = path_[step_++];
    if (f.all.empty()) return no_token;
    const branch& taken = f.all[f.taken];
    probability *= taken.probability;
    u.from = taken.from;
    u.to = taken.to;
    return taken.choice;
  }
  number& number_of(moment m) {
    const std::tuple key(m.use, m.position, m.start, m.branch);
    const auto found =
        std::find_if(used_.begin(), used_.end(), [&](const number& u) { return u.of == key; });
    if (found == used_.end()) return used_.emplace_back(number{key});
    ++reused;
    return *found;
  }
  std::vector<fork> path_;
  std::vector<number> used_;
  std::size_t step_ = 0;
};

// The law of run(chooser): the probability of each result. `reused`, if given, is increased by the
// number of moments used twice.
[[nodiscard]] auto exact_law(auto&& run, std::size_t* reused = nullptr) {
  exhaustive_chooser chooser;
  std::map<decltype(run(chooser)), double> law;
  do {
    auto result = run(chooser);
    law[std::move(result)] += chooser.probability;
    if (reused) *reused += chooser.reused;
  } while (chooser.next());
  return law;
}

namespace detail {

// The values that a policy gives for one pair of rows, whether they are a law or not. Empty if a
// value is NaN or infinite, or a row is invalid.
template <class Policy, class Q, class P>
std::vector<double> bound_to(const Policy& policy, const Q& q_row, const P& p_row,
                             status* why = nullptr) {
  constexpr bool confidence = reads_confidence<Policy>;
  const auto fail = [&](status s) {
    if (why) *why = s;
    return std::vector<double>();
  };
  if (!valid(policy)) return fail(status::invalid_parameter);
  if (q_row.size() != p_row.size()) return fail(status::vocabulary_mismatch);
  const auto& q = specagg::normalise(q_row, confidence);
  if (const status s = detail::readable(q, confidence); s != status::ok) return fail(s);
  const auto& p = specagg::normalise(p_row, confidence);
  if (const status s = detail::readable(p, confidence); s != status::ok) return fail(s);
  const auto rows = detail::pair_for<Policy>(q, p);
  const auto pi = policy.bind(rows);
  std::vector<double> law(rows.size());
  for (std::size_t v = 0; v < law.size(); ++v) {
    law[v] = double(pi(specagg::at(rows, v)).v);
    if (!(law[v] < std::numeric_limits<double>::infinity())) return fail(status::undefined_target);
  }
  if (why) *why = status::ok;
  return law;
}

template <class Policy>
const Policy& unchecked(const Policy& policy) {
  return policy;
}
template <class Policy>
const Policy& unchecked(const checked<Policy>& policy) {
  return policy.policy;
}

}  // namespace detail

// The law that a policy gives for one pair of rows, in the rows' own precision. Empty if pi is
// undefined or not a probability distribution (policy/checked.hpp), or a row is invalid.
[[nodiscard]] std::vector<double> target_law(const auto& policy, const auto& q_row,
                                             const auto& p_row, status* why = nullptr) {
  return detail::bound_to(checked{policy}, q_row, p_row, why);
}

// The largest difference between the law of a round and the promised law.
struct [[nodiscard]] round_error {
  // |P(next token = `token` | text `prefix` was emitted and more follows) - pi(token)|
  double error = 0;
  std::vector<token_id> prefix;
  token_id token = no_token;
  status why = status::ok;  // if not ok, error is 1: why no token follows `prefix`
  // over all branches, if the error is not 1:
  double accepted = 0;     // the expected number of accepted tokens
  std::size_t reused = 0;  // random numbers used for two decisions (exhaustive_chooser)
};

// The default for `propose`: the drafted token is the token that was drawn.
struct as_drawn {
  template <class R>
  token_id operator()(std::size_t, const R&, token_id y) const {
    return y;
  }
};

namespace detail {

// The largest difference between the law of the next token, given that a text of `reach` was
// emitted and more follows, and the promised law. reach: for each text, the probability that a
// round's text begins with it. longest: the draft's length.
round_error worst_of_texts(const std::map<std::vector<token_id>, double>& reach, const auto& policy,
                           std::size_t longest, auto&& draft_model, auto&& target_model,
                           auto&& promised) {
  round_error worst;
  for (const auto& [prefix, probability] : reach) {
    const std::vector<double> law = promised(prefix);
    std::vector<double> next(law.size());
    double follows = 0;
    for (std::size_t x = 0; x < law.size(); ++x) {
      auto longer = prefix;
      longer.push_back(token_id(x));
      if (const auto found = reach.find(longer); found != reach.end())
        follows += next[x] = found->second;
    }
    if (law.empty() && prefix.size() <= longest) {
      const auto& trusted = unchecked(policy);
      // values, but no law
      bool wrong = !bound_to(trusted, draft_model(prefix), target_model(prefix)).empty();
      for (const auto& [text, unused] : reach)
        wrong |= text.size() == prefix.size() + 1 &&
                 std::equal(prefix.begin(), prefix.end(), text.begin());
      if (wrong) return {1, prefix, no_token, status::undefined_target};
    }
    for (std::size_t x = 0; follows > 0 && x < law.size(); ++x)
      if (const double error = std::fabs(next[x] / follows - law[x]); error > worst.error)
        worst = {error, prefix, token_id(x), status::ok};
  }
  return worst;
}

}  // namespace detail

// Executes all branches of one round of drafting and verification. draft_model(prefix) and
// target_model(prefix) give the rows after a prefix of drafted tokens. verify(drafted, q_rows,
// p_rows, policy, chooser, out, scratch) is the verifier. promised(prefix) gives the probabilities
// promised for the token after a prefix of emitted tokens; empty means undefined, and then nothing
// may be emitted there. With a bonus from the target's row (bonus_choice, verify/verify.hpp) it is
// p after gamma tokens, and pi after fewer.
//
// Returns the largest error over all texts and tokens. The error is 1 after a text where a row was
// refused (`why` says the reason). It is also 1 where the policy has values that are not a law,
// checked or not (undefined_target). If the policy's values are themselves undefined there (0/0,
// for example), that is no error. It is 1 with status::ok where a verdict does not fit its tokens:
// a token that it counts as accepted was not drafted (`token`, after `prefix`), or it says ok and
// there is no token at all (no_token).
//
// propose(j, row, y) returns the token that is proposed at position j of the draft; y is the token
// that was drawn from the row there. Drafters make mistakes, and tokens outside the support
// (verify/verify.hpp) must not change the law of any text.
template <class Policy, class Draft, class Target, class Verify, class Law,
          class Propose = as_drawn>
round_error worst_error_of_round(const Policy& policy, std::size_t gamma, Draft&& draft_model,
                                 Target&& target_model, Verify&& verify, Law&& promised,
                                 Propose propose = {}) {
  // probability that a round's text begins with this
  std::map<std::vector<token_id>, double> reach;
  exhaustive_chooser chooser;
  std::size_t reused = 0;
  double accepted = 0;
  do {
    std::vector<token_id> y;
    std::vector<decltype(draft_model(y))> q;
    std::vector<decltype(target_model(y))> p;
    std::vector<double> scratch(verify_scratch(1, gamma));
    std::vector<emission> out(gamma + 1);
    for (std::size_t j = 0;; ++j) {
      q.push_back(draft_model(y));
      p.push_back(target_model(y));
      if (j == gamma) break;
      const auto row = specagg::normalise(q[j]);
      scratch.resize(verify_scratch(row.size(), gamma));
      if (row.why() != status::ok) return {1, y, no_token, row.why()};
      y.push_back(propose(j, row, draw_draft(row, 0, j, chooser, scratch)));
    }
    const verdict v =
        verify(draft{y, 0}, q, p, policy, chooser, std::span(out), std::span(scratch));
    accepted += chooser.probability * double(v.accepted);
    std::vector<token_id> text;
    if (v.why == status::ok && v.emitted == 0 && !promised(text).empty())
      return {1, text, no_token, status::ok};
    reach[text] += chooser.probability;
    for (std::size_t i = 0; i < v.emitted; ++i) {
      // A decoder keeps the drafted token there, with any emission.
      if (i < v.accepted && (i >= y.size() || out[i].token != y[i]))
        return {1, text, out[i].token, status::ok};
      text.push_back(out[i].token);
      reach[text] += chooser.probability;
    }
    if (v.why != status::ok && !(v.why == status::undefined_target && promised(text).empty()))
      return {1, text, no_token, v.why};
    reused += chooser.reused;
  } while (chooser.next());

  round_error worst =
      detail::worst_of_texts(reach, policy, gamma, draft_model, target_model, promised);
  worst.reused = reused;
  worst.accepted = accepted;
  return worst;
}

SPECAGG_END
