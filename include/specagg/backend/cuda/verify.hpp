// SPDX-License-Identifier: Apache-2.0
// Verification on the device: the library's policies and verifiers, for a batch of requests whose
// logits are in device memory. Tokens, statuses and bits are the same as on the CPU. They do not
// depend on the batch, its order, or how it is divided among thread blocks.
//
//   logits --(first kernel: one read of every row)--> factors
//   factors --(second: the verifier, a cluster for each request)--> verdicts and tokens
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <type_traits>

#include <specagg/backend/cuda/given_row.hpp>

SPECAGG_BEGIN
namespace cuda {

// The rows of one request: `count` rows of a matrix, from row `first` on; fewer where the matrix
// ends before.
struct row_range {
  std::uint32_t first = 0, count = 0;
};

// A batch in device memory. "[...]" after a pointer gives its elements; "or null [x]" means that
// null stands for the value x. The tokens of request r are tokens[r most], ..., ended early by
// no_token: g of them. Due are g + 1 rows of the target and g of the draft: g + 1 of the draft as
// well if the policy reads it. A request that lacks a row which its verification reaches has status
// missing_row. All rows that are due are read, also after a rejection.
template <class S>  // the type of logits: float, f16 or bf16
struct batch {
  std::size_t requests = 0, vocabulary = 0;  // vocabulary <= most_vocabulary
  std::size_t most = 0;                      // room for drafted tokens, <= most_drafted
  // rows of logits; fastest if these, the strides and the vocabulary are multiples of four, and
  // nothing is masked
  const S *draft = nullptr, *target = nullptr;
  std::size_t draft_count = 0, target_count = 0;    // rows in these matrices
  std::size_t draft_stride = 0, target_stride = 0;  // elements from row to row, >= vocabulary
  // [requests], or null [count / requests, in order]
  const row_range *draft_rows = nullptr, *target_rows = nullptr;
  const token_id* tokens = nullptr;        // [requests][most]
  const std::uint32_t* start = nullptr;    // [requests] the position of the first drafted token
  const std::uint64_t* seed = nullptr;     // [requests] of random_streams
  const std::uint64_t* request = nullptr;  // [requests] of random_streams, or null [r]
  const double* temperature = nullptr;     // [requests] 0: the largest logit; or null [1]
  // (vocabulary + 31) / 32 words per row, bit 1: allowed; or null [all]
  const std::uint32_t* draft_mask = nullptr;
  const std::uint32_t* target_mask = nullptr;
  end_tokens end_of_text = {};  // if there are several: in device memory
};
// The output, in device memory. It must not overlap with the input.
struct outcome {
  verdict* verdicts = nullptr;    // [requests]
  emission* emissions = nullptr;  // [requests][most + 1], the first verdict.emitted of each written
  // [requests][most], all written; or null: saves a pass over both rows
  draft_acceptance* acceptances = nullptr;
};

// Coupled verification with the noise of (seed, request).
struct coupled {
  static constexpr bool is_coupled = true;
  static constexpr bool reads_draft_rows(bool acceptances) {
    return coupled_verifier::reads_draft_rows(acceptances);
  }
  __device__ coupled_verifier operator()(std::uint64_t seed, std::uint64_t request) const {
    return {coupled_noise(seed, request)};
  }
};

namespace detail {

// What the kernels ask of a batch<S>; and, by functions of the same names, of a batch of another
// shape (backend/cuda/ragged.hpp). ids: room for most_drafted + 1 tokens that are not stored as
// token_ids.
template <class S>
__device__ draft drafted_of(const batch<S>& b, std::size_t r, token_id* /*ids*/) {
  return {{b.tokens + r * b.most, b.most}, b.start[r], b.end_of_text};
}
template <class S>
__device__ double temperature_of(const batch<S>& b, std::size_t r, bool /*of_draft*/) {
  return b.temperature ? b.temperature[r] : 1;
}
// The rows that request r has of a matrix of `count` rows.
__device__ inline row_range range_of(const row_range* given, std::size_t count,
                                     std::size_t requests, std::size_t r) {
  const std::size_t each = count / requests;
  const row_range wanted =
      given ? given[r] : row_range{std::uint32_t(r * each), std::uint32_t(each)};
  const std::size_t left = wanted.first < count ? count - wanted.first : 0;
  return {wanted.first, wanted.count < left ? wanted.count : std::uint32_t(left)};
}
template <class S>
__device__ row_range draft_range(const batch<S>& b, std::size_t r) {
  return range_of(b.draft_rows, b.draft_count, b.requests, r);
}
template <class S>
__device__ row_range target_range(const batch<S>& b, std::size_t r) {
  return range_of(b.target_rows, b.target_count, b.requests, r);
}
template <bool Whole, class S>
__device__ raw_row<S, Whole> draft_row(const batch<S>& b, std::size_t r, std::size_t j) {
  const std::size_t i = draft_range(b, r).first + j;
  return {b.draft + i * b.draft_stride,
          b.draft_mask ? b.draft_mask + i * ((b.vocabulary + 31) / 32) : nullptr, b.vocabulary};
}
template <bool Whole, class S>
__device__ raw_row<S, Whole> target_row(const batch<S>& b, std::size_t r, std::size_t j) {
  const std::size_t i = target_range(b, r).first + j;
  return {b.target + i * b.target_stride,
          b.target_mask ? b.target_mask + i * ((b.vocabulary + 31) / 32) : nullptr, b.vocabulary};
}
// The index of this thread block's cluster.
template <bool Whole>
__device__ std::size_t cluster_number(const collective<Whole>& together) {
  return blockIdx.x / together.size();
}

// Each cluster reads one row. A request has draft_rows rows of the draft, then most + 1 rows of the
// target.
template <bool Whole, class Batch>
__global__ void __launch_bounds__(threads, 2)
    normalise_rows(Batch b, std::size_t draft_rows, bool bonus_reads_draft, bool confidence,
                   row_facts* facts) {
  alignas(16) __shared__ unsigned char memory[sizeof(shared_memory)];
  collective<Whole> together(*reinterpret_cast<shared_memory*>(memory));
  const std::size_t rows = draft_rows + b.most + 1, i = cluster_number(together), r = i / rows,
                    j = i % rows;
  const bool is_draft = j < draft_rows;
  token_id ids[most_drafted + 1];
  const draft drafted = drafted_of(b, r, ids);
  const std::size_t g = drafted.size();
  const bool bonus = drafted.bonus_follows(g);
  const bool due = is_draft ? j < g + (bonus && bonus_reads_draft) : j - draft_rows < g + bonus;
  const bool given =
      is_draft ? j < draft_range(b, r).count : j - draft_rows < target_range(b, r).count;
  if (!due || !given) return;  // the whole cluster
  const double temperature = temperature_of(b, r, is_draft);
  using draft_type = decltype(draft_row<Whole>(b, r, j));
  row_facts found;
  if constexpr (std::is_same_v<draft_type, decltype(target_row<Whole>(b, r, j))>) {
    const auto row = is_draft ? draft_row<Whole>(b, r, j) : target_row<Whole>(b, r, j - draft_rows);
    found = facts_of(row, temperature, confidence, together);
  } else if (is_draft) {
    found = facts_of(draft_row<Whole>(b, r, j), temperature, confidence, together);
  } else {
    found = facts_of(target_row<Whole>(b, r, j - draft_rows), temperature, confidence, together);
  }
  if (together.leads()) facts[i] = found;
}

// policies[r] for request r, or the same policy for all.
template <class Policy>
struct same_for_all {
  Policy policy;
  __device__ const Policy& operator[](std::size_t) const { return policy; }
};

// What a request's verification has found.
struct verified {
  verdict said;
  const emission* emissions;
  const draft_acceptance* acceptances;  // or null
};
__device__ inline void write(const outcome& out, std::size_t r, std::size_t most,
                             const verified& f) {
  out.verdicts[r] = f.said;
  for (std::size_t i = 0; i < f.said.emitted; ++i)
    out.emissions[r * (most + 1) + i] = f.emissions[i];
  for (std::size_t i = 0; out.acceptances && i < most; ++i)
    out.acceptances[r * most + i] = f.acceptances[i];
}

template <bool Whole, class Batch, class Policies, class Verifier, class Outcome>
__global__ void __launch_bounds__(threads, 2)
    verify_requests(Batch b, Policies policies, Verifier verifier, std::size_t draft_rows,
                    const row_facts* facts, Outcome out) {
  alignas(16) __shared__ unsigned char memory[sizeof(shared_memory)];
  collective<Whole> together(*reinterpret_cast<shared_memory*>(memory));
  const std::size_t r = cluster_number(together);
  facts += r * (draft_rows + b.most + 1);
  const auto q_rows = rows_of(draft_range(b, r).count, [&](std::size_t j) {
    return device_row(draft_row<Whole>(b, r, j), facts[j], together);
  });
  const auto p_rows = rows_of(target_range(b, r).count, [&](std::size_t j) {
    return device_row(target_row<Whole>(b, r, j), facts[draft_rows + j], together);
  });
  const auto seed = std::uint64_t(b.seed[r]), request = b.request ? std::uint64_t(b.request[r]) : r;
  random_streams chooser(seed, request);
  const auto by = [&] {
    if constexpr (requires { verifier(seed, request); }) return verifier(seed, request);
    else return verifier;
  }();
  // Every thread has its own copy of what the verifier writes.
  emission emissions[most_drafted + 1];
  draft_acceptance acceptances[most_drafted];
  double scratch[most_drafted + 1];
  token_id ids[most_drafted + 1];
  draft drafted = drafted_of(b, r, ids);
  drafted.acceptances = {acceptances, out.acceptances ? b.most : 0};
  const verdict v =
      by.verify(drafted, q_rows, p_rows, policies[r], chooser,
                std::span<emission>(emissions, b.most + 1), std::span<double>(scratch));
  if (together.leads()) write(out, r, b.most, verified{v, emissions, acceptances});
}

// What the current device can do with a kernel.
struct kernel_limits {
  unsigned processors = 0, cluster = 1;  // cluster: the largest that fits on the device
};
inline constexpr int most_devices = 64;  // whose limits are remembered

template <class Kernel>
cudaError_t ask_limits(Kernel* kernel, int device, kernel_limits& limits) {
  int processors = 0, clusters = 0;
  cudaFuncAttributes attributes{};
  if (const auto e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      e != cudaSuccess)
    return e;
  if (const auto e = cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
      e != cudaSuccess)
    return e;
  if (const auto e = cudaFuncGetAttributes(&attributes, kernel); e != cudaSuccess) return e;
  limits = {unsigned(processors), 1};
  // the code that runs was compiled without clusters
  if (!clusters || attributes.ptxVersion < 90) return cudaSuccess;
  for (unsigned size = most_in_cluster; size > 1; size /= 2) {
    cudaLaunchAttribute shape{};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {size, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(size);
    config.blockDim = dim3(threads);
    config.attrs = &shape;
    config.numAttrs = 1;
    int fit = 0;
    if (cudaOccupancyMaxActiveClusters(&fit, kernel, &config) != cudaSuccess) {
      (void)cudaGetLastError();  // it was a question: no later check reports its answer
    } else if (fit > 0) {
      limits.cluster = size;
      break;
    }
  }
  return cudaSuccess;
}

// The same, asked once for each kernel and device.
template <auto Kernel>
cudaError_t limits_of(kernel_limits& limits) {
  static std::atomic<std::uint32_t> known[most_devices];  // 16 processors + cluster; 0: not asked
  static_assert(most_in_cluster < 16);
  int device = 0;
  if (const auto e = cudaGetDevice(&device); e != cudaSuccess) return e;
  if (const std::uint32_t x = device < most_devices ? known[device].load() : 0) {
    limits = {x / 16, x % 16};
    return cudaSuccess;
  }
  const auto e = ask_limits(Kernel, device, limits);
  if (e == cudaSuccess && device < most_devices)
    known[device].store(16 * limits.processors + limits.cluster);
  return e;
}

// Launches the kernel on `units` clusters. A cluster has no more thread blocks than there is work
// for, and than the device can run. It has up to `enough` in any case: it then runs for a shorter
// time, and the last wave of clusters leaves less of the device idle. It has more if that does not
// fill the device.
template <auto Kernel, class... A>
cudaError_t launch(std::size_t units, unsigned enough, std::size_t vocabulary, cudaStream_t stream,
                   A... arguments) {
  kernel_limits limits;
  if (const auto e = limits_of<Kernel>(limits); e != cudaSuccess) return e;
  unsigned cluster = 1;
  while (cluster < limits.cluster && cluster * groups < block_count(vocabulary) &&
         (cluster < enough || cluster * units <= limits.processors))
    cluster *= 2;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(units * cluster));
  config.blockDim = dim3(threads);
  config.stream = stream;
  cudaLaunchAttribute shape{};
  shape.id = cudaLaunchAttributeClusterDimension;
  shape.val.clusterDim = {cluster, 1, 1};
  config.attrs = &shape;
  config.numAttrs = cluster > 1;
  return cudaLaunchKernelEx(&config, Kernel, arguments...);
}

template <class Policies>
using policy_of = std::remove_cvref_t<decltype(std::declval<const Policies&>()[0])>;

// Whether the sizes of a batch are in range, with at most `most` drafted tokens a request, and
// nothing that its kernels need is null or too small.
template <class Batch, class Outcome>
bool can_launch(const Batch& b, const Outcome& out, std::size_t most, bool reads_draft,
                const void* storage, std::size_t storage_bytes, std::size_t needed_bytes) {
  // a grid has fewer than 2^31 thread blocks
  constexpr std::size_t most_units = std::size_t(1) << 24;
  const auto given = [&](const auto* rows, std::size_t count, std::size_t stride,
                         const row_range* ranges) {
    return rows && count > 0 && stride >= b.vocabulary && (ranges || count % b.requests == 0);
  };
  return b.requests <= most_units / (2 * most + 2) && b.most <= most && b.vocabulary > 0 &&
         b.vocabulary <= most_vocabulary &&
         given(b.target, b.target_count, b.target_stride, b.target_rows) &&
         (!reads_draft || given(b.draft, b.draft_count, b.draft_stride, b.draft_rows)) &&
         (b.most == 0 || b.tokens) && b.start && b.seed && out.verdicts && out.emissions &&
         storage && reinterpret_cast<std::uintptr_t>(storage) % 16 == 0 &&
         storage_bytes >= needed_bytes;
}
// Whether every row that is read can be read four logits at a time.
template <class Batch>
bool rows_in_fours(const Batch& b, bool reads_draft) {
  const auto in_fours = [](const auto* rows, std::size_t stride) {
    return reinterpret_cast<std::uintptr_t>(rows) % (4 * sizeof(*rows)) == 0 && stride % 4 == 0;
  };
  return b.vocabulary % 4 == 0 && !b.draft_mask && !b.target_mask &&
         in_fours(b.target, b.target_stride) && (!reads_draft || in_fours(b.draft, b.draft_stride));
}

// Launches both kernels.
template <bool Whole, class Batch, class Policies, class Verifier, class Outcome>
cudaError_t verify_rows(const Batch& b, const Policies& policies, const Verifier& verifier,
                        const Outcome& out, std::size_t draft_rows, row_facts* facts,
                        cudaStream_t stream) {
  using Policy = policy_of<Policies>;
  const auto e = launch<normalise_rows<Whole, Batch>>(
      b.requests * (draft_rows + b.most + 1), 4, b.vocabulary, stream, b, draft_rows,
      reads_draft<Policy>, reads_confidence<Policy>, facts);
  if (e != cudaSuccess) return e;
  return launch<verify_requests<Whole, Batch, Policies, Verifier, Outcome>>(
      b.requests, 1, b.vocabulary, stream, b, policies, verifier, draft_rows,
      static_cast<const row_facts*>(facts), out);
}

}  // namespace detail

// Bytes of device memory that verify() needs for the facts of rows; it must be aligned to 16.
template <class S>
[[nodiscard]] std::size_t verify_storage(const batch<S>& b) {
  return b.requests * (2 * b.most + 2) * sizeof(row_facts);
}

// Verifies a batch on `stream`: two launches. No synchronisation, no allocation; can be captured in
// a graph.
//   policies   one policy for all requests, or a device pointer to one for each. Lossless reads
//              every row once, and the two rows of a rejected position once more. A policy with k
//              dependent sums reads rows k more times. A policy that reads confidences reads them
//              once more where the temperature is neither 1 nor 0
//   verifier   token_verifier, block_verifier, match_verifier, or coupled
//   storage    verify_storage(b) bytes, written
// Returns the error of a launch, or cudaErrorInvalidValue for sizes out of range, a null pointer,
// or storage that is too small or not aligned, or a matrix without rows or, without ranges, one
// whose rows are not as many for each request. An error of one request is in its verdict. That the
// matrices have as many rows as it says is not checked.
template <class S, class Policies, class Verifier>
[[nodiscard]] cudaError_t verify(const batch<S>& b, const Policies& policies,
                                 const Verifier& verifier, const outcome& out, void* storage,
                                 std::size_t storage_bytes, cudaStream_t stream) {
  if constexpr (!requires { policies[0]; }) {
    return verify(b, detail::same_for_all<Policies>{policies}, verifier, out, storage,
                  storage_bytes, stream);
  } else {
    using Policy = detail::policy_of<Policies>;
    static_assert(std::is_trivially_copyable_v<Policies> && std::is_trivially_copyable_v<Verifier>,
                  "specagg: one policy for all requests, or a device pointer to one for each");
#if defined(__CUDACC__)
    static_assert(!OneOfSeveral<Policy>,
                  "specagg: no policy chosen at run time (any_of) runs on a device");
#endif
    const bool reads =
        (b.most > 0 || reads_draft<Policy>) &&
        (reads_draft<Policy> || Verifier::reads_draft_rows(out.acceptances != nullptr));
    if constexpr (std::is_pointer_v<Policies>)
      if (!policies) return cudaErrorInvalidValue;
    if (b.requests == 0) return cudaSuccess;
    if (!detail::can_launch(b, out, most_drafted, reads, storage, storage_bytes, verify_storage(b)))
      return cudaErrorInvalidValue;
    const bool whole = detail::rows_in_fours(b, reads);
    // the bonus reads one more
    const std::size_t draft_rows = reads ? b.most + reads_draft<Policy> : 0;
    auto* facts = static_cast<row_facts*>(storage);
    return whole
               ? detail::verify_rows<true>(b, policies, verifier, out, draft_rows, facts, stream)
               : detail::verify_rows<false>(b, policies, verifier, out, draft_rows, facts, stream);
  }
}

}  // namespace cuda
SPECAGG_END
