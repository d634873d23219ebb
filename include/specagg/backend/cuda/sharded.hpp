// SPDX-License-Identifier: Apache-2.0
// Verification of rows whose vocabulary is shared out among devices, as tensor parallelism leaves
// logits. Every rank gets the verdicts of whole rows, with the same bits. Ranks exchange the sums
// of blocks of 1024 logits, and single logits, but never rows.
//
//   own logits --(sum_rows)--> facts of blocks --(all-gather)--> verify, which finds one more
//   exchange each time it runs --(all-gather)--> verify ... --> the same tokens on every rank
//
// The verifiers are those of verify.hpp. A request that needs numbers of other ranks asks for them,
// and runs again from its start in the next step: it reads in its log the numbers of the steps
// before (vocabulary_shards::run does the same on the CPU, shards/vocabulary_shards.hpp).
#pragma once
#include <specagg/backend/cuda/shard_log.hpp>
#include <specagg/backend/cuda/verify.hpp>

SPECAGG_BEGIN
namespace cuda {

// A batch of rows of which this rank has a part. vocabulary: of all ranks. The matrices, their
// strides and the masks: of this rank's tokens. All else must be the same on every rank.
template <class S>
struct sharded_batch : batch<S> {
  vocabulary_part part;
  // The number of all-gathers, at least 1: one for the facts of the blocks, and one for each
  // exchange that a request needs after the other. Each token that is drawn needs 2 (coupled: 1),
  // each sum that a policy or block verification makes at a position 1, and each row whose largest
  // logit is beyond 7e5 temperatures 1 more (needs_shift, kernel/exponentials.hpp). Lossless token
  // verification: 3. A request that needs more has status invalid_parameter.
  std::uint32_t exchanges = 3;
};
// The memory of one rank, and how far it is. After a call of verify_shard(), unless `done`: an
// all-gather of `bytes` of each rank is due, from `own` to `all` (of rank k: at k bytes), which may
// be made in place, on the stream. ncclAllGather(step.own, step.all, step.bytes, ncclChar, ...)
struct shard_step {
  void* storage = nullptr;  // shard_storage() bytes, aligned to 16
  std::size_t storage_bytes = 0;
  std::uint32_t number = 0;
  bool done = false;
  void *own = nullptr, *all = nullptr;
  std::size_t bytes = 0;
};

namespace detail {

inline std::size_t doubles_of_exchange(const shares& of) {
  return 3 * of.most_blocks() < 6 ? 6 : 3 * of.most_blocks();
}

// The element type of a row that is a part of a sharded row.
template <class S>
struct sharded {};

// The facts of a row, also its number in the request, and a logit that came with the facts.
struct shard_facts : row_facts {
  std::uint32_t number;
  token_id expected;
  float expected_logit;
  bool shifted;  // the row is beyond all units, and must be summed again
};
// The row as a whole: four tokens of a block of this rank, or the logit of any token.
template <class S, bool Whole>
struct raw_row<sharded<S>, Whole> {
  raw_row<S, Whole> own;
  collective<Whole, shard_log>* together;
  std::uint32_t number;
  token_id expected;
  float expected_logit;
  std::size_t size;

  template <class V>
  __device__ V at(std::size_t v, int n) const {
    if constexpr (V::lanes == 4) return own.template at<V>(v - together->layout().begin(), n);
    else if (token_id(v) == expected) return V(expected_logit);
    else return V(float(together->logit(*this, v)));
  }
  // For shard_log: which row this is, and the logit of a token of this rank.
  __device__ std::uint32_t id() const { return number; }
  __device__ float own_logit(std::size_t v) const {
    return own.template at<vec<float, 1>>(v - together->layout().begin(), 1).v;
  }
};

// The sums of all blocks of a row, from all records.
struct gathered_sums {
  const block_sum<float>* first;
  std::size_t of_rank;
  const shares& of;
  bool at_1;
  __device__ const block_sum<float>& operator[](std::size_t b) const {
    const std::size_t k = b / of.most_blocks(), i = b % of.most_blocks();
    return first[k * of_rank + i + (at_1 ? of.blocks_of(k) : 0)];
  }
};
// The same sum relative to the largest logit.
struct summed_again {
  const gathered_sums& blocks;
  const double* sums;
  __device__ block_sum<float> operator[](std::size_t b) const { return {blocks[b].max, sums[b]}; }
};
// The facts of row j of request r from all records, by the threads of a warp. A row beyond all
// units is only marked; again: all threads of the block sum it relative to its largest logit.
template <bool Again, class S, bool Whole>
__device__ SPECAGG_OUTLINE shard_facts facts_of_shards(const auto& b, const raw_row<S, Whole>& row,
                                                       std::size_t r, std::size_t j,
                                                       double temperature, bool confidence,
                                                       const block_sum<float>* records,
                                                       collective<Whole, shard_log>& together) {
  const shares& of = b.of;
  const block_sum<float>* const record = b.record_at(0, r, j, records);
  const std::size_t count = block_count(of.vocabulary), last = b.record_size() - 1;
  bool shifted = false;
  const auto sum_at = [&](float scale, bool at_1) -> softmax_sum<float> {
    const gathered_sums blocks{record, b.records_of_rank(), of, at_1};
    const blocks_of_lane each(count, blocks);
    const float largest = each.largest();
    if (!needs_shift(largest, scale)) return each.sum(largest, scale, 0);
    shifted = true;
    if constexpr (Again) {
      const double* const again =
          together.template of_blocks<double>(of.vocabulary, [&](std::size_t begin, std::size_t) {
            const block_in_registers<S> block(row, (begin - of.begin()) / block_size);
            return block.sum_relative(block.largest(), scale, largest);
          });
      return blocks_of_lane(count, summed_again{blocks, again}).sum(largest, scale, largest);
    }
    return {largest, 1};
  };
  const auto first = [&](float largest) {
    std::size_t k = 0;
    const gathered_sums blocks{record, b.records_of_rank(), of, false};
    for (std::size_t i = 0; i < count; ++i)
      if (blocks[i].max == largest) {
        k = i / of.most_blocks();
        break;
      }
    return std::size_t(record[k * b.records_of_rank() + last].sum);
  };
  shard_facts found{};
  static_cast<row_facts&>(found) = facts_from(temperature, confidence, sum_at, first);
  found.number = std::uint32_t(j);
  found.expected = b.expected_of(r, j);
  if (found.expected != no_token)
    found.expected_logit =
        record[of.owner(std::size_t(found.expected)) * b.records_of_rank() + last].max;
  found.shifted = shifted;
  return found;
}

// Drafts whose rows lie on several ranks. vocabulary: of this rank. A row's record: the sums of
// this rank's blocks at its temperature, as many at 1 if the policy reads confidences, and its
// first token with the largest logit, and the logit of the drafted token.
template <class B, bool Whole>
struct sharded_drafts : drafts<B, Whole> {
  using facts = shard_facts;
  using on_ranks = collective<Whole, shard_log>;
  shares of = {};
  bool at_1 = false;             // the policy reads confidences: sums at 1
  std::uint32_t gathered = 0;    // exchanges of single requests
  std::size_t doubles = 0;       // that a rank gives of a request
  double* log = nullptr;         // [exchanges - 1][ranks][requests][doubles]
  std::uint32_t* finished = {};  // [requests]

  SPECAGG_FUNCTION std::size_t record_size() const { return (1 + at_1) * of.most_blocks() + 1; }
  SPECAGG_FUNCTION std::size_t records_of_rank() const {
    return this->requests * this->rows_of_request() * record_size();
  }
  template <class T>
  SPECAGG_FUNCTION T* record_at(std::size_t k, std::size_t r, std::size_t j, T* records) const {
    return records + k * records_of_rank() + (r * this->rows_of_request() + j) * record_size();
  }
  __device__ block_sum<float>* sums_of(std::size_t r, std::size_t j,
                                       block_sum<float>* records) const {
    return record_at(of.rank, r, j, records);
  }
  // The token drafted at the position of row j; or no_token. All threads of a warp.
  __device__ token_id expected_of(std::size_t r, std::size_t j) const {
    const std::size_t n = j < this->rows_of_draft ? j : j - this->rows_of_draft;
    const token_id y = n < this->find_draft(r).size ? this->token_of(r, n) : no_token;
    return y >= 0 && std::size_t(y) < of.vocabulary ? y : no_token;
  }
  __device__ on_ranks together(shared_memory& memory) const {
    return on_ranks(memory, shard_log(*this, blockIdx.x));
  }
  __device__ bool is_finished(std::size_t r) const {
    wait_for_last_kernel();
    return gathered > 0 && finished[r];
  }
  __device__ void find_facts(std::size_t r, bool confidence, block_sum<float>* records, facts* out,
                             on_ranks& together) const {
    for (std::size_t j = together.warp(); j < this->rows_of_request(); j += together.warps()) {
      shard_facts found{};
      found.why = status::missing_row;
      this->read(r, j, [&](const auto& row, double temperature) {
        found =
            facts_of_shards<false>(*this, row, r, j, temperature, confidence, records, together);
      });
      if (threadIdx.x % 32 == 0) out[j] = found;
    }
    together.synchronise();
    for (std::size_t j = 0; j < this->rows_of_request(); ++j) {
      if (!out[j].shifted) continue;
      this->read(r, j, [&](const auto& row, double temperature) {
        const auto found =
            facts_of_shards<true>(*this, row, r, j, temperature, confidence, records, together);
        together.once([&] { out[j] = found; });
      });
    }
  }
  template <class S>
  __device__ auto known_row(const raw_row<S, Whole>& row, const facts& facts,
                            on_ranks& together) const {
    const raw_row<sharded<S>, Whole> whole{row,
                                           &together,
                                           facts.number,
                                           facts.expected,
                                           facts.expected_logit,
                                           together.layout().vocabulary};
    return device_row<sharded<S>, Whole, on_ranks>(whole, facts, together);
  }
  __device__ void finish(const on_ranks& together, const outcome& out, std::size_t r,
                         const verified& f) const {
    if (!together.writes()) return;
    if (together.leads()) finished[r] = !together.lacks();
    const draft_acceptance none[most_drafted] = {};
    if (!together.lacks()) this->write(out, r, f);
    else if (gathered + 1 == this->exchanges)
      this->write(out, r, {{0, 0, status::invalid_parameter, no_token}, f.emissions, none});
  }
};

// Writes a row's record except the sums. A warp for each row.
template <class Rows>
__global__ void __launch_bounds__(threads) tell_of_rows(Rows b, block_sum<float>* records) {
  const std::size_t i = blockIdx.x * std::size_t(threads / 32) + threadIdx.x / 32,
                    r = i / b.rows_of_request(), j = i % b.rows_of_request();
  if (r >= b.requests) return;
  b.read(r, j, [&](const auto& row, double temperature) {
    const shares& of = b.of;
    const row_scales scales(temperature);
    if (!scales.valid) return;
    block_sum<float>* const own = b.sums_of(r, j, records);
    std::size_t first = 0;
    if (scales.greedy)
      first = first_largest(row, own, blocks_of_lane(block_count(row.size), own).largest());
    const token_id y = b.expected_of(r, j);
    const bool has = y != no_token && of.owns(std::size_t(y));
    const float logit = has ? row.template at<vec<float, 1>>(std::size_t(y) - of.begin(), 1).v : 0;
    if (threadIdx.x % 32 == 0) own[b.record_size() - 1] = {logit, double(of.begin() + first)};
  });
}

// One step: its launches, and the all-gather that is due after it. The records, the log and
// `finished` lie in the storage, in this order.
template <class Rows, class Policies, class Verifier>
cudaError_t run_step(Rows b, const Policies& policies, const Verifier& verifier, const outcome& out,
                     shard_step& step, std::size_t vocabulary, cudaStream_t stream) {
  static_assert(Batch<Rows>);
  b.of = {b.part, vocabulary};
  b.at_1 = reads_confidence<policy_of<Policies>>;
  b.gathered = step.number > 0 ? step.number - 1 : 0;
  b.doubles = doubles_of_exchange(b.of);
  auto* const records = static_cast<block_sum<float>*>(step.storage);
  b.log = reinterpret_cast<double*>(records + b.of.ranks * b.records_of_rank());
  const std::size_t of_rank = b.requests * b.doubles;
  b.finished =
      reinterpret_cast<std::uint32_t*>(b.log + std::size_t(b.exchanges - 1) * b.of.ranks * of_rank);
  const auto gather = [&](auto* all, std::size_t count) {
    step.all = all;
    step.own = all + b.of.rank * count;
    step.bytes = count * sizeof *all;
  };
  if (step.number == 0) {
    const auto e = launch_sums(b, b.at_1, records, stream);
    if (e != cudaSuccess) return e;
    constexpr std::size_t warps = threads / 32;
    const dim3 grid(unsigned((b.requests * b.rows_of_request() + warps - 1) / warps));
    gather(records, b.records_of_rank());
    return launch(tell_of_rows<Rows>, grid, stream, b, records);
  }
  step.done = step.number == b.exchanges;
  gather(b.log + (step.done ? 0 : b.gathered * b.of.ranks * of_rank), of_rank);
  if (step.done) step.bytes = 0;
  constexpr std::size_t one_block = 1;  // no clusters
  return launch_verifier<verify_requests<Rows, Policies, Verifier, outcome>>(
      b.requests, one_block, stream, b, policies, verifier, records, out);
}

}  // namespace detail

// Bytes of device memory that each rank needs, aligned to 16.
template <class S>
[[nodiscard]] std::size_t shard_storage(const sharded_batch<S>& b) {
  const detail::shares of{b.part, b.vocabulary};
  const std::size_t requests = b.requests * b.part.ranks;
  return requests * (2 * b.most + 2) * (2 * of.most_blocks() + 1) * sizeof(block_sum<float>) +
         requests * b.exchanges * detail::doubles_of_exchange(of) * sizeof(double) +
         (b.requests * sizeof(std::uint32_t) + 15) / 16 * 16;
}

// One step of verification on one rank: two launches in the first step, one in each later step. No
// synchronisation, no allocation; can be captured in a graph. Call it with the same arguments until
// step.done, with an all-gather after each call but the last (shard_step). Then `out` has on every
// rank the results that verify() gives for whole rows. Errors as for verify();
// cudaErrorInvalidValue also for an invalid part, exchanges == 0, or a call after step.done.
template <class S, class Policies, class Verifier>
[[nodiscard]] cudaError_t verify_shard(const sharded_batch<S>& b, const Policies& policies,
                                       const Verifier& verifier, const outcome& out,
                                       shard_step& step, cudaStream_t stream) {
  const detail::shares of{b.part, b.vocabulary};
  if (step.done || step.number > b.exchanges || b.exchanges == 0 ||
      b.vocabulary > most_vocabulary || !of.valid())
    return cudaErrorInvalidValue;
  detail::padded<sharded_batch<S>> own{b};
  own.vocabulary = of.end() - of.begin();
  const cudaError_t e = detail::launch_batch<Verifier, detail::sharded_drafts>(
      own, policies, out, detail::has_room(step.storage, step.storage_bytes, shard_storage(b)),
      [&](const auto& rows, const auto& of_requests) {
        return detail::run_step(rows, of_requests, verifier, out, step, b.vocabulary, stream);
      });
  if (e != cudaSuccess) return e;
  if (b.requests == 0) step.done = true;
  else ++step.number;
  return e;
}

}  // namespace cuda
SPECAGG_END
