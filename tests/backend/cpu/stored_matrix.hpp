// SPDX-License-Identifier: Apache-2.0
// Matrices of random weights, as a file stores them.
#pragma once
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <specagg/backend/cpu/tensor.hpp>

#include "backend/cpu/gguf_writer.hpp"

namespace test {

using specagg::cpu::tensor;
using specagg::cpu::tensor_type;

// A weight matrix with random bits that are no infinities or NaNs, and what its elements are in
// double.
struct stored_matrix {
  std::vector<std::byte> bytes;
  // sizes: |w| of the error bound in integer_product.hpp; empty for floats
  std::vector<double> numbers, sizes;
  tensor w;

  stored_matrix(tensor_type type, std::size_t rows, std::size_t cols, std::mt19937& random) {
    const auto half = [](std::uint16_t h) {
      const int exponent = h >> 10 & 31, mantissa = h & 1023;
      const double x =
          exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
      return h >> 15 ? -x : x;
    };
    const auto put = [&](const std::string& raw) {
      for (char c : raw) bytes.push_back(static_cast<std::byte>(c));
    };
    double scale = 0;
    for (std::size_t i = 0; i < rows * cols; ++i) {
      if (type == tensor_type::f32) {
        const auto x = std::uniform_real_distribution<float>(-1, 1)(random);
        put(raw(x));
        numbers.push_back(x);
      } else if (type == tensor_type::f16) {
        const auto h = static_cast<std::uint16_t>(random() & 0xbfffu);  // below 2, with subnormals
        put(raw(h));
        numbers.push_back(half(h));
      } else if (type == tensor_type::bf16) {
        const auto x = std::uniform_real_distribution<float>(-1, 1)(random);
        const auto bits = std::bit_cast<std::uint32_t>(x) & 0xffff0000u;
        put(raw(static_cast<std::uint16_t>(bits >> 16)));
        numbers.push_back(std::bit_cast<float>(bits));
      } else if (type != tensor_type::q8_0) {
        if (i % 32 != 0) continue;
        const auto d = static_cast<std::uint16_t>(random() & 0xafffu),
                   m = static_cast<std::uint16_t>(random() & 0xafffu);
        put(raw(d));
        if (type == tensor_type::q4_1) put(raw(m));
        std::uint8_t k[16];
        for (auto& two : k) two = static_cast<std::uint8_t>(random());
        put(std::string(reinterpret_cast<const char*>(k), sizeof k));
        for (int element = 0; element < 32; ++element) {
          const int q = element < 16 ? k[element] & 15 : k[element - 16] >> 4;
          numbers.push_back(type == tensor_type::q4_0 ? half(d) * (q - 8)
                                                      : double(float(half(d) * q + half(m))));
          sizes.push_back(type == tensor_type::q4_0 ? std::abs(half(d) * (q - 8))
                                                    : std::abs(half(d) * q) + std::abs(half(m)));
        }
      } else {
        if (i % 32 == 0) {
          const auto h = static_cast<std::uint16_t>(random() & 0xafffu);
          put(raw(h));
          scale = half(h);
        }
        const auto q = static_cast<std::int8_t>(random());
        put(raw(q));
        numbers.push_back(scale * q);
        sizes.push_back(std::abs(scale * q));
      }
    }
    w.type = type;
    w.rank = 2;
    w.rows = rows;
    w.cols = cols;
    w.data = bytes.data();
  }
};

inline const std::vector<tensor_type> float_types = {tensor_type::f32, tensor_type::f16,
                                                     tensor_type::bf16};
inline const std::vector<tensor_type> quantised_types = {tensor_type::q4_0, tensor_type::q4_1,
                                                         tensor_type::q8_0};

}  // namespace test
