// SPDX-License-Identifier: Apache-2.0
// Speculative decoding of many texts in rounds that they share: the rows of all in one call of the
// target model, and in one call of the draft model for each drafted token. Texts come and go
// between rounds.
//
// What is promised, with models that give a text the same row in any call:
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
#include <utility>
#include <vector>

#include <specagg/decode/speculative.hpp>
#include <specagg/verify/batch.hpp>

SPECAGG_BEGIN

// One of the texts: what speculative_decode takes, but after_round, and a drafter where there is a
// draft model (model_drafter); and how far it is. All arguments but temporaries given by name must
// outlive it. Drafters, models and workspaces are its own. All that share a round have one type;
// policies may differ where Policy is any_of.
//   together_text one(text, 64, drafter, target, policy, random, work, with::accept{f});
template <class D, LogitSource M, class Policy, Chooser C, class... Given>
struct together_text {
  using model_type = M;
  using processor_type = detail::stored_by_name<with::processor, no_processor, Given...>;
  using verifier_type = detail::stored_by_name<with::verifier, token_verifier, Given...>;
  using length_type = detail::stored_by_name<with::length, fixed_draft_length, Given...>;
  using workspace_type = drafting_workspace<typename M::value_type, typename D::row_type>;
  using round_type =
      detail::speculation<D, M, Policy, C, std::remove_reference_t<processor_type>,
                          std::remove_cvref_t<verifier_type>, std::remove_reference_t<length_type>>;
  text& written;
  std::size_t most;  // tokens that may still be appended
  D& drafter;
  M& target_model;
  const Policy& policy;
  C& chooser;
  workspace_type& work;
  processor_type processor;
  detail::stored_by_name<with::accept, accept_all, Given...> accept;
  verifier_type verifier;
  length_type length;
  // After a round: its result; whether the text has ended; and with which status.
  speculative_result result = {};
  bool ended = false;
  status why = status::ok;

  together_text(text& t, std::size_t most_tokens, D& draft, M& target, const Policy& law, C& random,
                workspace_type& memory, Given... given)
      : written(t),
        most(most_tokens),
        drafter(draft),
        target_model(target),
        policy(law),
        chooser(random),
        work(memory),
        processor(detail::take_by_name<with::processor, no_processor>(given...)),
        accept(detail::take_by_name<with::accept, accept_all>(given...)),
        verifier(detail::take_by_name<with::verifier, token_verifier>(given...)),
        length(detail::take_by_name<with::length, fixed_draft_length>(given...)) {}
};

// Decides, before each j, which texts of a round draft a j-th token. This one leaves it to each
// text; plan::draft_load has one budget for all.
//
// The law does not change if the decision reads the rows of position j and the tokens before it, of
// all texts, and earlier rounds, but no token drawn at position j. But with coupled verification of
// a policy that reads the draft nothing may have seen what was drafted after a rejection
// (fixed_draft_length), and rows of position j have. So there nobody is asked: each text has an
// equal share of `most`, and decides alone.
struct each_alone {
  // Tokens that all texts together may draft in a round.
  static constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  void begin(std::size_t /*texts*/) {}  // a round of so many
  // Which of those that may draft (drafts) ask for a row; and, once rows are known, which of those
  // that have one draw a token from it: drafts = false for the others.
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
    texts_.clear();
    for (Text* const t : texts)
      if (!t->ended) begin(*t);
    {
      const detail::on_exception restore([&] {
        for (round& r : rounds_) r.roll_back();
      });
      each_alone alone;
      auto& decides = [&]() -> auto& {
        if constexpr (round::remembers) return alone;
        else return load;
      }();
      if constexpr (round::remembers)
        for (round& r : rounds_) r.limit(load.most / rounds_.size());
      draft(decides);
      score();
      ask_bonus_rows();
      verify(pool, decides);
      for (round& r : rounds_)
        if (r.result.why == status::ok) r.commit();
    }
    for (std::size_t i = 0; i < rounds_.size(); ++i) settle(*texts_[i], rounds_[i]);
    for (std::size_t i = 0; i < rounds_.size(); ++i)
      if (ended_by(*texts_[i], rounds_[i], texts_[i]->accept)) texts_[i]->ended = true;
    return std::size_t(
        std::count_if(texts.begin(), texts.end(), [](Text* t) { return !t->ended; }));
  }

 private:
  using round = typename Text::round_type;
  using drafter_type = std::remove_reference_t<decltype(std::declval<Text&>().drafter)>;
  using draft_model = detail::model_of<drafter_type, typename Text::model_type>;

  void begin(Text& t) {
    if (t.most == 0) {
      t.ended = true;
      return;
    }
    rounds_.push_back(round{t.written, t.most, t.drafter, t.target_model, t.policy, t.chooser,
                            t.processor, t.work, t.verifier, t.length});
    texts_.push_back(&t);
    round& r = rounds_.back();
    const bool again = std::any_of(rounds_.data(), &r, [&](const round& before) {
      return &before.target == &r.target || &before.drafter == &r.drafter ||
             &before.work == &r.work;
    });
    r.result.why = again ? status::invalid_parameter : r.begin();
    if (r.result.why == status::ok) r.begin_draft();
  }

  // The j-th tokens of all drafts, one j after another.
  template <class Load>
  void draft(Load& load) {
    const auto drafts = [](const round& r) { return r.drafts; };
    load.begin(std::size_t(std::count_if(rounds_.begin(), rounds_.end(), [](const round& r) {
      return r.result.why == status::ok;
    })));
    while (std::any_of(rounds_.begin(), rounds_.end(), drafts)) {
      load.ask(std::span(rounds_));
      call_drafters([](round& r) { return r.drafts && r.length.another(0); });
      for (round& r : rounds_) r.drafts = r.drafts && r.next_row();
      load.take(std::span(rounds_));
      for (round& r : rounds_)
        if (r.drafts) r.draft_token();
    }
    for (round& r : rounds_)
      if (r.result.draft_why == status::stopped) fail(r, status::stopped);
  }
  // The rows that policies may need for the bonus tokens: after scoring, as in a round alone, for a
  // head's row may depend on what the target has read.
  void ask_bonus_rows() {
    call_drafters([](round& r) {
      return r.result.why == status::ok && !r.has_row && r.tried == 0 &&
             detail::needs_draft(r.policy);
    });
    for (round& r : rounds_)
      if (r.result.why == status::ok) r.ask_bonus_row();
  }
  template <class Wanted>
  void call_drafters(Wanted&& wanted) {
    if constexpr (draft_model::there) {
      auto& calls = calls_of_drafters_;
      calls.clear();
      asked_.clear();
      addition<typename draft_model::type> call;
      for (round& r : rounds_)
        if (wanted(r) && r.drafter.call(r.position(), call)) {
          calls.push_back(call);
          asked_.push_back(&r);
        }
      // Where it fails, the drafter's next() finds out why.
      (void)specagg::extend_all(std::span(calls));
      for (std::size_t i = 0; i < calls.size(); ++i)
        asked_[i]->computed = calls[i].why == status::ok;
    }
  }

  void score() {
    calls_.clear();
    called_.clear();
    for (round& r : rounds_) {
      if (r.result.why != status::ok) continue;
      addition<typename Text::model_type> call;
      const auto tokens = r.t.tokens.first(r.t.size);
      const status s = detail::score_call(tokens, r.target, r.target_logits(), call);
      if (s != status::ok) {
        fail(r, s);
        continue;
      }
      calls_.push_back(call);
      called_.push_back(&r);
    }
    (void)specagg::extend_all(std::span(calls_));  // each has its status
    std::size_t scored = 0;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      round& r = *called_[i];
      if (calls_[i].why != status::ok) {
        fail(r, calls_[i].why);
        continue;
      }
      detail::process_rows(r.t.tokens.first(r.t.size), r.work.vocabulary, r.processor,
                           r.target_logits());
      called_[scored++] = &r;
    }
    called_.resize(scored);
  }

  template <class Pool, class Load>
  void verify(Pool& pool, Load& load) {
    std::size_t part = 0;
    for (const round* r : called_)
      part = std::max(part, verify_scratch(r->work.vocabulary, r->result.drafted));
    scratch_.resize(part * called_.size());
    verdicts_.resize(called_.size());
    specagg::verify_batch([&](std::size_t i) { return called_[i]->request(); },
                          std::span(verdicts_), std::span(scratch_),
                          [&](std::size_t i) -> const auto& { return called_[i]->verifier; }, pool);
    std::size_t emitted = 0;
    for (std::size_t i = 0; i < called_.size(); ++i) {
      round& r = *called_[i];
      r.decided = verdicts_[i];
      r.learn(r.measured());
      emitted += r.decided.emitted;
    }
    load.observe(emitted);
  }

  // As detail::run_round.
  void fail(round& r, status why) {
    r.roll_back();
    r.result = {.why = why, .draft_why = r.result.draft_why};
  }

  // As decode_rounds, in two steps, since accept() may throw: then the texts after that one keep
  // what the round has emitted, and their accept is not told of it.
  void settle(Text& t, round& r) {
    t.result = r.result;
    t.why = r.result.why;
    t.most -= r.result.emitted;
    accept_all all;
    t.ended = ended_by(t, r, all) || t.why != status::ok || t.most == 0;
  }
  template <class Accept>
  bool ended_by(Text& t, round& r, Accept& accept) {
    const auto cut = [&](std::size_t n) {
      return specagg::truncate(t.written, n, t.processor, t.drafter, t.target_model);
    };
    return detail::ends_text(std::span(t.work.emissions).first(r.result.emitted), r.start,
                             t.work.options.end_of_text, cut, accept, t.why);
  }

  std::vector<round> rounds_;
  std::vector<Text*> texts_;  // of the rounds
  std::vector<addition<typename draft_model::type>> calls_of_drafters_;
  std::vector<addition<typename Text::model_type>> calls_;
  std::vector<round*> asked_, called_;  // of the last call of the drafters, and of the target
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
