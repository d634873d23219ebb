// SPDX-License-Identifier: Apache-2.0
// The orders of temperature and filters, against a list of tokens that is sorted once, and to which
// each step is applied as it is written.
#include <specagg/rows/sampling.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/compiled_once.hpp>
#include <specagg/policy/any_of.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/extremes.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/verify/block.hpp>
#include <specagg/verify/match.hpp>
#include <specagg/verify/token.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

constexpr std::array orders = std::to_array(filter_orders);

using real = long double;
enum class step { temperature, top_k, top_p, min_p, top_k_and_top_p };
std::vector<step> steps_of(filter_order order) {
  switch (order) {
    case filter_order::hugging_face:
      return {step::temperature, step::top_k, step::top_p, step::min_p};
    case filter_order::vllm: return {step::temperature, step::min_p, step::top_k, step::top_p};
    case filter_order::llama_cpp: return {step::top_k, step::top_p, step::min_p, step::temperature};
    default: return {step::temperature, step::top_k_and_top_p, step::min_p};
  }
}

struct candidate {
  token_id id;
  real logit, probability = 0;
};
class candidates {
 public:
  template <class S>
  explicit candidates(const std::vector<S>& logits) {
    for (std::size_t v = 0; v < logits.size(); ++v)
      if (const auto l = real(detail::number(logits[v])); l > -INFINITY)
        sorted.push_back({token_id(v), l});
    std::ranges::stable_sort(sorted,
                             [](const auto& a, const auto& b) { return a.logit > b.logit; });
    normalise();
  }
  // share, fraction: factors of top_p and min_p, to see whether a token is on a threshold.
  void apply(const sampling& s, double share, double fraction) {
    if (s.temperature == 0) return keep(1);
    for (const step each : steps_of(s.order)) {
      const std::size_t k = s.top_k > 0 ? s.top_k : sorted.size(), p = prefix(s.top_p, share);
      switch (each) {
        case step::temperature:
          for (candidate& c : sorted) c.logit /= real(s.temperature);
          break;
        case step::top_k: keep(k); break;
        case step::top_p: keep(p); break;
        case step::min_p: {
          const real least = std::min(1., s.min_p * fraction) * sorted[0].probability;
          std::erase_if(sorted, [&](const candidate& c) { return c.probability < least; });
          break;
        }
        case step::top_k_and_top_p: keep(std::min(k, p)); break;
      }
      normalise();
    }
  }
  std::vector<candidate> sorted;

 private:
  void keep(std::size_t n) {
    sorted.resize(std::min(n, sorted.size()));
    normalise();
  }
  std::size_t prefix(double top_p, double factor) const {
    if (top_p == 1) return sorted.size();
    real sum = 0;
    std::size_t n = 0;
    while (n < sorted.size() && (n == 0 || sum < real(top_p) * factor))
      sum += sorted[n++].probability;
    return n;
  }
  void normalise() {
    real sum = 0;
    const real largest = sorted.empty() ? 0 : sorted[0].logit;
    for (candidate& c : sorted) sum += c.probability = std::exp(c.logit - largest);
    for (candidate& c : sorted) c.probability /= sum;
  }
};

template <class T>
std::vector<token_id> kept(const std::vector<T>& logits, const sampling& s) {
  const auto row = specagg::normalise(processed_row<T>(logits, s));
  REQUIRE(row.why() == status::ok);
  std::vector<token_id> ids;
  for (std::size_t v = 0; v < logits.size(); ++v)
    if (row[v] > 0) ids.push_back(token_id(v));
  return ids;
}

// How the row differs from the oracle's; null if it does not. `all`: its candidates.
template <class S>
const char* difference(const std::vector<S>& logits, const candidates& all, const sampling& s,
                       bool& on_a_threshold) {
  using T = computed<S>;
  const double error = sizeof(T) == 4 ? 4e-6 : 1e-13;
  candidates fewest = all, most = all;
  const auto& sorted = all.sorted;
  fewest.apply(s, 1 - error, 1 + error);
  most.apply(s, 1 + error, 1 - error);
  on_a_threshold = fewest.sorted.size() != most.sorted.size();
  const auto row = specagg::normalise(processed_row<S>(logits, s), true);
  if (row.why() != status::ok) return "a status";
  std::size_t n = 0;
  while (n < sorted.size() && row.restriction.keeps(T(sorted[n].logit), std::size_t(sorted[n].id)))
    ++n;
  if (n < fewest.sorted.size()) return "too few are kept";
  if (n > most.sorted.size() && sorted[n - 1].logit > sorted[0].logit - 1e9)
    return "too many are kept";
  std::vector<real> due(logits.size());
  real total = 0;
  const real temperature = s.temperature == 0 ? 1 : real(s.temperature);
  for (std::size_t i = 0; i < n; ++i) {
    const real w = std::exp((sorted[i].logit - sorted[0].logit) / temperature);
    total += w;
    due[std::size_t(sorted[i].id)] = w;
  }
  for (std::size_t v = 0; v < due.size(); ++v) {
    const real got = row[v], exact = due[v] / total;
    if ((got == 0) != (exact < 1e-30L)) return "a token";
    if (std::fabs(got - exact) > exact * error) return "a probability";
  }
  // the view at temperature 1 has all tokens
  const std::size_t first = std::size_t(sorted[0].id);
  const real largest = sorted[0].probability;
  const auto confidence = real(row.open(first, 1).template confidence<vec<T, 1>>(0, 1).v);
  return std::fabs(confidence - largest) > error * largest ? "the view at temperature 1" : nullptr;
}

template <class T>
std::vector<T> logs(std::initializer_list<double> probabilities) {
  std::vector<T> l;
  for (const double p : probabilities) l.push_back(T(std::log(p)));
  return l;
}

}  // namespace

TEMPLATE_TEST_CASE("in every order, filters keep what the sorted row keeps step by step", "", float,
                   double, bf16) {
  using S = TestType;
  numbers random(1);
  std::array<int, orders.size()> differ{};
  int rows = 0, on_thresholds = 0;
  for (const std::size_t size : {1u, 2u, 7u, 50u, 300u})
    for (const double temperature : {0., 0.6, 1., 2.})
      for (const std::uint32_t top_k : {0u, 1u, 3u, 40u, 4000000000u})
        for (const double top_p : {1., 0.999, 0.9, 0.5, 1e-9})
          for (const double min_p : {0., 0.01, 0.3, 1.}) {
            const int levels = rows % 3 == 0 ? 3 : rows % 3 == 1 ? 12 : 1000;  // few: many ties
            std::vector<S> l(size);
            for (S& x : l) {
              const int level = int(random.below(std::size_t(levels))) - levels / 2;
              x = detail::stored<S>(float(level) * 7 / float(levels));
              if (random.below(10) == 0) x = detail::stored<S>(-INFINITY);
            }
            l[random.below(size)] = detail::stored<S>(float(random.below(2)) * 3);
            ++rows;
            const candidates all(l);
            candidates as_default = all;
            as_default.apply({temperature, top_k, top_p, min_p}, 1, 1);
            for (const filter_order order : orders) {
              const sampling s{temperature, top_k, top_p, min_p, order};
              candidates exact = all;
              exact.apply(s, 1, 1);
              differ[std::size_t(order)] += exact.sorted.size() != as_default.sorted.size();
              bool on_a_threshold = false;
              const char* const what = difference(l, all, s, on_a_threshold);
              on_thresholds += on_a_threshold;
              if (!what) continue;
              CAPTURE(size, temperature, top_k, top_p, min_p, int(order), levels);
              FAIL("differs in " << what);
            }
          }
  CHECK(rows == 5 * 4 * 5 * 5 * 4);
  CHECK(on_thresholds < rows * 4 / 20);
  CHECK(differ[0] == 0);
  for (const filter_order order : orders) {
    CAPTURE(int(order));
    if (order != filter_order::hugging_face) CHECK(differ[std::size_t(order)] > rows / 50);
  }
}

TEMPLATE_TEST_CASE("two filters that both cut, or a filter and a temperature, depend on the order",
                   "", float, double) {
  using T = TestType;
  using enum filter_order;
  const auto l = logs<T>({0.4, 0.3, 0.2, 0.1});
  const auto counts = [&](sampling s) {
    std::array<std::size_t, orders.size()> n{};
    for (const filter_order order : orders) {
      s.order = order;
      n[std::size_t(order)] = kept(l, s).size();
    }
    return n;
  };
  using four = std::array<std::size_t, 4>;  // hugging_face, vllm, llama_cpp, joint
  CHECK(counts({.top_k = 2, .top_p = 0.55}) == four{1, 1, 1, 2});  // 4/7 of two, 0.4 of all
  CHECK(counts({.top_p = 0.55, .min_p = 0.6}) == four{2, 1, 2, 2});
  CHECK(counts({.temperature = 0.5, .top_p = 0.5}) == four{1, 1, 2, 1});  // 16/30, or 0.4
  CHECK(counts({.temperature = 2, .min_p = 0.4}) == four{4, 4, 3, 4});
  // the kept tokens have their temperature
  const auto row = specagg::normalise(
      processed_row<T>(l, {.temperature = 0.5, .top_p = 0.5, .order = llama_cpp}));
  REQUIRE(row.why() == status::ok);
  CHECK(row[0] == Approx(16. / 25).epsilon(1e-6));
  CHECK(row[1] == Approx(9. / 25).epsilon(1e-6));
}

TEMPLATE_TEST_CASE(
    "one filter at temperature 1, and temperature 0, have the same bits in any order", "", float,
    double, bf16) {
  using S = TestType;
  numbers random(2);
  std::size_t filtered = 0;
  for (const std::size_t size : {5u, 1000u, 20000u})
    for (const sampling& alone : {sampling{.top_k = 3},
                                  {.top_k = 1500},
                                  {.top_p = 0.9},
                                  {.top_p = 0.3},
                                  {.min_p = 0.1},
                                  {.temperature = 0, .top_k = 2, .top_p = 0.5, .min_p = 0.3},
                                  {}}) {
      std::vector<S> l(size);
      for (S& x : l) x = detail::stored<S>(float(4 * random.bell()));
      const auto due = specagg::normalise(processed_row<S>(l, alone), true);
      REQUIRE(due.why() == status::ok);
      for (const filter_order order : orders) {
        sampling s = alone;
        s.order = order;
        const auto got = specagg::normalise(processed_row<S>(l, s), true);
        REQUIRE(got.why() == status::ok);
        bool equal = true;
        for (std::size_t v = 0; v < size; ++v) {
          equal = equal && same(got[v], due[v]);
          filtered += got[v] == 0;
        }
        CAPTURE(size, s.temperature, s.top_k, s.top_p, s.min_p, int(order));
        CHECK(equal);
      }
    }
  CHECK(filtered > 100000);
}

TEMPLATE_TEST_CASE("in every order, filters of long rows keep what sorting keeps", "", float,
                   double) {
  using T = TestType;
  numbers random(3);
  constexpr std::size_t V = 50000;
  std::size_t rows = 0;
  for (int kind = 0; kind < 5; ++kind) {
    std::vector<T> l(V);
    for (std::size_t v = 0; v < V; ++v) {
      double x = 3 * random.bell();
      if (kind == 1) x = std::round(2 * x);          // thousands of ties
      if (kind == 2) x = 0.01 * x;                   // nearly uniform
      if (kind == 3) x = x * x * x;                  // peaked
      if (kind == 4) x = random.below(9) ? 0. : 1.;  // two logits
      l[v] = T(x);
      if (kind == 1 && random.below(4) == 0) l[v] = -std::numeric_limits<T>::infinity();
    }
    const candidates all(l);
    for (sampling s : {sampling{.temperature = 0.6, .top_k = 40, .top_p = 0.95, .min_p = 0.05},
                       {.temperature = 2, .top_k = 1000, .top_p = 0.5},
                       {.temperature = 0.6, .top_k = 1500, .top_p = 0.9},
                       {.temperature = 2, .top_k = 20000, .top_p = 0.97, .min_p = 0.01},
                       {.temperature = 0.6, .top_p = 0.9, .min_p = 0.1},
                       {.temperature = 2, .top_p = 0.7},
                       {.temperature = 0.6, .top_k = 30000, .min_p = 0.4}})
      for (const filter_order order : orders) {
        s.order = order;
        bool on_a_threshold = false;
        const char* const what = difference(l, all, s, on_a_threshold);
        ++rows;
        if (!what) continue;
        CAPTURE(kind, s.temperature, s.top_k, s.top_p, s.min_p, int(order));
        FAIL("differs in " << what);
      }
  }
  CHECK(rows == 5 * 7 * 4);
}

TEST_CASE("an order has a name, and a number that is none is refused") {
  CHECK(std::string(name(filter_order())) == "hugging-face");
  CHECK(std::string(name(filter_order::joint)) == "joint");
  const std::vector<float> l = {1, 2, 3};
  const sampling s{.top_k = 2, .order = filter_order(4)};
  CHECK_FALSE(s.valid());
  CHECK(specagg::normalise(processed_row<float>(l, s)).why() == status::invalid_parameter);
}

TEST_CASE("verification of rows filtered in any order is exact") {
  using policies = compiled_once<any_of<lossless, maximum<>, minimum<>>>;
  constexpr std::size_t V = 4, gamma = 2;
  using ids = std::vector<token_id>;
  using vector = std::vector<double>;
  // the logits after a prefix
  std::array<std::map<ids, vector>, 2> all;
  numbers random(4);
  const auto logits = [&](std::size_t model, const ids& prefix) -> const vector& {
    vector& l = all[model][prefix];
    while (l.size() < V) l.push_back(std::round(8 * random.bell()) / 4);  // some ties
    return l;
  };
  const auto sorted_row = [&](std::size_t model, const ids& prefix, const sampling& s) {
    candidates c(logits(model, prefix));
    c.apply(s, 1, 1);
    vector row(V);
    for (const candidate& x : c.sorted) row[std::size_t(x.id)] = double(x.probability);
    return row;
  };
  const auto token = [](auto&&... a) { return verify_token(a...); };
  const auto block = [](auto&&... a) { return verify_block(a...); };
  const auto match = [](auto&&... a) { return verify_match(a...); };
  const auto worst = [&](const auto& policy, const auto& verify, const sampling& draft,
                         const sampling& target) {
    const auto q = [&](const ids& x) { return processed_row<double>(logits(0, x), draft); };
    const auto p = [&](const ids& x) { return processed_row<double>(logits(1, x), target); };
    return worst_error_of_round(policy, gamma, q, p, verify, [&](const ids& x) {
      return target_law(policy, sorted_row(0, x, draft), sorted_row(1, x, target));
    });
  };
  for (const filter_order order : orders)
    for (const sampling& filters : {sampling{.top_k = 3, .top_p = 0.83, .min_p = 0.07},
                                    {.temperature = 0.6, .top_p = 0.87, .min_p = 0.2},
                                    {.temperature = 2, .top_k = 3, .top_p = 0.71}})
      for (const bool draft_is_filtered : {true, false}) {
        sampling target = filters;
        target.order = order;
        const sampling draft =
            draft_is_filtered ? target : sampling{.temperature = filters.temperature};
        CAPTURE(int(order), target.temperature, draft_is_filtered);
        for (const policies& policy :
             {policies(lossless{}), policies(maximum<>{}), policies(minimum<>{})}) {
          CHECK(worst(policy, token, draft, target).error < 1e-12);
          CHECK(worst(policy, block, draft, target).error < 1e-12);
        }
        CHECK(worst(lossless{}, match, draft, target).error < 1e-12);
      }
}
