// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's products, one after the other.
#include <cstring>
#include <new>
#include <specagg/kernel/simd.hpp>
#include <vector>

#include "cublasLt.h"

namespace {

using matrix = cublasLtMatrixLayoutOpaque_t;

std::size_t bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }
bool usable(const matrix* l) {
  return l && l->rows > 0 && l->cols > 0 && l->ld > 0 &&
         static_cast<std::uint64_t>(l->ld) >= (l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols);
}

// The sizes of D = op(A) op(B), or k = 0 if the layouts do not go together.
cublasLtMatmulAlgo_t sizes(const cublasLtMatmulDescOpaque_t* desc, const matrix* a, const matrix* b,
                           const matrix* c, const matrix* d) {
  if (!desc || !usable(a) || !usable(b) || !usable(c) || !usable(d)) return {};
  const std::uint64_t m = desc->a == CUBLAS_OP_N ? a->rows : a->cols,
                      k = desc->a == CUBLAS_OP_N ? a->cols : a->rows;
  const std::uint64_t inner = desc->b == CUBLAS_OP_N ? b->rows : b->cols;
  const std::uint64_t n = desc->b == CUBLAS_OP_N ? b->cols : b->rows;
  const bool fit = inner == k && d->rows == m && d->cols == n && c->rows == m && c->cols == n &&
                   a->type == b->type && c->type == d->type && d->type == CUDA_R_32F;
  return {m, n, fit ? k : 0};
}

std::size_t place(const matrix& l, std::uint64_t row, std::uint64_t col) {
  return l.order == CUBLASLT_ORDER_COL ? row + col * static_cast<std::uint64_t>(l.ld)
                                       : row * static_cast<std::uint64_t>(l.ld) + col;
}
float read(const matrix& l, const void* data, std::size_t at) {
  if (l.type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[at];
  return l.type == CUDA_R_16F ? specagg::detail::float_of_f16(bits)
                              : specagg::detail::float_of_bf16(bits);
}

struct product final : cuda_emulator::operation {
  cublasLtMatmulDescOpaque_t desc;
  matrix a, b, c, d;
  const void *from_a, *from_b;
  const float* from_c;
  float *to, alpha, beta;
  cublasLtMatmulAlgo_t size;

  // Each sum runs over k in order: 32 columns at a time, so that the compiler can work on them side
  // by side.
  void run() const override {
    constexpr std::uint64_t wide = 32;
    std::vector<float> row(size.k), columns(size.k * wide);
    for (std::uint64_t n = 0; n < size.n; n += wide) {
      const std::uint64_t count = size.n - n < wide ? size.n - n : wide;
      for (std::uint64_t k = 0; k < size.k; ++k)
        for (std::uint64_t j = 0; j < wide; ++j)
          columns[k * wide + j] =
              j >= count ? 0
                         : read(b, from_b,
                                desc.b == CUBLAS_OP_N ? place(b, k, n + j) : place(b, n + j, k));
      for (std::uint64_t m = 0; m < size.m; ++m) {
        for (std::uint64_t k = 0; k < size.k; ++k)
          row[k] = read(a, from_a, desc.a == CUBLAS_OP_N ? place(a, m, k) : place(a, k, m));
        float sum[wide] = {};
        for (std::uint64_t k = 0; k < size.k; ++k)
          for (std::uint64_t j = 0; j < wide; ++j) sum[j] += row[k] * columns[k * wide + j];
        for (std::uint64_t j = 0; j < count; ++j)
          to[place(d, m, n + j)] =
              alpha * sum[j] + (beta == 0 ? 0 : beta * from_c[place(c, m, n + j)]);
      }
    }
  }
};

template <class T>
cublasStatus_t set(T& attribute, const void* value, std::size_t size) {
  if (size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&attribute, value, size);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t destroy(T* at) {
  delete at;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

struct cublasLtContext {};

const char* cublasLtGetStatusString(cublasStatus_t s) {
  switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "<unknown>";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t,
                                        cudaDataType_t scale) {
  *desc = new cublasLtMatmulDescOpaque_t{CUBLAS_OP_N, CUBLAS_OP_N};
  return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t size) {
  return set(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? desc->a : desc->b, value, size);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  *layout = new matrix{type, rows, cols, ld, CUBLASLT_ORDER_COL};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t, const void* value,
                                                std::size_t size) {
  return set(layout->order, value, size);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{0, CUBLASLT_REDUCTION_SCHEME_MASK};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size) {
  return attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
             ? set(preference->workspace, value, size)
             : set(preference->reductions, value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = 0;
  if (!handle || !preference || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto size = sizes(desc, a, b, c, d);
  if (size.k == 0) return CUBLAS_STATUS_INVALID_VALUE;
  *results = {size, 0, CUBLAS_STATUS_SUCCESS, 1};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algo,
                              void*, std::size_t, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto size = sizes(desc, layout_a, layout_b, layout_c, layout_d);
  if (size.k == 0 || !a || !b || !d) return CUBLAS_STATUS_INVALID_VALUE;
  if (algo && (algo->m != size.m || algo->n != size.n || algo->k != size.k))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto aligned = [](const void* at, const matrix& l) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0 &&
           static_cast<std::size_t>(l.ld) * bytes(l.type) % 16 == 0;
  };
  if (!aligned(a, *layout_a) || !aligned(b, *layout_b) || !aligned(d, *layout_d))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (cuda_emulator::check_stream(stream) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  auto& o = *new (cuda_emulator::memory_for(stream, sizeof(product), alignof(product))) product;
  o.desc = *desc;
  o.a = *layout_a;
  o.b = *layout_b;
  o.c = *layout_c;
  o.d = *layout_d;
  o.from_a = a;
  o.from_b = b;
  o.from_c = static_cast<const float*>(c);
  o.to = static_cast<float*>(d);
  o.size = size;
  std::memcpy(&o.alpha, alpha, sizeof o.alpha);
  std::memcpy(&o.beta, beta, sizeof o.beta);
  return cuda_emulator::enqueue(stream, o) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                          : CUBLAS_STATUS_EXECUTION_FAILED;
}
