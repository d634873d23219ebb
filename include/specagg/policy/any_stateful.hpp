// SPDX-License-Identifier: Apache-2.0
// A policy with state that is chosen at run time.
#pragma once
#include <variant>

#include <specagg/policy/catalogue.hpp>
#include <specagg/policy/phase.hpp>

SPECAGG_BEGIN

// Any policy with state of the catalogue, or a phase of any policies without. Its state is the one
// number that each of their states has.
struct any_stateful {
  detail::one_of_lines<std::variant, true, phase<any_catalogued, any_catalogued>> chosen;
  struct state {
    double x = 0;
  };
  static constexpr bool reads_draft = true, reads_confidence = true;
  static constexpr bool reads_ids = any_catalogued::reads_ids;
  // what at() gives
  using one = compiled_once<detail::one_of_lines<any_of, false, entropy_window::gate>>;

  // f(the policy, its own state)
  template <class F>
  decltype(auto) visit(F&& f, const state& s) const {
    return std::visit(
        [&]<class Policy>(const Policy& policy) { return f(policy, typename Policy::state{s.x}); },
        chosen);
  }
  bool valid() const {
    return std::visit([](const auto& policy) { return specagg::valid(policy); }, chosen);
  }
  state begin() const { return {}; }
  bool is_state(const state& s) const {
    return visit([&](const auto& policy, const auto& own) { return policy.is_state(own); }, s);
  }
  one at(const state& s) const {
    one made;
    const auto set = [&](const auto& policy) { made.chosen = policy; };
    const auto set_chosen = [&](const auto& policy, const auto& own) {
      const auto here = policy.at(own);
      if constexpr (requires { here.chosen; }) std::visit(set, here.chosen);
      else set(here);
    };
    visit(set_chosen, s);
    return made;
  }
  template <class Rows>
  state advance(const state& s, const Rows& rows, token_id y) const {
    const auto next = [&](const auto& policy, const auto& own) {
      const auto [x] = detail::advanced(policy, own, rows, y);
      return state{x};
    };
    return visit(next, s);
  }
};

SPECAGG_END
