// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: logits that the rows view need a name \(docs/engine.md\)
#include <specagg/decoders.hpp>

#include <vector>

specagg::verdict verify(const specagg::draft& draft, const std::vector<float>& q);
specagg::verdict verify(const specagg::draft& draft, const std::vector<float>& q) {
  std::vector<specagg::emission> out(2);
  std::vector<double> scratch(1);
#ifdef SPECAGG_BROKEN
  const auto p_rows = specagg::rows_of_logits(std::vector<float>(8), 4);
#else
  const std::vector<float> p(8);
  const auto p_rows = specagg::rows_of_logits(p, 4);
#endif
  return specagg::verify_token(draft, specagg::rows_of_logits(q, 4), p_rows, specagg::lossless{},
                               specagg::random_streams(1), out, scratch);
}
