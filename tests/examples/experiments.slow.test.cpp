// SPDX-License-Identifier: Apache-2.0
// What the experiments plot is the library's exact law: their numbers at held-out positions against
// sums over the law of the audit, and against what `specagg law` answers.
#include "../research/experiments/exact.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include <specagg/audit/exact_law.hpp>
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>

#include "../research/experiments/regret.hpp"
#include "../research/experiments/policies.hpp"
#include "cli/command.hpp"
#include "support/catch.hpp"

using namespace specagg;
using experiments::outcome;

namespace {

// Logits of draft and target after the beginnings of a held-out text, and the token that follows;
// at every other one the target's most likely, so that policies are right often enough.
struct place {
  std::vector<float> q, p;
  token_id next;
};
std::vector<place> places() {
  const auto open = [](const char* name) {
    return std::make_shared<const cpu::llama_weights>(
        cpu::gguf_file::open(SPECAGG_MODELS + std::string(name)));
  };
  cpu::llama draft(open("/draft.gguf")), target(open("/target.gguf"));
  std::ifstream file(SPECAGG_MODELS "/../research/text/shakespeare/test.txt", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto tokens = cpu::tokenizer(target.weights().file).encode(text.substr(0, 800));
  std::vector<place> all;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    place x{std::vector<float>(target.vocab_size()), std::vector<float>(target.vocab_size()),
            tokens[i + 1]};
    REQUIRE(draft.extend(std::span(tokens).subspan(i, 1), x.q) == status::ok);
    REQUIRE(target.extend(std::span(tokens).subspan(i, 1), x.p) == status::ok);
    if (i % 32 == 31) x.next = token_id(std::ranges::max_element(x.p) - x.p.begin());
    if (i % 16 == 15) all.push_back(std::move(x));
  }
  return all;
}
experiments::row rows_of(const std::vector<double>& x, const std::vector<double>& confidence) {
  return {dense_row<double>(x), dense_row<double>(confidence)};
}
// The same numbers, from the law as a list.
outcome by_hand(const std::vector<double>& law, const std::vector<double>& q,
                const std::vector<double>& p, token_id y) {
  outcome o;
  std::size_t top = 0;
  for (std::size_t v = 0; v < law.size(); ++v) {
    o.rejection += std::max(0.0, q[v] - law[v]);
    o.tv += 0.5 * std::fabs(law[v] - p[v]);
    if (p[v] > 0) o.kl += p[v] * std::log(p[v] / law[v]);
    if (law[v] > law[top]) top = v;
  }
  o.sampled = law[std::size_t(y)];
  o.cross_entropy = -std::log(o.sampled);
  o.most_likely = top == std::size_t(y);
  return o;
}

}  // namespace

TEST_CASE(
    "experiments: every number is that of the audit's exact law, at held-out positions and three "
    "temperatures") {
  std::size_t compared = 0, hits = 0;
  for (const place& at : places())
    for (const double temperature : {1.0, 0.5, 0.0}) {
      const auto q = experiments::probabilities(at.q, temperature),
                 p = experiments::probabilities(at.p, temperature);
      const auto q1 = experiments::probabilities(at.q, 1), p1 = experiments::probabilities(at.p, 1);
      for (const experiments::sweep& s : experiments::sweeps())
        for (std::size_t i = s.rule == "mentored" ? 2 : 0; i < s.values.size();
             i += s.rule == "mentored" ? 9 : 3) {
          CAPTURE(s.rule, s.values[i], temperature);
          experiments::with_policy(s.rule, s.values[i], [&](const auto& policy) {
            outcome o;
            REQUIRE(measure(policy, rows_of(q, q1), rows_of(p, p1), at.next, temperature == 1, o) ==
                    status::ok);
            const auto law = target_law(policy, rows_of(q, q1), rows_of(p, p1));
            REQUIRE(law.size() == q.size());
            const outcome due = by_hand(law, q, p, at.next);
            CHECK(std::fabs(o.rejection - due.rejection) < 1e-6);
            CHECK(std::fabs(o.tv - due.tv) < 1e-6);
            CHECK(std::fabs(o.sampled - due.sampled) < 1e-6);
            if (due.sampled > 1e-9) CHECK(std::fabs(o.cross_entropy - due.cross_entropy) < 1e-6);
            if (temperature == 1 && std::isfinite(due.kl)) CHECK(std::fabs(o.kl - due.kl) < 1e-6);
            CHECK(o.most_likely == due.most_likely);
            ++compared;
            hits += o.most_likely > 0;
          });
        }
    }
  CHECK(compared > 1000);
  CHECK(hits > 20);
}

TEST_CASE(
    "experiments: specagg law answers the same for the same rows, for every policy by the name in "
    "the CSV files") {
  // The most likely 16 tokens of both: law walks every branch of the verifier, which 4096 would
  // make many.
  std::ostringstream lines;
  std::vector<outcome> own;
  const auto numbers = [](const std::vector<double>& x) { return nlohmann::json(x).dump(); };
  for (const place& at : places()) {
    const auto all_q = experiments::probabilities(at.q, 1),
               all_p = experiments::probabilities(at.p, 1);
    std::vector<std::size_t> order(all_q.size());
    for (std::size_t v = 0; v < order.size(); ++v) order[v] = v;
    std::partial_sort(
        order.begin(), order.begin() + 16, order.end(),
        [&](std::size_t a, std::size_t b) { return all_q[a] + all_p[a] > all_q[b] + all_p[b]; });
    std::vector<double> q, p;
    double q_sum = 0, p_sum = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      q_sum += all_q[order[i]];
      p_sum += all_p[order[i]];
    }
    for (std::size_t i = 0; i < 16; ++i) {
      q.push_back(all_q[order[i]] / q_sum);
      p.push_back(all_p[order[i]] / p_sum);
    }
    for (const experiments::sweep& s : experiments::sweeps()) {
      const double x = s.values[s.values.size() / 2];
      experiments::with_policy(s.rule, x, [&](const auto& policy) {
        REQUIRE(measure(policy, rows_of(q, q), rows_of(p, p), 0, false, own.emplace_back()) ==
                status::ok);
      });
      const std::string named = experiments::policy_text(s.rule, x);
      const auto colon = named.find(':');
      nlohmann::json parameters;
      std::istringstream list(named.substr(colon + 1));
      for (std::string item; std::getline(list, item, ',');)
        parameters[item.substr(0, item.find('='))] = std::stod(item.substr(item.find('=') + 1));
      lines << R"({"policy":")" << named.substr(0, colon) << R"(","params":)" << parameters.dump()
            << R"(,"q":)" << numbers(q) << R"(,"p":)" << numbers(p) << "}\n";
    }
  }
  const auto path =
      std::filesystem::temp_directory_path() / ("specagg-experiments-" + std::to_string(getpid()));
  std::ofstream(path) << lines.str();
  const cli::ran r = cli::run("law --batch", path.string());
  std::filesystem::remove(path);
  REQUIRE(r.status == 0);
  std::istringstream answers(r.out);
  std::size_t i = 0;
  for (std::string line; std::getline(answers, line); ++i) {
    const auto answer = nlohmann::json::parse(line);
    INFO(answer.dump());
    REQUIRE(answer["status"] == "ok");
    REQUIRE(i < own.size());
    CHECK(std::fabs(double(answer["law"][0]) - own[i].sampled) < 1e-6);
    CHECK(std::fabs(1 - double(answer["acceptance"]) - own[i].rejection) < 1e-6);
  }
  CHECK(i == own.size());
}

TEST_CASE(
    "experiments: regret and bound of OPT and OPTLog, by hand and within the bound at 20,000 "
    "random rows") {
  using experiments::regret_01, experiments::regret_log;
  const std::vector<double> truth{0.5, 0.3, 0.2}, q{0.3, 0.6, 0.1}, p{0.4, 0.2, 0.4};
  // argmax q is token 1, of p token 0 (the first of two); max q > max p: OPT keeps q. L(0) = .7,
  // L(1) = .5 + .4 alpha.
  CHECK(regret_01(truth, q, p, 0.1).regret == Approx(0.7 - 0.54));
  CHECK(regret_01(truth, q, p, 2).regret == Approx(0).margin(1e-12));  // L(1) = 1.3
  CHECK(regret_01(truth, q, p, 0.1).bound == Approx(0.3 + 0.2));
  // H(q) = .898, H(p) = 1.055: OPTLog keeps q.
  const double l0 = -(0.5 * std::log(0.3) + 0.3 * std::log(0.6) + 0.2 * std::log(0.1)),
               l1 = -(0.5 * std::log(0.4) + 0.3 * std::log(0.2) + 0.2 * std::log(0.4));
  CHECK(regret_log(truth, q, p, 0.1).regret == Approx(l0 - std::min(l0, l1 + 0.04)).margin(1e-12));
  // it defers
  CHECK(regret_log(truth, q, p, -3).regret ==
        Approx(l1 - 1.2 - std::min(l0, l1 - 1.2)).margin(1e-12));
  CHECK(regret_log(truth, q, p, 0.1).bound == Approx(-std::log(0.1) * 0.6 - std::log(0.2) * 0.4));
  std::uint64_t state = 1;
  const auto row = [&] {
    std::vector<double> x(4);
    double sum = 0;
    for (double& v : x) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += v = 1e-3 + double(state >> 40);
    }
    for (double& v : x) v /= sum;
    return x;
  };
  double largest = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto truth_row = row(), q_row = row(), p_row = row();
    const double alpha = double(i % 7) / 3;
    const auto a = regret_01(truth_row, q_row, p_row, alpha),
               b = regret_log(truth_row, q_row, p_row, alpha);
    CHECK(a.regret <= a.bound + 1e-12);
    CHECK(b.regret <= b.bound + 1e-12);
    largest = std::max(largest, a.regret / a.bound);
  }
  CHECK(largest > 0.3);
}
