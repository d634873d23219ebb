// SPDX-License-Identifier: Apache-2.0
// The audits compare what is sampled with the library's own pi. Here pi is compared with equations
// that share no code with it, where numbers are hard: subnormal, 0, one-hot, equal, disjoint.
#include <specagg/policy/catalogue.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "policy/equations.hpp"
#include "policy/plain.hpp"
#include "support/all_policies.hpp"

using namespace specagg;

namespace {

// A row of this kind. small: subnormal.
row hard_row(numbers& n, std::size_t size, double small) {
  row x(size, 0);
  const std::size_t kind = n.below(6);
  if (kind == 0) {
    x[n.below(size)] = 1;
  } else if (kind == 1) {
    for (double& y : x) y = double(1 + n.below(3));  // ties
  } else {
    for (double& y : x) y = kind == 2 || n.below(3) > 0 ? std::exp(n.between(-4, 4)) : 0;
    x[n.below(size)] = 1;
  }
  x = norm(x);
  if (kind == 5 || kind == 0)
    for (double& y : x)
      if (y == 0 || n.below(4) == 0) y = small * n.between(0.06, 1);
  return norm(x);
}

// A policy of the catalogue, and its parameters by their names.
struct example {
  any_policy policy;
  std::function<equations::number(const std::string&)> parameter;
};
struct named_examples {
  const char* name;
  std::vector<example> values;
};
std::vector<named_examples> all_examples() {
  std::vector<named_examples> all;
  for_each_in_catalogue([&](const auto& line) {
    all.push_back({line.name, {}});
    for (const auto& policy : line.values)
      all.back().values.push_back({policy, [&](const std::string& name) -> equations::number {
                                     for (const auto& one : line.parameters)
                                       if (one.name == name)
                                         return one.number ? policy.*one.number : policy.*one.flag;
                                     throw std::logic_error(name);
                                   }});
  });
  return all;
}

template <class T>
void compare(const named_examples& line, double tolerance) {
  // their search for the root ends early: S <= R (1 + 2^-10)
  const std::string_view name = line.name;
  if (name == "lossy" || name == "mentored") tolerance = 0x1p-10;
  const auto equation = equations::of.find(line.name);
  INFO(line.name);
  REQUIRE(equation != equations::of.end());
  numbers n(7);
  std::size_t laws = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t size = 2 + n.below(trial % 10 == 0 ? 40 : 4);
    const double small = double(std::numeric_limits<T>::min());
    std::array<row, 2> rows{hard_row(n, size, small), hard_row(n, size, small)};
    if (trial < 2) rows = {row{0.5, 0.5}, row{0.9 * small, 1}};
    if (trial == 1) std::swap(rows[0], rows[1]);
    if (auto [a, b] = rows; (std::ranges::sort(a), std::ranges::sort(b), near(a, b)))
      continue;  // ties of two entropies are decided by rounding
    // as the library reads them
    equations::given x{.q = {}, .p = {}, .least = small, .parameter = {}};
    for (const double y : rows[0]) x.q.push_back(T(y));
    for (const double y : rows[1]) x.p.push_back(T(y));
    x.q = equations::norm(x.q), x.p = equations::norm(x.p);
    for (const example& one : line.values) {
      x.parameter = one.parameter;
      const equations::row due = equation->second(x);
      const std::vector<T> q(rows[0].begin(), rows[0].end()), p(rows[1].begin(), rows[1].end());
      const row pi = target_law(one.policy, q, p);
      INFO("trial " << trial << ", value " << (&one - line.values.data()));
      REQUIRE(pi.size() == due.size());
      laws += !pi.empty();
      for (std::size_t v = 0; v < pi.size(); ++v) {
        const double off = double(std::fabs(pi[v] - due[v]));
        if (off < tolerance) continue;
        INFO("token " << v << ": q " << double(x.q[v]) << ", p " << double(x.p[v]));
        CHECK(pi[v] == Approx(double(due[v])).margin(tolerance));
        return;
      }
    }
  }
  CHECK(laws > 100);
}

}  // namespace

TEST_CASE("every policy of the catalogue is its equation, on rows of doubles") {
  for (const named_examples& line : all_examples()) compare<double>(line, 1e-12);
}
TEST_CASE("every policy of the catalogue is its equation, on rows of floats") {
  for (const named_examples& line : all_examples()) compare<float>(line, 1e-5);
}
