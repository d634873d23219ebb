// SPDX-License-Identifier: Apache-2.0
// The layers of the Llama architecture on the CPU, with the cache of one sequence: RMSNorm, rotary
// embedding on adjacent pairs, grouped-query attention, SwiGLU, a final norm, an output matrix.
// What goes into the first layer is the caller's: embeddings of tokens (llama.hpp) or more than
// these (draft_head.hpp).
//
// Logits are a function of the weights and the inputs alone. They have the same bits whether the
// inputs came one by one, all at once or after rollbacks, with any number of threads, any
// instruction set and any compiler. The order of every sum is fixed by absolute positions and
// columns. All other operations are exactly rounded (IEEE 754) or built from such operations. Every
// NaN of the logits and the hidden states is the same quiet NaN.
#pragma once
#include <specagg/backend/cpu/product.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/attention.hpp>
#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/kv_cache.hpp>
#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/thread_pool.hpp>
#include <specagg/backend/cpu/tree_paths.hpp>
#include <specagg/config.hpp>
#include <specagg/error.hpp>
#include <specagg/kernel/math.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

// One sequence: a KV cache and scratch memory. The constructor allocates all memory but that for
// trees and hidden states.
class layer_stack {
 public:
  // w must outlive the object. Without a pool everything runs on the calling thread. capacity: the
  // number of positions to keep (see checked_capacity, which may throw). further: a matrix that
  // product() is called with, or null. Throws specagg::error if quantised weights were not
  // repacked.
  layer_stack(const layer_weights& w, std::shared_ptr<thread_pool> pool, std::size_t capacity,
              const matrix* further = nullptr)
      : w_(&w),
        pool_(pool ? std::move(pool) : std::make_shared<thread_pool>(1)),
        capacity_(checked_capacity(w, capacity)),
        chunk_(std::min<std::size_t>(capacity_, 32)),
        x_(chunk_, w.dim),
        h_(chunk_, w.dim),
        qkv_(chunk_, (w.heads + 2 * w.kv_heads) * w.head_dim),
        attended_(chunk_, w.heads * w.head_dim),
        gate_(chunk_, w.ffn),
        up_(chunk_, w.ffn),
        rotations_(chunk_, 4 * w.frequencies.size()),
        scores_((chunk_ + together - 1) / together * together * w.heads, capacity_),
        cache_(w.layers.size(), w.kv_heads, w.head_dim, capacity_) {
    const auto cols = widest_quantised(w, further);
    rounding_ = rounding_buffer(chunk_, cols);
    if (cols > 0) ffn_rounding_ = rounding_buffer(chunk_, w.ffn);
  }

  std::size_t position() const { return position_; }
  std::size_t capacity() const { return capacity_; }
  // the most inputs that go through the layers together
  std::size_t chunk() const { return chunk_; }
  const std::shared_ptr<thread_pool>& pool() const { return pool_; }
  void stop_when(const std::atomic<bool>* flag) { stop_ = flag; }

  // From now on keeps the hidden state of every position that it computes: dim floats each.
  void keep_hidden() {
    if (keeps_hidden()) return;
    hidden_ = activation_buffer(capacity_, w_->dim);
    hidden_begin_ = position_;
  }
  bool keeps_hidden() const { return hidden_.has_value(); }
  // The input of the output matrix (after the final norm) at position i: dim floats, until the
  // position is removed. Empty if it was not kept, and for a node of a tree.
  std::span<const float> hidden(std::size_t i) const {
    const bool kept =
        hidden_ && i >= hidden_begin_ && i < (tree_.size() > 0 ? tree_begin_ : position_);
    return {kept ? hidden_->data() + i * padded(w_->dim) : nullptr, kept ? w_->dim : 0};
  }
  // That of a node of the tree, numbered from 1 as in parents; empty if there is none, or it was
  // not kept.
  std::span<const float> node_hidden(std::size_t node) const {
    const bool kept = hidden_ && node - 1 < tree_.size() && tree_begin_ + node > hidden_begin_;
    return {kept ? hidden_->data() + (tree_begin_ + node - 1) * padded(w_->dim) : nullptr,
            kept ? w_->dim : 0};
  }

  // The text of `other`, with the same weights: copies what is kept, and computes nothing.
  // context_full, or invalid_parameter (a tree): nothing has changed.
  status adopt(const layer_stack& other) {
    if (other.position_ > capacity_) return status::context_full;
    if (tree_.size() + other.tree_.size() > 0) return status::invalid_parameter;
    position_ = other.position_;
    cache_.copy(other.cache_, position_);
    hidden_begin_ = position_;
    if (hidden_ && other.hidden_) {
      hidden_begin_ = std::min(other.hidden_begin_, position_);
      std::copy_n(other.hidden_->data(), position_ * padded(w_->dim), hidden_->data());
    }
    return status::ok;
  }

  // A tree (logit_source.hpp): while it has nodes, append() computes its next ones. add_nodes:
  // those of the next call.
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
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto from = tree_begin_ + nodes[i] - 1, to = tree_begin_ + i, width = padded(w_->dim);
      if (from == to) continue;
      cache_.move(from, to);
      if (hidden_)
        std::copy_n(hidden_->data() + from * width, w_->dim, hidden_->data() + to * width);
    }
    if (tree_.size() > 0) {
      position_ = tree_begin_ + nodes.size();
      hidden_begin_ = std::min(hidden_begin_, position_);
    }
    tree_.cut(0);
    return status::ok;
  }

  // Removes all positions from `position` on, and a tree. O(1).
  void rollback(std::size_t position) {
    if (tree_.size() > 0) position_ = tree_begin_;
    tree_.cut(0);
    position_ = std::min(position, position_);
    hidden_begin_ = std::min(hidden_begin_, position_);
  }

  // Whether append() takes `count` inputs and writes these rows.
  status takes(std::size_t count, std::span<float> logits) const {
    const auto rows = logits.size() / w_->vocab;
    if (rows * w_->vocab != logits.size() || rows > count) return status::invalid_parameter;
    return count > capacity_ - position_ ? status::context_full : status::ok;
  }
  // Appends `count` positions, and writes the logits after each of the last logits.size() / V, one
  // row of V each. If `logits` is empty the output matrix is not read. read(i, x) writes the inputs
  // i, i + 1, ... as the rows of x, at most chunk(). stopped: nothing was appended.
  template <class Read>
  status append(std::size_t count, std::span<float> logits, Read&& read) {
    if (const status s = takes(count, logits); s != status::ok) return s;
    const auto first_row = count - logits.size() / w_->vocab, before = position_;
    for (std::size_t i = 0; i < count; i += chunk_) {
      const auto n = std::min(chunk_, count - i),
                 skip = first_row > i ? std::min(n, first_row - i) : 0;
      read(i, x_.top(n));
      if (!step(n, skip, logits.data() + (i + skip - first_row) * (skip < n ? w_->vocab : 0))) {
        position_ = before;
        return status::stopped;
      }
    }
    return status::ok;
  }

  // out = m y, for up to chunk() rows of y.
  void product(const matrix& m, const activations& y, activations& out) {
    const auto rounded = round(y, {&m});
    for_rows(m.rows, m.cols * static_cast<std::size_t>(y.rows()),
             [&](std::size_t begin, std::size_t end) {
               multiply(m, begin, end, y, rounded, out.data(), stride(out));
             });
  }

 private:
  // Runs body over `count` rows in parallel, in ranges of at least some 16,000 multiplications
  // (about a microsecond).
  template <class Body>
  void for_rows(std::size_t count, std::size_t cost, Body&& body) {
    pool_->for_ranges(count, padded(std::max<std::size_t>(1, 16384 / cost)),
                      std::forward<Body>(body));
  }

  bool stopped() const { return stop_ && stop_->load(std::memory_order_relaxed); }

  // Computes n positions from x_, and the rows of all but the first `skip`. False if it was
  // stopped. Then the keys and values from position_ on have no meaning.
  bool step(std::size_t n, std::size_t skip, float* logits) {
    auto x = x_.top(n), h = h_.top(n);
    find_rotations(n);
    for (std::size_t i = 0; i < w_->layers.size(); ++i) {
      if (stopped()) return false;
      add_attention(i, n, x, h);
      add_feed_forward(w_->layers[i], n, x, h);
    }
    if (stopped()) return false;
    position_ += n;
    const auto from = hidden_ ? 0 : skip;
    if (from == n) return true;
    normalise(x, from, w_->output_norm, h);
    if (hidden_)
      copy_with_one_nan(h.data(), n * stride(h), hidden_->data() + (position_ - n) * stride(h));
    if (skip < n)
      write_logits(
          activations(row(h, skip), static_cast<Eigen::Index>(n - skip), h.cols(), h.outerStride()),
          logits);
    return true;
  }

  // x += attention of layer i to the normalised x. h: temporary.
  void add_attention(std::size_t i, std::size_t n, activations& x, activations& h) {
    const auto& w = *w_;
    const auto& l = w.layers[i];
    auto qkv = qkv_.top(n), attended = attended_.top(n);
    normalise(x, 0, l.attention_norm, h);
    const auto rounded = round(h, {&l.q, &l.k, &l.v});
    for_rows((w.heads + 2 * w.kv_heads) * w.head_dim, w.dim * n,
             [&](std::size_t begin, std::size_t end) {
               std::size_t first = 0;  // the rows of q, k and v one after another
               for (const auto* m : {&l.q, &l.k, &l.v}) {
                 const auto from = std::max(begin, first), to = std::min(end, first + m->rows);
                 if (from < to)
                   multiply(*m, from - first, to - first, h, rounded, qkv.data() + first,
                            stride(qkv));
                 first += m->rows;
               }
             });
    pool_->for_ranges(w.heads + w.kv_heads, 1 + 2048 / (w.head_dim * n),
                      [&](std::size_t begin, std::size_t end) {
                        for (auto head = begin; head < end; ++head) rotate_head(i, head, n, qkv);
                      });
    const auto groups = (n + together - 1) / together;
    const auto cost =
        (position_ + n) * w.head_dim * (w.heads / w.kv_heads) * std::min(n, together) * 2;
    pool_->for_ranges(
        groups * w.kv_heads, 1 + 16384 / cost, [&](std::size_t begin, std::size_t end) {
          for (auto j = begin; j < end; ++j) {
            const auto first = j / w.kv_heads * together;
            attend(i, j % w.kv_heads, first, std::min(n, first + together), begin, qkv, attended);
          }
        });
    add_product(l.output, attended, round(attended, {&l.output}), h, x);
  }

  // x += feed-forward network of the normalised x. h: temporary.
  void add_feed_forward(const layer_weights::layer& l, std::size_t n, activations& x,
                        activations& h) {
    const auto& w = *w_;
    auto gate = gate_.top(n), up = up_.top(n);
    normalise(x, 0, l.ffn_norm, h);
    const auto rounded = round(h, {&l.gate, &l.up});
    const auto blocks = (w.ffn + quantised_block - 1) / quantised_block;
    pool_->for_ranges(blocks, 1 + 256 / (w.dim * n), [&](std::size_t first, std::size_t last) {
      const auto begin = first * quantised_block, end = std::min(w.ffn, last * quantised_block);
      multiply(l.gate, begin, end, h, rounded, gate.data(), stride(gate));
      multiply(l.up, begin, end, h, rounded, up.data(), stride(up));
      for (std::size_t t = 0; t < n; ++t)
        for (auto c = begin; c < end; c += 16) {  // after the last row: zeros
          const auto g = lanes::load(row(gate, t) + c), u = lanes::load(row(up, t) + c);
          (g * u / (lanes(1) + exp(-g))).store(row(gate, t) + c);
        }
      if (l.down.strips) ffn_rounding_.round(gate, first, last);
    });
    add_product(l.down, gate, l.down.strips ? ffn_rounding_.rows(n, blocks) : rounded_activations(),
                h, x);
  }

  // The logits after normalised activations.
  void write_logits(const activations& last, float* logits) {
    const auto& w = *w_;
    const auto n = static_cast<std::size_t>(last.rows());
    const auto rounded = round(last, {&w.output});
    for_rows(w.vocab, w.dim * n, [&](std::size_t begin, std::size_t end) {
      multiply(w.output, begin, end, last, rounded, logits, w.vocab);
      for (auto* row = logits + begin; row < logits + n * w.vocab; row += w.vocab)
        copy_with_one_nan(row, end - begin, row);
    });
  }

  static std::size_t stride(const activations& a) {
    return static_cast<std::size_t>(a.outerStride());
  }
  static float* row(activations& a, std::size_t t) { return a.data() + t * stride(a); }

  // Normalises the rows of x from `first` on, into those of y.
  void normalise(activations& x, std::size_t first, const std::vector<float>& weight,
                 activations& y) const {
    for (std::size_t t = first; t < static_cast<std::size_t>(x.rows()); ++t)
      detail::rms_norm(row(x, t), weight, w_->dim, w_->epsilon, row(y, t));
  }

  // Rounds x if one of the matrices that it will be multiplied with is quantised.
  rounded_activations round(const activations& x, std::initializer_list<const matrix*> by) {
    if (std::none_of(by.begin(), by.end(), [](const matrix* m) { return m->strips; })) return {};
    const auto n = static_cast<std::size_t>(x.rows()),
               blocks = static_cast<std::size_t>(x.cols()) / quantised_block;
    pool_->for_ranges(blocks, 1 + 128 / n,
                      [&](std::size_t begin, std::size_t end) { rounding_.round(x, begin, end); });
    return rounding_.rows(n, blocks);
  }

  // x += m y, with `product` as temporary memory. rounded: y, rounded, for a quantised matrix.
  void add_product(const matrix& m, const activations& y, const rounded_activations& rounded,
                   activations& product, activations& x) {
    for_rows(m.rows, m.cols * static_cast<std::size_t>(y.rows()),
             [&](std::size_t begin, std::size_t end) {
               multiply(m, begin, end, y, rounded, product.data(), stride(product));
               const auto from = static_cast<Eigen::Index>(begin),
                          size = static_cast<Eigen::Index>(end - begin);
               x.middleCols(from, size) += product.middleCols(from, size);
             });
  }

  // Token t of a step is stored at position_ + t. It sees this many positions, its own included:
  // all before it, or in a tree the text and its path. Its own place in the text is the last of
  // them.
  std::size_t seen_by(std::size_t t) const {
    return tree_.size() == 0 ? position_ + t + 1
                             : tree_begin_ + tree_.path(position_ + t - tree_begin_ + 1).size();
  }
  void find_rotations(std::size_t n) {
    auto rotations = rotations_.top(n);
    for (std::size_t t = 0; t < n; ++t)
      detail::find_rotation(static_cast<double>(seen_by(t) - 1), w_->frequencies,
                            row(rotations, t));
  }

  // Rotates one head of n tokens: scales a query, stores a key and its value. Heads come in the
  // order of qkv: queries, then keys. (Threads share heads, not tokens, because neighbouring
  // positions of a key share cache lines.)
  void rotate_head(std::size_t layer, std::size_t head, std::size_t n, activations& qkv) {
    const auto& w = *w_;
    const auto scale = 1 / std::sqrt(static_cast<float>(w.head_dim));
    for (std::size_t t = 0; t < n; ++t) {
      auto* x = row(qkv, t) + head * w.head_dim;
      const auto* rotation = rotations_.data() + t * padded(4 * w.frequencies.size());
      detail::rotate(x, rotation, 2 * w.frequencies.size());
      if (head < w.heads) {
        std::size_t d = 0;
        for (; d + 16 <= w.head_dim; d += 16) (lanes::load(x + d) * lanes(scale)).store(x + d);
        for (; d < w.head_dim; ++d) x[d] *= scale;
        continue;
      }
      cache_.store(layer, head - w.heads, position_ + t, x, x + w.kv_heads * w.head_dim);
    }
  }

  // slot: which scratch memory to use.
  void attend(std::size_t layer, std::size_t kv_head, std::size_t first, std::size_t end,
              std::size_t slot, activations& qkv, activations& attended) {
    const auto group = w_->heads / w_->kv_heads;
    detail::grouped_attention{cache_.keys(layer, kv_head),
                              cache_.values(layer, kv_head),
                              tree_,
                              tree_begin_,
                              position_,
                              first,
                              end,
                              group,
                              w_->head_dim,
                              kv_head * group * w_->head_dim,
                              scores_.data() + slot * together * group * padded(capacity_),
                              padded(capacity_),
                              qkv,
                              attended}
        .compute();
  }

  static constexpr std::size_t together = 4;  // tokens whose queries are processed together

  const layer_weights* w_;
  std::shared_ptr<thread_pool> pool_;
  const std::atomic<bool>* stop_ = nullptr;
  std::size_t capacity_, chunk_, position_ = 0;
  std::size_t tree_begin_ = 0;  // the position of the first node
  tree_paths tree_;
  activation_buffer x_, h_, qkv_, attended_, gate_, up_, rotations_, scores_;
  kv_cache cache_;
  // [capacity][dim]: those of positions from hidden_begin_ on
  std::optional<activation_buffer> hidden_;
  std::size_t hidden_begin_ = 0;
  rounding_buffer rounding_{0, 0}, ffn_rounding_{0, 0};
};

}  // namespace cpu
SPECAGG_END
