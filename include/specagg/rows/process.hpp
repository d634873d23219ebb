// SPDX-License-Identifier: Apache-2.0
// From logits to a row: processors (penalties, masks, biases) change the logits; temperature,
// top-k, top-p and min-p say which tokens of their softmax are kept.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <span>

#include <specagg/rows/distribution.hpp>
#include <specagg/kernel/select.hpp>

// Plain data: the same type in every translation unit.
namespace specagg {

// Applied in this order, each to the renormalised result of the step before; ties keep the lower
// ids.
struct sampling {
  double temperature = 1;   // below 3e35; 0: the largest logit, lowest id
  std::uint32_t top_k = 0;  // 0: off
  double top_p = 1;         // (0, 1]: the shortest prefix of the sorted row with at least this mass
  double min_p = 0;         // [0, 1]: tokens with at least this fraction of the largest probability

  // the least temperature that softmax_row<float> refuses (rows/distribution.hpp)
  static constexpr double least_refused_temperature = 0x1.fffffep117;

  SPECAGG_FUNCTION SPECAGG_LANE bool valid() const {
    return temperature >= 0 && temperature < least_refused_temperature && top_p > 0 && top_p <= 1 &&
           min_p >= 0 && min_p <= 1;
  }
  // Whether a filter may leave out tokens of a row of V logits.
  SPECAGG_FUNCTION SPECAGG_LANE bool filters(std::size_t V) const {
    return (top_k > 0 && top_k < V) || top_p != 1 || min_p != 0;
  }
};

}  // namespace specagg

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

// The places where a row may have mass: 256 bits. All bits stand for the same number of tokens, a
// power of two of at least 16.
struct kept_places {
  std::array<std::uint64_t, 4> bits = {};
  int shift = 0;  // a bit is for 2^shift tokens; 0: nothing is known
  kept_places() = default;
  SPECAGG_FUNCTION kept_places(std::span<const token_id> ids, std::size_t vocabulary) : shift(4) {
    while (vocabulary > std::size_t(256) << shift) ++shift;
    for (const token_id v : ids)
      bits[std::size_t(v) >> shift >> 6] |= std::uint64_t(1) << (std::size_t(v) >> shift & 63);
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

// Finds the tokens that top-k, top-p and min-p keep of a row of logits, whoever reads it
// (kernel/select.hpp), at a usable temperature. Writes found.restriction; if `list` holds all kept
// tokens, also found.sampled and found.places. Notes the sum at temperature 1 if it was computed.
// `list` must be empty.
template <class Row, class List, class Facts, class T = typename Row::value_type>
SPECAGG_FUNCTION status find_kept(const Row& row, const sampling& s, double temperature, List& list,
                                  Facts& found) {
  const std::size_t k = s.top_k;
  const bool top_k = k > 0 && k < row.size();
  bool listed = false;  // `list` has all kept tokens but those that weigh `above`
  double above = 0;
  cutoff<T> cut;
  softmax_sum<T> kept;
  if (top_k && k <= List::capacity / 2) {
    if (!row.list_largest(k, list, cut)) return status::invalid_row;
    kept = row_of(list).sum_exponentials(temperature);
    listed = true;
  } else {
    kept = row.sum_exponentials(temperature);
    if (!(kept.total > 0)) return status::invalid_row;
    if constexpr (requires { found.at_temperature_1; })
      if (temperature == 1) found.at_temperature_1 = {kept.max, 1, kept.total};
    if (top_k) {
      cut = row.shortest_prefix(cut, double(k), count_of_tokens());
      kept = row.sum_exponentials(temperature, cut);
    }
  }
  const softmax_factors<T> weight(kept.max, temperature, 1);
  const auto weight_of = [&](T x) {
    return double(weight(vec<T, 1>(x) - vec<T, 1>(weight.max)).v);
  };
  if (s.top_p < 1) {
    const double enough = uncontracted(vec<double, 1>(s.top_p) * vec<double, 1>(kept.total)).v;
    if (!listed && !top_k) listed = list_crossing(row, kept, temperature, enough, list, above);
    // `enough` within round-off of everything can lie beyond the listed tokens; then the whole row
    // decides.
    if (listed && !(mass_of(row_of(list), weight) > 0)) listed = false;
    if (listed) cut = list.shorten(enough - above, weight_of);
    else cut = row.shortest_prefix(cut, enough, weight_of);
  }
  if (s.min_p > 0) {
    const T lowest = smallest_with(row, weight, s.min_p);
    if (lowest > cut.logit) {
      cut = {lowest};
      listed = false;
    }
  }
  found.restriction = cut;
  if (!listed) return status::ok;
  found.sampled = {weight.max, temperature, above + mass_of(row_of(list), weight)};
  if constexpr (requires { found.places; })
    if (above == 0 && list.size <= 64)
      found.places = {std::span(list.ids).first(list.size), row.size()};
  return status::ok;
}

}  // namespace detail

// A row of logits as the engine samples from it. normalise() finds what the filters keep:
// temperature 0 in one pass, top-k in one pass and a part of another; top-p in the normaliser's
// pass and another one or few over the logits.
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
  normalised_row<processed_row> normalise(bool confidence = false) const {
    return normalised_row<processed_row>(*this, confidence);
  }
  // For normalised_row.
  status find(bool confidence, facts& found) const {
    if (!sampling_.valid()) return status::invalid_parameter;
    const status s =
        softmax_row<S>::usable(sampling_.temperature) ? filter(found) : take_largest(found);
    return s != status::ok ? s : this->find_sums(confidence, found);
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
    return detail::find_kept(logits_in_memory<S>{this->logits(), this->size()}, sampling_,
                             this->temperature(), list, found);
  }

  sampling sampling_;
};

SPECAGG_END
