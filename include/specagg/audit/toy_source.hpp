// SPDX-License-Identifier: Apache-2.0
// A model small enough to enumerate, for tests of decoders, and for engines that test their own
// decoders.
#pragma once
#include <span>
#include <vector>

#include <specagg/logit_source.hpp>
#include <specagg/random.hpp>

SPECAGG_BEGIN

// The logits are a fixed pseudo-random function of (seed, the last `order` tokens). Order 0 does
// not depend on the context. The model keeps its context as a real model keeps its KV cache, so a
// decoder that forgets to roll back gets the rows of the wrong text. `misuses` counts calls that no
// correct decoder makes: rolling forward, tokens out of range, more rows than tokens, a tree that
// was not ended, nodes to keep that are not a path.
template <class T = double>
class toy_source {
 public:
  using value_type = T;
  toy_source(std::size_t vocabulary, std::uint64_t seed, std::size_t order = 2, double spread = 3,
             std::size_t capacity = 4096)
      : vocabulary_(vocabulary), seed_(seed), order_(order), spread_(spread), capacity_(capacity) {}

  std::size_t vocab_size() const { return vocabulary_; }
  std::size_t capacity() const { return capacity_; }
  std::size_t position() const { return context_.size() + tree_.size(); }
  status rollback(std::size_t n) {
    misuses += n > position() || (!tree_.empty() && n > context_.size());
    tree_.clear();
    context_.resize(n < context_.size() ? n : context_.size());
    return status::ok;
  }
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<T> logits) {
    const std::size_t rows = logits.size() / vocabulary_, first = tree_.size() + 1;
    if (rows > tokens.size() || parents.size() != tokens.size()) {
      ++misuses;
      return status::invalid_parameter;
    }
    if (position() + tokens.size() > capacity_) return status::context_full;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] < 0 || std::size_t(tokens[i]) >= vocabulary_ || parents[i] >= first + i) {
        ++misuses;
        return status::token_out_of_range;
      }
    ++calls;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tree_.push_back({tokens[i], parents[i]});
      if (const std::size_t after = tokens.size() - i; after <= rows)
        row(path_to(first + i), logits.subspan((rows - after) * vocabulary_, vocabulary_));
    }
    return status::ok;
  }
  status keep_path(std::span<const std::uint32_t> nodes) {
    std::uint32_t last = 0;
    for (const std::uint32_t n : nodes) {
      if (n == 0 || n > tree_.size() || tree_[n - 1].parent != last) {
        ++misuses;
        return status::invalid_parameter;
      }
      last = n;
    }
    context_ = path_to(last);
    tree_.clear();
    return status::ok;
  }
  status extend(std::span<const token_id> tokens, std::span<T> logits) {
    const std::size_t rows = logits.size() / vocabulary_;
    if (rows > tokens.size() || logits.size() % vocabulary_ != 0 || !tree_.empty()) {
      ++misuses;
      return status::invalid_parameter;
    }
    if (context_.size() + tokens.size() > capacity_) return status::context_full;
    for (const token_id t : tokens)
      if (t < 0 || std::size_t(t) >= vocabulary_) {
        ++misuses;
        return status::token_out_of_range;
      }
    ++calls;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      context_.push_back(tokens[i]);
      if (const std::size_t after = tokens.size() - i; after <= rows)
        row(context_, logits.subspan((rows - after) * vocabulary_, vocabulary_));
    }
    return status::ok;
  }
  // The logits that follow a context.
  void row(std::span<const token_id> context, std::span<T> logits) const {
    std::uint64_t key = seed_;
    for (std::size_t i = 0; i < order_; ++i) {
      const auto t =
          i < context.size() ? std::uint32_t(context[context.size() - 1 - i]) : 0xffffffffu;
      const auto r = philox({t, std::uint32_t(i), 0, 0}, key);
      key = std::uint64_t(r[1]) << 32 | r[0];
    }
    for (std::size_t v = 0; v < vocabulary_; ++v)
      logits[v] = T(spread_ * double(philox({std::uint32_t(v), 0, 1, 0}, key)[0]) * 0x1p-32);
  }
  std::size_t misuses = 0, calls = 0;

 private:
  struct node {
    token_id token;
    std::uint32_t parent;
  };
  std::vector<token_id> path_to(std::uint64_t n) const {  // the context and the path to node n
    if (n == 0) return context_;
    std::vector<token_id> path = path_to(tree_[n - 1].parent);
    path.push_back(tree_[n - 1].token);
    return path;
  }
  std::size_t vocabulary_;
  std::uint64_t seed_;
  std::size_t order_;
  double spread_;
  std::size_t capacity_;
  std::vector<token_id> context_;
  std::vector<node> tree_;
};

SPECAGG_END
