// SPDX-License-Identifier: Apache-2.0
// How a verifier (verify/tree.hpp) walks through a tree of drafts.
#pragma once
#include <cstdint>
#include <span>

#include <specagg/policy/detail/beside.hpp>
#include <specagg/verify/detail/decision.hpp>
#include <specagg/verify/draft_tree.hpp>

SPECAGG_BEGIN
namespace detail {

// Stored weights as a row.
template <class T>
struct stored_row {
  using value_type = T;
  const T* weights;
  std::size_t count;
  struct block {
    const T* x;
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE V operator()(std::size_t k, int lanes) const {
      return lanes == V::lanes ? V::load(x + k) : V::load_partial(x + k, lanes, 0);
    }
  };
  SPECAGG_FUNCTION std::size_t size() const { return count; }
  SPECAGG_FUNCTION block open(std::size_t begin, std::size_t) const { return {weights + begin}; }
};

// 1 for every token, but 0 for some, as a row.
template <class T>
struct all_but {
  using value_type = T;
  std::span<const token_id> tokens;
  std::size_t count;
  struct block {
    std::span<const token_id> tokens;
    std::size_t begin;
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE V operator()(std::size_t k, int) const {
      return without(V(1), tokens, begin + k);
    }
  };
  SPECAGG_FUNCTION std::size_t size() const { return count; }
  SPECAGG_FUNCTION block open(std::size_t begin, std::size_t n) const {
    return {if_any_in(tokens, begin, n), begin};
  }
};

// A walk through a tree. While the children of a node n fail one after another, these weights are
// left for the token after n
//   residual = a pi                          a: the claim on n; 1 in recursive rejection
//   residual = scale (residual - L)+             after each failed child, L the law that it was
//   drawn from
// and a = sum residual is what is left of the claim. If L is one token only that token's weight
// changes: to 0. The weights are stored when a child fails whose L is a row, or after many
// children; until then they are scale pi without the failed tokens. So a failed child costs no pass
// if its L is one token, else one over pi (or what is stored) and L.
//
// A walker of many threads shares the memory: write(f) runs f once, after all have read and before
// any reads again.
template <class Policy, class Laws, class QRows, class PRows, class T, class Walker>
struct tree_walk {
  // failed children of a node. Bounds the search for equal tokens
  static constexpr std::uint32_t most_not_stored = 16;
  const draft_tree& tree;
  law_source<Policy, QRows, PRows> source;  // of the nodes
  Laws& laws;                               // that the nodes' tokens were drawn from
  const tree_memory<T, Walker>& work;
  std::size_t residual_rows, vocabulary = 0;
  bool enough_memory = true;

  SPECAGG_FUNCTION tree_node& node(std::size_t i) const { return work.nodes[i]; }
  SPECAGG_FUNCTION token_id token(std::size_t i) const { return tree.tokens[i - 1]; }
  SPECAGG_FUNCTION T* residual(const tree_node& n) const {
    return work.residual.data() + n.slot * vocabulary;
  }
  // Whether this is one of several ranks.
  static constexpr bool is_rank = requires { std::remove_reference_t<Walker>::is_rank; };
  SPECAGG_FUNCTION double stored_weight(const tree_node& n, token_id y) const {
    const auto weight = [&] { return double(residual(n)[y]); };
    if constexpr (is_rank) return work.walker.from_owner(std::size_t(y), weight);
    else return weight();
  }
  // Whether rows can be read in this walk: those that have ranks must have the same.
  template <class Rows>
  static constexpr bool of_ranks = requires(const Rows& r) { specagg::walker_of(r).is_rank; };
  template <class Rows>
  SPECAGG_FUNCTION bool same_ranks(const Rows& rows) const {
    if constexpr (of_ranks<Rows> && is_rank) return &specagg::walker_of(rows) == &work.walker;
    else return true;
  }
  template <class Rows>
  SPECAGG_FUNCTION status fit(const Rows& rows) const {
    static_assert(of_ranks<Rows> == is_rank,
                  "specagg: a tree of sharded rows takes a tree_memory<T, vocabulary_shards&>, and "
                  "no other tree does (shards/sharded_row.hpp)");
    return rows.size() == vocabulary && same_ranks(rows) ? status::ok : status::vocabulary_mismatch;
  }
  template <class F>
  SPECAGG_FUNCTION void write(F&& f) const {
    if constexpr (requires { work.walker.once(f); }) work.walker.once(f);
    else f();
  }

  // Visits node n with the weights a pi. Finds pi of its children's tokens. If pi does not exist,
  // the children are left out.
  SPECAGG_FUNCTION void enter(std::size_t n, double a) {
    tree_node& here = node(n);
    const bool ended = n > 0 && tree.end_of_text.contains(token(n));
    write([&] {
      here.accepted = here.scale = a;
      here.next = ended ? 0 : here.child;
    });
    if (here.next == 0) return;
    const status s = source.with_law(n, [&](const auto& rows, const auto& pi) {
      if (n == 0) {
        vocabulary = rows.size();
        enough_memory = work.residual.size() >= residual_rows * vocabulary &&
                        specagg::can_weigh(rows, work.scratch);
      }
      if (const status why = fit(rows); why != status::ok) return why;
      write([&] {
        for (std::uint32_t c = here.child; c != 0; c = node(c).sibling) {
          if (outside_support(token(c), vocabulary, 1) != status::ok) continue;
          const auto seen = specagg::at(rows, std::size_t(token(c)));
          tree_node& child = node(c);
          child.pi = as_double(pi(seen));
          if (!(child.pi < infinity)) {
            here.next = 0;
            here.why = status::undefined_target;
          }
          child.log_pi = log_to_report(rows, child.pi);
          child.log_p = log_to_report(rows, as_double(pair_sides::p(seen)));
        }
      });
      return status::ok;
    });
    if (s != status::ok)
      write([&] {
        here.next = 0;
        here.why = s;
      });
  }

  // Returns f(L), L the normalised law that node c was drawn from; or why L cannot be read.
  template <class F>
  SPECAGG_FUNCTION status with_proposal(std::size_t c, F&& f) {
    const auto given = [&](const auto& row) {
      const auto& law = specagg::normalise(row);
      if (law.why() != status::ok) return law.why();
      const bool fits = law.size() == vocabulary && same_ranks(law);
      return fits ? f(law) : status::vocabulary_mismatch;
    };
    return detail::with_row_at(laws, c, given);
  }

  // Takes the next child of n that is not left out; 0: none. left, drawn: what is left of n for its
  // token, and its L.
  SPECAGG_FUNCTION std::size_t next_child(std::size_t n, double& left, double& drawn) {
    tree_node& parent = node(n);
    while (const std::size_t c = parent.next) {
      write([&] { parent.next = node(c).sibling; });
      const token_id y = token(c);
      if (y == no_token) continue;
      bool not_kept = false;
      status s = outside_support(y, vocabulary, 1);
      if (s == status::ok)
        s = with_proposal(c, [&](const auto& law) {
          drawn = double(law[std::size_t(y)]);
          not_kept = is_cut<std::remove_cvref_t<decltype(law)>> && !(drawn > 0);
          if (not_kept) drawn = 1;
          return outside_support(y, vocabulary, drawn);
        });
      if (s == status::ok) {
        left =
            not_kept ? 0 : parent.scale * (parent.stored ? stored_weight(parent, y) : node(c).pi);
        return c;
      }
      write([&] { parent.why = s; });
    }
    return 0;
  }

  // Calls f(token) for the failed children of n that stand before `end` (0: all). All of them were
  // certain tokens.
  template <class F>
  SPECAGG_FUNCTION void for_failed(std::size_t n, std::size_t end, F&& f) const {
    for (std::size_t c = node(n).child; c != end; c = node(c).sibling)
      if (node(c).claim > 0) f(token(c));
  }
  // Stores what is left of n: pi, and 0 for the tokens of these children.
  SPECAGG_FUNCTION status store(std::size_t n, std::size_t end) {
    tree_node& here = node(n);
    T* const weights = residual(here);
    return source.with_law(n, [&](const auto& rows, const auto& pi) {
      (void)work.walker.sum_stored(rows, pi, weights);
      write([&] {
        here.stored = true;
        for_failed(n, end, [&](token_id y) { weights[y] = 0; });
      });
      return status::ok;
    });
  }

  // Child c of n has failed: subtracts its law from what is left of n.
  SPECAGG_FUNCTION status settle(std::size_t n, std::size_t c) {
    tree_node& parent = node(n);
    T* const weights = residual(parent);
    double left = 0, scale = parent.scale;
    const status s = with_proposal(c, [&](const auto& law) {
      using L = std::remove_cvref_t<decltype(law)>;
      if constexpr (requires { law.token(); }) {
        if (law.token() != no_token) {  // all of L
          if (!parent.stored && parent.failed == most_not_stored)
            if (const status why = store(n, c); why != status::ok) return why;
          const token_id y = token(c);
          left = without_token(parent.accepted, scale,
                               parent.stored ? stored_weight(parent, y) : node(c).pi);
          write([&] {
            if (parent.stored) weights[y] = 0;
            for (std::size_t i = node(c).sibling; i != 0 && !parent.stored; i = node(i).sibling)
              if (token(i) == y) node(i).pi = 0;
          });
          return status::ok;
        }
      }
      if (parent.failed > 0 && !parent.stored)
        if (const status why = store(n, c); why != status::ok) return why;
      const double before = scale;
      scale = 1;
      if (parent.stored) {
        const stored_row<T> stored{weights, vocabulary};
        const row_pair<false, stored_row<T>, L> rows(stored, law);
        left = work.walker.sum_stored(
            rows, [=](auto at) { return positive(fma(before, at.q, -at.p)); }, weights);
        return status::ok;
      }
      return source.with_law(n, [&](const auto& rows, const auto& pi) {
        const beside all(rows, law);
        left = work.walker.sum_stored(
            all, [&](auto at) { return positive(fma(before, pi(at), -at.proposal)); }, weights);
        write([&] { parent.stored = true; });
        return status::ok;
      });
    });
    if (s != status::ok) return s;
    const double failed = left + (1 - parent.accepted);  // the probability that the child failed
    const bool possible = failed > std::numeric_limits<double>::min();
    write([&] {
      parent.scale = possible ? scale / failed : scale;
      parent.accepted = possible ? left / failed : 1;
      ++parent.failed;
    });
    return status::ok;
  }

  // Node n is the last accepted one: draws the token after it from what is left of n, or from pi at
  // a leaf.
  template <Chooser C>
  SPECAGG_FUNCTION void finish(std::size_t n, C& chooser, tree_verdict& result) {
    const tree_node& last = node(n);
    const bool settled = last.failed > 0;
    result.node = std::uint32_t(n);
    result.accepted = result.emitted = last.depth;
    if (n > 0 && tree.end_of_text.contains(token(n))) return void(result.ended = token(n));
    if (!settled && !tree.bonus) return void(result.why = last.why);
    token_id failed[most_not_stored] = {};
    std::size_t count = 0;
    if (settled && !last.stored) for_failed(n, 0, [&](token_id y) { failed[count++] = y; });
    const drawing by{tree.start, chooser, work.scratch};
    emission e{.from = settled ? origin::residual : origin::bonus, .why = last.why};
    const moment m = by.at(settled ? stream::residual : stream::bonus, last.depth);
    const auto draw = [&](const auto& rows, const auto& pi) {
      if (vocabulary == 0) vocabulary = rows.size();
      if (const status s = fit(rows); s != status::ok) return s;
      return by.draw_token(rows, pi, pi, m, e);
    };
    if (!settled)  // a leaf
      result.why = detail::bonus_of(source, tree.bonus, last.why == status::ok, n, e, draw);
    else
      result.why = source.with_law(n, [&](const auto& rows, const auto& pi) {
        if (const status s = fit(rows); s != status::ok) return s;
        if (last.stored) {
          const stored_row<T> left{residual(last), vocabulary};
          const beside all(rows, left);
          const auto weight = [](auto at) { return at.proposal; };
          if (by.draw_token(all, pi, weight, m, e) == status::ok) return status::ok;
        } else {
          const all_but<T> others{std::span<const token_id>(failed, count), vocabulary};
          const beside all(rows, others);
          const auto weight = [&](auto at) { return pi(at) * at.proposal; };
          if (by.draw_token(all, pi, weight, m, e) == status::ok) return status::ok;
        }
        return draw(rows, pi);  // round-off left nothing
      });
    if (result.why == status::ok) emit(e, tree.end_of_text, work.out, result);
  }
};

}  // namespace detail

SPECAGG_END
