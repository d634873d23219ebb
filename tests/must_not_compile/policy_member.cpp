// SPDX-License-Identifier: Apache-2.0
// EXPECT: (no member named .target. in|has no member named .target)
// ERRORS: 2
// The compiler itself says the first; the second says what a policy is.
#include <specagg/decoders.hpp>

#include <array>

struct half {
  template <class Rows>
  auto bind(const Rows&) const {
#ifdef SPECAGG_BROKEN
    return [](auto at) { return 0.5 * at.target + 0.5 * at.q; };
#else
    return [](auto at) { return 0.5 * at.p + 0.5 * at.q; };
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
  return specagg::verify_token(draft, rows, rows, half{}, chooser, out, scratch);
}
