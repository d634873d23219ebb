// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: bind.rows. of a policy returns a function: .*docs/write-your-own-policy.md
#include <specagg/decoders.hpp>

#include <array>

struct half_of_p {
  template <class Rows>
  auto bind(const Rows&) const {
#ifdef SPECAGG_BROKEN
    return [](auto) { return "half"; };
#else
    return [](auto at) { return at.p; };
#endif
  }
};

specagg::verdict verify(const specagg::draft& draft,
                        const std::array<std::array<float, 4>, 2>& rows);
specagg::verdict verify(const specagg::draft& draft,
                        const std::array<std::array<float, 4>, 2>& rows) {
  specagg::random_streams chooser(1);
  std::array<specagg::emission, 2> out;
  std::array<double, 1> scratch;
  return specagg::verify_token(draft, rows, rows, half_of_p{}, chooser, out, scratch);
}
