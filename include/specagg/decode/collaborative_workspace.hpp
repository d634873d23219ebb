// SPDX-License-Identifier: Apache-2.0
// The memory of collaborative decoding (collaborative.hpp), and the drafts that it keeps between
// turns.
#pragma once
#include <array>
#include <numeric>
#include <vector>

#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// gamma[k]: the tokens that model k drafts in a turn. Model 0 begins, so it should be the one with
// the largest gamma, and it must draft at least one. gamma[k] = 0: the model only scores; {g, 0} is
// speculative decoding without a bonus token. proposed: the most tokens that a drafter proposes in
// a turn. The workspace is made with them.
template <std::size_t N>
struct collaborative_options {
  std::array<std::size_t, N> gamma;
  sampling sample = {};  // for all models
  end_tokens end_of_text = {};
  std::size_t proposed = 0;
  // The most tokens that are drafted and not yet decided.
  std::size_t most_drafted() const { return std::accumulate(gamma.begin(), gamma.end(), proposed); }
};

// The result of one turn: the model that took it, and what it did. `emitted` tokens were appended
// to the text (workspace.emissions says where each came from): `accepted` drafted tokens, and the
// token that replaced a rejected one. It may be 0, if not all models have scored the drafts yet. If
// `why` is not ok the cached drafts are gone until the next turn, and the emitted tokens still have
// the law pi. draft_why: why the model stopped drafting, if no token could be drawn from its row (a
// grammar's dead end, NaN). The tokens drafted before that are still verified. proposed: how many
// of the drafted tokens are the drafter's. Its status only ends its part, except for `stopped`,
// which is then `why`.
struct [[nodiscard]] collaborative_result {
  std::size_t model = 0, drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok, draft_why = status::ok;
  std::size_t proposed = 0;
};

// All memory that a turn needs, allocated once; the options; and the drafts that are kept between
// turns. The options may be changed between turns, but not to more drafts. The cached tokens are in
// the text's buffer, after the text. Their number never exceeds L = the sum of the gammas and
// `proposed`: a model drafts only when all of its own drafts are decided, a drafter only when all
// drafts are. Between turns it belongs to one text (collaborative_turn), and after a call that
// failed, too. T: the type of the models' logits, R: the drafter's row_type.
template <class T, std::size_t N, NormalisedRow R = normal_form<one_hot_row<T>>>
struct collaborative_workspace {
  using value_type = T;
  using result_type = collaborative_result;
  collaborative_options<N> options;
  std::size_t vocabulary, longest;  // longest: L, that there is memory for
  std::vector<T> logits = std::vector<T>(N * (longest + 1) * vocabulary);
  std::vector<normal_form<processed_row<T>>> rows =
      std::vector<normal_form<processed_row<T>>>(N * (longest + 1));
  std::vector<emission> emissions = std::vector<emission>(longest + 1);
  // the model that drew the token at a position (N: none), by position mod L
  std::vector<std::size_t> drafter = std::vector<std::size_t>(longest);
  std::vector<R> proposals;  // the drafter's rows of positions start, start + 1, ...
  std::vector<double> scratch = std::vector<double>(verify_scratch(vocabulary));
  std::vector<T> combined = std::vector<T>(vocabulary);
  // model k has the rows of positions begin[k]..end[k]-1
  std::array<std::size_t, N> begin{}, end{};
  // start: where this chain of drafts began (see collaborative_turn)
  std::size_t cached = 0, start = 0;
  // abandon() found a text of left_at tokens, and drafts up to left_to
  std::size_t left_at = 0, left_to = 0;

  collaborative_workspace(std::size_t vocab_size, const collaborative_options<N>& of)
      : options(of), vocabulary(vocab_size), longest(of.most_drafted()), proposals(of.proposed) {}
  // Whether its memory is enough for turns with its options.
  bool holds_turns() const {
    std::size_t left = longest;
    for (const std::size_t g : options.gamma) {
      if (g > left) return false;
      left -= g;
    }
    return options.proposed <= left && options.proposed <= proposals.size();
  }
  // Model k's row at a position >= begin[k], and its logits at `count` positions from there on.
  normal_form<processed_row<T>>& row(std::size_t k, std::size_t position) {
    return rows[k * (longest + 1) + position - begin[k]];
  }
  std::span<T> logits_of(std::size_t k, std::size_t position, std::size_t count) {
    return std::span(logits).subspan((k * (longest + 1) + position - begin[k]) * vocabulary,
                                     count * vocabulary);
  }
};

// Removes the cached drafts, and all but the first n tokens of the text. `models`: all of them, and
// the drafter if there is one. The status is that of truncate(). Where the text has the same size
// at the next turn with this workspace, the drafts are drawn again, from the same models and
// numbers.
template <class T, std::size_t N, class R, class P, Follower... M>
status abandon(text& t, std::size_t n, P& processor, collaborative_workspace<T, N, R>& work,
               M&... models) {
  const std::size_t drafts_end = t.size + work.cached;
  work.left_to = work.left_at == t.size ? std::max(work.left_to, drafts_end) : drafts_end;
  work.left_at = t.size;
  for (; work.cached > 0; --work.cached) processor.pop();
  work.end.fill(0);
  return specagg::truncate(t, n, processor, models...);
}

SPECAGG_END
