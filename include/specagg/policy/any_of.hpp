// SPDX-License-Identifier: Apache-2.0
// A policy that is chosen at run time: a batch may have another policy for each request.
#pragma once
#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <specagg/compiled_once.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/unanimous.hpp>

SPECAGG_BEGIN

namespace detail {
template <class Policy, class At>
concept has_unnormalised = requires(const Policy& chosen, At at) { chosen.unnormalised(at); };
}  // namespace detail

// One of several policies, as a policy: any_of<lossless, token_v3> policy = token_v3{0.3}. Tokens,
// statuses and log-probabilities are those of the policy itself, bit by bit.
//
// Cost: the verifiers and with_models() look up the policy once for each position, and then run the
// policy's own code. No loop is slower, and the compiler makes each verifier once for each policy.
// compiled_once<any_of<...>>, and code that calls bind() (oracle_decode, the audit,
// checked{any_of}), has one jump for every 16 tokens and is compiled once.
//
// Its declarations hold for all of its policies: it reads the draft, or the confidence, if any of
// the policies does. So a decoder may ask for a row that the chosen policy does not read.
// with_chosen() gives a decoder the policy itself.
//
// Checked: any_of<checked<A>, checked<B>>, or checked{any_of<A, B>{...}}. Raw logits:
// raw_logits{any_of<A, B>{...}}; any_of<raw_logits<A>, B> does not compile, because A and B are
// given different rows. A CUDA kernel takes the policy itself.
//
// A variant that holds no policy, because copying one into it threw, is an invalid parameter.
template <class... Policies>
struct any_of {
  std::variant<Policies...> chosen;
  constexpr any_of() = default;
  template <class Policy>
    requires(std::is_same_v<Policy, Policies> || ...)
  constexpr any_of(const Policy& policy) : chosen(policy) {}

  static constexpr bool compiled_for_each = true;
  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit(f, chosen);
  }
  static constexpr bool reads_draft = (specagg::reads_draft<Policies> || ...);
  static constexpr bool reads_confidence = (specagg::reads_confidence<Policies> || ...);
  static constexpr bool reads_ids = (specagg::reads_ids<Policies> || ...);
  static constexpr bool decides_by_draft = (specagg::decides_by_draft<Policies> && ...);
  static constexpr std::size_t models = std::max({models_of<Policies>...});
  static_assert(((models_of<Policies> == models) && ...),
                "specagg: the policies of any_of combine different numbers of models");

  constexpr bool valid() const {
    return !chosen.valueless_by_exception() &&
           std::visit([](const auto& r) { return specagg::valid(r); }, chosen);
  }
  constexpr bool unanimous_here() const
    requires(may_be_unanimous<Policies> && ...)
  {
    return std::visit([](const auto& r) { return specagg::unanimous_here(r); }, chosen);
  }
  template <class At>
  auto unnormalised(At at) const
    requires(detail::has_unnormalised<Policies, At> && ...)
  {
    return std::visit([&](const auto& r) { return r.unnormalised(at); }, chosen);
  }
  template <class Rows>
  auto bind(const Rows& rows) const {
    return bind(rows, std::make_index_sequence<sizeof...(Policies)>());
  }

 private:
  template <class Rows, std::size_t... I>
  SPECAGG_OUTLINE auto bind(const Rows& rows, std::index_sequence<I...>) const {
    using bound = std::variant<decltype(std::get<I>(chosen).bind(rows))...>;
    std::optional<bound> b;
    ((chosen.index() == I ? (void)b.emplace(std::in_place_index<I>, std::get<I>(chosen).bind(rows))
                          : void()),
     ...);
    return bound_law<bound>{*b};
  }
  // The chosen policy's law.
  template <class Laws>
  struct bound_law {
    Laws pi;
    template <class At>
    auto operator()(At at) const {
      return std::visit([&](const auto& law) __attribute__((noinline)) { return law(at); }, pi);
    }
    // Whether it is the target's row itself (policy/lossless.hpp).
    bool is_target() const {
      return std::visit([](const auto& law) { return detail::is_target(law); }, pi);
    }
  };
};

SPECAGG_END
