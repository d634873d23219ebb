// SPDX-License-Identifier: Apache-2.0
// The catalogue, edits of rows, drafting and laws. Built once for each instruction set.
#include <algorithm>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/kernels.hpp>
#include <specagg/verify/verifiers.hpp>

#include "any.hpp"

namespace {

// The rows after edits: penalties and masks, in memory of their own.
struct edited {
  std::vector<std::byte> memory;
  engine::rows rows;
};

template <class S>
void edit_in_place(std::span<S> logits, std::size_t vocabulary, const engine::edits& e,
                   std::span<const token_id> drafted) {
  if (!e.penalties.none()) {
    std::vector<token_id> memory(
        penalties::memory(vocabulary, e.history.size() + drafted.size() + 1));
    penalties text(e.penalties, vocabulary, e.history, memory);
    for (std::size_t j = 0; j * vocabulary < logits.size(); ++j) {
      text.apply(logits.subspan(j * vocabulary, vocabulary));
      if (j < drafted.size()) (void)text.push(drafted[j]);
    }
  }
  if (!e.mask) return;
  for (std::size_t j = 0; j * vocabulary < logits.size(); ++j)
    for (std::size_t v = 0; v < vocabulary; ++v)
      if (e.forbids(j, token_id(v))) logits[j * vocabulary + v] = detail::stored<S>(-infinity);
}

edited edit(const engine::rows& all, std::size_t vocabulary, const engine::edits& e,
            std::span<const token_id> drafted) {
  edited out{{}, all};
  if (e.none() || !engine::holds_logits(all.kind)) return out;
  const std::size_t bytes = vocabulary * engine::element_size(all.kind);
  out.memory.resize(bytes * all.count);
  for (std::size_t j = 0; j < all.count; ++j)
    std::copy_n(all.data + std::ptrdiff_t(j) * all.stride, bytes, out.memory.data() + j * bytes);
  out.rows.data = out.memory.data();
  out.rows.stride = std::ptrdiff_t(bytes);
  const auto as = [&]<class S>(S) {
    edit_in_place(std::span(reinterpret_cast<S*>(out.memory.data()), all.count * vocabulary),
                  vocabulary, e, drafted);
  };
  using enum engine::row_kind;
  if (all.kind == logits_f32) as(0.0f);
  else if (all.kind == logits_f64) as(0.0);
  else if (all.kind == logits_f16) as(f16{});
  else as(bf16{});
  return out;
}

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

bool specagg_engine_policy(int wanted, engine::known_policy* out) {
  bool found = false;
  for_each_numbered([&](const auto& line, int i) {
    if (i != wanted) return;
    using Policy = typename std::remove_cvref_t<decltype(line)>::type;
    static_assert(std::tuple_size_v<decltype(line.parameters)> <= 4);
    *out = {
        line.name, line.law, reads_draft<Policy>, reads_confidence<Policy>, line.parameters.size(),
        {}};
    std::size_t k = 0;
    for (const auto& one : line.parameters) {
      const auto& usual = line.values[0];
      out->parameters[k++] = {one.name, one.low,
                              one.high, one.flag ? double(usual.*one.flag) : usual.*one.number,
                              one.open, one.flag != nullptr,
                              one.word};
    }
    found = true;
  });
  return found;
}

bool specagg_engine_valid(const engine::policy* chosen) { return valid(make(*chosen)); }

void specagg_engine_verify(const engine::request* r, engine::verifier how, verdict* result) {
  const std::size_t g = r->drafted.size();
  const edited q = edit(r->q, r->vocabulary, r->edits, r->drafted.tokens.first(g)),
               p = edit(r->p, r->vocabulary, r->edits, r->drafted.tokens.first(g));
  engine::request edited_request = *r;
  edited_request.q = q.rows;
  edited_request.p = p.rows;
  if (r->by) return r->by(&edited_request, how, result);
  if (specagg_engine_verify_usual(&edited_request, how, result)) return;
  if (engine::in_double(p.rows.kind)) specagg_engine_verify_double(&edited_request, how, result);
  else specagg_engine_verify_float(&edited_request, how, result);
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
