// SPDX-License-Identifier: Apache-2.0
#include <specagg/decode/collaborative.hpp>
#include <specagg/decode/collaborative_workspace.hpp>

#include <cstdio>
#include <functional>
#include <map>

#include <specagg/audit/goodness_of_fit.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;

namespace {

// Combiners, each as a policy and in plain words.
template <std::size_t N>
struct average {
  std::array<double, N> weight;
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    return [w = weight](auto at) {
      return fold_models<N>(at, [&](std::size_t k, auto x, auto sum) { return fma(w[k], x, sum); });
    };
  }
  double plain(const std::array<double, N>& x) const {
    double sum = 0;
    for (std::size_t k = 0; k < N; ++k) sum += weight[k] * x[k];
    return sum;
  }
};
template <std::size_t N>
struct product {
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows& rows) const {
    const auto all = [](auto at) {
      return fold_models<N>(
          at, [](std::size_t k, auto x, auto so_far) { return k + 1 == N ? x : x * so_far; });
    };
    const double scale = 1 / rows.sum(all);
    return [=](auto at) { return all(at) * scale; };
  }
  double plain(const std::array<double, N>& x) const {
    double all = 1;
    for (const double one : x) all *= one;
    return all;
  }
};
template <std::size_t N>
struct smallest {
  static constexpr std::size_t models = N;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows& rows) const {
    const auto least = [](auto at) {
      return fold_models<N>(
          at, [](std::size_t k, auto x, auto so_far) { return k + 1 == N ? x : min(x, so_far); });
    };
    const double scale = 1 / rows.sum(least);
    return [=](auto at) { return least(at) * scale; };
  }
  double plain(const std::array<double, N>& x) const { return std::ranges::min(x); }
};
// softmax(l_1 - l_0 / 2): the order of the models matters.
struct against_the_first {
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows& rows) const {
    const auto w = [](auto at) { return at.p / sqrt(at.q); };
    const double scale = 1 / rows.sum(w);
    return [=](auto at) { return w(at) * scale; };
  }
  double plain(const std::array<double, 2>& x) const { return x[1] / std::sqrt(x[0]); }
};

// A combiner and its formula in plain doubles: of one type for all, so that decoders are compiled
// once.
template <std::size_t N, class... Policies>
struct with_formula : compiled_once<any_of<Policies...>> {
  std::function<double(const std::array<double, N>&)> formula;
  with_formula(auto policy, auto f) : compiled_once<any_of<Policies...>>(policy), formula(f) {}
  explicit with_formula(auto own)
      : with_formula(own, [own](const std::array<double, N>& x) { return own.plain(x); }) {}
  double plain(const std::array<std::vector<double>, N>& p, std::size_t v) const {
    std::array<double, N> x;
    for (std::size_t k = 0; k < N; ++k) x[k] = p[k][v];
    return formula(x);
  }
};
using pair_combiner =
    with_formula<2, average<2>, product<2>, smallest<2>, against_the_first, ensemble, contrastive,
                 geometric, power, minimum<>, maximum<>, arithmetic<2>>;
using triple_combiner =
    with_formula<3, average<3>, product<3>, smallest<3>, mixture<3>, arithmetic<>, log_linear<3>,
                 power_mean<3>, minimum<3>, maximum<3>>;
using two = std::array<double, 2>;
using three = std::array<double, 3>;
pair_combiner average_of(const two& weight) { return pair_combiner(average<2>{weight}); }
triple_combiner average_of(const three& weight) { return triple_combiner(average<3>{weight}); }
const pair_combiner product_of_two(product<2>{});
const triple_combiner product_of_three(product<3>{});
using library_policies = compiled_once<any_of<lossless, ensemble, opt, token_v3, lossy>>;

// All models, of which a test may make one faulty.
using toy_model = faulty<T>;
template <std::size_t N>
using sources = std::array<toy_model, N>;
template <std::size_t N>
sources<N> make_sources(std::size_t order = 2) {
  return [&]<std::size_t... K>(std::index_sequence<K...>) {
    return sources<N>{toy_model(vocabulary, K + 1, order)...};
  }(std::make_index_sequence<N>());
}
template <class Models>
auto tie_all(Models& models) {
  return std::apply([](auto&... m) { return std::tie(m...); }, models);
}

struct setting {
  std::size_t length;
  sampling sample = {};
  token_id end_of_text = no_token;
  penalty_options penalty = {};
};

template <std::size_t N, class Combine>
std::vector<double> combined(const Combine& c, const sources<N>& models,
                             const std::vector<token_id>& context, const setting& s = {0}) {
  std::array<std::vector<double>, N> p;
  for (std::size_t k = 0; k < N; ++k) p[k] = probabilities(models[k], context, s.sample, s.penalty);
  std::vector<double> r(vocabulary);
  double total = 0;
  for (std::size_t v = 0; v < vocabulary; ++v) total += r[v] = c.plain(p, v);
  for (double& x : r) x /= total;
  return r;
}

// The exact joint law of the decoded texts, against the product of the promised laws.
template <std::size_t N, class Policy>
double worst_error(const Policy& policy, const std::array<std::size_t, N>& gamma,
                   const setting& s) {
  std::size_t wrong = 0, reused = 0;
  const auto law = exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        auto models = make_sources<N>();
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        collaborative_workspace<T, N> work(vocabulary, {gamma, s.sample, s.end_of_text});
        penalty_memory memory;
        witness processor{memory.with(s.penalty), {}};
        (void)processor.push(0);
        wrong +=
            collaborative_decode(
                tie_all(models), policy, chooser,
                {.text = t, .most = s.length, .work = work, .processor = processor}) != status::ok;
        for (const auto& m : models) wrong += m.misuses + (m.position() > t.size);
        wrong += !std::ranges::equal(processor.pushed, std::span(buffer).first(t.size));
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(wrong == 0);
  CHECK(reused == 0);  // no number decides twice
  const auto models = make_sources<N>();
  return worst_joint_error(law, s.length, s.end_of_text, [&](const auto& context) {
    return combined<N>(policy, models, context, s);
  });
}

template <std::size_t N>
std::string name(const std::array<std::size_t, N>& gamma) {
  std::string s;
  for (const std::size_t g : gamma) s += (s.empty() ? "(" : ",") + std::to_string(g);
  return s + ")";
}
const std::array<std::array<std::size_t, 2>, 5> pairs{{{1, 1}, {5, 1}, {2, 3}, {3, 2}, {2, 0}}};
const std::array<std::array<std::size_t, 3>, 5> triples{
    {{1, 1, 1}, {3, 2, 1}, {1, 2, 3}, {2, 0, 1}, {2, 0, 0}}};
template <class F>
void for_each_pair_combiner(F f) {
  f("average", average_of(two{0.3, 0.7}));
  f("product", product_of_two);
  f("smallest", pair_combiner(smallest<2>{}));
  f("against the first", pair_combiner(against_the_first{}));
}
template <class F>
void for_each_triple_combiner(F f) {
  f("average", average_of(three{0.2, 0.5, 0.3}));
  f("product", product_of_three);
  f("smallest", triple_combiner(smallest<3>{}));
}

}  // namespace

TEST_CASE(
    "two models that take turns emit exactly the combined law, for every combiner and any gammas") {
  for_each_pair_combiner([](const char* combiner, const auto& policy) {
    for (const auto& gamma : pairs) {
      const double worst = worst_error<2>(policy, gamma, {4});
      std::printf("n = 2  %-18s gammas %-8s 81 texts of 4 tokens, worst error %.2e\n", combiner,
                  name(gamma).c_str(), worst);
      CHECK(worst < 1e-12);
    }
  });
}
TEST_CASE(
    "three models that take turns emit exactly the combined law, for every combiner and any "
    "gammas") {
  for_each_triple_combiner([](const char* combiner, const auto& policy) {
    for (const auto& gamma : triples) {
      const double worst = worst_error<3>(policy, gamma, {4});
      std::printf("n = 3  %-18s gammas %-8s 81 texts of 4 tokens, worst error %.2e\n", combiner,
                  name(gamma).c_str(), worst);
      CHECK(worst < 1e-12);
    }
  });
}
TEST_CASE("penalties, filters and an end of text keep the law of models that take turns exact") {
  const penalty_options penalty{.repetition = 1.7, .presence = 0.3, .frequency = 0.4};
  const setting settings[] = {{4, {}, no_token, penalty},
                              {4, {}, 1},
                              {4, {0.6, 2}},
                              {4, {2, 0, 0.8}, 2, penalty},
                              {4, {0}}};
  for (const setting& s : settings) {
    for (const auto& gamma : pairs)
      CHECK(worst_error<2>(average_of(two{0.3, 0.7}), gamma, s) < 1e-12);
    for (const auto& gamma : triples)
      CHECK(worst_error<3>(average_of(three{0.2, 0.5, 0.3}), gamma, s) < 1e-12);
  }
  CHECK(worst_error<2>(product_of_two, {3, 2}, {4, {}, 0, penalty}) < 1e-12);
  CHECK(worst_error<3>(product_of_three, {3, 2, 1}, {4, {}, 0, penalty}) < 1e-12);
}
TEST_CASE(
    "policies of the library, deferral rules with rows at temperature 1 among them, combine two "
    "alternating models") {
  const auto check = [](const library_policies& policy, const sampling& s) {
    std::size_t reused = 0;
    const auto law = exact_law(
        [&](exhaustive_chooser& tree) {
          either chooser(tree);
          auto models = make_sources<2>();
          std::vector<token_id> buffer(16);
          text t{buffer, 1};
          collaborative_workspace<T, 2> work(vocabulary, {{2, 2}, s});
          penalty_memory memory;
          witness processor{memory.with({}), {}};
          REQUIRE(collaborative_decode(
                      tie_all(models), policy, chooser,
                      {.text = t, .most = 4, .work = work, .processor = processor}) == status::ok);
          return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + 5);
        },
        &reused);
    CHECK(reused == 0);
    const auto models = make_sources<2>();
    CHECK(worst_joint_error(law, 4, no_token, [&](const auto& context) {
            std::vector<T> q(vocabulary), p(vocabulary);
            models[0].row(context, q);
            models[1].row(context, p);
            return target_law(policy, processed_row<T>(q, s), processed_row<T>(p, s));
          }) < 1e-12);
  };
  for (const sampling& s : {sampling{}, sampling{0.5}}) {
    check(lossless{}, s);
    check(ensemble{0.3}, s);
    check(opt{0.05}, s);
    check(token_v3{0.3}, s);
    check(lossy{0.2}, s);
  }
}

namespace {

template <class F>
void for_each_pair_combiner_of_the_library(F f) {
  const auto check = [&](const char* name, auto policy, auto due) {
    f(name, pair_combiner(policy, due));
  };
  check("ensemble", ensemble{0.3}, [](two x) { return 0.3 * x[0] + 0.7 * x[1]; });
  check("contrastive", contrastive{0.3}, [](two x) { return x[1] * std::pow(x[0], -0.3); });
  check("contrastive, plus", contrastive{0.3, 0, true},
        [](two x) { return std::pow(x[1], 1.3) * std::pow(x[0], -0.3); });
  check("geometric", geometric{0.3},
        [](two x) { return std::pow(x[0], 0.3) * std::pow(x[1], 0.7); });
  check("realign", geometric{1.5},
        [](two x) { return std::pow(x[0], 1.5) * std::pow(x[1], -0.5); });
  check("power 2", power{0.3, 2},
        [](two x) { return std::sqrt(0.3 * x[0] * x[0] + 0.7 * x[1] * x[1]); });
  check("power -1", power{0.3, -1}, [](two x) { return 1 / (0.3 / x[0] + 0.7 / x[1]); });
  check("power 0", power{0.3, 0}, [](two x) { return std::pow(x[0], 0.3) * std::pow(x[1], 0.7); });
  check("min", minimum<>{}, [](two x) { return std::min(x[0], x[1]); });
  check("max", maximum<>{}, [](two x) { return std::max(x[0], x[1]); });
  check("arithmetic", arithmetic<2>{0.5},
        [](two x) { return std::pow(x[1], 1.5) * std::pow(x[0], -0.5); });
}
template <class F>
void for_each_triple_combiner_of_the_library(F f) {
  const auto check = [&](const char* name, auto policy, auto due) {
    f(name, triple_combiner(policy, due));
  };
  check("mixture", mixture<3>{{0.2, 0.5, 0.3}},
        [](three x) { return 0.2 * x[0] + 0.5 * x[1] + 0.3 * x[2]; });
  check("arithmetic", arithmetic<>{0.5}, [](three x) { return x[0] * std::sqrt(x[1] / x[2]); });
  check("log-linear", log_linear<3>{{0.2, 0.5, 0.3}},
        [](three x) { return std::pow(x[0], 0.2) * std::pow(x[1], 0.5) * std::pow(x[2], 0.3); });
  check("power 2", power_mean<3>{{0.2, 0.5, 0.3}, 2}, [](three x) {
    return std::sqrt(0.2 * x[0] * x[0] + 0.5 * x[1] * x[1] + 0.3 * x[2] * x[2]);
  });
  check("power -1", power_mean<3>{{0.2, 0.5, 0.3}, -1},
        [](three x) { return 1 / (0.2 / x[0] + 0.5 / x[1] + 0.3 / x[2]); });
  check("min", minimum<3>{}, [](three x) { return std::min({x[0], x[1], x[2]}); });
  check("max", maximum<3>{}, [](three x) { return std::max({x[0], x[1], x[2]}); });
}

}  // namespace

TEST_CASE(
    "every combiner of the library has its exact joint law: two models, gammas (1,1) and (5,1)") {
  for_each_pair_combiner_of_the_library([](const char* name, const auto& policy) {
    const double a = worst_error<2>(policy, {1, 1}, {4}), b = worst_error<2>(policy, {5, 1}, {3});
    std::printf("n = 2  %-18s gammas (1,1) and (5,1): worst error %.2e, %.2e\n", name, a, b);
    CHECK(a < 1e-12);
    CHECK(b < 1e-12);
  });
}
TEST_CASE(
    "every combiner of the library has its exact joint law: three models, gammas (1,1,1) and "
    "(3,2,1)") {
  for_each_triple_combiner_of_the_library([](const char* name, const auto& policy) {
    const double a = worst_error<3>(policy, {1, 1, 1}, {4}),
                 b = worst_error<3>(policy, {3, 2, 1}, {3});
    std::printf("n = 3  %-18s gammas (1,1,1) and (3,2,1): worst error %.2e, %.2e\n", name, a, b);
    CHECK(a < 1e-12);
    CHECK(b < 1e-12);
  });
}
TEST_CASE("a plausibility mask keeps the law of turns exact") {
  const pair_combiner masked(contrastive{0.5, 0.5}, [](two) { return 0.0; });
  const auto law = exact_law([&](exhaustive_chooser& tree) {
    either chooser(tree);
    auto models = make_sources<2>();
    std::vector<token_id> buffer(16);
    text t{buffer, 1};
    collaborative_workspace<T, 2> work(vocabulary, {{2, 2}});
    penalty_memory memory;
    witness processor{memory.with({}), {}};
    REQUIRE(collaborative_decode(tie_all(models), masked, chooser,
                                 {.text = t, .most = 4, .work = work, .processor = processor}) ==
            status::ok);
    return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + 5);
  });
  const auto models = make_sources<2>();
  std::size_t masks = 0;
  CHECK(worst_joint_error(law, 4, no_token, [&](const auto& context) {
          const auto q = probabilities(models[0], context), p = probabilities(models[1], context);
          const double floor = 0.5 * std::ranges::max(p);
          std::vector<double> r(vocabulary);
          double total = 0;
          for (std::size_t v = 0; v < vocabulary; ++v)
            total += r[v] = p[v] < floor ? ++masks, 0 : p[v] / std::sqrt(q[v]);
          for (double& x : r) x /= total;
          return r;
        }) < 1e-12);
  CHECK(masks > 0);
}
namespace {
template <std::size_t N, class Policy>
void check_raw_logits(const Policy& policy, const std::array<std::size_t, N>& gamma,
                      const sampling& s) {
  std::size_t reused = 0;
  const auto law = exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        auto models = make_sources<N>();
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        collaborative_workspace<T, N> work(vocabulary, {gamma, s});
        penalty_memory memory;
        witness processor{memory.with({}), {}};
        REQUIRE(collaborative_decode(
                    tie_all(models), raw_logits{policy}, chooser,
                    {.text = t, .most = 4, .work = work, .processor = processor}) == status::ok);
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + 5);
      },
      &reused);
  CHECK(reused == 0);
  const auto models = make_sources<N>();
  double from_processed = 0;
  const double worst = worst_joint_error(law, 4, no_token, [&](const auto& context) {
    auto raw = combined<N>(policy, models, context);  // at temperature 1
    for (double& x : raw) x = std::log(x);
    const processed_row<T> as_logits(raw, s);
    const auto row = normalise(as_logits);
    REQUIRE(row.why() == status::ok);
    std::vector<double> r(vocabulary);
    for (std::size_t v = 0; v < vocabulary; ++v) r[v] = row[v];
    const auto other = combined<N>(policy, models, context, {.length = 0, .sample = s});
    // NaN: processed rows without a common token have no law
    for (std::size_t v = 0; v < vocabulary; ++v)
      from_processed =
          std::isnan(other[v]) ? 1 : std::max(from_processed, std::fabs(r[v] - other[v]));
    return r;
  });
  std::printf(
      "raw logits, n = %zu: worst error %.2e; laws of processed rows differ by up to %.3f\n", N,
      worst, from_processed);
  CHECK(worst < 1e-12);
  CHECK(from_processed > 0.01);
}
}  // namespace

TEST_CASE(
    "raw logits: models that take turns emit the combination, with temperature and filters after "
    "it was "
    "made") {
  const pair_combiner mix(ensemble{0.3}, [](two x) { return 0.3 * x[0] + 0.7 * x[1]; });
  const pair_combiner product(geometric{0.3},
                              [](two x) { return std::pow(x[0], 0.3) * std::pow(x[1], 0.7); });
  const triple_combiner proxy(arithmetic<>{0.5},
                              [](three x) { return x[0] * std::sqrt(x[1] / x[2]); });
  check_raw_logits(mix, std::array<std::size_t, 2>{2, 2}, {0.5});
  check_raw_logits(mix, std::array<std::size_t, 2>{3, 1}, {1, 2});
  check_raw_logits(product, std::array<std::size_t, 2>{2, 1}, {2, 0, 0.7});
  check_raw_logits(proxy, std::array<std::size_t, 3>{2, 1, 1}, {0.5, 2});
  const pair_combiner contrasted(contrastive{0.3},
                                 [](two x) { return x[1] * std::pow(x[0], -0.3); });
  const triple_combiner realigned(log_linear<3>{{1.5, -1, 0.5}}, [](three x) {
    return std::pow(x[0], 1.5) / x[1] * std::sqrt(x[2]);
  });
  for (const sampling& s : {sampling{0}, sampling{1, 1}, sampling{0.7, 2}}) {
    check_raw_logits(product, std::array<std::size_t, 2>{2, 2}, s);
    check_raw_logits(contrasted, std::array<std::size_t, 2>{2, 2}, s);
    check_raw_logits(proxy, std::array<std::size_t, 3>{2, 1, 1}, s);
    check_raw_logits(realigned, std::array<std::size_t, 3>{1, 2, 1}, s);
  }
}

// ---- randomness ---------------------------------------------------------------------------------

namespace {

constexpr double false_alarm = 1e-6 / 16;  // of each planned test

template <std::size_t N, class Policy>
fit joint_fit(
    const Policy& policy, const std::array<std::size_t, N>& gamma, std::size_t n,
    moment (*spoil)(moment) = [](moment m) { return m; }) {
  constexpr std::size_t length = 5;
  std::map<std::vector<token_id>, double> seen;
  auto models = make_sources<N>();
  collaborative_workspace<T, N> work(vocabulary, {gamma});
  std::vector<token_id> buffer(16);
  for (std::size_t request = 0; request < n; ++request) {
    for (auto& m : models) (void)m.rollback(0);
    buffer[0] = 0;
    text t{buffer, 1};
    either chooser = random_streams(31, request);
    chooser.spoil = spoil;
    penalty_memory memory;
    witness processor{memory.with({}), {}};
    if (collaborative_decode(tie_all(models), policy, chooser,
                             {.text = t, .most = length, .work = work, .processor = processor}) !=
        status::ok)
      return {.passed = false};
    seen[{buffer.begin() + 1, buffer.begin() + 1 + length}] += 1;
  }
  std::vector<double> counts, law;
  for (std::size_t i = 0; i < 243; ++i) {
    double p = 1;
    std::vector<token_id> context{0};
    for (std::size_t j = 0, rest = i; j < length; ++j, rest /= vocabulary) {
      p *= combined<N>(policy, models, context)[rest % vocabulary];
      context.push_back(token_id(rest % vocabulary));
    }
    law.push_back(p);
    counts.push_back(seen[{context.begin() + 1, context.end()}]);
  }
  return goodness_of_fit(counts, law, false_alarm);
}
void report(const char* what, const fit& f) {
  std::printf("%-44s distance %.4f, expected %.4f, p %.3g, finds TV >= %.4f\n", what, f.distance,
              f.expected_distance, f.p_value, f.detectable);
}

}  // namespace

TEST_CASE("many turns through the production streams emit the joint law of the combination") {
  const fit pair = joint_fit<2>(average_of(two{0.4, 0.6}), {3, 2}, 50000);
  const fit triple = joint_fit<3>(product_of_three, {3, 2, 1}, 50000);
  report("two models, gammas (3,2), average", pair);
  report("three models, gammas (3,2,1), product", triple);
  CHECK(pair.passed);
  CHECK(triple.passed);
  CHECK(pair.detectable < 0.05);  // what a pass is worth
  CHECK(triple.detectable < 0.05);
}
TEST_CASE("mutant: a replacement drawn with the draft's noise fails the planned fit") {
  const auto to_draft = [](moment m) {
    return m.use == stream::residual ? moment{stream::draft, m.position, m.start} : m;
  };
  const fit f = joint_fit<2>(average_of(two{0.4, 0.6}), {3, 2}, 50000, to_draft);
  report("replacement reuses the draft's noise", f);
  CHECK_FALSE(f.passed);
}
TEST_CASE("mutant: without `start`, drafts of different chains share numbers, which is counted") {
  std::size_t reused = 0;
  (void)exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        chooser.spoil = [](moment m) { return moment{m.use, m.position, 0}; };
        auto models = make_sources<2>();
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        collaborative_workspace<T, 2> work(vocabulary, {{2, 2}});
        penalty_memory memory;
        witness processor{memory.with({}), {}};
        (void)collaborative_decode(tie_all(models), average_of(two{0.5, 0.5}), chooser,
                                   {.text = t, .most = 3, .work = work, .processor = processor});
        return buffer;
      },
      &reused);
  CHECK(reused > 0);
}

// ---- the paper's algorithms, written out --------------------------------------------------------

namespace {

struct printed_error {
  // Algorithm 1: T <- the resampled token; what T had accepted is gone
  bool drops_prefix = false;
  // Algorithm 2: after a rejection the model that scored last drafts on
  bool wrong_drafter = false;
  // Algorithm 2: VERIFY(r, t) does not know which model drew t; here: takes it for M_1's
  bool forgets_drafter = false;
};

std::vector<double> residual_of(const std::vector<double>& r, const std::vector<double>& d) {
  std::vector<double> left(vocabulary);
  double total = 0;
  for (std::size_t v = 0; v < vocabulary; ++v) total += left[v] = std::max(0.0, r[v] - d[v]);
  for (double& x : left) x /= total;
  return left;
}

// CoS without caches: rows are recomputed, nothing is rolled back, a bonus is drawn before anything
// is verified.
template <std::size_t N, class Combine, class C>
std::vector<token_id> cos_as_printed(const sources<N>& models, const Combine& combine,
                                     const std::array<std::size_t, N>& gamma, std::size_t length,
                                     C& chooser, const printed_error& error,
                                     std::array<double, N>* calls = nullptr) {
  std::vector<token_id> s{0}, cached;
  std::vector<std::size_t> drafter;
  std::array<std::size_t, N> scored{};
  std::uint32_t decisions = 0;
  std::vector<double> scratch(verify_scratch(vocabulary));
  const auto sample = [&](const std::vector<double>& w) {
    const auto row = normalise(as_row(w));
    if (row.why() != status::ok) FAIL("weights to draw from");
    return draw(row, {stream::draft, decisions++, 0}, chooser, scratch);
  };
  const auto propose = [&](std::size_t k, std::size_t n) {
    for (std::size_t j = 0; j < n; ++j) {
      auto context = s;
      context.insert(context.end(), cached.begin(), cached.end());
      cached.push_back(sample(probabilities(models[k], context)));
      drafter.push_back(k);
      scored[k] = cached.size();
      if (calls) (*calls)[k] += 1;
    }
  };
  while (s.size() <= length) {
    if (cached.empty()) {
      drafter.clear();
      scored = {};
      propose(0, gamma[0]);
      continue;
    }
    const auto i = std::size_t(std::ranges::min_element(scored) - scored.begin());
    const std::size_t before = s.size();
    propose(i, 1);  // scores what it has not seen, and the bonus: one call
    bool rejected = false;
    while (!rejected && !cached.empty() && *std::ranges::min_element(scored) > 0) {
      const auto y = std::size_t(cached[0]);
      const auto r = combined<N>(combine, models, s);
      const auto d = probabilities(models[error.forgets_drafter ? 0 : drafter[0]], s);
      if (chooser.coin({stream::coin, decisions++, 0}, r[y], d[y])) {
        s.push_back(token_id(y));
        cached.erase(cached.begin());
        drafter.erase(drafter.begin());
        for (std::size_t& n : scored) --n;
      } else {
        const token_id z = sample(residual_of(r, d));
        if (error.drops_prefix) s.resize(before);
        s.push_back(z);
        cached.clear();
        drafter.clear();
        scored = {};
        rejected = true;
      }
    }
    if (!rejected || error.wrong_drafter) propose(i, gamma[i] - 1);
  }
  return {s.begin() + 1, s.begin() + 1 + std::ptrdiff_t(length)};
}

template <std::size_t N, class Combine>
double worst_of_printed(const Combine& combine, const std::array<std::size_t, N>& gamma,
                        const printed_error& error) {
  const auto models = make_sources<N>();
  const std::size_t length = 3;
  const auto law = exact_law([&](exhaustive_chooser& tree) {
    either chooser(tree);
    return cos_as_printed(models, combine, gamma, length, chooser, error);
  });
  return worst_joint_error(law, length, no_token, [&](const auto& context) {
    return combined<N>(combine, models, context);
  });
}

}  // namespace

TEST_CASE("the corrected algorithms, written out without caches, pass the audit") {
  CHECK(worst_of_printed<2>(average_of(two{0.3, 0.7}), {2, 2}, {}) < 1e-12);
  CHECK(worst_of_printed<3>(average_of(three{0.2, 0.5, 0.3}), {1, 1, 1}, {}) < 1e-12);
}
TEST_CASE("mutant: a rejection that drops the accepted prefix (CoS, Algorithm 1) is found") {
  const double worst =
      worst_of_printed<2>(average_of(two{0.3, 0.7}), {2, 2}, {.drops_prefix = true});
  std::printf("drops the accepted prefix: worst error %.3f\n", worst);
  CHECK(worst > 0.005);
}
TEST_CASE("mutant: a head verified against the row of another model (CoS, Algorithm 2) is found") {
  const double of_two =
      worst_of_printed<2>(average_of(two{0.3, 0.7}), {2, 2}, {.forgets_drafter = true});
  const double of_three =
      worst_of_printed<3>(average_of(three{0.2, 0.5, 0.3}), {1, 1, 1}, {.forgets_drafter = true});
  const double both = worst_of_printed<2>(average_of(two{0.3, 0.7}), {2, 2},
                                          {.wrong_drafter = true, .forgets_drafter = true});
  std::printf(
      "forgets who drew the head: worst error %.3f (n = 2), %.3f (n = 3), %.3f (and lets the wrong "
      "model draft)\n",
      of_two, of_three, both);
  CHECK(of_two > 0.005);
  CHECK(of_three > 0.005);
  CHECK(both > 0.005);
}
TEST_CASE(
    "drafting with the last scorer after a rejection (CoS, Algorithm 2) keeps the law, but not who "
    "does the work") {
  CHECK(worst_of_printed<2>(average_of(two{0.3, 0.7}), {2, 2}, {.wrong_drafter = true}) < 1e-12);
  const auto models = make_sources<2>();
  std::array<double, 2> due{}, printed{};
  for (std::size_t request = 0; request < 50; ++request) {
    either a = random_streams(1, request), b = random_streams(1, request);
    cos_as_printed<2>(models, average_of(two{0.3, 0.7}), {5, 2}, 50, a, {}, &due);
    cos_as_printed<2>(models, average_of(two{0.3, 0.7}), {5, 2}, 50, b, {.wrong_drafter = true},
                      &printed);
  }
  std::printf("calls for 2500 tokens, gammas (5,2): %.0f and %.0f; as printed %.0f and %.0f\n",
              due[0], due[1], printed[0], printed[1]);
  CHECK(printed[1] > 1.1 * due[1]);
}

// ---- who is called how often --------------------------------------------------------------------

namespace {

double total_variation(const std::vector<double>& a, const std::vector<double>& b) {
  double tv = 0;
  for (std::size_t v = 0; v < a.size(); ++v) tv += std::max(0.0, a[v] - b[v]);
  return tv;
}
std::vector<double> context_free(const toy_source<T>& m) {
  std::vector<T> l(m.vocab_size());
  m.row({}, l);
  const auto row = normalise(processed_row<T>(l));
  REQUIRE(row.why() == status::ok);
  std::vector<double> p;
  for (std::size_t v = 0; v < l.size(); ++v) p.push_back(row[v]);
  return p;
}

// Of a pair of models with this TV, found by bisection.
double spread_of(std::size_t v, double due) {
  double low = 0, high = 20;
  for (int i = 0; i < 60; ++i) {
    const double spread = (low + high) / 2;
    const double tv =
        total_variation(context_free({v, 1, 0, spread}), context_free({v, 2, 0, spread}));
    (tv < due ? low : high) = spread;
  }
  return low;
}
// A round is a draft and its verification. It is in one of three states: 0 (D) after a rejection,
// 1 (P) when p drafts after its own bonus, 2 (Q) when q does. `next`: where it leads if the
// whole draft is accepted; otherwise to D.
struct rounds {
  std::array<double, 3> pi, a, g;  // how often, acceptance, drafted
  static constexpr std::size_t next[] = {1, 2, 1};
  double tokens() const {  // a round
    double all = 0;
    for (std::size_t i = 0; i < 3; ++i) all += pi[i] * (1 - std::pow(a[i], g[i])) / (1 - a[i]);
    return all;
  }
  double calls_per_token(const std::array<double, 3>& calls) const {
    double due = 0;
    for (std::size_t i = 0; i < 3; ++i) due += pi[i] * calls[i] / tokens();
    return due;
  }
  double tolerance(const std::array<double, 3>& calls, std::size_t most) const {
    const double due = calls_per_token(calls);
    // Planned tolerance: 6 standard deviations. Z = calls - due * tokens of a cycle from D to D
    // has mean 0; its first two moments from each state follow from those of the next state.
    std::array<double, 3> first{}, second{};
    for (int repeat = 0; repeat < 500; ++repeat)
      for (std::size_t i = 0; i < 3; ++i) {
        double m = 0, s = 0;
        for (int n = 1; n <= int(g[i]); ++n) {  // n tokens, the last of them a replacement
          const double p = std::pow(a[i], n - 1) * (1 - a[i]), z = calls[i] - due * n;
          m += p * z;
          s += p * z * z;
        }
        const double p = std::pow(a[i], g[i]), z = calls[i] - due * g[i];
        m += p * (z + first[next[i]]);
        s += p * (z * z + 2 * z * first[next[i]] + second[next[i]]);
        first[i] = m;
        second[i] = s;
      }
    CHECK(std::fabs(first[0]) < 1e-12);
    return 6 * std::sqrt(second[0] * pi[0] / tokens() / double(most));
  }
};

}  // namespace
TEST_CASE("calls per model on context-free models are the visit rates of the renewal formula") {
  constexpr std::size_t v = 8, most = 200000;
  const double spread = spread_of(v, 0.4);  // hence a_q = a_p = 0.8 at lambda = 1/2
  struct example {
    double lambda;
    std::array<std::size_t, 2> gamma;
    double c, check;
  };
  for (const example& x : {example{0.5, {1, 1}, 0.1, 1.774},
                           {0.5, {1, 1}, 1, 1.667},
                           {0.5, {5, 1}, 0.1, 2.694},
                           {0.3, {3, 2}, 0.2, 0},
                           {0.7, {5, 3}, 0.5, 0}}) {
    toy_model mq(v, 1, 0, spread, 2 * most), mp(v, 2, 0, spread, 2 * most);
    const double tv = total_variation(context_free(mq), context_free(mp));
    const double aq = 1 - (1 - x.lambda) * tv, ap = 1 - x.lambda * tv;
    const double gq = double(x.gamma[0]), gp = double(x.gamma[1]), A = std::pow(aq, gq),
                 B = std::pow(ap, gp);
    const rounds r{
        {(1 - A * B) / (1 + A), A / (1 + A), A * B / (1 + A)}, {aq, ap, aq}, {gq, gp, gq}};

    std::vector<token_id> buffer(most + 1);
    text t{buffer, 1};
    collaborative_workspace<T, 2> work(v, {x.gamma});
    either chooser = random_streams(5, x.gamma[0] + std::uint64_t(10 * x.c));
    penalty_memory memory(most + 1, v);
    witness processor{memory.with({}), {}};
    REQUIRE(collaborative_decode(std::tie(mq, mp), average_of(two{x.lambda, 1 - x.lambda}), chooser,
                                 {.text = t, .most = most, .work = work, .processor = processor}) ==
            status::ok);

    const auto check = [&](const char* model, std::size_t seen,
                           const std::array<double, 3>& calls) {
      const double due = r.calls_per_token(calls), tolerance = r.tolerance(calls, most);
      std::printf("a_q %.2f a_p %.2f gammas %s: calls of %s per token %.4f, due %.4f +- %.4f\n", aq,
                  ap, name(x.gamma).c_str(), model, double(seen) / most, due, tolerance);
      CHECK(std::fabs(double(seen) / most - due) < tolerance);
      CHECK(tolerance < 0.03);  // what a pass is worth
      return due;
    };
    // D: gq calls of q draft, one of p scores. P: its first draft came with its scores, so gp - 1
    // calls; q scores.
    const double due_q = check("q", mq.calls, {gq, 1, gq - 1}),
                 due_p = check("p", mp.calls, {1, gp - 1, 1});
    const double speedup = (1 + x.c) / (x.c * due_q + due_p);
    std::printf("  speed-up at c = %.1f: %.4f, due %.4f\n", x.c,
                (1 + x.c) * most / (x.c * double(mq.calls) + double(mp.calls)), speedup);
    if (x.check > 0) CHECK(speedup == Approx(x.check).margin(0.0005));
  }
}
TEST_CASE("equal models: every call of either gives a token, and all drafts are kept") {
  toy_model a(vocabulary, 7), b(vocabulary, 7);
  std::vector<token_id> buffer(201);
  text t{buffer, 1};
  collaborative_workspace<T, 2> work(vocabulary, {{1, 1}});
  either chooser = random_streams(1);
  std::size_t rejected = 0;
  penalty_memory memory;
  witness processor{memory.with({}), {}};
  REQUIRE(collaborative_decode(std::tie(a, b), average_of(two{0.5, 0.5}), chooser,
                               {.text = t,
                                .most = 200,
                                .work = work,
                                .processor = processor,
                                .after_round = [&](const auto& r, const auto&) {
                                  rejected += r.emitted - r.accepted;
                                }}) == status::ok);
  CHECK(rejected == 0);
  CHECK(a.calls + b.calls == 201);  // every call a draft, and one more that verifies the last
  CHECK(t.size == 201);
}
TEST_CASE(
    "where pi = p the bonus of p is final: as many calls of p as in speculative decoding, and no "
    "more of q") {
  for (std::size_t gamma = 1; gamma <= 4; ++gamma) {
    toy_model a(vocabulary, 1), b(vocabulary, 2);
    std::vector<token_id> buffer(501);
    text t{buffer, 1};
    collaborative_workspace<T, 2> work(vocabulary, {{gamma, 3}});
    either chooser = random_streams(1);
    std::size_t rounds = 0, bonus = 0;
    penalty_memory memory(501);
    witness processor{memory.with({}), {}};
    REQUIRE(collaborative_decode(
                std::tie(a, b), lossless{}, chooser,
                {.text = t,
                 .most = 500,
                 .work = work,
                 .processor = processor,
                 .accept =
                     [&](const emission& e) {
                       bonus += e.from == origin::bonus;
                       return true;
                     },
                 .after_round = [&](const auto& r, const auto&) { rounds += r.model == 1; }}) ==
            status::ok);
    CHECK(b.calls == rounds);
    CHECK(a.calls <= rounds * gamma);
    CHECK(bonus > 0);
  }
}

// ---- what is decoded at temperature 0 -----------------------------------------------------------

TEST_CASE("at temperature 0, with all weight on one model, the text is that model's own") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto alone = [&](std::uint64_t s) {
      toy_model m(50, s);
      std::vector<token_id> buffer(61);
      text t{buffer, 1};
      speculative_workspace<T> work(50, {.gamma = 0, .sample = {0}});
      either chooser = random_streams(seed);
      REQUIRE(speculative_decode(m, m, lossless{}, chooser,
                                 {.text = t, .most = 60, .work = work}) == status::ok);
      return buffer;
    };
    const auto together = [&]<std::size_t N>(const auto& policy,
                                             const std::array<std::size_t, N>& gamma) {
      sources<N> models = [&]<std::size_t... K>(std::index_sequence<K...>) {
        return sources<N>{toy_model(50, seed + 100 * K)...};
      }(std::make_index_sequence<N>());
      std::vector<token_id> buffer(61);
      text t{buffer, 1};
      collaborative_workspace<T, N> work(50, {gamma, {0}});
      either chooser = random_streams(seed);
      penalty_memory memory(61, 50);
      witness processor{memory.with({}), {}};
      REQUIRE(collaborative_decode(tie_all(models), policy, chooser,
                                   {.text = t, .most = 60, .work = work, .processor = processor}) ==
              status::ok);
      return buffer;
    };
    for (const auto& gamma : pairs) {
      CHECK(together(library_policies(ensemble{0}), gamma) == alone(seed + 100));
      CHECK(together(library_policies(ensemble{1}), gamma) == alone(seed));
      CHECK(together(lossless{}, gamma) == alone(seed + 100));
    }
    for (const auto& gamma : triples)
      CHECK(together(average_of(three{0, 0, 1}), gamma) == alone(seed + 200));
  }
}

// ---- ends, limits and defects -------------------------------------------------------------------

TEST_CASE(
    "what accept() refuses ends the text: drafts and tokens after it are taken back from "
    "everybody") {
  auto models = make_sources<3>();
  std::vector<token_id> buffer(60);
  text t{buffer, 1};
  collaborative_workspace<T, 3> work(vocabulary, {{3, 2, 2}});
  penalty_memory memory;
  witness processor{memory.with({}), {}};
  (void)processor.push(0);
  either chooser = random_streams(1);
  for (std::size_t stop_at = 1; stop_at <= 9; ++stop_at) {
    const std::size_t before = t.size;
    std::size_t seen = 0;
    REQUIRE(collaborative_decode(tie_all(models), average_of(three{0.2, 0.5, 0.3}), chooser,
                                 {.text = t,
                                  .most = 50,
                                  .work = work,
                                  .processor = processor,
                                  .accept = [&](const emission&) { return ++seen < stop_at; }}) ==
            status::ok);
    CHECK(t.size == before + stop_at);
    CHECK(std::ranges::equal(processor.pushed, std::span(buffer).first(t.size)));
    for (const auto& m : models) CHECK((m.position() <= t.size && m.misuses == 0));
  }
}
TEST_CASE(
    "a full context or buffer ends decoding by turns with context_full, and nothing is lost") {
  for (std::size_t size = 2; size < 14; ++size)
    for (const bool buffer_is_short : {false, true}) {
      toy_model a(vocabulary, 1, 2, 3, buffer_is_short ? 100 : size + 1),
          b(vocabulary, 2, 2, 3, buffer_is_short ? 100 : size);
      std::vector<token_id> buffer(buffer_is_short ? size : 100);
      text t{buffer, 1};
      collaborative_workspace<T, 2> work(vocabulary, {{3, 2}});
      either chooser = random_streams(1);
      penalty_memory memory;
      witness processor{memory.with({}), {}};
      CHECK(collaborative_decode(std::tie(a, b), library_policies(ensemble{0.4}), chooser,
                                 {.text = t, .most = 50, .work = work, .processor = processor}) ==
            status::context_full);
      CHECK(t.size == size);
      CHECK(a.misuses + b.misuses == 0);
    }
}
TEST_CASE("bad settings of models that take turns are reported") {
  toy_model a(30, 1), b(31, 2), c(30, 2);
  std::vector<token_id> buffer(40);
  text t{buffer, 1}, empty{buffer, 0};
  collaborative_workspace<T, 2> work(30, {{2, 2}}), none_at_all(30, {0, 0});
  either chooser = random_streams(1);
  const auto why = [&](text& x, auto models, const library_policies& policy,
                       std::array<std::size_t, 2> gamma, auto& w) {
    w.options = {gamma};
    penalty_memory memory(40, 30);
    witness processor{memory.with({}), {}};
    return collaborative_decode(models, policy, chooser,
                                {.text = x, .most = 9, .work = w, .processor = processor});
  };
  CHECK(why(t, std::tie(a, b), ensemble{0.5}, {2, 2}, work) == status::vocabulary_mismatch);
  CHECK(why(empty, std::tie(a, c), ensemble{0.5}, {2, 2}, work) == status::invalid_parameter);
  CHECK(why(t, std::tie(a, c), ensemble{1.5}, {2, 2}, work) == status::invalid_parameter);
  CHECK(why(t, std::tie(a, c), ensemble{0.5}, {0, 2}, work) == status::invalid_parameter);
  CHECK(why(t, std::tie(a, c), ensemble{0.5}, {1, 0}, none_at_all) == status::invalid_parameter);
  CHECK(why(t, std::tie(a, c), ensemble{0.5}, {9, 9}, work) == status::invalid_parameter);
  CHECK(t.size == 1);
}
TEST_CASE("rows that have no combination end decoding with undefined_target") {
  toy_model a(30, 1), b(30, 2);  // at temperature 0 their rows are disjoint sooner or later
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  collaborative_workspace<T, 2> work(30, {{2, 2}, {0}});
  either chooser = random_streams(1);
  penalty_memory memory(40, 30);
  witness processor{memory.with({}), {}};
  CHECK(collaborative_decode(std::tie(a, b), product_of_two, chooser,
                             {.text = t, .most = 30, .work = work, .processor = processor}) ==
        status::undefined_target);
  CHECK(work.cached == 0);
  CHECK(t.size >= 1);
}
TEST_CASE(
    "a model among three that fails or returns NaN is reported. The text stays, and decoding can "
    "go on") {
  for (std::size_t call = 0; call < 25; ++call)
    for (int which = 0; which < 6; ++which) {
      std::array<faulty<T>, 3> models{{{vocabulary, 3}, {vocabulary, 4}, {vocabulary, 5}}};
      (which % 2 == 0 ? models[std::size_t(which) / 2].fail_at
                      : models[std::size_t(which) / 2].nan_at) = call;
      std::vector<token_id> buffer(60);
      text t{buffer, 1};
      collaborative_workspace<T, 3> work(vocabulary, {{3, 2, 1}});
      penalty_memory memory;
      witness processor{memory.with({}), {}};
      (void)processor.push(0);
      either chooser = random_streams(call);
      std::size_t failures = 0;
      while (t.size < 40 && failures < 9) {
        std::size_t kept = 0;
        const std::size_t before = t.size;
        const status s =
            collaborative_decode(tie_all(models), average_of(three{0.2, 0.5, 0.3}), chooser,
                                 {.text = t,
                                  .most = 40 - t.size,
                                  .work = work,
                                  .processor = processor,
                                  .accept = [&](const emission&) {
                                    ++kept;
                                    return true;
                                  }});
        failures += s != status::ok;
        if (s != status::ok)
          CHECK(s == (which % 2 == 0 ? status::model_failed : status::invalid_row));
        CHECK(t.size == before + kept);
        CHECK(work.cached == 0);
        CHECK(std::ranges::equal(processor.pushed, std::span(buffer).first(t.size)));
        for (const auto& m : models) CHECK(m.position() <= t.size);
      }
      CHECK(t.size == 40);
      CHECK(failures <= 1);
      for (const auto& m : models) CHECK(m.misuses == 0);
    }
}
TEST_CASE("a failure in the middle leaves the law of models that take turns as it was") {
  for (std::size_t call = 0; call < 4; ++call)
    for (std::size_t which = 0; which < 2; ++which) {
      const auto law = exact_law([&](exhaustive_chooser& tree) {
        either chooser(tree);
        std::array<faulty<T>, 2> models{{{vocabulary, 1}, {vocabulary, 2}}};
        models[which].fail_at = call;
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        collaborative_workspace<T, 2> work(vocabulary, {{2, 2}});
        penalty_memory memory;
        witness processor{memory.with({}), {}};
        while (t.size < 5)
          (void)collaborative_decode(
              tie_all(models), average_of(two{0.3, 0.7}), chooser,
              {.text = t, .most = 5 - t.size, .work = work, .processor = processor});
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + 5);
      });
      const auto models = make_sources<2>();
      CHECK(worst_joint_error(law, 4, no_token, [&](const auto& context) {
              return combined<2>(average_of(two{0.3, 0.7}), models, context);
            }) < 1e-12);
    }
}
