// SPDX-License-Identifier: Apache-2.0
// The children of one node of a tree of drafts (verify/tree.hpp), from the draft's row after it.
// Proved: proofs/propose.v, `propose_children_emit`.
#pragma once
#include <algorithm>
#include <span>

#include <specagg/rows/any_row.hpp>
#include <specagg/draft/row_without.hpp>
#include <specagg/verify/tree.hpp>

SPECAGG_BEGIN

// How several tokens are proposed after one text.
//   greedy       one token drawn from the rest of q, which stands first, and the most likely
//                tokens. If only one level is drafted, no verifier accepts more of these proposals
//                than verify_tree
//   sampled      drawn from q without replacement
//   top          the most likely tokens
//   independent  drawn from q with replacement
enum class proposal : std::uint8_t { greedy, sampled, top, independent };
constexpr const char* name(proposal p) {
  return p == proposal::greedy    ? "greedy"
         : p == proposal::sampled ? "sampled"
         : p == proposal::top     ? "top"
                                  : "independent";
}

namespace detail {
template <class R>
using rest_of = normal_form<row_without<R>>;
template <class R>
using alone = normal_form<one_hot_row<typename R::value_type>>;
template <class R>
struct proposal_rows {
  using type = any_row<rest_of<R>, alone<R>>;
};
template <class... R>
struct proposal_rows<any_row<R...>> {
  using type = any_row<rest_of<R>..., alone<any_row<R...>>>;
};
}  // namespace detail
// The law that a proposed token was drawn from, normalised, for rows of type R.
template <Row R>
using proposal_row = typename detail::proposal_rows<normal_form<R>>::type;

// The place of a node's children in their tree: the number of the first child (the others follow),
// their depth, and the tree's start (draft_tree).
struct child_place {
  std::size_t first = 1;
  std::uint32_t depth = 1, start = 0;
};

// Proposes up to tokens.size() children of one node, from the row q after it. Returns how many
// there are: fewer if q has fewer tokens, 0 if q is invalid. The most likely tokens are those of
// the row at temperature 1: at temperature 0, too, a node has several, and greedy proposals
// are the top ones. A q that was normalised before must have its view at
// temperature 1 for them, else nothing is proposed.
//   place    the children's place in their tree
//   chooser  as in draw_draft
//   tokens   written; the laws view them, so they must stay where they are
//   laws     as many as tokens; written
//   scratch  verify_scratch(V) doubles
template <Row R, Chooser C>
std::size_t propose_children(proposal kind, const R& q, const child_place& place, C&& chooser,
                             std::span<token_id> tokens, std::span<proposal_row<R>> laws,
                             std::span<double> scratch) {
  return specagg::with_chosen(q, [&](const auto& given) -> std::size_t {
    const bool ranked = kind == proposal::top || (kind == proposal::greedy && tokens.size() > 1);
    if (tokens.empty()) return 0;
    const auto& row = specagg::normalise(given, ranked);
    if (detail::readable(row, ranked) != status::ok) return 0;
    using one = std::remove_cvref_t<decltype(row)>;
    using hot = one_hot_row<typename one::value_type>;
    // Draws child i from the row without other tokens; false if there is nothing left to draw.
    const auto drawn = [&](std::size_t i, std::span<const token_id> left_out) {
      const auto law = specagg::normalise(row_without<one>(row, left_out));
      tokens[i] =
          specagg::draw_node(law, place.start, place.first + i, place.depth, chooser, scratch);
      if (tokens[i] == no_token) return false;
      laws[i] = law;
      return true;
    };
    // Takes the most likely token that is not among others as child i; false if there is none.
    const auto most_likely = [&](std::size_t i, std::span<const token_id> others) {
      const row_without<one> rest(row, others);
      const detail::stored_facts<typename one::value_type> as_it_is;
      const detail::row_with<row_without<one>> unscaled{rest, as_it_is};
      const target_rows<true, std::remove_const_t<decltype(unscaled)>> rows(unscaled);
      const std::size_t v = rows.argmax([](auto at) { return at.confidence_p; });
      if (!(specagg::at(rows, v).confidence_p.v > 0)) return false;
      tokens[i] = token_id(v);
      laws[i] = specagg::normalise(hot(token_id(v), row.size()));
      return true;
    };
    std::size_t n = 0;
    switch (kind) {
      case proposal::independent:
        while (n < tokens.size() && drawn(n, {})) ++n;
        break;
      case proposal::sampled:
        while (n < tokens.size() && drawn(n, tokens.first(n))) ++n;
        break;
      case proposal::top:
        while (n < tokens.size() && most_likely(n, tokens.first(n))) ++n;
        break;
      case proposal::greedy:
        while (n + 1 < tokens.size() && most_likely(n + 1, tokens.subspan(1, n))) ++n;
        if (drawn(0, tokens.subspan(1, n)) || most_likely(0, tokens.subspan(1, n))) ++n;
        else {
          std::copy_n(tokens.begin() + 1, n, tokens.begin());
          std::copy_n(laws.begin() + 1, n, laws.begin());
        }
    }
    return n;
  });
}

SPECAGG_END
