// SPDX-License-Identifier: Apache-2.0
// Verification of drafts whose rows are cut to what was kept. Built once for each instruction set.
#include <vector>

#include <specagg/rows/cut_row.hpp>

#include "edit.hpp"
#include "verify.hpp"

namespace {

template <class Any>
verdict verify_cut(const engine::request& r, const std::uint8_t* kept, std::ptrdiff_t stride) {
  using T = typename Any::value_type;
  const std::size_t V = r.vocabulary, g = r.drafted.size();
  std::vector<T> is_kept(g * V);
  for (std::size_t j = 0; j < g; ++j)
    for (std::size_t v = 0; v < V; ++v)
      is_kept[j * V + v] = kept[std::ptrdiff_t(j) * stride + std::ptrdiff_t(v)] != 0;
  const auto q = lasting_rows_of(g, [&](std::size_t j) {
    const auto row = normalise(row_at<Any>(r.q, j, V, one_hot_at(r, j)));
    return cut_row(row, std::span<const T>(is_kept).subspan(j * V, V));
  });
  // invalid_parameter: a policy that reads the draft, or a verifier that does not use cut rows
  verdict v{.why = status::invalid_parameter};
  (void)with_target_policy(make(r.policy), [&](const auto& policy) {
    with_verifier(r.verifier, r.seed, r.id, [&]<class Verifier>(const Verifier& verifier) {
      if constexpr (Verifier::reads_draft_rows(false))
        v = verify_rows(r, verifier, policy, q, rows_in<Any>(r, r.p));
    });
  });
  return v;
}

}  // namespace

extern "C" void specagg_engine_verify_cut(const engine::request* given, const std::uint8_t* kept,
                                          std::ptrdiff_t stride, verdict* result) {
  const edited_request edited(*given);
  const engine::request& r = edited.request;
  *result = engine::in_double(r.p.kind) ? verify_cut<double_row>(r, kept, stride)
                                        : verify_cut<float_row>(r, kept, stride);
}
