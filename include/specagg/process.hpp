// SPDX-License-Identifier: Apache-2.0
// From logits to a row: processors (penalties, masks, biases) change the logits; temperature, top-k, top-p and min-p
// say which tokens of their softmax are kept.
#pragma once
#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <span>

#include <specagg/distribution.hpp>

SPECAGG_BEGIN

// ---- processors ---------------------------------------------------------------------------------------------------

// A processor is a function of the text so far, the draft included: it changes at every draft position, applies to q
// and p alike, and is undone when drafts are rolled back. apply() edits a row of logits in place for the next position;
// push() and pop() follow the text. Masks set -inf.
template <class P>
concept Processor = requires(P& p, token_id t, std::span<float> logits) {
  p.push(t);
  p.pop();
  p.apply(logits);
};

struct no_processor {
  void push(token_id) {}
  void pop() {}
  template <class T>
  void apply(std::span<T>) const {}
};

struct penalty_options {
  double repetition =
      1;  // > 0; logits of tokens in the text are divided by it if positive, multiplied if negative (CTRL)
  double presence = 0;   // taken off the logits of tokens in the text
  double frequency = 0;  // taken off once for every occurrence
  bool none() const { return repetition == 1 && presence == 0 && frequency == 0; }
};

// The three penalties in use everywhere. Counts tokens in memory of the caller: two spans of V elements and one of as
// many elements as the text may grow. Tokens outside 0..V-1 are ignored, and so are those of a text that outgrows it.
class penalties {
 public:
  penalties() = default;
  penalties(penalty_options options, std::span<std::uint32_t> counts, std::span<token_id> distinct,
            std::span<token_id> text)
      : options_(options),
        counts_(counts.first(std::min(counts.size(), distinct.size()))),
        distinct_(distinct),
        text_(text) {
    std::ranges::fill(counts_, 0u);
  }
  void push(token_id t) {
    if (size_++ >= text_.size()) return;
    text_[size_ - 1] = t;
    if (t < 0 || std::size_t(t) >= counts_.size()) return;
    if (counts_[std::size_t(t)]++ == 0) distinct_[distinct_size_++] = t;
  }
  void pop() {  // undoes the last push
    if (size_ == 0 || --size_ >= text_.size()) return;
    const token_id t = text_[size_];
    if (t < 0 || std::size_t(t) >= counts_.size()) return;
    if (--counts_[std::size_t(t)] == 0) --distinct_size_;  // last in, first out: it is the last of the list
  }
  template <class T>
  void apply(std::span<T> logits) const {
    if (options_.none()) return;
    for (std::size_t i = 0; i < distinct_size_; ++i) {
      const auto v = std::size_t(distinct_[i]);
      if (v >= logits.size()) continue;
      double l = double(logits[v]);
      l = l > 0 ? l / options_.repetition : l * options_.repetition;
      detail::settle_scalar(l);
      l = fma(-options_.frequency, double(counts_[v]), l - options_.presence);
      logits[v] = T(l);
    }
  }

 private:
  penalty_options options_;
  std::span<std::uint32_t> counts_;
  std::span<token_id> distinct_, text_;
  std::size_t distinct_size_ = 0, size_ = 0;
};

// ---- temperature and filters --------------------------------------------------------------------------------------

// Applied in this order, each to the renormalised result of the one before; ties keep the lower ids.
struct sampling {
  double temperature = 1;   // 0: the largest logit, lowest id
  std::uint32_t top_k = 0;  // 0: off
  double top_p = 1;         // (0, 1]: the shortest prefix of the sorted row with at least this mass
  double min_p = 0;         // [0, 1]: tokens with at least this fraction of the largest probability

  bool valid() const {
    return temperature >= 0 && temperature < std::numeric_limits<float>::max() && top_p > 0 && top_p <= 1 &&
           min_p >= 0 && min_p <= 1;
  }
};

namespace detail {

// Orders floats as unsigned integers, larger float, larger integer; -0 and +0 are one value.
template <class T>
bits_of<T> ordered(T x) {
  const auto b = bit_cast<bits_of<T>>(x + T(0));
  constexpr auto sign = bits_of<T>(1) << (8 * sizeof(T) - 1);
  return b & sign ? bits_of<T>(~b) : bits_of<T>(b | sign);
}
template <class T>
T unordered(bits_of<T> k) {
  constexpr auto sign = bits_of<T>(1) << (8 * sizeof(T) - 1);
  return bit_cast<T>(k & sign ? bits_of<T>(k ^ sign) : bits_of<T>(~k));
}

// The shortest prefix, in the order (larger logit, then lower id), of the tokens kept by `cut` whose weights sum to at
// least `enough`. Radix selection on the logits' bits, 11 at a time: nothing is sorted or stored. Weights >= 0.
template <class T, class Weight>
cutoff<T> shortest_prefix(const T* logits, std::size_t size, const cutoff<T>& cut, double enough, Weight weight) {
  constexpr int width = 8 * sizeof(T), step = 11;
  bits_of<T> prefix = 0;
  double above = 0;  // weight of the tokens known to be in the prefix
  for (int left = width; left > 0;) {
    const int take = std::min(step, left);
    const int shift = left - take;
    double mass[1 << step] = {};
    for (std::size_t v = 0; v < size; ++v) {
      const auto k = ordered(logits[v]);
      if ((left < width && (k >> left) != (prefix >> left)) || !cut.keeps(logits[v], v)) continue;
      mass[(k >> shift) & ((1u << take) - 1)] += weight(logits[v]);
    }
    double reached = above;
    std::uint32_t crossing =
        0;  // the bucket in which `enough` is reached; if round-off leaves none, the last with weight
    for (std::uint32_t bucket = 1u << take; bucket-- > 0;) {
      if (!(mass[bucket] > 0)) continue;
      crossing = bucket, above = reached;
      reached += mass[bucket];
      if (reached >= enough) break;
    }
    prefix |= bits_of<T>(crossing) << shift;
    left = shift;
  }
  const T logit = unordered<T>(prefix);  // all tokens above it are in; of its ties, as many as are needed
  cutoff<T> result{logit, 0};
  for (std::size_t v = 0; v < size; ++v) {
    if (logits[v] != logit || !cut.keeps(logits[v], v)) continue;
    result.last = v;
    above += weight(logits[v]);
    if (above >= enough) break;
  }
  return result;
}

}  // namespace detail

// A row of logits as the engine samples from it. normalise() finds what the filters keep (each one pass or three), then
// the normaliser of what is left.
template <class T>
class processed_row : public softmax_row<T> {
 public:
  processed_row() = default;
  template <class R>
    requires detail::short_lived<R>
  processed_row(R&&, const sampling& = {}) = delete;  // the row would outlive its memory
  processed_row(std::span<const T> logits, const sampling& s = {})
      : softmax_row<T>(logits, softmax_row<T>::usable(s.temperature) ? s.temperature : 1), sampling_(s) {}

  status normalise(bool confidence = false) {
    if (!sampling_.valid()) return status::invalid_parameter;
    if (!filtered_) {
      const T* l = this->logits();
      const std::size_t size = this->size();
      const auto all = sum_exponentials(l, size, this->temperature());
      if (!(all.total > 0)) return status::invalid_row;
      const auto scale = exp_scale<T>::of_temperature(this->temperature());
      const auto weight = [&](T x) { return double(exp_scaled(vec<T, 1>(x) - vec<T, 1>(all.max), scale).v); };
      cutoff<T> cut;
      const auto count = [](T) { return 1.0; };
      if (!softmax_row<T>::usable(sampling_.temperature)) cut = detail::shortest_prefix(l, size, cut, 1, count);
      else {
        if (sampling_.top_k > 0 && sampling_.top_k < size)
          cut = detail::shortest_prefix(l, size, cut, sampling_.top_k, count);
        if (sampling_.top_p < 1) {
          double kept = 0;
          for (std::size_t v = 0; v < size; ++v)
            if (cut.keeps(l[v], v)) kept += weight(l[v]);
          cut = detail::shortest_prefix(l, size, cut, sampling_.top_p * kept, weight);
        }
        if (sampling_.min_p > 0) {  // relative to the largest weight, which is exactly 1
          T lowest = all.max;
          for (std::size_t v = 0; v < size; ++v)
            if (l[v] < lowest && weight(l[v]) >= sampling_.min_p) lowest = l[v];
          if (lowest > cut.logit) cut = {lowest};
        }
      }
      this->restrict_to(cut);
      filtered_ = true;
    }
    return softmax_row<T>::normalise(confidence);
  }

 private:
  sampling sampling_;
  bool filtered_ = false;
};

SPECAGG_END
