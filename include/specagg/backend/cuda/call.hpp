// SPDX-License-Identifier: Apache-2.0
// Verification of a ragged batch (backend/cuda/ragged.hpp) as a C function, for callers in other
// languages: one struct of pointers and 64-bit numbers, whatever the types of the rows. Python's
// specagg.cuda compiles such a function for each policy, verifier and type:
//
//   extern "C" int verify(const specagg::cuda::ragged_call* call, void* stream) {
//     return specagg::cuda::verify_call<specagg::bf16, specagg::bf16>(
//         *call, specagg::lossless{}, specagg::token_verifier{}, stream);
//   }
#pragma once
#include <specagg/backend/cuda/ragged.hpp>

namespace specagg::cuda_call {

// An array in device memory whose elements have 4 or 8 bytes; or null.
struct array {
  void* at;
  std::int64_t element_bytes;
};

// The members of filtered_batch and ragged_outcome, one by one. draft_bonus: 0 or 1. bonus_from: 0
// none, 1 pi, 2 the target's row. filter_order: the number of enum filter_order; another one is
// invalid_parameter.
struct ragged {
  std::int64_t requests, vocabulary, most, drafted;
  std::int64_t target_stride, draft_stride, draft_bonus, bonus_from, filter_order;
  const void *target, *draft;
  array tokens, cu_num_draft_tokens, start, seed, request, temperature, draft_temperature;
  array top_k, top_p, min_p, draft_top_k, draft_top_p, draft_min_p, bonus, draft_row_numbers;
  const void *target_mask, *draft_mask;
  const std::int32_t* end_of_text;  // end_count tokens
  std::int64_t end_count;
  array out_tokens;
  std::int32_t *accepted, *emitted, *statuses;
  float *log_pi, *log_p;
  double* acceptances;  // [B][most][2]
  void* storage;
  std::int64_t storage_bytes;
  std::int64_t device;  // the ordinal of the device that holds all arrays
};

}  // namespace specagg::cuda_call

SPECAGG_BEGIN
namespace cuda {

// The struct that such a function takes: plain data, the same in every translation unit.
using ragged_call = cuda_call::ragged;

// The rows that a function has kernels for. `whole` are faster: without masks, and the vocabulary,
// the strides and the addresses are multiples of four elements. The kernels of `others` read any
// rows. Both take twice as long to compile.
enum class kernels { both, whole, others };

namespace detail {
template <bool Filtered, kernels For>
struct rows_read {
  template <class B, bool Whole>
  using type =
      std::conditional_t<Filtered,
                         filtered_drafts<B, For == kernels::both ? Whole : For == kernels::whole>,
                         drafts<B, For == kernels::both ? Whole : For == kernels::whole>>;
};
inline integers integers_of(const cuda_call::array& x) {
  return x.element_bytes == 8 ? integers(static_cast<const std::int64_t*>(x.at))
                              : integers(static_cast<const std::int32_t*>(x.at));
}
inline reals reals_of(const cuda_call::array& x) {
  return x.element_bytes == 8 ? reals(static_cast<const double*>(x.at))
                              : reals(static_cast<const float*>(x.at));
}
template <class S, class Draft, bool Filtered>
auto batch_of(const ragged_call& c) {
  std::conditional_t<Filtered, filtered_batch<S, Draft>, ragged_batch<S, Draft>> b;
  b.requests = std::size_t(c.requests);
  b.vocabulary = std::size_t(c.vocabulary);
  b.most = std::size_t(c.most);
  b.drafted = std::size_t(c.drafted);
  b.tokens = integers_of(c.tokens);
  b.cu_num_draft_tokens = integers_of(c.cu_num_draft_tokens);
  b.target = static_cast<const S*>(c.target);
  b.draft = static_cast<const Draft*>(c.draft);
  b.draft_bonus = c.draft_bonus != 0;
  b.target_stride = std::size_t(c.target_stride);
  b.draft_stride = std::size_t(c.draft_stride);
  b.start = integers_of(c.start);
  b.seed = integers_of(c.seed);
  b.request = integers_of(c.request);
  b.temperature = reals_of(c.temperature);
  b.draft_temperature = reals_of(c.draft_temperature);
  b.target_mask = static_cast<const std::uint32_t*>(c.target_mask);
  b.draft_mask = static_cast<const std::uint32_t*>(c.draft_mask);
  b.end_of_text = std::span<const token_id>(c.end_of_text, std::size_t(c.end_count));
  b.bonus_from = c.bonus_from == 2 ? bonus_choice::target() : bonus_choice(c.bonus_from == 1);
  b.bonus = integers_of(c.bonus);
  b.draft_row_numbers = integers_of(c.draft_row_numbers);
  if constexpr (Filtered) {
    b.order = filter_order(c.filter_order < 0 || c.filter_order > 255 ? 255 : c.filter_order);
    b.top_k = integers_of(c.top_k);
    b.top_p = reals_of(c.top_p);
    b.min_p = reals_of(c.min_p);
    b.draft_top_k = integers_of(c.draft_top_k);
    b.draft_top_p = reals_of(c.draft_top_p);
    b.draft_min_p = reals_of(c.draft_min_p);
  }
  return b;
}
inline ragged_outcome outcome_of(const ragged_call& c) {
  ragged_outcome out;
  out.tokens = c.out_tokens.element_bytes == 8
                   ? written_ids(static_cast<std::int64_t*>(c.out_tokens.at))
                   : written_ids(static_cast<std::int32_t*>(c.out_tokens.at));
  out.accepted = c.accepted;
  out.emitted = c.emitted;
  out.statuses = c.statuses;
  out.log_pi = c.log_pi;
  out.log_p = c.log_p;
  static_assert(sizeof(draft_acceptance) == 2 * sizeof(double));
  out.acceptances = reinterpret_cast<draft_acceptance*>(c.acceptances);
  return out;
}

}  // namespace detail

// verify() of the call's batch, on the device that the call names, in `stream`, a cudaStream_t. The
// status is a cudaError_t. Filtered: the batch is a filtered_batch; else the filters are not read.
// cudaErrorInvalidValue also for rows that the kernels are not for.
template <class S, class Draft, bool Filtered = false, kernels For = kernels::both, class Policy,
          class Verifier>
int verify_call(const ragged_call& c, const Policy& policy, const Verifier& verifier,
                void* stream) {
  const auto b = detail::batch_of<S, Draft, Filtered>(c);
  const bool reads = !std::is_same_v<Draft, one_hot>;
  if (c.storage_bytes < 0 || c.end_count < 0 ||
      (For == kernels::whole && !detail::rows_in_fours(b, reads)))
    return cudaErrorInvalidValue;
  if (const auto e = cudaSetDevice(int(c.device)); e != cudaSuccess) return e;
  return detail::verify_drafts<detail::rows_read<Filtered, For>::template type>(
      detail::ragged<std::remove_const_t<decltype(b)>>{b}, policy, verifier, detail::outcome_of(c),
      c.storage, std::size_t(c.storage_bytes), verify_storage(b),
      static_cast<cudaStream_t>(stream));
}
// The bytes of storage that this call needs.
template <class S, class Draft, bool Filtered = false>
std::int64_t storage_of_call(const ragged_call& c) {
  return std::int64_t(verify_storage(detail::batch_of<S, Draft, Filtered>(c)));
}

}  // namespace cuda
SPECAGG_END
