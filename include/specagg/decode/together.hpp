// SPDX-License-Identifier: Apache-2.0
// Speculative decoding of many texts in rounds that they share: the rows of all in one call of the
// target model, and in one call of the draft model for each drafted token. Texts come and go
// between rounds.
//
// Promises, with models that give a text the same row in any call:
// * Every text has the law that it has alone.
// * Where each text decides alone how long its drafts are (each_alone), it is, token by token, the
//   one that speculative_decode writes alone.
// * Where lengths depend on the other texts (plan/load.hpp), it is so where a token is a function
//   of the text before it: with coupled verification, and where pi is one token (`lossless` at
//   temperature 0); if pi reads the draft, its row must be a function of the text, too. Otherwise
//   the lengths decide which random numbers a token is drawn with. And a text that failed goes on
//   with a chooser of other numbers, for the other texts have seen what it drafted.
#pragma once
#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <specagg/decode/speculative.hpp>
#include <specagg/verify/batch.hpp>

SPECAGG_BEGIN

// Decides, before each j, which texts of a round draft a j-th token. This one leaves it to each
// text; plan::draft_load has one budget for all.
//
// The law does not change if the decision reads the rows of position j and the tokens before it, of
// all texts, and earlier rounds, but no token drawn at position j. But with coupled verification of
// a policy that reads the draft nothing may have seen what was drafted after a rejection
// (fixed_draft_length), and rows of position j have. In that case nobody is asked: each text has an
// equal share of `most`, and decides alone.
struct each_alone {
  // Tokens that all texts together may draft in a round.
  static constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  void begin(std::size_t /*texts*/) {}  // a round of so many
  // Which of those that draft (drafts()) ask for a row; and, once rows are known (row()), which of
  // those that have one draw a token from it: stop() for the others.
  template <class Text>
  void ask(std::span<Text>) {}
  template <class Text>
  void take(std::span<Text>) {}
  void observe(std::size_t /*emitted*/) {}  // by all texts; not called if the round throws
};

namespace detail {

// Whether the drafter's rows are those of a model that others may call (draft/model.hpp), and which
// model that is; else any other.
template <class D, class Other>
struct model_of {
  using type = Other;
  static constexpr bool there = false;
};
template <class D, class Other>
  requires requires { typename D::model_type; }
struct model_of<D, Other> {
  using type = typename D::model_type;
  static constexpr bool there = true;
};

}  // namespace detail

// Memory for rounds of texts of one type; it grows to the most that were in a round. Nothing in it
// is kept for the next one.
template <class Text>
class together_workspace {
 public:
  // together_round.
  template <class Pool, class Load>
  std::size_t run(std::span<Text* const> texts, Pool& pool, Load& load) {
    rounds_.clear();
    for (Text* const t : texts)
      if (t->goes_on()) {
        round r(*t);
        if (std::any_of(rounds_.begin(), rounds_.end(),
                        [&](const round& before) { return before.shares_with(r); }))
          r.refuse(status::invalid_parameter);
        rounds_.push_back(r);
      }
    each_alone alone;
    if constexpr (round::remembers)
      detail::run_rounds(std::span(rounds_),
                         parts<Pool, each_alone>{*this, pool, alone, load.most});
    else detail::run_rounds(std::span(rounds_), parts<Pool, Load>{*this, pool, load});
    for (round& r : rounds_) r.settle();
    for (round& r : rounds_) r.ask_accept();
    return std::size_t(
        std::count_if(texts.begin(), texts.end(), [](Text* t) { return !t->ended; }));
  }

 private:
  using round = detail::speculation<Text>;
  using draft_model = detail::model_of<typename Text::drafter_type, typename Text::model_type>;

  // The parts of run_rounds, made for all rounds.
  template <class Pool, class Load>
  struct parts {
    together_workspace& work;
    Pool& pool;
    Load& load;
    std::size_t most = each_alone::most;  // of all texts, where each decides alone

    // The j-th tokens of all drafts, one j after another.
    void draft(std::span<round> rounds) {
      load.begin(std::size_t(
          std::count_if(rounds.begin(), rounds.end(), [](const round& r) { return r.runs(); })));
      for (round& r : rounds)
        if (r.runs()) {
          r.begin_draft();
          r.limit(most / rounds.size());
        }
      while (std::any_of(rounds.begin(), rounds.end(), [](const round& r) { return r.drafts(); })) {
        load.ask(rounds);
        work.call_drafters([](round& r, auto& call) { return r.call_for_row(call); });
        for (round& r : rounds) r.find_row();
        load.take(rounds);
        for (round& r : rounds)
          if (r.drafts()) r.draft_token();
      }
      for (round& r : rounds)
        if (const status s = r.drafted(); s != status::ok) r.fail(s);
    }
    void score(std::span<round> rounds) { work.score(rounds); }
    // The rows that policies may need for the bonus tokens come first, but after scoring, as in a
    // round alone: a head's row may depend on what the target has read.
    void verify(std::span<round> rounds) {
      work.call_drafters([](round& r, auto& call) { return r.call_for_bonus_row(call); });
      for (round& r : rounds) r.ask_bonus_row();
      load.observe(work.verify(pool));
    }
  };

  // call_of(round, call): the call for a round, if it has one.
  void call_drafters(auto&& call_of) {
    if constexpr (draft_model::there) {
      auto& calls = calls_of_drafters_;
      calls.clear();
      called_.clear();
      addition<typename draft_model::type> call;
      for (round& r : rounds_)
        if (call_of(r, call)) {
          calls.push_back(call);
          called_.push_back(&r);
        }
      // If it fails, the drafter's next() finds out why.
      (void)specagg::extend_all(std::span(calls));
      for (std::size_t i = 0; i < calls.size(); ++i) called_[i]->called(calls[i].why == status::ok);
    }
  }

  void score(std::span<round> rounds) {
    calls_.clear();
    called_.clear();
    for (round& r : rounds) {
      if (!r.runs()) continue;
      addition<typename Text::model_type> call;
      if (const status s = r.call_for_score(call); s != status::ok) {
        r.fail(s);
        continue;
      }
      calls_.push_back(call);
      called_.push_back(&r);
    }
    (void)specagg::extend_all(std::span(calls_));  // each has its status
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].why == status::ok) called_[i]->scored();
      else called_[i]->fail(calls_[i].why);
    }
  }

  // Returns how many tokens all emit.
  std::size_t verify(auto& pool) {
    called_.clear();
    std::size_t part = 0;
    for (round& r : rounds_)
      if (r.runs()) {
        called_.push_back(&r);
        part = std::max(part, r.scratch());
      }
    scratch_.resize(part * called_.size());
    verdicts_.resize(called_.size());
    specagg::verify_batch([&](std::size_t i) { return called_[i]->request(); },
                          std::span(verdicts_), std::span(scratch_),
                          [&](std::size_t i) -> const auto& { return called_[i]->verifier(); },
                          pool);
    std::size_t emitted = 0;
    for (std::size_t i = 0; i < called_.size(); ++i) {
      called_[i]->decide(verdicts_[i]);
      emitted += verdicts_[i].emitted;
    }
    return emitted;
  }

  std::vector<round> rounds_;
  std::vector<addition<typename draft_model::type>> calls_of_drafters_;
  std::vector<addition<typename Text::model_type>> calls_;
  std::vector<round*> called_;  // of the last call
  std::vector<verdict> verdicts_;
  std::vector<double> scratch_;
};

// One round of each text that has not ended: what speculative_decode does until it asks `accept`
// again. A text that fails ends with its status, and changes nothing of the others
// (invalid_parameter, too: its model, drafter or workspace is also that of a text before). Returns
// how many have not ended. A text that is left out of `texts` stays as it is.
//   pool    verifies the texts; no model or drafter is called meanwhile. It may be the models' own
//   load    each_alone, or what decides for all texts how much is drafted (plan/load.hpp)
template <class Text, class Pool = this_thread, class Load = each_alone>
std::size_t together_round(std::type_identity_t<std::span<Text* const>> texts,
                           together_workspace<Text>& work, Pool&& pool = {}, Load&& load = {}) {
  return work.run(texts, pool, load);
}

SPECAGG_END
