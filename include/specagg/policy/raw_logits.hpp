// SPDX-License-Identifier: Apache-2.0
// Models can be combined in three ways. A combiner alone gets processed rows, to which each model's
// temperature and filters have been applied. It combines their probabilities or (log_linear.hpp,
// contrastive.hpp) their logits. raw_logits is the third way: it combines the models' unprocessed
// logits, and then temperature and filters are applied to the result.
#pragma once
#include <specagg/policy/models.hpp>
#include <specagg/rows/process.hpp>

SPECAGG_BEGIN

// out[v] = ln pi(v), with pi of the rows softmax(logits[k]). The result can be used like the logits
// of any model: make processed_row(out, sampling) of it. Verify with that row as p and the policy
// `lossless`; the draft may be from any q. Tokens with pi below 2^-125 (floats) are masked. If the
// status is not ok, `out` has no meaning.
template <class Policy, class T, std::size_t N>
status combine_logits(const Policy& policy, const std::array<std::span<const T>, N>& logits,
                      std::span<T> out) {
  if (!specagg::valid(policy)) return status::invalid_parameter;
  std::array<softmax_row<T>, N> rows;
  for (std::size_t k = 0; k < N; ++k) {
    if (logits[k].size() != out.size()) return status::vocabulary_mismatch;
    rows[k] = softmax_row<T>(logits[k]);
  }
  return specagg::with_models(policy, rows, [&](const auto& all, const auto& pi) {
    const double total = all.sum(pi);
    if (!(total > 0 && total < infinity)) return status::undefined_target;
    for (std::size_t v = 0; v < out.size(); v += 16) {
      const int lanes = out.size() - v < 16 ? int(out.size() - v) : 16;
      T x[16];
      log(uncontracted(
              pi(all.open(v, std::size_t(lanes)).template operator()<vec<T, 16>>(0, lanes))))
          .store(x);
      std::copy_n(x, lanes, out.data() + v);
    }
    return status::ok;
  });
}

// combine_logits as a policy for decoders: collaborative_decode(..., raw_logits{ensemble{0.3}},
// ...) with n models, and speculative_decode with the verifier of verify/raw_logits.hpp.
template <class Policy>
struct raw_logits {
  Policy policy;
  static constexpr bool reads_confidence = false;  // rows at temperature 1 are not read
  static constexpr std::size_t models = models_of<Policy>;
  constexpr bool valid() const { return specagg::valid(policy); }
};
template <class Policy>
raw_logits(Policy) -> raw_logits<Policy>;
// Whether a policy is raw_logits, or checked{raw_logits} (policy/checked.hpp).
template <class Policy>
constexpr bool is_raw_logits = false;
template <class Policy>
constexpr bool is_raw_logits<raw_logits<Policy>> = true;

// Calls f(rows, pi) with the processed rows of N models at one position and the law bound to them,
// and returns its status, or what is wrong with a row. If the policy is raw_logits, pi is one more
// row after the models' rows, processed as `sample` says. Its V logits are written to `combined`.
// For other policies `combined` is not used and may be empty.
template <class Policy, Row R, class T, std::size_t N, class F>
status with_law_of(const Policy& policy, const std::array<R, N>& row, const sampling& sample,
                   std::span<T> combined, F&& f) {
  if constexpr (is_raw_logits<Policy>) {
    using normalised = normal_form<processed_row<T>>;
    std::array<std::span<const T>, N> logits;
    std::array<normalised, N + 1> all;
    for (std::size_t k = 0; k < N; ++k) {
      all[k] = specagg::normalise(row[k]);
      if (all[k].why() != status::ok) return all[k].why();
      logits[k] = {row[k].logits(), row[k].size()};
    }
    const status s = specagg::combine_logits(policy.policy, logits, combined);
    if (s != status::ok) return s;
    all[N] = specagg::normalise(processed_row<T>(combined, sample));
    if (all[N].why() != status::ok) return all[N].why();
    return f(model_rows<normalised, N + 1>(all), [](auto at) { return model<N>(at); });
  } else {
    return specagg::with_models(policy, row, f);
  }
}

SPECAGG_END
