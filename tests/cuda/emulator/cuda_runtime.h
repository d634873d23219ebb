// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that this library uses, on the CPU (see engine.hpp). Neither __CUDACC__ nor
// __CUDA_ARCH__ is defined.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine.hpp"

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local

// ---- types ----------------------------------------------------------------------------------------------------------

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

#define CUDA_EMULATOR_VECTORS(T, name)                              \
  struct alignas(2 * sizeof(T)) name##2 {                           \
    T x, y;                                                         \
  };                                                                \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { \
    T x, y, z, w;                                                   \
  };                                                                \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }        \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_EMULATOR_VECTORS(float, float)
CUDA_EMULATOR_VECTORS(double, double)
CUDA_EMULATOR_VECTORS(int, int)
CUDA_EMULATOR_VECTORS(unsigned, uint)
CUDA_EMULATOR_VECTORS(short, short)
CUDA_EMULATOR_VECTORS(unsigned short, ushort)
#undef CUDA_EMULATOR_VECTORS

// ---- device functions -----------------------------------------------------------------------------------------------

inline void __syncthreads() { cuda_emulator::synchronise_block(); }
inline int __syncthreads_and(int predicate) {
  static thread_local int all;  // of the block
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) all = 1;
  __syncthreads();
  if (!predicate) all = 0;
  __syncthreads();
  return all;
}
inline void __syncwarp(unsigned mask = ~0u) {
  cuda_emulator::across_warp(cuda_emulator::warp_function::sync, mask, 0, 0);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(
      cuda_emulator::across_warp(cuda_emulator::warp_function::ballot, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

namespace cuda_emulator {
// `source` of a lane, which stays in its group of `width` lanes or is the lane itself.
template <class T>
T shuffle(unsigned mask, T x, unsigned source) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>(static_cast<bits>(across_warp(warp_function::shuffle, mask, std::bit_cast<bits>(x), source)));
}
inline unsigned group(int width) { return lane() & ~(static_cast<unsigned>(width) - 1); }
}  // namespace cuda_emulator

template <class T>
T __shfl_sync(unsigned mask, T x, int source, int width = 32) {
  const unsigned within = static_cast<unsigned>(source) & (static_cast<unsigned>(width) - 1);
  return cuda_emulator::shuffle(mask, x, cuda_emulator::group(width) + within);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int d, int width = 32) {
  const unsigned own = cuda_emulator::lane(), source = own ^ static_cast<unsigned>(d);
  const bool inside = source < cuda_emulator::group(width) + static_cast<unsigned>(width);
  return cuda_emulator::shuffle(mask, x, inside ? source : own);
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned d, int width = 32) {
  const unsigned own = cuda_emulator::lane(), source = own + d;
  const bool inside = source < cuda_emulator::group(width) + static_cast<unsigned>(width);
  return cuda_emulator::shuffle(mask, x, inside ? source : own);
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned d, int width = 32) {
  const unsigned own = cuda_emulator::lane();
  return cuda_emulator::shuffle(mask, x, own >= cuda_emulator::group(width) + d ? own - d : own);
}

namespace cuda_emulator {
// op of x and of the values of the other 31 threads.
template <class Op>
unsigned reduce(unsigned mask, unsigned x, const Op& op) {
  for (int d = 1; d < 32; d *= 2) x = op(x, __shfl_xor_sync(mask, x, d));
  return x;
}
}  // namespace cuda_emulator
inline unsigned __reduce_min_sync(unsigned mask, unsigned x) {
  return cuda_emulator::reduce(mask, x, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  return cuda_emulator::reduce(mask, x, [](unsigned a, unsigned b) { return a < b ? b : a; });
}

// One thread runs at a time: what is atomic needs no more.
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> x) {
  return std::exchange(*at, static_cast<T>(*at + x));
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> x) {
  return std::exchange(*at, *at < x ? x : *at);
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> x) {
  return std::exchange(*at, x < *at ? x : *at);
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> x) {
  return std::exchange(*at, x);
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> compare, std::type_identity_t<T> x) {
  return std::exchange(*at, *at == compare ? x : *at);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T>
T __ldg(const T* at) {
  return *static_cast<const T*>(cuda_emulator::readable(at, sizeof(T)));
}
inline void __cluster_barrier_arrive_relaxed() { cuda_emulator::arrive_at_cluster(); }
inline void __cluster_barrier_wait() { cuda_emulator::wait_for_cluster(); }

// Exactly rounded; the volatile keeps the compiler from fusing a product with a sum.
#define CUDA_EMULATOR_ROUNDED(T, prefix)                  \
  inline T __##prefix##add_rn(T a, T b) {                 \
    const volatile T x = a, y = b;                        \
    return x + y;                                         \
  }                                                       \
  inline T __##prefix##sub_rn(T a, T b) {                 \
    const volatile T x = a, y = b;                        \
    return x - y;                                         \
  }                                                       \
  inline T __##prefix##mul_rn(T a, T b) {                 \
    const volatile T product = a * b;                     \
    return product;                                       \
  }                                                       \
  inline T __##prefix##div_rn(T a, T b) { return a / b; } \
  inline T __##prefix##sqrt_rn(T a) { return std::sqrt(a); }
CUDA_EMULATOR_ROUNDED(float, f)
CUDA_EMULATOR_ROUNDED(double, d)
#undef CUDA_EMULATOR_ROUNDED
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(std::uint64_t{a} * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ typedef unsigned __int128 wide;
  return static_cast<unsigned long long>(wide{a} * b >> 64);
}

// ---- host functions -------------------------------------------------------------------------------------------------

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorIllegalState = 401,
  cudaErrorInvalidClusterSize = 912,
  cudaErrorUnknown = 999,
};
const char* cudaGetErrorName(cudaError_t);
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
cudaError_t cudaMalloc(void** at, std::size_t size);
cudaError_t cudaMallocAsync(void** at, std::size_t size, cudaStream_t);
cudaError_t cudaMallocHost(void** at, std::size_t size);
cudaError_t cudaFree(void* at);
cudaError_t cudaFreeAsync(void* at, cudaStream_t);
cudaError_t cudaFreeHost(void* at);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind, cudaStream_t = nullptr);
cudaError_t cudaMemset(void* at, int value, std::size_t size);
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t size, cudaStream_t = nullptr);
template <class T>
cudaError_t cudaMalloc(T** at, std::size_t size) {
  return cudaMalloc(reinterpret_cast<void**>(at), size);
}
template <class T>
cudaError_t cudaMallocAsync(T** at, std::size_t size, cudaStream_t stream) {
  return cudaMallocAsync(reinterpret_cast<void**>(at), size, stream);
}
template <class T>
cudaError_t cudaMallocHost(T** at, std::size_t size) {
  return cudaMallocHost(reinterpret_cast<void**>(at), size);
}

struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem, sharedMemPerBlock;
  int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock, l2CacheSize;
};
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrClusterLaunch = 120,
};
cudaError_t cudaDriverGetVersion(int*);
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaGetDevice(int*);
cudaError_t cudaSetDevice(int);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int device);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaDeviceSynchronize();

inline constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
cudaError_t cudaStreamCreate(cudaStream_t*);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);

inline constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
cudaError_t cudaEventCreate(cudaEvent_t*);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned flags = 0);

// Of a stream that captures, only itself: forks and joins by events are refused.
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated
};
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);
cudaError_t cudaGraphDestroy(cudaGraph_t);

// ---- launches -------------------------------------------------------------------------------------------------------

enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};
union cudaLaunchAttributeValue {
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;  // changes nothing here: kernels run one after the other
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;  // not supported
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
struct cudaFuncAttributes {
  std::size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes;
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 13,
};

namespace cuda_emulator {

cudaError_t check_stream(cudaStream_t);  // may something be put into it?
cudaError_t check_launch(const cudaLaunchConfig_t&, launch_shape&);
void* memory_for(cudaStream_t, std::size_t size, std::size_t align);  // of an operation
cudaError_t enqueue(cudaStream_t, operation&);                        // made in it
cudaError_t set_attribute(cudaFuncAttribute);
cudaError_t get_attributes(cudaFuncAttributes&);
cudaError_t most_clusters(int&, const cudaLaunchConfig_t&);
cudaError_t most_blocks(int&);

// A kernel and its arguments, by value.
template <class... Parameters>
struct kernel_call final : operation {
  launch_shape shape;
  void (*kernel)(Parameters...);
  std::tuple<Parameters...> arguments;
  template <class... Arguments>
  kernel_call(const launch_shape& s, void (*k)(Parameters...), Arguments&&... a)
      : shape(s), kernel(k), arguments(std::forward<Arguments>(a)...) {}
  void run() const override {
    run_kernel(
        shape,
        [](const void* self) {
          const auto& call = *static_cast<const kernel_call*>(self);
          std::apply(call.kernel, call.arguments);
        },
        this);
  }
};

}  // namespace cuda_emulator

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "arguments of kernels are copied byte by byte");
  cuda_emulator::launch_shape shape;
  if (const auto e = cuda_emulator::check_launch(*config, shape); e != cudaSuccess) return e;
  using call = cuda_emulator::kernel_call<Parameters...>;
  return cuda_emulator::enqueue(config->stream,
                                *new (cuda_emulator::memory_for(config->stream, sizeof(call), alignof(call)))
                                    call(shape, kernel, std::forward<Arguments>(arguments)...));
}
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*)(Parameters...), cudaFuncAttribute attribute, int) {
  return cuda_emulator::set_attribute(attribute);
}
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
  return cuda_emulator::get_attributes(*attributes);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void (*)(Parameters...), int, std::size_t) {
  return cuda_emulator::most_blocks(*count);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* count, void (*)(Parameters...), const cudaLaunchConfig_t* config) {
  return cuda_emulator::most_clusters(*count, *config);
}
