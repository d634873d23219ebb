// SPDX-License-Identifier: Apache-2.0
// What the device computes in its own way of a row's temperature.
#define SPECAGG_SCALAR  // as cuda/agree.hpp
#include <specagg/backend/cuda/row_sums.hpp>

#include <cmath>
#include <random>

#include "support/catch.hpp"

TEST_CASE("cuda: the scale of a row is the quotient's, and its reciprocal is near") {
  namespace device = specagg::cuda::detail;
  std::mt19937_64 bits(71);
  const auto upto = [&](double most) { return std::ldexp(double(bits() >> 11), -53) * most; };
  const double least = 4.0 / double(std::numeric_limits<float>::max());
  constexpr double log2e = specagg::detail::coefficients<double>::log2e,
                   epsilon = double(std::numeric_limits<float>::epsilon());
  double worst = 0;
  std::size_t wrong = 0;
  for (int i = 0; i < 400'000; ++i) {
    const double t = i == 0       ? std::nextafter(least, 1.)
                     : i == 1     ? 0x1.fffffcp117
                     : i % 2 == 0 ? std::ldexp(1 + upto(1), int(upto(243)) - 125)
                                  : double(float(upto(4) + 0.01));
    const double near = (1 / t) * (1 + (upto(2) - 1) * 0x1p-6);
    wrong += device::quotient_of(log2e, t, near) != log2e / t;
    const device::row_scales scales(t);
    REQUIRE((scales.valid && !scales.greedy));
    const double off = double(scales.sampled) * double(scales.per_sampled) - 1;
    worst = std::max(worst, std::abs(off));
  }
  CHECK(wrong == 0);
  CHECK(worst > epsilon / 4);
  CHECK(worst <= epsilon);
}
