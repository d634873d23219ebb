// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cuda/llama_kernels.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"

using namespace specagg;

TEST_CASE(
    "rounding to 16 bits is to nearest, ties to even, for every 16-bit float and all halfway "
    "points") {
  const auto check = [](auto type, unsigned infinity) {
    using E = decltype(type);
    const auto value = [](unsigned bits) {
      return specagg::detail::number(E{static_cast<std::uint16_t>(bits)});
    };
    const auto bits = [](float x) { return unsigned{cuda::llama_kernels::rounded<E>(x).bits}; };
    for (unsigned h = 0; h < infinity; ++h) {
      const float x = value(h), next = h + 1 < infinity ? value(h + 1) : 2 * x - value(h - 1),
                  half = x + (next - x) / 2;
      REQUIRE(bits(x) == h);
      REQUIRE(bits(-x) == (h | 0x8000u));
      if (!std::isfinite(half)) continue;
      REQUIRE(bits(half) == h + h % 2);
      REQUIRE(bits(std::nextafter(half, 0.f)) == h);
      REQUIRE(bits(std::nextafter(half, std::numeric_limits<float>::infinity())) == h + 1);
    }
    REQUIRE(bits(std::numeric_limits<float>::infinity()) == infinity);
    REQUIRE(std::isnan(value(bits(std::numeric_limits<float>::quiet_NaN()))));
    REQUIRE(std::isnan(value(bits(std::numeric_limits<float>::signaling_NaN()))));
  };
  check(f16{}, 0x7c00);
  check(bf16{}, 0x7f80);
}
