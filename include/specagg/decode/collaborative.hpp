// SPDX-License-Identifier: Apache-2.0
// Collaborative decoding via speculation (CoS): n models take turns in drafting, and every drafted
// token is verified against the rows of all models. Every emitted token has the law pi = C(p^0,
// ..., p^(n-1)) of a combiner, which is a policy. Fu et al. 2025 (arXiv:2502.01662), with three
// corrections to its two algorithms: a rejection keeps the accepted prefix; each token is verified
// against the row it was drawn from; and after a rejection model 0 drafts, whichever model scored
// last. Proved: proofs/cos.v, `collaborative_decode_has_law`.
//
//   text | cached drafts     which models have a row (x) for each position, and who drew the drafts
//   abcd | e f g h           model 0 drew e f g; model 1 scored them and drew h from its next row
//   row 0: x x x .
//   row 1: x x x x           model 2 comes next: it scores e f g h and draws the tokens after them
//   row 2: . . . .           then every model has rows for e f g, and these are verified
//
// A turn has three parts. (1) The model for this turn is the first that has no row for the first
// cached token. It scores all cached tokens in one call. (2) The tokens for which every model has a
// row are verified, first to last. (3) The model drafts gamma more tokens. The first of them needs
// no call, because its row came with the scores. Two models alternate as drafter and verifier.
//
// A drafter (draft/drafter.hpp; for example a lookup) may go first. Where a turn begins without
// cached drafts, it proposes tokens, which need no model call. Model 0 scores them and drafts on
// after them. Each is verified against the drafter's row that it was drawn from.
#pragma once
#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include <specagg/decode/collaborative_workspace.hpp>
#include <specagg/decode/request.hpp>
#include <specagg/decode/rounds.hpp>
#include <specagg/draft/drafter.hpp>
#include <specagg/policy/detail/beside.hpp>
#include <specagg/policy/raw_logits.hpp>
#include <specagg/verify/token.hpp>

SPECAGG_BEGIN

// In the place of a drafter: only the models draft.
struct no_drafter {
  std::size_t position() const { return 0; }
  status rollback(std::size_t) { return status::ok; }
};

namespace detail {

// Calls f(std::integral_constant<k>) for a k < N that is known at run time.
template <std::size_t N, class F>
decltype(auto) with_number(std::size_t k, F&& f) {
  if constexpr (N == 1) return f(std::integral_constant<std::size_t, 0>());
  else if (k == N - 1) return f(std::integral_constant<std::size_t, N - 1>());
  else return with_number<N - 1>(k, f);
}

// Model K drew the drafted token. The reported log-probability is that of the last model.
template <std::size_t K, std::size_t N>
struct model_sides {
  static auto q(const auto& at) { return model<K>(at); }
  static auto p(const auto& at) { return model<N - 1>(at); }
};

// One turn of collaborative_turn.
template <class T, class Policy, class C, class R, class D, class... M>
struct collaboration {
  static constexpr std::size_t N = sizeof...(M);
  static constexpr bool may_propose = !std::same_as<D, no_drafter>;
  // If pi = p, a token of model 1 needs no verification: the first one it drafts is final.
  static constexpr bool has_final = N == 2 && !reads_draft<Policy>;

  text& t;
  std::size_t most;
  const std::tuple<M&...>& models;
  const Policy& policy;
  C& chooser;
  processor_ref<T> processor;
  collaborative_workspace<T, N, R>& work;
  D& drafter;

  const collaborative_options<N>& options = work.options;

  collaborative_result made = {};
  std::size_t limit = 0;     // of the text's size
  std::size_t to_draft = 0;  // after verification
  bool ended = false;        // then nothing is drafted after verification
  status decided = status::ok;

  const collaborative_result& result() const { return made; }
  bool runs() const { return made.why == status::ok; }
  void begin() {
    if (const status s = refused(); s != status::ok) fail(s);
  }
  status refused() {
    if (!specagg::valid(policy) || most == 0 || options.gamma[0] == 0 || !work.holds_turns())
      return status::invalid_parameter;
    limit = std::min(t.size + most, all([&](auto&... m) { return detail::room(t, m...); }));
    return all([&](auto&... m) { return detail::ready(t, work.vocabulary, m...); });
  }
  decltype(auto) all(auto&& f) const { return std::apply(f, models); }
  status abandon_drafts() {
    return all(
        [&](auto&... m) { return specagg::abandon(t, t.size, processor, work, drafter, m...); });
  }

  void roll_back() { (void)abandon_drafts(); }
  void fail(status why) {
    roll_back();
    made.why = why;
  }

  // The end of the text and its drafts.
  std::size_t sent() const { return t.size + work.cached; }
  bool ends() const {
    return work.cached > 0 && options.end_of_text.contains(t.tokens[sent() - 1]);
  }
  drawing<C> draws() const { return {std::uint32_t(work.start), chooser, work.scratch}; }
  moment moment_at(stream use) const { return draws().at(use, sent() - work.start); }
  token_id draw_draft(const auto& row) {
    return specagg::draw(row, moment_at(stream::draft), chooser, work.scratch);
  }
  std::size_t& drafter_at(std::size_t position) { return work.drafter[position % work.longest]; }
  void cache(token_id y, std::size_t by) {
    t.tokens[sent()] = y;
    drafter_at(sent()) = by;
    (void)processor.push(y);
    ++work.cached;
    ++made.drafted;
  }
  // Model k computes the rows of the last `count` positions, up to the first free one.
  status score_more(std::size_t k, std::size_t count) {
    const std::size_t position = sent() + 1 - count;
    const std::span<T> logits = work.logits_of(k, position, count);
    const status s = with_number<N>(k, [&](auto number) {
      return specagg::score(t.tokens.first(sent()), std::get<number()>(models), processor, logits);
    });
    for (std::size_t j = 0; s == status::ok && j < count; ++j) {
      work.row(k, position + j) = {};
      work.end[k] = position + j + 1;
    }
    return s;
  }

  // A row that a model has computed, normalised when it is first asked for.
  const normal_form<processed_row<T>>& row_at(std::size_t k, std::size_t position) {
    auto& row = work.row(k, position);
    if (row.why() == status::missing_row)
      row = specagg::normalise(processed_row<T>(work.logits_of(k, position, 1), options.sample),
                               N == 2 && reads_confidence<Policy>);
    return row;
  }

  // If no drafts are cached, the drafter proposes, and abandoned drafts are drawn again.
  status draft() {
    if (work.cached > 0) return status::ok;
    if (work.left_at != t.size || work.left_to <= t.size) work.start = work.left_to = t.size;
    if constexpr (may_propose)
      if (const status s = ask_drafter(); s != status::ok) return s;
    work.begin.fill(t.size);
    while (sent() < std::min(limit, work.left_to) && !is_free(sent()) && !ends()) {
      const std::size_t k = drafter_at(sent());
      if (const status s = score_more(k, 1); s != status::ok) return s;
      const auto& row = row_at(k, sent());
      if (row.why() != status::ok) break;
      cache(draw_draft(row), k);
    }
    work.left_to = sent();
    work.end.fill(0);
    return status::ok;
  }
  // Whether no model drew the token that was abandoned there.
  bool is_free(std::size_t position) {
    return position >= work.left_to || drafter_at(position) == N;
  }
  status ask_drafter() {
    if (std::size_t(drafter.vocab_size()) != work.vocabulary) return status::vocabulary_mismatch;
    const std::size_t most_proposed = std::min(options.proposed, limit - t.size);
    while (work.cached < most_proposed && is_free(sent()) && !ends()) {
      R& row = work.proposals[work.cached];
      double confidence;
      const status s =
          drafter.next({t.tokens.first(sent()), work.cached, false}, processor, row, confidence);
      if (s == status::stopped) return s;
      if (s != status::ok) break;
      if (row.size() != work.vocabulary) return status::vocabulary_mismatch;
      const token_id y =
          specagg::with_chosen(row, [&](const auto& one) { return draw_draft(one); });
      if (y == no_token) break;
      cache(y, N);
    }
    made.proposed = work.cached;
    return status::ok;
  }

  // Computes the rows of all cached tokens, and one more. A model's own drafts are decided before
  // its next turn.
  status score() {
    std::size_t& k = made.model;
    while (k + 1 < N && work.end[k] > t.size) ++k;
    work.begin[k] = t.size;
    if (const status s = score_more(k, work.cached + 1); s != status::ok) return s;
    if constexpr (may_propose && has_final) drop_dead_ends();
    const std::size_t free = std::min(work.longest - work.cached, limit - std::min(limit, sent()));
    to_draft = ends() ? 0 : std::min(options.gamma[k], free);
    return status::ok;
  }
  // At a dead end of model 0 pi exists: the drafter's tokens from there on are dropped, as model 0
  // would have drafted nothing.
  void drop_dead_ends() {
    for (std::size_t j = 0; j < made.proposed; ++j)
      if (row_at(0, t.size + j).why() != status::ok) {
        for (; work.cached > j; --work.cached) processor.pop();
        made.proposed = made.drafted = j;
        work.end[0] = sent() + 1;
      }
  }

  // Decides on the tokens that every model has scored.
  void verify() { decided = decide_all(); }
  status decide_all() {
    while (work.cached > 0 && t.size < limit && !ended &&
           std::all_of(
               work.end.begin(), work.end.end(), [&](std::size_t end) { return end > t.size; })) {
      emission& e = work.emissions[made.emitted];
      if (const status s = decide(e); s != status::ok) return s;
      ++made.emitted;
      if (e.from == origin::accepted) {
        ++made.accepted;
        ++t.size;
        --work.cached;
        ended = options.end_of_text.contains(e.token);
      } else {
        made.why = abandon_drafts();
        specagg::append(t, e.token, processor);
        ended = true;
      }
    }
    return status::ok;
  }
  // Keeps the token after the text or replaces it.
  status decide(emission& e) {
    const std::size_t position = t.size, by = drafter_at(position);
    std::array<normal_form<processed_row<T>>, N> row;
    for (std::size_t i = 0; i < N; ++i) row[i] = row_at(i, position);
    const auto among = [&]<class Sides>(Sides, const auto& rows, const auto& pi) {
      return draws().template keep_or_replace<Sides>(
          rows, pi, detail::examine<Sides>(rows, pi, t.tokens[position]), position - work.start, e);
    };
    return specagg::with_law_of(
        policy, row, options.sample, std::span(work.combined),
        [&](const auto& rows, const auto& pi) {
          if constexpr (may_propose)
            if (by == N)
              return specagg::with_chosen(
                  work.proposals[position - work.start], [&](const auto& proposal) {
                    return among(beside_sides<model_sides<0, N>>(), beside(rows, proposal), pi);
                  });
          return with_number<N>(
              by, [&](auto number) { return among(model_sides<number(), N>(), rows, pi); });
        });
  }

  void commit() {
    if (decided == status::ok && !ended) decided = draft_on();
    if (decided != status::ok) fail(decided);
  }
  status draft_on() {
    for (std::size_t j = 0; j < to_draft && !ends(); ++j) {
      const std::size_t k = made.model;
      if (j > 0)
        if (const status s = score_more(k, 1); s != status::ok) return s;
      if constexpr (has_final)
        if (k == 1) return write_final();
      const auto& row = row_at(k, sent());
      made.draft_why = row.why();
      if (made.draft_why != status::ok) return dead_end();
      cache(draw_draft(row), k);
    }
    return status::ok;
  }
  // Nothing can be drafted. Tokens drafted before are still verified.
  status dead_end() {
    if (work.cached > 0) return status::ok;
    if constexpr (has_final) {  // model 1 writes alone
      made.model = 1;
      work.begin[1] = t.size;
      const status s = score_more(1, 1);
      return s == status::ok ? write_final() : s;
    }
    return made.draft_why;  // then pi does not exist either
  }
  status write_final() {
    const auto& row = row_at(1, sent());
    if (row.why() != status::ok) return row.why();
    using rows_of_p = target_rows<reads_confidence<Policy>, normal_form<processed_row<T>>>;
    emission& e = work.emissions[made.emitted];
    e = {.from = origin::bonus, .why = made.draft_why};
    const status s = detail::with_pi(policy, rows_of_p(row), [&](const auto& rows, const auto& pi) {
      return draws().draw_token(rows, pi, pi, moment_at(stream::bonus), e);
    });
    if (s != status::ok) return s;
    specagg::append(t, e.token, processor);
    ++made.emitted;
    return s;
  }
};

template <class... M, class Policy, class C, class T, std::size_t N, class R, class D>
collaborative_result take_turn(const std::tuple<M&...>& models, const Policy& policy, C& random,
                               const decode_request<collaborative_workspace<T, N, R>>& how,
                               std::size_t most, D& drafter) {
  return detail::run_round(collaboration<T, Policy, C, R, D, M...>{
      how.text, most, models, policy, random, how.processor, how.work, drafter});
}

// The rows that a drafter proposes in turns of models with logits of type T.
template <class D, class T>
struct proposed_rows {
  using type = typename D::row_type;
};
template <class T>
struct proposed_rows<no_drafter, T> {
  using type = normal_form<one_hot_row<T>>;
};

}  // namespace detail

// The arguments of collaborative_decode fit together: M are at least two models of one value type,
// C gives random numbers, and D proposes tokens before the models do, or is no_drafter.
template <class D, class C, class... M>
concept Collaborates =
    sizeof...(M) >= 2 && (LogitSource<M> && ...) && Chooser<std::remove_reference_t<C>> &&
    (std::same_as<typename M::value_type, std::common_type_t<typename M::value_type...>> && ...) &&
    (std::same_as<std::remove_reference_t<D>, no_drafter> ||
     Drafter<std::remove_reference_t<D>,
             processor_ref<std::common_type_t<typename M::value_type...>>>);
// The workspace of these models and this drafter.
template <class D, class T, class... M>
using collaborative_workspace_for =
    collaborative_workspace<T, 1 + sizeof...(M),
                            typename detail::proposed_rows<std::remove_reference_t<D>, T>::type>;

// One turn of n models. It appends 0 to `most` tokens to the text. Between turns the drafts in the
// workspace belong to this text, its buffer, its processor (the drafts have been pushed to it) and
// its models; abandon() removes them. `models` is a std::tie of the models. A
// drafter proposes before them. how.accept and how.after_round are not called. No allocation.
// invalid_parameter: nothing may be appended, the policy's parameters are out of range, gamma[0] is
// 0, or the workspace was made for fewer drafts.
//
// Random numbers: `position` is that of the token. `start` is where its chain of drafts began: the
// size of the text after the last rejection, or when decoding began. In a chain each position is
// drafted and verified at most once. Each chain starts after the start of the one before, because a
// rejection also emits a token. So no number decides twice, however many turns a draft is cached.
//
// After a failure (also an exception) the next turn with the same arguments draws the same drafts
// again and goes on with the chain. So the law stays exact, although what fails may depend on the
// drafts. It needs a drafter whose rows are a function of its draft_position.
template <class First, class... More, class Policy, class C, class D = no_drafter>
  requires Collaborates<D, C, First, More...>
collaborative_result collaborative_turn(  // models: std::tie(q, p), not {q, p}
    const std::tuple<First&, More&...>& models, const Policy& policy, C&& random,
    const decode_request<collaborative_workspace_for<D, typename First::value_type, More...>>& how,
    D&& drafter = {}) {
  return detail::take_turn(models, policy, random, how, how.most, drafter);
}

// Runs turns as speculative_decode runs rounds:
//   collaborative_workspace<float, 2> work(vocab_size, {{5, 1}});
//   collaborative_decode(std::tie(q, p), ensemble{0.3}, random,
//                        {.text = text, .most = 64, .work = work})
// how.after_round is called after each turn. The workspace has no drafts at the start and at the
// end.
template <class First, class... More, class Policy, class C, class D = no_drafter>
  requires Collaborates<D, C, First, More...>
status collaborative_decode(  // models: std::tie(q, p), not {q, p}
    const std::tuple<First&, More&...>& models, const Policy& policy, C&& random,
    const decode_request<collaborative_workspace_for<D, typename First::value_type, More...>>& how,
    D&& drafter = {}) {
  using T = typename First::value_type;
  processor_ref<T> processor = how.processor;
  const auto turn = [&](std::size_t left) {
    return detail::take_turn(models, policy, random, how, left, drafter);
  };
  const auto cut = [&](std::size_t n) {
    return std::apply(
        [&](auto&... m) {
          return specagg::abandon(how.text, n, processor, how.work, drafter, m...);
        },
        models);
  };
  // accept() or after_round() threw
  const detail::on_exception restore([&] { (void)cut(how.text.size); });
  const status s = detail::decode(how, turn, cut);
  const status ended = cut(how.text.size);
  return s != status::ok ? s : ended;
}

SPECAGG_END
