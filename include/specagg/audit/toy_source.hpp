// SPDX-License-Identifier: Apache-2.0
// A model small enough to enumerate, for tests of decoders, and for engines that test their own decoders.
#pragma once
#include <span>
#include <vector>

#include <specagg/logit_source.hpp>
#include <specagg/random.hpp>

SPECAGG_BEGIN

// The logits are a fixed pseudo-random function of (seed, the last `order` tokens). Order 0 does not depend on the
// context. The model keeps its context as a real model keeps its KV cache, so a decoder that forgets to roll back gets
// the rows of the wrong text. `misuses` counts calls that no correct decoder makes: rolling forward, tokens out of
// range, more rows than tokens.
template <class T = double>
class toy_source {
 public:
  using value_type = T;
  toy_source(std::size_t vocabulary, std::uint64_t seed, std::size_t order = 2, double spread = 3,
             std::size_t capacity = 4096)
      : vocabulary_(vocabulary), seed_(seed), order_(order), spread_(spread), capacity_(capacity) {}

  std::size_t vocab_size() const { return vocabulary_; }
  std::size_t capacity() const { return capacity_; }
  std::size_t position() const { return context_.size(); }
  status rollback(std::size_t position) {
    misuses += position > context_.size();
    context_.resize(position < context_.size() ? position : context_.size());
    return status::ok;
  }
  status extend(std::span<const token_id> tokens, std::span<T> logits) {
    const std::size_t rows = logits.size() / vocabulary_;
    if (rows > tokens.size() || logits.size() % vocabulary_ != 0) return ++misuses, status::invalid_parameter;
    if (context_.size() + tokens.size() > capacity_) return status::context_full;
    for (const token_id t : tokens)
      if (t < 0 || std::size_t(t) >= vocabulary_) return ++misuses, status::token_out_of_range;
    ++calls;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      context_.push_back(tokens[i]);
      if (const std::size_t behind = tokens.size() - i; behind <= rows)
        row(context_, logits.subspan((rows - behind) * vocabulary_, vocabulary_));
    }
    return status::ok;
  }
  // The logits that follow a context.
  void row(std::span<const token_id> context, std::span<T> logits) const {
    std::uint64_t key = seed_;
    for (std::size_t i = 0; i < order_; ++i) {
      const auto t = i < context.size() ? std::uint32_t(context[context.size() - 1 - i]) : 0xffffffffu;
      const auto r = philox({t, std::uint32_t(i), 0, 0}, key);
      key = std::uint64_t(r[1]) << 32 | r[0];
    }
    for (std::size_t v = 0; v < vocabulary_; ++v)
      logits[v] = T(spread_ * double(philox({std::uint32_t(v), 0, 1, 0}, key)[0]) * 0x1p-32);
  }
  std::size_t misuses = 0, calls = 0;

 private:
  std::size_t vocabulary_;
  std::uint64_t seed_;
  std::size_t order_;
  double spread_;
  std::size_t capacity_;
  std::vector<token_id> context_;
};

SPECAGG_END
