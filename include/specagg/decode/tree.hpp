// SPDX-License-Identifier: Apache-2.0
// Speculative decoding with a tree of drafts: propose several tokens after each other, score all
// nodes in one call of the target, verify, commit the accepted path, roll back the rest. Proved:
// proofs/decode.v, `tree_decode_has_law`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include <specagg/decode/detail/tree_reader.hpp>
#include <specagg/decode/request.hpp>
#include <specagg/decode/rounds.hpp>
#include <specagg/decode/tree_workspace.hpp>
#include <specagg/draft/detail/grow.hpp>
#include <specagg/draft/drafter.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// A drafter of certain tokens, without a model (lookup_drafter): continuations(position, tokens)
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

namespace detail {

// One round of tree_round. G is const where nothing is to be learned.
template <class D, class M, class Policy, class C, class V, class G>
struct tree_speculation {
  using T = typename M::value_type;
  using row = normal_form<processed_row<T>>;
  static constexpr bool by_model = LogitSource<D>, grows = G::grows;

  text& t;
  std::size_t most;
  D& drafter;
  M& target;
  const Policy& policy;
  C& chooser;
  processor_ref<T> processor;
  tree_workspace<T>& work;
  const V& verifier;
  G& learned;

  const tree_options& options = work.options;
  const bool needs_draft = detail::needs_draft(policy);
  const std::size_t start = t.size;
  const std::span<const token_id> before = t.tokens.first(start);
  tree_result made = {};
  // It learns only from a round that was verified.
  growing_tree<std::remove_const_t<G>> tree = {learned, work.reached, work.shares};
  tree_reader<D> draft_reader = {drafter};
  tree_reader<M> target_reader = {target};
  std::size_t end = 1;  // nodes, the text included
  // levels: drafted, also where no node was worth it; steps: calls of the draft model
  std::size_t levels = 0, steps = 0;
  tree_verdict decided = {};

  const tree_result& result() const { return made; }
  bool runs() const { return made.why == status::ok; }
  void begin() { made.why = refused(); }
  status refused() const {
    if (std::size_t(drafter.vocab_size()) != work.vocabulary) return status::vocabulary_mismatch;
    if (most == 0 || !specagg::valid(policy) || options.shape.size() > work.depth ||
        options.nodes() > work.nodes || (by_model ? work.draft_logits.empty() : needs_draft))
      return status::invalid_parameter;
    return detail::ready(t, work.vocabulary, target);
  }

  // Trees begin with tokens at the text's end: all models go back to before them.
  void roll_back() {
    (void)specagg::rollback(start - std::min(start, work.depth + 1), drafter, target);
  }
  void fail(status why) {
    roll_back();
    made = {.why = why, .draft_why = made.draft_why};
  }

  // Level by level. The target must have room for all nodes, the text for the longest path and one
  // token.
  status draft() {
    const std::size_t depth =
        std::min({options.shape.size(), most - 1, detail::room(t, target) - start - 1});
    const std::size_t nodes = most_nodes();
    std::size_t first = 0;  // node of the deepest level
    work.depths[0] = 0;
    if constexpr (grows) tree.begin();
    for (std::size_t d = 0; d < depth && first < end && end <= nodes; ++d) {
      if constexpr (grows)
        if (!tree.worth_level(first, end)) break;
      if (score_drafts() != status::ok) break;
      ++levels;
      const std::size_t level_end = end;
      for (std::size_t n = first; n < level_end; ++n)
        if (!ends_text(n)) add_children(n, std::min(options.shape[d], nodes - (end - 1)));
      first = level_end;
    }
    made.drafted = end - 1;
    return made.draft_why == status::stopped ? status::stopped : status::ok;
  }
  std::size_t most_nodes() const {
    std::size_t nodes = std::size_t(target.capacity()) - start;
    if constexpr (by_model && TreeSource<D>)
      if (needs_draft)  // its row may be needed after any leaf
        nodes = std::min(nodes, std::max<std::size_t>(drafter.capacity(), start) - start);
    return std::min(nodes, options.nodes());
  }
  bool ends_text(std::size_t n) const {
    return n > 0 && options.end_of_text.contains(work.tokens[n - 1]);
  }

  // The draft's rows after all nodes.
  status score_drafts() {
    if constexpr (by_model) {
      const std::size_t longest = TreeSource<D> ? end - 1 : work.depths[end - 1];
      if (std::size_t(drafter.capacity()) < start + longest)
        return made.draft_why = status::context_full;
      const std::span<T> logits = work.draft_logits;
      std::size_t n = draft_reader.scored;
      made.draft_why = draft_reader.score(before, work, end, processor, logits);
      ++steps;
      for (; n < draft_reader.scored; ++n) work.draft_rows[n] = row();
    }
    return made.draft_why;
  }

  // The draft's row after node n, normalised when it is first asked for.
  const row& draft_row(std::size_t n, bool confidence) {
    row& known = work.draft_rows[n];
    if (known.why() == status::missing_row && n < draft_reader.scored)
      known = specagg::normalise(
          processed_row<T>(
              std::span(work.draft_logits).subspan(n * work.vocabulary, work.vocabulary),
              options.sample),
          confidence || reads_confidence<Policy>);
    return known;
  }

  void add_children(std::size_t n, std::size_t most_children) {
    const std::size_t children = propose(n, std::span(work.tokens).subspan(end - 1, most_children),
                                         std::span(work.laws).subspan(end, most_children));
    for (std::size_t i = 0; i < children; ++i) {
      work.parents[end - 1] = std::uint32_t(n);
      work.depths[end] = work.depths[n] + 1;
      ++end;
    }
  }
  // Proposes children of node n as the next nodes; returns how many.
  std::size_t propose(std::size_t n, std::span<token_id> tokens,
                      std::span<proposal_row<row>> laws) {
    if constexpr (by_model) {
      const row& q = draft_row(n, grows || options.propose == proposal::top ||
                                      (options.propose == proposal::greedy && tokens.size() > 1));
      const auto by_kind = [&](proposal kind, std::size_t count) {
        const child_place place{end, work.depths[n] + 1, std::uint32_t(start)};
        return specagg::propose_children(kind, q, place, chooser, tokens.first(count),
                                         laws.first(count), work.scratch);
      };
      if constexpr (grows)
        return tree.children_of(n, end, tokens.size(), q, options.sample.temperature > 0, tokens,
                                by_kind);
      else return by_kind(options.propose, tokens.size());
    } else {
      const auto path = work.tokens_to(n);  // there is room for it after the text
      std::copy(path.begin(), path.end(), t.tokens.begin() + std::ptrdiff_t(start));
      const std::size_t children =
          drafter.continuations({t.tokens.first(start + path.size()), path.size()}, tokens);
      for (std::size_t i = 0; i < children; ++i)
        laws[i] =
            specagg::normalise(one_hot_row<typename row::value_type>(tokens[i], work.vocabulary));
      return children;
    }
  }

  status score() {
    return target_reader.score(before, work, end, processor, std::span(work.target_logits));
  }

  void verify() {
    const auto p_rows =
        sampled_rows<Policy>(std::span(work.target_logits).first(end * work.vocabulary),
                             options.sample, std::span(work.target_rows).first(end));
    // A policy that reads the draft may need the draft's row after a leaf: one more call.
    const auto q_rows = lasting_rows_of(end, [&](std::size_t n) -> const row& {
      if (n >= draft_reader.scored &&
          (made.draft_why != status::ok || score_drafts() != status::ok))
        work.draft_rows[n] = row();
      return draft_row(n, false);
    });
    const draft_tree drafted{std::span(work.tokens).first(end - 1),
                             std::span(work.parents).first(end - 1), std::uint32_t(start),
                             options.end_of_text};
    decided = verifier.verify(drafted, work.laws, q_rows, p_rows, policy, chooser,
                              tree_memory<typename row::value_type>{work.emissions, work.memory,
                                                                    work.residual, work.scratch});
  }

  void commit() {
    const status kept = target_reader.keep_path(decided.node, start, work);
    status followed = status::ok;
    if constexpr (by_model) followed = draft_reader.keep_path(decided.node, start, work);
    for (std::size_t i = 0; i < decided.emitted; ++i)
      specagg::append(t, work.emissions[i].token, processor);
    made.accepted = decided.accepted;
    made.emitted = decided.emitted;
    made.why = decided.why != status::ok ? decided.why : kept != status::ok ? kept : followed;
    // If the law needed the row that the draft model did not give, report why it did not.
    if (decided.why != status::ok && decided.node >= draft_reader.scored &&
        made.draft_why != status::ok && needs_draft)
      made.why = made.draft_why;
    if constexpr (grows) learn();
  }
  void learn() {
    auto path = tree.path_to(decided.node, std::span(work.parents).first(end - 1),
                             [&](std::size_t n) { return work.laws[n].row.index() == 0; });
    path.levels = std::min(levels, decided.accepted + !ends_text(decided.node));
    tree.growth.observe(path, decided.emitted, steps, end - 1);
    if constexpr (!std::is_const_v<G>) learned = tree.growth;
  }
};

template <class D, class M, class Policy, class C, class W, class V, class G>
tree_result grow_tree(D& draft, M& target, const Policy& policy, C& random,
                      const decode_request<W>& how, std::size_t most, const V& verifier,
                      G& growth) {
  return detail::run_round(tree_speculation<D, M, Policy, C, V, G>{
      how.text, most, draft, target, policy, random, how.processor, how.work, verifier, growth});
}

}  // namespace detail

// V verifies trees of drafts with rows R and the chooser C: traversal, recursive_rejection, or your
// own (verify/tree.hpp). A chain's verifier does not.
template <class V, class R, class C>
concept TreeVerifier = requires(const V& verifier, const draft_tree& tree, std::span<R> rows,
                                C& random, const tree_memory<typename R::value_type>& memory) {
  { verifier.verify(tree, rows, rows, rows, 0, random, memory) } -> std::same_as<tree_verdict>;
};
// G says how trees grow by the rows of a draft model: fixed_growth, or an object with the members
// of plan::tree_growth.
template <class G>
concept TreeGrowth = requires {
  { G::grows } -> std::convertible_to<bool>;
} && (!G::grows || requires(const G& growth) { growth.worth_level(0.5); });

// The arguments of tree_decode fit together. D drafts, M scores, C gives random numbers, V
// verifies, G says how trees grow, which needs a draft model.
template <class D, class M, class C, class V, class G>
concept SpeculatesWithTrees =
    LogitSource<std::remove_reference_t<M>> &&
    (TreeDrafter<std::remove_reference_t<D>> ||
     (LogitSource<std::remove_reference_t<D>> &&
      SameValueType<std::remove_reference_t<D>, std::remove_reference_t<M>>)) &&
    Chooser<std::remove_reference_t<C>> &&
    TreeVerifier<V, normal_form<processed_row<typename std::remove_reference_t<M>::value_type>>,
                 std::remove_reference_t<C>> &&
    TreeGrowth<std::remove_reference_t<G>> &&
    (!std::remove_reference_t<G>::grows || LogitSource<std::remove_reference_t<D>>);
// The workspace of tree_decode for this target.
template <class M>
using tree_workspace_for = tree_workspace<typename std::remove_reference_t<M>::value_type>;

// One round. Appends 1 to how.most tokens to the text (0 only if `why` is not ok), with exactly the
// law pi. The draft model is called once for each level of the tree, the target once (and once more
// for a prompt that it has not read). No allocation. A draft model that fails ends the tree there.
// A TreeDrafter in its place proposes up to options.shape[d] tokens after every node of depth d
// (options.propose is not read); then the policy may not read the draft (invalid_parameter).
//   how       work: made for trees as large as its options say, and with a draft model if there is
//             one; else invalid_parameter. accept and after_round are not called
//   verifier  traversal or recursive_rejection
//   growth    fixed_growth, or an object with the public members of plan::tree_growth: it says
//             which nodes and levels are worth it, and learns from the round if it is not const.
//             Then options.shape is how deep the tree may be and how many children a node may have;
//             children are the most likely tokens, and one drawn from the rest where that is worth
//             it
// A round that fails leaves text and growth as they were, as in speculative_round.
template <class D, class M, class Policy, class C, class V = traversal, class G = fixed_growth>
  requires SpeculatesWithTrees<D, M, C, V, G>
tree_result tree_round(D&& draft, M&& target, const Policy& policy, C&& random,
                       const decode_request<tree_workspace_for<M>>& how, const V& verifier = {},
                       G&& growth = {}) {
  return detail::grow_tree(draft, target, policy, random, how, how.most, verifier, growth);
}

// Runs rounds as speculative_decode does:
//   const std::size_t shape[] = {3, 2, 1};
//   tree_workspace<float> work(vocab_size, tree_options{shape});
//   tree_decode(draft_model, target_model, lossless{}, random,
//               {.text = text, .most = 64, .work = work})
template <class D, class M, class Policy, class C, class V = traversal, class G = fixed_growth>
  requires SpeculatesWithTrees<D, M, C, V, G>
status tree_decode(D&& draft, M&& target, const Policy& policy, C&& random,
                   const decode_request<tree_workspace_for<M>>& how, const V& verifier = {},
                   G&& growth = {}) {
  const auto round = [&](std::size_t left) {
    return detail::grow_tree(draft, target, policy, random, how, left, verifier, growth);
  };
  processor_ref processor = how.processor;
  const auto cut = [&](std::size_t n) {
    return specagg::truncate(how.text, n, processor, draft, target);
  };
  // accept() or after_round() threw
  const detail::on_exception restore([&] { (void)cut(how.text.size); });
  return detail::decode(how, round, cut);
}

SPECAGG_END
