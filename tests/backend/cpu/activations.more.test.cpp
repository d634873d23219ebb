// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/activations.hpp>

#include <cmath>
#include <limits>
#include <random>

#include "support/catch.hpp"

using namespace specagg::cpu;

namespace {

struct rounded_block {
  std::int8_t first[32], second[32];
  float scale = -1, sum = -1, second_scale = -1, second_sum = -1;
  bool has_second;
  explicit rounded_block(const float* x)
      : has_second(detail::round_block(x, first, scale, sum, second, second_scale, second_sum)) {}
  double value(int i) const {
    return double(scale) * first[i] + (has_second ? double(second_scale) * second[i] : 0);
  }
};

}  // namespace

TEST_CASE(
    "rounded activations are within (1/2 + 2^-15) of a scale, a second part within that of its "
    "own") {
  std::mt19937 random(1);
  int with_second = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const float size = std::ldexp(1.f, static_cast<int>(random() % 180) - 90),
                outlier = trial % 3 == 0 ? 300.f : 1.f;
    float x[32];
    for (float& v : x) v = size * std::normal_distribution<float>()(random);
    x[random() % 32] *= outlier;
    const rounded_block r(x);
    double largest = 0, all = 0, sum = 0, second_sum = 0;
    for (int i = 0; i < 32; ++i) {
      largest = std::max(largest, double(std::abs(x[i])));
      all += std::abs(x[i]);
      sum += r.first[i];
      second_sum += r.second[i];
      CHECK(std::abs(int(r.first[i])) <= 127);
      const double scale = r.has_second ? r.second_scale : r.scale;
      CHECK(std::abs(x[i] - r.value(i)) <= (0.5 + 0x1p-15) * scale);
    }
    CHECK(r.sum == sum);
    CHECK(std::abs(r.scale * 127 / largest - 1) < 1e-6);
    if (std::abs(32 * largest / (12 * all) - 1) > 1e-5)
      CHECK(r.has_second == (largest > 12 * all / 32));
    if (!r.has_second) continue;
    ++with_second;
    CHECK(r.second_sum == second_sum);
    CHECK(r.second_scale <= r.scale / 250);
  }
  CHECK(with_second > 1000);
}

TEST_CASE("a block of nothing is zeros. Numbers that are not finite make its scale NaN") {
  float x[32] = {};
  const auto all_zero = [](const rounded_block& r) {
    return std::all_of(r.first, r.first + 32, [](std::int8_t k) { return k == 0; }) && r.sum == 0 &&
           !r.has_second;
  };
  CHECK((all_zero(rounded_block(x)) && rounded_block(x).scale == 0));
  x[3] = 0x1p-100f;
  x[4] = -0x1p-140f;
  CHECK((all_zero(rounded_block(x)) && rounded_block(x).scale == 0));
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()})
    for (int i = 0; i < 32; ++i) {
      for (float& v : x) v = 1;
      x[i] = bad;
      CHECK((all_zero(rounded_block(x)) && std::isnan(rounded_block(x).scale)));
    }
}

TEST_CASE("a buffer of activations is aligned, zero and as large as asked for") {
  for (std::size_t rows : {1u, 3u})
    for (std::size_t cols : {1u, 16u, 33u}) {
      activation_buffer buffer(rows, cols);
      auto x = buffer.top(rows);
      CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
      CHECK((x.rows() == Eigen::Index(rows) && x.cols() == Eigen::Index(cols)));
      CHECK((x == 0).all());
      x.fill(1);
      CHECK(x.outerStride() == Eigen::Index(padded(cols)));
    }
}
