// SPDX-License-Identifier: Apache-2.0
// EXPECT: nodiscard.*verify_token.*
// ERRORS: 2
#include <array>

#include <specagg/specagg.hpp>

#pragma GCC diagnostic error "-Wunused-result"

using row = specagg::dense_row<float>;

void step(row& q, std::span<specagg::emission> out, std::span<double> scratch);
void step(row& q, std::span<specagg::emission> out, std::span<double> scratch) {
  specagg::random_streams chooser(1);
  const std::array<specagg::token_id, 1> y{0};
#ifdef SPECAGG_BROKEN
  normalise(q);
  specagg::verify_token({y}, std::span(&q, 1), std::span(&q, 1), specagg::lossless(), chooser, out,
                        scratch);
#else
  (void)normalise(q);
  (void)specagg::verify_token({y}, std::span(&q, 1), std::span(&q, 1), specagg::lossless(), chooser,
                              out, scratch);
#endif
}
