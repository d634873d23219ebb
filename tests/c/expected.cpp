// SPDX-License-Identifier: Apache-2.0
#include "expected.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/kernels.hpp>
#include <specagg/rows/any_row.hpp>
#include <specagg/specagg.hpp>

using namespace specagg;

namespace {

using policies = any_of<lossless, token_v3, ensemble, lossy, typical>;
policies policy_of(int number) {
  const policies all[] = {lossless{}, token_v3{0.3}, ensemble{0.3}, lossy{0.3, 0.8}, typical{}};
  return all[number];
}

// Compiled once for all kinds: a tenth of the time.
using float_rows =
    compiled_once<any_row<processed_row<float>, processed_row<f16>, processed_row<bf16>,
                          dense_row<float>, one_hot_row<float>>>;
using double_rows =
    compiled_once<any_row<processed_row<double>, dense_row<double>, one_hot_row<double>>>;

template <class Any>
Any row_of(const specagg_request& r, const specagg_rows& rows, std::size_t j) {
  using T = typename Any::value_type;
  const std::size_t V = r.vocabulary;
  const auto numbers = [&]<class S>(S) {
    const std::size_t stride = rows.stride ? rows.stride : V * sizeof(S);
    return std::span(reinterpret_cast<const S*>(static_cast<const char*>(rows.data) + j * stride),
                     V);
  };
  sampling how;
  if (rows.sampling)
    how = {rows.sampling->temperature, rows.sampling->top_k, rows.sampling->top_p,
           rows.sampling->min_p, filter_order(rows.sampling->order)};
  if (!rows.data) return one_hot_row<T>(j < r.drafted_count ? r.drafted[j] : no_token, V);
  if constexpr (std::is_same_v<T, float>) {
    if (rows.kind == SPECAGG_LOGITS_F16) return processed_row<f16>(numbers(f16{}), how);
    if (rows.kind == SPECAGG_LOGITS_BF16) return processed_row<bf16>(numbers(bf16{}), how);
  }
  if (rows.kind == SPECAGG_PROBABILITIES_F32 || rows.kind == SPECAGG_PROBABILITIES_F64)
    return dense_row<T>(numbers(T{}));
  return processed_row<T>(numbers(T{}), how);
}

bonus_choice bonus_of(const specagg_request& r) {
  if (r.bonus == SPECAGG_BONUS_TARGET) return bonus_choice::target();
  if (r.bonus == SPECAGG_BONUS_GIVEN) return bonus_choice::given(r.bonus_token);
  return r.bonus == SPECAGG_BONUS_POLICY;
}

template <class Any>
verdict verify_as(const specagg_request& r, int policy, std::span<emission> out,
                  std::span<draft_acceptance> acceptances) {
  const draft drafted{.tokens = std::span(r.drafted, r.drafted_count),
                      .start = r.position,
                      .end_of_text = std::span(r.end_of_text, r.end_of_text_count),
                      .bonus = bonus_of(r),
                      .acceptances = acceptances};
  const auto rows = [&](const specagg_rows& all) {
    return lasting_rows_of(all.data ? all.count : r.drafted_count,
                           [&](std::size_t j) { return row_of<Any>(r, all, j); });
  };
  std::vector<double> scratch(verify_scratch(r.vocabulary, r.drafted_count));
  verdict v;
  for_each_verifier(r.seed, r.request, [&](const auto& verifier) {
    const char* const names[] = {"token", "block", "match", "coupled"};
    if (std::string_view(verifier.name) == names[r.verifier])
      v = verifier.verify(drafted, rows(r.q), rows(r.p), policy_of(policy),
                          random_streams(r.seed, r.request), out, std::span<double>(scratch));
  });
  return v;
}

bool in_double(const specagg_request& r) {
  const int kind = r.p.data ? r.p.kind : r.q.kind;
  return kind == SPECAGG_LOGITS_F64 || kind == SPECAGG_PROBABILITIES_F64;
}

}  // namespace

const char* const expected_policies[EXPECTED_POLICIES] = {
    "lossless", "token_v3:alpha=0.3", "ensemble:lambda=0.3", "lossy:alpha=0.3,beta=0.8", "typical"};

void expected_verify(const specagg_request* r, int policy, specagg_result* result) {
  std::vector<emission> out(r->drafted_count + 1);
  std::vector<draft_acceptance> acceptances(r->drafted_count);
  const bool wanted = result->acceptance_of_row != nullptr;
  const auto given = std::span(acceptances).first(wanted ? acceptances.size() : 0);
  const verdict v = in_double(*r) ? verify_as<double_rows>(*r, policy, out, given)
                                  : verify_as<float_rows>(*r, policy, out, given);
  for (std::size_t j = 0; j < out.size(); ++j) {
    const bool there = j < v.emitted;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    result->tokens[j] = there ? out[j].token : no_token;
    result->log_pi[j] = there ? out[j].log_pi : nan;
    result->log_p[j] = there ? out[j].log_p : nan;
    result->origins[j] = there ? int(out[j].from) : -1;
    result->reasons[j] = there ? int(out[j].why) : 0;
    if (wanted && j < r->drafted_count) {
      const bool known = j < draft{std::span(r->drafted, r->drafted_count), 0,
                                   std::span(r->end_of_text, r->end_of_text_count)}
                                 .size();
      result->acceptance_of_row[j] = known ? acceptances[j].of_row : nan;
      result->acceptance_of_token[j] = known ? acceptances[j].of_token : nan;
    }
  }
  result->emitted = v.emitted;
  result->accepted = v.accepted;
  result->status = std::int32_t(v.why);
  result->ended = v.ended;
}

int32_t expected_draw(const specagg_request* r, size_t j) {
  std::vector<double> scratch(verify_scratch(r->vocabulary));
  const auto drawn = [&](const auto& row) {
    random_streams chooser(r->seed, r->request);
    if (r->verifier == SPECAGG_COUPLED)
      return coupled_verifier{coupled_noise(r->seed, r->request)}.propose(row, r->position, j,
                                                                          chooser, scratch);
    return draw_draft(row, r->position, j, chooser, scratch);
  };
  return in_double(*r) ? drawn(row_of<double_rows>(*r, r->q, j))
                       : drawn(row_of<float_rows>(*r, r->q, j));
}

int32_t expected_law(const specagg_request* r, int policy, size_t j, double* pi,
                     specagg_numbers* numbers) {
  const auto q = row_of<double_rows>(*r, r->q, j), p = row_of<double_rows>(*r, r->p, j);
  status why = status::ok;
  const std::vector<double> law = target_law(policy_of(policy), q, p, &why);
  if (law.empty()) return std::int32_t(why);
  std::copy(law.begin(), law.end(), pi);
  const dense_row<double> row{std::span<const double>(law)};
  *numbers = {acceptance_rate(q, row), total_variation(row, p), total_variation(q, p),
              kl_divergence(row, p)};
  return SPECAGG_OK;
}
