// SPDX-License-Identifier: Apache-2.0
// Batches as the kernels take them. A Shape says where the tokens and rows of a request lie in
// memory. A Batch is a Shape with a way to read its rows.
//
//   Shape                                 Batch
//   padded (verify.hpp)  of batch         drafts (here)                 the rows as they are
//   ragged (ragged.hpp)  of ragged_batch  filtered_drafts (ragged.hpp)  what filters keep of them
//   nodes (tree.hpp)     of tree_batch    sharded_drafts (sharded.hpp)  a rank's part of them
//                                         trees (tree.hpp)              a row after each node
#pragma once
#include <specagg/backend/cuda/given_row.hpp>
#include <specagg/backend/cuda/launch.hpp>

SPECAGG_BEGIN
namespace cuda {

// The rows of one request: `count` rows of a matrix, from row `first` on; fewer where the matrix
// ends before.
struct row_range {
  std::uint32_t first = 0, count = 0;
};

namespace detail {

// ---- the concepts -------------------------------------------------------------------------------
//
// Who calls a member: [1] the first kernel, sum_rows; [2] the second, verify_requests or
// verify_trees; [h] the host, launch_batch() or what it calls. r: a request. j: one of its tokens,
// or of its rows in a matrix. Data members (requests, vocabulary, most, draft, target, seed, ...):
// as those of batch (verify.hpp).

template <class B>
concept Shape = std::is_trivially_copyable_v<B> &&
                requires(const B& b, std::size_t r, std::size_t j, bool of_draft) {
                  // [1 2] how many drafted tokens there are at most; more than `most` are too many
                  { b.tokens_given(r) } -> std::same_as<std::size_t>;
                  // [1 2] token j; no_token ends the draft
                  { b.token_of(r, j) } -> std::same_as<token_id>;
                  // [1 2] draft::bonus
                  { b.bonus_of(r) } -> std::same_as<bonus_choice>;
                  // [1 2] the temperature of its rows of the draft, or of the target
                  { b.temperature_of(r, of_draft) } -> std::same_as<double>;
                  // [1 2] its rows in the draft's matrix, or in the target's
                  { b.range_of(of_draft, r) } -> std::same_as<row_range>;
                  // [1 2] row j of a matrix, a raw_row; <true>: of Whole rows (row.hpp). Where both
                  // matrices have one type of rows, the first argument may be a bool as well
                  b.template row<true>(std::true_type(), j);
                  b.template row<true>(std::false_type(), j);
                  // [h] the largest value of `most`
                  { B::limit } -> std::convertible_to<std::size_t>;
                };
// Three more, with parameters of several types:
//   write(outcome, r, verified)                   [2] writes a result, with the threads of a warp
//   reads_draft_rows<Policy, Verifier>(outcome)   [h] whether rows of the draft are read
//   can_launch(outcome, whether they are read)    [h] whether matrices, tokens and outcome are
//                                                     given, and their sizes fit each other

// For the concepts below. nvcc 13.0 takes neither a lambda there nor the type of another parameter,
// and its host compiler does not know the result of a device function whose type is `auto`.
struct any_row_taken {
  __device__ void operator()(const auto& /*row*/, double /*temperature*/) const {}
};
template <class B>
using together_of = decltype(std::declval<const B&>().together(std::declval<shared_memory&>()));

// Also a Batch of trees. sums: the memory that the first kernel writes. i: a row of all requests.
template <class B>
concept RowBatch = Shape<B> && requires(const B& b, std::size_t r, std::size_t j, std::size_t i,
                                        block_sum<float>* sums, const void* row) {
  // [1 2] whether rows are Whole, and row<whole>(...) of the draft, and of the target
  { B::whole } -> std::convertible_to<bool>;
  b.q_row(row_range(), j);
  b.p_row(row_range(), j);
  // [1 2 h] rows of a request: in all, and before the target's
  { b.rows_of_request() } -> std::same_as<std::size_t>;
  { b.rows_of_draft } -> std::convertible_to<std::size_t>;
  // [1 2] f(row j of request r, its temperature), unless the row is missing or not due
  b.read(r, j, any_row_taken());
  // [1 2] of a row: a sum of each block at its temperature, and as many at temperature 1
  { b.sums_of(r, j, sums) } -> std::same_as<block_sum<float>*>;
  // [h] whether those at 1 are needed even if the policy reads no confidences
  { b.sums_at_1() } -> std::same_as<bool>;
  // [1] for a kernel between the two: notes a row, or null if it is not due, and its
  // temperature; where its maxima go (sum_block_of), or nullptr
  b.note_row(i, row, double(), sums);
  b.maxima_of(i, sums);
};
template <class B>
concept Batch = RowBatch<B> && requires(const B& b, std::size_t r, block_sum<float>* sums,
                                        typename B::facts* facts, together_of<B>& together) {
  // [h] launches what runs between the two kernels; bool: whether confidences are read
  { b.launch_between(bool(), sums, cudaStream_t()) } -> std::same_as<cudaError_t>;
  // [2] together(memory): a collective, in which all threads read rows
  // [2] whether an earlier launch has verified request r
  { b.is_finished(r) } -> std::same_as<bool>;
  // [2] writes the facts of all rows of request r to `facts`, which the threads share
  b.find_facts(r, bool(), sums, facts, together);
};
// Two more, with parameters of several types:
//   known_row(row, its facts, together)      [2] the row, normalised
//   finish(together, outcome, r, verified)   [2] writes the result

// ---- rows as they are ---------------------------------------------------------------------------

// The result of a request's verification.
struct verified {
  verdict said;
  const emission* emissions;            // before with_logs()
  const draft_acceptance* acceptances;  // or null
};
static_assert(most_drafted < 32, "a thread of the warp for each emission");

// The facts of all rows of request r, which the threads share. A warp finds the facts of one row.
__device__ void find_facts_of_rows(const auto& b, std::size_t r, bool confidence,
                                   block_sum<float>* sums, row_facts* facts, const auto& together) {
  wait_for_last_kernel();
  for (std::size_t j = together.warp(); j < b.rows_of_request(); j += together.warps()) {
    row_facts found{};
    found.why = status::missing_row;  // a law may ask for a row that is not due
    b.read(r, j, [&](const auto& row, double temperature) {
      found = facts_of(row, temperature, confidence, b.sums_of(r, j, sums));
    });
    together.publish(threadIdx.x % 32, facts, j, found);
  }
  together.synchronise();
}

// The part of a RowBatch that does not depend on which rows are due: most + 1 of the target, after
// those of the draft. policy_reads_draft: the policy reads the draft's row wherever it reads the
// target's.
template <class B, bool Whole>
struct batch_rows : B {
  static constexpr bool whole = Whole;
  std::size_t rows_of_draft;
  bool policy_reads_draft;

  SPECAGG_FUNCTION std::size_t rows_of_request() const { return rows_of_draft + B::most + 1; }
  __device__ row_range draft_range(std::size_t r) const { return B::range_of(true, r); }
  __device__ row_range target_range(std::size_t r) const { return B::range_of(false, r); }
  // Row j of a request whose rows are `own`. (A verifier finds its ranges once.)
  __device__ auto q_row(row_range own, std::size_t j) const {
    return B::template row<Whole>(std::true_type(), own.first + std::uint32_t(j));
  }
  __device__ auto p_row(row_range own, std::size_t j) const {
    return B::template row<Whole>(std::false_type(), own.first + std::uint32_t(j));
  }
  // f(row j of the draft or of the target, its temperature), unless the matrix ends before.
  __device__ void read_row(bool of_draft, std::size_t r, std::size_t j, const auto& f) const {
    const row_range own = B::range_of(of_draft, r);
    if (unsigned(j) >= own.count) return;
    const double temperature = B::temperature_of(r, of_draft);
    if constexpr (std::is_same_v<decltype(q_row(own, j)), decltype(p_row(own, j))>)
      f(B::template row<Whole>(of_draft, own.first + std::uint32_t(j)), temperature);
    else if (of_draft) f(q_row(own, j), temperature);
    else f(p_row(own, j), temperature);
  }
  __device__ block_sum<float>* sums_of(std::size_t r, std::size_t j, block_sum<float>* sums) const {
    const unsigned i = unsigned(r) * unsigned(rows_of_request()) + unsigned(j);
    return sums + std::size_t(i) * (2 * blocks_in(B::vocabulary));
  }
  bool sums_at_1() const { return false; }
  __device__ void note_row(std::size_t, const auto*, double, block_sum<float>*) const {}
  __device__ std::nullptr_t maxima_of(std::size_t, block_sum<float>*) const { return nullptr; }
};

// Row `at` of a matrix, with row i of the masks.
template <bool Whole, class S>
__device__ raw_row<S, Whole> row_of_matrix(const S* rows, std::size_t stride, std::size_t at,
                                           const std::uint32_t* mask, std::size_t i,
                                           std::size_t vocabulary) {
  if constexpr (std::is_same_v<S, probability>)
    return {{reinterpret_cast<const float*>(rows + at * stride), nullptr, vocabulary}};
  else
    return {rows + at * stride, Whole || !mask ? nullptr : mask + i * ((vocabulary + 31) / 32),
            vocabulary};
}

// Drafts, one of each request. The rows after a token are due as far as the draft goes.
template <class B, bool Whole>
struct drafts : batch_rows<B, Whole> {
  using facts = row_facts;

  // The draft of a request: draft::size() and bonus_follows(). The threads of a warp find them
  // together. Each looks at one token; otherwise every thread would load all tokens one after the
  // other.
  struct draft_found {
    unsigned size;
    bonus_choice bonus;
  };
  __device__ draft_found find_draft(std::size_t r) const {
    const unsigned given = unsigned(this->tokens_given(r)), lane = threadIdx.x % 32;
    static_assert(most_drafted + 1 < 32);
    const token_id y = lane < given ? this->token_of(r, lane) : no_token;
    const unsigned stops = __ballot_sync(~0u, y == no_token),
                   ends = __ballot_sync(~0u, y != no_token && this->end_of_text.contains(y));
    const bool ended = (ends & (stops - 1) & ~stops) != 0;  // before the first stop
    const unsigned size = ended ? unsigned(__ffs(int(ends))) : unsigned(__ffs(int(stops))) - 1;
    return {size, ended ? bonus_choice(false) : this->bonus_of(r)};
  }
  // All threads of a warp, with the same r and j.
  __device__ void read(std::size_t r, std::size_t j, const auto& f) const {
    const draft_found drafted = find_draft(r);
    const bool bonus = drafted.bonus && !drafted.bonus.is_given();
    const unsigned before = unsigned(this->rows_of_draft);
    const bool is_draft = unsigned(j) < before;
    const unsigned n = is_draft ? unsigned(j) : unsigned(j) - before;
    const bool due =
        n < drafted.size +
                (bonus && (!is_draft || (this->policy_reads_draft && !drafted.bonus.is_target())));
    if (due) this->read_row(is_draft, r, n, f);
  }

  cudaError_t launch_between(bool, block_sum<float>*, cudaStream_t) const { return cudaSuccess; }
  __device__ collective<Whole> together(shared_memory& memory) const {
    return collective<Whole>(memory);
  }
  __device__ bool is_finished(std::size_t) const { return false; }
  __device__ void find_facts(std::size_t r, bool confidence, block_sum<float>* sums, facts* out,
                             const collective<Whole>& together) const {
    find_facts_of_rows(*this, r, confidence, sums, out, together);
  }
  template <class S>
  __device__ auto known_row(const raw_row<S, Whole>& row, const facts& facts,
                            collective<Whole>& together) const {
    return device_row<S, Whole>(row, facts, together);
  }
  __device__ void finish(const auto& together, const auto& out, std::size_t r,
                         const verified& f) const {
    if (together.writes()) this->write(out, r, f);
  }
};

}  // namespace detail
}  // namespace cuda
SPECAGG_END
