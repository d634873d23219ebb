// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/raw_logits.hpp>

#include <functional>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;

namespace {

using vector = std::vector<double>;
using any_policy = compiled_once<any_of<geometric, contrastive, minimum<>, ensemble>>;
// of log-probabilities (l_q, l_p), a logit of the combination
using formula = std::function<double(double, double)>;

struct setting {
  std::size_t gamma;
  sampling sample;
  penalty_options penalty = {};
};
// The combination of both models' processed logits, with temperature and filters, in plain words.
vector promised(const formula& f, const std::vector<token_id>& context, const setting& s) {
  const toy_source<T> d(vocabulary, 1), m(vocabulary, 2);
  const vector q = probabilities(d, context, {}, s.penalty),
               p = probabilities(m, context, {}, s.penalty);
  vector l(vocabulary), row(vocabulary);
  for (std::size_t v = 0; v < vocabulary; ++v) l[v] = f(std::log(q[v]), std::log(p[v]));
  const auto r = normalise(processed_row<T>(l, s.sample));
  if (r.why() != status::ok) FAIL("a combined row");
  for (std::size_t v = 0; v < vocabulary; ++v) row[v] = r[v];
  return row;
}
// The exact joint law of texts of 4 tokens against the product of what is promised; 1 if anything
// else is wrong.
template <class V>
double worst_error(const V& verifier, const any_policy& policy, const formula& f,
                   const setting& s) {
  std::size_t misuses = 0, reused = 0;
  const auto law = exact_law(
      [&](auto& chooser) {
        toy_source<T> d(vocabulary, 1), m(vocabulary, 2);
        std::vector<token_id> buffer(16);
        vector memory(vocabulary);
        text t{buffer, 1};
        speculative_workspace<T> work(vocabulary, {.gamma = s.gamma, .sample = s.sample});
        penalty_memory penalties;
        auto processor = penalties.with(s.penalty);
        (void)processor.push(0);
        double log_pi = 0, log_p = 0, due_pi = 0, due_p = 0;
        const auto see = [&](const emission& e) {
          log_pi += e.log_pi;
          log_p += e.log_p;
          return true;
        };
        const status why = speculative_decode(
            d, m, raw_logits{policy}, chooser,
            {.text = t, .most = 4, .work = work, .processor = processor, .accept = see},
            raw_logits_verifier(verifier, std::span(memory), s.sample));
        if (why != status::ok) FAIL(name(why));
        misuses += d.misuses + m.misuses;
        for (std::size_t i = 1; i < t.size; ++i) {
          const std::vector<token_id> context(buffer.begin(), buffer.begin() + std::ptrdiff_t(i));
          due_pi += std::log(promised(f, context, s)[std::size_t(buffer[i])]);
          due_p += std::log(probabilities(m, context, s.sample, s.penalty)[std::size_t(buffer[i])]);
        }
        if (!(std::fabs(log_pi - due_pi) < 1e-9)) ++misuses;
        if (!(log_p == due_p || std::fabs(log_p - due_p) < 1e-9))
          ++misuses;  // the target's own, -inf where it has none
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  if (misuses + reused > 0) return 1;
  return worst_joint_error(law, 4, no_token,
                           [&](const auto& context) { return promised(f, context, s); });
}
const setting settings[] = {
    {0, {0.5}},         {2, {0}}, {3, {0.7, 2}}, {2, {1, 1}}, {2, {2, 0, 0.7}, {.repetition = 1.7}},
    {2, {1, 0, 1, 0.6}}};
const formula realigned = [](double q, double p) { return 1.5 * q - 0.5 * p; };
const formula contrasted = [](double q, double p) { return p - 0.3 * q; };
const formula smaller = [](double q, double p) { return std::min(q, p); };

}  // namespace

TEST_CASE(
    "raw logits: speculative decoding emits their combination, with temperature and filters, under "
    "every "
    "verifier") {
  for (const setting& s : settings) {
    INFO("gamma " << s.gamma << ", temperature " << s.sample.temperature << ", top-k "
                  << s.sample.top_k);
    CHECK(worst_error(token_verifier(), geometric{1.5}, realigned, s) < 1e-12);
    CHECK(worst_error(token_verifier(), contrastive{0.3}, contrasted, s) < 1e-12);
    CHECK(worst_error(token_verifier(), minimum<>{}, smaller, s) < 1e-12);
    CHECK(worst_error(block_verifier(), geometric{1.5}, realigned, s) < 1e-12);
    CHECK(worst_error(match_verifier(), geometric{1.5}, realigned, s) < 1e-12);
  }
}
TEST_CASE(
    "raw logits: a coupled text is the same for every gamma, and at temperature 0 the most likely "
    "of "
    "the combination") {
  for (const double temperature : {0., 1.}) {
    const sampling sample{temperature, 2};
    std::vector<token_id> first;
    for (std::size_t gamma = 0; gamma < 5; ++gamma) {
      toy_source<T> d(vocabulary, 1), m(vocabulary, 2);
      std::vector<token_id> buffer(40);
      vector memory(vocabulary);
      text t{buffer, 1};
      speculative_workspace<T> work(vocabulary, {.gamma = gamma, .sample = sample});
      random_streams chooser(3);
      REQUIRE(speculative_decode(d, m, raw_logits{any_policy(geometric{1.5})}, chooser,
                                 {.text = t, .most = 30, .work = work},
                                 raw_logits_verifier(coupled_verifier{coupled_noise(3)},
                                                     std::span(memory), sample)) == status::ok);
      if (gamma == 0) first = buffer;
      CHECK(buffer == first);
    }
    for (std::size_t i = 1; temperature == 0 && i < 31; ++i) {
      const auto due =
          promised(realigned, {first.begin(), first.begin() + std::ptrdiff_t(i)}, {0, {}});
      CHECK(std::ranges::max_element(due) - due.begin() == first[i]);
    }
  }
}
TEST_CASE(
    "raw logits: a combination that does not exist is an undefined target, a bad row is what it "
    "is") {
  std::array<emission, 2> out;
  vector memory(2), scratch(verify_scratch(2, 1));
  const token_id y = 0;
  const auto verify = [&](const vector& l_q, const vector& l_p, const any_policy& policy,
                          std::span<double> room) {
    const auto made = [](const vector& l) {
      return rows_of(
          2, [&l](std::size_t) { return normalise(processed_row<T>(l, {.temperature = 0.5})); });
    };
    auto q = made(l_q), p = made(l_p);
    random_streams chooser(1);
    const raw_logits_verifier verifier(token_verifier(), room, sampling{.temperature = 0.5});
    return verifier.verify(draft{{&y, 1}}, q, p, raw_logits{policy}, chooser, out, scratch).why;
  };
  const double inf = infinity;
  CHECK(verify({0, 1}, {1, 0}, geometric{0.5}, memory) == status::ok);
  CHECK(verify({0, -inf}, {-inf, 0}, geometric{0.5}, memory) == status::undefined_target);
  CHECK(verify({0, -inf}, {0, 0}, contrastive{0.5}, memory) == status::undefined_target);
  CHECK(verify({0, 1}, {0, std::nan("")}, geometric{0.5}, memory) == status::invalid_row);
  CHECK(verify({0, 1}, {0, 1, 2}, geometric{0.5}, memory) == status::vocabulary_mismatch);
  CHECK(verify({0, 1}, {0, 1}, geometric{0.5}, {}) == status::vocabulary_mismatch);
  CHECK(verify({0, 1}, {0, 1}, ensemble{1.5}, memory) == status::invalid_parameter);
}
