// SPDX-License-Identifier: Apache-2.0
// 16-bit floats, as engines store logits. Rows of them are converted to float without error
// (kernel/simd.hpp). Plain data: the same type in every translation unit.
#pragma once
#include <cstdint>
#include <type_traits>

namespace specagg {

struct f16 {  // IEEE binary16
  std::uint16_t bits;
};
struct bf16 {  // the upper half of a float
  std::uint16_t bits;
};

// The types that logits are stored in.
template <class S>
inline constexpr bool is_logit = std::is_same_v<S, float> || std::is_same_v<S, double> ||
                                 std::is_same_v<S, f16> || std::is_same_v<S, bf16>;

// The type in which a stored number is computed.
template <class S>
using computed = std::conditional_t<std::is_same_v<S, f16> || std::is_same_v<S, bf16>, float, S>;

}  // namespace specagg
