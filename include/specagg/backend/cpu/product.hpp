// SPDX-License-Identifier: Apache-2.0
// Multiplies a matrix of weights by the activations of n tokens. float_product.hpp and
// integer_product.hpp state the order of the sums and their errors.
#pragma once
#include <specagg/backend/cpu/activations.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <cstddef>

#include <specagg/backend/cpu/float_product.hpp>
#include <specagg/backend/cpu/integer_product.hpp>
#include <specagg/backend/cpu/matrix.hpp>

SPECAGG_BEGIN
namespace cpu {

// y[t * y_stride + r - begin] = sum over c of w(r, c) x(t, c), for the rows r in [begin, end) and
// every token t. Quantised matrices must have been repacked; they read `rounded`, the same tokens,
// and other matrices read `x`. y must not overlap the rest.
inline void multiply(const matrix& w, std::size_t begin, std::size_t end, const activations& x,
                     const rounded_activations& rounded, float* y, std::size_t y_stride) {
  detail::with_type(w.type, [&]<tensor_type Type>() {
    if constexpr (block_bytes(Type) > 0)
      detail::multiply_integers<Type>(w, begin, end, rounded, y, y_stride);
    else detail::multiply_floats<Type>(w, begin, end, x, y, y_stride);
  });
}

}  // namespace cpu
SPECAGG_END
