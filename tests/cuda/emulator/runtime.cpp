// SPDX-License-Identifier: Apache-2.0
// The host's side of the device: memory, streams, graphs.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <vector>

#include "cuda_runtime.h"

namespace cuda_emulator {
namespace {

// Operations in order, in memory that is reused once all are gone.
class recording {
 public:
  explicit recording(std::size_t room) : first_room_(room) {}
  void* allocate(std::size_t size, std::size_t align) { return memory_.allocate(size, align); }
  void append(operation& o) {
    (last_ ? last_->next : first_) = &o;
    last_ = &o;
  }
  const operation* front() const { return first_; }
  void pop() {
    first_ = first_->next;
    if (!first_) clear();
  }
  void clear() {
    first_ = last_ = nullptr;
    memory_.release();
  }

 private:
  std::vector<std::byte> first_room_;
  std::pmr::monotonic_buffer_resource memory_{first_room_.data(), first_room_.size()};
  operation *first_ = nullptr, *last_ = nullptr;
};

enum class place { device, pinned };
struct allocation {
  std::size_t size;
  place where;
};

struct state {
  std::map<std::uintptr_t, allocation> memory;
  std::set<CUstream_st*> streams;
  cudaError_t last = cudaSuccess, planned = cudaSuccess;
  std::size_t calls_to_planned = 0;
  int devices = 1, device = 0;
  std::map<int, ability> abilities;
};
state& runtime() {
  static auto& s = *new state;
  return s;
}

cudaError_t answer(cudaError_t e) {
  if (e != cudaSuccess) runtime().last = e;
  return e;
}
// The error that fail_call() wants from this call, if any.
cudaError_t planned() {
  auto& r = runtime();
  if (r.planned == cudaSuccess || r.calls_to_planned-- > 0) return cudaSuccess;
  return std::exchange(r.planned, cudaSuccess);
}

}  // namespace
}  // namespace cuda_emulator

using namespace cuda_emulator;

struct CUgraph_st {
  recording operations{1 << 14};
  std::size_t kernels = 0;
};
struct CUgraphExec_st {
  std::shared_ptr<CUgraph_st> graph;
};
struct CUstream_st {
  bool blocking = true;
  recording queue{1 << 16};
  std::unique_ptr<CUgraph_st> capture;
  cudaStreamCaptureMode mode{};
  bool invalidated = false;

  recording& target() { return capture ? capture->operations : queue; }
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  bool done = true, recorded = false;
  std::size_t records = 0;  // it is done when the last of them is
  std::chrono::steady_clock::time_point at;
};
// What cudaGraph_t points to: shared with the graphs made ready from it.
struct graph_handle {
  std::shared_ptr<CUgraph_st> graph;
};

namespace {

CUstream_st& default_stream() {
  static auto& s = *new CUstream_st;
  return s;
}
CUstream_st& stream_of(cudaStream_t s) { return s ? *s : default_stream(); }
bool exists(cudaStream_t s) { return !s || runtime().streams.count(s) != 0; }

// Runs what waits in the stream, on the device; `until`: only until this event has happened.
void drain(CUstream_st& s, const CUevent_st* until = nullptr) {
  if (!s.queue.front()) return;
  struct work {
    CUstream_st& stream;
    const CUevent_st* until;
  } w{s, until};
  try {
    on_device(
        [](void* context) {
          const auto& [stream, event] = *static_cast<work*>(context);
          while (stream.queue.front() && !(event && event->done)) {
            const auto& o = *stream.queue.front();
            o.run();
            stream.queue.pop();
          }
        },
        &w);
  } catch (...) {
    s.queue.clear();
    throw;
  }
}
void drain_all() {
  drain(default_stream());
  for (auto* s : runtime().streams) drain(*s);
}
// As the default stream does: streams that are not "non-blocking" come first.
void drain_blocking() {
  drain(default_stream());
  for (auto* s : runtime().streams)
    if (s->blocking) drain(*s);
}

bool anything_captures() {
  return std::any_of(runtime().streams.begin(), runtime().streams.end(), [](const auto* s) {
    return s->capture && s->mode != cudaStreamCaptureModeRelaxed;
  });
}
// For calls that no stream may be captured around.
cudaError_t outside_captures() {
  if (const auto e = planned(); e != cudaSuccess) return e;
  if (!anything_captures()) return cudaSuccess;
  for (auto* s : runtime().streams)
    if (s->capture) s->invalidated = true;
  return cudaErrorStreamCaptureUnsupported;
}
// For calls that put something into a stream.
cudaError_t into_stream(cudaStream_t stream) {
  if (const auto e = planned(); e != cudaSuccess) return e;
  if (!exists(stream)) return cudaErrorInvalidResourceHandle;
  // the default stream waits for the others
  if (!stream && anything_captures()) return outside_captures();
  return stream_of(stream).invalidated ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
// For calls that wait for a stream.
cudaError_t wait_for(cudaStream_t stream) {
  if (const auto e = planned(); e != cudaSuccess) return e;
  if (!exists(stream)) return cudaErrorInvalidResourceHandle;
  auto& s = stream_of(stream);
  if (!s.capture) return cudaSuccess;
  s.invalidated = true;
  return cudaErrorStreamCaptureUnsupported;
}

template <class F>
struct function final : operation {
  F f;
  explicit function(F g) : f(g) {}
  void run() const override { f(); }
};
template <class F>
cudaError_t put(cudaStream_t stream, F f) {
  static_assert(std::is_trivially_destructible_v<F>);
  return enqueue(
      stream, *new (memory_for(stream, sizeof(function<F>), alignof(function<F>))) function<F>(f));
}

// ---- memory -------------------------------------------------------------------------------------

const std::pair<const std::uintptr_t, allocation>* find(const void* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto it = runtime().memory.upper_bound(address);
  if (it == runtime().memory.begin()) return nullptr;
  --it;
  return address - it->first < it->second.size ? &*it : nullptr;
}
bool on_the_device(const void* at) {
  const auto* m = find(at);
  return m && m->second.where == place::device;
}
// Whole ranges lie in one allocation, or in none (memory of the host that CUDA did not give).
bool in_bounds(const void* at, std::size_t size) {
  const auto* m = find(at);
  return !m || size <= m->first + m->second.size - reinterpret_cast<std::uintptr_t>(at);
}

cudaError_t allocate(void** at, std::size_t size, place where) {
  ++counted().allocations;
  *at = nullptr;
  if (size == 0) return cudaSuccess;
  void* memory =
      size > std::size_t{1} << 40 ? nullptr : std::aligned_alloc(256, (size + 255) / 256 * 256);
  if (!memory) return cudaErrorMemoryAllocation;
  std::memset(memory, 0xff, size);
  runtime().memory[reinterpret_cast<std::uintptr_t>(memory)] = {size, where};
  *at = memory;
  return cudaSuccess;
}
cudaError_t release(void* at, place where) {
  if (!at) return cudaSuccess;
  const auto it = runtime().memory.find(reinterpret_cast<std::uintptr_t>(at));
  if (it == runtime().memory.end() || it->second.where != where) return cudaErrorInvalidValue;
  runtime().memory.erase(it);
  std::free(at);
  return cudaSuccess;
}

cudaError_t check_copy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  if (!to || !from || !in_bounds(to, size) || !in_bounds(from, size)) return cudaErrorInvalidValue;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault &&
      (to_device != on_the_device(to) || from_device != on_the_device(from)))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

cudaError_t without_device() { return runtime().devices == 0 ? cudaErrorNoDevice : cudaSuccess; }

}  // namespace

namespace cuda_emulator {

void fail_call(int error, std::size_t after) {
  runtime().planned = static_cast<cudaError_t>(error);
  runtime().calls_to_planned = after;
}
void set_devices(int count) {
  runtime().devices = count;
  runtime().device = 0;
}
ability& ability_of(int device) { return runtime().abilities[device]; }
std::size_t allocated() { return runtime().memory.size(); }
cudaError_t check_stream(cudaStream_t stream) { return answer(into_stream(stream)); }

void* memory_for(cudaStream_t stream, std::size_t size, std::size_t align) {
  return stream_of(stream).target().allocate(size, align);
}
cudaError_t enqueue(cudaStream_t stream, operation& o) {
  if (!stream) drain_blocking();
  stream_of(stream).target().append(o);
  if (!stream) drain(default_stream());
  return cudaSuccess;
}

cudaError_t check_launch(const cudaLaunchConfig_t& c, launch_shape& shape) {
  if (const auto e = into_stream(c.stream); e != cudaSuccess) return answer(e);
  shape = {{c.gridDim.x, c.gridDim.y, c.gridDim.z}, {c.blockDim.x, c.blockDim.y, c.blockDim.z}, {}};
  const auto &grid = shape.grid, &block = shape.block;
  if (grid.size() == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 ||
      block.size() == 0 || block.size() > 1024 || block.z > 64 || c.dynamicSmemBytes != 0)
    return answer(cudaErrorInvalidConfiguration);
  for (unsigned i = 0; i < c.numAttrs; ++i) {
    if (c.attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
        ability_of(runtime().device).clusters)
      continue;
    if (c.attrs[i].id != cudaLaunchAttributeClusterDimension) return answer(cudaErrorNotSupported);
    const auto& size = c.attrs[i].val.clusterDim;
    shape.cluster = {size.x, size.y, size.z};
  }
  const auto& cluster = shape.cluster;
  const ability& able = ability_of(runtime().device);
  if (cluster.size() == 0 || cluster.size() > able.largest_cluster ||
      (cluster.size() > 1 && !able.clusters) || grid.x % cluster.x != 0 ||
      grid.y % cluster.y != 0 || grid.z % cluster.z != 0)
    return answer(cudaErrorInvalidClusterSize);
  auto& s = stream_of(c.stream);
  ++(s.capture ? counted().captured : counted().launches);
  counted().largest_cluster =
      std::max(counted().largest_cluster, static_cast<unsigned>(cluster.size()));
  counted().blocks += grid.size();
  return cudaSuccess;
}
const void* readable(const void* at, std::size_t size) {
  // tests in Python call kernels with memory of the host
  static const bool any = std::getenv("SPECAGG_CUDA_ANY_MEMORY") != nullptr;
  if (!any && (!on_the_device(at) || !in_bounds(at, size)))
    fail_kernel("load: there is no such memory on the device");
  return at;
}
cudaError_t set_attribute(cudaFuncAttribute) { return answer(planned()); }
cudaError_t get_attributes(cudaFuncAttributes& a) {
  ++counted().questions;
  a = {0, 0, 0, 1024, 32, ability_of(runtime().device).ptx_version, 90, 0};
  return answer(planned());
}
cudaError_t most_blocks(int& count) {
  ++counted().questions;
  count = ability_of(runtime().device).blocks;
  return answer(planned());
}
cudaError_t most_clusters(int& count, const cudaLaunchConfig_t& c) {
  ++counted().questions;
  unsigned size = 1;
  for (unsigned i = 0; i < c.numAttrs; ++i)
    if (c.attrs[i].id == cudaLaunchAttributeClusterDimension)
      size = std::max(1u, c.attrs[i].val.clusterDim.x);
  const ability& has = ability_of(runtime().device);
  const int most = 132 * has.blocks / static_cast<int>(size);
  // a cluster lies in one part of the device: on an H100 62 of 4 fit, not 66
  count = size > has.largest_cluster ? 0 : most - (size > 2 ? most / 16 : 0);
  return answer(planned());
}

}  // namespace cuda_emulator

// ---- errors, devices ----------------------------------------------------------------------------

const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
#define CUDA_EMULATOR_NAME(name) \
  case name: return #name;
    CUDA_EMULATOR_NAME(cudaSuccess)
    CUDA_EMULATOR_NAME(cudaErrorInvalidValue)
    CUDA_EMULATOR_NAME(cudaErrorMemoryAllocation)
    CUDA_EMULATOR_NAME(cudaErrorInitializationError)
    CUDA_EMULATOR_NAME(cudaErrorInvalidConfiguration)
    CUDA_EMULATOR_NAME(cudaErrorInvalidMemcpyDirection)
    CUDA_EMULATOR_NAME(cudaErrorInsufficientDriver)
    CUDA_EMULATOR_NAME(cudaErrorNoDevice)
    CUDA_EMULATOR_NAME(cudaErrorInvalidDevice)
    CUDA_EMULATOR_NAME(cudaErrorInvalidResourceHandle)
    CUDA_EMULATOR_NAME(cudaErrorIllegalState)
    CUDA_EMULATOR_NAME(cudaErrorNotReady)
    CUDA_EMULATOR_NAME(cudaErrorIllegalAddress)
    CUDA_EMULATOR_NAME(cudaErrorLaunchOutOfResources)
    CUDA_EMULATOR_NAME(cudaErrorLaunchFailure)
    CUDA_EMULATOR_NAME(cudaErrorNotSupported)
    CUDA_EMULATOR_NAME(cudaErrorStreamCaptureUnsupported)
    CUDA_EMULATOR_NAME(cudaErrorStreamCaptureInvalidated)
    CUDA_EMULATOR_NAME(cudaErrorInvalidClusterSize)
    CUDA_EMULATOR_NAME(cudaErrorUnknown)
#undef CUDA_EMULATOR_NAME
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }
cudaError_t cudaGetLastError() { return std::exchange(runtime().last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return runtime().last; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 12040;
  return answer(cudaSuccess);
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = runtime().devices;
  return answer(without_device());
}
cudaError_t cudaGetDevice(int* device) {
  *device = runtime().device;
  return answer(without_device());
}
cudaError_t cudaSetDevice(int device) {
  if (const auto e = without_device(); e != cudaSuccess) return answer(e);
  if (device < 0 || device >= runtime().devices) return answer(cudaErrorInvalidDevice);
  if (const auto e = planned(); e != cudaSuccess) return answer(e);
  runtime().device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrClusterLaunch: *value = ability_of(device).clusters; break;
    default: return answer(cudaErrorInvalidValue);
  }
  return answer(without_device());
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"emulator", std::size_t{8} << 30, 48 << 10, 9, 0, 132, 32, 1024, 50 << 20};
  return answer(without_device());
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{8} << 30;
  return answer(without_device());
}
cudaError_t cudaDeviceSynchronize() {
  if (const auto e = outside_captures(); e != cudaSuccess) return answer(e);
  drain_all();
  return cudaSuccess;
}

// ---- memory -------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** at, std::size_t size) {
  const auto e = outside_captures();
  return answer(e != cudaSuccess ? e : allocate(at, size, place::device));
}
cudaError_t cudaMallocAsync(void** at, std::size_t size, cudaStream_t stream) {
  if (const auto e = into_stream(stream); e != cudaSuccess) return answer(e);
  return answer(stream_of(stream).capture ? cudaErrorNotSupported
                                          : allocate(at, size, place::device));
}
cudaError_t cudaMallocHost(void** at, std::size_t size) {
  const auto e = outside_captures();
  return answer(e != cudaSuccess ? e : allocate(at, size, place::pinned));
}
cudaError_t cudaFree(void* at) {
  if (const auto e = outside_captures(); e != cudaSuccess) return answer(e);
  drain_all();
  return answer(release(at, place::device));
}
cudaError_t cudaFreeAsync(void* at, cudaStream_t stream) {
  if (const auto e = into_stream(stream); e != cudaSuccess) return answer(e);
  if (!on_the_device(at)) return answer(cudaErrorInvalidValue);
  return put(stream, [at] { release(at, place::device); });
}
cudaError_t cudaFreeHost(void* at) {
  if (const auto e = outside_captures(); e != cudaSuccess) return answer(e);
  drain_all();
  return answer(release(at, place::pinned));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (const auto e = into_stream(stream); e != cudaSuccess) return answer(e);
  if (size == 0) return cudaSuccess;
  if (const auto e = check_copy(to, from, size, kind); e != cudaSuccess) return answer(e);
  const auto e = put(stream, [=] { std::memcpy(to, from, size); });
  // Memory that is not pinned is read, or written, before the call returns.
  if (auto& s = stream_of(stream); !s.capture && (!find(to) || !find(from))) drain(s);
  return e;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  if (const auto e = outside_captures(); e != cudaSuccess) return answer(e);
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t size, cudaStream_t stream) {
  if (const auto e = into_stream(stream); e != cudaSuccess) return answer(e);
  if (!on_the_device(at) || !in_bounds(at, size)) return answer(cudaErrorInvalidValue);
  return put(stream, [=] { std::memset(at, value, size); });
}
cudaError_t cudaMemset(void* at, int value, std::size_t size) {
  if (const auto e = outside_captures(); e != cudaSuccess) return answer(e);
  return cudaMemsetAsync(at, value, size, nullptr);
}

// ---- streams, events ----------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (const auto e = without_device(); e != cudaSuccess) return answer(e);
  if (const auto e = outside_captures(); e != cudaSuccess) return answer(e);
  *stream = new CUstream_st;
  (*stream)->blocking = flags != cudaStreamNonBlocking;
  runtime().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream || !exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  drain(*stream);
  runtime().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const auto e = wait_for(stream); e != cudaSuccess) return answer(e);
  if (!stream) drain_blocking();
  drain(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const auto e = wait_for(stream); e != cudaSuccess) return answer(e);
  if (!stream_of(stream).queue.front()) return cudaSuccess;
  drain(stream_of(stream));
  return cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const auto e = without_device(); e != cudaSuccess) return answer(e);
  if (const auto e = planned(); e != cudaSuccess) return answer(e);
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event->done) drain(stream_of(event->stream));
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const auto e = into_stream(stream); e != cudaSuccess) return answer(e);
  if (stream_of(stream).capture) return answer(cudaErrorStreamCaptureUnsupported);
  event->stream = stream;
  event->done = false;
  event->recorded = true;
  return put(stream, [event, record = ++event->records] {
    event->done = record == event->records;
    event->at = std::chrono::steady_clock::now();
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const auto e = planned(); e != cudaSuccess) return answer(e);
  if (event->done) return cudaSuccess;
  drain(stream_of(event->stream), event);
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto e = planned(); e != cudaSuccess) return answer(e);
  if (!event->done) drain(stream_of(event->stream), event);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start->recorded || !end->recorded) return answer(cudaErrorInvalidResourceHandle);
  if (!start->done || !end->done) return answer(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->at - start->at).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto e = into_stream(stream); e != cudaSuccess) return answer(e);
  if (stream_of(stream).capture || stream_of(event->stream).capture)
    return answer(cudaErrorStreamCaptureUnsupported);
  // sooner than needed, but never too late
  if (!event->done) drain(stream_of(event->stream), event);
  return cudaSuccess;
}

// ---- graphs -------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const auto e = into_stream(stream); e != cudaSuccess) return answer(e);
  if (!stream || stream->capture) return answer(cudaErrorStreamCaptureUnsupported);
  stream->capture = std::make_unique<CUgraph_st>();
  stream->mode = mode;
  stream->invalidated = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!exists(stream) || !stream || !stream->capture) return answer(cudaErrorIllegalState);
  auto captured = std::move(stream->capture);
  if (std::exchange(stream->invalidated, false)) return answer(cudaErrorStreamCaptureInvalidated);
  if (const auto e = planned(); e != cudaSuccess) return answer(e);
  *graph = reinterpret_cast<cudaGraph_t>(new graph_handle{std::move(captured)});
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  const auto& s = stream_of(stream);
  *status = !s.capture      ? cudaStreamCaptureStatusNone
            : s.invalidated ? cudaStreamCaptureStatusInvalidated
                            : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (const auto e = planned(); e != cudaSuccess) return answer(e);
  if (!graph) return answer(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{reinterpret_cast<graph_handle*>(graph)->graph};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t stream) {
  return answer(into_stream(stream));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const auto e = into_stream(stream); e != cudaSuccess) return answer(e);
  if (stream_of(stream).capture) return answer(cudaErrorNotSupported);
  ++counted().graph_launches;
  return put(stream, [graph = exec->graph.get()] {
    for (const auto* o = graph->operations.front(); o; o = o->next) o->run();
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  drain_all();  // it may wait in a stream
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<graph_handle*>(graph);
  return cudaSuccess;
}
