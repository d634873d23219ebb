// SPDX-License-Identifier: Apache-2.0
// The usual case, without a jump for every 16 tokens of a row: token verification of logits in
// float32, float16 or bfloat16. Built once for each instruction set.
#include "verify.hpp"

extern "C" bool specagg_python_verify_usual(const engine::request* request, engine::verifier how,
                                            verdict* result) {
  using enum engine::row_kind;
  const engine::request& r = *request;
  const auto holds_floats = [](engine::row_kind k) {
    return k == logits_f32 || engine::in_16_bits(k);
  };
  if (how != engine::verifier::token || !holds_floats(r.p.kind)) return false;
  const auto logits = [&](const engine::rows& all) {
    return lasting_rows_of(all.count, [&](std::size_t j) {
      return processed_row<float>(floats(all, j, r.vocabulary), all.sampling);
    });
  };
  if (holds_floats(r.q.kind)) {
    *result = with_policy<true>(r.policy, [&](const auto& policy) {
      return verify_rows(r, token_verifier{}, policy, logits(r.q), logits(r.p));
    });
    return true;
  }
  const auto one_hot_rows = lasting_rows_of(
      r.q.count, [&](std::size_t j) { return one_hot_row<float>(one_hot_at(r, j), r.vocabulary); });
  return r.q.kind == one_hot && with_target_policy<true>(make(r.policy), [&](const auto& policy) {
           *result = verify_rows(r, token_verifier{}, policy, one_hot_rows, logits(r.p));
         });
}
