// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: logits are float, double, specagg::bf16 or specagg::f16
#include <specagg/decoders.hpp>

#include <array>

#ifdef SPECAGG_BROKEN
using number = int;
#else
using number = specagg::bf16;
#endif

specagg::verdict verify(const specagg::draft& draft, std::span<const number> logits);
specagg::verdict verify(const specagg::draft& draft, std::span<const number> logits) {
  std::array<specagg::emission, 2> out;
  std::array<double, 1> scratch;
  return specagg::verify_token(draft, specagg::rows_of_logits(logits.first(4), 4),
                               specagg::rows_of_logits(logits, 4), specagg::lossless{},
                               specagg::random_streams(1), out, scratch);
}
