// SPDX-License-Identifier: Apache-2.0
// The usual case, without a jump for every 16 tokens of a row: token verification of logits in
// float32. Built once for each instruction set.
#include "verify.hpp"

extern "C" bool specagg_engine_verify_usual(const engine::request* request, verdict* result) {
  using enum engine::row_kind;
  const engine::request& r = *request;
  if (r.verifier != verifier_number(token_verifier::name) || r.p.kind != logits_f32) return false;
  const auto logits = [&](const engine::rows& all) {
    return lasting_rows_of(all.count, [&](std::size_t j) {
      return processed_row<float>(numbers<float>(all, j, r.vocabulary), all.sampling);
    });
  };
  if (r.q.kind == logits_f32) {
    *result = with_policy(r.policy, [&](const auto& policy) {
      return verify_rows(r, token_verifier{}, policy, logits(r.q), logits(r.p));
    });
    return true;
  }
  const auto one_hot_rows = lasting_rows_of(
      r.q.count, [&](std::size_t j) { return one_hot_row<float>(one_hot_at(r, j), r.vocabulary); });
  return r.q.kind == one_hot && with_target_policy(make(r.policy), [&](const auto& policy) {
           *result = verify_rows(r, token_verifier{}, policy, one_hot_rows, logits(r.p));
         });
}
