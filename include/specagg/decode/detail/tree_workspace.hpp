// SPDX-License-Identifier: Apache-2.0
// The memory of a round with a tree of drafts, and the calls of models that read such a tree.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/draft/propose.hpp>
#include <specagg/text.hpp>

SPECAGG_BEGIN

// Nodes of a tree of this shape, without its root. SIZE_MAX if there are more than can be counted.
constexpr std::size_t tree_size(std::span<const std::size_t> shape) {
  constexpr std::size_t most = std::size_t(-1);
  std::size_t nodes = 0;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 0 && nodes + 1 > most / shape[d]) return most;
    nodes = shape[d] * (nodes + 1);
  }
  return nodes;
}

// What the workspace of tree_decode (decode/tree.hpp) is made with.
struct tree_options {
  // children of every node at depth 0, 1, ...; must outlive the options and the workspace
  std::span<const std::size_t> shape = {};
  proposal propose = proposal::greedy;
  sampling sample = {};  // for draft and target
  end_tokens end_of_text = {};
  std::size_t most_nodes = std::size_t(-1);  // of a tree; those that come first are drafted
  // Nodes of the largest tree.
  std::size_t nodes() const { return std::min(specagg::tree_size(shape), most_nodes); }
};

// All memory that a round needs, allocated once, for trees as large as those of the options; and
// the options. These may be changed between rounds, but for larger trees. No more is kept for the
// next round; any text may use it then. T: the type of the logits.
template <class T>
struct tree_workspace {
  using row = normal_form<processed_row<T>>;
  tree_options options;
  std::size_t vocabulary, nodes, depth;  // nodes, depth: that there is memory for
  // By node; 0 is the text.
  std::vector<T> draft_logits, target_logits = std::vector<T>((nodes + 1) * vocabulary);
  std::vector<row> draft_rows = std::vector<row>(nodes + 1), target_rows = draft_rows;
  // What each node was drawn from.
  std::vector<proposal_row<row>> laws = std::vector<proposal_row<row>>(nodes + 1);
  std::vector<std::uint32_t> depths = std::vector<std::uint32_t>(nodes + 1);
  // Of a tree that grows: R and q of plan/tree_growth.hpp.
  std::vector<double> reached = std::vector<double>(nodes + 1), shares = reached;
  std::vector<tree_node> memory = std::vector<tree_node>(nodes + 1);
  // Of node i at i - 1.
  std::vector<token_id> tokens = std::vector<token_id>(nodes + 1);
  std::vector<std::uint32_t> parents = depths;
  std::vector<token_id> path = tokens;  // of one path
  // What one call of a model appends.
  std::vector<token_id> call_tokens = std::vector<token_id>(nodes + depth + 1);
  std::vector<std::uint32_t> call_parents = std::vector<std::uint32_t>(nodes + depth + 1);
  std::vector<typename row::value_type> residual =
      std::vector<typename row::value_type>(std::max<std::size_t>(depth, 1) * vocabulary);
  std::vector<emission> emissions = std::vector<emission>(depth + 1);
  std::vector<double> scratch = std::vector<double>(verify_scratch(vocabulary));

  // If the tree has more nodes than memory can be counted for, it is made for none: rounds are
  // refused. by_model: a model drafts; else its rows take no memory.
  tree_workspace(std::size_t vocab_size, const tree_options& of, bool by_model = true)
      : options(of),
        vocabulary(vocab_size),
        nodes(options.nodes() < (std::size_t(1) << 48) / (vocabulary + 1) ? options.nodes() : 0),
        depth(options.shape.size()),
        draft_logits(by_model ? (nodes + 1) * vocabulary : 0) {}

  // The path to node n: its tokens, or the numbers of its nodes.
  template <class Word, class Of>
  std::span<Word> path_to(std::size_t n, std::vector<Word>& out, const Of& of) const {
    const std::size_t length = depths[n];
    for (std::size_t i = length; i-- > 0; n = parents[n - 1]) out[i] = of(n);
    return std::span(out).first(length);
  }
  // The tokens after the text on the path to node n; in `path`, until the next call.
  std::span<token_id> tokens_to(std::size_t n) {
    return path_to(n, path, [&](std::size_t i) { return tokens[i - 1]; });
  }
};

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
    const detail::on_exception restore(pop_all);
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
