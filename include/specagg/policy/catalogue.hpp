// SPDX-License-Identifier: Apache-2.0
// Every policy as data: its name, its law, values of it, its parameters and their ranges. The
// command line, the audit of all policies, tests and benchmarks read this list. A policy is its
// header, its line here, its test in tests/policy/, and its row in the table of
// docs/mathematics.md; scripts/check-tree says which of them is missing.
#pragma once
#include <array>
#include <cstddef>
#include <tuple>

#include <specagg/policy/any_of.hpp>
#include <specagg/policy/cactus.hpp>
#include <specagg/policy/cascade.hpp>
#include <specagg/policy/cascade_log.hpp>
#include <specagg/policy/combine.hpp>
#include <specagg/policy/contrastive.hpp>
#include <specagg/policy/entropy_window.hpp>
#include <specagg/policy/extremes.hpp>
#include <specagg/policy/fuzzy.hpp>
#include <specagg/policy/kl_bound.hpp>
#include <specagg/policy/log_linear.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/lossy.hpp>
#include <specagg/policy/mentored.hpp>
#include <specagg/policy/power.hpp>
#include <specagg/policy/rate_bound.hpp>
#include <specagg/policy/regret_budget.hpp>
#include <specagg/policy/relaxed.hpp>
#include <specagg/policy/stateful.hpp>
#include <specagg/policy/token_cascade.hpp>
#include <specagg/policy/typical.hpp>

SPECAGG_BEGIN

// A parameter of a policy: a finite number in [low, high], without high itself if `open`; or a
// flag. Ranges that depend on other parameters are known to the policy's valid() alone. word: the
// name of the default, if it has one.
inline constexpr bool open_range = true;
template <class Policy>
struct policy_parameter {
  const char* name;
  double Policy::* number = nullptr;  // one of these two is set
  bool Policy::* flag = nullptr;
  double low = -infinity, high = infinity;
  bool open = false;
  const char* word = nullptr;

  constexpr policy_parameter(const char* called, double Policy::* member, double from = -infinity,
                             double to = infinity, bool without_end = false,
                             const char* default_word = nullptr)
      : name(called), number(member), low(from), high(to), open(without_end), word(default_word) {}
  constexpr policy_parameter(const char* called, bool Policy::* member)
      : name(called), flag(member) {}
};

// A line of the catalogue. values: the policy with its defaults, then with parameters worth trying.
// has_state: the law is that of a text (policy/stateful.hpp), not that of one token.
template <class Policy, std::size_t Values, std::size_t Parameters>
struct catalogued {
  using type = Policy;
  static constexpr bool has_state = StatefulPolicy<Policy>;
  const char *name, *law;
  std::array<Policy, Values> values;
  std::array<policy_parameter<Policy>, Parameters> parameters;

  constexpr catalogued(const char* called, const char* formula, const Policy (&examples)[Values])
      : name(called), law(formula), values(std::to_array(examples)), parameters{} {}
  // An array of no elements is no C++: a policy without parameters has the constructor above.
  constexpr catalogued(const char* called, const char* formula, const Policy (&examples)[Values],
                       const policy_parameter<Policy> (&all)[Parameters > 0 ? Parameters : 1])
      : name(called),
        law(formula),
        values(std::to_array(examples)),
        parameters(std::to_array(all)) {}
};
template <class Policy, std::size_t Values>
catalogued(const char*, const char*, const Policy (&)[Values]) -> catalogued<Policy, Values, 0>;
template <class Policy, std::size_t Values, std::size_t Parameters>
catalogued(const char*, const char*, const Policy (&)[Values],
           const policy_parameter<Policy> (&)[Parameters])
    -> catalogued<Policy, Values, Parameters>;

// The name of a policy is the name of its type, with - for _.
inline constexpr std::tuple catalogue{
    catalogued("lossless", "p", {lossless{}}),
    catalogued("lossy", "min(q, p/(1-alpha)) + (R/S) (p/beta - q)+",
               {lossy{}, lossy{0.25}, lossy{0.3, 0.8}, lossy{0.3, 5}},
               {{"alpha", &lossy::alpha, 0, 1, open_range},
                {"beta", &lossy::beta, 0, infinity, false, "exact"}}),
    catalogued("typical", "norm(p where p >= min(eps, delta e^-H))", {typical{}, typical{0.3, 1}},
               {{"eps", &typical::eps, 0, 1}, {"delta", &typical::delta, 0, 1}}),
    catalogued("mentored", "lossy with the alpha that makes KL(p || pi) = kl",
               {mentored{}, mentored{0.05}}, {{"kl", &mentored::kl, 0}}),
    catalogued("cactus", "min(q, h) + sum over n of (q(n)-h(n))+ norm((s_n p - q)+)",
               {cactus{}, cactus{0.05}}, {{"delta", &cactus::delta, 0}}),
    catalogued("kl-bound", "min(q, h) + (R/S) (p-q)+, h >= p the largest with KL(h || p) <= kl",
               {kl_bound{}, kl_bound{0.05}}, {{"kl", &kl_bound::kl, 0}}),
    catalogued("chow", "p if max q < 1 - alpha, else q", {chow{}, chow{0.4}},
               {{"alpha", &chow::alpha}}),
    catalogued("chow-log", "p if H(q) > alpha, else q", {chow_log{}, chow_log{0.9}},
               {{"alpha", &chow_log::alpha}}),
    catalogued("diff", "p if max q < max p - alpha, else q", {diff{}, diff{0.1}},
               {{"alpha", &diff::alpha}}),
    catalogued("diff-log", "p if H(p) < H(q) - alpha, else q", {diff_log{}, diff_log{0.1}},
               {{"alpha", &diff_log::alpha}}),
    catalogued("opt", "p if max q < max p - alpha TV(p, q), else q", {opt{}, opt{0.4}},
               {{"alpha", &opt::alpha}}),
    catalogued("opt-log", "p if H(p) < H(q) - alpha TV(p, q), else q", {opt_log{}, opt_log{0.3}},
               {{"alpha", &opt_log::alpha}}),
    catalogued("bild", "p if D > alpha, else q; D = -sum q log p, or greedy -log p(argmax q)",
               {bild{}, bild{1.2}, bild{1.2, true}},
               {{"alpha", &bild::alpha}, {"greedy", &bild::greedy}}),
    catalogued("fuzzy", "p if JS(q, p) > alpha, else q", {fuzzy{}, fuzzy{0.1}},
               {{"alpha", &fuzzy::alpha}}),
    catalogued("token-v1", "q (1-r) + eta p, r = 1 iff q(v) < max p - alpha",
               {token_v1{}, token_v1{0.3}}, {{"alpha", &token_v1::alpha}}),
    catalogued("token-v2", "q (1-r) + eta p, r = 1 iff p(v) < max p - alpha",
               {token_v2{}, token_v2{0.3}}, {{"alpha", &token_v2::alpha}}),
    catalogued("token-v3", "q (1-r) + eta p, r = 1 iff p(v) < (1-alpha) max p",
               {token_v3{}, token_v3{0.3}}, {{"alpha", &token_v3::alpha}}),
    catalogued("relaxed", "q (1-r) + eta p, r = 0 iff p(v) is of the k largest, >= max p - delta",
               {relaxed{}, relaxed{3, 0.2}},
               {{"k", &relaxed::k, 1, relaxed::most}, {"delta", &relaxed::delta}}),
    catalogued("relative", "as relaxed, >= (1-alpha) max p", {relative{}, relative{3, 0.9}},
               {{"k", &relative::k, 1, relaxed::most}, {"alpha", &relative::alpha}}),
    catalogued("logit-comparison", "q (1-r) + eta p, r = 1 iff p(v) < q(v)", {logit_comparison{}}),
    catalogued("rate-bound", "w q + (1-w) p, w the least that accepts at least at this rate",
               {rate_bound{}, rate_bound{0.8}}, {{"rate", &rate_bound::rate, 0, 1}}),
    catalogued("ensemble", "lambda q + (1-lambda) p", {ensemble{}, ensemble{0.3}},
               {{"lambda", &ensemble::lambda, 0, 1}}),
    catalogued("contrastive", "softmax(l_p - mu l_q), or with plus softmax((1+mu) l_p - mu l_q)",
               {contrastive{}, contrastive{0.3}, contrastive{0.3, 0.2}, contrastive{0.3, 0, true}},
               {{"mu", &contrastive::mu},
                {"plausibility", &contrastive::plausibility, 0, 1},
                {"plus", &contrastive::plus}}),
    catalogued("geometric", "norm(q^lambda p^(1-lambda))", {geometric{}, geometric{0.3}},
               {{"lambda", &geometric::lambda}}),
    catalogued("power", "norm((lambda q^rho + (1-lambda) p^rho)^(1/rho))",
               {power{}, power{0.3, 2}, power{0.3, -1}, power{0.3, 0}},
               {{"lambda", &power::lambda, 0, 1}, {"rho", &power::rho}}),
    catalogued("minimum", "norm(min(q, p))", {minimum<>{}}),
    catalogued("maximum", "norm(max(q, p))", {maximum<>{}}),
    catalogued("regret-budget", "q where ln(max p / p(v)) <= limit and what is left; rest from p",
               {regret_budget{}, regret_budget{1, 0.8}},
               {{"budget", &regret_budget::budget, 0},
                {"limit", &regret_budget::limit, 0, infinity, false, "none"}}),
    catalogued("entropy-window",
               "q if H of p's 3 most likely >= threshold; after a less likely token p",
               {entropy_window{}, entropy_window{0.7, 1}},
               {{"threshold", &entropy_window::threshold}, {"window", &entropy_window::window, 0}}),
};
// More names for policies above with certain parameters: functions in the policy's header.
inline constexpr std::tuple presets{
    catalogued("lenient", "lossy with beta 1", {lenient(0), lenient(0.4)},
               {{"alpha", &lossy::alpha, 0, 1, open_range}}),
    catalogued("margin", "relative with k 2", {margin(0), margin(0.4)},
               {{"alpha", &relative::alpha}}),
    catalogued("realign", "softmax(lambda l_q + (1-lambda) l_p), as geometric",
               {realign(0.5), realign(1.5)}, {{"lambda", &geometric::lambda}}),
};

// f(line) for each line whose policy has no state; or, if HasState, for each whose policy has one.
template <bool HasState = false, class F>
constexpr void for_each_in_catalogue(F&& f) {
  const auto one = [&]<class Line>(const Line& line) {
    if constexpr (Line::has_state == HasState) f(line);
  };
  const auto each = [&](const auto&... lines) { (one(lines), ...); };
  std::apply(each, catalogue);
  std::apply(each, presets);
}

namespace detail {
template <template <class...> class OneOf, class... More, class... Policies>
OneOf<Policies..., More...> one_of(const std::tuple<Policies...>&);
template <bool HasState, class... Lines>
auto policies_of_lines(const std::tuple<Lines...>&) -> decltype(std::tuple_cat(
    std::conditional_t<Lines::has_state == HasState, std::tuple<typename Lines::type>,
                       std::tuple<>>()...));
// OneOf<the policies of the catalogue with state, or without, and these>
template <template <class...> class OneOf, bool HasState, class... More>
using one_of_lines = decltype(one_of<OneOf, More...>(policies_of_lines<HasState>(catalogue)));
}  // namespace detail
// Any policy of the catalogue without state, chosen at run time.
using any_catalogued = detail::one_of_lines<any_of, false>;

SPECAGG_END
