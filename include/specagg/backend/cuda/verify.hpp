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

#include <specagg/backend/cuda/batch.hpp>
#include <specagg/backend/cuda/numbers.hpp>

SPECAGG_BEGIN
namespace cuda {

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

// The Shape of a batch, or of one that has its members.
template <class B>
struct padded : B {
  using B::requests, B::vocabulary, B::most, B::draft, B::target;
  // The rows of a matrix in 32 bits, as those of a row_range; and those of each request where there
  // are no ranges, counted here: a thread would divide for each row.
  struct counted {
    std::uint32_t rows, each;
  };
  counted of_draft, of_target;

  padded(const B& b)
      : B(b), of_draft(count_of(b.draft_count)), of_target(count_of(b.target_count)) {}
  __device__ std::size_t tokens_given(std::size_t /*r*/) const { return most; }
  __device__ token_id token_of(std::size_t r, std::size_t j) const {
    return this->tokens[unsigned(r) * unsigned(most) + unsigned(j)];
  }
  __device__ bonus_choice bonus_of(std::size_t /*r*/) const { return true; }
  __device__ double temperature_of(std::size_t r, bool /*of_draft*/) const {
    return this->temperature ? this->temperature[r] : 1;
  }
  __device__ row_range range_of(bool is_draft, std::size_t r) const {
    const row_range* const given = is_draft ? this->draft_rows : this->target_rows;
    const std::uint32_t rows = is_draft ? of_draft.rows : of_target.rows,
                        each = is_draft ? of_draft.each : of_target.each;
    const row_range wanted = given ? given[r] : row_range{std::uint32_t(r) * each, each};
    const std::uint32_t left = wanted.first < rows ? rows - wanted.first : 0;
    return {wanted.first, wanted.count < left ? wanted.count : left};
  }
  template <bool Whole>
  __device__ auto row(bool is_draft, std::size_t i) const {
    return row_of_matrix<Whole>(is_draft ? draft : target,
                                is_draft ? this->draft_stride : this->target_stride, i,
                                is_draft ? this->draft_mask : this->target_mask, i, vocabulary);
  }
  __device__ void write(const outcome& out, std::size_t r, const verified& f) const {
    const std::size_t lane = threadIdx.x % 32;
    if (lane == 0) out.verdicts[r] = f.said;
    if (lane < f.said.emitted) out.emissions[r * (most + 1) + lane] = with_logs(f.emissions[lane]);
    if (out.acceptances && lane < most) out.acceptances[r * most + lane] = f.acceptances[lane];
  }

  template <class Policy, class Verifier>
  bool reads_draft_rows(const outcome& out) const {
    return reads_draft<Policy> ||
           (most > 0 && Verifier::reads_draft_rows(out.acceptances != nullptr));
  }
  static constexpr std::size_t limit = most_drafted;
  bool can_launch(const auto& out, bool reads_draft) const {
    const auto given = [&](const auto* rows, std::size_t count, std::size_t stride,
                           const row_range* ranges) {
      return rows && count > 0 && stride >= vocabulary && (ranges || count % requests == 0);
    };
    return given(target, this->target_count, this->target_stride, this->target_rows) &&
           (!reads_draft ||
            given(draft, this->draft_count, this->draft_stride, this->draft_rows)) &&
           (most == 0 || this->tokens) && out.verdicts && out.emissions;
  }

 private:
  counted count_of(std::size_t rows) const {
    constexpr std::size_t most_rows = std::numeric_limits<std::uint32_t>::max();
    return {std::uint32_t(rows < most_rows ? rows : most_rows),
            std::uint32_t(requests > 0 ? rows / requests : 0)};
  }
};

// Thread blocks of sum_rows that share a multiprocessor. In whole rows of 16-bit logits the 64
// logits of a thread take 32 registers, which leaves room for 4; other rows take more.
template <class Rows>
inline constexpr int sums_at_once = Rows::whole && sizeof(*std::declval<Rows>().draft) <= 2 &&
                                            sizeof(*std::declval<Rows>().target) <= 2
                                        ? 4
                                        : 2;
// Divides numbers below 2^27 by a number up to 16 that the host knows.
struct division {
  unsigned by, factor;
  explicit division(unsigned n) : by(n), factor(((1u << 31) + n - 1) / n) {}
  __device__ unsigned quotient(unsigned x) const {
    return unsigned(std::uint64_t(x) * factor >> 31);
  }
};
// A thread block reads 16 blocks of one row, 16 threads each. The parts of a row come one after the
// other, then the requests, then the rows of a request (blockIdx.y). The first warp finds the row
// and its scales. (If every warp did, that would be a fifth of all instructions.)
template <class Rows>
__global__ void __launch_bounds__(threads, sums_at_once<Rows>)
    sum_rows(Rows rows, division parts, bool confidence, block_sum<float>* sums) {
  refuse_flags_that_change_bits();
  start_next_kernel();
  using of_draft = decltype(rows.q_row({}, 0));
  using of_target = decltype(rows.p_row({}, 0));
  struct row_found {
    std::conditional_t<(sizeof(of_draft) > sizeof(of_target)), of_draft, of_target> row;
    float scale, per_scale;
    block_sum<float>* sums;  // null: the row is not due, or has no valid temperature
    decltype(rows.maxima_of(0, nullptr)) maxima;
    unsigned first;  // block
  };
  alignas(row_found) __shared__ unsigned char memory[sizeof(row_found)];
  auto& found = *reinterpret_cast<row_found*>(memory);
  if (threadIdx.x < 32) {
    const unsigned r = parts.quotient(blockIdx.x), part = blockIdx.x - r * parts.by, j = blockIdx.y,
                   i = r * unsigned(rows.rows_of_request()) + j;
    const bool notes = threadIdx.x == 0 && part == 0;
    if (threadIdx.x == 0) found.sums = nullptr;
    if (notes) rows.note_row(i, static_cast<const of_target*>(nullptr), 0, sums);
    rows.read(r, j, [&]<class Row>(const Row& row, double temperature) {
      if (threadIdx.x > 0) return;
      if (notes) rows.note_row(i, &row, temperature, sums);
      *reinterpret_cast<Row*>(memory) = row;
      const row_scales scales(temperature);
      found.scale = scales.sampled;
      found.per_scale = scales.per_sampled;
      if (std::is_same_v<Row, raw_row<probability, Rows::whole>> || scales.valid)
        found.sums = rows.sums_of(r, j, sums);
      found.maxima = rows.maxima_of(i, sums);
      found.first = part * groups;
    });
  }
  __syncthreads();
  if (!found.sums) return;
  const unsigned b = found.first + threadIdx.x / 16;
  const auto* row = reinterpret_cast<const of_target*>(memory);
  if (std::is_same_v<of_draft, of_target> || blockIdx.y >= rows.rows_of_draft)
    return sum_block_of(*row, b, found.scale, found.per_scale, confidence, found.sums,
                        found.maxima);
  const auto* of_drafts = reinterpret_cast<const of_draft*>(memory);
  sum_block_of(*of_drafts, b, found.scale, found.per_scale, confidence, found.sums, found.maxima);
}

// Thread blocks of verify_requests that share a multiprocessor. Rows of several devices that are
// not whole need more registers than two leave.
template <class Rows>
inline constexpr int verifies_at_once = Rows::whole || !together_of<Rows>::are_shared ? 2 : 1;
// rows_of() with a count in shared memory, which takes no register.
template <class Make>
struct counted_rows {
  const std::uint32_t* count;
  Make make;
  __device__ counted_rows(const std::uint32_t* rows, Make m) : count(rows), make(m) {}
  __device__ std::size_t size() const { return *count; }
  __device__ auto operator[](std::size_t j) const { return make(j); }
};
template <class Rows, class Policies, class Verifier, class Outcome>
__global__ void __launch_bounds__(threads, verifies_at_once<Rows>)
    verify_requests(Rows b, Policies policies, Verifier verifier, block_sum<float>* sums,
                    Outcome out) {
  alignas(16) __shared__ unsigned char memory[sizeof(shared_memory)];
  using known = typename Rows::facts;
  alignas(16) __shared__ unsigned char fact_memory[sizeof(known) * (2 * most_drafted + 2)];
  auto together = b.together(*reinterpret_cast<shared_memory*>(memory));
  auto* facts = reinterpret_cast<known*>(fact_memory);
  const unsigned r = blockIdx.x / together.size();
  if (b.is_finished(r)) return;
  alignas(16) __shared__ unsigned char chooser_memory[sizeof(numbers_of_request)];
  using numbers =
      std::conditional_t<decltype(together)::are_shared, numbers_of_request, numbers_of_lanes>;
  auto& chooser = *reinterpret_cast<numbers*>(chooser_memory);
  const auto seed = std::uint64_t(b.seed[r]), request = b.request ? std::uint64_t(b.request[r]) : r;
  chooser.draw_all(seed, request, std::uint32_t(b.start[r]));
  __shared__ token_id ids[most_drafted + 1];
  const auto given = unsigned(b.tokens_given(r));
  if (threadIdx.x < given) ids[threadIdx.x] = b.token_of(r, threadIdx.x);
  __shared__ std::uint32_t first_row[2], rows[2];  // of the draft and of the target
  if (threadIdx.x < 2) {
    const row_range own = threadIdx.x == 0 ? b.draft_range(r) : b.target_range(r);
    first_row[threadIdx.x] = own.first;
    rows[threadIdx.x] = own.count;
  }
  b.find_facts(r, reads_confidence<policy_of<Policies>>, sums, facts, together);  // a barrier
  const auto q_rows = counted_rows(&rows[0], [&](std::size_t j) {
    return b.known_row(b.q_row({first_row[0], 0}, j), facts[j], together);
  });
  const auto p_rows = counted_rows(&rows[1], [&](std::size_t j) {
    return b.known_row(b.p_row({first_row[1], 0}, j), facts[b.rows_of_draft + j], together);
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
  draft drafted{{ids, std::size_t(given)}, std::uint32_t(b.start[r]), b.end_of_text, b.bonus_of(r)};
  drafted.acceptances = {acceptances, out.acceptances ? b.most : 0};
  // too many tokens have no room, with or without a bonus: the verifier refuses them
  const std::size_t room = drafted.size() > b.most ? b.most : b.most + 1;
  const verdict v = by.verify(drafted, q_rows, p_rows, policies[r], chooser,
                              std::span<emission>(emissions, room), std::span<double>(scratch));
  b.finish(together, out, r, verified{v, emissions, acceptances});
}

// Launches the kernel that reads all rows of a batch.
template <class Rows>
cudaError_t launch_sums(const Rows& rows, bool confidence, block_sum<float>* sums,
                        cudaStream_t stream) {
  static_assert(RowBatch<Rows>);
  const std::size_t parts = (block_count(rows.vocabulary) + groups - 1) / groups;
  static_assert(most_blocks <= 16 * groups);
  const dim3 grid(unsigned(rows.requests * parts), unsigned(rows.rows_of_request()));
  return launch(sum_rows<Rows>, grid, stream, rows, division(unsigned(parts)),
                confidence || rows.sums_at_1(), sums);
}
// verify() of a batch of this Shape, in storage of which needed_bytes are needed.
template <template <class B, bool Whole> class Rows, class B, class Policies, class Verifier,
          class Outcome>
cudaError_t verify_drafts(const B& b, const Policies& policies, const Verifier& verifier,
                          const Outcome& out, void* storage, std::size_t storage_bytes,
                          std::size_t needed_bytes, cudaStream_t stream) {
  auto* const sums = static_cast<block_sum<float>*>(storage);
  return launch_batch<Verifier, Rows>(
      b, policies, out, has_room(storage, storage_bytes, needed_bytes),
      [&]<class Given, class Each>(const Given& rows, const Each& of_requests) {
        static_assert(Batch<Given>);
        constexpr bool confidence = reads_confidence<policy_of<Each>>;
        if (const auto e = launch_sums(rows, confidence, sums, stream); e != cudaSuccess) return e;
        if (const auto e = rows.launch_between(confidence, sums, stream); e != cudaSuccess)
          return e;
        return launch_verifier<verify_requests<Given, Each, Verifier, Outcome>>(
            b.requests, b.vocabulary, stream, rows, of_requests, verifier, sums, out);
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
  return detail::verify_drafts<detail::drafts>(detail::padded<batch<S>>{b}, policies, verifier, out,
                                               storage, storage_bytes, verify_storage(b), stream);
}

}  // namespace cuda
SPECAGG_END
