// SPDX-License-Identifier: Apache-2.0
// From logits to a row: processors (penalties, masks, biases) change the logits; `sampling`
// (rows/sampling.hpp) says which tokens of their softmax are kept.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <span>

#include <specagg/rows/distribution.hpp>
#include <specagg/rows/sampling.hpp>
#include <specagg/kernel/logits_in_memory.hpp>

SPECAGG_BEGIN

static_assert(sampling::least_refused_temperature == detail::least_refused_temperature<float>);

// ---- processors ---------------------------------------------------------------------------------

// A processor is a function of the text so far, the draft included: it changes at every draft
// position, applies to q and p alike, and is undone when drafts are rolled back. apply() edits a
// row of logits in place for the next position; push() and pop() follow the text. Decoders do not
// read the result of push(): if push() fails, apply() must make the row invalid. Masks set -inf.
// pop(), and push() of the token that was just popped, must not throw: decoders use these calls to
// restore the text when something else has thrown. T: the type of the logits.
template <class P, class T = float>
concept Processor = requires(P& p, token_id t, std::span<T> logits) {
  p.push(t);
  { p.pop() } -> std::same_as<void>;
  { p.apply(logits) } -> std::same_as<void>;
};

// Changes nothing: the processor of decoders that are given no processor.
struct no_processor {
  void push(token_id) {}
  void pop() {}
  template <class T>
  void apply(std::span<T>) const {}
};

// A reference to a processor of logits of type T, which must outlive it. By default there is no
// processor, and nothing is edited. It is itself a Processor<T>, and drafters get one.
template <class T>
class processor_ref {
 public:
  processor_ref() noexcept {}
  template <Processor<T> P>
    requires(!std::same_as<P, processor_ref> && !std::is_const_v<P>)
  processor_ref(P& p) : object_(&p), calls_(&calls_of<P>) {}
  void push(token_id t) const {
    if (calls_) calls_->push(object_, t);
  }
  void pop() const {
    if (calls_) calls_->pop(object_);
  }
  void apply(std::span<T> logits) const {
    if (calls_) calls_->apply(object_, logits);
  }
  // Whether apply() changes nothing, for any text.
  bool none() const { return !calls_ || calls_->none(object_); }

 private:
  struct calls {
    void (*push)(void*, token_id);
    void (*pop)(void*);
    void (*apply)(void*, std::span<T>);
    bool (*none)(const void*);
  };
  template <class P>
  static constexpr calls calls_of = {
      [](void* p, token_id t) { (void)static_cast<P*>(p)->push(t); },
      [](void* p) { static_cast<P*>(p)->pop(); },
      [](void* p, std::span<T> logits) { static_cast<P*>(p)->apply(logits); },
      [](const void* p) {
        if constexpr (requires(const P& c) {
                        { c.none() } -> std::convertible_to<bool>;
                      })
          return static_cast<const P*>(p)->none();
        else return std::same_as<P, no_processor>;
      }};
  void* object_ = nullptr;
  const calls* calls_ = nullptr;
};

// The strengths of `penalties` (below). The defaults change no logit.
struct penalty_options {
  // > 0; logits of tokens in the text are divided by it if positive, multiplied if negative (CTRL)
  double repetition = 1;
  double presence = 0;   // taken off the logits of tokens in the text
  double frequency = 0;  // taken off once for every occurrence
  bool none() const { return repetition == 1 && presence == 0 && frequency == 0; }
};

// The three penalties in use everywhere. They count the tokens of one text, so each request needs a
// penalties object of its own, with its own memory:
//   counts     V elements, set to 0 by the constructor; after that only push and pop may write
//              there
//   distinct   V elements: the ids that occur in the text
//   text       as many elements as the longest text has tokens, its prompt and one round's draft
//              included
// The caller owns the memory, which must outlive the object; a copy of the object uses the same
// memory. Tokens outside 0..V-1 are ignored. push() is context_full if the text has more tokens
// than `text` has elements. It is not counted then, and until pop() has taken it back apply() makes
// NaN of every logit: the row is an invalid_row, not another law. apply() also writes NaN if
// `counts` or `distinct` is shorter than the row.
//
// apply(logits) penalises the row of the next position. Call it when exactly the tokens before that
// position have been pushed: the prompt (or the part of it that shall count), the tokens emitted
// since, and the tokens drafted before that position. Call it once for each row: it edits the
// logits in place. In a round that drafts g tokens the order is
//   for j = 0 .. g-1:   apply(draft's row j), draw token j from it, push(token j)
//   apply(draft's row g), if the policy reads the draft: the bonus needs it
//   pop(g)              now the text is as it was before the round
//   apply(target's rows 0 .. g, drafted tokens)
//   verify
//   push(emitted tokens)
// The library's decoders do all this themselves.
class penalties {
 public:
  penalties() = default;
  penalties(penalty_options options, std::span<std::uint32_t> counts, std::span<token_id> distinct,
            std::span<token_id> text)
      : options_(options),
        counts_(counts.first(std::min(counts.size(), distinct.size()))),
        distinct_(distinct),
        text_(text) {
    std::fill(counts_.begin(), counts_.end(), 0u);
  }
  // Elements of memory for texts of at most `longest` tokens, one round's draft included.
  static constexpr std::size_t memory(std::size_t vocabulary, std::size_t longest) noexcept {
    return 2 * vocabulary + longest;
  }
  // The same with one piece of memory, after the tokens of `history`. Memory for fewer tokens than
  // the vocabulary makes every row invalid.
  penalties(penalty_options options, std::size_t vocabulary, std::span<const token_id> history,
            std::span<token_id> memory) noexcept
      : penalties(options, counts_in(memory, vocabulary), part_of(memory, vocabulary, vocabulary),
                  part_of(memory, 2 * vocabulary, memory.size())) {
    (void)push(history);  // apply() says if it does not fit
  }
  [[nodiscard]] status push(token_id t) noexcept {
    if (size_++ >= text_.size()) return status::context_full;
    text_[size_ - 1] = t;
    if (t < 0 || std::size_t(t) >= counts_.size()) return status::ok;
    if (counts_[std::size_t(t)]++ == 0) distinct_[distinct_size_++] = t;
    return status::ok;
  }
  // Pushes several tokens, in order.
  [[nodiscard]] status push(std::span<const token_id> tokens) noexcept {
    status all = status::ok;
    for (const token_id t : tokens)
      if (const status s = push(t); s != status::ok) all = s;
    return all;
  }
  void pop() noexcept {  // undoes the last push
    if (size_ == 0 || --size_ >= text_.size()) return;
    const token_id t = text_[size_];
    if (t < 0 || std::size_t(t) >= counts_.size()) return;
    // last in, first out: it is the last of the list
    if (--counts_[std::size_t(t)] == 0) --distinct_size_;
  }
  void pop(std::size_t pushes) noexcept {
    for (; pushes > 0; --pushes) pop();
  }
  // Whether apply() changes nothing, for any text.
  bool none() const { return options_.none(); }
  // T: float, double, bf16 or f16. Computed in double, rounded once.
  template <class T>
  void apply(std::span<T> logits) const {
    if (options_.none()) return;
    if (size_ > text_.size() || counts_.size() < logits.size())
      std::fill(logits.begin(), logits.end(), detail::stored<T>(std::nan("")));
    for (std::size_t i = 0; i < distinct_size_; ++i) {
      const auto v = std::size_t(distinct_[i]);
      if (v >= logits.size()) continue;
      double l = double(detail::number(logits[v]));
      l = l > 0 ? l / options_.repetition : l * options_.repetition;
      detail::forbid_contraction(l);
      l = fma(-options_.frequency, double(counts_[v]), l - options_.presence);
      logits[v] = detail::stored<T>(l);
    }
  }
  // Penalises drafted.size() + 1 rows [rows][V]: row j is the row after the first j drafted tokens.
  // Afterwards the text is as before.
  template <class T>
  void apply(std::span<T> rows, std::span<const token_id> drafted) noexcept {
    const std::size_t V = rows.size() / (drafted.size() + 1);
    apply(rows.first(V));
    for (std::size_t j = 0; j < drafted.size(); ++j) {
      (void)push(drafted[j]);  // apply() says if there is no room for it
      apply(rows.subspan((j + 1) * V, V));
    }
    pop(drafted.size());
  }

 private:
  static std::span<token_id> part_of(std::span<token_id> memory, std::size_t begin,
                                     std::size_t size) noexcept {
    const std::span<token_id> rest = memory.subspan(std::min(begin, memory.size()));
    return rest.first(std::min(size, rest.size()));
  }
  // The first V elements, as unsigned numbers: that type may name the same memory.
  static std::span<std::uint32_t> counts_in(std::span<token_id> memory, std::size_t V) noexcept {
    return {reinterpret_cast<std::uint32_t*>(memory.data()), std::min(V, memory.size())};
  }
  penalty_options options_;
  std::span<std::uint32_t> counts_;
  std::span<token_id> distinct_, text_;
  std::size_t distinct_size_ = 0, size_ = 0;
};

// ---- temperature and filters --------------------------------------------------------------------

namespace detail {

// The places where a row may have mass: 2048 bits. All bits stand for the same number of tokens, a
// power of two of at least 16.
struct kept_places {
  static constexpr std::size_t size = 2048;
  std::array<std::uint64_t, size / 64> bits = {};
  int shift = 0;  // a bit is for 2^shift tokens; 0: nothing is known
  kept_places() = default;
  // ids: in ascending order
  SPECAGG_FUNCTION kept_places(std::span<const token_id> ids, std::size_t vocabulary) : shift(4) {
    while (vocabulary > size << shift) ++shift;
    std::size_t at = 0;
    std::uint64_t here = 0;  // in a register: bits of one word follow each other
    for (const token_id v : ids) {
      const std::size_t place = std::size_t(v) >> shift;
      if (place >> 6 != at) {
        bits[at] = here;
        here = 0;
        at = place >> 6;
      }
      here |= std::uint64_t(1) << (place & 63);
    }
    bits[at] = here;
  }
  SPECAGG_INLINE bool may_hold(std::size_t v) const {
    return bits[v >> shift >> 6] >> (v >> shift & 63) & 1;
  }
  bool may_hold(std::size_t begin, std::size_t count) const {
    for (std::size_t v = begin >> shift << shift; v < begin + count; v += std::size_t(1) << shift)
      if (may_hold(v)) return true;
    return false;
  }
};

// The mass that top-p keeps of a row of `size` tokens, and a logit below which there is less than
// half of what it may leave out. total: the sum of the weights that it takes its share of. kept:
// the mass of what earlier filters keep; 0: nothing is left out. all(): the mass of the whole row,
// which is asked for if the share is within round-off of everything.
template <class T>
struct share_of_mass {
  mass enough;
  double lightest;
  template <class All>
  SPECAGG_FUNCTION share_of_mass(double share, double total, std::size_t size, double temperature,
                                 T largest, mass kept, const mass_unit<T>& unit, const All& all) {
    const double wanted = uncontracted(vec<double, 1>(share) * vec<double, 1>(total)).v,
                 round_off = 2 * softmax_error<T>(size) * total + unit.sum(mass(size));
    enough = unit.at_least(wanted);
    mass most = kept == 0 ? enough : kept;
    if (kept == 0 && total - wanted <= round_off) most = all();
    if (most < enough) enough = most;  // there is less
    if (enough < 1) enough = 1;        // a share of next to nothing
    lightest = fma(temperature, log((total - wanted) / double(size) / 2), double(largest));
  }
};
// The least logit with at least this fraction of the largest weight.
template <class T>
SPECAGG_FUNCTION T least_with_fraction(double fraction, double temperature, T largest) {
  constexpr T lowest = std::numeric_limits<T>::lowest();
  const double least = fma(temperature, log(fraction), double(largest));
  const T bound = least > double(lowest) ? T(least) : lowest;
  return double(bound) < least ? next_above(bound) : bound;
}

// The tokens that filters keep of a row of logits, whoever reads it
// (kernel/logits_in_memory.hpp): at first
// all of them.
template <class Row, class List>
class kept_tokens {
 public:
  using T = typename Row::value_type;
  // `list` must be empty. It holds all kept tokens while `listed` is true.
  SPECAGG_FUNCTION kept_tokens(Row& row, List& list) : row_(row), list_(list), unit_(row.size()) {}

  // The first k > 0 tokens; false if the row is invalid.
  SPECAGG_FUNCTION bool keep_first(std::size_t k, double temperature) {
    listed = row_.list_first(k, list_, kept.cut);
    largest = listed
                  ? T(row_of(list_).template reduce<larger>([](auto l) SPECAGG_INNER { return l; }))
                  : row_.largest();
    if (!(largest > -inf)) return false;
    const softmax_weights<T> weight(largest, temperature);
    if constexpr (requires { row_.find_first(k, unit_, weight, list_, kept); })
      if (!listed && row_.find_first(k, unit_, weight, list_, kept)) return true;
    if (!listed) {
      const count_of_tokens count;
      const double tokens = row_.template reduce<add>(count);  // that are not masked
      kept = row_.shortest_prefix(unit_.at_least(double(k) < tokens ? double(k) : tokens), lowest,
                                  tokens, lowest, unit_, count, list_);
      listed = list_.size > 0;
    }
    weigh(weight);
    return true;
  }
  // The mass of what is kept, which is not the whole row.
  SPECAGG_FUNCTION void weigh(const softmax_weights<T>& weight) {
    const T cut = kept.cut.logit;
    if (listed) kept.kept = row_of(list_).mass_from(unit_, weight, lowest);
    else if (kept.ties == 0) kept.kept = row_.mass_from(unit_, weight, cut);
    else
      kept.kept = row_.mass_from(unit_, weight, next_above(cut)) +
                  mass(kept.ties) * unit_.whole(weight(vec<T, 1>(cut)).v);
  }
  // Keeps the shortest prefix with this share of `total`. total: the sum of all weights of the row,
  // or 0 for the mass of what is kept.
  SPECAGG_FUNCTION void keep_share(double share, double total, double temperature,
                                   const softmax_weights<T>& weight) {
    const bool whole_row = kept.kept == 0;
    const double here = whole_row ? total : unit_.sum(kept.kept);
    if (!(total > 0)) total = here;
    const auto all = [&]() SPECAGG_INNER { return row_.mass_from(unit_, weight, lowest); };
    const share_of_mass<T> due(share, total, row_.size(), temperature, largest, kept.kept, unit_,
                               all);
    kept = listed ? list_.shorten(due.enough, unit_, weight)
                  : row_.shortest_prefix(due.enough, whole_row ? lowest : kept.cut.logit, here,
                                         due.lightest > double(lowest) ? T(due.lightest) : lowest,
                                         unit_, weight, list_);
    listed = list_.size > 0;
  }
  // The tokens with at least this fraction of the largest weight.
  SPECAGG_FUNCTION void keep_from_fraction(double fraction, double temperature,
                                           const softmax_weights<T>& weight) {
    const T bound = least_with_fraction(fraction, temperature, largest);
    if (!(bound > kept.cut.logit)) return;
    kept.cut = {bound};
    kept.ties = 0;  // it keeps all tokens with this logit
    if (listed) list_.keep_from(bound);
    kept.kept = listed ? row_of(list_).mass_from(unit_, weight, lowest)
                       : row_.mass_from(unit_, weight, bound);
  }
  SPECAGG_FUNCTION double total() const { return unit_.sum(kept.kept); }

  prefix<T> kept = {{}, 0, 0};
  T largest = -inf;  // the largest logit
  bool listed = false;

 private:
  static constexpr T inf = std::numeric_limits<T>::infinity();
  static constexpr T lowest = std::numeric_limits<T>::lowest();
  Row& row_;
  List& list_;
  mass_unit<T> unit_;
};

// Finds the tokens that top-k, top-p and min-p keep of a row, at a usable temperature. Writes
// found.restriction; if `list` holds all kept tokens, also found.places. Notes the sum at
// temperature 1 if it was computed. `list` must be empty.
//
// Each filter keeps a prefix, and what top-k and min-p keep of a row does not depend on the filters
// before them. So an order only says what top-p takes its share of: of the mass of what is kept so
// far (kernel/mass.hpp), or of the sum of sum_exponentials(), of the whole row. And it says at
// which temperature. A filtered row of floats is divided by the mass of what it keeps:
// found.sampled. Doubles would lose digits, so their weights are summed.
template <class Row, class List, class Facts, class T = typename Row::value_type>
SPECAGG_FUNCTION status find_kept(Row& row, const sampling& s, double temperature, List& list,
                                  Facts& found) {
  kept_tokens<Row, List> tokens(row, list);
  const double seen = s.order == filter_order::llama_cpp ? 1 : temperature;  // by the filters
  const bool top_k = s.top_k > 0 && s.top_k < row.size(),
             min_p_first = s.min_p > 0 && s.order == filter_order::vllm,
             nothing_before = s.order == filter_order::joint || (!top_k && !min_p_first);
  double total = 0;
  if (top_k && !tokens.keep_first(s.top_k, seen)) return status::invalid_row;
  if (s.top_p < 1 && nothing_before) {
    const softmax_sum<T> all = row.sum_exponentials(seen);
    if (!(all.total > 0)) return status::invalid_row;
    tokens.largest = all.max;
    total = all.total;
    if constexpr (requires { found.at_temperature_1; })
      if (seen == 1) found.at_temperature_1 = {all.max, 1, total};
  } else if (!top_k) {
    tokens.largest = row.largest();
  }
  if (!(tokens.largest > -std::numeric_limits<T>::infinity())) return status::invalid_row;
  const softmax_weights<T> weight(tokens.largest, seen);
  if (min_p_first) tokens.keep_from_fraction(s.min_p, seen, weight);
  if (s.top_p < 1) tokens.keep_share(s.top_p, total, seen, weight);
  if (s.min_p > 0 && !min_p_first) tokens.keep_from_fraction(s.min_p, seen, weight);
  if constexpr (sizeof(T) == 4)
    if (seen != temperature) tokens.weigh(softmax_weights<T>(tokens.largest, temperature));
  found.restriction = tokens.kept.cut;
  if constexpr (sizeof(T) == 4) found.sampled = {tokens.largest, temperature, tokens.total()};
  if constexpr (requires { found.places; })
    if (tokens.listed && list.size <= 256)
      found.places = {std::span(list.ids).first(list.size), row.size()};
  return status::ok;
}

}  // namespace detail

// A row of logits as the engine samples from it. normalise() finds what the filters keep:
// temperature 0 in one pass; top-k in one pass, of thousands of tokens in two; min-p in one pass
// and a part of another; top-p in the normaliser's pass and another one or few, of which only
// those blocks are read that may hold a kept token.
template <class S>
class processed_row : public softmax_row<S> {
 public:
  using T = typename softmax_row<S>::value_type;
  processed_row() = default;
  template <class R>
    requires detail::short_lived<R>
  processed_row(R&&, const sampling& = {}) = delete;  // the row would outlive its memory
  processed_row(std::span<const S> logits, const sampling& s = {})
      : softmax_row<S>(logits, softmax_row<S>::usable(s.temperature) ? s.temperature : 1),
        sampling_(s) {}

  // Whether one token gets all of the probability.
  bool greedy() const {
    return sampling_.valid() && !softmax_row<S>::usable(sampling_.temperature);
  }

  // The results of the pass.
  struct facts : softmax_row<S>::facts {
    detail::kept_places places;  // if it is known
    // Whether the filters keep so few tokens that may_keep() tells them from most others.
    bool keeps_few() const { return places.shift > 0; }
    // Whether v or one of the 15 tokens after it may be kept. v: a multiple of 16.
    SPECAGG_INLINE bool may_keep(std::size_t v) const { return places.may_hold(v); }
    bool may_keep(std::size_t begin, std::size_t count) const {
      return places.may_hold(begin, count);
    }
  };

 protected:
  status find_facts(bool confidence, facts& found, row_sums* blocks = nullptr) const {
    if (!sampling_.valid()) return status::invalid_parameter;
    const status s =
        softmax_row<S>::usable(sampling_.temperature) ? filter(found) : take_largest(found);
    return s != status::ok ? s : this->find_sums(confidence, found, blocks);
  }

 private:
  status take_largest(facts& found) const {
    const auto top = find_largest(this->logits(), this->size());
    if (!top.valid) return status::invalid_row;
    const auto id = token_id(top.id);
    found.restriction = {top.logit, top.id};
    found.sampled = {top.logit, 1, 1};
    found.places = {{&id, 1}, this->size()};
    return status::ok;
  }
  status filter(facts& found) const {
    if (!sampling_.filters(this->size())) return status::ok;
    shortlist<T> list;
    logits_in_memory<S> row(this->logits(), this->size());
    return detail::find_kept(row, sampling_, this->temperature(), list, found);
  }

  sampling sampling_;
};

SPECAGG_END
