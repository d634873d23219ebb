// SPDX-License-Identifier: Apache-2.0
// The Llama architecture on the CPU as a source of logits: embeddings of tokens, layers
// (layers.hpp), a tied or separate output matrix. The bits of the logits are a function of the
// weights and the tokens alone.
#pragma once
#include <specagg/backend/cpu/layers.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/thread_pool.hpp>
#include <specagg/config.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

// One sequence: the weights, a KV cache, scratch memory. The constructor allocates all memory;
// extend() allocates none.
class llama {
 public:
  using value_type = float;

  // capacity: the number of positions to keep (see checked_capacity, which may throw). Sessions
  // that share a pool must not run at the same time. Without a pool everything runs on the calling
  // thread. Throws specagg::error if quantised weights were not repacked.
  explicit llama(std::shared_ptr<const llama_weights> weights,
                 std::shared_ptr<thread_pool> pool = nullptr, std::size_t capacity = 0)
      : w_(std::move(weights)), stack_(*w_, std::move(pool), capacity) {
    tokens_.reserve(stack_.capacity());
  }

  // A copy continues the same text on the same pool, with its own cache. It has no stop flag.
  llama(const llama& other) : llama(other.w_, other.stack_.pool(), other.capacity()) {
    if (other.stack_.keeps_hidden()) keep_hidden();
    (void)adopt(other);
  }
  llama(llama&&) = default;
  llama& operator=(llama&&) = default;

  // Replaces its text by that of `other`, a session with the same weights: copies the keys and
  // values, and computes nothing. context_full, or invalid_parameter (other weights, a tree):
  // nothing has changed. Several threads may copy from `other` at once.
  status adopt(const llama& other) {
    if (other.w_ != w_) return status::invalid_parameter;
    const status s = stack_.adopt(other.stack_);
    if (s == status::ok) {
      tokens_ = other.tokens_;
      nodes_.clear();
    }
    return s;
  }

  std::size_t vocab_size() const { return w_->vocab; }
  std::size_t position() const { return stack_.position(); }
  std::size_t capacity() const { return stack_.capacity(); }
  std::span<const token_id> tokens() const { return tokens_; }
  // The weights, which the session keeps alive; shared_weights() shares them with others.
  const llama_weights& weights() const { return *w_; }
  const std::shared_ptr<const llama_weights>& shared_weights() const { return w_; }

  // The members of a HiddenSource (logit_source.hpp). keep_hidden(): from now on they are kept, dim
  // floats a position; before it is called there are none.
  void keep_hidden() { stack_.keep_hidden(); }
  std::size_t hidden_size() const { return w_->dim; }
  std::span<const float> hidden(std::size_t i) const { return stack_.hidden(i); }

  // While *flag is true, extend() stops within one layer. Any thread may set the flag. Null: never
  // stop.
  void stop_when(const std::atomic<bool>* flag) { stack_.stop_when(flag); }

  // Appends the tokens, and writes the logits after each of the last logits.size() / V tokens, one
  // row of V each. If `logits` is empty the output matrix is not read. On any status but ok nothing
  // was appended (and `logits` has no meaning).
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    if (stack_.nodes() > 0) return status::invalid_parameter;  // end the tree first
    const status s = append(tokens, logits);
    if (s == status::ok) tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return s;
  }

  // The members of a TreeSource (logit_source.hpp). A row has the bits that extend() gives for its
  // path alone. Memory for a tree is allocated if none was as large before.
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<float> logits) {
    if (parents.size() != tokens.size()) return status::invalid_parameter;
    const auto before = stack_.nodes();
    status s = stack_.add_nodes(parents);
    if (s != status::ok) return s;
    s = append(tokens, logits);
    if (s != status::ok) stack_.cut_nodes(before);
    else nodes_.insert(nodes_.end(), tokens.begin(), tokens.end());
    return s;
  }
  status keep_path(std::span<const std::uint32_t> nodes) {
    const status s = stack_.keep_path(nodes);
    if (s != status::ok) return s;
    for (const std::uint32_t n : nodes) tokens_.push_back(nodes_[n - 1]);
    nodes_.clear();
    return s;
  }
  // The hidden state of a node (numbered from 1, as in parents) while the tree stands: the bits
  // that hidden() gives for its path alone. Empty if there is no such node, or hidden states were
  // not kept when it was read.
  std::span<const float> node_hidden(std::uint32_t node) const { return stack_.node_hidden(node); }

  // Removes all tokens from `position` on. `position` must not be beyond the present one. O(1). A
  // tree is removed.
  status rollback(std::size_t position) {
    stack_.rollback(position);
    nodes_.clear();
    tokens_.resize(std::min(position, tokens_.size()));
    return status::ok;
  }

 private:
  status append(std::span<const token_id> tokens, std::span<float> logits) {
    if (const status s = stack_.takes(tokens.size(), logits); s != status::ok) return s;
    for (const token_id token : tokens)
      if (token < 0 || static_cast<std::size_t>(token) >= w_->vocab)
        return status::token_out_of_range;
    return stack_.append(tokens.size(), logits, [&](std::size_t begin, activations x) {
      for (Eigen::Index t = 0; t < x.rows(); ++t)
        read_row(w_->embedding,
                 static_cast<std::size_t>(tokens[begin + static_cast<std::size_t>(t)]), &x(t, 0));
    });
  }

  std::shared_ptr<const llama_weights> w_;
  layer_stack stack_;
  std::vector<token_id> tokens_, nodes_;  // of the context; of a tree
};

}  // namespace cpu
SPECAGG_END
