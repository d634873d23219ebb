// SPDX-License-Identifier: Apache-2.0
// Verification of drafts whose rows are cut to what was kept. Built once for each instruction set.
#include <vector>

#include <specagg/rows/cut_row.hpp>

#include "verify.hpp"

namespace {

template <class Any>
verdict verify_cut(const engine::request& r, engine::verifier how) {
  using T = typename Any::value_type;
  const std::size_t V = r.vocabulary, g = r.drafted.size();
  std::vector<T> kept(g * V);
  for (std::size_t j = 0; j < g; ++j)
    for (std::size_t v = 0; v < V; ++v)
      kept[j * V + v] = r.kept[std::ptrdiff_t(j) * r.kept_stride + std::ptrdiff_t(v)] != 0;
  const auto q = lasting_rows_of(g, [&](std::size_t j) {
    const auto row = row_at<Any>(r.q, j, V, one_hot_at(r, j)).normalise();
    return cut_row(row, std::span<const T>(kept).subspan(j * V, V));
  });
  verdict v{.why = status::invalid_parameter};  // a policy that reads the draft, or how
  (void)with_target_policy(make(r.policy), [&](const auto& policy) {
    const auto p = rows_in<Any>(r, r.p);
    if (how == engine::verifier::token) v = verify_rows(r, token_verifier{}, policy, q, p);
    if (how == engine::verifier::block) v = verify_rows(r, block_verifier{}, policy, q, p);
  });
  return v;
}

}  // namespace

extern "C" void specagg_engine_verify_cut(const engine::request* r, engine::verifier how,
                                          verdict* result) {
  *result = engine::in_double(r->p.kind) ? verify_cut<double_row>(*r, how)
                                         : verify_cut<float_row>(*r, how);
}
