// SPDX-License-Identifier: Apache-2.0
// In which space models are combined. A combiner alone is given processed rows, of which it combines the probabilities
// or (log_linear.hpp, contrastive.hpp) the logits: temperature and filters have acted on each model's. raw_logits is
// the third choice: the models are combined as they are, and temperature and filters act on the result.
#pragma once
#include <specagg/policy/models.hpp>
#include <specagg/process.hpp>

SPECAGG_BEGIN

// out[v] = ln pi(v) of the rows softmax(logits[k]): the combination as logits like any model's. Hand them on as
// processed_row(out, sampling). Verified with p = that row and the policy `lossless`, drafts may be from any q.
// Tokens of which pi is below 2^-125 (floats) are masked. On any status but ok, `out` is of no use.
template <class Policy, class T, std::size_t N>
status combine_logits(const Policy& policy, const std::array<std::span<const T>, N>& logits, std::span<T> out) {
  if (!valid(policy)) return status::invalid_parameter;
  std::array<softmax_row<T>, N> rows;
  for (std::size_t k = 0; k < N; ++k) {
    if (logits[k].size() != out.size()) return status::vocabulary_mismatch;
    rows[k] = softmax_row<T>(logits[k]);
  }
  return with_models(policy, rows, [&](const auto& all, const auto& pi) {
    const double total = all.sum(pi);
    if (!(total > 0 && total < infinity)) return status::undefined_target;
    for (std::size_t v = 0; v < out.size(); v += 16) {
      const int lanes = out.size() - v < 16 ? int(out.size() - v) : 16;
      T x[16];
      log(uncontracted(pi(all.open(v, std::size_t(lanes)).template operator()<vec<T, 16>>(0, lanes)))).store(x);
      std::copy_n(x, lanes, out.data() + v);
    }
    return status::ok;
  });
}

// The same choice as a policy, for decoders: collaborative_decode(..., raw_logits{ensemble{0.3}}, ...) of n models, and
// speculative_decode with the verifier of verify/raw_logits.hpp.
template <class Policy>
struct raw_logits {
  Policy policy;
  static constexpr bool reads_confidence = false;  // of processed rows
  constexpr bool valid() const { return specagg::valid(policy); }
};
template <class Policy>
raw_logits(Policy) -> raw_logits<Policy>;
template <class Policy>
constexpr bool is_raw_logits = false;
template <class Policy>
constexpr bool is_raw_logits<raw_logits<Policy>> = true;

SPECAGG_END
