// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: a policy is a struct with a member `template.*docs/write-your-own-policy.md
#include <specagg/decoders.hpp>

#include <array>

struct half {
  template <class Rows>
#ifdef SPECAGG_BROKEN
  auto law(const Rows&) const {
#else
  auto bind(const Rows&) const {
#endif
      return [](auto at) { return 0.5 * at.p + 0.5 * at.q; };
}
}
;

specagg::verdict verify(const specagg::draft& draft,
                        const std::array<std::array<float, 4>, 2>& rows);
specagg::verdict verify(const specagg::draft& draft,
                        const std::array<std::array<float, 4>, 2>& rows) {
  specagg::random_streams chooser(1);
  std::array<specagg::emission, 2> out;
  std::array<double, 1> scratch;
  return specagg::verify_token(draft, rows, rows, half{}, chooser, out, scratch);
}
