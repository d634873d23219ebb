// SPDX-License-Identifier: Apache-2.0
// Verification of a batch as engines hold it: the drafted tokens of all requests one after the
// other, counted by cu_num_draft_tokens, ids of 32 or 64 bits, temperatures as floats; and arrays
// of numbers as the result. The kernels, tokens, statuses and bits are those of
// backend/cuda/verify.hpp.
#pragma once
#include <specagg/backend/cuda/filter.hpp>
#include <specagg/backend/cuda/verify.hpp>

SPECAGG_BEGIN
namespace cuda {

namespace detail {
// Numbers in device memory, of 32 or 64 bits, which are read as Wide; or null.
template <class Narrow, class Wide>
class numbers {
 public:
  constexpr numbers() = default;
  template <class X>
    requires(std::is_arithmetic_v<X> && std::integral<X> == std::integral<Wide> &&
             (sizeof(X) == 4 || sizeof(X) == 8))
  constexpr numbers(const X* x) : at_(x), wide_(sizeof(X) == 8) {}
  constexpr explicit operator bool() const { return at_ != nullptr; }
  __device__ Wide operator[](std::size_t i) const {
    return wide_ ? static_cast<const Wide*>(at_)[i] : Wide(static_cast<const Narrow*>(at_)[i]);
  }

 private:
  const void* at_ = nullptr;
  bool wide_ = false;
};
}  // namespace detail

// An array in device memory of whole numbers; of floats or doubles.
using integers = detail::numbers<std::int32_t, std::int64_t>;
using reals = detail::numbers<float, double>;
// An array for the ids, int32 or int64.
class written_ids {
 public:
  constexpr written_ids() = default;
  constexpr written_ids(std::int32_t* x) : at_(x) {}
  constexpr written_ids(std::int64_t* x) : at_(x), wide_(true) {}
  constexpr explicit operator bool() const { return at_ != nullptr; }
  __device__ void set(std::size_t i, token_id x) const {
    if (wide_) static_cast<std::int64_t*>(at_)[i] = x;
    else static_cast<std::int32_t*>(at_)[i] = x;
  }

 private:
  void* at_ = nullptr;
  bool wide_ = false;
};

// A batch in device memory: B = requests, N drafted tokens in all. "or null [x]": null stands for
// x. S and Draft say what the rows are: logits (float, f16, bf16), `probability`, or, of the draft,
// one_hot. Request r has the tokens c .. c + g - 1, the target's rows c + r .. c + r + g (one after
// its last token), and the draft's rows c .. c + g - 1, where c = cu_num_draft_tokens[r - 1] and
// c + g = cu_num_draft_tokens[r]. A draft ends early at no_token; its rows stay where they are.
template <class S, class Draft = S>
struct ragged_batch {
  std::size_t requests = 0, vocabulary = 0;  // vocabulary <= most_vocabulary
  // No request has more drafted tokens (else its status is invalid_parameter); <= most_drafted.
  std::size_t most = 0;
  std::size_t drafted = 0;            // N
  integers tokens = {};               // [N]
  integers cu_num_draft_tokens = {};  // [B], or null [(r + 1) most]; N = B most then
  const S* target = nullptr;          // N + B rows
  const Draft* draft = nullptr;       // N rows; or N + B, placed as the target's, with draft_bonus
  bool draft_bonus = false;           // needed by policies that read the draft; else missing_row
  // the number >= 0 (not checked) in `draft` of each of these rows, for an engine that keeps rows
  // by slots of requests; masks stay in order. Or null [in order]
  integers draft_row_numbers = {};
  std::size_t target_stride = 0, draft_stride = 0;  // elements from row to row, >= vocabulary
  integers start = {};                              // [B] the position of the first drafted token
  integers seed = {}, request = {};                 // [B] of random_streams; request: or null [r]
  reals temperature = {};        // [B] of logits; 0: the largest logit; or null [1]
  reals draft_temperature = {};  // [B] or null [temperature]
  // Masks of rows of logits: (vocabulary + 31) / 32 words per row, bit 1: allowed; or null [all]. A
  // one_hot draft has a mask for each token.
  const std::uint32_t *target_mask = nullptr, *draft_mask = nullptr;
  end_tokens end_of_text = {};  // if there are several: in device memory
  // The token after a draft whose tokens are all accepted (draft::bonus): drawn from pi, no token,
  // or drawn from the target's row. Or given [B]: a number below 0 is no token, and `vocabulary` or
  // above is token_out_of_range.
  bonus_choice bonus_from = true;
  integers bonus = {};  // or null [as bonus_from says]
};
// Filters of rows of logits, as in `sampling` (rows/process.hpp), each [B] or null [off]. Values
// out of range: invalid_parameter.
struct ragged_filters {
  integers top_k = {};  // 0, and the vocabulary or more: off
  reals top_p = {}, min_p = {};
  // in which they act, for all requests
  filter_order order = filter_order::hugging_face;
  // of the draft's rows; or null [the target's]
  integers draft_top_k = {};
  reals draft_top_p = {}, draft_min_p = {};
};
// A batch with filters. It has kernels of its own. One of them takes a thread block for each row,
// so use it only if a request has filters.
template <class S, class Draft = S>
struct filtered_batch : ragged_batch<S, Draft>, ragged_filters {};
// The output, in device memory. All elements are written. It must not overlap with the input.
struct ragged_outcome {
  written_ids tokens = {};           // [B][most + 1] the emitted tokens, then -1
  std::int32_t* accepted = nullptr;  // [B] how many drafted tokens were accepted
  std::int32_t* emitted = nullptr;   // [B] or null: how many tokens there are
  std::int32_t* statuses = nullptr;  // [B] or null: enum status, why no further token was emitted
  // [B][most + 1] or null: log-probabilities of the emitted tokens under pi and p, then NaN
  float *log_pi = nullptr, *log_p = nullptr;
  // [B][most], or null: saves a pass over both rows
  draft_acceptance* acceptances = nullptr;
};

namespace detail {

// The Shape of a ragged_batch, or of a filtered_batch.
template <class B>
struct ragged : B {
  using B::requests, B::vocabulary, B::most, B::drafted, B::tokens, B::target, B::draft;
  using of_draft = std::remove_cvref_t<decltype(*B::draft)>;
  using of_target = std::remove_cvref_t<decltype(*B::target)>;

  // The drafted tokens of request r among all. Invalid counts give no tokens.
  __device__ row_range tokens_of(std::size_t r) const {
    const auto count_to = [&](std::size_t i) {
      const std::int64_t n =
          this->cu_num_draft_tokens ? this->cu_num_draft_tokens[i] : std::int64_t((i + 1) * most);
      return n < 0 ? 0 : n < std::int64_t(drafted) ? std::size_t(n) : drafted;
    };
    const std::size_t first = r == 0 ? 0 : count_to(r - 1), end = count_to(r);
    return {std::uint32_t(first), end > first ? std::uint32_t(end - first) : 0};
  }
  // most + 1 tokens are too many for the verifier, which says so.
  __device__ std::size_t tokens_given(std::size_t r) const {
    const std::size_t n = tokens_of(r).count;
    return n <= most ? n : most + 1;
  }
  __device__ token_id token_of(std::size_t r, std::size_t j) const {
    const std::int64_t x = tokens[tokens_of(r).first + j];
    constexpr token_id largest = std::numeric_limits<token_id>::max();
    return x < no_token ? no_token - 1 : x > largest ? largest : token_id(x);
  }
  __device__ bonus_choice bonus_of(std::size_t r) const {
    if (!this->bonus) return this->bonus_from;
    const std::int64_t x = this->bonus[r];
    const bool known = x < std::int64_t(vocabulary);
    return bonus_choice::given(!known ? no_token - 1 : x < 0 ? no_token : token_id(x));
  }
  __device__ double temperature_of(std::size_t r, bool is_draft) const {
    if (is_draft && this->draft_temperature) return this->draft_temperature[r];
    return this->temperature ? this->temperature[r] : 1;
  }
  __device__ row_range range_of(bool of_draft, std::size_t r) const {
    const row_range of = tokens_of(r);
    if (of_draft && !this->draft_bonus) return of;
    return {of.first + std::uint32_t(r), of.count + 1};
  }
  template <bool Whole>
  __device__ auto row(auto is_draft, std::size_t i) const {
    const auto in = [&](const auto* rows, std::size_t stride, const std::uint32_t* mask) {
      const bool numbered = is_draft && this->draft_row_numbers;
      const std::size_t at = numbered ? std::size_t(this->draft_row_numbers[i]) : i;
      return row_of_matrix<Whole>(rows, stride, at, mask, i, vocabulary);
    };
    if constexpr (std::is_same_v<of_draft, of_target>)
      return in(is_draft ? draft : target, is_draft ? this->draft_stride : this->target_stride,
                is_draft ? this->draft_mask : this->target_mask);
    else if constexpr (!is_draft()) return in(target, this->target_stride, this->target_mask);
    else if constexpr (!std::is_same_v<of_draft, one_hot>)
      return in(draft, this->draft_stride, this->draft_mask);
    else return raw_row<one_hot, Whole>{token_of_row(i, !Whole), vocabulary};
  }
  __device__ void write(const ragged_outcome& out, std::size_t r, const verified& f) const {
    const std::size_t lane = threadIdx.x % 32, at = r * (most + 1) + lane;
    if (lane == 0) {
      out.accepted[r] = std::int32_t(f.said.accepted);
      if (out.emitted) out.emitted[r] = std::int32_t(f.said.emitted);
      if (out.statuses) out.statuses[r] = std::int32_t(f.said.why);
    }
    if (lane <= most) {
      const bool there = lane < f.said.emitted;
      constexpr float none = std::numeric_limits<float>::quiet_NaN();
      out.tokens.set(at, there ? f.emissions[lane].token : no_token);
      if (out.log_pi) out.log_pi[at] = there ? float(log(f.emissions[lane].log_pi)) : none;
      if (out.log_p) out.log_p[at] = there ? float(log(f.emissions[lane].log_p)) : none;
    }
    if (out.acceptances && lane < most) out.acceptances[r * most + lane] = f.acceptances[lane];
  }
  // Drafted token i of all; no_token if it is out of range or masked.
  __device__ token_id token_of_row(std::size_t i, bool may_be_masked) const {
    const std::int64_t t = tokens[i];
    if (t < 0 || t >= std::int64_t(vocabulary)) return no_token;
    const std::uint32_t* const mask = may_be_masked ? this->draft_mask : nullptr;
    const std::size_t word = i * ((vocabulary + 31) / 32) + std::size_t(t) / 32;
    return !mask || (mask[word] >> t % 32 & 1) ? token_id(t) : no_token;
  }

  template <class Policy, class Verifier>
  bool reads_draft_rows(const ragged_outcome& out) const {
    if (std::is_same_v<of_draft, one_hot>) return false;
    return (drafted > 0 || (reads_draft<Policy> && this->draft_bonus)) &&
           (reads_draft<Policy> || Verifier::reads_draft_rows(out.acceptances != nullptr));
  }
  static constexpr std::size_t limit = most_drafted;
  bool can_launch(const ragged_outcome& out, bool reads_draft) const {
    const bool counted = this->cu_num_draft_tokens || drafted == requests * most;
    const bool no_mask = (!std::is_same_v<of_target, probability> || !this->target_mask) &&
                         (!std::is_same_v<of_draft, probability> || !this->draft_mask);
    return drafted <= requests * most && counted && no_mask && target &&
           this->target_stride >= vocabulary && (drafted == 0 || tokens) &&
           (!std::is_same_v<of_draft, one_hot> || !this->draft_bonus) &&
           (!reads_draft || (draft && this->draft_stride >= vocabulary)) && out.tokens &&
           out.accepted;
  }
};

// ---- filtered batches: between the two kernels, one that finds what the filters keep ------------

// A thread block finds the facts of one row of filtered_drafts.
template <class Rows>
__global__ void __launch_bounds__(threads, 2)
    filter_rows(Rows rows, bool confidence, block_sum<float>* sums) {
  alignas(16) __shared__ unsigned char memory[sizeof(filter_memory)];
  start_next_kernel();
  auto& shared = *reinterpret_cast<filter_memory*>(memory);
  const unsigned r = blockIdx.x, j = blockIdx.y, i = r * unsigned(rows.rows_of_request()) + j;
  const auto& noted = rows.notes_in(sums)[i];
  const bool is_draft = j < rows.rows_of_draft;
  filtered_facts found{};
  found.why = status::missing_row;
  const auto find = [&](const auto& row) {
    found = filtered_facts_of(row, rows.filters_of(r, is_draft, noted.temperature), confidence,
                              rows.sums_of(r, j, sums), rows.maxima_of(i, sums), shared);
  };
  if (noted.due) {
    if (std::is_same_v<decltype(noted.target), decltype(noted.draft)> || !is_draft)
      find(noted.target);
    else find(noted.draft);
  }
  if (threadIdx.x == 0) rows.facts_in(sums)[i] = found;
}
// Drafts whose rows are filtered. After the sums of all rows, their memory has three arrays with
// an element for each row: its facts, which the kernel between the two finds; its note, which the
// first kernel writes, so that the filters need not look for the row again; and its maxima.
template <class B, bool Whole>
struct filtered_drafts : drafts<B, Whole> {
  using facts = filtered_facts;
  using typename B::of_draft, typename B::of_target;
  struct note {
    union {
      raw_row<of_target, Whole> target;
      raw_row<of_draft, Whole> draft;
    };
    double temperature;
    bool due;
  };

  __device__ sampling filters_of(std::size_t r, bool is_draft, double temperature) const {
    const integers top_k = is_draft && this->draft_top_k ? this->draft_top_k : this->top_k;
    const reals top_p = is_draft && this->draft_top_p ? this->draft_top_p : this->top_p,
                min_p = is_draft && this->draft_min_p ? this->draft_min_p : this->min_p;
    const std::int64_t k = top_k ? top_k[r] : 0;
    constexpr std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
    return {k < 0 ? -1 : temperature, k < most ? std::uint32_t(k) : most, top_p ? top_p[r] : 1,
            min_p ? min_p[r] : 0, this->order};
  }
  bool sums_at_1() const { return this->order == filter_order::llama_cpp; }
  SPECAGG_FUNCTION std::size_t rows() const { return this->requests * this->rows_of_request(); }
  SPECAGG_FUNCTION facts* facts_in(block_sum<float>* sums) const {
    return reinterpret_cast<facts*>(sums + rows() * 2 * block_count(this->vocabulary));
  }
  __device__ note* notes_in(block_sum<float>* sums) const {
    return reinterpret_cast<note*>(facts_in(sums) + rows());
  }
  __device__ float* maxima_of(std::size_t i, block_sum<float>* sums) const {
    return reinterpret_cast<float*>(notes_in(sums) + rows()) +
           i * 16 * block_count(this->vocabulary);
  }
  template <class Row>
  __device__ void note_row(std::size_t i, const Row* row, double temperature,
                           block_sum<float>* sums) const {
    note& noted = notes_in(sums)[i];
    noted.due = row != nullptr;
    noted.temperature = temperature;
    if (!row) return;
    if constexpr (std::is_same_v<Row, raw_row<of_target, Whole>>) noted.target = *row;
    else noted.draft = *row;
  }
  cudaError_t launch_between(bool confidence, block_sum<float>* sums, cudaStream_t stream) const {
    const dim3 grid(unsigned(this->requests), unsigned(this->rows_of_request()));
    return launch(filter_rows<filtered_drafts>, grid, stream, *this, confidence, sums);
  }
  // The facts are known: reads them.
  __device__ void find_facts(std::size_t r, bool /*confidence*/, block_sum<float>* sums, facts* out,
                             const collective<Whole>& together) const {
    wait_for_last_kernel();
    const std::size_t each = this->rows_of_request();
    for (std::size_t j = together.warp(); j < each; j += together.warps())
      together.publish(threadIdx.x % 32, out, j, facts_in(sums)[r * each + j]);
    together.synchronise();
  }
  template <class S>
  __device__ auto known_row(const raw_row<S, Whole>& row, const facts& facts,
                            collective<Whole>& together) const {
    if constexpr (std::is_same_v<S, probability> || std::is_same_v<S, one_hot>)
      return device_row<S, Whole>(row, facts, together);
    else return filtered_row<S, Whole>(row, facts, together);
  }
};

}  // namespace detail

// Bytes of device memory that verify() needs: 32 for each block of 1024 logits. It must be aligned
// to 16. Any batch that is not larger needs no more.
template <class S, class Draft>
[[nodiscard]] std::size_t verify_storage(const ragged_batch<S, Draft>& b) {
  return detail::bytes_of_sums(b.requests * (2 * b.most + 2), b.vocabulary);
}

// As for a ragged_batch, and room for the facts of each filtered row and 64 bytes for each of its
// blocks.
template <class S, class Draft>
[[nodiscard]] std::size_t verify_storage(const filtered_batch<S, Draft>& b) {
  const ragged_batch<S, Draft>& unfiltered = b;
  return verify_storage(unfiltered) +
         b.requests * (2 * b.most + 2) *
             (sizeof(detail::filtered_facts) +
              sizeof(typename detail::filtered_drafts<detail::ragged<filtered_batch<S, Draft>>,
                                                      true>::note) +
              64 * block_count(b.vocabulary));
}

// As verify() of a batch<S>: two launches on `stream`, no synchronisation, no allocation; can be
// captured in a graph. cudaErrorInvalidValue also for more drafted tokens than requests * most, and
// for a mask of rows that are not logits.
template <class S, class Draft, class Policies, class Verifier>
[[nodiscard]] cudaError_t verify(const ragged_batch<S, Draft>& b, const Policies& policies,
                                 const Verifier& verifier, const ragged_outcome& out, void* storage,
                                 std::size_t storage_bytes, cudaStream_t stream) {
  return detail::verify_drafts<detail::drafts>(detail::ragged<ragged_batch<S, Draft>>{b}, policies,
                                               verifier, out, storage, storage_bytes,
                                               verify_storage(b), stream);
}
// verify() of a filtered batch, in three launches.
template <class S, class Draft, class Policies, class Verifier>
[[nodiscard]] cudaError_t verify(const filtered_batch<S, Draft>& b, const Policies& policies,
                                 const Verifier& verifier, const ragged_outcome& out, void* storage,
                                 std::size_t storage_bytes, cudaStream_t stream) {
  return detail::verify_drafts<detail::filtered_drafts>(detail::ragged<filtered_batch<S, Draft>>{b},
                                                        policies, verifier, out, storage,
                                                        storage_bytes, verify_storage(b), stream);
}

}  // namespace cuda
SPECAGG_END
