// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: rows must know how many they are: pass a span or vector of.*docs/types.md
#include <specagg/decoders.hpp>

#include <array>

specagg::verdict verify(const specagg::draft& draft, const std::array<float, 8>& q,
                        const std::array<float, 8>& p);
specagg::verdict verify(const specagg::draft& draft, const std::array<float, 8>& q,
                        const std::array<float, 8>& p) {
  specagg::random_streams chooser(1);
  std::array<specagg::emission, 2> out;
  std::array<double, 1> scratch;
  const auto row = [&](std::size_t j) {
    return specagg::softmax_row<float>(std::span(q).subspan(4 * j, 4));
  };
#ifdef SPECAGG_BROKEN
  const auto& q_rows = row;
#else
  const auto q_rows = specagg::rows_of(2, row);
#endif
  const auto p_rows = specagg::rows_of_logits(p, 4);
  return specagg::verify_token(draft, q_rows, p_rows, specagg::ensemble{0.3}, chooser, out,
                               scratch);
}
