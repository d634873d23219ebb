// SPDX-License-Identifier: Apache-2.0
// Verification by a policy of a whole text, and its law. Built once for each instruction set.
#include <vector>

#include <specagg/audit/text_law.hpp>
#include <specagg/policy/any_stateful.hpp>
#include <specagg/verify/stateful.hpp>

#include "edit.hpp"
#include "verify.hpp"

namespace {

// Any policy of a text, as one with state; of by_position that is the number of the position.
struct any_text_policy : any_stateful {
  std::span<const engine::policy> positions;  // of by_position

  explicit any_text_policy(const engine::policy& given) {
    const std::span parts(given.parts, given.part_count);
    if (given.line == engine::by_position) positions = parts;
    else if (given.line == engine::phase)
      chosen = phase<any_catalogued, any_catalogued>{make(parts[0]), make(parts[1]), given.open,
                                                     given.close};
    with_line(given.line, [&]<class Line>(const Line& line) {
      if constexpr (Line::has_state) chosen = policy_of(line, given);
    });
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
verdict verify_text(const engine::request& r, double& state) {
  std::vector<any_text_policy::state> states(r.drafted.size() + 1);
  states[0].x = state;
  verdict v;
  with_verifier(r.verifier, r.seed, r.id, [&](const auto& verifier) {
    const stateful_verifier stateful(verifier, std::span(states));
    v = verify_rows(r, stateful, any_text_policy(r.policy), rows_in<Any>(r, r.q),
                    rows_in<Any>(r, r.p));
  });
  state = states[0].x;
  return v;
}

}  // namespace

extern "C" void specagg_engine_verify_text(const engine::request* given, double* state,
                                           verdict* result) {
  const edited_request edited(*given);
  const engine::request& r = edited.request;
  *result = engine::in_double(r.p.kind) ? verify_text<double_row>(r, *state)
                                        : verify_text<float_row>(r, *state);
}

extern "C" status specagg_engine_law_of_text(const engine::text_rows* text, double* pi) {
  const auto after = [&](const engine::rows& all) {
    return [&](const std::vector<token_id>& tokens) {
      return row_at<double_row>(all, tokens.size(), text->vocabulary, no_token);
    };
  };
  status why = status::ok;
  const std::vector<double> law = law_of_texts(any_text_policy(text->policy), {text->state},
                                               text->p.count, after(text->q), after(text->p), &why);
  std::copy(law.begin(), law.end(), pi);
  return why;
}
