// SPDX-License-Identifier: Apache-2.0
// The layers of the Llama architecture on the CPU, for one sequence or several in a call: RMSNorm,
// rotary embedding on adjacent pairs, grouped-query attention, SwiGLU, a final norm, an output
// matrix. The caller gives the input of the first layer: embeddings of tokens (llama.hpp), or
// embeddings and hidden states (draft_head.hpp).
//
// Logits are a function of the weights and the inputs of their sequence alone. They have the same
// bits whether the inputs came one by one, all at once, with those of other sequences or after
// rollbacks, with any number of threads, any instruction set and any compiler. The order of every
// sum is fixed by absolute positions and columns. All other operations are exactly rounded (IEEE
// 754) or built from such operations. Every NaN of the logits and the hidden states is the same
// quiet NaN.
#pragma once
#include <specagg/backend/cpu/product.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/attention.hpp>
#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/backend/cpu/sequence.hpp>
#include <specagg/thread_pool.hpp>
#include <specagg/kernel/math.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

// A part of a call: `count` positions that are appended to one sequence, and the rows after the
// last logits.size() / V of them, V numbers each. If `logits` is empty, there are no rows.
struct segment {
  sequence* to;
  std::size_t count;
  std::span<float> logits;
  status why = status::ok;
  std::size_t done = 0;  // positions that were appended
};

// The layers, and scratch memory for one call at a time, which the constructor allocates.
class layer_stack {
 public:
  // w must outlive the object. Without a pool everything runs on the calling thread. capacity: the
  // most that a sequence may have. further: a matrix that product() is called with, or null. Throws
  // specagg::error if quantised weights were not repacked, and as checked_capacity.
  layer_stack(const layer_weights& w, std::shared_ptr<thread_pool> pool, std::size_t capacity,
              const matrix* further = nullptr)
      : w_(&w),
        pool_(pool ? std::move(pool) : std::make_shared<thread_pool>(1)),
        capacity_(checked_capacity(w, capacity)),
        chunk_(std::min(capacity_, most_rows)),
        x_(chunk_, w.dim),
        h_(chunk_, w.dim),
        qkv_(chunk_, (w.heads + 2 * w.kv_heads) * w.head_dim),
        attended_(chunk_, w.heads * w.head_dim),
        gate_(chunk_, w.ffn),
        up_(chunk_, w.ffn),
        rotations_(chunk_, 4 * w.frequencies.size()),
        sums_(chunk_ * w.heads, ranges_for(capacity_), w.head_dim),
        tasks_left_(chunk_ * w.kv_heads) {
    pieces_.reserve(chunk_);
    ranges_.reserve(chunk_ * ranges_for(capacity_) + enough_tasks());
    const auto cols = widest_quantised(w, further);
    rounding_ = rounding_buffer(chunk_, cols);
    if (cols > 0) ffn_rounding_ = rounding_buffer(chunk_, w.ffn);
  }

  // the most inputs that go through the layers together
  std::size_t chunk() const { return chunk_; }
  const std::shared_ptr<thread_pool>& pool() const { return pool_; }

  // Appends to the sequences of `all`, in which each stands at most once. The weights are read once
  // for chunk() inputs, of whichever sequences. read(j, i, x) writes the inputs i, i + 1, ... of
  // all[j] as the rows of x. all[j].why: context_full, invalid_parameter (of the rows), stopped:
  // nothing was appended to this sequence. A sequence whose `why` is not ok before the call is left
  // alone.
  // alone: on the calling thread, which may be one of the pool.
  void append(std::span<segment> all, auto&& read, bool alone = false) {
    static thread_pool no_others(1);
    on_ = alone ? &no_others : pool_.get();
    std::size_t left = 0;  // inputs
    for (segment& s : all) {
      if (s.why == status::ok) s.why = s.to->takes(s.count, s.logits);
      if (s.why == status::ok) left += s.count;
    }
    std::size_t n = 0, steps = (left + chunk_ - 1) / chunk_,
                size = steps ? (left + steps - 1) / steps : 0;
    for (std::size_t j = 0; j < all.size(); ++j) {
      segment& s = all[j];
      const auto first_row = s.count - s.logits.size() / w_->vocab;
      for (std::size_t i = 0; s.why == status::ok && i < s.count;) {
        const auto some = std::min(size - n, s.count - i);
        read(j, i, rows(x_.top(chunk_), n, some));
        pieces_.push_back({&s, n, some, std::clamp(first_row, i, i + some) - i,
                           s.logits.data() + (std::max(first_row, i) - first_row) * w_->vocab});
        i += some;
        n += some;
        if (n < size) continue;
        step(n);
        n = 0;
      }
    }
    if (n > 0) step(n);
  }
  // Appends to one sequence. read(i, x) writes its inputs i, i + 1, ... as the rows of x.
  status append(sequence& to, std::size_t count, std::span<float> logits, auto&& read) {
    segment one{&to, count, logits};
    append(std::span(&one, 1),
           [&](std::size_t, std::size_t i, activations x) { read(i, std::move(x)); });
    return one.why;
  }

  // out = m y, for up to chunk() rows of y.
  void product(const matrix& m, const activations& y, activations& out) {
    on_ = pool_.get();
    const auto rounded = round(y, {&m});
    for_rows(m.rows, m.cols * std::size_t(y.rows()), [&](std::size_t begin, std::size_t end) {
      multiply(m, begin, end, y, rounded, out.data() + begin, stride(out));
    });
  }

 private:
  using attention = detail::range_attention;

  // Runs body over `count` rows in parallel, in ranges of at least some 16,000 multiplications
  // (about a microsecond).
  template <class Body>
  void for_rows(std::size_t count, std::size_t cost, Body&& body) {
    on_->for_ranges(count, padded(std::max<std::size_t>(1, 16384 / cost)),
                    std::forward<Body>(body));
  }

  // Inputs of one segment that go through the layers with others: `count`, in the rows from `first`
  // on. The logits of all but the first `skip` go to `logits`.
  struct piece {
    segment* of;
    std::size_t first, count, skip;
    float* logits;
  };
  // A range of the positions that a piece sees (attention.hpp), for one of `parts` parts of its
  // queries. tasks: how many of these the piece has.
  struct piece_range {
    std::size_t piece, number, part, parts, tasks;
  };

  // Asks every sequence whether it is to stop, and marks the sequences that are. True if no
  // sequence goes on.
  bool stopped() {
    bool all = true;
    for (const piece& p : pieces_) {
      if (p.of->to->stopped()) p.of->why = status::stopped;
      all = all && p.of->why != status::ok;
    }
    return all;
  }

  // Computes the pieces, of n inputs together, from x_, and ends them. The keys and values that a
  // sequence has from its position on have no meaning.
  void step(std::size_t n) {
    find_rotations();
    find_ranges();
    bool none = stopped();
    for (std::size_t i = 0; i < w_->layers.size() && !none; ++i) {
      auto x = x_.top(n), h = h_.top(n);
      add_attention(i, n, x, h);
      add_feed_forward(w_->layers[i], n, x, h);
      none = stopped();
    }
    std::size_t wanted = 0;
    for (const piece& p : pieces_) wanted = end(p, wanted);
    pieces_.clear();
    if (wanted > 0) write_logits(h_.top(wanted));
  }
  // Keeps what a piece has computed, and puts the inputs of the output matrix, for its rows, into
  // h_ from row `wanted` on. Returns where they end.
  std::size_t end(const piece& p, std::size_t wanted) {
    sequence& to = *p.of->to;
    if (p.of->why != status::ok) {
      to.position_ -= std::exchange(p.of->done, 0);
      return wanted;
    }
    for (std::size_t t = to.hidden_ ? 0 : p.skip; t < p.count; ++t) {
      float* const y = h_.data() + wanted * padded(w_->dim);
      detail::rms_norm(x_.data() + (p.first + t) * padded(w_->dim), w_->output_norm, w_->dim,
                       w_->epsilon, y);
      if (to.hidden_)
        copy_with_one_nan(y, padded(w_->dim),
                          to.hidden_->data() + (to.position_ + t) * padded(w_->dim));
      if (t < p.skip) continue;
      logits_[wanted++] = p.logits + (t - p.skip) * w_->vocab;
    }
    to.position_ += p.count;
    p.of->done += p.count;
    return wanted;
  }

  // x += attention of layer i to the normalised x. h: temporary.
  void add_attention(std::size_t i, std::size_t n, activations& x, activations& h) {
    const auto& w = *w_;
    const auto& l = w.layers[i];
    auto qkv = qkv_.top(n), attended = attended_.top(n);
    normalise(x, l.attention_norm, h);
    const auto rounded = round(h, {&l.q, &l.k, &l.v});
    for_rows((w.heads + 2 * w.kv_heads) * w.head_dim, w.dim * n,
             [&](std::size_t begin, std::size_t end) {
               std::size_t first = 0;  // the rows of q, k and v one after another
               for (const auto* m : {&l.q, &l.k, &l.v}) {
                 const auto from = std::max(begin, first), to = std::min(end, first + m->rows);
                 if (from < to)
                   multiply(*m, from - first, to - first, h, rounded, qkv.data() + from,
                            stride(qkv));
                 first += m->rows;
               }
             });
    on_->for_ranges(w.heads + w.kv_heads, 1 + 2048 / (w.head_dim * n),
                    [&](std::size_t begin, std::size_t end) {
                      for (auto head = begin; head < end; ++head) rotate_head(i, head, qkv);
                    });
    attend(i, qkv, attended);
    add_product(l.output, attended, round(attended, {&l.output}), h, x);
  }

  // x += feed-forward network of the normalised x. h: temporary.
  void add_feed_forward(const layer_weights::layer& l, std::size_t n, activations& x,
                        activations& h) {
    const auto& w = *w_;
    auto gate = gate_.top(n), up = up_.top(n);
    normalise(x, l.ffn_norm, h);
    const auto rounded = round(h, {&l.gate, &l.up});
    const auto blocks = (w.ffn + quantised_block - 1) / quantised_block;
    on_->for_ranges(blocks, 1 + 256 / (w.dim * n), [&](std::size_t first, std::size_t last) {
      const auto begin = first * quantised_block, end = std::min(w.ffn, last * quantised_block);
      multiply(l.gate, begin, end, h, rounded, gate.data() + begin, stride(gate));
      multiply(l.up, begin, end, h, rounded, up.data() + begin, stride(up));
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

  // The logits after normalised activations: row t goes to logits_[t].
  void write_logits(const activations& last) {
    const auto& w = *w_;
    const auto n = std::size_t(last.rows());
    const auto rounded = round(last, {&w.output});
    for_rows(w.vocab, w.dim * n, [&](std::size_t begin, std::size_t end) {
      constexpr std::size_t some = 64;
      float part[most_rows * some];
      for (; begin < end; begin += some) {
        const auto to = std::min(end, begin + some);
        for (std::size_t t = 0; t < n; ++t)  // the rows come from memory meanwhile
          for (auto c = begin; c < to; c += 16) __builtin_prefetch(logits_[t] + c, 1);
        multiply(w.output, begin, to, last, rounded, part, some);
        for (std::size_t t = 0; t < n; ++t)
          copy_with_one_nan(part + t * some, to - begin, logits_[t] + begin);
      }
    });
  }

  static std::size_t stride(const activations& a) { return std::size_t(a.outerStride()); }
  static float* row(activations& a, std::size_t t) { return a.data() + t * stride(a); }
  static activations rows(activations a, std::size_t first, std::size_t n) {
    return {row(a, first), Eigen::Index(n), a.cols(), a.outerStride()};
  }

  // Normalises the rows of x into those of y.
  void normalise(activations& x, const std::vector<float>& weight, activations& y) const {
    for (std::size_t t = 0; t < std::size_t(x.rows()); ++t)
      detail::rms_norm(row(x, t), weight, w_->dim, w_->epsilon, row(y, t));
  }

  // Rounds x if one of the matrices that it will be multiplied with is quantised.
  rounded_activations round(const activations& x, std::initializer_list<const matrix*> by) {
    if (std::none_of(by.begin(), by.end(), [](const matrix* m) { return m->strips; })) return {};
    const auto n = std::size_t(x.rows()), blocks = std::size_t(x.cols()) / quantised_block;
    on_->for_ranges(blocks, 1 + 128 / n,
                    [&](std::size_t begin, std::size_t end) { rounding_.round(x, begin, end); });
    return rounding_.rows(n, blocks);
  }

  // x += m y, with `product` as temporary memory. rounded: y, rounded, for a quantised matrix.
  void add_product(const matrix& m, const activations& y, const rounded_activations& rounded,
                   activations& product, activations& x) {
    for_rows(m.rows, m.cols * std::size_t(y.rows()), [&](std::size_t begin, std::size_t end) {
      multiply(m, begin, end, y, rounded, product.data() + begin, stride(product));
      const auto from = Eigen::Index(begin), size = Eigen::Index(end - begin);
      x.middleCols(from, size) += product.middleCols(from, size);
    });
  }

  void find_rotations() {
    for (const piece& p : pieces_)
      for (std::size_t t = 0; t < p.count; ++t)
        detail::find_rotation(double(p.of->to->seen_by(t) - 1), w_->frequencies,
                              rotation(p.first + t));
  }
  float* rotation(std::size_t t) {
    return rotations_.data() + t * padded(4 * w_->frequencies.size());
  }

  // Rotates one head of all rows: scales a query, stores a key and its value. Heads come in the
  // order of qkv: queries, then keys. (Threads share heads, not tokens, because neighbouring
  // positions of a key share cache lines.)
  void rotate_head(std::size_t layer, std::size_t head, activations& qkv) {
    const auto& w = *w_;
    const auto scale = 1 / std::sqrt(float(w.head_dim));
    for (const piece& p : pieces_)
      for (std::size_t t = 0; t < p.count; ++t) {
        auto* x = row(qkv, p.first + t) + head * w.head_dim;
        detail::rotate(x, rotation(p.first + t), 2 * w.frequencies.size());
        if (head < w.heads) {
          std::size_t d = 0;
          for (; d + 16 <= w.head_dim; d += 16) (lanes::load(x + d) * lanes(scale)).store(x + d);
          for (; d < w.head_dim; ++d) x[d] *= scale;
          continue;
        }
        p.of->to->cache_.store(layer, head - w.heads, p.of->to->position_ + t, x,
                               x + w.kv_heads * w.head_dim);
      }
  }

  static std::size_t ranges_for(std::size_t positions) { return attention::ranges_for(positions); }
  // Tasks of attention that keep all threads busy.
  std::size_t enough_tasks() const { return 8 * std::size_t{on_->threads()}; }
  // The queries of a piece are divided only where there are few ranges.
  void find_ranges() {
    ranges_.clear();
    std::size_t seen[most_rows], all = 0, cost = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const piece& p = pieces_[i];
      seen[i] = 0;
      for (std::size_t t = 0; t < p.count; ++t) seen[i] = std::max(seen[i], p.of->to->seen_by(t));
      all += ranges_for(seen[i]);
      cost += seen[i] * p.count;
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const auto parts = std::clamp<std::size_t>(
          enough_tasks() / (all * w_->kv_heads), 1,
          attention::most_parts(pieces_[i].count * (w_->heads / w_->kv_heads)));
      const auto tasks = ranges_for(seen[i]) * parts;
      for (std::size_t k = 0; k < tasks; ++k)
        ranges_.push_back({i, k / parts, k % parts, parts, tasks});
      for (std::size_t head = 0; head < w_->kv_heads; ++head)
        tasks_left_[i * w_->kv_heads + head].store(tasks, std::memory_order_relaxed);
    }
    cost = cost * w_->head_dim * (w_->heads / w_->kv_heads) * 2 / ranges_.size();
    grain_ = 1 + 16384 / cost;
  }

  // The attention of all pieces, each to its own sequence. A task is a part of one range, for one
  // key-value head. The last of a piece and a head adds up the ranges, in their order.
  void attend(std::size_t layer, activations& qkv, activations& attended) {
    const auto heads = w_->kv_heads;
    on_->for_ranges(ranges_.size() * heads, grain_, [&](std::size_t begin, std::size_t end) {
      for (auto j = begin; j < end; ++j) {
        const auto then = j + 1 < end ? j + 1 : j;
        const auto& next = ranges_[then / heads];
        attend(layer, j % heads, ranges_[j / heads], qkv, attended,
               {&pieces_[next.piece].of->to->cache_, then % heads, next.number});
      }
    });
  }
  void attend(std::size_t layer, std::size_t head, const piece_range& r, activations& all_qkv,
              activations& all_attended, const attention::later& next) {
    const piece& p = pieces_[r.piece];
    const sequence& to = *p.of->to;
    const auto group = w_->heads / w_->kv_heads;
    const auto qkv = rows(all_qkv, p.first, p.count);
    const attention one{to.cache_,
                        layer,
                        head,
                        to.tree_,
                        to.tree_begin_,
                        to.position_,
                        p.count,
                        group,
                        w_->head_dim,
                        qkv,
                        p.first * w_->heads + head * group,
                        w_->heads,
                        sums_,
                        next};
    one.compute(r.number, r.part, r.parts);
    auto& left = tasks_left_[r.piece * w_->kv_heads + head];
    if (r.tasks > 1) {
      if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      left.store(r.tasks, std::memory_order_relaxed);  // for the next layer
    }
    auto attended = rows(all_attended, p.first, p.count);
    one.finish(attended);
  }

  static constexpr std::size_t most_rows = tokens_at_a_time;

  const layer_weights* w_;
  std::shared_ptr<thread_pool> pool_;
  thread_pool* on_ = pool_.get();  // of this call
  std::size_t capacity_, chunk_;
  activation_buffer x_, h_, qkv_, attended_, gate_, up_, rotations_;
  detail::partial_sums sums_;
  std::vector<piece> pieces_;  // of a step
  std::vector<piece_range> ranges_;
  std::vector<std::atomic<std::size_t>> tasks_left_;  // [piece][kv head], in this layer
  std::size_t grain_ = 1;
  float* logits_[most_rows];
  rounding_buffer rounding_{0, 0}, ffn_rounding_{0, 0};
};

}  // namespace cpu
SPECAGG_END
