// SPDX-License-Identifier: Apache-2.0
#include "verify/every_policy.hpp"

#include <specagg/verify/stateful.hpp>

#include <cmath>
#include <cstdio>
#include <map>
#include <vector>

#include <specagg/audit/text_law.hpp>
#include <specagg/policy/any_stateful.hpp>

#include "verify/random_rows.hpp"

using namespace specagg;

namespace {

using path = std::vector<token_id>;
using probabilities = std::vector<double>;
constexpr std::size_t V = 4, length = 3;  // of the texts

// Rows that depend on the whole text; the target's has a token of probability 0 after some texts.
probabilities row_after(const path& text, std::uint32_t model) {
  std::uint32_t key = 40 + model;
  for (const token_id t : text) key = key * 31 + std::uint32_t(t) + 7;
  probabilities row = random_row(key, V, 3);
  if (model == 1 && text.size() % 2 == 1) {
    row[3] = 0;
    for (double& x : row) x /= 1 - random_row(key, V, 3)[3];
  }
  return row;
}
const auto q_after = [](const path& text) { return row_after(text, 0); };
const auto p_after = [](const path& text) { return row_after(text, 1); };

double entropy_of(probabilities p) {  // of the three most likely
  std::sort(p.rbegin(), p.rend());
  double h = 0;
  for (std::size_t i = 0; i < 3; ++i) h -= p[i] > 0 ? p[i] * std::log(p[i]) : 0;
  return h;
}
// q where `stands`, and what q has elsewhere drawn from p.
template <class F>
probabilities standing(const probabilities& q, const probabilities& p, F stands) {
  double eta = 0;
  probabilities pi(V);
  for (std::size_t v = 0; v < V; ++v) (stands(v) ? pi[v] : eta) += q[v];
  for (std::size_t v = 0; v < V; ++v) pi[v] += eta * p[v];
  return pi;
}

// The laws written out: pi after a text, the state made anew from the text.
probabilities plain(const regret_budget& b, const path& text) {
  double left = b.budget;
  const auto regret = [](const probabilities& p, std::size_t v) {
    return std::log(*std::max_element(p.begin(), p.end()) / p[v]);
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const double r =
        regret(p_after({text.begin(), text.begin() + std::ptrdiff_t(i)}), std::size_t(text[i]));
    if (r <= std::min(left, b.limit)) left -= r;
  }
  const auto p = p_after(text);
  return standing(q_after(text), p,
                  [&](std::size_t v) { return regret(p, v) <= std::min(left, b.limit); });
}
probabilities plain(const entropy_window& w, const path& text) {
  int strict = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto p = p_after({text.begin(), text.begin() + std::ptrdiff_t(i)});
    const auto top = std::max_element(p.begin(), p.end()) - p.begin();
    if (strict > 0) --strict;
    else if (entropy_of(p) >= w.threshold && text[i] != top) strict = int(w.window);
  }
  const auto p = p_after(text);
  if (strict > 0 || entropy_of(p) < w.threshold) return p;
  return standing(q_after(text), p, [&](std::size_t v) { return p[v] > 0; });
}
const std::vector<token_id> opens{1}, closes{2};
using thinking = phase<any_catalogued, any_catalogued>;
probabilities plain(const thinking& t, const path& text) {
  const double weight = std::get<ensemble>(t.inside.chosen).lambda;
  bool inside = false;
  for (const token_id y : text) inside = inside ? y != closes[0] : y == opens[0];
  const auto q = q_after(text), p = p_after(text);
  probabilities pi(V);
  for (std::size_t v = 0; v < V; ++v) pi[v] = inside ? weight * q[v] + (1 - weight) * p[v] : p[v];
  return pi;
}

// The joint law of texts of `length` tokens, whose tokens have these laws.
template <class Law>
std::map<path, double> product(Law law) {
  std::map<path, double> all{{{}, 1}};
  for (std::size_t i = 0; i < length; ++i) {
    std::map<path, double> longer;
    for (const auto& [text, probability] : all) {
      const probabilities next = law(text);
      for (std::size_t v = 0; v < V; ++v) {
        path one = text;
        one.push_back(token_id(v));
        longer[one] = probability * next[v];
      }
    }
    all = longer;
  }
  return all;
}
double distance(const std::map<path, double>& a, const std::map<path, double>& b) {
  double tv = 0;
  for (const auto& [text, x] : a) {
    const auto found = b.find(text);
    tv += std::max(0., x - (found == b.end() ? 0 : found->second));
  }
  return tv;
}

// A text of `length` tokens by rounds of gamma drafted tokens.
template <class Verifier, class C>
path written(const any_stateful& policy, const Verifier& how, std::size_t gamma, C& chooser) {
  status why = status::no_draft;
  const path text =
      text_by_rounds(policy, policy.begin(), length, q_after, p_after, how, gamma, chooser, &why);
  REQUIRE(why == status::ok);
  return text;
}
template <class Policy>
void check_joint_law(const Policy& policy, const char* name) {
  const auto due = product([&](const path& text) { return plain(policy, text); });
  const auto target = product(p_after);
  double worst = 0;
  std::size_t reused = 0, i = 0;
  const any_stateful any{policy};
  const auto law = law_of_texts(policy, policy.begin(), length, q_after, p_after),
             same = law_of_texts(any, any.begin(), length, q_after, p_after);
  REQUIRE((law.size() == due.size() && same.size() == due.size()));
  for (const auto& [text, probability] : due) {  // in the order of law_of_texts
    worst = std::max(worst, std::fabs(probability - law[i]));
    CHECK(same[i] == law[i]);
    ++i;
  }
  const auto compare = [&](const auto& how, std::size_t gamma) {
    const auto law =
        exact_law([&](auto& chooser) { return written(any, how, gamma, chooser); }, &reused);
    for (const auto& [text, probability] : due)
      worst = std::max(worst, std::fabs(probability - (law.count(text) ? law.at(text) : 0)));
  };
  for (const std::size_t gamma : {1u, 2u}) {
    compare(token_verifier{}, gamma);
    compare(block_verifier{}, gamma);
    compare(match_verifier{}, gamma);
  }
  CHECK(worst < 1e-12);
  CHECK(reused == 0);
  std::printf("%-15s largest error of a text of 3 tokens %.1e, TV from p %.4f\n", name, worst,
              distance(due, target));
}
// With the noise shared a text is a function of the seed: gamma changes no token.
void check_coupled(const any_stateful& policy) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const coupled_verifier how{coupled_noise(seed, 1)};
    random_streams none(0);
    const path alone = written(policy, how, 0, none);
    for (const std::size_t gamma : {1u, 2u, 3u}) CHECK(written(policy, how, gamma, none) == alone);
  }
}

const regret_budget regrets{1.0, 0.8};
const entropy_window windows{0.9, 1};
const thinking thoughts{ensemble{0.7}, lossless{}, opens, closes};

}  // namespace

TEST_CASE("a budget of regret: the joint law of texts is the product of its laws, by any rounds") {
  check_joint_law(regrets, "regret_budget");
  check_coupled({regrets});
}
TEST_CASE("an entropy gate and a window: the joint law of texts, by any rounds") {
  check_joint_law(windows, "entropy_window");
  check_coupled({windows});
}
TEST_CASE("a policy inside a span, another outside: the joint law of texts, by any rounds") {
  check_joint_law(thoughts, "phase");
  check_coupled({thoughts});
}
TEST_CASE("the law of texts: the state before the text, and texts that have no law or cannot be") {
  const auto q_of = [](const path&) { return probabilities{0.1, 0.8, 0.1}; };
  const auto p_of = [](const path& text) {
    return text.empty() ? probabilities{0.75, 0.25, 0} : probabilities{0.5, 0.3, 0.2};
  };
  status why = status::no_draft;
  // Token 1 costs ln(3) at first, and little is left. Token 2 is never first.
  const regret_budget policy{1.2};
  const probabilities first{0.175, 0.825, 0}, spent{0.55, 0.27, 0.18}, rich{0.1, 0.8, 0.1};
  const probabilities law = law_of_texts(policy, {}, 2, q_of, p_of, &why);
  REQUIRE((why == status::ok && law.size() == 9));
  for (std::size_t y = 0; y < 3; ++y)
    for (std::size_t z = 0; z < 3; ++z)
      CHECK(std::fabs(law[3 * y + z] - first[y] * (y == 1 ? spent : rich)[z]) < 1e-15);
  CHECK(std::fabs(law_of_texts(policy, {1.2}, 1, q_of, p_of)[0] - (0.1 + 0.9 * 0.75)) < 1e-15);
  CHECK(law_of_texts(policy, {}, 0, q_of, p_of) == probabilities{1});

  const auto broken_after = [&](token_id y) {
    return [&, y](const path& text) {
      return !text.empty() && text[0] == y ? probabilities{NAN, 0, 0} : p_of(text);
    };
  };
  CHECK(law_of_texts(policy, {}, 2, q_of, broken_after(2), &why) == law);
  CHECK(law_of_texts(policy, {}, 2, q_of, broken_after(1), &why).empty());
  CHECK(why == status::invalid_row);
  CHECK(law_of_texts(regret_budget{-1}, {}, 2, q_of, p_of, &why).empty());
  CHECK(why == status::invalid_parameter);

  // States that no text has: NaN; more left than there was, or than the window is.
  const auto refused = [&](const auto& given, auto state) {
    CHECK(law_of_texts(given, state, 1, q_of, p_of, &why).empty());
    CHECK(why == status::invalid_parameter);
    random_streams chooser(1);
    CHECK(text_by_rounds(given, state, 1, q_of, p_of, token_verifier(), 1, chooser, &why).empty());
    CHECK(why == status::invalid_parameter);
  };
  for (const double x : {double(NAN), -1., double(INFINITY), -double(INFINITY)}) {
    refused(policy, regret_budget::state{x});
    refused(entropy_window{0.3, 2}, entropy_window::state{x});
    refused(any_stateful{policy}, any_stateful::state{x});
    refused(any_stateful{phase<any_catalogued, any_catalogued>{}}, any_stateful::state{x});
  }
  refused(entropy_window{0.3, 2}, entropy_window::state{3});
  const entropy_window uneven{0.3, 1.5};
  refused(uneven, entropy_window::state{-0.5});

  random_streams chooser(1);
  const auto one = [](const path&) { return probabilities{0, 1, 0}; };  // token 1 stands
  const token_verifier how;
  CHECK(text_by_rounds(policy, {}, 2, one, broken_after(1), how, 1, chooser, &why) == path{1});
  CHECK(why == status::invalid_row);
  CHECK(text_by_rounds(policy, {}, 2, one, p_of, how, 1, chooser, &why).size() == 2);
  CHECK(why == status::ok);
}

namespace {

// A round of FLy as vLLM documents it: a rejected token stands if p is uncertain there and likes it
// at all, and the next `window` tokens of the draft, all there, are accepted natively.
template <class C>
path fly_round(const path& text, double threshold, std::size_t window, std::size_t gamma,
               C& chooser) {
  std::vector<double> scratch(verify_scratch(V));
  path drafted = text;
  std::vector<bool> native(gamma);
  for (std::uint32_t j = 0; j < gamma; ++j) {
    const auto q = q_after(drafted), p = p_after(drafted);
    const token_id y = draw_draft(dense_row<double>(q), 0, j, chooser, scratch);
    native[j] = chooser.coin({stream::coin, j, 0}, p[std::size_t(y)], q[std::size_t(y)]);
    drafted.push_back(y);
  }
  path kept = text;
  for (std::size_t j = 0; j < gamma; ++j, kept.push_back(drafted[kept.size()])) {
    if (native[j]) continue;
    const auto p = p_after(kept);
    bool stands = j + window < gamma && entropy_of(p) >= threshold &&
                  p[std::size_t(drafted[kept.size()])] > 0;
    for (std::size_t i = 1; stands && i <= window; ++i) stands = native[j + i];
    if (!stands) break;
  }
  const auto q = q_after(kept), p = p_after(kept);
  probabilities left = p;
  for (std::size_t v = 0; v < V && kept.size() < drafted.size(); ++v)
    left[v] = std::max(0., p[v] - q[v]);
  kept.push_back(chooser.draw({stream::residual, 0, 0}, left));
  return kept;
}
// The joint law of what follows `text` up to `length` tokens. Rounds are independent.
std::map<path, double> fly_law(double threshold, std::size_t gamma, const path& text = {}) {
  std::map<path, double> law;
  for (const auto& [longer, x] :
       exact_law([&](auto& chooser) { return fly_round(text, threshold, 1, gamma, chooser); })) {
    if (longer.size() >= length) {
      law[{longer.begin(), longer.begin() + length}] += x;
    } else {
      for (const auto& [whole, y] : fly_law(threshold, gamma, longer)) law[whole] += x * y;
    }
  }
  return law;
}

}  // namespace

TEST_CASE("FLy's joint law is not p's, and changes with the length of the draft") {
  const auto target = product(p_after);
  std::map<path, double> law[2];
  for (const std::size_t gamma : {2u, 3u}) {
    law[gamma - 2] = fly_law(0.7, gamma);
    const double tv = distance(law[gamma - 2], target);
    std::printf("FLy, window 1, gamma %zu: TV from p %.4f\n", gamma, tv);
    CHECK(tv > 0.01);
    // With a gate that never opens it is speculative sampling.
    CHECK(distance(fly_law(2, gamma), target) < 1e-12);
  }
  CHECK(distance(law[0], law[1]) > 0.01);
}
