// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: the rows of draft and target must have one value type.*docs/types.md
#include <specagg/decoders.hpp>

#include <array>

#ifdef SPECAGG_BROKEN
using number = double;
#else
using number = float;
#endif
using rows_of_p = std::array<std::array<float, 4>, 2>;
using rows_of_q = std::array<std::array<number, 4>, 1>;

specagg::verdict verify(const specagg::draft& draft, const rows_of_q& q, const rows_of_p& p);
specagg::verdict verify(const specagg::draft& draft, const rows_of_q& q, const rows_of_p& p) {
  specagg::random_streams chooser(1);
  std::array<specagg::emission, 2> out;
  std::array<double, 1> scratch;
  return specagg::verify_token(draft, q, p, specagg::token_v3{0.3}, chooser, out, scratch);
}
