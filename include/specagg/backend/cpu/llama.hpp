// SPDX-License-Identifier: Apache-2.0
// The Llama architecture on the CPU as a source of logits: RMSNorm, rotary embedding on adjacent pairs, grouped-query
// attention, SwiGLU, tied or separate output matrix.
//
// Logits are a function of the weights and the tokens alone. They have the same bits whether the tokens were fed one by
// one, all at once or after rollbacks, with any number of threads, any instruction set and any compiler. The order of
// every sum is fixed by absolute positions and columns. All other operations are exactly rounded (IEEE 754) or built
// from such operations.
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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/attention.hpp>
#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/kv_cache.hpp>
#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/backend/cpu/parallel.hpp>
#include <specagg/backend/cpu/tree_paths.hpp>
#include <specagg/config.hpp>
#include <specagg/error.hpp>
#include <specagg/kernel/math.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

namespace detail {

// y = x / sqrt(mean x^2 + epsilon) * weight. All three are padded with zeros to a multiple of 16 columns.
[[gnu::flatten]] inline void rms_norm(const float* x, const std::vector<float>& weight, std::size_t dim, float epsilon,
                                      float* y) {
  lanes squares = 0;
  for (std::size_t c = 0; c < weight.size(); c += 16) {
    const auto v = lanes::load(x + c);
    squares = fma(v, v, squares);
  }
  const float scale = 1 / std::sqrt(reduce_add(squares) / static_cast<float>(dim) + epsilon);
  for (std::size_t c = 0; c < weight.size(); c += 16)
    (lanes::load(x + c) * lanes(scale) * lanes::load(weight.data() + c)).store(y + c);
}

}  // namespace detail

// One sequence: the weights, a KV cache, scratch memory. The constructor allocates all memory; extend() allocates none.
class llama {
 public:
  using value_type = float;

  // capacity: the number of positions to keep (see checked_capacity, which may throw). Sessions that share a pool must
  // not run at the same time. Without a pool everything runs on the calling thread. Throws specagg::error if quantised
  // weights were not repacked.
  explicit llama(std::shared_ptr<const llama_weights> weights, std::shared_ptr<thread_pool> pool = nullptr,
                 std::size_t capacity = 0)
      : w_(std::move(weights)),
        pool_(pool ? std::move(pool) : std::make_shared<thread_pool>(1)),
        capacity_(checked_capacity(*w_, capacity)),
        chunk_(std::min<std::size_t>(capacity_, 32)),
        x_(chunk_, w_->dim),
        h_(chunk_, w_->dim),
        qkv_(chunk_, (w_->heads + 2 * w_->kv_heads) * w_->head_dim),
        attended_(chunk_, w_->heads * w_->head_dim),
        gate_(chunk_, w_->ffn),
        up_(chunk_, w_->ffn),
        rotations_(chunk_, 4 * w_->frequencies.size()),
        scores_((chunk_ + together - 1) / together * together * w_->heads, capacity_),
        cache_(w_->layers.size(), w_->kv_heads, w_->head_dim, capacity_) {
    std::size_t cols = 0;  // of the widest quantised matrix
    const auto look_at = [&](const matrix& m) {
      if (block_bytes(m.type) == 0) return;
      if (!m.strips) throw error(w_->file.name(), text("tensor ", printable(m.name)), "was not repacked for the CPU");
      cols = std::max(cols, m.cols);
    };
    look_at(w_->output);
    for (const auto& l : w_->layers)
      for (const auto* m : {&l.q, &l.k, &l.v, &l.output, &l.gate, &l.up, &l.down}) look_at(*m);
    rounding_ = rounding_buffer(chunk_, cols);
    if (cols > 0) ffn_rounding_ = rounding_buffer(chunk_, w_->ffn);
  }

  // A copy continues the same text on the same pool, with its own cache. It has no stop flag.
  llama(const llama& other) : llama(other.w_, other.pool_, other.capacity_) { adopt(other); }
  llama(llama&&) = default;
  llama& operator=(llama&&) = default;

  // Replaces its text by that of `other`, a session with the same weights: copies the keys and values, and computes
  // nothing. context_full, or invalid_parameter (other weights, a tree): nothing has changed. Several threads may copy
  // from `other` at once.
  status adopt(const llama& other) {
    if (other.w_ != w_) return status::invalid_parameter;
    if (other.position_ > capacity_) return status::context_full;
    if (tree_.size() + other.tree_.size() > 0) return status::invalid_parameter;
    position_ = other.position_;
    cache_.copy(other.cache_, position_);
    return status::ok;
  }

  std::size_t vocab_size() const { return w_->vocab; }
  std::size_t position() const { return position_; }
  std::size_t capacity() const { return capacity_; }
  const llama_weights& weights() const { return *w_; }

  // While *flag is true, extend() stops within one layer. Any thread may set the flag. Null: never stop.
  void stop_when(const std::atomic<bool>* flag) { stop_ = flag; }

  // Appends the tokens, and writes the logits after each of the last logits.size() / V tokens, one row of V each. If
  // `logits` is empty the output matrix is not read. On any status but ok nothing was appended (and `logits` has no
  // meaning).
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    if (tree_.size() > 0) return status::invalid_parameter;  // end the tree first
    return append(tokens, logits);
  }

  // The members of a TreeSource (logit_source.hpp). A row has the bits that extend() gives for its path alone. Memory
  // for a tree is allocated if none was as large before.
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<float> logits) {
    if (parents.size() != tokens.size()) return status::invalid_parameter;
    if (tokens.size() > capacity_ - position_) return status::context_full;
    const auto before = tree_.size();
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (parents[i] > before + i) return status::invalid_parameter;
    if (before == 0) tree_begin_ = position_;
    for (const auto parent : parents) tree_.add(parent);
    const status s = append(tokens, logits);
    if (s != status::ok) tree_.cut(before);
    return s;
  }
  status keep_path(std::span<const std::uint32_t> nodes) {
    if (!tree_.is_path(nodes)) return status::invalid_parameter;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i] != i + 1) cache_.move(tree_begin_ + nodes[i] - 1, tree_begin_ + i);
    if (tree_.size() > 0) position_ = tree_begin_ + nodes.size();
    tree_.cut(0);
    return status::ok;
  }

  // Removes all tokens from `position` on. `position` must not be beyond the present one. O(1). A tree is removed.
  status rollback(std::size_t position) {
    if (tree_.size() > 0) position_ = tree_begin_;
    tree_.cut(0);
    position_ = std::min(position, position_);
    return status::ok;
  }

 private:
  status append(std::span<const token_id> tokens, std::span<float> logits) {
    const auto rows = logits.size() / w_->vocab;
    if (rows * w_->vocab != logits.size() || rows > tokens.size()) return status::invalid_parameter;
    if (tokens.size() > capacity_ - position_) return status::context_full;
    for (token_id token : tokens)
      if (token < 0 || static_cast<std::size_t>(token) >= w_->vocab) return status::token_out_of_range;
    const auto first_row = tokens.size() - rows, before = position_;
    for (std::size_t i = 0; i < tokens.size(); i += chunk_) {
      const auto part = tokens.subspan(i, std::min(chunk_, tokens.size() - i));
      const auto skip = first_row > i ? std::min(part.size(), first_row - i) : 0;
      if (!step(part, skip, logits.data() + (i + skip - first_row) * (skip < part.size() ? w_->vocab : 0))) {
        position_ = before;
        return status::stopped;
      }
    }
    return status::ok;
  }

  // Runs body over `count` rows in parallel, in ranges of at least some 16,000 multiplications (about a microsecond).
  template <class Body>
  void for_rows(std::size_t count, std::size_t cost, Body&& body) {
    pool_->for_ranges(count, padded(std::max<std::size_t>(1, 16384 / cost)), std::forward<Body>(body));
  }

  bool stopped() const { return stop_ && stop_->load(std::memory_order_relaxed); }

  // False if it was stopped. Then the keys and values from position_ on have no meaning.
  bool step(std::span<const token_id> tokens, std::size_t skip, float* logits) {
    const auto& w = *w_;
    const auto n = tokens.size();
    const auto width = w.heads * w.head_dim, kv_width = w.kv_heads * w.head_dim;
    auto x = x_.top(n), h = h_.top(n), qkv = qkv_.top(n), attended = attended_.top(n), gate = gate_.top(n),
         up = up_.top(n);
    for (std::size_t t = 0; t < n; ++t) read_row(w.embedding, static_cast<std::size_t>(tokens[t]), row(x, t));
    find_rotations(n);
    for (std::size_t i = 0; i < w.layers.size(); ++i) {
      if (stopped()) return false;
      const auto& l = w.layers[i];
      normalise(x, 0, l.attention_norm, h);
      auto rounded = round(h, {&l.q, &l.k, &l.v});
      for_rows(width + 2 * kv_width, w.dim * n, [&](std::size_t begin, std::size_t end) {
        std::size_t first = 0;  // the rows of q, k and v one after another
        for (const auto* m : {&l.q, &l.k, &l.v}) {
          const auto from = std::max(begin, first), to = std::min(end, first + m->rows);
          if (from < to) multiply(*m, from - first, to - first, h, rounded, qkv.data() + first, stride(qkv));
          first += m->rows;
        }
      });
      pool_->for_ranges(w.heads + w.kv_heads, 1 + 2048 / (w.head_dim * n), [&](std::size_t begin, std::size_t end) {
        for (auto head = begin; head < end; ++head) rotate_head(i, head, n, qkv);
      });
      const auto groups = (n + together - 1) / together;
      const auto cost = (position_ + n) * w.head_dim * (w.heads / w.kv_heads) * std::min(n, together) * 2;
      pool_->for_ranges(groups * w.kv_heads, 1 + 16384 / cost, [&](std::size_t begin, std::size_t end) {
        for (auto j = begin; j < end; ++j) {
          const auto first = j / w.kv_heads * together;
          attend(i, j % w.kv_heads, first, std::min(n, first + together), begin, qkv, attended);
        }
      });
      add_product(l.output, attended, round(attended, {&l.output}), h, x);
      normalise(x, 0, l.ffn_norm, h);
      rounded = round(h, {&l.gate, &l.up});
      const auto ffn_blocks = (w.ffn + quantised_block - 1) / quantised_block;
      pool_->for_ranges(ffn_blocks, 1 + 256 / (w.dim * n), [&](std::size_t first, std::size_t last) {
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
      add_product(l.down, gate, l.down.strips ? ffn_rounding_.rows(n, ffn_blocks) : rounded_activations(), h, x);
    }
    if (stopped()) return false;
    position_ += n;
    if (skip == n) return true;
    normalise(x, skip, w.output_norm, h);
    const auto last = h_.top(n - skip);
    const auto rounded = round(last, {&w.output});
    for_rows(w.vocab, w.dim * (n - skip), [&](std::size_t begin, std::size_t end) {
      multiply(w.output, begin, end, last, rounded, logits, w.vocab);
    });
    return true;
  }

  static std::size_t stride(const activations& a) { return static_cast<std::size_t>(a.outerStride()); }
  static float* row(activations& a, std::size_t t) { return a.data() + t * stride(a); }

  // Normalises the rows of x from `skip` on, into the first rows of y.
  void normalise(activations& x, std::size_t skip, const std::vector<float>& weight, activations& y) const {
    for (std::size_t t = skip; t < static_cast<std::size_t>(x.rows()); ++t)
      detail::rms_norm(row(x, t), weight, w_->dim, w_->epsilon, row(y, t - skip));
  }

  // Rounds x if one of the matrices that it will be multiplied with is quantised.
  rounded_activations round(const activations& x, std::initializer_list<const matrix*> by) {
    if (std::none_of(by.begin(), by.end(), [](const matrix* m) { return m->strips; })) return {};
    const auto n = static_cast<std::size_t>(x.rows()), blocks = static_cast<std::size_t>(x.cols()) / quantised_block;
    pool_->for_ranges(blocks, 1 + 128 / n, [&](std::size_t begin, std::size_t end) { rounding_.round(x, begin, end); });
    return rounding_.rows(n, blocks);
  }

  // x += m y, with `product` as temporary memory. rounded: y, rounded, for a quantised matrix.
  void add_product(const matrix& m, const activations& y, const rounded_activations& rounded, activations& product,
                   activations& x) {
    for_rows(m.rows, m.cols * static_cast<std::size_t>(y.rows()), [&](std::size_t begin, std::size_t end) {
      multiply(m, begin, end, y, rounded, product.data(), stride(product));
      const auto from = static_cast<Eigen::Index>(begin), size = static_cast<Eigen::Index>(end - begin);
      x.middleCols(from, size) += product.middleCols(from, size);
    });
  }

  // Token t of a step is stored at position_ + t. It sees this many positions, its own included: all before it, or in
  // a tree the text and its path. Its own place in the text is the last of them.
  std::size_t seen_by(std::size_t t) const {
    return tree_.size() == 0 ? position_ + t + 1 : tree_begin_ + tree_.path(position_ + t - tree_begin_ + 1).size();
  }
  // For n tokens: cosine and sine of every pair, then minus the sine and the cosine.
  void find_rotations(std::size_t n) {
    auto rotations = rotations_.top(n);
    const auto pairs = w_->frequencies.size();
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t i = 0; i < pairs; ++i) {
        const auto [sine, cosine] = detail::sin_cos(static_cast<double>(seen_by(t) - 1) * w_->frequencies[i]);
        auto* one = row(rotations, t) + 2 * i;
        auto* other = one + 2 * pairs;
        one[0] = static_cast<float>(cosine), one[1] = static_cast<float>(sine);
        other[0] = -one[1], other[1] = one[0];
      }
  }

  // Rotates one head of n tokens: scales a query, stores a key and its value. Heads come in the order of qkv: queries,
  // then keys. (Threads share heads, not tokens, because neighbouring positions of a key share cache lines.)
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

  // Attention for tokens [first, end) of this step and all query heads of one key-value head. It processes a few keys
  // or values at a time for all of these queries, so the cache is read from memory once. slot: which scratch memory to
  // use.
  void attend(std::size_t layer, std::size_t kv_head, std::size_t first, std::size_t end, std::size_t slot,
              activations& qkv, activations& attended) {
    const auto& w = *w_;
    const auto group = w.heads / w.kv_heads, dims = w.head_dim, queries = (end - first) * group;
    const auto* k = cache_.keys(layer, kv_head);
    const auto* v = cache_.values(layer, kv_head);
    const auto seen = [&](std::size_t i) { return seen_by(first + i / group); };  // positions that query i sees
    // In a tree the positions of the path to query i's token, numbered after the text in the order of the path.
    const auto path = [&](std::size_t i) {
      return tree_.size() == 0 ? std::span<const std::uint32_t>()
                               : tree_.path(position_ + first + i / group - tree_begin_ + 1);
    };
    const auto in_order = [&](std::size_t i) { return tree_.size() == 0 ? seen(i) : tree_begin_; };
    const auto place = [&](std::size_t i) { return (kv_head * group + i % group) * dims; };
    const auto scores = [&](std::size_t i) {
      return scores_.data() + (slot * together * group + i) * padded(capacity_);
    };
    const auto end_of_keys = padded(position_ + end);
    for (std::size_t p = 0; p < end_of_keys; p += 64)  // for a query that sees less, the scores after that are not read
      for (std::size_t i = 0; i < queries; i += 3) {
        const float* q[3];
        float* s[3];
        const auto some = std::min<std::size_t>(3, queries - i);
        for (std::size_t j = 0; j < some; ++j)
          q[j] = row(qkv, first + (i + j) / group) + place(i + j), s[j] = scores(i + j);
        const auto to = std::min(p + 64, end_of_keys);
        if (some == 3) detail::score_positions<3>(k, dims, p, to, q, s);
        else if (some == 2) detail::score_positions<2>(k, dims, p, to, q, s);
        else detail::score_positions<1>(k, dims, p, to, q, s);
      }
    float totals[32], sums[32][128];
    for (std::size_t from = 0; from < queries; from += 32) {
      const auto some = std::min<std::size_t>(32, queries - from);
      for (std::size_t i = 0; i < some; ++i) {
        auto* const s = scores(from + i);
        std::size_t p = tree_begin_;
        for (const auto node : path(from + i)) s[p++] = s[tree_begin_ + node - 1];  // a path ascends, so none is lost
        totals[i] = detail::exponentiate(s, seen(from + i));
      }
      for (std::size_t d = 0; d < dims; d += 32) {
        for (std::size_t i = 0; i < some; ++i) std::fill_n(sums[i], 128, 0.f);
        for (std::size_t p = 0; p < in_order(from + some - 1); p += 64)
          for (std::size_t i = 0; i < some; ++i)
            if (const auto to = std::min(p + 64, in_order(from + i)); p < to) {
              if (d + 16 < dims) detail::weigh_values<2>(scores(from + i), v + d, padded(dims), p, to, sums[i]);
              else detail::weigh_values<1>(scores(from + i), v + d, padded(dims), p, to, sums[i]);
            }
        for (std::size_t i = 0; i < some; ++i) {
          std::size_t p = tree_begin_;
          for (const auto node : path(from + i)) {
            const auto* const value = v + (tree_begin_ + node - 1) * padded(dims) + d;
            if (d + 16 < dims) detail::weigh_value<2>(scores(from + i)[p], value, p, sums[i]);
            else detail::weigh_value<1>(scores(from + i)[p], value, p, sums[i]);
            ++p;
          }
        }
        for (std::size_t i = 0; i < some; ++i) {
          auto* y = row(attended, first + (from + i) / group) + place(from + i);
          for (std::size_t e = d; e < std::min(dims, d + 32); e += 16) {
            const auto* a = sums[i] + (e - d) * 4;
            const auto sum = (lanes::load(a) + lanes::load(a + 16)) + (lanes::load(a + 32) + lanes::load(a + 48));
            float mean[16];
            (sum / lanes(totals[i])).store(mean);
            std::copy_n(mean, std::min<std::size_t>(16, dims - e), y + e);
          }
        }
      }
    }
  }

  static constexpr std::size_t together = 4;  // tokens whose queries are processed together

  std::shared_ptr<const llama_weights> w_;
  std::shared_ptr<thread_pool> pool_;
  const std::atomic<bool>* stop_ = nullptr;
  std::size_t capacity_, chunk_, position_ = 0;
  std::size_t tree_begin_ = 0;  // the position of the first node
  tree_paths tree_;
  activation_buffer x_, h_, qkv_, attended_, gate_, up_, rotations_, scores_;
  kv_cache cache_;
  rounding_buffer rounding_{0, 0}, ffn_rounding_{0, 0};
};

}  // namespace cpu
SPECAGG_END
