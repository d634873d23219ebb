// SPDX-License-Identifier: Apache-2.0
// How an engine samples from logits: the temperature, the filters, and the order in which they act.
#pragma once
#include <cstddef>
#include <cstdint>

#include <specagg/config.hpp>

// Plain data: the same types in every translation unit.
namespace specagg {

// The order of temperature and filters. A filter sees the renormalised result of the step before
// it. Of two filters that leave out tokens, and of a filter and a temperature, the order may change
// what is kept (docs/mathematics.md). With one filter at temperature 1 all orders are the same.
enum class filter_order : std::uint8_t {
  hugging_face,  // temperature, top-k, top-p, min-p
  vllm,          // temperature, min-p, top-k, top-p
  llama_cpp,     // top-k, top-p, min-p, temperature: the filters see the softmax at temperature 1
  joint,         // temperature, top-p, top-k, min-p: top-k and top-p both see the whole row
};

// All orders.
inline constexpr filter_order filter_orders[] = {filter_order::hugging_face, filter_order::vllm,
                                                 filter_order::llama_cpp, filter_order::joint};
// The name of an order, as the command line and Python have it.
constexpr const char* name(filter_order order) {
  return order == filter_order::hugging_face ? "hugging-face"
         : order == filter_order::vllm       ? "vllm"
         : order == filter_order::llama_cpp  ? "llama-cpp"
                                             : "joint";
}

// Temperature and filters. Ties keep the lower ids.
struct sampling {
  double temperature = 1;   // below 3e35; 0: the largest logit, lowest id
  std::uint32_t top_k = 0;  // 0: off
  double top_p = 1;         // (0, 1]: the shortest prefix of the sorted row with at least this mass
  double min_p = 0;         // [0, 1]: tokens with at least this fraction of the largest probability
  filter_order order = filter_order::hugging_face;

  // the least temperature that softmax_row<float> refuses (rows/distribution.hpp)
  static constexpr double least_refused_temperature = 0x1.fffffep117;

  SPECAGG_FUNCTION SPECAGG_LANE bool valid() const {
    return temperature >= 0 && temperature < least_refused_temperature && top_p > 0 && top_p <= 1 &&
           min_p >= 0 && min_p <= 1 && order <= filter_order::joint;
  }
  // Whether a filter may leave out tokens of a row of V logits.
  SPECAGG_FUNCTION SPECAGG_LANE bool filters(std::size_t V) const {
    return (top_k > 0 && top_k < V) || top_p != 1 || min_p != 0;
  }
};

}  // namespace specagg
