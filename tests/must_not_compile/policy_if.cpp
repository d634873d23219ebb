// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: a policy compares 16 tokens at once.*select.*docs/write-your-own-policy.md
#include <specagg/decoders.hpp>

#include <array>

struct truncated {  // q where p is small
  double alpha;
  template <class Rows>
  auto bind(const Rows&) const {
#ifdef SPECAGG_BROKEN
    return [a = alpha](auto at) {
      if (at.p < a && at.q < a) return at.q;
      return at.p;
    };
#else
    return [a = alpha](auto at) { return select((at.p < a) & (at.q < a), at.q, at.p); };
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
  return specagg::verify_token(draft, rows, rows, truncated{0.1}, chooser, out, scratch);
}
