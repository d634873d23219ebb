// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: rows must know how many they are: pass a span or vector of.*docs/types.md
// {q} names no type.
#include <specagg/decoders.hpp>

#include <array>

#ifdef SPECAGG_BROKEN
#define ROWS(...) {__VA_ARGS__}
#else
#define ROWS(...) \
  std::array { __VA_ARGS__ }
#endif

specagg::verdict verify(const specagg::draft& draft, const std::array<float, 4>& q,
                        const std::array<float, 4>& p);
specagg::verdict verify(const specagg::draft& draft, const std::array<float, 4>& q,
                        const std::array<float, 4>& p) {
  specagg::random_streams chooser(1);
  std::array<specagg::emission, 2> out;
  std::array<double, 1> scratch;
  return specagg::verify_token(draft, ROWS(q, q), ROWS(p, p), specagg::lossless{}, chooser, out,
                               scratch);
}
