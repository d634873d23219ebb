// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: logits are a span, vector or array \(docs/engine.md\)
#include <specagg/decoders.hpp>

#include <array>

specagg::verdict verify(const specagg::draft& draft, const float* q, const float* p);
specagg::verdict verify(const specagg::draft& draft, const float* q, const float* p) {
  std::array<specagg::emission, 2> out;
  std::array<double, 1> scratch;
#ifdef SPECAGG_BROKEN
  const auto p_rows = specagg::rows_of_logits(p, 4);
#else
  const auto p_rows = specagg::rows_of_logits(std::span(p, 8), 4);
#endif
  return specagg::verify_token(draft, specagg::rows_of_logits(std::span(q, 4), 4), p_rows,
                               specagg::lossless{}, specagg::random_streams(1), out, scratch);
}
