// SPDX-License-Identifier: Apache-2.0
// Verification by a policy of a whole text. Built once for each instruction set.
#include <vector>

#include <specagg/verify/stateful.hpp>

#include "verify.hpp"

namespace {

template <class... P>
any_of<P..., entropy_window::gate> with_gate(const any_of<P...>&);

// Any engine::text_policy, as one with state: a number, as those of stateful.hpp are; or which
// position of the round it is.
struct any_text_policy {
  const engine::text_policy* chosen;
  static constexpr bool reads_draft = true, reads_confidence = true;
  static constexpr bool reads_ids = any_catalogued::reads_ids;
  struct state {
    double x = 0;
  };
  using one = compiled_once<decltype(with_gate(std::declval<any_catalogued>()))>;

  regret_budget budget() const { return {chosen->first, chosen->second}; }
  entropy_window gates() const { return {chosen->first, chosen->second}; }
  phase<lossless, lossless> marks() const { return {{}, {}, chosen->open, chosen->close}; }
  one line(std::size_t i) const {
    one made;
    std::visit([&](const auto& policy) { made.chosen = policy; }, make(chosen->policies[i]).chosen);
    return made;
  }

  bool valid() const {
    using enum engine::text_kind;
    for (const engine::policy& each : chosen->policies)
      if (!specagg::valid(make(each))) return false;
    return chosen->kind == regret_budget    ? budget().valid()
           : chosen->kind == entropy_window ? gates().valid()
                                            : true;
  }
  state begin() const { return {}; }
  one at(const state& s) const {
    using enum engine::text_kind;
    one made;
    switch (chosen->kind) {
      case by_position: return line(std::size_t(s.x));
      case phase: return line(s.x > 0 ? 0 : 1);
      case regret_budget: made.chosen = budget().at({s.x}); break;
      case entropy_window: made.chosen = gates().at({s.x}); break;
    }
    return made;
  }
  template <class Rows>
  state advance(const state& s, const Rows& rows, token_id y) const {
    using enum engine::text_kind;
    switch (chosen->kind) {
      case by_position: return {s.x + 1};
      case phase: return {double(marks().advance({s.x > 0}, y).is_inside)};
      case regret_budget: return {budget().advance({s.x}, rows, y).spent};
      case entropy_window: return {gates().advance({s.x}, rows, y).left};
    }
    return s;
  }
};

template <class Any>
verdict verify_text(const engine::request& r, engine::verifier how) {
  std::vector<any_text_policy::state> states(r.drafted.size() + 1);
  states[0].x = *r.state;
  const auto with = [&](const auto& verifier) {
    const stateful_verifier stateful(verifier, std::span(states));
    return verify_rows(r, stateful, any_text_policy{r.text}, rows_in<Any>(r, r.q),
                       rows_in<Any>(r, r.p));
  };
  verdict v;
  switch (how) {
    case engine::verifier::token: v = with(token_verifier{}); break;
    case engine::verifier::block: v = with(block_verifier{}); break;
    case engine::verifier::match: v = with(match_verifier{}); break;
    case engine::verifier::coupled: v = with(coupled_verifier{coupled_noise(r.seed, r.id)}); break;
  }
  *r.state = states[0].x;
  return v;
}

}  // namespace

extern "C" void specagg_engine_verify_text(const engine::request* r, engine::verifier how,
                                           verdict* result) {
  *result = engine::in_double(r->p.kind) ? verify_text<double_row>(*r, how)
                                         : verify_text<float_row>(*r, how);
}
