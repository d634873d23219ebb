// SPDX-License-Identifier: Apache-2.0
// A draft head on the CPU: layers (layers.hpp) that read the target's hidden states and the
// embeddings of the tokens that follow them. The bits of its rows are a function of the weights,
// the states and the tokens alone.
#pragma once
#include <specagg/backend/cpu/layers.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include <specagg/backend/cpu/head_weights.hpp>

SPECAGG_BEGIN
namespace cpu {

// A TreeDraftHead (draft/head.hpp). One sequence. Memory is allocated as by a llama (llama.hpp).
//   x      = W [h ; e(y)]        h the target's state, e its embedding of the token y that follows
//   hidden = norm(layers(x))     which stands for the target's state after y
//   row    = output hidden       over the head's own vocabulary: weights().map has the
//                               target's tokens
class draft_head {
 public:
  using value_type = float;

  // Throws specagg::error: the head was made for another target; and as the constructor of a llama.
  draft_head(std::shared_ptr<const head_weights> weights,
             std::shared_ptr<const llama_weights> target,
             std::shared_ptr<thread_pool> pool = nullptr, std::size_t capacity = 0)
      : w_(std::move(weights)),
        target_((w_->check_target(*target), std::move(target))),
        text_(*w_, capacity),
        stack_(*w_, std::move(pool), capacity, &w_->input),
        pairs_(stack_.chunk(), 2 * w_->dim) {
    text_.keep_hidden();
  }
  draft_head(draft_head&&) = default;

  std::size_t vocab_size() const { return w_->vocab; }
  std::size_t hidden_size() const { return w_->dim; }
  std::size_t position() const { return text_.position(); }
  std::size_t capacity() const { return text_.capacity(); }
  std::span<const float> hidden(std::size_t i) const { return text_.hidden(i); }
  const head_weights& weights() const { return *w_; }
  // As of a llama (llama.hpp).
  void stop_when(const std::atomic<bool>* flag) { text_.stop_when(flag); }

  status extend(std::span<const token_id> tokens, std::span<const float> states,
                std::span<float> logits) {
    if (text_.nodes() > 0) return status::invalid_parameter;  // end the tree first
    return append(tokens, states, logits);
  }

  // The members of a TreeDraftHead. Memory for a tree is allocated if none was as large before.
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<const float> states, std::span<float> logits) {
    if (parents.size() != tokens.size()) return status::invalid_parameter;
    const auto before = text_.nodes();
    status s = text_.add_nodes(parents);
    try {
      if (s == status::ok) s = append(tokens, states, logits);
    } catch (const std::bad_alloc&) {
      text_.cut_nodes(before);
      throw;
    }
    if (s != status::ok) text_.cut_nodes(before);
    return s;
  }
  std::span<const float> node_hidden(std::uint32_t node) const { return text_.node_hidden(node); }
  void cut_tree(std::size_t nodes) { text_.cut_nodes(nodes); }
  status keep_path(std::span<const std::uint32_t> nodes) { return text_.keep_path(nodes); }

  status rollback(std::size_t position) {
    text_.rollback(position);
    return status::ok;
  }

 private:
  status append(std::span<const token_id> tokens, std::span<const float> states,
                std::span<float> logits) {
    const auto dim = w_->dim;
    if (states.size() != tokens.size() * dim) return status::invalid_parameter;
    if (const status s = text_.takes(tokens.size(), logits); s != status::ok) return s;
    for (const token_id token : tokens)
      if (token < 0 || std::size_t(token) >= target_->vocab) return status::token_out_of_range;
    text_.open(tokens.size());
    return stack_.append(text_, tokens.size(), logits, [&](std::size_t begin, activations x) {
      auto pairs = pairs_.top(std::size_t(x.rows()));
      for (Eigen::Index t = 0; t < x.rows(); ++t) {
        const auto i = begin + std::size_t(t);
        std::copy_n(states.data() + i * dim, dim, &pairs(t, 0));
        read_row(target_->embedding, std::size_t(tokens[i]), &pairs(t, Eigen::Index(dim)));
      }
      stack_.product(w_->input, pairs, x);
    });
  }

  std::shared_ptr<const head_weights> w_;
  std::shared_ptr<const llama_weights> target_;
  sequence text_;
  layer_stack stack_;
  activation_buffer pairs_;  // [h ; e], [chunk][2 dim]
};

}  // namespace cpu
SPECAGG_END
