// SPDX-License-Identifier: Apache-2.0
// One policy inside a span of the text, another one outside, as TensorRT-LLM and MAX relax
// verification between the marks of a model's thinking.
#pragma once
#include <algorithm>
#include <span>

#include <specagg/policy/any_of.hpp>

SPECAGG_BEGIN

// pi is that of `inside` after a token of `open`, as far as the next token of `close`, which still
// has the law of the inside; elsewhere that of `outside`.
template <class Inside, class Outside>
struct phase {
  Inside inside;
  Outside outside;
  std::span<const token_id> open, close;
  struct state {
    double is_inside = 0;  // 1: inside
  };
  static constexpr bool reads_draft = specagg::reads_draft<Inside> || specagg::reads_draft<Outside>;
  static constexpr bool reads_confidence =
      specagg::reads_confidence<Inside> || specagg::reads_confidence<Outside>;
  static constexpr bool reads_ids = specagg::reads_ids<Inside> || specagg::reads_ids<Outside>;
  constexpr bool valid() const { return specagg::valid(inside) && specagg::valid(outside); }
  constexpr state begin() const { return {}; }
  constexpr bool is_state(const state& s) const { return s.is_inside == 0 || s.is_inside == 1; }
  using one = std::conditional_t<std::is_same_v<Inside, Outside>, Inside, any_of<Inside, Outside>>;
  one at(const state& s) const {
    if (s.is_inside > 0) return inside;
    return outside;
  }
  state advance(const state& s, token_id y) const {
    const std::span<const token_id> ends = s.is_inside > 0 ? close : open;
    const bool passes = std::find(ends.begin(), ends.end(), y) != ends.end();
    return {passes ? 1 - s.is_inside : s.is_inside};
  }
};

SPECAGG_END
