// SPDX-License-Identifier: Apache-2.0
// The state of one text in the layers (layers.hpp): keys and values, a tree, hidden states.
#pragma once
#include <specagg/backend/cpu/activations.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <specagg/backend/cpu/kv_cache.hpp>
#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/backend/cpu/tree_paths.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

class layer_stack;

// The constructor allocates no pages of keys and values (kv_cache.hpp), and nothing for trees and
// hidden states.
class sequence {
 public:
  // w must outlive the object. capacity: the number of positions to keep (see checked_capacity,
  // which may throw).
  sequence(const layer_weights& w, std::size_t capacity)
      : capacity_(checked_capacity(w, capacity)),
        dim_(w.dim),
        vocab_(w.vocab),
        cache_(w.layers.size(), w.kv_heads, w.head_dim, capacity_, w.kv_memory) {}

  std::size_t position() const { return position_; }
  std::size_t capacity() const { return capacity_; }

  // While *flag is true, a call that appends ends within one layer. Null: never.
  void stop_when(const std::atomic<bool>* flag) { stop_ = flag; }
  // Whether the flag is true.
  bool stopped() const { return stop_ && stop_->load(std::memory_order_relaxed); }

  // From now on keeps the hidden state of every position that is computed: dim floats each.
  void keep_hidden() {
    if (keeps_hidden()) return;
    hidden_ = activation_buffer(capacity_, dim_);
    hidden_begin_ = position_;
  }
  bool keeps_hidden() const { return hidden_.has_value(); }
  // The input of the output matrix (after the final norm) at position i: dim floats, until the
  // position is removed. Empty if it was not kept, and for a node of a tree.
  std::span<const float> hidden(std::size_t i) const {
    const bool kept =
        hidden_ && i >= hidden_begin_ && i < (tree_.size() > 0 ? tree_begin_ : position_);
    return {kept ? hidden_->data() + i * padded(dim_) : nullptr, kept ? dim_ : 0};
  }
  // The input of the output matrix for a node of the tree, numbered from 1 as in parents. Empty if
  // there is no such node, or its state was not kept.
  std::span<const float> node_hidden(std::size_t node) const {
    const bool kept = hidden_ && node - 1 < tree_.size() && tree_begin_ + node > hidden_begin_;
    return {kept ? hidden_->data() + (tree_begin_ + node - 1) * padded(dim_) : nullptr,
            kept ? dim_ : 0};
  }

  // The text and tree of `other`, with the same weights: shares its keys and values, copies its
  // hidden states, and computes nothing. context_full: nothing has changed.
  status adopt(const sequence& other) {
    if (other.position_ > capacity_) return status::context_full;
    if (&other == this) return status::ok;
    tree_paths tree = other.tree_;
    tree_ = std::move(tree);
    tree_begin_ = other.tree_begin_;
    position_ = other.position_;
    cache_.share(other.cache_, position_);
    give_back();
    hidden_begin_ = position_;
    if (hidden_ && other.hidden_) {
      hidden_begin_ = std::min(other.hidden_begin_, position_);
      std::copy_n(other.hidden_->data(), position_ * padded(dim_), hidden_->data());
    }
    return status::ok;
  }

  // A tree (logit_source.hpp): while it has nodes, further nodes are appended. add_nodes: adds the
  // nodes of the next call.
  std::size_t nodes() const { return tree_.size(); }
  status add_nodes(std::span<const std::uint32_t> parents) {
    if (parents.size() > capacity_ - position_) return status::context_full;
    const auto before = tree_.size();
    for (std::size_t i = 0; i < parents.size(); ++i)
      if (parents[i] > before + i) return status::invalid_parameter;
    if (before == 0) tree_begin_ = position_;
    for (const auto parent : parents) tree_.add(parent);
    return status::ok;
  }
  void cut_nodes(std::size_t kept) {  // keeps the first nodes
    if (kept >= tree_.size()) return;
    tree_.cut(kept);
    position_ = std::min(position_, tree_begin_ + kept);
    hidden_begin_ = std::min(hidden_begin_, position_);
  }
  status keep_path(std::span<const std::uint32_t> nodes) {
    if (!tree_.is_path(nodes)) return status::invalid_parameter;
    // a copy may share these pages
    if (!nodes.empty()) cache_.open(tree_begin_, tree_begin_ + nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto from = tree_begin_ + nodes[i] - 1, to = tree_begin_ + i, width = padded(dim_);
      if (from == to) continue;
      cache_.move(from, to);
      if (hidden_) std::copy_n(hidden_->data() + from * width, dim_, hidden_->data() + to * width);
    }
    if (tree_.size() > 0) {
      position_ = tree_begin_ + nodes.size();
      hidden_begin_ = std::min(hidden_begin_, position_);
    }
    tree_.cut(0);
    return status::ok;
  }

  // Takes the pages of the next `count` positions, which must be done before they are appended.
  // std::bad_alloc: nothing that can be seen has changed.
  void open(std::size_t count) { cache_.open(position_, position_ + count); }
  // Takes the pages of the first `count` positions, and keeps them from now on. context_full:
  // nothing has changed.
  status reserve(std::size_t count) {
    if (count > capacity_) return status::context_full;
    if (count > position_) open(count - position_);
    reserved_ = count;
    return status::ok;
  }
  // Removes all positions from `position` on, and a tree. All of their pages but one are given
  // back.
  void rollback(std::size_t position) {
    if (tree_.size() > 0) position_ = tree_begin_;
    tree_.cut(0);
    position_ = std::min(position, position_);
    hidden_begin_ = std::min(hidden_begin_, position_);
    give_back();
  }

  // Whether layer_stack::append takes `count` inputs and writes these rows.
  status takes(std::size_t count, std::span<float> logits) const {
    const auto rows = logits.size() / vocab_;
    if (rows * vocab_ != logits.size() || rows > count) return status::invalid_parameter;
    return count > capacity_ - position_ ? status::context_full : status::ok;
  }

 private:
  friend layer_stack;

  // The t-th input that is appended now is stored at position_ + t. It sees this many positions,
  // its own included: all before it, or in a tree the text and its path. Its own place in the text
  // is the last of them.
  std::size_t seen_by(std::size_t t) const {
    return tree_.size() == 0 ? position_ + t + 1
                             : tree_begin_ + tree_.path(position_ + t - tree_begin_ + 1).size();
  }

  // The next page is kept, because drafted tokens come and go.
  void give_back() { cache_.cut(std::max(position_ + kv_cache::page_positions, reserved_)); }

  std::size_t capacity_, dim_, vocab_, position_ = 0, reserved_ = 0;
  std::size_t tree_begin_ = 0;  // the position of the first node
  tree_paths tree_;
  kv_cache cache_;
  // [capacity][dim]: those of positions from hidden_begin_ on
  std::optional<activation_buffer> hidden_;
  std::size_t hidden_begin_ = 0;
  const std::atomic<bool>* stop_ = nullptr;
};

}  // namespace cpu
SPECAGG_END
