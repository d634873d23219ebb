// SPDX-License-Identifier: Apache-2.0
// The resources that all models on one CUDA device share: a stream, cuBLASLt, its workspace. Also
// owners for resources that CUDA creates.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include <specagg/config.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN
namespace cuda {

// Throws specagg::error, which names the input, the place and CUDA's reason, if e or s is an error.
inline void check(cudaError_t e, const std::string& place, const std::string& input = "CUDA") {
  if (e == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, so that no later check reports it again
  throw error(input, place, std::string(cudaGetErrorName(e)) + ", " + cudaGetErrorString(e));
}
inline void check(cublasStatus_t s, const std::string& place, const std::string& input = "CUDA") {
  if (s != CUBLAS_STATUS_SUCCESS) throw error(input, place, cublasLtGetStatusString(s));
}

// Owns a resource that CUDA made; `Destroy` destroys it.
template <auto Destroy>
struct destroyer {
  template <class T>
  void operator()(T* at) const {
    (void)Destroy(at);
  }
};
// Owners, as std::unique_ptr, of what CUDA has made.
template <class Handle, auto Destroy>
using owned = std::unique_ptr<std::remove_pointer_t<Handle>, destroyer<Destroy>>;
using owned_stream = owned<cudaStream_t, cudaStreamDestroy>;
using owned_event = owned<cudaEvent_t, cudaEventDestroy>;
using owned_graph = owned<cudaGraph_t, cudaGraphDestroy>;
using owned_graph_exec = owned<cudaGraphExec_t, cudaGraphExecDestroy>;
using owned_memory = std::unique_ptr<std::byte, destroyer<cudaFree>>;
template <class T>
using pinned_memory = std::unique_ptr<T[], destroyer<cudaFreeHost>>;

// Allocate `bytes` on the device, and `count` elements on the host that the device reads directly.
// Both throw specagg::error, which names `input`.
[[nodiscard]] inline owned_memory device_memory(std::size_t bytes, const std::string& input) {
  void* at = nullptr;
  check(cudaMalloc(&at, bytes), std::to_string(bytes >> 20) + " MiB of device memory", input);
  return owned_memory(static_cast<std::byte*>(at));
}
template <class T>
[[nodiscard]] pinned_memory<T> host_memory(std::size_t count, const std::string& input) {
  void* at = nullptr;
  check(cudaMallocHost(&at, count * sizeof(T)),
        std::to_string(count * sizeof(T) >> 20) + " MiB of pinned memory", input);
  return pinned_memory<T>(static_cast<T*>(at));
}

// Divides one allocation into parts. Without memory it only counts the bytes.
class arena {
 public:
  explicit arena(std::byte* base = nullptr) : base_(base) {}
  // The next `count` elements, at a multiple of 256 bytes; null without memory.
  template <class T>
  T* take(std::size_t count) {
    std::byte* at = base_ ? base_ + used_ : nullptr;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  // Bytes that were taken, with what alignment costs.
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

// Everything on one device runs in one stream. Draft and target model take turns anyway, and in one
// stream each model can use the other's results in memory; so can the verification.
class device {
 public:
  // Throws specagg::error if there is no such device.
  explicit device(int ordinal = 0) : ordinal_(ordinal) {
    const std::string place = "device " + std::to_string(ordinal);
    int count = 0;
    check(cudaGetDeviceCount(&count), place);
    check(ordinal < 0 || ordinal >= count ? cudaErrorInvalidDevice : cudaSuccess, place);
    check(cudaSetDevice(ordinal), place);
    cudaStream_t s{};
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), place);
    stream_.reset(s);
    cublasLtHandle_t h{};
    check(cublasLtCreate(&h), place);
    blas_.reset(h);
    workspace_ = device_memory(workspace_size, "CUDA");
  }

  // CUDA's number of the device, its one stream, cuBLASLt's handle, and workspace_size bytes on the
  // device for cuBLASLt.
  int ordinal() const { return ordinal_; }
  cudaStream_t stream() const { return stream_.get(); }
  cublasLtHandle_t blas() const { return blas_.get(); }
  void* workspace() const { return workspace_.get(); }
  static constexpr std::size_t workspace_size = std::size_t{4} << 20;

 private:
  int ordinal_;
  owned_stream stream_;
  owned<cublasLtHandle_t, cublasLtDestroy> blas_;
  owned_memory workspace_;
};

}  // namespace cuda
SPECAGG_END
