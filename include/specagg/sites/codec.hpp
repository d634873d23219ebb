// SPDX-License-Identifier: Apache-2.0
// Encodes rows in few bytes. The decoded row is the row that is used: a token is drafted from it
// and verified against it. (Drafting from the full row and verifying against a truncated one is
// biased.)
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>

#include <specagg/rows/distribution.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/sites/detail/bits.hpp>
#include <specagg/sites/detail/ranking.hpp>

SPECAGG_BEGIN
namespace sites {

// The settings that both ends agree on beforehand. The kept tokens are those that top_k and then
// top_p keep (as in `sampling`). Values are
//   full    the row's own numbers: 4 bytes each for float, 8 for double
//   half    2 bytes each: 2^15 p / max p as a half, so that probabilities down to 2^-29 of the
//           largest keep 11 bits
//   counts  b of a total l, p = b / l: one number encodes tokens and counts together. b_i = floor(l
//           p_i + 1/2), then the largest rounding errors are adjusted until sum b = l (Reznik
//           2011). Its size never exceeds log2 C(V, K) + log2 C(l + K - 1, K - 1) bits: V = 32000,
//           K = 8, l = 64 always take 17 bytes (10 us per row; the time grows with K^3: 2 ms for K
//           = 64)
// With full and half, the ids of the k kept tokens are encoded as gaps in a Golomb-Rice code, about
// log2(V / k) + 2 bits each.
struct row_codec {
  enum class values : std::uint8_t { full, half, counts };
  static constexpr std::uint32_t most_counted = 64, largest_total = 65536;

  std::size_t vocabulary = 0;  // V, of every row; must be set
  values format = values::full;
  std::uint32_t top_k = 0;  // 0: off
  double top_p = 1;
  std::uint32_t total = 0;  // l, for counts

  constexpr bool valid() const {
    const bool counted =
        top_k >= 1 && top_k <= most_counted && total >= 1 && total <= largest_total;
    return vocabulary >= 1 && vocabulary < std::size_t(1) << 31 && top_p > 0 && top_p <= 1 &&
           (format != values::counts || counted);
  }
  // otherwise V values are sent without ids
  constexpr bool truncates() const { return top_k > 0 || top_p < 1; }
  constexpr std::size_t max_tokens() const {
    return top_k > 0 && top_k < vocabulary ? top_k : vocabulary;
  }
  // A number of bytes that no encoded row of T exceeds. Rows of counts, and rows that are not
  // truncated, all have this size.
  template <class T>
  constexpr std::size_t max_bytes() const;
};

// why: ok; invalid_row (the bytes are truncated, or encode() does not write such bytes);
// token_out_of_range; not_normalised; invalid_parameter (a bad codec or too little memory);
// vocabulary_mismatch. bytes: the number of bytes written or read; another row may follow. row:
// normalised, in the caller's memory.
template <class T>
struct [[nodiscard]] coded_row {
  status why = status::ok;
  std::size_t bytes = 0;
  normal_form<sparse_row<T>> row = {};
};

namespace detail {

// Helps to sum over the number k of tokens with mass, k = 1 .. K. There are C(V, k) C(l - 1, k - 1)
// rows with k tokens.
struct counted_rows {
  std::uint32_t vocabulary, total;
  natural ways;  // the number of rows with k tokens
  std::uint32_t k = 1;
  constexpr explicit counted_rows(const row_codec& c)
      : vocabulary(std::uint32_t(c.vocabulary)), total(c.total), ways(vocabulary) {}
  constexpr void next() {
    ways *= vocabulary - k;
    ways /= k + 1;
    ways *= total - k;
    ways /= k;
    ++k;
  }
  constexpr bool last(std::size_t most) const { return k >= most || k >= vocabulary || k >= total; }
  constexpr natural compositions() const { return times_binomial(1, total - 1, k - 1); }
};
constexpr natural all_counted_rows(const row_codec& c) {
  counted_rows rows(c);
  natural all = rows.ways;
  while (!rows.last(c.max_tokens())) {
    rows.next();
    all += rows.ways;
  }
  return all;
}
constexpr std::size_t counted_bytes(const row_codec& c) {
  natural largest = all_counted_rows(c);
  largest -= 1;
  return (largest.bits() + 7) / 8;
}

// The number of low bits in the code of a gap between ids: floor(log2(V / k)).
constexpr int gap_bits(std::size_t vocabulary, std::size_t k) {
  return int(std::bit_width(vocabulary / k)) - 1;
}

// The counts b_i of at most 64 probabilities: floor(l p + 1/2), then the largest errors are
// corrected; of equal errors the error of the lower id first.
template <class T>
void round_to_counts(std::span<const T> mass, double sum, std::uint32_t total,
                     std::span<std::uint32_t> counts) {
  double error[row_codec::most_counted];
  std::int64_t left = total;
  for (std::size_t i = 0; i < mass.size(); ++i) {
    double p = double(mass[i]) / sum;
    specagg::detail::forbid_contraction(p);
    const double b = std::floor(fma(double(total), p, 0.5));
    error[i] = fma(-double(total), p, b);
    counts[i] = std::uint32_t(b);
    left -= counts[i];
  }
  const auto begin = error, end = error + mass.size();
  for (; left > 0; --left) {
    const auto i = std::min_element(begin, end);
    ++counts[std::size_t(i - begin)];
    ++*i;
  }
  for (; left < 0; ++left) {
    const auto i = std::max_element(begin, end);
    --counts[std::size_t(i - begin)];
    --*i;
  }
}

// Writes the tokens that the codec keeps of a normalised row and their probabilities, and returns
// their number. ids: max_tokens elements; mass: V elements.
template <class R, class T = typename R::value_type>
std::size_t truncate(const row_codec& codec, const R& row, std::span<token_id> ids,
                     std::span<T> mass) {
  const std::size_t size = row.size();
  for (std::size_t begin = 0; begin < size; begin += block_size) {
    const std::size_t count = std::min(size - begin, block_size);
    const auto block = row.open(begin, count);
    for (std::size_t k = 0; k < count; k += 16) {
      T lane[16];
      const int lanes = int(std::min<std::size_t>(count - k, 16));
      block.template operator()<vec<T, 16>>(k, lanes).store(lane);
      std::copy_n(lane, lanes, mass.data() + begin + k);
    }
  }
  std::size_t n = 0;
  const auto take = [&](token_id v, T x) {
    if (!(x > 0)) return;
    ids[n] = v;
    mass[n++] = x;
  };
  const auto sum = [&] {
    double kept = 0;
    for (std::size_t i = 0; i < n; ++i) kept += double(mass[i]);
    return kept;
  };
  shortlist<T> list;
  cutoff<T> cut;
  const mass_unit<T> unit(size);
  // the shortest prefix of the first `tokens` probabilities with this mass, or with all
  const auto prefix_of = [&](std::size_t tokens, specagg::mass enough, const auto& weight) {
    constexpr T lowest = std::numeric_limits<T>::lowest();
    const logits_in_memory<T> of{mass.data(), tokens};
    const specagg::mass all = of.mass_from(unit, weight, lowest);
    return of
        .shortest_prefix(std::clamp<specagg::mass>(enough, 1, all), lowest, unit.sum(all), lowest,
                         unit, weight, list)
        .cut;
  };
  const std::size_t most = codec.max_tokens();
  if (most < size && most <= most_listed && list_largest(mass.data(), size, most, list, cut)) {
    for (std::size_t i = 0; i < list.size; ++i) take(list.ids[i], list.logits[i]);
  } else {
    if (most < size) cut = prefix_of(size, unit.at_least(double(most)), count_of_tokens());
    for (std::size_t v = 0; v < size; ++v)
      if (cut.keeps(mass[v], v)) take(token_id(v), mass[v]);
  }
  if (codec.top_p < 1) {
    cut = prefix_of(n, unit.at_least(codec.top_p * sum()), row_itself());
    for (std::size_t i = std::exchange(n, 0), j = 0; j < i; ++j)
      if (cut.keeps(mass[j], j)) take(ids[j], mass[j]);
  }
  const double scale = codec.truncates() ? sum() : 1;
  for (std::size_t i = 0; i < n; ++i) mass[i] = T(double(mass[i]) / scale);
  return n;
}

// ---- counts: one number, the rank of the row among all rows with 1 .. K tokens ------------------

template <class T>
coded_row<T> encode_counts(const row_codec& codec, std::span<const token_id> ids,
                           std::span<const T> mass, std::span<std::uint8_t> out) {
  std::uint32_t counts[row_codec::most_counted], parts[row_codec::most_counted];
  token_id kept[row_codec::most_counted];
  double sum = 0;
  for (const T x : mass) sum += double(x);
  round_to_counts(mass, sum, codec.total, counts);
  std::size_t k = 0;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (counts[i] > 0) {
      kept[k] = ids[i];
      parts[k] = counts[i] + (k > 0 ? parts[k - 1] : std::uint32_t(-1));
      ++k;
    }
  natural rank;
  counted_rows rows(codec);
  for (; rows.k < k; rows.next()) rank += rows.ways;
  rank += subset_rank(std::span<const token_id>(kept, k), rows.compositions());
  // partial sums less 1: k - 1 of 0 .. l - 2
  rank += subset_rank(std::span<const std::uint32_t>(parts, k - 1));
  const std::size_t bytes = counted_bytes(codec);
  if (out.size() < bytes) return {.why = status::invalid_parameter};
  rank.write(out.first(bytes));
  return {.bytes = bytes};
}

// Bytes that were read, and tokens that were written to ids and mass.
struct decoded_row {
  status why = status::ok;
  std::size_t bytes = 0, tokens = 0;
};
template <class T>
decoded_row decode_counts(const row_codec& codec, std::span<const std::uint8_t> in,
                          std::span<token_id> ids, std::span<T> mass) {
  const std::size_t bytes = counted_bytes(codec);
  if (in.size() < bytes) return {.why = status::invalid_row};
  natural rank = natural::read(in.first(bytes));
  counted_rows rows(codec);
  for (; rank >= rows.ways; rows.next()) {
    if (rows.last(codec.max_tokens())) return {.why = status::invalid_row};
    rank -= rows.ways;
  }
  const std::size_t k = rows.k;
  std::uint32_t parts[row_codec::most_counted];
  rank = subset_of_rank(rank, rows.vocabulary, ids.first(k), rows.compositions());
  subset_of_rank(rank, codec.total - 1, std::span(parts, k - 1));
  parts[k - 1] = codec.total - 1;
  for (std::size_t i = 0; i < k; ++i)
    mass[i] = T(i > 0 ? parts[i] - parts[i - 1] : parts[i] + 1) / T(codec.total);
  return {.bytes = bytes, .tokens = k};
}

// ---- full and half: one value a token, with ids or for the whole vocabulary ---------------------

// Writes the tokens of a row one after another. top: the largest mass.
template <class T>
struct value_writer {
  bool halves;
  std::span<const token_id> ids;
  std::span<const T> mass;
  T top = *std::max_element(mass.begin(), mass.end());

  std::size_t width() const { return halves ? 2 : sizeof(T); }
  std::uint64_t number(T x) const {  // 0: no mass
    return halves ? half_of(double(x) / double(top) * 0x1p15)
                  : std::uint64_t(bit_cast<bits_of<T>>(x + T(0)));
  }
  coded_row<T> write_all(std::size_t vocabulary, std::span<std::uint8_t> out) const {
    const std::size_t bytes = vocabulary * width();
    if (out.size() < bytes) return {.why = status::invalid_parameter};
    for (std::size_t v = 0, i = 0; v < vocabulary; ++v) {
      const bool has_mass = i < ids.size() && std::size_t(ids[i]) == v;
      store_number(&out[v * width()], has_mass ? number(mass[i++]) : 0, width());
    }
    return {.bytes = bytes};
  }
  coded_row<T> write_with_ids(std::size_t vocabulary, std::span<std::uint8_t> out) const {
    bit_writer to(out);
    const auto k =
        std::size_t(std::count_if(mass.begin(), mass.end(), [&](T x) { return number(x) > 0; }));
    const int low = gap_bits(vocabulary, k);
    to.put(k, int(std::bit_width(vocabulary)));
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint64_t x = number(mass[i]);
      if (x == 0) continue;
      const std::uint64_t gap = std::uint64_t(ids[i]) - next;
      to.put_unary(gap >> low);
      to.put(gap & ((std::uint64_t(1) << low) - 1), low);
      to.put(x, 8 * int(width()));
      next += gap + 1;
    }
    const std::size_t bytes = to.finish();
    if (!to.ok()) return {.why = status::invalid_parameter};
    return {.bytes = bytes};
  }
};

// Takes the tokens of a row one after another.
template <class T>
struct value_reader {
  bool halves;
  std::span<token_id> ids;
  std::span<T> mass;
  std::size_t taken = 0;
  std::uint64_t largest = 0;
  double sum = 0;

  std::size_t width() const { return halves ? 2 : sizeof(T); }
  std::uint64_t end() const {  // no value is as large
    return halves ? half_of_top + 1u : bit_cast<bits_of<T>>(std::numeric_limits<T>::infinity());
  }
  void take(std::uint64_t id, std::uint64_t x) {
    ids[taken] = token_id(id);
    largest = std::max(largest, x);
    mass[taken] = halves ? T(units_of_half(x)) : bit_cast<T>(bits_of<T>(x));
    sum += double(mass[taken++]);
  }
  decoded_row read_all(std::size_t vocabulary, std::span<const std::uint8_t> in) {
    const std::size_t bytes = vocabulary * width();
    if (in.size() < bytes) return {.why = status::invalid_row};
    for (std::size_t v = 0; v < vocabulary; ++v) {
      const std::uint64_t x = load_number(&in[v * width()], width());
      if (x >= end()) return {.why = status::invalid_row};
      if (x > 0) take(v, x);
    }
    return finish(bytes);
  }
  decoded_row read_with_ids(std::size_t vocabulary, std::size_t most,
                            std::span<const std::uint8_t> in) {
    bit_reader from(in);
    const std::uint64_t count = from.take(int(std::bit_width(vocabulary)));
    if (count == 0 || count > most) return {.why = status::invalid_row};
    const int low = gap_bits(vocabulary, count);
    for (std::uint64_t next = 0; taken < count; ++next) {
      next += from.take_unary(vocabulary >> low) << low;
      next += from.take(low);
      if (next >= vocabulary) return {.why = status::token_out_of_range};
      const std::uint64_t x = from.take(8 * int(width()));
      if (x == 0 || x >= end()) return {.why = status::invalid_row};
      take(next, x);
    }
    if (!from.ok()) return {.why = status::invalid_row};
    return finish(from.bytes());
  }
  decoded_row finish(std::size_t bytes) {
    if (halves && largest != half_of_top) return {.why = status::invalid_row};
    for (std::size_t i = 0; i < taken && halves; ++i) mass[i] = T(double(mass[i]) / sum);
    return {.bytes = bytes, .tokens = taken};
  }
};

}  // namespace detail

// See row_codec.
template <class T>
constexpr std::size_t row_codec::max_bytes() const {
  if (format == values::counts) return detail::counted_bytes(*this);
  const std::size_t value = format == values::half ? 16 : 8 * sizeof(T), k = max_tokens();
  if (!truncates()) return (vocabulary * value + 7) / 8;
  // With b low bits, k gaps take k (b + 1) + sum (gap >> b) < k (b + 3) bits. For fewer tokens b
  // may be larger by 1.
  const std::size_t gap = std::size_t(detail::gap_bits(vocabulary, k)) + 4;
  return (std::size_t(std::bit_width(vocabulary)) + k * (gap + value) + 7) / 8;
}

// Encodes the tokens with mass: at most max_tokens ids in ascending order, and their probabilities.
// It rounds as the format requires, but does not truncate again. So encoding a decoded row gives
// the same bytes.
template <class T>
coded_row<T> encode(const row_codec& codec, std::span<const token_id> ids, std::span<const T> mass,
                    std::span<std::uint8_t> out) {
  const auto fail = [](status s) { return coded_row<T>{.why = s}; };
  if (!codec.valid() || ids.size() > codec.max_tokens()) return fail(status::invalid_parameter);
  if (const status s = specagg::normalise(sparse_row<T>(ids, mass, codec.vocabulary)).why();
      s != status::ok)
    return fail(s);

  if (codec.format == row_codec::values::counts)
    return detail::encode_counts(codec, ids, mass, out);
  const detail::value_writer<T> values{codec.format == row_codec::values::half, ids, mass};
  return codec.truncates() ? values.write_with_ids(codec.vocabulary, out)
                           : values.write_all(codec.vocabulary, out);
}

// Decodes the row at the front of `in`. ids and mass need at least max_tokens elements; they hold
// the row. Any bytes are safe: they give a row that encode() turns into the same bytes, or a
// status.
template <class T>
coded_row<T> decode(const row_codec& codec, std::span<const std::uint8_t> in,
                    std::span<token_id> ids, std::span<T> mass) {
  const std::size_t most = codec.max_tokens();
  if (!codec.valid() || ids.size() < most || mass.size() < most)
    return {.why = status::invalid_parameter};
  detail::value_reader<T> values{codec.format == row_codec::values::half, ids, mass};
  const auto read = codec.format == row_codec::values::counts
                        ? detail::decode_counts(codec, in, ids, mass)
                    : codec.truncates() ? values.read_with_ids(codec.vocabulary, most, in)
                                        : values.read_all(codec.vocabulary, in);
  if (read.why != status::ok) return {.why = read.why};
  const sparse_row<T> row(ids.first(read.tokens), mass.first(read.tokens), codec.vocabulary);
  coded_row<T> result{.bytes = read.bytes, .row = specagg::normalise(row)};
  if (result.row.why() != status::ok) return {.why = result.row.why()};
  return result;
}

// Truncates, rounds and encodes a row. Returns it as the other end will decode it: draft from this
// row. ids: max_tokens elements; mass: V elements, and it holds the result; out: max_bytes.
template <class D>
  requires Distribution<D>
auto encode(
    const row_codec& codec, const D& distribution, std::span<std::uint8_t> out,
    std::span<token_id> ids,
    std::span<typename std::remove_cvref_t<decltype(specagg::as_row(distribution))>::value_type>
        mass) {
  const auto& given = specagg::as_row(distribution);
  using T = typename std::remove_cvref_t<decltype(given)>::value_type;
  const auto fail = [](status s) { return coded_row<T>{.why = s}; };
  if (!codec.valid() || ids.size() < codec.max_tokens() || mass.size() < codec.vocabulary)
    return fail(status::invalid_parameter);
  if (given.size() != codec.vocabulary) return fail(status::vocabulary_mismatch);
  const auto& row = specagg::normalise(given);
  if (row.why() != status::ok) return fail(row.why());
  const std::size_t n = detail::truncate(codec, row, ids, mass);
  const auto written = encode<T>(codec, ids.first(n), mass.first(n), out);
  return written.why == status::ok ? decode<T>(codec, out.first(written.bytes), ids, mass)
                                   : written;
}

}  // namespace sites
SPECAGG_END
