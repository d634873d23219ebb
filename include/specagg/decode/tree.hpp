// SPDX-License-Identifier: Apache-2.0
// Speculative decoding with a tree of drafts: propose several tokens after each other, score all
// nodes in one call of the target, verify, commit the accepted path, roll back the rest. Proved:
// proofs/decode.v, `tree_decode_has_law`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include <specagg/decode/detail/misfit.hpp>
#include <specagg/decode/rounds.hpp>
#include <specagg/decode/detail/tree_workspace.hpp>
#include <specagg/draft/drafter.hpp>
#include <specagg/draft/detail/grow.hpp>
#include <specagg/verify/tree.hpp>

SPECAGG_BEGIN

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
struct [[nodiscard]] tree_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok, draft_why = status::ok;
};

namespace detail {

// One round of tree_round. G is const where nothing is to be learned.
template <class D, class M, class Policy, class C, class P, class V, class G>
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
  P& processor;
  tree_workspace<T>& work;
  const V& verifier;
  G& learned;

  const tree_options& options = work.options;
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
        options.nodes() > work.nodes ||
        (by_model ? work.draft_logits.empty() : detail::needs_draft(policy)))
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
      if (detail::needs_draft(policy))  // its row may be needed after any leaf
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
      known = processed_row<T>(
                  std::span(work.draft_logits).subspan(n * work.vocabulary, work.vocabulary),
                  options.sample)
                  .normalise(confidence || reads_confidence<Policy>);
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
        laws[i] = one_hot_row<typename row::value_type>(tokens[i], work.vocabulary).normalise();
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
        made.draft_why != status::ok && detail::needs_draft(policy))
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

// One round; what is given by other names than its own is not used.
template <class D, class M, class Policy, class C, class W, class... Given>
tree_result grow_tree(text& t, std::size_t most, D& draft, M& target, const Policy& policy,
                      C& random, W& work, Given&... given) {
  auto&& processor = detail::by_name<with::processor, no_processor>(given...);
  const auto& verifier = detail::by_name<with::verifier, traversal>(given...);
  auto&& growth = detail::by_name<with::growth, fixed_growth>(given...);
  return detail::run_round(
      tree_speculation<D, M, Policy, C, std::remove_reference_t<decltype(processor)>,
                       std::remove_cvref_t<decltype(verifier)>,
                       std::remove_reference_t<decltype(growth)>>{
          t, most, draft, target, policy, random, processor, work, verifier, growth});
}

template <class V, class M, class C>
struct check_tree_verifier {
  using row = normal_form<processed_row<value_type_of<M>>>;
  static constexpr bool fits =
      requires(const V& verifier, const draft_tree& tree, std::span<row> rows, C& random,
               const tree_memory<typename row::value_type>& memory) {
        {
          verifier.verify(tree, rows, rows, rows, 0, random, memory)
        } -> std::same_as<tree_verdict>;
      };
  static void say() {
    static_assert(fits,
                  "specagg: this verifies no trees: with::verifier{v} of a tree takes traversal{} "
                  "or recursive_rejection{} (docs/trees.md)");
  }
};
template <class G, class D>
struct check_growth {
  static constexpr bool fits = [] {
    if constexpr (!requires { G::grows; }) return false;
    else if constexpr (!G::grows) return true;
    else
    return LogitSource<D>&&
      requires(const G & growth)
    {
      growth.worth_level(0.5);
    };
  }();
  static void say() {
    static_assert(fits,
                  "specagg: with::growth{g} takes an object with the members of plan::tree_growth, "
                  "and a tree grows by the rows of a draft model (docs/trees.md)");
  }
};
template <class Names, class Text, class Most, class D, class M, class C, class W, class... Given>
using misfit_of_tree = typename first_misfit<
    check_text<Text, Most>, check_drafter<D, TreeDrafter<std::remove_reference_t<D>>>,
    check_model<M>, check_one_value_type<D, M>, check_chooser<C>,
    check_workspace<W, tree_workspace, M>, check_given<Names, tree_result, W, M, Given...>,
    check_tree_verifier<by_name_t<with::verifier, traversal, Given...>, M,
                        std::remove_reference_t<C>>,
    check_growth<by_name_t<with::growth, fixed_growth, Given...>,
                 std::remove_reference_t<D>>>::type;

}  // namespace detail

// Appends 1 to `most` tokens to the text (0 only if `why` is not ok), with exactly the law pi. The
// draft model is called once for each level of the tree, the target once (and once more for a
// prompt that it has not read). No allocation. A draft model that fails ends the tree there. A
// TreeDrafter in its place proposes up to options.shape[d] tokens after every node of depth d
// (options.propose is not read); then the policy may not read the draft (invalid_parameter).
//   work      made for trees as large as its options say, and with a draft model if there is one:
//             else invalid_parameter
// By name it takes a processor, and
//   verifier  traversal or recursive_rejection
//   growth    fixed_growth, or an object with the public members of plan::tree_growth: it says
//             which nodes and levels are worth it. Then options.shape is how deep the tree may be
//             and how many children a node may have; children are the most likely tokens, and one
//             drawn from the rest where that is worth it
// A round that fails leaves text and growth as they were, as in speculative_round.
template <class Text, class Most, class D, class M, class Policy, class C, class W, class... Given>
tree_result tree_round(Text&& t, Most most, D&& draft, M&& target, const Policy& policy, C&& random,
                       W&& work, Given&&... given) {
  using misfit =
      detail::misfit_of_tree<detail::names<with::processor, with::verifier, with::growth>, Text,
                             Most, D, M, C, W, Given...>;
  if constexpr (detail::Misfit<misfit>) return detail::refuse<tree_result, misfit>();
  else
    return detail::grow_tree(t, std::size_t(most), draft, target, policy, random, work, given...);
}

// Runs rounds as decode_rounds does:
//   const std::size_t shape[] = {3, 2, 1};
//   tree_workspace<float> work(vocab_size, tree_options{shape});
//   tree_decode(text, 64, draft_model, target_model, lossless{}, random, work)
// By name it takes what a round takes, accept and after_round.
template <class Text, class Most, class D, class M, class Policy, class C, class W, class... Given>
status tree_decode(Text&& t, Most most, D&& draft, M&& target, const Policy& policy, C&& random,
                   W&& work, Given&&... given) {
  using misfit = detail::misfit_of_tree<
      detail::names<with::processor, with::verifier, with::growth, with::accept, with::after_round>,
      Text, Most, D, M, C, W, Given...>;
  if constexpr (detail::Misfit<misfit>) return detail::refuse<status, misfit>();
  else {
    auto&& processor = detail::by_name<with::processor, no_processor>(given...);
    const auto round = [&](std::size_t left) {
      return detail::grow_tree(t, left, draft, target, policy, random, work, given...);
    };
    const auto cut = [&](std::size_t n) {
      return specagg::truncate(t, n, processor, draft, target);
    };
    // accept() or after_round() threw
    const detail::on_exception restore([&] { (void)cut(t.size); });
    return detail::decode(t, std::size_t(most), work, round, cut, given...);
  }
}

SPECAGG_END
