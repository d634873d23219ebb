// SPDX-License-Identifier: Apache-2.0
// Weights over the vocabulary with their block sums, and drawing a token from them with one uniform
// number.
#pragma once
#include <span>
#include <utility>

#include <specagg/kernel/reduce.hpp>

SPECAGG_BEGIN

// Unnormalised weights w(v) = f(view of token v) >= 0, which the draw() of a Chooser takes.
// `blocks` holds the sums of 1024 weights each. weigh() computes them and `total` in one pass;
// drawing then reads one block again.
template <class Rows, class F>
struct weights {
  using value_type = typename Rows::value_type;
  const Rows& rows;
  F f;
  std::span<const double> blocks;
  double total;  // NaN or inf: no token can be drawn

  SPECAGG_FUNCTION std::size_t size() const { return rows.size(); }
  double operator[](std::size_t v) const { return double(f(specagg::at(rows, v)).v); }
};

// The f of weights that are the elements of the rows.
struct row_itself {
  template <class V>
  SPECAGG_FUNCTION SPECAGG_INLINE V operator()(V v) const {
    return v;
  }
};

// The weights f(rows), which are 0 wherever a row R is. R knows the places of its few tokens
// (may_keep() of a processed_row): nothing is read for other tokens. The sums have the same bits.
template <class R, class Rows, class F>
struct few_of_row {
  using value_type = typename R::value_type;
  const R& row;
  const Rows& rows;
  const F& f;
  struct block {
    const few_of_row& of;
    std::size_t begin;
    decltype(std::declval<const Rows&>().open(0, 0)) all;
    template <class V>
    SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
      return of.row.may_keep(begin + k) ? V(of.f(all.template operator()<V>(k, lanes))) : V(0);
    }
  };
  std::size_t size() const { return row.size(); }
  block open(std::size_t begin, std::size_t count) const {
    return {*this, begin, rows.open(begin, count)};
  }
  bool empty(std::size_t begin, std::size_t count) const { return !row.may_keep(begin, count); }
};

namespace detail {

// `tokens` if any of them is among the `count` ids from `begin` on, else none.
SPECAGG_FUNCTION inline std::span<const token_id> if_any_in(std::span<const token_id> tokens,
                                                            std::size_t begin, std::size_t count) {
  for (const token_id t : tokens)
    if (std::size_t(t) - begin < count) return tokens;
  return {};
}
// x, whose lanes are the ids from `first` on, with 0 for `tokens`.
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE V without(V x, std::span<const token_id> tokens,
                                          std::size_t first) {
  for (const token_id t : tokens)
    if (const std::size_t i = std::size_t(t) - first; i < V::lanes)
      x = select(V::iota(0) == V(typename V::value_type(i)), V(0), x);
  return x;
}

}  // namespace detail

// Computes the weights in one pass over the rows, but for blocks that rows know to be empty.
// block_sums: at least block_count(rows.size()) doubles. They are written here and read by the
// result, so they must outlive it. (The threads of a CUDA block keep the sums themselves.)
template <class Rows, class F>
SPECAGG_FUNCTION weights<Rows, F> weigh(const Rows& rows, F f, std::span<double> block_sums) {
  if constexpr (Walked<Rows>) {
    return specagg::walker_of(rows).weigh(rows, f, block_sums);
  } else {
    using detail::add;
    const auto add_block = [&](std::size_t begin, std::size_t count) {
      double& sum = block_sums[begin / block_size];
      if constexpr (requires { rows.empty(begin, count); })
        if (rows.empty(begin, count)) return sum = 0;
      return sum = specagg::reduce_block_of<add>(rows, begin, count, f);
    };
    const double total = reduce_blocks<add>(rows.size(), add_block);
    return {rows, f, block_sums.first(block_count(rows.size())), total};
  }
}
// Calls use(weights) with weigh(rows, f, block_sums). f is 0 wherever `row` is, one of the rows.
template <class R, class Rows, class F, class Use>
SPECAGG_FUNCTION auto weigh_where_kept(const R& row, const Rows& rows, const F& f,
                                       std::span<double> block_sums, const Use& use) {
  if constexpr (requires { row.keeps_few(); })
    if (row.keeps_few())
      return use(specagg::weigh(few_of_row<R, Rows, F>{row, rows, f}, row_itself(), block_sums));
  return use(specagg::weigh(rows, f, block_sums));
}
// Whether there is memory enough for these sums.
template <class Rows>
SPECAGG_FUNCTION bool can_weigh(const Rows& rows, std::span<double> block_sums) {
  if constexpr (Walked<Rows>) return specagg::walker_of(rows).can_weigh(rows, block_sums);
  else return block_sums.size() >= block_count(rows.size());
}

namespace detail {

// A place among entries: the first entry where the cumulative sum exceeds `rest`, and the part of
// `rest` that lies in this entry. If round-off leaves no such entry: the last one, with all that
// remains of `rest`. Entries of at most `floor` are passed over; index n if all are.
//
// floor: 2^-60 of the total, and 2^-5 of that after each step. So an entry that is found has
// entries above their floor in it, and a token that is drawn has a probability above 0.
struct place {
  std::size_t index;
  double rest, floor;
  // The place `rest` among all of a total.
  SPECAGG_FUNCTION static place of(double rest, double total) { return {0, rest, total * 0x1p-60}; }
};
// Searched one after the other. entry(i): entry i, i < n.
template <class Entry>
SPECAGG_FUNCTION SPECAGG_INLINE place find_in_turn(const Entry& entry, std::size_t n,
                                                   const place& in) {
  double rest = in.rest;
  place last{n, rest, in.floor * 0x1p-5};
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
  for (std::size_t i = 0; i < n; ++i) {
    const double x = entry(i);
    if (!(x > in.floor)) continue;
    last.index = i;
    last.rest = rest;
    if (rest < x) break;
    rest -= x;
  }
  return last;
}
// The sum of the entries from `begin` on, at most `width` of them, a power of 16. Sixteenths of
// them are added as the lanes of a block are: i and i + 8, + 4, + 2, + 1.
template <class T>
double sum_of_group(const T* entries, std::size_t n, std::size_t begin, std::size_t width) {
  double part[16] = {};
  const std::size_t each = width / 16;
  for (std::size_t i = 0; i < 16 && begin + i * each < n; ++i)
    part[i] =
        each == 1 ? double(entries[begin + i]) : sum_of_group(entries, n, begin + i * each, each);
  for (std::size_t k = 8; k > 0; k /= 2)
    for (std::size_t i = 0; i < k; ++i) part[i] += part[i + k];
  return part[0];
}
// The place among n entries. It is searched among the sums of groups of 16 (above 256 entries:
// first among those of 256, and so on), then in the group: few additions depend on each other.
template <class T>
place find_place(const T* entries, std::size_t n, place in) {
  std::size_t width = 1, begin = 0, end = n;
  while (16 * width < n) width *= 16;
  for (; width > 1; width /= 16) {
    double sums[16];
    std::size_t groups = 0;
    for (std::size_t i = begin; i < end; i += width)
      sums[groups++] = sum_of_group(entries, n, i, width);
    in = find_in_turn([&](std::size_t i) { return sums[i]; }, groups, in);
    if (in.index == groups) return {n, in.rest, in.floor};
    begin += in.index * width;
    end = end - begin < width ? end : begin + width;
  }
  const place last =
      find_in_turn([&](std::size_t i) { return double(entries[begin + i]); }, end - begin, in);
  return {last.index == end - begin ? n : begin + last.index, last.rest, last.floor};
}

// The token of block `in_blocks` where the cumulative weight exceeds what is left for it.
template <class Rows, class F>
SPECAGG_FLATTEN token_id draw_in_block(const weights<Rows, F>& w, const place& in_blocks) {
  using V = vec<typename Rows::value_type, 16>;
  const std::size_t begin = in_blocks.index * block_size, size = w.size();
  const std::size_t count = size - begin < block_size ? size - begin : block_size,
                    groups = (count + 15) / 16;
  const auto opened = w.rows.open(begin, count);
  typename V::value_type weight[block_size];
  double sum[block_size / 16];
  for (std::size_t g = 0; g < groups; ++g) {
    const int lanes = count - 16 * g < 16 ? int(count - 16 * g) : 16;
    const V x = reducer<add, V>::masked(
        uncontracted(w.f(opened.template operator()<V>(16 * g, lanes))), lanes);
    x.store(weight + 16 * g);
    sum[g] = double(reduce_add(x));
  }
  const place in_groups = find_place(sum, groups, in_blocks);
  if (in_groups.index == groups) return no_token;
  const std::size_t k = 16 * in_groups.index;
  const place in_group =
      find_in_turn([&](std::size_t i) { return double(weight[k + i]); }, 16, in_groups);
  return token_id(begin + k + in_group.index);
}
// draw(block) draws a token from a block.
template <class Rows, class F, class Draw>
token_id draw_by_blocks(const weights<Rows, F>& w, double u, const Draw& draw) {
  if (!(w.total > 0 && w.total < std::numeric_limits<double>::infinity())) return no_token;
  double rest = u * w.total;
  forbid_contraction(rest);
  const place in_blocks = find_place(w.blocks.data(), w.blocks.size(), place::of(rest, w.total));
  return in_blocks.index == w.blocks.size() ? no_token : draw(in_blocks);
}

}  // namespace detail

// Inverse transform sampling: the first token whose cumulative weight exceeds u * total, u in [0,
// 1). It searches the place (find_place) of the block by the blocks' sums, then of 16 tokens by the
// sums of the block's 64 groups, then of the token. It never returns a token of weight 0,
// with any round-off between the steps. It returns no_token if no weight is positive, or the
// total is NaN or infinite.
template <class Rows, class F>
SPECAGG_FUNCTION token_id inverse_transform(const weights<Rows, F>& w, double u) {
  if constexpr (Walked<Rows>) return specagg::walker_of(w.rows).draw(w, u);
  else
    return detail::draw_by_blocks(
        w, u, [&](const detail::place& at) { return detail::draw_in_block(w, at); });
}

SPECAGG_END
