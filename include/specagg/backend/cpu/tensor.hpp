// SPDX-License-Identifier: Apache-2.0
// A tensor as it is stored in a model file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {

// How the elements of a tensor are stored, with the numbers of the file format.
enum class tensor_type : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q8_0 = 8,
  bf16 = 30
};

// Quantised rows consist of blocks of 32 elements. A block has an F16 scale d, then
//   q8_0   32 signed bytes k; an element is d k
//   q4_0   16 bytes; their low halves k are elements 0..15, their high halves 16..31; an element is
//          d (k - 8)
//   q4_1   an F16 minimum m, then 16 bytes as in q4_0; an element is d k + m
inline constexpr std::size_t quantised_block = 32;
// Bytes of such a block; 0 for types that have none.
[[nodiscard]] constexpr std::size_t block_bytes(tensor_type type) {
  switch (type) {
    case tensor_type::q4_0: return 18;
    case tensor_type::q4_1: return 20;
    case tensor_type::q8_0: return 34;
    default: return 0;
  }
}

// A tensor whose name and data are in a file's memory, which must outlive it.
struct tensor {
  std::string_view name;
  tensor_type type{};
  unsigned rank = 0;  // 1..4
  // cols: the file's first dimension, contiguous; rows: the product of the others
  std::size_t rows = 0, cols = 0;
  // the product of the dimensions after the second (1 for a vector or a matrix)
  std::size_t outer = 0;
  const std::byte* data = nullptr;  // bytes_of() bytes, aligned to at least 8
};

// Bytes of a row of `cols` elements. cols: a multiple of 32 if the type is quantised.
[[nodiscard]] constexpr std::size_t row_bytes(tensor_type type, std::size_t cols) {
  if (block_bytes(type) > 0) return cols / quantised_block * block_bytes(type);
  return cols * (type == tensor_type::f32 ? 4 : 2);
}

// Bytes of all rows.
[[nodiscard]] constexpr std::size_t bytes_of(const tensor& t) {
  return t.rows * row_bytes(t.type, t.cols);
}

namespace detail {

// Calls f.operator()<type>().
void with_type(tensor_type type, const auto& f) {
  switch (type) {
    case tensor_type::f32: return f.template operator()<tensor_type::f32>();
    case tensor_type::f16: return f.template operator()<tensor_type::f16>();
    case tensor_type::bf16: return f.template operator()<tensor_type::bf16>();
    case tensor_type::q4_0: return f.template operator()<tensor_type::q4_0>();
    case tensor_type::q4_1: return f.template operator()<tensor_type::q4_1>();
    case tensor_type::q8_0: return f.template operator()<tensor_type::q8_0>();
  }
}

inline std::string tensor_type_name(std::uint32_t type) {
  static constexpr const char* names[] = {
      "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
      "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
      "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
      "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
      "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
      "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4"};
  return type < std::size(names) ? names[type] : std::to_string(type);
}

}  // namespace detail

}  // namespace cpu
SPECAGG_END
