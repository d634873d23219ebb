// SPDX-License-Identifier: Apache-2.0
// What a law is worth at one position of a held-out text, computed from the whole rows: nothing is
// sampled.
#pragma once
#include <specagg/decoders.hpp>

namespace experiments {

// Probabilities in double, sampled and at temperature 1: what `specagg law` computes with.
using row = specagg::confident_row<specagg::dense_row<double>, specagg::dense_row<double>>;

inline std::vector<double> probabilities(std::span<const float> logits, double temperature) {
  const auto row =
      specagg::normalise(specagg::processed_row<float>(logits, {.temperature = temperature}));
  std::vector<double> x(logits.size());
  if (row.why() == specagg::status::ok)
    for (std::size_t v = 0; v < x.size(); ++v) x[v] = double(row[v]);
  return x;
}

struct outcome {
  double rejection = 0;      // of a token drawn from q, sum (q - pi)+
  double cross_entropy = 0;  // -log pi(y), y the token that stands in the text
  double sampled = 0;        // pi(y): how often a token drawn from pi is right
  double most_likely = 0;    // 1 if y is argmax pi, of equals the lowest id
  double tv = 0, kl = 0;     // TV(pi, p) and, if asked for, KL(p || pi)
};

template <class Policy>
specagg::status measure(const Policy& policy, const row& q, const row& p, specagg::token_id y,
                        bool with_kl, outcome& out) {
  using namespace specagg;
  constexpr bool confidence = reads_confidence<Policy>;
  if (!valid(policy)) return status::invalid_parameter;
  const auto q_row = normalise(q, confidence), p_row = normalise(p, confidence);
  if (q_row.why() != status::ok) return q_row.why();
  if (p_row.why() != status::ok) return p_row.why();
  const row_pair<confidence, normal_form<row>, normal_form<row>> rows(q_row, p_row);
  const auto pi = policy.bind(rows);
  const auto away = rows.sum([&](auto at) {
    const auto x = pi(at);
    return both(positive(at.q - x), positive(x - at.p));
  });
  const double top = rows.max(pi), right = as_double(pi(at(rows, std::size_t(y))));
  if (!(top < infinity)) return status::undefined_target;
  out = {away.first, -std::log(right), right, double(right == top), away.second, 0};
  const auto largest = [&](auto at) {
    auto x = pi(at);
    return select(x == decltype(x)(top), decltype(x)(1), decltype(x)(0));
  };
  if (out.most_likely > 0 && rows.sum(largest) > 1)  // the lowest id wins
    for (std::size_t v = 0; v < std::size_t(y); ++v)
      if (as_double(pi(at(rows, v))) == top) out.most_likely = 0;
  if (with_kl) out.kl = kl_divergence(rows, [](auto at) { return at.p; }, pi);
  return status::ok;
}

}  // namespace experiments
