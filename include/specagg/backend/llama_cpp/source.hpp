// SPDX-License-Identifier: Apache-2.0
// A sequence of a llama_context as a source of logits: any model that llama.cpp runs, wherever it
// runs it. Several sequences of one context can be extended in one call.
//
// libllama computes calls of different sizes by different code, so a row may differ in its last
// bits, or by more, with the number of tokens in the call (docs/llama_cpp.md).
// source_options::exact_batches makes all calls alike.
#pragma once
#include <llama.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/backend/engine_source.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace llama_cpp {

// Which sequences of the context a source has for itself, and how it calls libllama.
struct source_options {
  llama_seq_id sequence = 0;  // that of the text
  // Trees of drafts: branches are kept in the sequences first_branch, first_branch + 1, ... A tree
  // may have one leaf more than there are branches. Trees need a context with kv_unified, and a
  // model without a recurrent state.
  llama_seq_id first_branch = 1;
  std::size_t branches = 0;
  // 0: libllama gets as many tokens in a call as there are. n: every call has exactly n tokens.
  // Shorter ones are filled up with tokens that are removed again, which takes room for n - 1
  // tokens. 1 needs nothing but that libllama computes equal calls equally. At most n_batch of the
  // context.
  std::size_t exact_batches = 0;
};

// A LogitSource and a TreeSource (logit_source.hpp). The context must outlive it; other sequences
// of the context may be used in between. Memory is allocated by the constructor and for trees.
class source {
 public:
  using value_type = float;

  // The sequence is emptied.
  explicit source(llama_context* context, const source_options& options = {})
      : context_(context),
        memory_(llama_get_memory(context)),
        options_(options),
        vocab_(std::size_t(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context))))),
        window_(llama_model_n_swa(llama_get_model(context))),
        most_(options.exact_batches ? options.exact_batches : llama_n_batch(context)),
        tokens_(most_),
        positions_(most_),
        counts_(most_, 1),
        sequences_(most_),
        wanted_(most_) {
    const llama_model* const model = llama_get_model(context);
    // With one sequence, or all of them in one buffer, a sequence has all of the context.
    const bool unified = llama_n_ctx_seq(context) == llama_n_ctx(context);
    trees_ = options.branches > 0 && options.exact_batches == 0 && unified &&
             !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
    text_.reserve(capacity());
    remove(options_.sequence, -1);
  }
  source(const source&) = delete;
  source& operator=(const source&) = delete;
  ~source() {
    if (stop_) stop_when(nullptr);
  }

  std::size_t vocab_size() const { return vocab_; }
  std::size_t capacity() const {
    const std::size_t padding = options_.exact_batches ? options_.exact_batches - 1 : 0;
    return std::max<std::size_t>(llama_n_ctx_seq(context_), padding) - padding;
  }
  std::size_t position() const { return text_.size() + nodes_.size(); }
  std::span<const token_id> tokens() const { return text_; }  // without a tree's
  bool scores_trees() const { return trees_; }
  llama_context* context() const { return context_; }
  const source_options& options() const { return options_; }

  // While *flag is true, calls end with status::stopped, on the CPU within a call. Any thread may
  // set the flag. The context has one such flag. Null: never stop.
  void stop_when(const std::atomic<bool>* flag) {
    stop_ = flag;
    const auto ask = [](void* self) { return static_cast<const source*>(self)->stopped(); };
    llama_set_abort_callback(context_, flag ? +ask : nullptr, flag ? this : nullptr);
  }

  // Appends the tokens, and copies the logits after each of the last logits.size() / V tokens, one
  // row of V each. On any status but ok nothing was appended. If libllama failed and its memory
  // also refuses to go back (a recurrent state), all tokens are forgotten: position() is 0.
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    const std::size_t rows = logits.size() / vocab_;
    if (rows * vocab_ != logits.size()) return status::invalid_parameter;
    return append(tokens, rows,
                  [&](std::size_t j, std::size_t in_call) { copy_row(in_call, logits, j); });
  }

  // The member of a BatchLogitSource (logit_source.hpp), for sequences of one context: in as few
  // calls of libllama as hold n_batch tokens. Trees, longer additions, and in exact batches all
  // additions have calls of their own. If libllama fails, all additions of its call fail.
  using addition = specagg::addition<source>;
  static status extend(std::span<addition> all) {
    std::size_t begin = 0, count = 0;  // of those that wait for a call; their tokens
    for (std::size_t i = 0; i < all.size(); ++i) {
      addition& a = all[i];
      const std::size_t numbers = a.logits.size(), vocab = a.to->vocab_;
      const bool other = a.to->context_ != all[0].to->context_ || detail::again(all, a);
      a.why = a.parents.empty() ? a.to->takes(a.tokens, numbers / vocab) : status::ok;
      if (other || numbers % vocab != 0) a.why = status::invalid_parameter;
      if (a.why != status::ok) continue;
      if (called_alone(a)) {
        a.why = a.parents.empty() ? a.to->extend(a.tokens, a.logits)
                                  : a.to->extend_tree(a.tokens, a.parents, a.logits);
        continue;
      }
      if (count + a.tokens.size() > a.to->most_) {
        call_together(all.subspan(begin, i - begin));
        begin = i;
        count = 0;
      }
      count += a.tokens.size();
    }
    call_together(all.subspan(begin));
    return detail::first_failure(all);
  }

  // extend() without a copy: row(j) is the row of the j-th of the last `rows` tokens. They must be
  // in one call of libllama: more than n_batch rows, or exact_batches, are an invalid_parameter.
  status decode(std::span<const token_id> tokens, std::size_t rows) {
    if (rows > most_) return status::invalid_parameter;
    return append(tokens, rows, [&](std::size_t j, std::size_t in_call) {
      if (j == 0) first_row_ = in_call;
    });
  }
  // V logits in libllama's memory, valid until the next call of libllama for this context. They may
  // be changed.
  std::span<float> row(std::size_t j) const {
    return {llama_get_logits_ith(context_, std::int32_t(first_row_ + j)), vocab_};
  }
  // The members of a HiddenSource (logit_source.hpp). The hidden states that the rows of the last
  // call of libllama come from, in its memory, until its next call for this context. Empty at other
  // positions, and unless the context gives embeddings (llama_context_params::embeddings, or
  // llama_set_embeddings).
  std::size_t hidden_size() const {
    return std::size_t(llama_model_n_embd_out(llama_get_model(context_)));
  }
  std::span<const float> hidden(std::size_t i) const {
    if (!nodes_.empty() || i < hidden_begin_ || i >= text_.size()) return {};
    const auto in_call = std::int32_t(first_hidden_ + (i - hidden_begin_));
    const float* const at = llama_get_embeddings_ith(context_, in_call);
    return {at, at ? hidden_size() : 0};
  }

  // Removes all tokens from `position` on, a tree too. rollback_refused: the model cannot (a
  // recurrent state; a window of attention whose older tokens are gone), and nothing was removed.
  // Position 0 is never refused.
  status rollback(std::size_t position) {
    if (!nodes_.empty()) remove_tree();
    if (position >= text_.size()) return status::ok;
    if (position > 0 && window_ > 0) {
      const auto oldest = llama_pos(position) - window_;
      if (llama_memory_seq_pos_min(memory_, options_.sequence) > std::max<llama_pos>(0, oldest))
        return status::rollback_refused;
    }
    if (!remove(options_.sequence, position == 0 ? -1 : llama_pos(position)))
      return status::rollback_refused;
    text_.resize(position);
    if (position < hidden_begin_) hidden_begin_ = none;
    return status::ok;
  }

  // The keys and values of the text, for restore() of a source of the same model file. Empty: it
  // cannot be had.
  [[nodiscard]] std::vector<std::uint8_t> save() const {
    std::vector<std::uint8_t> bytes(llama_state_seq_get_size(context_, options_.sequence));
    bytes.resize(llama_state_seq_get_data(context_, bytes.data(), bytes.size(), options_.sequence));
    return bytes;
  }
  // The source's text becomes the saved text, whose tokens these are. On any status but ok the text
  // is empty.
  status restore(std::span<const std::uint8_t> bytes, std::span<const token_id> tokens) {
    if (!nodes_.empty()) remove_tree();
    go_back(0);
    if (tokens.size() > capacity()) return status::context_full;
    if (llama_state_seq_set_data(context_, bytes.data(), bytes.size(), options_.sequence) == 0 ||
        llama_memory_seq_pos_max(memory_, options_.sequence) + 1 != llama_pos(tokens.size())) {
      go_back(0);
      return status::model_failed;
    }
    text_.assign(tokens.begin(), tokens.end());
    return status::ok;
  }

  // The members of a TreeSource. Each path to a leaf is a sequence of libllama. Its cells are not
  // in a row, so a row need not have the bits that its path alone has. context_full, too: more
  // leaves than branches + 1. invalid_parameter: the source scores no trees.
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<float> logits) {
    const std::size_t rows = logits.size() / vocab_, before = nodes_.size();
    if (!trees_ || parents.size() != tokens.size() || rows * vocab_ != logits.size())
      return status::invalid_parameter;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (parents[i] > before + i) return status::invalid_parameter;
    if (const status s = detail::refusal(tokens, rows, vocab_, capacity() - position());
        s != status::ok)
      return s;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (!add_node(tokens[i], parents[i])) {
        cut_tree(before);
        return status::context_full;
      }
    for (std::size_t from = before; from < nodes_.size(); from += most_) {
      const std::size_t to = std::min(from + most_, nodes_.size()),
                        first_row = nodes_.size() - rows;
      if (const status s = decode_nodes(from, to, first_row); s != status::ok) {
        cut_tree(before);
        return s;
      }
      for (std::size_t n = std::max(from, first_row); n < to; ++n)
        copy_row(n - from, logits, n - first_row);
    }
    return status::ok;
  }
  status keep_path(std::span<const std::uint32_t> path) {
    std::uint32_t last = 0;
    for (const std::uint32_t n : path) {
      if (n == 0 || n > nodes_.size() || nodes_[n - 1].parent != last)
        return status::invalid_parameter;
      last = n;
    }
    if (nodes_.empty()) return status::ok;
    const std::size_t begin = text_.size(), end = begin + path.size();
    if (const llama_seq_id kept = sequence_of(last); kept == options_.sequence) {
      remove(kept, llama_pos(end));
    } else {
      remove(options_.sequence, llama_pos(begin));
      llama_memory_seq_cp(memory_, kept, options_.sequence, llama_pos(begin), llama_pos(end));
    }
    for (const std::uint32_t n : path) text_.push_back(nodes_[n - 1].token);
    forget_nodes();
    return status::ok;
  }

 private:
  struct node {
    token_id token;
    std::uint32_t parent;   // 0: the text
    std::uint32_t depth;    // the parent's + 1; 0: a child of the text
    llama_seq_id sequence;  // which holds the path to it
    bool begins_sequence;
    bool continued;  // a child is in the same sequence
    // of the token: all, with those that branch off below it in the call
    std::vector<llama_seq_id> sequences;
  };

  bool stopped() const { return stop_ && stop_->load(std::memory_order_relaxed); }
  bool remove(llama_seq_id sequence, llama_pos from) {
    return llama_memory_seq_rm(memory_, sequence, from, -1);
  }
  void copy_row(std::size_t in_call, std::span<float> logits, std::size_t j) const {
    std::copy_n(llama_get_logits_ith(context_, std::int32_t(in_call)), vocab_,
                logits.data() + j * vocab_);
  }

  status takes(std::span<const token_id> tokens, std::size_t rows) const {
    if (!nodes_.empty()) return status::invalid_parameter;
    return detail::refusal(tokens, rows, vocab_, capacity() - std::min(text_.size(), capacity()));
  }
  // Token k of the call that is made: the `ahead`-th after the text of `of`.
  void put(std::size_t k, source& of, token_id token, std::size_t ahead, bool wanted) {
    tokens_[k] = token;
    positions_[k] = llama_pos(of.text_.size() + ahead);
    counts_[k] = 1;
    sequences_[k] = &of.options_.sequence;
    wanted_[k] = wanted;
  }
  // take(j, k): the row of the j-th of the last `rows` tokens is that of token k of the call that
  // was made last.
  status append(std::span<const token_id> tokens, std::size_t rows, auto&& take) {
    if (const status s = takes(tokens, rows); s != status::ok) return s;
    const std::size_t before = text_.size(), first_row = tokens.size() - rows;
    for (std::size_t i = 0; i < tokens.size();) {
      std::size_t n = std::min(most_, tokens.size() - i);
      const std::size_t left = tokens.size() - i - n;
      // all rows in the last call
      if (left > 0 && left < rows && rows <= most_) n = tokens.size() - rows - i;
      const std::size_t in_call = std::max(n, options_.exact_batches);
      for (std::size_t k = 0; k < in_call; ++k) {
        // libllama computes the last layer for wanted rows alone: in exact batches for all rows of
        // a call, or none.
        const bool wanted = options_.exact_batches ? i + n > first_row : i + k >= first_row;
        put(k, *this, tokens[i + std::min(k, n - 1)], k, wanted);  // filled up with the last
      }
      if (const status s = call(in_call); s != status::ok) {
        go_back(before);
        return s;
      }
      const std::span<const token_id> fed = tokens.subspan(i, n);
      text_.insert(text_.end(), fed.begin(), fed.end());
      i += n;
      first_hidden_ = n - std::min(n, i - std::min(i, first_row));
      hidden_begin_ = text_.size() - (n - first_hidden_);
      if (in_call > n && !remove(options_.sequence, llama_pos(text_.size()))) {
        go_back(before);
        return status::rollback_refused;
      }
      for (std::size_t k = 0; k < n; ++k)
        if (i - n + k >= first_row) take(i - n + k - first_row, k);
    }
    return status::ok;
  }
  static bool called_alone(const addition& a) {
    return !a.parents.empty() || a.to->options_.exact_batches || a.tokens.size() > a.to->most_;
  }
  // One call for all of `some` that are ok and have none of their own.
  static void call_together(std::span<addition> some) {
    const auto for_each = [&](auto&& body) {
      for (addition& a : some)
        if (a.why == status::ok && !called_alone(a)) body(a, a.logits.size() / a.to->vocab_);
    };
    source* caller = nullptr;
    std::size_t k = 0;
    for_each([&](addition& a, std::size_t rows) {
      if (!caller) caller = a.to;
      for (std::size_t i = 0; i < a.tokens.size(); ++i)
        caller->put(k++, *a.to, a.tokens[i], i, i + rows >= a.tokens.size());
    });
    if (k == 0) return;
    const status s = caller->call(k);
    k = 0;
    for_each([&](addition& a, std::size_t rows) {
      a.why = s;
      if (s != status::ok) return a.to->go_back(a.to->text_.size());
      k += a.tokens.size();
      a.to->text_.insert(a.to->text_.end(), a.tokens.begin(), a.tokens.end());
      a.to->hidden_begin_ = a.to->text_.size() - rows;
      a.to->first_hidden_ = k - rows;
      for (std::size_t j = 0; j < rows; ++j) a.to->copy_row(k - rows + j, a.logits, j);
    });
  }
  status call(std::size_t n) {
    if (stopped()) return status::stopped;
    hidden_begin_ = none;
    const auto count = std::int32_t(n);
    switch (llama_decode(context_, {count, tokens_.data(), nullptr, positions_.data(),
                                    counts_.data(), sequences_.data(), wanted_.data()})) {
      case 0: return status::ok;
      case 1: return status::context_full;
      case 2: return status::stopped;
      default: return status::model_failed;
    }
  }
  void go_back(std::size_t position) {
    const bool gone = position > 0 && remove(options_.sequence, llama_pos(position));
    if (!gone) remove(options_.sequence, -1);
    text_.resize(gone ? position : 0);
  }

  llama_seq_id sequence_of(std::uint32_t n) const {
    return n == 0 ? options_.sequence : nodes_[n - 1].sequence;
  }
  bool& continued(std::uint32_t n) { return n == 0 ? text_continued_ : nodes_[n - 1].continued; }
  llama_pos position_of(const node& n) const { return llama_pos(text_.size() + n.depth); }

  // False: there is no sequence for it.
  bool add_node(token_id token, std::uint32_t parent) {
    node n{token,
           parent,
           parent == 0 ? 0 : nodes_[parent - 1].depth + 1,
           sequence_of(parent),
           continued(parent),
           false,
           {}};
    if (n.begins_sequence) {
      if (branches_used_ == options_.branches) return false;
      n.sequence = options_.first_branch + llama_seq_id(branches_used_++);
    }
    continued(parent) = true;
    nodes_.push_back(std::move(n));
    return true;
  }
  // One call for the nodes [from, to), counted from 0. A sequence that begins here gets the path
  // before it: nodes of this call by being listed with them, older ones and the text by a copy
  // (libllama copies no numbers for that).
  status decode_nodes(std::size_t from, std::size_t to, std::size_t first_row) {
    for (std::size_t i = from; i < to; ++i) {
      node& n = nodes_[i];
      n.sequences.assign(1, n.sequence);
      if (!n.begins_sequence) continue;
      std::uint32_t above = n.parent;
      for (; above > from; above = nodes_[above - 1].parent)
        nodes_[above - 1].sequences.push_back(n.sequence);
      const auto end = above == 0 ? llama_pos(text_.size()) : position_of(nodes_[above - 1]) + 1;
      remove(n.sequence, -1);
      if (end > 0) llama_memory_seq_cp(memory_, sequence_of(above), n.sequence, 0, end);
    }
    for (std::size_t i = from; i < to; ++i) {
      node& n = nodes_[i];
      tokens_[i - from] = n.token;
      positions_[i - from] = position_of(n);
      counts_[i - from] = std::int32_t(n.sequences.size());
      sequences_[i - from] = n.sequences.data();
      wanted_[i - from] = i >= first_row;
    }
    return call(to - from);
  }
  // Removes all nodes but the first `kept`.
  void cut_tree(std::size_t kept) {
    for (; nodes_.size() > kept; nodes_.pop_back()) {
      const node& last = nodes_.back();
      remove(last.sequence, last.begins_sequence ? -1 : position_of(last));
      if (last.begins_sequence) --branches_used_;
      else continued(last.parent) = false;
    }
  }
  void remove_tree() {
    remove(options_.sequence, llama_pos(text_.size()));
    forget_nodes();
  }
  void forget_nodes() {
    for (; branches_used_ > 0; --branches_used_)
      remove(options_.first_branch + llama_seq_id(branches_used_ - 1), -1);
    nodes_.clear();
    text_continued_ = false;
  }

  llama_context* context_;
  llama_memory_t memory_;
  source_options options_;
  std::size_t vocab_;
  llama_pos window_;  // of attention; 0: all tokens
  std::size_t most_;  // tokens in a call
  bool trees_ = false;
  static constexpr std::size_t none = std::size_t(-1);
  std::vector<token_id> text_;
  std::size_t first_row_ = 0;
  // the first position with a hidden state, its place in the call
  std::size_t hidden_begin_ = none, first_hidden_ = 0;
  const std::atomic<bool>* stop_ = nullptr;
  // The call that is made, token by token.
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<std::int32_t> counts_;
  std::vector<llama_seq_id*> sequences_;
  std::vector<std::int8_t> wanted_;
  // The tree.
  std::size_t branches_used_ = 0;
  bool text_continued_ = false;
  std::vector<node> nodes_;
};

}  // namespace llama_cpp
SPECAGG_END
