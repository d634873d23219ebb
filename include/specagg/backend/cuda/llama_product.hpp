// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLASLt, always with the same number of columns. The algorithm is chosen
// once, so the result of a column does not depend on the contents of the others.
#pragma once
#include <cstddef>
#include <cstdint>

#include <specagg/backend/cuda/llama_device.hpp>

SPECAGG_BEGIN
namespace cuda {

// y(c, r) = sum over k of w(r, k) x(c, k). w is `rows` x `cols` and x is `columns` x `cols`, both
// in 16 bits; y is `columns` x `rows` floats. All are stored row by row. Sums are in floats. Sizes
// must be multiples of 16, and memory aligned to 256 bytes.
class product {
 public:
  product(const device& on, cudaDataType_t type, std::size_t rows, std::size_t cols,
          std::size_t columns) {
    const auto ok = [](cublasStatus_t s) { check(s, "cuBLASLt"); };
    cublasLtMatmulDesc_t operation{};
    ok(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    operation_.reset(operation);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    ok(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                      sizeof transposed));
    // cuBLASLt stores matrices column by column, so it sees w, x and y transposed. It computes y^T
    // = w x^T; TRANSA undoes the transposition of w.
    w_ = layout(type, cols, rows);
    x_ = layout(type, cols, columns);
    y_ = layout(CUDA_R_32F, rows, columns);

    cublasLtMatmulPreference_t made{};
    ok(cublasLtMatmulPreferenceCreate(&made));
    const owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(made);
    const std::uint64_t workspace = device::workspace_size;
    ok(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &workspace, sizeof workspace));
    // No split of sums: columns might otherwise be split differently.
    const std::uint32_t whole = CUBLASLT_REDUCTION_SCHEME_NONE;
    ok(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                            &whole, sizeof whole));
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    ok(cublasLtMatmulAlgoGetHeuristic(on.blas(), operation, w_.get(), x_.get(), y_.get(), y_.get(),
                                      made, 1, &best, &found));
    ok(found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED);
    algorithm_ = best.algo;
  }

  // Starts the product in the device's stream: all three are in device memory, of the constructor's
  // sizes and types.
  [[nodiscard]] cublasStatus_t run(const device& on, const void* w, const void* x, float* y) const {
    const float one = 1, zero = 0;
    return cublasLtMatmul(on.blas(), operation_.get(), &one, w, w_.get(), x, x_.get(), &zero, y,
                          y_.get(), y, y_.get(), &algorithm_, on.workspace(),
                          device::workspace_size, on.stream());
  }

 private:
  using owned_layout = owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  static owned_layout layout(cudaDataType_t type, std::size_t rows, std::size_t columns) {
    cublasLtMatrixLayout_t l{};
    check(cublasLtMatrixLayoutCreate(&l, type, rows, columns, std::int64_t(rows)), "cuBLASLt");
    return owned_layout(l);
  }

  owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  owned_layout w_, x_, y_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace cuda
SPECAGG_END
