// SPDX-License-Identifier: Apache-2.0
#include "laws.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <specagg/error.hpp>
#include <specagg/kernels.hpp>
#include <specagg/specagg.hpp>

namespace experiments::frontier {

using namespace specagg;

namespace {

constexpr knob with_parameter[] = {
    {"lossy", "alpha", 0, 0.9999999}, {"lenient", "alpha", 0, 0.9999999},
    {"cactus", "delta", 0, 1000},     {"kl-bound", "kl", 0, 20},
    {"chow", "alpha", 0, 1},          {"chow-log", "alpha", 0, 12},
    {"diff", "alpha", -1, 1},         {"diff-log", "alpha", -12, 12},
    {"opt", "alpha", -100, 100},      {"opt-log", "alpha", -100, 100},
    {"bild", "alpha", 0, 100},        {"fuzzy", "alpha", 0, 0.7},
    {"token-v1", "alpha", -1, 1},     {"token-v2", "alpha", 0, 1},
    {"token-v3", "alpha", 0, 1},      {"relaxed", "delta", 0, 1},
    {"relative", "alpha", 0, 1},      {"margin", "alpha", 0, 1},
    {"ensemble", "lambda", 0, 1},     {"geometric", "lambda", 0, 1},
    {"power", "lambda", 0, 1},        {"rate-bound", "rate", 0, 1},
    {"mentored", "kl", 0, 20}};

using row = normal_form<dense_row<float>>;

// f(rows, pi) with the policy of this rule.
template <class F>
void with_law(const knob& k, double x, const row& q, const row& p, F&& f) {
  for_each_in_catalogue([&](const auto& line) {
    if (std::string_view(line.name) != k.rule) return;
    auto policy = line.values[0];
    if constexpr (std::is_same_v<decltype(policy), power>) policy.rho = 2;  // 1 is the ensemble
    for (const auto& one : line.parameters)
      if (k.parameter && std::string_view(one.name) == k.parameter) policy.*one.number = x;
    const auto rows = specagg::detail::pair_for<decltype(policy)>(q, p);
    f(rows, policy.bind(rows));
  });
}
row ready(const std::vector<float>& x) {
  const auto r = normalise(dense_row<float>(x));
  if (r.why() != status::ok) throw error("row", "", name(r.why()));
  return r;
}

}  // namespace

std::vector<knob> knobs() {
  std::vector<knob> all;
  for_each_in_catalogue([&](const auto& line) {
    const std::string_view rule = line.name;
    if (rule == "realign") return;  // another name of geometric
    knob found{line.name, nullptr, 0, 0};
    for (const knob& k : with_parameter)
      if (std::string_view(k.rule) == line.name) found = k;
    all.push_back(found);
  });
  return all;
}
double acceptance(const knob& k, double x, const position& at) {
  double sum = NAN;
  with_law(k, x, ready(at.q), ready(at.p), [&](const auto& rows, const auto& pi) {
    sum = rows.sum([&](auto v) { return min(v.q, pi(v)); });
  });
  if (!(sum >= 0)) throw no_law();
  return sum;
}
worth measure(const knob& k, double x, const position& at) {
  const row q = ready(at.q), p = ready(at.p);
  thread_local std::vector<float> law;
  law.resize(q.size());
  double sum = 0;
  with_law(k, x, q, p, [&](const auto& rows, const auto& pi_of) {
    sum = specagg::walker_of(rows).sum_stored(rows, pi_of, law.data());
  });
  if (!(std::fabs(sum - 1) < normalisation_tolerance)) throw no_law();
  const row pi = ready(law);
  worth w;
  w.acceptance = 1 - total_variation(q, pi);
  w.tv = total_variation(p, pi);
  for (std::size_t v = 0; v < law.size(); ++v) {
    if (law[v] > 0) w.kl += double(law[v]) * std::log(double(law[v]) / double(at.likely[v]));
    if (at.p[v] == 0) w.outside += double(law[v]);
  }
  w.likeliest = law[std::size_t(std::max_element(at.p.begin(), at.p.end()) - at.p.begin())];
  if (at.next == position::none) return w;
  const std::size_t y = at.next;
  w.next = law[y];
  w.kept = law[y] < at.q[y] ? double(law[y]) / double(at.q[y]) : 1;
  return w;
}

}  // namespace experiments::frontier
