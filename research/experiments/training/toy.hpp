// SPDX-License-Identifier: Apache-2.0
// What a step of policy gradient expects, exactly: every text that rounds of speculative decoding
// write in a world of three tokens is enumerated, with the log-probabilities that the verifier
// reports. The true gradient is that of the mean reward under the model that is trained.
#pragma once
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/compiled_once.hpp>
#include <specagg/policy/catalogue.hpp>
#include <specagg/specagg.hpp>
#include <specagg/verify/stateful.hpp>

namespace experiments::training {

using namespace specagg;

// Texts of three tokens, drafts of two. Numbered worlds differ in their rows and rewards.
class toy {
 public:
  static constexpr std::size_t V = 3, length = 3, gamma = 2, contexts = 1 + 3 + 9, all = 27;
  using row = std::vector<double>;
  using ids = std::vector<token_id>;
  // The derivative by the logits of every context.
  using gradient = std::array<double, contexts * V>;

  explicit toy(std::uint64_t number) {
    const random_streams noise(number);
    const auto uniform = [&](std::size_t i, std::uint32_t of) {
      return noise.uniform({stream::side, std::uint32_t(i), of});
    };
    for (std::size_t c = 0; c < contexts; ++c) {
      row p(V), q(V), m(V);
      for (std::size_t v = 0; v < V; ++v) {
        p[v] = 3 * uniform(c * V + v, 1);
        q[v] = p[v] + 3 * uniform(c * V + v, 2);
        m[v] = p[v] + uniform(c * V + v, 3);
      }
      p_.push_back(softmax(p));
      q_.push_back(softmax(q));
      moved_.push_back(softmax(m));
    }
    for (std::size_t i = 0; i < all; ++i) reward_.push_back(uniform(i, 4));
  }
  // The rows of target, draft, and of the target after some training.
  const std::vector<row>& p() const { return p_; }
  const std::vector<row>& q() const { return q_; }
  const std::vector<row>& moved() const { return moved_; }
  double reward(const ids& text) const { return reward_[number(text)]; }

  // The place of a context, of at most two tokens.
  static std::size_t context(std::span<const token_id> before) {
    return before.empty()       ? 0
           : before.size() == 1 ? 1 + std::size_t(before[0])
                                : 4 + number(before);
  }
  // Adds `times` the derivative of log model(text[t] | the tokens before it).
  static void add_score(gradient& g, const std::vector<row>& model, const ids& text, std::size_t t,
                        double times) {
    const std::size_t c = context(std::span(text).first(t));
    for (std::size_t v = 0; v < V; ++v)
      g[c * V + v] += times * ((v == std::size_t(text[t])) - model[c][v]);
  }
  static double log_of(const std::vector<row>& model, const ids& text, std::size_t t) {
    return std::log(model[context(std::span(text).first(t))][std::size_t(text[t])]);
  }
  // f(text) for each text
  template <class F>
  static void for_each_text(F&& f) {
    for (token_id a = 0; a < 3; ++a)
      for (token_id b = 0; b < 3; ++b)
        for (token_id c = 0; c < 3; ++c) f(ids{a, b, c});
  }
  // The derivative of the mean reward under a model.
  gradient truth(const std::vector<row>& model) const {
    gradient g{};
    for_each_text([&](const ids& text) {
      double log_all = 0;
      for (std::size_t t = 0; t < length; ++t) log_all += log_of(model, text, t);
      for (std::size_t t = 0; t < length; ++t)
        add_score(g, model, text, t, std::exp(log_all) * reward(text));
    });
    return g;
  }

 private:
  static row softmax(row x) {
    double sum = 0;
    for (double& y : x) sum += y = std::exp(y);
    for (double& y : x) y /= sum;
    return x;
  }
  static std::size_t number(std::span<const token_id> text) {
    std::size_t n = 0;
    for (const token_id y : text) n = n * V + std::size_t(y);
    return n;
  }
  std::vector<row> p_, q_, moved_;
  std::vector<double> reward_;
};

// A text that rounds have written, with what they reported of each token.
struct rollout {
  double probability = 0, accepted = 0, drafted = 0;
  toy::ids text;
  std::array<double, toy::length> log_pi{}, log_p{};
};
// Every rollout. verify(draft, q, p, chooser, out, scratch) verifies a round; begin() begins a
// text.
template <class Begin, class Verify>
std::vector<rollout> rollouts(const toy& world, Begin&& begin, Verify&& verify) {
  std::vector<rollout> all;
  exhaustive_chooser chooser;
  do {
    rollout r;
    std::vector<double> scratch(verify_scratch(toy::V, toy::gamma));
    begin();
    while (r.text.size() < toy::length) {
      const std::size_t start = r.text.size(), g = std::min(toy::gamma, toy::length - 1 - start);
      toy::ids y, text = r.text;
      std::vector<toy::row> q, p;
      for (std::size_t j = 0;; ++j) {
        q.push_back(world.q()[toy::context(text)]);
        p.push_back(world.p()[toy::context(text)]);
        if (j == g) break;
        y.push_back(draw_draft(dense_row<double>(q[j]), std::uint32_t(start), j, chooser, scratch));
        text.push_back(y.back());
      }
      std::vector<emission> out(g + 1);
      const verdict v = verify(draft{.tokens = y, .start = std::uint32_t(start)}, q, p, chooser,
                               std::span(out), std::span(scratch));
      if (v.why != status::ok) throw v.why;
      r.accepted += double(v.accepted);
      r.drafted += double(g);
      for (std::size_t i = 0; i < v.emitted; ++i) {
        r.log_pi[r.text.size()] = out[i].log_pi;
        r.log_p[r.text.size()] = out[i].log_p;
        r.text.push_back(out[i].token);
      }
    }
    r.probability = chooser.probability;
    all.push_back(r);
  } while (chooser.next());
  return all;
}

// What a step with a group's mean as baseline expects. Biases: the length of the expected gradient
// less the true one, over the length of the true one. `moved`: once the model is another one than
// that which wrote the texts.
struct step {
  double accepted = 0;  // share of the drafted tokens
  double tv = 0;        // of the texts' law and the target's
  double never = 0;     // the target's probability of the texts that are never written
  double sample = 0;    // (E w)^2 / E w^2, w = p / pi of a text: the share of the texts that counts
  double with_p = 0, by_token = 0, by_text = 0, moved_with_p = 0, moved_by_text = 0;
};
inline step expected_step(const toy& world, const std::vector<rollout>& all) {
  step s;
  double drafted = 0, mean = 0, covered = 0, squares = 0;
  std::array<double, toy::all> pi{}, p{};
  const auto sum = [](const auto& x) { return x[0] + x[1] + x[2]; };
  for (const rollout& r : all) {
    s.accepted += r.probability * r.accepted;
    drafted += r.probability * r.drafted;
    mean += r.probability * world.reward(r.text);
    squares += r.probability * std::exp(2 * (sum(r.log_p) - sum(r.log_pi)));
    const std::size_t n = std::size_t(r.text[0] * 9 + r.text[1] * 3 + r.text[2]);
    pi[n] += r.probability;
    p[n] = std::exp(sum(r.log_p));
  }
  s.accepted /= drafted;
  for (std::size_t n = 0; n < toy::all; ++n) {
    s.tv += std::max(0.0, pi[n] - p[n]);
    covered += p[n];
  }
  s.never = std::max(0.0, 1 - covered);
  s.sample = covered * covered / squares;
  // weight(r, t): of the token's score.
  const auto bias = [&](const std::vector<toy::row>& model, auto&& weight) {
    toy::gradient g{};
    for (const rollout& r : all)
      for (std::size_t t = 0; t < toy::length; ++t)
        toy::add_score(g, model, r.text, t,
                       r.probability * (world.reward(r.text) - mean) * weight(r, t));
    const toy::gradient due = world.truth(model);
    double off = 0, norm = 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      off += (g[i] - due[i]) * (g[i] - due[i]);
      norm += due[i] * due[i];
    }
    return std::sqrt(off / norm);
  };
  const auto log_new = [](const std::vector<toy::row>& model, const rollout& r) {
    double x = 0;
    for (std::size_t t = 0; t < toy::length; ++t) x += toy::log_of(model, r.text, t);
    return x;
  };
  const auto with_p = [&](const std::vector<toy::row>& model) {
    return bias(model, [&](const rollout& r, std::size_t) {
      return std::exp(log_new(model, r) - sum(r.log_p));
    });
  };
  const auto by_text = [&](const std::vector<toy::row>& model) {
    return bias(model, [&](const rollout& r, std::size_t) {
      return std::exp(log_new(model, r) - sum(r.log_pi));
    });
  };
  s.with_p = with_p(world.p());
  s.by_token = bias(world.p(), [](const rollout& r, std::size_t t) {
    return std::exp(r.log_p[t] - r.log_pi[t]);
  });
  s.by_text = by_text(world.p());
  s.moved_with_p = with_p(world.moved());
  s.moved_by_text = by_text(world.moved());
  return s;
}

// As --policy takes it.
template <class Line, class Policy>
std::string text_of(const Line& line, const Policy& policy) {
  std::string text = line.name, between = ":";
  const Policy& plain = line.values[0];
  for (const auto& x : line.parameters) {
    if (x.number && policy.*x.number != plain.*x.number)
      text += between + x.name + "=" + fmt::format("{}", policy.*x.number);
    else if (x.flag && policy.*x.flag != plain.*x.flag) text += between + x.name + "=true";
    else continue;
    between = ",";
  }
  return text;
}
// f(policy, rollouts of a world) for every policy of the catalogue, with parameters that do
// something.
template <class F>
void for_each_policy(const toy& world, F&& f) {
  using any_policy = compiled_once<any_catalogued>;
  for_each_in_catalogue([&](const auto& line) {
    const auto& value = line.values[line.values.size() > 1 ? 1 : 0];
    const any_policy policy = value;
    f(text_of(line, value),
      rollouts(
          world, [] {},
          [&](const draft& d, const auto& q, const auto& p, auto& chooser, auto out, auto scratch) {
            return verify_token(d, q, p, policy, chooser, out, scratch);
          }));
  });
  for_each_in_catalogue<true>([&](const auto& line) {
    const auto& value = line.values[line.values.size() > 1 ? 1 : 0];
    using state = typename std::decay_t<decltype(value)>::state;
    std::vector<state> states(toy::gamma + 1, value.begin());
    const stateful_verifier<token_verifier, state> verifier({}, states);
    f(text_of(line, value),
      rollouts(
          world, [&] { states[0] = value.begin(); },
          [&](const draft& d, const auto& q, const auto& p, auto& chooser, auto out, auto scratch) {
            return verifier.verify(d, q, p, value, chooser, out, scratch);
          }));
  });
}

}  // namespace experiments::training
