// SPDX-License-Identifier: Apache-2.0
// Verification on the device: the library's policies and verifiers, for a batch of requests whose
// logits are in device memory. Tokens, statuses and bits are the same as on the CPU. They do not
// depend on the batch, its order, or how it is divided among thread blocks.
//
//   logits --(first kernel: one read of every row)--> what each block of 1024 logits sums to
//   these --(second: the verifier, a thread block or cluster for each request)--> tokens
#pragma once
#include <cuda_runtime.h>

#include <type_traits>

#include <specagg/backend/cuda/given_row.hpp>
#include <specagg/backend/cuda/launch.hpp>
#include <specagg/backend/cuda/numbers.hpp>

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
// The verifier of all_verifiers with this number, as verify() takes it.
template <std::size_t Number, class V = std::tuple_element_t<Number, all_verifiers>>
using numbered_verifier = std::conditional_t<is_coupled<V>, coupled, V>;

namespace detail {

// The functions by which the kernels read a batch<S>. Batches of another shape have functions of
// the same names (backend/cuda/ragged.hpp).
template <class S>
__device__ std::size_t tokens_given(const batch<S>& b, std::size_t /*r*/) {
  return b.most;
}
template <class S>
__device__ token_id token_of(const batch<S>& b, std::size_t r, std::size_t j) {
  return b.tokens[r * b.most + j];
}
template <class S>
__device__ bonus_choice bonus_of(const batch<S>&, std::size_t /*r*/) {
  return true;
}
template <class S>
__device__ double temperature_of(const batch<S>& b, std::size_t r, bool /*of_draft*/) {
  return b.temperature ? b.temperature[r] : 1;
}
// The rows of request r in a matrix of `count` rows.
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
__device__ std::size_t cluster_number(const auto& together) { return blockIdx.x / together.size(); }

// The draft of a request: draft::size() and bonus_follows(). The threads of a warp find them
// together. Each looks at one token; otherwise every thread would load all tokens one after the
// other.
struct draft_found {
  std::size_t size;
  bonus_choice bonus;
};
__device__ draft_found find_draft(const auto& b, std::size_t r) {
  const std::size_t given = tokens_given(b, r), lane = threadIdx.x % 32;
  static_assert(most_drafted + 1 < 32);
  const token_id y = lane < given ? token_of(b, r, lane) : no_token;
  const unsigned stops = __ballot_sync(~0u, y == no_token),
                 ends = __ballot_sync(~0u, y != no_token && b.end_of_text.contains(y));
  const bool ended = (ends & (stops - 1) & ~stops) != 0;  // before the first stop
  const unsigned size = ended ? unsigned(__ffs(int(ends))) : unsigned(__ffs(int(stops))) - 1;
  return {size, ended ? bonus_choice(false) : bonus_of(b, r)};
}

// The rows that requests with drafts need: draft_rows of the draft, then most + 1 of the target.
template <class Batch, bool Whole>
struct rows_of_drafts {
  static constexpr bool whole = Whole;
  Batch b;
  std::size_t draft_rows;
  bool bonus_reads_draft;

  SPECAGG_FUNCTION std::size_t of_request() const { return draft_rows + b.most + 1; }
  // f(row j of request r, its temperature), unless it is missing or not due. All threads of a warp,
  // with the same r and j.
  __device__ void read(std::size_t r, std::size_t j, const auto& f) const {
    const draft_found drafted = find_draft(b, r);
    const bool bonus = drafted.bonus && !drafted.bonus.is_given();
    const bool is_draft = j < draft_rows;
    const std::size_t n = is_draft ? j : j - draft_rows;
    const bool due =
        n <
        drafted.size + (bonus && (!is_draft || (bonus_reads_draft && !drafted.bonus.is_target())));
    if (!due || n >= (is_draft ? draft_range(b, r) : target_range(b, r)).count) return;
    const double temperature = temperature_of(b, r, is_draft);
    using of_draft = decltype(draft_row<Whole>(b, r, n));
    if constexpr (std::is_same_v<of_draft, decltype(target_row<Whole>(b, r, n))>)
      f(is_draft ? draft_row<Whole>(b, r, n) : target_row<Whole>(b, r, n), temperature);
    else if (is_draft) f(draft_row<Whole>(b, r, n), temperature);
    else f(target_row<Whole>(b, r, n), temperature);
  }
};

// The sums of the blocks of a row: one for each block at the row's temperature, and as many at
// temperature 1.
__device__ block_sum<float>* sums_of(const auto& rows, std::size_t r, std::size_t j,
                                     block_sum<float>* sums) {
  return sums + (r * rows.of_request() + j) * 2 * block_count(rows.b.vocabulary);
}
// Thread blocks of sum_rows that share a multiprocessor. In whole rows of 16-bit logits the 64
// logits of a thread take 32 registers, which leaves room for 4; other rows take more.
template <class Rows>
inline constexpr int sums_at_once =
    Rows::whole && sizeof(*Rows{}.b.draft) <= 2 && sizeof(*Rows{}.b.target) <= 2 ? 4 : 2;
// A thread block reads 16 blocks of one row, 16 threads each. Its first warp finds the row and its
// scales. (If every warp did, that would be a fifth of all instructions.)
template <class Rows>
__global__ void __launch_bounds__(threads, sums_at_once<Rows>)
    sum_rows(Rows rows, bool confidence, block_sum<float>* sums) {
  refuse_flags_that_change_bits();
  start_next_kernel();
  using of_draft = decltype(draft_row<Rows::whole>(rows.b, 0, 0));
  using of_target = decltype(target_row<Rows::whole>(rows.b, 0, 0));
  struct row_found {
    std::conditional_t<(sizeof(of_draft) > sizeof(of_target)), of_draft, of_target> row;
    row_scales scales;
    block_sum<float>* sums;  // null: the row is not due
    decltype(maxima_of(Rows(), 0, nullptr)) maxima;
    unsigned first;  // block
    bool is_draft;
  };
  alignas(row_found) __shared__ unsigned char memory[sizeof(row_found)];
  auto& found = *reinterpret_cast<row_found*>(memory);
  if (threadIdx.x < 32) {
    const unsigned blocks = unsigned(block_count(rows.b.vocabulary)),
                   parts = (blocks + groups - 1) / groups, each = unsigned(rows.of_request()),
                   i = blockIdx.x / parts, r = i / each, j = i % each;
    const bool notes = threadIdx.x == 0 && blockIdx.x % parts == 0;
    if (threadIdx.x == 0) found.sums = nullptr;
    if (notes) note_row(rows, i, static_cast<const of_target*>(nullptr), 0, sums);
    rows.read(r, j, [&]<class Row>(const Row& row, double temperature) {
      if (threadIdx.x > 0) return;
      if (notes) note_row(rows, i, &row, temperature, sums);
      *reinterpret_cast<Row*>(memory) = row;
      found.scales = row_scales(temperature);
      found.sums = sums_of(rows, r, j, sums);
      found.maxima = maxima_of(rows, i, sums);
      found.first = blockIdx.x % parts * groups;
      found.is_draft = j < rows.draft_rows;
    });
  }
  __syncthreads();
  if (!found.sums) return;
  const unsigned b = found.first + threadIdx.x / 16;
  const auto* row = reinterpret_cast<const of_target*>(memory);
  if (std::is_same_v<of_draft, of_target> || !found.is_draft)
    return sum_block_of(*row, b, found.scales, confidence, found.sums, found.maxima);
  const auto* of_drafts = reinterpret_cast<const of_draft*>(memory);
  sum_block_of(*of_drafts, b, found.scales, confidence, found.sums, found.maxima);
}
// The facts of all rows of request r, which the threads share. A warp finds the facts of one row.
template <class Rows, bool Whole>
__device__ void find_facts(const Rows& rows, std::size_t r, bool confidence, block_sum<float>* sums,
                           row_facts* facts, const collective<Whole>& together) {
  wait_for_last_kernel();
  for (std::size_t j = together.warp(); j < rows.of_request(); j += together.warps()) {
    row_facts found{};
    found.why = status::missing_row;  // a law may ask for a row that is not due
    rows.read(r, j, [&](const auto& row, double temperature) {
      found = facts_of(row, temperature, confidence, sums_of(rows, r, j, sums));
    });
    together.publish(threadIdx.x % 32, facts, j, found);
  }
  together.synchronise();
}

// The type of the facts of a batch's rows, and of a row that is read with them. Filtered batches
// have other types (backend/cuda/ragged.hpp).
template <class Batch>
struct known_rows {
  using facts = row_facts;
  template <class S, bool Whole>
  using row = device_row<S, Whole>;
};
template <class Batch, class S, bool Whole>
__device__ auto known_row(const raw_row<S, Whole>& row,
                          const typename known_rows<Batch>::facts& facts,
                          collective<Whole>& together) {
  return typename known_rows<Batch>::template row<S, Whole>(row, facts, together);
}

// The result of a request's verification. write() is called by the threads of a warp.
struct verified {
  verdict said;
  const emission* emissions;            // before with_logs()
  const draft_acceptance* acceptances;  // or null
};
static_assert(most_drafted < 32, "a thread of the warp for each emission");
__device__ inline void write(const outcome& out, std::size_t r, std::size_t most,
                             const verified& f) {
  const std::size_t lane = threadIdx.x % 32;
  if (lane == 0) out.verdicts[r] = f.said;
  if (lane < f.said.emitted) out.emissions[r * (most + 1) + lane] = with_logs(f.emissions[lane]);
  if (out.acceptances && lane < most) out.acceptances[r * most + lane] = f.acceptances[lane];
}

// The functions by which verify_requests uses a batch; batches of parts of rows have their own
// (backend/cuda/sharded.hpp). They say how threads read rows together, whether an earlier launch
// has verified the request, and where the result goes.
template <class Batch, bool Whole>
__device__ collective<Whole> together_of(const rows_of_drafts<Batch, Whole>&,
                                         shared_memory& memory) {
  return collective<Whole>(memory);
}
__device__ bool is_finished(const auto&, std::size_t /*r*/) { return false; }
__device__ void finish(const auto& together, const auto& b, const auto& out, std::size_t r,
                       const verified& f) {
  if (together.writes()) write(out, r, b.most, f);
}

template <bool Whole, class Batch, class Policies, class Verifier, class Outcome>
__global__ void __launch_bounds__(threads, 2)
    verify_requests(rows_of_drafts<Batch, Whole> rows, Policies policies, Verifier verifier,
                    block_sum<float>* sums, Outcome out) {
  alignas(16) __shared__ unsigned char memory[sizeof(shared_memory)];
  using known = typename known_rows<Batch>::facts;
  alignas(16) __shared__ unsigned char fact_memory[sizeof(known) * (2 * most_drafted + 2)];
  auto together = together_of(rows, *reinterpret_cast<shared_memory*>(memory));
  auto* facts = reinterpret_cast<known*>(fact_memory);
  const Batch& b = rows.b;
  const std::size_t r = cluster_number(together), draft_rows = rows.draft_rows;
  if (is_finished(b, r)) return;
  alignas(16) __shared__ unsigned char chooser_memory[sizeof(numbers_of_request)];
  auto& chooser = *reinterpret_cast<numbers_of_request*>(chooser_memory);
  const auto seed = std::uint64_t(b.seed[r]), request = b.request ? std::uint64_t(b.request[r]) : r;
  chooser.draw_all(seed, request, std::uint32_t(b.start[r]));
  __shared__ token_id ids[most_drafted + 1];
  if (threadIdx.x < tokens_given(b, r)) ids[threadIdx.x] = token_of(b, r, threadIdx.x);
  find_facts(rows, r, reads_confidence<policy_of<Policies>>, sums, facts, together);  // a barrier
  const auto q_rows = rows_of(draft_range(b, r).count, [&](std::size_t j) {
    return known_row<Batch>(draft_row<Whole>(b, r, j), facts[j], together);
  });
  const auto p_rows = rows_of(target_range(b, r).count, [&](std::size_t j) {
    return known_row<Batch>(target_row<Whole>(b, r, j), facts[draft_rows + j], together);
  });
  const auto by = [&] {
    if constexpr (requires { verifier(seed, request); }) return verifier(seed, request);
    else return verifier;
  }();
  // Each thread's own copy of what the verifier writes; as bytes, which nobody sets first.
  alignas(8) unsigned char emission_memory[sizeof(emission) * (most_drafted + 1)];
  alignas(8) unsigned char acceptance_memory[sizeof(draft_acceptance) * most_drafted];
  auto* const emissions = reinterpret_cast<emission*>(emission_memory);
  auto* const acceptances = reinterpret_cast<draft_acceptance*>(acceptance_memory);
  double scratch[most_drafted + 1];
  draft drafted{
      {ids, tokens_given(b, r)}, std::uint32_t(b.start[r]), b.end_of_text, bonus_of(b, r)};
  drafted.acceptances = {acceptances, out.acceptances ? b.most : 0};
  // too many tokens have no room, with or without a bonus: the verifier refuses them
  const std::size_t room = drafted.size() > b.most ? b.most : b.most + 1;
  const verdict v = by.verify(drafted, q_rows, p_rows, policies[r], chooser,
                              std::span<emission>(emissions, room), std::span<double>(scratch));
  finish(together, b, out, r, verified{v, emissions, acceptances});
}

// Whether a batch needs sums at temperature 1 even if its policy reads no confidences.
constexpr bool sums_at_1(const auto&) { return false; }
// Launches the kernel that reads all rows of a batch.
template <class Rows>
cudaError_t launch_sums(const Rows& rows, bool confidence, block_sum<float>* sums,
                        cudaStream_t stream) {
  const std::size_t parts = (block_count(rows.b.vocabulary) + groups - 1) / groups;
  return launch(sum_rows<Rows>, rows.b.requests * rows.of_request() * parts, stream, rows,
                confidence || sums_at_1(rows.b), sums);
}
// Whether the sizes of a batch are in range, with at most `most` drafted tokens a request, and all
// arrays that its kernels need are given.
template <class S, class Outcome>
bool can_launch(const batch<S>& b, const Outcome& out, bool reads_draft,
                std::size_t most = most_drafted) {
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
         (b.most == 0 || b.tokens) && b.start && b.seed && out.verdicts && out.emissions;
}
// Whether a batch has draft rows to read; with_bonus: also the row after the draft.
template <class S>
bool has_draft_rows(const batch<S>& b, bool with_bonus) {
  return b.most > 0 || with_bonus;
}
template <class Policy, class Verifier, class Batch, class Outcome>
bool reads_draft_rows(const Batch& b, const Outcome& out) {
  return has_draft_rows(b, reads_draft<Policy>) &&
         (reads_draft<Policy> || Verifier::reads_draft_rows(out.acceptances != nullptr));
}
// Whether every row that is read can be read four logits at a time.
bool rows_in_fours(const auto& b, bool reads_draft) {
  const auto in_fours = [](const auto* rows, std::size_t stride) {
    return reinterpret_cast<std::uintptr_t>(rows) % (4 * sizeof(*rows)) == 0 && stride % 4 == 0;
  };
  return b.vocabulary % 4 == 0 && !b.draft_mask && !b.target_mask &&
         in_fours(b.target, b.target_stride) && (!reads_draft || in_fours(b.draft, b.draft_stride));
}

// Launches what a batch needs between its two kernels: nothing.
cudaError_t launch_between(const auto&, bool /*confidence*/, block_sum<float>*, cudaStream_t) {
  return cudaSuccess;
}
// Launches both kernels.
template <bool Whole, class Batch, class Policies, class Verifier, class Outcome>
cudaError_t verify_rows(const rows_of_drafts<Batch, Whole>& rows, const Policies& policies,
                        const Verifier& verifier, const Outcome& out, block_sum<float>* sums,
                        cudaStream_t stream) {
  constexpr bool confidence = reads_confidence<policy_of<Policies>>;
  if (const auto e = launch_sums(rows, confidence, sums, stream); e != cudaSuccess) return e;
  if (const auto e = launch_between(rows, confidence, sums, stream); e != cudaSuccess) return e;
  return launch_verifier<verify_requests<Whole, Batch, Policies, Verifier, Outcome>>(
      rows.b.requests, rows.b.vocabulary, stream, rows, policies, verifier, sums, out);
}
// The draft rows of a request. Policies that read the draft need one for the bonus as well.
template <class Policy, class Batch>
std::size_t draft_rows_of(const Batch& b, bool reads) {
  constexpr bool no_rows = std::is_same_v<decltype(b.draft), const one_hot*>;
  return reads && !no_rows ? b.most + reads_draft<Policy> : 0;
}
// Calls launch with the rows of a batch of drafts, which are read in fours if all of them can be.
template <class Policy, class Batch, class Launch>
cudaError_t with_rows(const Batch& b, std::size_t draft_rows, const Launch& launch) {
  if (rows_in_fours(b, draft_rows > 0))
    return launch(rows_of_drafts<Batch, true>{b, draft_rows, reads_draft<Policy>});
  return launch(rows_of_drafts<Batch, false>{b, draft_rows, reads_draft<Policy>});
}
// verify() of a batch of drafts.
template <class Batch, class Policies, class Verifier, class Outcome>
cudaError_t verify_drafts(const Batch& b, const Policies& given, const Verifier& verifier,
                          const Outcome& out, void* storage, std::size_t storage_bytes,
                          std::size_t needed_bytes, cudaStream_t stream) {
  return with_policies<Verifier>(given, [&]<class Each>(const Each& policies) {
    using Policy = policy_of<Each>;
    const bool reads = reads_draft_rows<Policy, Verifier>(b, out);
    if (b.requests == 0) return cudaSuccess;
    if (!can_launch(b, out, reads) || !has_room(storage, storage_bytes, needed_bytes))
      return cudaErrorInvalidValue;
    return with_rows<Policy>(b, draft_rows_of<Policy>(b, reads), [&](const auto& rows) {
      return verify_rows(rows, policies, verifier, out, static_cast<block_sum<float>*>(storage),
                         stream);
    });
  });
}

// Bytes for the sums of the blocks of `rows` rows.
inline std::size_t bytes_of_sums(std::size_t rows, std::size_t vocabulary) {
  return rows * 2 * block_count(vocabulary) * sizeof(block_sum<float>);
}

}  // namespace detail

// Bytes of device memory that verify() needs: 32 for each block of 1024 logits. It must be aligned
// to 16.
template <class S>
[[nodiscard]] std::size_t verify_storage(const batch<S>& b) {
  return detail::bytes_of_sums(b.requests * (2 * b.most + 2), b.vocabulary);
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
// or storage that is too small or not aligned, or a matrix without rows, or, without ranges, a
// matrix whose number of rows is not a multiple of `requests`. An error of one request is in its
// verdict. Whether the matrices really have as many rows as stated is not checked.
template <class S, class Policies, class Verifier>
[[nodiscard]] cudaError_t verify(const batch<S>& b, const Policies& policies,
                                 const Verifier& verifier, const outcome& out, void* storage,
                                 std::size_t storage_bytes, cudaStream_t stream) {
  return detail::verify_drafts(b, policies, verifier, out, storage, storage_bytes,
                               verify_storage(b), stream);
}

}  // namespace cuda
SPECAGG_END
