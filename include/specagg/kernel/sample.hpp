// SPDX-License-Identifier: Apache-2.0
// Weights over the vocabulary with their block sums, and drawing from them with one uniform.
#pragma once
#include <span>

#include <specagg/kernel/reduce.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// Unnormalised weights w(v) = f(rows at v) >= 0 of the tokens of `rows`: what a Chooser's draw() takes. `blocks` are
// the sums of 1024 weights each, made by weigh() in the pass that also gave `total`; drawing then visits one block
// again.
template <class Rows, class F>
struct weights {
  using value_type = typename Rows::value_type;
  const Rows& rows;
  F f;
  std::span<const double> blocks;
  double total;  // NaN or inf: no law

  std::size_t size() const { return rows.size(); }
  double operator[](std::size_t v) const { return double(f(at(rows, v)).v); }
};

// One pass over the rows. block_sums: at least block_count(rows.size()) doubles, written, and kept by the result.
template <class Rows, class F>
weights<Rows, F> weigh(const Rows& rows, F f, std::span<double> block_sums) {
  const double total = reduce_blocks<detail::add>(rows.size(), [&](std::size_t begin, std::size_t count) {
    return block_sums[begin / block_size] = reduce_block_of<detail::add>(rows, begin, count, f);
  });
  return {rows, f, block_sums.first(block_count(rows.size())), total};
}

// Inverse transform: the first token whose cumulative weight exceeds u * total; u in [0, 1). Blocks are counted by
// their sums, tokens within one by their own weights; where the round-off between the two leaves none, the last token
// with weight of the block: never a token of weight 0. no_token if no weight is positive, or the total is NaN or
// infinite.
template <class Rows, class F>
token_id inverse_transform(const weights<Rows, F>& w, double u) {
  using V = vec<typename Rows::value_type, 16>;
  if (!(w.total > 0 && w.total < std::numeric_limits<double>::infinity())) return no_token;
  double rest = u * w.total;
  detail::settle_scalar(rest);
  std::size_t block = 0;
  double inside = 0;  // how far into `block`
  for (std::size_t b = 0; b < w.blocks.size(); ++b) {
    if (!(w.blocks[b] > 0)) continue;
    block = b, inside = rest;
    if (rest < w.blocks[b]) break;
    rest -= w.blocks[b];
  }
  const std::size_t begin = block * block_size, size = w.size();
  const std::size_t count = size - begin < block_size ? size - begin : block_size;
  const auto opened = w.rows.open(begin, count);
  token_id last = no_token;  // the last token with weight so far
  for (std::size_t k = 0; k < count; k += 16) {
    const int lanes = count - k < 16 ? int(count - k) : 16;
    typename V::value_type lane[16];
    settled(w.f(opened.template operator()<V>(k, lanes))).store(lane);
    for (int i = 0; i < lanes; ++i) {
      if (!(lane[i] > 0)) continue;
      last = token_id(begin + k) + i;
      if (inside < double(lane[i])) return last;
      inside -= double(lane[i]);
    }
  }
  return last;
}

SPECAGG_END
