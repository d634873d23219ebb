// SPDX-License-Identifier: Apache-2.0
// What an engine without exceptions and RTTI writes: two rows, a drafted token, a verdict.
#include <specagg/decoders.hpp>

#include <array>
#include <cstdio>

int main() {
  static_assert(SPECAGG_VERSION_MAJOR == 0);
  const std::array<std::array<float, 4>, 1> q{{{0.7F, 0.1F, 0.1F, 0.1F}}};
  const std::array<std::array<float, 4>, 2> p{{{0.1F, 0.2F, 0.3F, 0.4F}, {0, 0, 1, 0}}};
  const specagg::token_id drafted[] = {3};  // q(3) < p(3): certainly accepted

  specagg::random_streams chooser(42);
  std::array<specagg::emission, 2> out;
  std::array<double, specagg::verify_scratch(4)> scratch;
  const auto verdict =
      specagg::verify_token({.tokens = drafted}, q, p, specagg::lossless{}, chooser, out, scratch);

  std::printf("specagg %s: %s, %zu tokens\n", SPECAGG_VERSION, specagg::name(verdict.why),
              verdict.emitted);
  return verdict.emitted == 2 && out[0].token == 3 && out[1].token == 2 ? 0 : 1;
}
