// SPDX-License-Identifier: Apache-2.0
// The usual case, without a jump for every 16 tokens of a row: token verification of logits in
// float32. Built once for each instruction set.
#include "verify.hpp"

extern "C" void specagg_python_verify_usual(const engine::request* request, verdict* result) {
  const engine::request& r = *request;
  const auto logits = [&](const engine::rows& all) {
    return rows_of(all.count, [&](std::size_t j) {
      return processed_row<float>(numbers<float>(all, j, r.vocabulary), all.sampling);
    });
  };
  const auto with = [&](const auto& q_rows) {
    return with_policy(r.policy, [&](const auto& policy) {
      return judge(r, token_verifier{}, policy, q_rows, logits(r.p));
    });
  };
  if (r.q.kind == engine::row_kind::one_hot)
    *result = with(rows_of(r.q.count, [&](std::size_t j) {
      return one_hot_row<float>(one_hot_at(r, j), r.vocabulary);
    }));
  else *result = with(logits(r.q));
}
