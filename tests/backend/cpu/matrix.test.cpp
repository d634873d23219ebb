// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/matrix.hpp>

#include <cmath>
#include <random>

#include <specagg/backend/cpu/tensor_row.hpp>

#include "backend/cpu/gguf_writer.hpp"
#include "support/catch.hpp"

using namespace specagg::cpu;

namespace {

// A weight matrix with random bits that are no infinities or NaNs, and what its elements are in double.
struct stored_matrix {
  std::vector<std::byte> bytes;
  std::vector<double> numbers;
  tensor w;

  stored_matrix(tensor_type type, std::size_t rows, std::size_t cols, std::mt19937& random) {
    const auto half = [](std::uint16_t h) {
      const int exponent = h >> 10 & 31, mantissa = h & 1023;
      const double x = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
      return h >> 15 ? -x : x;
    };
    const auto put = [&](const std::string& raw) {
      for (char c : raw) bytes.push_back(static_cast<std::byte>(c));
    };
    double scale = 0;
    for (std::size_t i = 0; i < rows * cols; ++i) {
      if (type == tensor_type::f32) {
        const auto x = std::uniform_real_distribution<float>(-1, 1)(random);
        put(test::raw(x)), numbers.push_back(x);
      } else if (type == tensor_type::f16) {
        const auto h = static_cast<std::uint16_t>(random() & 0xbfffu);  // below 2, with subnormals
        put(test::raw(h)), numbers.push_back(half(h));
      } else if (type == tensor_type::bf16) {
        const auto x = std::uniform_real_distribution<float>(-1, 1)(random);
        const auto bits = std::bit_cast<std::uint32_t>(x) & 0xffff0000u;
        put(test::raw(static_cast<std::uint16_t>(bits >> 16))), numbers.push_back(std::bit_cast<float>(bits));
      } else if (type != tensor_type::q8_0) {
        if (i % 32 != 0) continue;
        const auto d = static_cast<std::uint16_t>(random() & 0x2fffu),
                   m = static_cast<std::uint16_t>(random() & 0xafffu);
        put(test::raw(d));
        if (type == tensor_type::q4_1) put(test::raw(m));
        std::uint8_t k[16];
        for (auto& two : k) two = static_cast<std::uint8_t>(random());
        put(std::string(reinterpret_cast<const char*>(k), sizeof k));
        for (int element = 0; element < 32; ++element) {
          const int q = element < 16 ? k[element] & 15 : k[element - 16] >> 4;
          numbers.push_back(type == tensor_type::q4_0 ? half(d) * (q - 8) : double(float(half(d) * q + half(m))));
        }
      } else {
        if (i % 32 == 0) {
          const auto h = static_cast<std::uint16_t>(random() & 0x2fffu);
          put(test::raw(h)), scale = half(h);
        }
        const auto q = static_cast<std::int8_t>(random());
        put(test::raw(q)), numbers.push_back(scale * q);
      }
    }
    w.type = type, w.rank = 2, w.rows = rows, w.cols = cols, w.data = bytes.data();
  }
};

const auto all_types = {tensor_type::f32,  tensor_type::f16,  tensor_type::bf16,
                        tensor_type::q4_0, tensor_type::q4_1, tensor_type::q8_0};

}  // namespace

TEST_CASE("a product of stored weights is within (cols / 16 + 4) 2^-24 sum |w x| of the exact one, for each type") {
  std::mt19937 random(3);
  for (auto type : all_types)
    for (std::size_t cols : {1u, 15u, 16u, 17u, 32u, 64u, 192u, 250u, 512u, 4096u}) {
      if (block_bytes(type) > 0 && cols % 32 != 0) continue;
      for (std::size_t rows : {1u, 3u, 4u, 9u}) {
        const stored_matrix m(type, rows, cols, random);
        for (std::size_t n : {1u, 2u, 5u, 7u}) {
          activation_buffer buffer(n, cols);
          auto x = buffer.top(n);
          for (std::size_t t = 0; t < n; ++t)
            for (std::size_t c = 0; c < cols; ++c)
              x(static_cast<Eigen::Index>(t), static_cast<Eigen::Index>(c)) = std::normal_distribution<float>()(random);
          std::vector<float> y(n * rows, 1e30f);
          multiply(m.w, 0, rows, x, y.data(), rows);
          double worst = 0;
          for (std::size_t t = 0; t < n; ++t)
            for (std::size_t r = 0; r < rows; ++r) {
              long double sum = 0, size = 0;
              for (std::size_t c = 0; c < cols; ++c) {
                const auto term = static_cast<long double>(m.numbers[r * cols + c]) *
                                  x(static_cast<Eigen::Index>(t), static_cast<Eigen::Index>(c));
                sum += term, size += std::abs(term);
              }
              const auto bound = (static_cast<long double>(cols) / 16 + 4) * 0x1p-24L * size + 1e-37L;
              worst = std::max(worst, static_cast<double>(std::abs(y[t * rows + r] - sum) / bound));
            }
          CHECK(worst <= 1);
        }
      }
    }
}

TEST_CASE("a token's products have the same bits alone, in any batch and in any range of rows") {
  std::mt19937 random(4);
  for (auto type : all_types)
    for (std::size_t cols : {32u, 96u, 100u}) {
      if (block_bytes(type) > 0 && cols % 32 != 0) continue;
      const std::size_t rows = 13, most = 20;
      const stored_matrix m(type, rows, cols, random);
      activation_buffer buffer(most, cols);
      auto x = buffer.top(most);
      for (Eigen::Index t = 0; t < x.rows(); ++t)
        for (Eigen::Index c = 0; c < x.cols(); ++c) x(t, c) = std::normal_distribution<float>()(random);
      std::vector<float> alone(most * rows), batched(most * rows);
      for (std::size_t t = 0; t < most; ++t) {
        const activations one(x.data() + static_cast<Eigen::Index>(t) * x.outerStride(), 1, x.cols(),
                              Eigen::OuterStride<>(x.outerStride()));
        multiply(m.w, 0, rows, one, alone.data() + t * rows, rows);
      }
      for (std::size_t n = 1; n <= most; ++n)
        for (std::size_t cut = 0; cut <= rows; ++cut) {
          std::fill(batched.begin(), batched.end(), 1e30f);
          multiply(m.w, 0, cut, buffer.top(n), batched.data(), rows);
          multiply(m.w, cut, rows, buffer.top(n), batched.data(), rows);
          CHECK(std::memcmp(batched.data(), alone.data(), n * rows * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("a row reads back as exactly the stored numbers") {
  std::mt19937 random(5);
  for (auto type : all_types) {
    const std::size_t cols = block_bytes(type) > 0 ? 96 : 45;
    const stored_matrix m(type, 3, cols, random);
    std::vector<float> row(cols);
    for (std::size_t r = 0; r < 3; ++r) {
      read_row(m.w, r, row.data());
      for (std::size_t c = 0; c < cols; ++c) CHECK(row[c] == m.numbers[r * cols + c]);
    }
  }
}
