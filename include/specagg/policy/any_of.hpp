// SPDX-License-Identifier: Apache-2.0
// A rule that is chosen at run time: a batch may have another rule for each request.
#pragma once
#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <specagg/policy/unanimous.hpp>

SPECAGG_BEGIN

namespace detail {
template <class Rule, class At>
concept has_unnormalised = requires(const Rule& rule, At at) { rule.unnormalised(at); };
}  // namespace detail

// One of several rules, as a policy: any_of<lossless, token_v3> rule = token_v3{0.3}. Tokens,
// statuses and log-probabilities are those of the rule itself, bit by bit.
//
// What it costs: the verifiers and with_models() look which rule it is once for each position, and
// then run that rule's own code: no loop is slower, and the compiler makes each verifier once for
// each rule. Whoever calls bind() instead (oracle_decode, the audit, checked{any_of}) has one jump
// for every 16 tokens, and is compiled once. So is everything for a struct that is derived from
// any_of, which is a policy, too: for programs in which compiling takes too long.
//
// What it declares holds for all of its rules: it reads the draft, or the confidence, if one of
// them does. A decoder may then ask for a row that the chosen rule does not look at. with_rule()
// gives a decoder the rule itself.
//
// Checked: any_of<checked<A>, checked<B>>, or checked{any_of<A, B>{...}}. Raw logits:
// raw_logits{any_of<A, B>{...}}; any_of<raw_logits<A>, B> does not compile, because the two are
// given other rows. A CUDA kernel takes the rule itself.
//
// A variant that holds no rule, because copying one into it threw, is an invalid parameter.
template <class... Rules>
struct any_of {
  std::variant<Rules...> rule;
  constexpr any_of() = default;
  template <class Rule>
    requires(std::is_same_v<Rule, Rules> || ...)
  constexpr any_of(const Rule& chosen) : rule(chosen) {}

  static constexpr bool reads_draft = (specagg::reads_draft<Rules> || ...);
  static constexpr bool reads_confidence = (specagg::reads_confidence<Rules> || ...);
  static constexpr bool reads_ids = (specagg::reads_ids<Rules> || ...);
  static constexpr bool decides_by_draft = (specagg::decides_by_draft<Rules> && ...);
  static constexpr std::size_t models = std::max({models_of<Rules>...});
  static_assert(((models_of<Rules> == models) && ...),
                "specagg: the rules of any_of combine different numbers of models");

  constexpr bool valid() const {
    return !rule.valueless_by_exception() &&
           std::visit([](const auto& r) { return specagg::valid(r); }, rule);
  }
  constexpr bool unanimous_here() const
    requires(may_be_unanimous<Rules> && ...)
  {
    return std::visit([](const auto& r) { return specagg::unanimous_here(r); }, rule);
  }
  template <class At>
  auto unnormalised(At at) const
    requires(detail::has_unnormalised<Rules, At> && ...)
  {
    return std::visit([&](const auto& r) { return r.unnormalised(at); }, rule);
  }
  template <class Rows>
  auto bind(const Rows& rows) const {
    return bind(rows, std::make_index_sequence<sizeof...(Rules)>());
  }

 private:
  template <class Rows, std::size_t... I>
  SPECAGG_OUTLINE auto bind(const Rows& rows, std::index_sequence<I...>) const {
    using bound = std::variant<decltype(std::get<I>(rule).bind(rows))...>;
    std::optional<bound> b;
    ((rule.index() == I ? (void)b.emplace(std::in_place_index<I>, std::get<I>(rule).bind(rows))
                        : void()),
     ...);
    return [pi = *b](auto at) {
      return std::visit([&](const auto& chosen) __attribute__((noinline)) { return chosen(at); },
                        pi);
    };
  }
};
// Whether a type is an any_of; not a struct derived from it.
template <class Policy>
constexpr bool is_any_of = false;
template <class... Rules>
constexpr bool is_any_of<any_of<Rules...>> = true;

// f(rule), the rule that was chosen, by its own type; f(policy) for any other policy. f is compiled
// for each rule.
template <class Policy, class F>
SPECAGG_FUNCTION decltype(auto) with_rule(const Policy& policy, F&& f) {
  if constexpr (is_any_of<Policy>) return std::visit(f, policy.rule);
  else return f(policy);
}

SPECAGG_END
