// SPDX-License-Identifier: Apache-2.0
// The calls of a model that reads a tree of drafts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include <specagg/decode/tree_workspace.hpp>
#include <specagg/text.hpp>

SPECAGG_BEGIN
namespace detail {

// A model that reads a tree of drafts after a text. Node 0 is the text.
template <class M>
struct tree_reader {
  M& model;
  std::size_t scored = 0;  // the rows of the nodes before this one are known
  // Tokens at the text's end that the model had not read: they are the first nodes of its tree.
  std::size_t chain = 0;

  // Writes the logits after the nodes [scored, end).
  template <class T, class P>
  status score(std::span<const token_id> text, tree_workspace<T>& work, std::size_t end,
               P& processor, std::span<T> all_logits) {
    const std::size_t V = work.vocabulary;
    const auto logits = all_logits.subspan(scored * V, (end - scored) * V);
    if (const status s = read(text, work, end, logits); s != status::ok) return s;
    for (std::size_t n = scored; n < end; ++n)
      process(work.tokens_to(n), processor, logits.subspan((n - scored) * V, V));
    scored = end;
    return status::ok;
  }

  // The model keeps the text, and of the tree the path to node n as far as it was scored.
  template <class T>
  status keep_path(std::size_t n, std::size_t text_size, tree_workspace<T>& work) {
    if constexpr (TreeSource<M>) {
      if (scored == 0) return status::ok;  // it was not asked
      while (n >= scored) n = work.parents[n - 1];
      const auto nodes = std::span(work.call_parents).first(chain + work.depths[n]);
      for (std::size_t i = 0; i < chain; ++i) nodes[i] = std::uint32_t(i + 1);
      for (std::size_t i = nodes.size(); i > chain; n = work.parents[n - 1])
        nodes[--i] = std::uint32_t(n + chain);
      if (model.keep_path(nodes) == status::ok) return status::ok;
      return specagg::rollback(text_size - chain, model);  // it reads the path again
    } else {
      return specagg::rollback(text_size, model);
    }
  }

 private:
  // One call for all nodes.
  template <class T>
  status read(std::span<const token_id> text, tree_workspace<T>& work, std::size_t end,
              std::span<T> logits)
    requires TreeSource<M>
  {
    std::size_t count = 0;
    const auto add = [&](token_id token, std::size_t parent) {
      work.call_tokens[count] = token;
      work.call_parents[count++] = std::uint32_t(parent);
    };
    if (scored == 0) {
      if (const status s = read_text(text, work.depth + 1); s != status::ok) return s;
      for (std::size_t i = 0; i < chain; ++i) add(text[text.size() - chain + i], i);
    }
    for (std::size_t n = std::max<std::size_t>(scored, 1); n < end; ++n)
      add(work.tokens[n - 1], work.parents[n - 1] + chain);
    return model.extend_tree(std::span(work.call_tokens).first(count),
                             std::span(work.call_parents).first(count), logits);
  }
  // Reads the text but for the last 1 to `longest` tokens, the chain.
  status read_text(std::span<const token_id> text, std::size_t longest) {
    if (const status s = detail::keep_prefix(text.first(text.size() - 1), model); s != status::ok)
      return s;
    // The first token is not one of them if there are more: a draft head has no row after it alone.
    const std::size_t position = model.position();
    chain = std::min(text.size() - std::max<std::size_t>(position, text.size() > 1), longest);
    const auto unread = text.subspan(position, text.size() - chain - position);
    return unread.empty() ? status::ok : model.extend(unread, {});
  }
  // A model without extend_tree reads each path by itself.
  template <class T>
  status read(std::span<const token_id> text, tree_workspace<T>& work, std::size_t end,
              std::span<T> logits) {
    for (std::size_t n = scored; n < end; ++n) {
      const auto path = work.tokens_to(n);
      if (const status s = detail::keep_prefix(text.first(text.size() - (n == 0)), model);
          s != status::ok)
        return s;
      const auto unread = text.subspan(model.position());
      if (!unread.empty() && n > 0)
        if (const status s = model.extend(unread, {}); s != status::ok) return s;
      const auto row = logits.subspan((n - scored) * work.vocabulary, work.vocabulary);
      const status s = model.extend(n == 0 ? unread : std::span<const token_id>(path), row);
      if (s != status::ok) return s;
    }
    return status::ok;
  }
  // Processes the row after a path.
  template <class P, class T>
  static void process(std::span<const token_id> path, P& processor, std::span<T> row) {
    std::size_t pushed = 0;
    const auto pop_all = [&] {
      for (; pushed > 0; --pushed) processor.pop();
    };
    const on_exception restore(pop_all);
    for (const token_id t : path) {
      (void)processor.push(t);
      ++pushed;
    }
    processor.apply(row);
    pop_all();
  }
};

}  // namespace detail
SPECAGG_END
