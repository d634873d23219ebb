// SPDX-License-Identifier: Apache-2.0
// How the device's benchmarks measure, and what on. verify.cu is the program; policies.cu is
// compiled once for each verifier and adds its measurements to it. Compiles against
// tests/cuda/emulator, too, where times mean nothing.
//
// Inputs lie in several copies that are used in turn, together at least 4 times as large as the L2
// cache, so that every read of a row comes from memory. A sample is the time between two events
// around a row of calls, divided by their number; figures are medians.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <specagg/backend/cuda/verify.hpp>
#include <specagg/decoders.hpp>

namespace bench {

using namespace specagg;
namespace gpu = specagg::cuda;  // CUDA has a namespace cuda of its own

[[noreturn]] inline void fail(const std::string& why) {
  std::fprintf(stderr, "bench-cuda: %s\n", why.c_str());
  std::exit(1);
}
inline void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(e));
}
#define CHECK_CUDA(...) ::bench::check((__VA_ARGS__), #__VA_ARGS__)

// Memory of the device.
template <class T>
class device_array {
 public:
  explicit device_array(std::size_t n) : size_(n) {
    CHECK_CUDA(cudaMalloc(&data_, std::max<std::size_t>(n * sizeof(T), 16)));
  }
  explicit device_array(const std::vector<T>& x) : device_array(x.size()) {
    CHECK_CUDA(cudaMemcpy(data_, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  device_array(device_array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  ~device_array() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> read() const {
    std::vector<T> x(size_);
    CHECK_CUDA(cudaMemcpy(x.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

struct device_facts {
  cudaDeviceProp properties{};
  std::size_t l2 = 0, processors = 0;
  device_facts() {
    CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
    l2 = std::size_t(std::max(properties.l2CacheSize, 1));
    processors = std::size_t(properties.multiProcessorCount);
  }
};
inline const device_facts& device() {
  static const device_facts facts;
  return facts;
}
inline bool small = false;  // sizes for the emulator

template <class Kernel, class... A>
void launch(Kernel* kernel, std::size_t blocks, cudaStream_t stream, A... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(256);
  config.stream = stream;
  CHECK_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// ---- time ---------------------------------------------------------------------------------------

struct timing {  // microseconds
  double median = 0, least = 0, most = 0;
};
inline timing timing_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front(), samples.back()};
}

class stopwatch {
 public:
  stopwatch() {
    CHECK_CUDA(cudaStreamCreate(&stream_));
    CHECK_CUDA(cudaEventCreate(&start_));
    CHECK_CUDA(cudaEventCreate(&end_));
  }
  stopwatch(const stopwatch&) = delete;
  ~stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  // call(copy, stream) for each copy, at least 8 calls in a row; in a graph, or one after the
  // other.
  template <class F>
  timing in_a_row(std::size_t copies, bool in_graph, std::size_t repetitions, const F& call) {
    const std::size_t calls = small ? copies : copies * ((copies + 7) / copies);
    const auto all = [&] {
      for (std::size_t i = 0; i < calls; ++i) call(i % copies, stream_);
    };
    call(0, stream_);  // loads the kernels before a graph is captured
    if (!in_graph) return sample(repetitions, calls, [&](std::size_t) { all(); });
    const graph row(stream_, all);
    return sample(repetitions, calls, [&](std::size_t) { row.replay(stream_); });
  }
  // Each call on its own, with an idle device before it: what the launch takes is seen, too.
  template <class F>
  timing alone(std::size_t copies, bool in_graph, std::size_t repetitions, const F& call) {
    std::vector<graph> graphs;
    for (std::size_t c = 0; in_graph && c < copies; ++c)
      graphs.emplace_back(stream_, [&] { call(c, stream_); });
    return sample(repetitions, 1, [&](std::size_t i) {
      if (in_graph) graphs[i % copies].replay(stream_);
      else call(i % copies, stream_);
    });
  }

 private:
  class graph {
   public:
    template <class F>
    graph(cudaStream_t stream, const F& work) {
      cudaGraph_t captured;
      CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      work();
      CHECK_CUDA(cudaStreamEndCapture(stream, &captured));
      CHECK_CUDA(cudaGraphInstantiate(&exec_, captured, 0));
      cudaGraphDestroy(captured);
    }
    graph(graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
    ~graph() {
      if (exec_) cudaGraphExecDestroy(exec_);
    }
    void replay(cudaStream_t stream) const { CHECK_CUDA(cudaGraphLaunch(exec_, stream)); }

   private:
    cudaGraphExec_t exec_ = nullptr;
  };
  template <class F>
  timing sample(std::size_t repetitions, std::size_t calls, const F& work) {
    const std::size_t warm = small ? 0 : 5;
    std::vector<double> samples;
    for (std::size_t i = 0; i < warm + (small ? 1 : repetitions); ++i) {
      CHECK_CUDA(cudaEventRecord(start_, stream_));
      work(i);
      CHECK_CUDA(cudaEventRecord(end_, stream_));
      CHECK_CUDA(cudaStreamSynchronize(stream_));
      float ms = 0;
      CHECK_CUDA(cudaEventElapsedTime(&ms, start_, end_));
      if (i >= warm) samples.push_back(1000. * double(ms) / double(calls));
    }
    return timing_of(std::move(samples));
  }
  cudaStream_t stream_;
  cudaEvent_t start_, end_;
};

// ---- the floor: a read --------------------------------------------------------------------------

// Reads 16 bytes a load, `Unroll` in flight a thread.
template <std::size_t Unroll>
__global__ void read_all(const uint4* x, std::size_t n, unsigned* out) {
  const std::size_t step = std::size_t(gridDim.x) * blockDim.x;
  std::size_t i = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + (Unroll - 1) * step < n; i += Unroll * step) {
    uint4 y[Unroll];
#pragma unroll
    for (std::size_t k = 0; k < Unroll; ++k) y[k] = x[i + k * step];
#pragma unroll
    for (std::size_t k = 0; k < Unroll; ++k) sum += (y[k].x ^ y[k].y) + (y[k].z ^ y[k].w);
  }
  for (; i < n; i += step) sum += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  if (sum == 0x5eed1e55) *out = sum;  // hardly ever; the compiler cannot know
}
// Time of a pure read of so many bytes, in a row: `bytes` at data, data + distance, ...
inline timing time_of_read(const void* data, std::size_t distance, std::size_t copies,
                           std::size_t bytes) {
  const device_array<unsigned> out(1);
  stopwatch watch;
  const std::size_t n = bytes / 16, whole = (n + 8 * 256 - 1) / (8 * 256), p = device().processors;
  timing best{infinity, 0, 0};
  // of 256 threads; the fastest counts
  for (const std::size_t blocks : {2 * p, 4 * p, 8 * p, whole}) {
    const timing t = watch.in_a_row(copies, true, 20, [&](std::size_t c, cudaStream_t stream) {
      const auto* from = static_cast<const unsigned char*>(data) + c * distance;
      launch(read_all<8>, std::max<std::size_t>(std::min(blocks, whole), 1), stream,
             reinterpret_cast<const uint4*>(from), n, out.data());
    });
    if (t.median < best.median) best = t;
  }
  return best;
}

// ---- inputs -------------------------------------------------------------------------------------

template <class S>
__device__ S stored(float x) {  // cut off, not rounded; for |x| < 65504
  if constexpr (std::is_same_v<S, float>) return x;
  else {
    const auto b = std::bit_cast<std::uint32_t>(x);
    if constexpr (std::is_same_v<S, bf16>) return {std::uint16_t(b >> 16)};
    const std::uint32_t sign = b >> 16 & 0x8000, e = b >> 23 & 0xff;
    return {std::uint16_t(e <= 112 ? sign : sign | (e - 112) << 10 | (b >> 13 & 0x3ff))};
  }
}
// A bell-shaped number of variance 1, always the same for the same i.
__device__ inline float bell(std::uint64_t i) {
  std::uint32_t sum = 0;
  for (int k = 0; k < 2; ++k) {  // splitmix64
    i += 0x9e3779b97f4a7c15;
    std::uint64_t z = (i ^ i >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb, z ^= z >> 31;
    sum += std::uint32_t(z & 0xffff) + std::uint32_t(z >> 16 & 0xffff) +
           std::uint32_t(z >> 32 & 0xffff);
  }
  return (float(sum) * 0x1p-16f - 3) * 1.41421356f;
}
// As benchmarks/rows.hpp: p has logits of standard deviation 2.5, q = a p + (1 - a) p backwards.
// steepness > 0: p ~ rank^-steepness with noise of deviation 0.5 on the logits; ranks are drawn.
template <class S>
__global__ void fill_rows(S* q, S* p, std::size_t vocabulary, std::size_t rows, float a,
                          float steepness, std::uint64_t seed) {
  const auto logit = [=](std::size_t i) {
    if (!(steepness > 0)) return 2.5f * bell(seed + i);
    std::uint64_t z = (seed + i + 1) * 0xd6e8feb86659fd93;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93, z ^= z >> 32;
    const float rank = 1 + float(vocabulary) * (float(z >> 40) * 0x1p-24f);
    return -steepness * std::log(rank) + 0.5f * bell(seed + i);
  };
  const std::size_t step = std::size_t(gridDim.x) * blockDim.x;
  for (std::size_t i = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * vocabulary;
       i += step) {
    const std::size_t v = i % vocabulary, mirrored = i - v + (vocabulary - 1 - v);
    const float x = logit(i), y = logit(mirrored);
    p[i] = stored<S>(x);
    q[i] = stored<S>(std::log(a * std::exp(x) + (1 - a) * std::exp(y)));
  }
}

struct shape {
  std::size_t requests, gamma, vocabulary;
  float steepness = 0;  // of the rows (fill_rows)
};

// Copies of a batch: rows of logits, drafts drawn from the rows of the draft by the device itself
// (verification of no tokens draws one from the target's row; here that is the draft's), room for
// what comes out.
template <class S, class Verifier>
class inputs {
 public:
  inputs(const shape& s, const Verifier& verifier) : shape_(s), rows_(rows(copies() * 2 * half())) {
    constexpr bool couples = is_coupled<Verifier>;
    const std::size_t drafted = s.requests * s.gamma;
    for (std::size_t c = 0; c < copies(); ++c) {
      launch(fill_rows<S>, small ? 2 : 8 * device().processors, nullptr, draft(c), target(c),
             s.vocabulary, s.requests * (s.gamma + 1), 0.8f, s.steepness, std::uint64_t(c) << 40);
      std::vector<gpu::row_range> row(drafted);
      std::vector<std::uint32_t> position(drafted), start(s.requests, 100);
      std::vector<std::uint64_t> seed(drafted), request(drafted);
      for (std::size_t i = 0; i < drafted; ++i) {
        const std::size_t r = i / s.gamma, j = i % s.gamma;
        row[i] = {std::uint32_t(r * (s.gamma + 1) + j), 1};
        position[i] = start[r] + std::uint32_t(j);
        seed[i] = couples ? c : 1000 + c;
        request[i] = couples ? r : i;
      }
      const device_array rows_of(row);
      const device_array starts(position);
      const device_array seeds(seed), requests(request);
      const device_array<verdict> verdicts(drafted);
      // with values: initcheck looks at the bytes between the members, too
      const device_array drawn{std::vector<emission>(drafted)};
      gpu::batch<S> b;
      b.requests = drafted;
      b.vocabulary = s.vocabulary;
      b.draft = b.target = draft(c);
      b.draft_stride = b.target_stride = s.vocabulary;
      b.draft_rows = b.target_rows = rows_of.data();
      b.draft_count = b.target_count = s.requests * (s.gamma + 1);
      b.start = starts.data();
      b.seed = seeds.data();
      b.request = requests.data();
      const std::size_t bytes = gpu::verify_storage(b);
      const device_array<unsigned char> storage(bytes);
      const gpu::outcome out{verdicts.data(), drawn.data()};
      if constexpr (couples)
        CHECK_CUDA(gpu::verify(b, lossless{}, verifier, out, storage.data(), bytes, nullptr));
      else
        CHECK_CUDA(
            gpu::verify(b, lossless{}, token_verifier{}, out, storage.data(), bytes, nullptr));
      CHECK_CUDA(cudaStreamSynchronize(nullptr));
      std::vector<token_id> tokens;
      for (const emission& e : drawn.read()) tokens.push_back(e.token);
      copies_.push_back({device_array(tokens), device_array(start),
                         device_array(std::vector<std::uint64_t>(s.requests, c)),
                         device_array<unsigned char>(gpu::verify_storage(batch_of(c))),
                         device_array(std::vector<verdict>(s.requests)),
                         device_array<emission>(s.requests * (s.gamma + 1))});
    }
  }
  std::size_t copies() const {
    return small
               ? 2
               : std::clamp<std::size_t>((4 * device().l2) / (2 * half() * sizeof(S)) + 1, 2, 128);
  }
  gpu::batch<S> batch(std::size_t c) const {
    auto b = batch_of(c);
    b.tokens = copies_[c].tokens.data();
    b.start = copies_[c].start.data();
    b.seed = copies_[c].seed.data();
    return b;
  }
  gpu::outcome out(std::size_t c) const {
    return {copies_[c].verdicts.data(), copies_[c].emissions.data()};
  }
  void* storage(std::size_t c) const { return copies_[c].storage.data(); }
  const S* data(std::size_t c) const { return draft(c); }
  // Accepted tokens per request. Says where one was not verified.
  double accepted() const {
    double sum = 0;
    for (const auto& c : copies_)
      for (const verdict& v : c.verdicts.read()) {
        if (v.emitted == 0) std::printf("  a request was not verified: %s\n", name(v.why));
        sum += double(v.accepted);
      }
    return sum / double(copies_.size() * shape_.requests);
  }

 private:
  struct copy {
    device_array<token_id> tokens;
    device_array<std::uint32_t> start;
    device_array<std::uint64_t> seed;
    device_array<unsigned char> storage;
    device_array<verdict> verdicts;
    device_array<emission> emissions;
  };
  static device_array<S> rows(std::size_t n) { return device_array<S>(n); }
  std::size_t half() const { return shape_.requests * (shape_.gamma + 1) * shape_.vocabulary; }
  S* draft(std::size_t c) const { return rows_.data() + 2 * c * half(); }
  S* target(std::size_t c) const { return draft(c) + half(); }
  gpu::batch<S> batch_of(std::size_t c) const {
    gpu::batch<S> b;
    b.requests = shape_.requests;
    b.vocabulary = shape_.vocabulary;
    b.most = shape_.gamma;
    b.draft = draft(c);
    b.target = target(c);
    b.draft_stride = b.target_stride = shape_.vocabulary;
    b.draft_count = b.target_count = shape_.requests * (shape_.gamma + 1);
    return b;
  }
  shape shape_;
  device_array<S> rows_;
  std::vector<copy> copies_;
};

template <class S>
constexpr const char* type_name() {
  return std::is_same_v<S, float> ? "f32" : std::is_same_v<S, f16> ? "f16" : "bf16";
}

// ---- verification -------------------------------------------------------------------------------

// One call of verify() on copy c.
template <class S, class Policy, class Verifier>
auto verification(const inputs<S, Verifier>& in, const Policy& policy, const Verifier& verifier) {
  return [&in, policy, verifier](std::size_t c, cudaStream_t stream) {
    const auto b = in.batch(c);
    CHECK_CUDA(
        gpu::verify(b, policy, verifier, in.out(c), in.storage(c), gpu::verify_storage(b), stream));
  };
}

// What one read of every row that counts for this policy and verifier is, in bytes.
template <class S, class Policy, class Verifier>
std::size_t bytes_of_rows(const shape& s, const Policy&, const Verifier&) {
  std::size_t rows = s.gamma + 1;
  if (reads_draft<Policy> || Verifier::reads_draft_rows(false))
    rows += s.gamma + reads_draft<Policy>;
  return s.requests * rows * s.vocabulary * sizeof(S);
}

// ---- results ------------------------------------------------------------------------------------

// Lines of a table, and the same as objects of a JSON file that is whole after every one.
class results {
 public:
  void open(const std::string& path) { path_ = path; }
  // fields: "name": value, ...
  void add(const std::string& kind, const std::string& fields) {
    const auto& p = device().properties;
    objects_.push_back("{\"kind\": \"" + kind + "\", " + fields + "}");
    if (path_.empty()) return;
    std::FILE* file = std::fopen(path_.c_str(), "w");
    if (!file) fail("cannot write " + path_);
    std::fprintf(
        file,
        "{\"device\": \"%s\", \"processors\": %zu, \"l2\": %zu, \"small\": %s, \"results\": [\n",
        p.name, device().processors, device().l2, small ? "true" : "false");
    for (std::size_t i = 0; i < objects_.size(); ++i)
      std::fprintf(file, "%s%s\n", objects_[i].c_str(), i + 1 < objects_.size() ? "," : "");
    std::fprintf(file, "]}\n");
    std::fclose(file);
  }

 private:
  std::string path_;
  std::vector<std::string> objects_;
};
inline results& output() {
  static results all;
  return all;
}
inline std::string field(const char* name, const std::string& value) {
  return "\"" + std::string(name) + "\": \"" + value + "\"";
}
inline std::string field(const char* name, double value) {
  char text[64];
  std::snprintf(text, sizeof text, "\"%s\": %.6g", name, std::isfinite(value) ? value : -1.);
  return text;
}
inline std::string field(const char* name, const timing& t) {
  return field(name, t.median) + ", " + field((std::string(name) + "_least").c_str(), t.least) +
         ", " + field((std::string(name) + "_most").c_str(), t.most);
}
inline double gigabytes_per_second(std::size_t bytes, double us) {
  return us > 0 ? double(bytes) / us * 1e-3 : 0;
}

// ---- the sources that are linked ----------------------------------------------------------------

inline std::vector<std::function<void(const shape&)>>& suites() {
  static std::vector<std::function<void(const shape&)>> all;
  return all;
}

}  // namespace bench
