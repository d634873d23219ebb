// SPDX-License-Identifier: Apache-2.0
// docs/training.md: the biases of a step of training, enumerated again; and the gradient that they
// are measured from, by differences.
#include "../research/experiments/training/toy.hpp"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "support/catch.hpp"

using namespace experiments::training;

namespace {

// The numbers of a policy, sums over worlds.
using sums = std::map<std::string, double>;
void add(sums& to, const step& s) {
  to["accepted"] += s.accepted;
  to["tv"] += s.tv;
  to["never"] += s.never;
  to["sample"] += s.sample;
  to["with_p"] += s.with_p;
  to["by_token"] += s.by_token;
  to["by_text"] += s.by_text;
  to["moved_with_p"] += s.moved_with_p;
  to["moved_by_text"] += s.moved_by_text;
}
// The mean reward of texts of these logits.
double mean_reward(const toy& world, const std::vector<toy::row>& logits) {
  double mean = 0;
  toy::for_each_text([&](const toy::ids& text) {
    double p = 1;
    for (std::size_t t = 0; t < toy::length; ++t) {
      const auto& row = logits[toy::context(std::span(text).first(t))];
      double sum = 0;
      for (const double x : row) sum += std::exp(x);
      p *= std::exp(row[std::size_t(text[t])]) / sum;
    }
    mean += p * world.reward(text);
  });
  return mean;
}

}  // namespace

TEST_CASE("training: the true gradient is the slope of the mean reward") {
  const toy world(7);
  std::vector<toy::row> logits = world.p();
  for (auto& row : logits)
    for (double& x : row) x = std::log(x);
  const auto g = world.truth(world.p());
  for (std::size_t i = 0; i < g.size(); ++i) {
    double& x = logits[i / toy::V][i % toy::V];
    const double at = x, h = 1e-5;
    x = at + h;
    const double above = mean_reward(world, logits);
    x = at - h;
    const double below = mean_reward(world, logits);
    x = at;
    CHECK(g[i] == Approx((above - below) / (2 * h)).margin(1e-9));
  }
}
TEST_CASE("training: with log pi of whole texts no policy is biased that writes all texts") {
  std::ifstream file(SPECAGG_SOURCE_DIR "/docs/training/results.json");
  const auto results = nlohmann::json::parse(file);
  const std::size_t worlds = results["worlds"];
  REQUIRE(worlds >= 10);
  std::map<std::string, sums> all;
  for (std::size_t i = 0; i < worlds; ++i) {
    const toy world(1000 + i);
    for_each_policy(world, [&](const std::string& policy, const std::vector<rollout>& texts) {
      INFO(policy << ", world " << i);
      double sum = 0;
      for (const rollout& r : texts) sum += r.probability;
      CHECK(sum == Approx(1).epsilon(1e-12));
      const step s = expected_step(world, texts);
      add(all[policy], s);
      if (s.never < 1e-12) {
        CHECK(s.by_text < 1e-12);
        CHECK(s.moved_by_text < 1e-12);
      } else CHECK(s.by_text > 0.05);
      if (policy == "lossless") CHECK(s.with_p < 1e-12);
    });
  }
  REQUIRE(results["toy"].size() == all.size());
  std::set<std::string> biased;
  for (const auto& line : results["toy"]) {
    const std::string policy = line["policy"];
    INFO(policy);
    for (const auto& [measure, sum] : all.at(policy)) {
      INFO(measure);
      CHECK(sum / double(worlds) == Approx(double(line[measure])).margin(1e-8));
    }
    if (double(line["with_p"]) > 0.01 && double(line["by_token"]) > 0.01) biased.insert(policy);
  }
  CHECK(biased.size() + 1 == all.size());  // all but lossless
}
