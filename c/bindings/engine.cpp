// SPDX-License-Identifier: Apache-2.0
// The catalogue, edits of rows, drafting and laws. Built once for each instruction set.
#include <algorithm>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/kernels.hpp>
#include <specagg/verify/verifiers.hpp>

#include "any.hpp"
#include "edit.hpp"

namespace {

// ---- drafting -----------------------------------------------------------------------------------

template <class Any>
token_id draw_any(const engine::draw& d, const engine::rows& q) {
  Any row = row_at<Any>(q, 0, d.vocabulary, no_token);
  random_streams chooser(d.seed, d.id);
  if (d.coupled)
    return coupled_verifier{coupled_noise(d.seed, d.id)}.propose(row, d.start, d.step, chooser,
                                                                 d.scratch);
  return draw_draft(row, d.start, d.step, chooser, d.scratch);
}

}  // namespace

extern "C" {

const char* specagg_engine_isa() { return SPECAGG_STRING(SPECAGG_ISA); }

bool specagg_engine_policy(int line, engine::known_policy* out) {
  bool found = true;
  if (line == engine::phase)
    *out = {"phase", "one policy after a token of open, another after one of close",
            true,    true,
            true,    0};
  else if (line == engine::by_position)
    *out = {"by_position", "another policy at each position", true, true, true, 0};
  else found = false;
  with_line(line, [&]<class Line>(const Line& one) {
    using Policy = typename Line::type;
    *out = {one.name,
            one.law,
            reads_draft<Policy>,
            reads_confidence<Policy>,
            Line::has_state,
            one.parameters.size()};
    found = true;
  });
  return found;
}

engine::parameter specagg_engine_parameter(int line, std::size_t k) {
  engine::parameter found{};
  with_line(line, [&](const auto& named) {
    const auto& one = named.parameters[k];
    const auto& usual = named.values[0];
    found = {one.name, one.low,
             one.high, one.flag ? double(usual.*one.flag) : usual.*one.number,
             one.open, one.flag != nullptr,
             one.word};
  });
  return found;
}

bool specagg_engine_valid(const engine::policy* chosen) {
  bool found = false;
  with_line(chosen->line, [&](const auto& line) { found = valid(policy_of(line, *chosen)); });
  return found;
}

void specagg_engine_verify(const engine::request* r, verdict* result) {
  const edited_request edited(*r);
  if (specagg_engine_verify_usual(&edited.request, result)) return;
  if (engine::in_double(r->p.kind)) specagg_engine_verify_double(&edited.request, result);
  else specagg_engine_verify_float(&edited.request, result);
}

token_id specagg_engine_draw(const engine::draw* d) {
  const edited q = edit(d->q, d->vocabulary, d->edits, {});
  return engine::in_double(q.rows.kind) ? draw_any<double_row>(*d, q.rows)
                                        : draw_any<float_row>(*d, q.rows);
}

status specagg_engine_law(const engine::pair* rows, double* pi, engine::pair_numbers* numbers) {
  const any_policy policy = make(rows->policy);
  const auto q = row_at<double_row>(rows->q, 0, rows->vocabulary, rows->drafted);
  const auto p = row_at<double_row>(rows->p, 0, rows->vocabulary, rows->drafted);
  status why = status::ok;
  if (!valid(policy)) return status::invalid_parameter;
  const std::vector<double> law = target_law(policy, q, p, &why);
  if (law.empty()) return why == status::ok ? status::undefined_target : why;
  if (pi) std::copy(law.begin(), law.end(), pi);
  const dense_row<double> law_row{std::span<const double>(law)};
  const double acceptance = acceptance_rate(q, law_row);
  *numbers = {acceptance, total_variation(law_row, p), total_variation(q, p),
              kl_divergence(law_row, p)};
  return status::ok;
}
}
