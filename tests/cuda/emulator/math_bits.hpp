// SPDX-License-Identifier: Apache-2.0
// The bits of the arithmetic that verification is made of, for two builds of the library to
// compare. Included after the library's headers, in one file of each.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

#include "support/numbers.hpp"

static std::vector<std::uint32_t> math_bits() {
  using V = specagg::vec<float, 4>;
  numbers random(3);
  std::vector<std::uint32_t> bits;
  const auto add = [&](V x) {
    float y[4];
    x.store(y);
    for (const float z : y) bits.push_back(std::bit_cast<std::uint32_t>(z));
  };
  for (int i = 0; i < 20000; ++i) {
    float a[4], b[4], c[4];
    for (int k = 0; k < 4; ++k) {
      a[k] = float(std::exp(20 * random.bell()));
      b[k] = float(random.bell());
      // what a product rounds to is seen in the sum
      c[k] = -a[k] * b[k] * float(1 + 1e-6 * random.bell());
    }
    const V x = V::load(a), y = V::load(b), z = V::load(c);
    add(x + z);
    add(x - y);
    add(x * y);
    add(y / x);
    add(fma(x, y, z));
    add(uncontracted(x * y) + z);
    add(exp(y * 40));
    add(log(x));
    add(sqrt(x));
    const double d[] = {double(a[0]), double(b[1]), double(c[2])};
    const specagg::vec<double, 1> u(d[0]), v(d[1]), w(d[2]);
    const auto sum = std::bit_cast<std::uint64_t>(fma(u, v, w).v + (u * v / w).v);
    bits.push_back(std::uint32_t(sum));
    bits.push_back(std::uint32_t(sum >> 32));
  }
  for (std::uint32_t h = 0; h < 65536; ++h) {
    bits.push_back(
        std::bit_cast<std::uint32_t>(specagg::detail::number(specagg::f16{std::uint16_t(h)})));
    bits.push_back(
        std::bit_cast<std::uint32_t>(specagg::detail::number(specagg::bf16{std::uint16_t(h)})));
  }
  return bits;
}
