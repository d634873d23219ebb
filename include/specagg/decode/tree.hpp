// SPDX-License-Identifier: Apache-2.0
// Speculative decoding with a tree of drafts: propose several tokens after each other, score all
// nodes in one call of the target, verify, commit the accepted path, roll back the rest. Proved:
// proofs/decode.v, `tree_decode_has_law`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <specagg/decode/rounds.hpp>
#include <specagg/draft/drafter.hpp>
#include <specagg/draft/propose.hpp>
#include <specagg/verify/tree.hpp>

SPECAGG_BEGIN

struct tree_options {
  std::span<const std::size_t> shape = {};  // children of every node at depth 0, 1, ...
  proposal propose = proposal::greedy;
  sampling sample = {};  // for draft and target
  end_tokens end_of_text = {};
};
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

// All memory that a round needs, allocated once. T: the type of the logits.
template <class T>
struct tree_workspace {
  using row = processed_row<T>;
  std::size_t vocabulary, nodes, depth;
  std::vector<T> draft_logits, target_logits;  // (nodes + 1) x V, by node
  std::vector<row> draft_rows, target_rows;    // nodes + 1
  std::vector<proposal_row<row>> laws;         // nodes + 1: what each node was drawn from
  std::vector<token_id> tokens, path;          // nodes + 1: of node i at i - 1; of one path
  std::vector<std::uint32_t> parents, depths;  // nodes + 1: the same; at i
  // nodes + 1: of a tree that grows, R and q of plan/tree_growth.hpp
  std::vector<double> reached, shares;
  // nodes + depth + 1: what one call of a model appends
  std::vector<token_id> call_tokens;
  std::vector<std::uint32_t> call_parents;
  std::vector<tree_node> memory;               // nodes + 1
  std::vector<typename row::value_type> owed;  // depth x V
  std::vector<emission> emissions;             // depth + 1
  std::vector<double> scratch;

  // If the tree has more nodes than memory can be counted for, it is made for none: rounds are
  // refused. by_model: a model drafts; else its rows take no memory.
  tree_workspace(std::size_t vocab_size, std::span<const std::size_t> shape, bool by_model = true)
      : tree_workspace(vocab_size, shape.size(), tree_size(shape), by_model) {}
  // The same for trees of at most `levels` levels and `most` nodes.
  tree_workspace(std::size_t vocab_size, std::size_t levels, std::size_t most, bool by_model)
      : vocabulary(vocab_size),
        nodes(most < (std::size_t(1) << 48) / (vocabulary + 1) ? most : 0),
        depth(levels),
        draft_logits(by_model ? (nodes + 1) * vocabulary : 0),
        target_logits((nodes + 1) * vocabulary),
        draft_rows(nodes + 1),
        target_rows(nodes + 1),
        laws(nodes + 1),
        tokens(nodes + 1),
        path(nodes + 1),
        parents(nodes + 1),
        depths(nodes + 1),
        reached(nodes + 1),
        shares(nodes + 1),
        call_tokens(nodes + depth + 1),
        call_parents(nodes + depth + 1),
        memory(nodes + 1),
        owed(std::max<std::size_t>(depth, 1) * vocabulary),
        emissions(depth + 1),
        scratch(verify_scratch(vocabulary)) {}

  // The path to node n: its tokens, or the numbers of its nodes.
  template <class Word, class Of>
  std::span<Word> path_to(std::size_t n, std::vector<Word>& out, const Of& of) const {
    const std::size_t length = depths[n];
    for (std::size_t i = length; i-- > 0; n = parents[n - 1]) out[i] = of(n);
    return std::span(out).first(length);
  }
  std::span<token_id> tokens_to(std::size_t n) {
    return path_to(n, path, [&](std::size_t i) { return tokens[i - 1]; });
  }
};

namespace detail {

// Writes the logits after the nodes [first, end) of the tree; 0 is the text. The rows of nodes
// before `first` were computed by calls before. chain: written with first = 0; tokens at the text's
// end that the model had not read: they are the first nodes of its tree. A model without
// extend_tree reads each path by itself.
template <LogitSource M, class P, class T>
status score_tree(std::span<const token_id> text, tree_workspace<T>& work, std::size_t first,
                  std::size_t end, M& model, P& processor, std::span<T> logits,
                  std::size_t& chain) {
  const std::size_t V = work.vocabulary;
  const auto rows = logits.subspan(first * V, (end - first) * V);
  if constexpr (TreeSource<M>) {
    std::size_t count = 0;
    const auto add = [&](token_id token, std::size_t parent) {
      work.call_tokens[count] = token;
      work.call_parents[count++] = std::uint32_t(parent);
    };
    if (first == 0) {
      if (const status s = keep_prefix(text.first(text.size() - 1), model); s != status::ok)
        return s;
      // The first token is not one of them if there are more: a draft head has no row after it
      // alone.
      chain = std::min(text.size() - std::max<std::size_t>(model.position(), text.size() > 1),
                       work.depth + 1);
      if (const auto unread =
              text.subspan(model.position(), text.size() - chain - model.position());
          !unread.empty())
        if (const status s = model.extend(unread, {}); s != status::ok) return s;
      for (std::size_t i = 0; i < chain; ++i) add(text[text.size() - chain + i], i);
    }
    for (std::size_t n = std::max<std::size_t>(first, 1); n < end; ++n)
      add(work.tokens[n - 1], work.parents[n - 1] + chain);
    const auto tokens = std::span(work.call_tokens).first(count);
    const status s = model.extend_tree(tokens, std::span(work.call_parents).first(count), rows);
    if (s != status::ok) return s;
  } else {
    for (std::size_t n = first; n < end; ++n) {
      const auto path = work.tokens_to(n);
      if (const status s = keep_prefix(text.first(text.size() - (n == 0)), model); s != status::ok)
        return s;
      if (model.position() < text.size() && n > 0)
        if (const status s = model.extend(text.subspan(model.position()), {}); s != status::ok)
          return s;
      const auto next = n == 0 ? text.subspan(model.position()) : std::span<const token_id>(path);
      if (const status s = model.extend(next, rows.subspan((n - first) * V, V)); s != status::ok)
        return s;
    }
  }
  for (std::size_t n = first; n < end; ++n) {
    const auto path = work.tokens_to(n);
    std::size_t pushed = 0;
    const auto pop_all = [&] {
      for (; pushed > 0; --pushed) processor.pop();
    };
    const on_exception restore(pop_all);
    for (const token_id t : path) {
      (void)processor.push(t);
      ++pushed;
    }
    processor.apply(rows.subspan((n - first) * V, V));
    pop_all();
  }
  return status::ok;
}

// The model keeps the text, and of the tree the path to node n as far as it was scored (nodes below
// `scored`; 0: it was not asked).
template <LogitSource M, class T>
status keep_path_to(std::size_t n, std::size_t scored, std::size_t text_size,
                    [[maybe_unused]] std::size_t chain, tree_workspace<T>& work, M& model) {
  if constexpr (TreeSource<M>) {
    if (scored == 0) return status::ok;
    while (n >= scored) n = work.parents[n - 1];
    const auto nodes = std::span(work.call_parents).first(chain + work.depths[n]);
    for (std::size_t i = 0; i < chain; ++i) nodes[i] = std::uint32_t(i + 1);
    for (std::size_t i = nodes.size(); i > chain; n = work.parents[n - 1])
      nodes[--i] = std::uint32_t(n + chain);
    if (model.keep_path(nodes) == status::ok) return status::ok;
    return keep(text_size - chain, model);  // it reads the path again
  } else {
    return keep(text_size, model);
  }
}

}  // namespace detail

// What proposes certain tokens without a model (lookup_drafter): continuations(position, tokens)
// writes those that may follow position.tokens, the best first, and returns how many.
template <class D>
concept TreeDrafter =
    Follower<D> && requires(D& d, const draft_position& at, std::span<token_id> tokens) {
      { d.vocab_size() } -> std::convertible_to<std::size_t>;
      { d.continuations(at, tokens) } -> std::same_as<std::size_t>;
    };

// The tree has as many children everywhere as its shape says. Others grow: plan/tree_growth.hpp.
struct fixed_growth {
  static constexpr bool grows = false;
};

// The result of one round. drafted: nodes of the tree; accepted: of them, on the path that was
// kept. The rest as in speculative_result (decode/speculative.hpp).
struct tree_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok, draft_why = status::ok;
};

// Appends 1 to `most` tokens to the text (0 only if `why` is not ok), with exactly the law pi. The
// draft model is called once for each level of the tree, the target once (and once more for a
// prompt that it has not read). No allocation. A draft model that fails ends the tree there. A
// TreeDrafter in its place proposes up to options.shape[d] tokens after every node of depth d
// (options.propose is not read); then the policy may not read the draft (invalid_parameter).
//   work      made for options.shape, or for a larger one, and with a draft model if there is one:
//             else invalid_parameter
//   verifier  traversal or recursive_rejection
//   growth    fixed_growth, or an object with the public members of plan::tree_growth: it says
//             which nodes and levels are worth it. Then options.shape is how deep the tree may be
//             and how many children a node may have, `work` says how many nodes it may have;
//             children are the likeliest tokens, and one drawn from the rest where that is worth it
// A round that fails leaves text and growth as they were, as in speculative_round.
template <class D, LogitSource M, class Policy, Chooser C, class P, class V = traversal,
          class G = fixed_growth>
  requires TreeDrafter<D> ||
           (LogitSource<D> && std::same_as<typename D::value_type, typename M::value_type>)
tree_result tree_round(text& t, std::size_t most, D& draft_model, M& target_model,
                       const Policy& policy, C& chooser, P& processor, const tree_options& options,
                       tree_workspace<typename M::value_type>& work, const V& verifier = {},
                       G&& learned = {}) {
  using T = typename M::value_type;
  constexpr bool grows = std::remove_cvref_t<G>::grows;
  static_assert(LogitSource<D> || !grows, "specagg: a tree grows by the rows of a draft model");
  tree_result result;
  auto growth = learned;  // it learns only from a round that was verified
  const std::size_t start = t.size;
  const std::span<const token_id> before = t.tokens.first(start);
  result.why = most == 0 || !valid(policy) || options.shape.size() > work.depth ||
                       (!grows && tree_size(options.shape) > work.nodes) ||
                       (LogitSource<D> && work.draft_logits.empty())
                   ? status::invalid_parameter
                   : ready(t, work.vocabulary, target_model);
  if (std::size_t(draft_model.vocab_size()) != work.vocabulary)
    result.why = status::vocabulary_mismatch;
  if (result.why != status::ok) return result;
  // To before the last tokens of the text: there the trees begin.
  const auto roll_back = [&] {
    return keep(start - std::min(start, work.depth + 1), draft_model, target_model);
  };
  const auto fail = [&](status s) {
    (void)roll_back();
    return tree_result{.why = s, .draft_why = result.draft_why};
  };
  const on_exception restore([&] { (void)roll_back(); });

  const bool needs_draft = with_rule(
      policy, [](const auto& rule) { return reads_draft<std::remove_cvref_t<decltype(rule)>>; });
  constexpr bool by_model = LogitSource<D>;
  if (!by_model && needs_draft) return {.why = status::invalid_parameter};

  // Draft, level by level. The target must have room for all nodes, the text for the longest path
  // and one token.
  std::size_t draft_chain = 0, target_chain = 0;
  [[maybe_unused]] std::size_t draft_steps = 0;
  // the draft's row is known for nodes below `scored`; nodes below `end` exist
  std::size_t scored = 0, end = 1;
  const auto score_drafts = [&]([[maybe_unused]] std::size_t to) {
    if constexpr (by_model) {
      if (std::size_t(draft_model.capacity()) <
          start + (TreeSource<D> ? to - 1 : work.depths[to - 1]))
        return result.draft_why = status::context_full;
      result.draft_why = detail::score_tree(before, work, scored, to, draft_model, processor,
                                            std::span(work.draft_logits), draft_chain);
      ++draft_steps;
      for (; result.draft_why == status::ok && scored < to; ++scored)
        work.draft_rows[scored] = processed_row<T>(
            std::span(work.draft_logits).subspan(scored * work.vocabulary, work.vocabulary),
            options.sample);
    }
    return result.draft_why;
  };
  // Proposes up to b children of node n, at this depth, as the next nodes; returns how many.
  const auto propose = [&](std::size_t n, std::size_t at_depth, std::size_t b) {
    const auto tokens = std::span(work.tokens).subspan(end - 1, b);
    const auto laws = std::span(work.laws).subspan(end, b);
    if constexpr (grows) {
      auto& row = work.draft_rows[n];
      const double reached = work.reached[n];
      if (!growth.worth_node(reached)) return std::size_t(0);
      const auto children = [&](proposal kind, std::size_t count) {
        return propose_children(kind, row, end, std::uint32_t(at_depth), std::uint32_t(start),
                                chooser, tokens.first(count), laws.first(count), work.scratch);
      };
      // What of the row each of the likeliest tokens has; without temperature, where the row has
      // one token alone, of the untempered row.
      const bool tempered = options.sample.temperature > 0;
      const auto shares = std::span(work.shares).subspan(end, children(proposal::top, b));
      const target_rows<true, processed_row<T>> rows(row);
      for (std::size_t i = 0; i < shares.size(); ++i) {
        const auto seen = at(rows, std::size_t(tokens[i]));
        shares[i] = detail::as_double(tempered ? seen.p : seen.confidence_p);
      }
      const auto worth = growth.of_node(reached, shares, b, tempered);
      const std::size_t m = worth.likeliest,
                        count = worth.draws ? children(proposal::greedy, m + 1) : m;
      const std::size_t drawn = count - std::min(count, m);  // 0 or 1
      double rest = 1;
      for (std::size_t i = std::min(count, m); i-- > 0;) {  // the drawn one stands first
        const double share = work.shares[end + i];
        work.shares[end + drawn + i] = share;
        work.reached[end + drawn + i] = growth.of_likely(reached, share);
        rest -= share;
      }
      if (drawn > 0) {
        work.shares[end] = rest;
        work.reached[end] = growth.of_drawn(reached, rest);
      }
      return count;
    } else if constexpr (by_model) {
      return propose_children(options.propose, work.draft_rows[n], end, std::uint32_t(at_depth),
                              std::uint32_t(start), chooser, tokens, laws, work.scratch);
    } else {
      const auto path = work.tokens_to(n);
      // there is room for it
      std::copy(path.begin(), path.end(), t.tokens.begin() + std::ptrdiff_t(start));
      const std::size_t children =
          draft_model.continuations({t.tokens.first(start + path.size()), path.size()}, tokens);
      for (std::size_t i = 0; i < children; ++i)
        laws[i] = one_hot_row<typename processed_row<T>::value_type>(tokens[i], work.vocabulary);
      return children;
    }
  };
  const std::size_t depth = std::min(most, room(t, target_model) - start) - 1;
  std::size_t most_nodes = std::size_t(target_model.capacity()) - start;
  if constexpr (by_model && TreeSource<D>)
    if (needs_draft)  // its row may be needed after any leaf
      most_nodes =
          std::min(most_nodes, std::max<std::size_t>(draft_model.capacity(), start) - start);
  std::size_t level = 0;                    // the first node of the deepest level
  [[maybe_unused]] std::size_t levels = 0;  // drafted, also where no node was worth it
  work.depths[0] = 0;
  if constexpr (grows) {
    growth.begin();
    work.reached[0] = 1;
    most_nodes = std::min(most_nodes, work.nodes);
  }
  for (std::size_t d = 0; d < std::min(options.shape.size(), depth) && level < end; ++d) {
    if (end - 1 >= most_nodes) break;
    if constexpr (grows)
      if (!growth.worth_level(std::accumulate(work.reached.begin() + std::ptrdiff_t(level),
                                              work.reached.begin() + std::ptrdiff_t(end), 0.0)))
        break;
    if (score_drafts(end) != status::ok) break;
    const std::size_t level_end = end;
    ++levels;
    for (std::size_t n = level; n < level_end; ++n) {
      if (n > 0 && options.end_of_text.contains(work.tokens[n - 1])) continue;
      const std::size_t b = std::min(options.shape[d], most_nodes - std::min(most_nodes, end - 1));
      const std::size_t children = propose(n, d + 1, b);
      for (std::size_t i = 0; i < children; ++i) {
        work.parents[end - 1 + i] = std::uint32_t(n);
        work.depths[end + i] = std::uint32_t(d) + 1;
      }
      end += children;
    }
    level = level_end;
  }
  result.drafted = end - 1;
  if (result.draft_why == status::stopped) return fail(status::stopped);

  // Score.
  if (const status s = detail::score_tree(before, work, 0, end, target_model, processor,
                                          std::span(work.target_logits), target_chain);
      s != status::ok)
    return fail(s);

  // Verify. A rule that reads the draft may need the draft's row after a leaf: one more call.
  for (std::size_t n = 0; n < end; ++n)
    work.target_rows[n] = processed_row<T>(
        std::span(work.target_logits).subspan(n * work.vocabulary, work.vocabulary),
        options.sample);
  const auto p_rows = rows_of(end, [&](std::size_t n) -> const processed_row<T>& {
    // once; a verifier asks several times
    (void)work.target_rows[n].normalise(reads_confidence<Policy>);
    return work.target_rows[n];
  });
  const auto q_rows = rows_of(end, [&](std::size_t n) -> const processed_row<T>& {
    if (n >= scored && (result.draft_why != status::ok || score_drafts(end) != status::ok))
      work.draft_rows[n] = processed_row<T>();
    (void)work.draft_rows[n].normalise(reads_confidence<Policy>);
    return work.draft_rows[n];
  });
  const draft_tree tree{std::span(work.tokens).first(end - 1),
                        std::span(work.parents).first(end - 1), std::uint32_t(start),
                        options.end_of_text};
  const tree_verdict v = verifier.verify(
      tree, work.laws, q_rows, p_rows, policy, chooser, std::span(work.emissions),
      tree_scratch<typename processed_row<T>::value_type>{work.memory, work.owed, work.scratch});

  // Commit, roll back.
  const status kept = detail::keep_path_to(v.node, end, start, target_chain, work, target_model);
  status followed = status::ok;
  if constexpr (by_model)
    followed = detail::keep_path_to(v.node, scored, start, draft_chain, work, draft_model);
  for (std::size_t i = 0; i < v.emitted; ++i) append(t, work.emissions[i].token, processor);
  result.accepted = v.accepted;
  result.emitted = v.emitted;
  if constexpr (grows) {
    const bool ended = v.node > 0 && options.end_of_text.contains(work.tokens[v.node - 1]);
    const auto is_drawn = [&](std::size_t n) { return work.laws[n].row.index() == 0; };
    typename std::remove_cvref_t<G>::path_record path{.levels =
                                                          std::min(levels, v.accepted + !ended)};
    for (std::size_t n = v.node;; n = work.parents[n - 1]) {
      for (std::size_t i = 1; i < end; ++i)
        if (work.parents[i - 1] == n) (is_drawn(i) ? path.drawn : path.likely) += work.shares[i];
      if (n == 0) break;
      ++(is_drawn(n) ? path.accepted_drawn : path.accepted_likely);
    }
    growth.observe(path, v.emitted, draft_steps, end - 1);
    if constexpr (!std::is_const_v<std::remove_reference_t<G>>) learned = growth;
  }
  // If the law needed the row that the draft model did not give, report why it did not.
  const bool lacks_row =
      needs_draft && v.why != status::ok && v.node >= scored && result.draft_why != status::ok;
  result.why = lacks_row             ? result.draft_why
               : v.why != status::ok ? v.why
               : kept != status::ok  ? kept
                                     : followed;
  return result;
}

// Runs rounds as decode_rounds does. after_round(result, workspace) is called after each.
template <class D, LogitSource M, class Policy, Chooser C, class P, class W, class Accept,
          class AfterRound, class V = traversal, class G = fixed_growth>
status tree_decode(text& t, std::size_t most, D& draft_model, M& target_model, const Policy& policy,
                   C& chooser, P& processor, const tree_options& options, W& work, Accept&& accept,
                   AfterRound&& after_round, const V& verifier = {}, G&& growth = {}) {
  const auto round = [&](std::size_t left) {
    const auto r = tree_round(t, left, draft_model, target_model, policy, chooser, processor,
                              options, work, verifier, growth);
    after_round(r, work);
    return r;
  };
  const auto cut = [&](std::size_t n) {
    return truncate(t, n, processor, draft_model, target_model);
  };
  const on_exception restore([&] { (void)cut(t.size); });  // accept() or after_round() threw
  return decode_rounds(t, most, options.end_of_text, work.emissions, round, cut, accept);
}

SPECAGG_END
