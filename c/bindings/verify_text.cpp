// SPDX-License-Identifier: Apache-2.0
// Verification by a policy of a whole text, and its law. Built once for each instruction set.
#include <vector>

#include <specagg/audit/text_law.hpp>

#include "verify.hpp"

namespace {

// Any engine::text_policy, as one with state; of by_position that is the number of the position.
struct any_text_policy : any_stateful {
  std::span<const engine::policy> positions;  // of by_position

  explicit any_text_policy(const engine::text_policy& given) {
    using enum engine::text_kind;
    const double first = given.first, second = given.second;
    switch (given.kind) {
      case by_position: positions = given.policies; break;
      case regret_budget: chosen = specagg::regret_budget{first, second}; break;
      case entropy_window: chosen = specagg::entropy_window{first, second}; break;
      case phase:
        chosen = specagg::phase<any_catalogued, any_catalogued>{
            make(given.policies[0]), make(given.policies[1]), given.open, given.close};
    }
  }
  bool valid() const {
    for (const engine::policy& each : positions)
      if (!specagg::valid(make(each))) return false;
    return any_stateful::valid();
  }
  one at(const state& s) const {
    if (positions.empty()) return any_stateful::at(s);
    one made;
    std::visit([&](const auto& policy) { made.chosen = policy; },
               make(positions[std::size_t(s.x)]).chosen);
    return made;
  }
  template <class Rows>
  state advance(const state& s, const Rows& rows, token_id y) const {
    if (positions.empty()) return any_stateful::advance(s, rows, y);
    return {s.x + 1};
  }
};

template <class Any>
verdict verify_text(const engine::request& r, engine::verifier how) {
  std::vector<any_text_policy::state> states(r.drafted.size() + 1);
  states[0].x = *r.state;
  const auto with = [&](const auto& verifier) {
    const stateful_verifier stateful(verifier, std::span(states));
    return verify_rows(r, stateful, any_text_policy(*r.text), rows_in<Any>(r, r.q),
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

extern "C" status specagg_engine_law_of_text(const engine::text_rows* text, double* pi) {
  const auto after = [&](const engine::rows& all) {
    return [&](const std::vector<token_id>& tokens) {
      return row_at<double_row>(all, tokens.size(), text->vocabulary, no_token);
    };
  };
  status why = status::ok;
  const std::vector<double> law = law_of_texts(any_text_policy(*text->policy), {text->state},
                                               text->p.count, after(text->q), after(text->p), &why);
  std::copy(law.begin(), law.end(), pi);
  return why;
}
