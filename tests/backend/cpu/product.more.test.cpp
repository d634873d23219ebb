// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/product.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <specagg/backend/cpu/dots.hpp>  // a file a machine: specagg/backend/cpu/dots/
#include <specagg/backend/cpu/float_product.hpp>
#include <specagg/backend/cpu/integer_product.hpp>

#include "backend/cpu/stored_matrix.hpp"
#include "support/catch.hpp"

using namespace specagg::cpu;
using test::stored_matrix;

namespace {

// n rows of random activations; every fifth block of 32 has one number that is a hundred times
// larger, a third of them for all tokens.
struct random_activations {
  activation_buffer buffer;
  rounding_buffer rounding;
  std::size_t cols;
  random_activations(std::size_t n, std::size_t columns, std::mt19937& random)
      : buffer(n, columns), rounding(n, padded(columns) + 32), cols(columns) {
    auto x = buffer.top(n);
    for (Eigen::Index t = 0; t < x.rows(); ++t)
      for (Eigen::Index c = 0; c < x.cols(); ++c)
        x(t, c) = std::normal_distribution<float>()(random) *
                  (c % 32 == 7 && (c / 32 + (c % 96 < 32 ? 0 : t % 5)) % 5 == 0 ? 100.f : 1.f);
  }
  // The products of the first n tokens with rows [begin, end).
  void multiply(const matrix& w, std::size_t begin, std::size_t end, std::size_t n, float* y,
                std::size_t stride) {
    const auto x = buffer.top(n);
    rounded_activations rounded;
    if (w.strips) {
      rounding.round(x, 0, cols / 32);
      rounded = rounding.rows(n, cols / 32);
    }
    specagg::cpu::multiply(w, begin, end, x, rounded, y, stride);
  }
};

// Where the blocks of token t stand in the second part.
std::vector<std::size_t> in_second_part(const rounded_activations& x, std::size_t t) {
  std::vector<std::size_t> all;
  for (const auto& [b, tokens] : x.second_blocks)
    for (auto at = b * x.tokens; at < b * x.tokens + tokens; ++at)
      if (x.second_tokens[at] == t) all.push_back(at);
  return all;
}

const auto all_types = [] {
  auto all = test::float_types;
  all.insert(all.end(), test::quantised_types.begin(), test::quantised_types.end());
  return all;
}();

}  // namespace

TEST_CASE(
    "a product of float weights is within (cols / 16 + 4) 2^-24 sum |w x| of the exact one, for "
    "each type") {
  std::mt19937 random(3);
  for (auto type : test::float_types)
    for (std::size_t cols : {1u, 15u, 16u, 17u, 32u, 64u, 192u, 250u, 512u, 4096u})
      for (std::size_t rows : {1u, 3u, 4u, 9u}) {
        const stored_matrix m(type, rows, cols, random);
        for (std::size_t n : {1u, 2u, 5u, 7u}) {
          random_activations a(n, cols, random);
          std::vector<float> y(n * rows, 1e30f);
          a.multiply(repack(m.w), 0, rows, n, y.data(), rows);
          const auto x = a.buffer.top(n);
          double worst = 0;
          for (std::size_t t = 0; t < n; ++t)
            for (std::size_t r = 0; r < rows; ++r) {
              long double sum = 0, size = 0;
              for (std::size_t c = 0; c < cols; ++c) {
                const auto term = static_cast<long double>(m.numbers[r * cols + c]) *
                                  x(static_cast<Eigen::Index>(t), static_cast<Eigen::Index>(c));
                sum += term;
                size += std::abs(term);
              }
              const auto bound =
                  (static_cast<long double>(cols) / 16 + 4) * 0x1p-24L * size + 1e-37L;
              worst = std::max(worst, static_cast<double>(std::abs(y[t * rows + r] - sum) / bound));
            }
          CHECK(worst <= 1);
        }
      }
}

TEST_CASE("a product of quantised weights is within its bound of the exact one, for each type") {
  std::mt19937 random(6);
  for (auto type : test::quantised_types)
    for (std::size_t cols : {32u, 64u, 192u, 576u, 4096u})
      for (std::size_t rows : {1u, 15u, 16u, 17u, 40u}) {
        const stored_matrix m(type, rows, cols, random);
        const auto w = repack(m.w);
        for (std::size_t n : {1u, 2u, 5u, 13u}) {
          random_activations a(n, cols, random);
          std::vector<float> y(n * rows, 1e30f);
          a.multiply(w, 0, rows, n, y.data(), rows);
          const auto rounded = a.rounding.rows(n, cols / 32);
          double worst = 0;
          for (std::size_t t = 0; t < n; ++t)
            for (std::size_t r = 0; r < rows; ++r) {
              // of the rounded activations; |w| as integer_product.hpp says
              double sum = 0, size = 0;
              const auto add = [&](const rounded_part& part, std::size_t at) {
                const auto b = at / n;
                for (std::size_t i = 0; i < 32; ++i) {
                  const double x = double(part.scale[at]) * part.numbers[at * 32 + i];
                  sum += m.numbers[r * cols + b * 32 + i] * x;
                  size += m.sizes[r * cols + b * 32 + i] * std::abs(x);
                }
              };
              for (std::size_t b = 0; b < cols / 32; ++b) add(rounded.first, b * n + t);
              for (const auto at : in_second_part(rounded, t)) add(rounded.second, at);
              const double bound = (double(cols) / 8 + 4) * 0x1p-24 * size;
              worst = std::max(worst, std::abs(y[t * rows + r] - sum) / bound);
            }
          CHECK(worst <= 1);
        }
      }
}

TEST_CASE("a token's products have the same bits alone, in any batch and in any range of rows") {
  std::mt19937 random(4);
  for (auto type : all_types)
    for (std::size_t cols : {32u, 96u, 100u, 192u}) {
      if (block_bytes(type) > 0 && cols % 32 != 0) continue;
      const std::size_t rows = 37, most = 27;
      const stored_matrix m(type, rows, cols, random);
      const auto w = repack(m.w);
      random_activations a(most, cols, random), one(1, cols, random);
      std::vector<float> alone(most * rows), batched(most * rows);
      for (std::size_t t = 0; t < most; ++t) {
        one.buffer.top(1).row(0) = a.buffer.top(most).row(static_cast<Eigen::Index>(t));
        one.multiply(w, 0, rows, 1, alone.data() + t * rows, rows);
      }
      for (std::size_t n = 1; n <= most; ++n)
        for (std::size_t cut : {0u, 1u, 7u, 15u, 16u, 17u, 32u, 36u, 37u}) {
          std::fill(batched.begin(), batched.end(), 1e30f);
          a.multiply(w, 0, cut, n, batched.data(), rows);
          a.multiply(w, cut, rows, n, batched.data() + cut, rows);
          CHECK(std::memcmp(batched.data(), alone.data(), n * rows * sizeof(float)) == 0);
        }
    }
}

namespace {

// The steps of integer_product.hpp for row r and token t of n, in plain numbers.
float stated_product(const stored_matrix& m, const rounded_activations& x, std::size_t r,
                     std::size_t t, std::size_t n) {
  float acc = 0;
  const auto add = [&](const rounded_part& part, std::size_t at) {
    const auto b = at / n;
    const std::byte* block = m.bytes.data() + (r * m.w.cols / 32 + b) * block_bytes(m.w.type);
    const auto half = [&](std::size_t byte) {
      std::uint16_t bits;
      std::memcpy(&bits, block + byte, sizeof bits);
      return specagg::detail::float_of_f16(bits);
    };
    const float d = half(0), s = part.scale[at];
    int sum = 0, total = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      const int byte = std::to_integer<int>(
          block[m.w.type == tensor_type::q8_0 ? 2 + i : block_bytes(m.w.type) - 16 + i % 16]);
      const int half_byte = i < 16 ? byte & 15 : byte >> 4;
      const int k = m.w.type == tensor_type::q8_0   ? static_cast<std::int8_t>(byte)
                    : m.w.type == tensor_type::q4_0 ? half_byte - 8
                                                    : half_byte;
      const int number = part.numbers[at * 32 + i];
      sum += k * number;
      total += number;
    }
    const float ds = d * s, st = s * float(total);
    acc = std::fma(ds, float(sum), acc);
    if (m.w.type == tensor_type::q4_1) acc = std::fma(half(2), st, acc);
  };
  for (std::size_t b = 0; b < m.w.cols / 32; ++b) add(x.first, b * n + t);
  for (const auto at : in_second_part(x, t)) add(x.second, at);
  return acc;
}

}  // namespace

TEST_CASE(
    "a product of quantised weights has the bits of the stated steps, with the largest whole "
    "numbers, too") {
  std::mt19937 random(8);
  const std::size_t rows = 19, cols = 96, most = 33;
  for (auto type : test::quantised_types)
    for (const int bytes : {-1, 0x00, 0x7f, 0x80, 0xff})  // -1: random numbers
      for (const float x : {0.f, 127.f, -127.f}) {        // 0: random
        stored_matrix m(type, rows, cols, random);
        for (std::size_t i = 0; i < m.bytes.size() && bytes >= 0; ++i)
          if (i % block_bytes(type) >= (type == tensor_type::q4_1 ? 4u : 2u))
            m.bytes[i] = static_cast<std::byte>(bytes);
        const auto w = repack(m.w);
        random_activations a(most, cols, random);
        if (x != 0) a.buffer.top(most).fill(x);
        std::vector<float> y(most * rows);
        for (std::size_t n = 1; n <= most; ++n) {
          a.multiply(w, 0, rows, n, y.data(), rows);
          const auto rounded = a.rounding.rows(n, cols / 32);
          std::size_t wrong = 0;
          for (std::size_t t = 0; t < n; ++t)
            for (std::size_t r = 0; r < rows; ++r)
              wrong += std::bit_cast<std::uint32_t>(y[t * rows + r]) !=
                       std::bit_cast<std::uint32_t>(stated_product(m, rounded, r, t, n));
          CHECK(wrong == 0);
        }
      }
}

TEST_CASE("a token with a number that is not finite has products that are NaN, the others not") {
  std::mt19937 random(9);
  for (auto type : test::quantised_types)
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      const std::size_t rows = 17, cols = 64, n = 17;
      const stored_matrix m(type, rows, cols, random);
      random_activations a(n, cols, random);
      a.buffer.top(n)(11, 40) = bad;
      std::vector<float> y(n * rows);
      a.multiply(repack(m.w), 0, rows, n, y.data(), rows);
      for (std::size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i / rows == 11));
    }
}
