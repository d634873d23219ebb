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
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/thread_pool.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

// One text: the weights, a KV cache, scratch memory. The constructor allocates all memory but that
// of the cache, which comes in pages of 64 positions: extend() of one text allocates nothing but
// the pages that its text begins, or that it writes to and shares with a copy. reserve() takes
// pages in advance. rollback() keeps the pages of the text and the next page, and gives back all
// later pages. Up to 8 pages of sessions with the same weights stand in one piece of memory
// (large_memory.hpp). If there is no memory, extend() throws std::bad_alloc, and no text of the
// call has changed.
class llama {
 public:
  using value_type = float;

  // capacity: the number of positions to keep (see checked_capacity, which may throw). Sessions
  // that share a pool must not run at the same time. Without a pool everything runs on the calling
  // thread. Throws specagg::error if quantised weights were not repacked.
  explicit llama(std::shared_ptr<const llama_weights> weights,
                 std::shared_ptr<thread_pool> pool = nullptr, std::size_t capacity = 0)
      : w_(std::move(weights)), text_(*w_, capacity), stack_(*w_, std::move(pool), capacity) {
    tokens_.reserve(text_.capacity());
    nodes_.reserve(text_.capacity());
    segments_.reserve(1);
  }

  // A copy continues the same text, and the same tree, on the same pool. It shares pages of the
  // cache, until one of the two writes to them. It has no stop flag.
  llama(const llama& other) : llama(other.w_, other.stack_.pool(), other.capacity()) {
    if (other.text_.keeps_hidden()) keep_hidden();
    (void)adopt(other);  // they have the same weights and capacity
  }
  llama(llama&&) = default;
  llama& operator=(llama&&) = default;

  // Replaces its text and tree by those of `other`, a session with the same weights: shares its
  // pages, and computes nothing. context_full, or invalid_parameter (other weights): nothing has
  // changed. Several threads may copy from `other` at once, and sessions that share pages may run
  // at the same time.
  status adopt(const llama& other) {
    if (other.w_ != w_) return status::invalid_parameter;
    const status s = text_.adopt(other.text_);
    if (s == status::ok) {
      tokens_ = other.tokens_;
      nodes_ = other.nodes_;
    }
    return s;
  }

  std::size_t vocab_size() const { return w_->vocab; }
  std::size_t position() const { return text_.position(); }
  std::size_t capacity() const { return text_.capacity(); }
  std::span<const token_id> tokens() const { return tokens_; }
  // The weights, which the session keeps alive; shared_weights() shares them with others.
  const llama_weights& weights() const { return *w_; }
  const std::shared_ptr<const llama_weights>& shared_weights() const { return w_; }

  // The members of a HiddenSource (logit_source.hpp). keep_hidden(): from now on hidden states are
  // kept, dim floats a position; without this call there are none.
  void keep_hidden() { text_.keep_hidden(); }
  std::size_t hidden_size() const { return w_->dim; }
  std::span<const float> hidden(std::size_t i) const { return text_.hidden(i); }

  // Takes the pages for the first `count` positions now, and keeps them (those of a text that is
  // adopted later are shared, and are copied when they are written to). context_full: more than
  // capacity(). Throws std::bad_alloc.
  status reserve(std::size_t count) { return text_.reserve(count); }

  // While *flag is true, extend() stops within one layer. Any thread may set the flag. Null: never
  // stop.
  void stop_when(const std::atomic<bool>* flag) { text_.stop_when(flag); }

  // Appends the tokens, and writes the logits after each of the last logits.size() / V tokens, one
  // row of V each. If `logits` is empty the output matrix is not read. On any status but ok nothing
  // was appended (and `logits` has no meaning).
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    return extend_alone({this, tokens, logits});
  }

  // The members of a TreeSource (logit_source.hpp). A row has the bits that extend() gives for its
  // path alone. Memory for a tree is allocated if none was as large before.
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<float> logits) {
    if (parents.size() != tokens.size()) return status::invalid_parameter;
    return extend_alone({this, tokens, logits, parents});
  }

  // The member of a BatchLogitSource (logit_source.hpp): the weights are read once for
  // tokens_at_a_time, of any sequences, and each sequence has the bits that it gets alone. (If the
  // call has many tokens, each thread computes sequences of its own, and reads all weights.)
  // invalid_parameter, too: a sequence with other weights than the first. The call runs on the pool
  // of one of the sequences, and no other call on this pool may run at the same time. Memory is
  // allocated if no call was as large before.
  using addition = specagg::addition<llama>;
  static status extend(std::span<addition> all) {
    llama* caller = nullptr;
    for (const addition& a : all)
      if (a.to->w_ == all[0].to->w_ && (!caller || a.to->capacity() > caller->capacity()))
        caller = a.to;
    if (!caller) return status::ok;
    auto& segments = caller->segments_;
    segments.clear();
    segments.reserve(all.size());
    try {
      for (addition& a : all) {
        const bool other = a.to->w_ != all[0].to->w_ || specagg::detail::again(all, a);
        a.why = other ? status::invalid_parameter : a.to->begin(a);
        segments.push_back({&a.to->text_, a.tokens.size(), a.logits, a.why});
      }
    } catch (const std::bad_alloc&) {  // for a tree or a page
      for (const addition& a : all) a.to->text_.cut_nodes(a.to->nodes_.size());
      throw;
    }
    append(all, segments, *caller->stack_.pool());
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].why == status::ok) all[i].why = all[i].to->end(all[i], segments[i].why);
    return specagg::detail::first_failure(all);
  }
  status keep_path(std::span<const std::uint32_t> nodes) {
    const status s = text_.keep_path(nodes);
    if (s != status::ok) return s;
    for (const std::uint32_t n : nodes) tokens_.push_back(nodes_[n - 1]);
    nodes_.clear();
    return s;
  }
  // The hidden state of a node (numbered from 1, as in parents) while the tree stands: the bits
  // that hidden() gives for its path alone. Empty if there is no such node, or hidden states were
  // not kept when it was read.
  std::span<const float> node_hidden(std::uint32_t node) const { return text_.node_hidden(node); }

  // Removes all tokens from `position` on. `position` must not be beyond the present one. Takes the
  // time to free their pages. A tree is removed.
  status rollback(std::size_t position) {
    text_.rollback(position);
    nodes_.clear();
    tokens_.resize(std::min(position, tokens_.size()));
    return status::ok;
  }

 private:
  static status extend_alone(addition one) { return extend(std::span(&one, 1)); }

  // If there are many tokens, each thread computes sequences of its own, so threads exchange
  // nothing. But each reads all weights, and they share the memory's bandwidth, so the more threads
  // there are, the more tokens each must have.
  static void append(std::span<const addition> all, std::span<segment> segments,
                     thread_pool& pool) {
    const std::size_t parts = pool.threads();
    std::size_t tokens = 0;
    for (const addition& a : all) tokens += a.tokens.size();
    const auto first_of = [&](std::size_t part) {
      std::size_t i = 0, before = 0;  // tokens
      for (; i < all.size() && (2 * before + all[i].tokens.size()) * parts < 2 * part * tokens; ++i)
        before += all[i].tokens.size();
      return i;
    };
    bool divided = parts > 1 && tokens >= 2 * parts * parts;
    for (std::size_t part = 0; part < parts && divided; ++part) {
      std::size_t some = 0;
      for (auto i = first_of(part), end = first_of(part + 1); i < end; ++i)
        some += all[i].tokens.size();
      divided = 4 * some * parts <= 5 * tokens;
    }
    if (!divided) return append(all, segments, false);
    pool.for_ranges(parts, 1, [&](std::size_t begin, std::size_t end) {
      for (; begin < end; ++begin) {
        const auto first = first_of(begin), count = first_of(begin + 1) - first;
        append(all.subspan(first, count), segments.subspan(first, count), true);
      }
    });
  }
  // Appends in one call, in the scratch memory of the sequence with the largest capacity.
  static void append(std::span<const addition> all, std::span<segment> segments, bool alone) {
    llama* in = nullptr;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (segments[i].why == status::ok && (!in || all[i].to->capacity() > in->capacity()))
        in = all[i].to;
    if (!in) return;
    const auto read = [&](std::size_t j, std::size_t begin, activations x) {
      for (Eigen::Index t = 0; t < x.rows(); ++t)
        read_row(in->w_->embedding, std::size_t(all[j].tokens[begin + std::size_t(t)]), &x(t, 0));
    };
    in->stack_.append(segments, read, alone);
  }

  // Checks the tokens to be appended, and adds the nodes of a tree.
  status begin(const addition& a) {
    const bool tree = !a.parents.empty();
    if (tree ? a.parents.size() != a.tokens.size() : text_.nodes() > 0 && !a.tokens.empty())
      return status::invalid_parameter;  // end the tree first
    if (const status s = text_.takes(a.tokens.size(), a.logits); s != status::ok) return s;
    for (const token_id token : a.tokens)
      if (token < 0 || std::size_t(token) >= w_->vocab) return status::token_out_of_range;
    const status s = tree ? text_.add_nodes(a.parents) : status::ok;
    if (s == status::ok) text_.open(a.tokens.size());
    return s;
  }
  // The tokens were appended to the keys and values, or not.
  status end(const addition& a, status why) {
    auto& to = a.parents.empty() ? tokens_ : nodes_;
    if (why == status::ok) to.insert(to.end(), a.tokens.begin(), a.tokens.end());
    else text_.cut_nodes(nodes_.size());
    return why;
  }

  std::shared_ptr<const llama_weights> w_;
  sequence text_;
  layer_stack stack_;
  std::vector<token_id> tokens_, nodes_;  // of the context; of a tree
  std::vector<segment> segments_;         // of a call
};

}  // namespace cpu
SPECAGG_END
