// SPDX-License-Identifier: Apache-2.0
// False alarms and power of the fit against what it promises: exactly, over all results of small
// laws, and by simulation.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <specagg/audit/goodness_of_fit.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

using row = std::vector<double>;

// What the fit says of every possible result of n draws, and how likely each is.
struct outcome {
  double p_value, probability;
  bool passed;
};
// Of two outcomes. sampler: the law that they are drawn from.
std::vector<outcome> all_results(double n, const row& law, const row& sampler, double false_alarm) {
  std::vector<outcome> all;
  for (double k = 0; k <= n; ++k) {
    const fit f = goodness_of_fit(row{k, n - k}, law, false_alarm);
    all.push_back({f.p_value, std::exp(log_binomial(n, sampler[0], sampler[1], k)), f.passed});
  }
  return all;
}
// Of three, the last of which is rare: more than 12 of it count as refused.
std::vector<outcome> all_results_with_rare(double n, const row& law, double false_alarm) {
  std::vector<outcome> all;
  double rest = 1;
  for (double rare = 0; rare <= 12; ++rare) {
    const double of_rare = std::exp(log_binomial(n, law[2], 1 - law[2], rare)),
                 p = law[0] / (law[0] + law[1]);
    rest -= of_rare;
    for (double k = 0; k <= n - rare; ++k) {
      const fit f = goodness_of_fit(row{k, n - rare - k, rare}, law, false_alarm);
      all.push_back({f.p_value, of_rare * std::exp(log_binomial(n - rare, p, 1 - p, k)), f.passed});
    }
  }
  CHECK(std::fabs(rest) < 1e-12);
  return all;
}
double refused(const std::vector<outcome>& all) {
  double sum = 0;
  for (const outcome& o : all) sum += o.passed ? 0 : o.probability;
  return sum;
}
// Largest P(p_value <= a) / a over all a.
double worst_of_p_value(std::vector<outcome> all) {
  std::ranges::sort(all, {}, &outcome::p_value);
  double worst = 0, sum = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    sum += all[i].probability;
    const bool last = i + 1 == all.size() || all[i + 1].p_value > all[i].p_value;
    if (last && all[i].p_value > 1e-300) worst = std::max(worst, sum / all[i].p_value);
  }
  return worst;
}

// "1,000 equal" -> 1000
std::size_t number_in(const std::string& text) {
  std::string digits;
  for (const char c : text)
    if (c >= '0' && c <= '9') digits += c;
  return std::stoul(digits);
}
// Of a line of a table in Markdown.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (std::size_t at = 0, end; (end = line.find('|', at + 1)) != std::string::npos; at = end)
    cells.push_back(line.substr(at + 2, end - at - 3));
  return cells;
}
row counts_of(numbers& random, const row& law, std::size_t n) {
  row sums(law.size()), counts(law.size());
  std::partial_sum(law.begin(), law.end(), sums.begin());
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = std::upper_bound(sums.begin(), sums.end(), random.uniform() * sums.back());
    counts[std::size_t(at - sums.begin())] += 1;
  }
  return counts;
}
row zipf(std::size_t size) {
  row law(size);
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += law[i] = 1 / double(i + 1);
  for (double& x : law) x /= sum;
  return law;
}
// No more than `most` of `runs`, each with probability at most `rate`, but for a chance of 1e-6.
bool plausible(double times, double runs, double rate) {
  return times <= runs * rate || log_binomial_tail(runs, rate, 1 - rate, times) > std::log(1e-6);
}

// Laws at total variation d from `law`: mass moved from outcome to outcome, to one, from the
// rarest, among all.
std::vector<row> alternatives(const row& law, double d) {
  std::vector<row> all;
  const std::size_t size = law.size();
  // the outcomes that gain share d as they are, the others give d as they can
  const auto moved = [&](auto gains) {
    row r = law;
    double gain = 0, give = 0;
    for (std::size_t i = 0; i < size; ++i) (gains(i) ? gain : give) += law[i];
    if (give < d || gain <= 0) return;
    for (std::size_t i = 0; i < size; ++i)
      r[i] += gains(i) ? d * law[i] / gain : -d * law[i] / give;
    all.push_back(r);
  };
  moved([](std::size_t i) { return i == 0; });
  moved([](std::size_t i) { return i % 2 == 0; });
  moved([](std::size_t i) { return i % 2 == 1; });
  moved([&](std::size_t i) { return i < size / 2; });
  moved([&](std::size_t i) { return i >= size / 2; });
  row swept = law;  // the last outcomes vanish, the first has what they had
  double left = d;
  for (std::size_t i = size; i-- > 1 && left > 0;) {
    const double part = std::min(left, swept[i]);
    swept[i] -= part;
    swept[0] += part;
    left -= part;
  }
  if (left <= 0) all.push_back(swept);
  return all;
}

// What `detectable` is for so many observations, however they fall.
double detectable(const row& law, double n, double false_alarm) {
  row counts(law.size());
  counts[0] = n;
  return goodness_of_fit(counts, law, false_alarm).detectable;
}
// The laws of the table of docs/audit.md, by their names in it.
row law_named(const std::string& name) {
  if (name == "0.999 and 0.001") return {0.999, 0.001};
  if (name.starts_with("1 ... 1/")) return zipf(number_in(name.substr(8)));
  const std::size_t size = number_in(name);
  return row(size, 1 / double(size));
}

}  // namespace

TEST_CASE(
    "docs/audit.md's table of `detectable` is what the fit gives, and so is its price of 1e-6 "
    "against 0.001") {
  std::ifstream page(SPECAGG_SOURCE_DIR "/docs/audit.md");
  std::string line;
  while (std::getline(page, line) && !line.starts_with("| law |")) {
  }
  REQUIRE(cells_of(line) == std::vector<std::string>{"law", "n = 1,000", "10,000", "100,000",
                                                     "1,000,000", "n for 0.01"});
  std::getline(page, line);
  std::size_t rows = 0;
  for (; std::getline(page, line) && line.starts_with("|"); ++rows) {
    const std::vector<std::string> cells = cells_of(line);
    REQUIRE(cells.size() == 6);
    const row law = law_named(cells[0]);
    for (std::size_t i = 1; i < 5; ++i) {
      const double d = detectable(law, std::pow(10, 2 + double(i)), 1e-6);
      INFO(line << " gives " << d << " for " << cells[i]);
      if (cells[i] == "none") {
        CHECK(d > 1);
      } else {
        const double unit = std::pow(10, -double(cells[i].size() - 2));  // of the last digit
        CHECK(std::fabs(d - std::stod(cells[i])) <= unit * 0.5001);
      }
    }
    const auto n = double(number_in(cells[5]));  // of two digits
    INFO(cells[0] << ": " << detectable(law, n, 1e-6) << " for n = " << n);
    CHECK(detectable(law, n, 1e-6) <= 0.01);
    CHECK(detectable(law, 0.95 * n, 1e-6) > 0.01);
    if (law.size() > 1000) continue;
    const double d = detectable(law, 1e5, 1e-6);
    double enough = 1e3, less = 1e5;  // tokens with which a = 0.001 detects the same
    while (less - enough > 100)
      (detectable(law, (enough + less) / 2, 1e-3) > d ? enough : less) = (enough + less) / 2;
    INFO(cells[0] << ": " << 1e5 / less << " times fewer");
    CHECK(1e5 / less >= 1.15);
    CHECK(1e5 / less < 1.45);
  }
  CHECK(rows == 8);
}
TEST_CASE(
    "a point mass does not fit a uniform law, although each token is expected four times only") {
  row law(1000, 0.001), counts(1000);
  counts[0] = 4000;
  const fit f = goodness_of_fit(counts, law, 1e-3);
  CHECK_FALSE(f.passed);
  CHECK(f.distance == Approx(0.999));
  CHECK(f.p_value < 1e-300);
}
TEST_CASE(
    "a rare outcome that comes too often, and one that never comes, are found long before the "
    "distance") {
  CHECK_FALSE(goodness_of_fit(row{9995, 5}, row{1 - 1e-6, 1e-6}, 1e-6).passed);
  CHECK(goodness_of_fit(row{9995, 5}, row{1 - 1e-6, 1e-6}, 1e-6).distance < 0.001);
  row law(500, 0.99 / 499), counts(500, 2);
  law[0] = 0.01;
  counts[0] = 0;
  counts[1] = 12;
  CHECK(goodness_of_fit(counts, law, 1e-3).passed);  // 10 of 1,000 are due
  for (double& x : counts) x *= 3;
  CHECK_FALSE(goodness_of_fit(counts, law, 1e-3).passed);  // 30 of 3,000
}
TEST_CASE("an outcome of probability 0 that is seen has p-value 0") {
  const fit f = goodness_of_fit(row{500, 499, 1}, row{0.5, 0.5, 0}, 1e-9);
  CHECK_FALSE(f.passed);
  CHECK(f.p_value == 0);
}
TEST_CASE("without observations, and for an outcome that is certain, the fit passes") {
  const fit none = goodness_of_fit(row{0, 0}, row{0.5, 0.5}, 1e-6);
  CHECK(none.passed);
  CHECK(none.detectable > 1e300);
  const fit certain = goodness_of_fit(row{0, 1000}, row{0, 1}, 1e-6);
  CHECK(certain.p_value == 1);
  CHECK(certain.detectable < 0.05);
}
TEST_CASE(
    "the false alarms of small laws, summed over all results, are at most those asked for. So are "
    "p-values") {
  for (const double rate : {0.05, 1e-3, 1e-6, 1e-9}) {
    const auto check = [&](const char* what, const std::vector<outcome>& all) {
      std::printf("rate %.0e  %-34s refused %.2e, largest P(p-value <= a) / a %.3f\n", rate, what,
                  refused(all), worst_of_p_value(all));
      CHECK(refused(all) <= rate);
      CHECK(worst_of_p_value(all) <= 1 + 1e-9);
    };
    check("{.5, .49995, .00005}, n = 1,000",
          all_results_with_rare(1000, {0.5, 0.49995, 0.00005}, rate));
    for (const double n : {100., 1000.})
      for (const double p : {1e-6, 1e-3, 0.005, 0.1, 0.5}) {
        const row law{1 - p, p};
        char what[64];
        std::snprintf(what, sizeof what, "{%g, %g}, n = %.0f", 1 - p, p, n);
        check(what, all_results(n, law, law, rate));
      }
  }
}
TEST_CASE(
    "the power at `detectable`, summed over all results of two outcomes, is at least 0.999 on "
    "either side") {
  for (const double n : {100., 1000., 5000.})
    for (const double p : {0.5, 0.2, 0.02, 0.001}) {
      const row law{1 - p, p};
      const double d = goodness_of_fit(row{n, 0}, law, 1e-3).detectable;
      for (const double x : {p - d, p + d})
        if (x >= 0 && x <= 1) {
          CAPTURE(n, p, d, x);
          CHECK(refused(all_results(n, law, {1 - x, x}, 1e-3)) >= 0.999);
        }
    }
}
TEST_CASE("simulated right samplers are refused at most as often as asked for") {
  numbers random(1);
  for (const auto& [law, n] :
       {std::pair{zipf(50), 300}, {row(40, 0.025), 200}, {row{0.98, 0.01, 0.005, 0.005}, 100}}) {
    const int runs = 10000;
    int alarms = 0, below = 0;
    for (int i = 0; i < runs; ++i) {
      const fit f = goodness_of_fit(counts_of(random, law, std::size_t(n)), law, 1e-3);
      alarms += !f.passed;
      below += f.p_value <= 0.2;
    }
    std::printf("%zu outcomes, n = %d: %d of %d right samplers refused at 1e-3, %d at 0.2\n",
                law.size(), n, alarms, runs, below);
    CHECK(plausible(alarms, runs, 1e-3));
    CHECK(plausible(below, runs, 0.2));
  }
}
TEST_CASE(
    "simulated samplers at the detectable distance are found 999 times of 1,000, wherever their "
    "bias lies") {
  numbers random(2);
  for (const auto& [law, n] : {std::pair{row{0.5, 0.5}, 2000},
                               {row{0.98, 0.01, 0.005, 0.005}, 2000},
                               {zipf(30), 2000},
                               {zipf(300), 4000},
                               {row(200, 0.005), 2000},
                               {row(1000, 0.001), 4000}}) {
    const double d = goodness_of_fit(counts_of(random, law, std::size_t(n)), law, 1e-3).detectable;
    const auto biased = alternatives(law, d);
    REQUIRE(biased.size() >= 2);
    double missed = 0, runs = 0, missed_closer = 0;
    for (const row& sampler : biased)
      for (int i = 0; i < 30; ++i, ++runs)
        missed += goodness_of_fit(counts_of(random, sampler, std::size_t(n)), law, 1e-3).passed;
    for (const row& sampler : alternatives(law, d / 4))
      for (int i = 0; i < 10; ++i)
        missed_closer +=
            goodness_of_fit(counts_of(random, sampler, std::size_t(n)), law, 1e-3).passed;
    std::printf("%4zu outcomes, n = %d: detectable %.4f, missed there %.0f of %.0f\n", law.size(),
                n, d, missed, runs);
    CHECK(plausible(missed, runs, 1e-3));
    CHECK(missed_closer > 0);  // a quarter of it is not found each time
  }
}
