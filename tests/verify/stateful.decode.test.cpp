// SPDX-License-Identifier: Apache-2.0
// Policies with state in a decoder, at temperature 0, and what their verifier refuses.
#include <cmath>
#include <map>
#include <vector>

#include <specagg/verify/stateful.hpp>

#include <specagg/audit/text_law.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;

namespace {

using path = std::vector<token_id>;
const toy_source<double> draft_model(vocabulary, 1), target_model(vocabulary, 2);

std::vector<double> logits_of(const toy_source<double>& model, const path& text) {
  std::vector<double> row(vocabulary);
  model.row(text, row);
  return row;
}
std::size_t likeliest(const std::vector<double>& l) {
  return std::size_t(std::max_element(l.begin(), l.end()) - l.begin());
}

// The text after token 0, written by the decoder.
template <class C>
path decoded(const regret_budget& policy, std::size_t most, std::size_t gamma, double temperature,
             C& chooser) {
  toy_source<double> small = draft_model, large = target_model;
  std::vector<token_id> memory(64);
  text t{memory, 1};
  std::vector<regret_budget::state> states(gamma + 1);
  states[0] = policy.begin();
  speculative_workspace<double> work(vocabulary, {.gamma = gamma, .sample = {temperature}});
  const status s =
      speculative_decode(small, large, policy, chooser, {.text = t, .most = most, .work = work},
                         stateful_verifier(token_verifier(), std::span(states)));
  REQUIRE(s == status::ok);
  return {memory.begin() + 1, memory.begin() + std::ptrdiff_t(t.size)};
}

}  // namespace

TEST_CASE("a decoder with a policy with state: the joint law of texts is what law_of_texts says") {
  const auto rows_of = [](const toy_source<double>& model) {
    return [&model](path text) {
      text.insert(text.begin(), 0);
      return probabilities(model, text);
    };
  };
  const regret_budget policy{1.2, 0.9};
  status why = status::model_failed;
  const std::vector<double> due =
      law_of_texts(policy, policy.begin(), 3, rows_of(draft_model), rows_of(target_model), &why);
  REQUIRE((why == status::ok && due.size() == 27));
  for (const std::size_t gamma : {1u, 2u}) {
    const auto law =
        exact_law([&](auto& chooser) { return decoded(policy, 3, gamma, 1, chooser); });
    double total = 0;
    for (const auto& [text, probability] : law) {
      REQUIRE(text.size() == 3);
      const auto at = std::size_t(text[0]) * 9 + std::size_t(text[1]) * 3 + std::size_t(text[2]);
      CHECK(std::fabs(probability - due[at]) < 1e-12);
      total += probability;
    }
    CHECK(total == Approx(1).epsilon(1e-12));
  }
}
TEST_CASE("at temperature 0 a budget of regret is ASD: a token stands while the text can pay it") {
  std::size_t stood = 0, refused = 0;
  for (const double budget : {0., 0.5, 1., 2., 4., 100.})
    for (const double limit : {0.4, 1.5, 100.}) {
      path due, context{0};
      double spent = 0;
      while (due.size() < 40) {
        const auto l = logits_of(target_model, context);
        const std::size_t y = likeliest(logits_of(draft_model, context)), top = likeliest(l);
        const double regret = l[top] - l[y];
        const bool stands = regret <= limit && regret <= budget - spent;
        (stands ? stood : refused) += y != top;
        if (stands) spent += regret;
        due.push_back(token_id(stands ? y : top));
        context.push_back(due.back());
      }
      for (const std::size_t gamma : {1u, 4u}) {
        random_streams chooser(1);
        CHECK(decoded({budget, limit}, 40, gamma, 0, chooser) == due);
      }
    }
  CHECK((stood > 20 && refused > 20));
}
TEST_CASE("what a verifier of policies with state refuses, and what becomes of the state") {
  const std::vector<std::vector<double>> rows(3, {0.5, 0.25, 0.25});
  const path y{1, 2};
  std::vector<emission> out(3);
  std::vector<double> scratch(verify_scratch(3, 2));
  std::vector<regret_budget::state> states(3);
  const auto verify = [&](const regret_budget& policy, std::size_t memory, bonus_choice bonus) {
    states[0] = {};
    const stateful_verifier verifier{token_verifier(), std::span(states).first(memory)};
    return verifier.verify(draft{y, 0, {}, bonus}, rows, rows, policy, random_streams(1), out,
                           scratch);
  };
  const double one = std::log(2.);  // the regret of tokens 1 and 2
  CHECK(verify({10, 10}, 3, false).emitted == 2);
  CHECK(states[0].spent == Approx(2 * one));
  CHECK(verify({10, 10}, 3, bonus_choice::target()).emitted == 3);
  CHECK(verify({10, 10}, 2, true).why == status::invalid_parameter);
  CHECK(verify({-1, 10}, 3, true).why == status::invalid_parameter);
  CHECK(verify({1, double(NAN)}, 3, true).why == status::invalid_parameter);
  CHECK(verify({10, 10}, 3, bonus_choice::given(0)).why == status::invalid_parameter);
  CHECK(states[0].spent == 0);

  // A state that needs no row takes a given bonus.
  STATIC_REQUIRE(std::is_same_v<phase<ensemble, ensemble>::one, ensemble>);
  const path opens{1}, closes{2};
  const phase<ensemble, lossless> thinking{{0.5}, {}, opens, closes};
  std::vector<phase<ensemble, lossless>::state> phases(3);
  phases[0] = thinking.begin();
  const stateful_verifier verifier{token_verifier(), std::span(phases)};
  const verdict v = verifier.verify(draft{y, 0, {}, bonus_choice::given(1)}, rows, rows, thinking,
                                    random_streams(1), out, scratch);
  CHECK((v.why == status::ok && v.emitted == 3));  // q = p: all are accepted
  CHECK(phases[0].is_inside);
}
