// SPDX-License-Identifier: Apache-2.0
// One round of speculative decoding whose draft is a chain: draft, score, verify, commit, with the
// parts that a round of several texts makes for all (together.hpp).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include <specagg/decode/rounds.hpp>
#include <specagg/decode/together_text.hpp>
#include <specagg/draft/drafter.hpp>
#include <specagg/verify/batch.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

namespace detail {

// A round of a text.
template <class Text>
class speculation {
 public:
  using T = typename Text::model_type::value_type;
  using row_type = typename Text::drafter_type::row_type;
  using policy_type = typename Text::policy_type;
  using verifier_type = std::remove_cvref_t<decltype(Text::verifier)>;
  static constexpr std::size_t drafters = drafter_count<typename Text::drafter_type>;
  // Later rounds use the noise of what was drafted after a rejection, and pi may depend on that.
  static constexpr bool remembers = is_coupled<verifier_type> && reads_draft<policy_type>;

  explicit speculation(Text& of) : text_(&of), start_(of.written.size), length_(of.length) {}

  // ---- a round (run_rounds) ---------------------------------------------------------------------
  const speculative_result& result() const { return result_; }
  bool runs() const { return result_.why == status::ok; }
  void begin() {
    const Text& x = *text_;
    if (!runs()) return;
    if (std::size_t(x.drafter.vocab_size()) != x.work.vocabulary)
      result_.why = status::vocabulary_mismatch;
    else if (x.most == 0 || options().gamma > x.work.gamma || !specagg::valid(x.policy))
      result_.why = status::invalid_parameter;
    else result_.why = detail::ready(x.written, x.work.vocabulary, x.target_model);
  }
  // If a model refuses to go back, the next score() reports it.
  void roll_back() {
    Text& x = *text_;
    (void)specagg::truncate(x.written, start_, x.processor, x.drafter, x.target_model);
  }
  void fail(status why) {
    roll_back();
    result_ = {.why = why, .draft_why = result_.draft_why};
  }
  status draft() {
    begin_draft();
    while (drafts_) {
      find_row();
      if (drafts_) draft_token();
    }
    return drafted();
  }
  status score() {
    return specagg::score(tokens(), text_->target_model, text_->processor, target_logits());
  }
  void verify() {
    auto asked_for = request();
    decide(specagg::verify(asked_for, text_->verifier, text_->work.scratch));
  }
  void commit() {
    Text& x = *text_;
    const status cut = specagg::truncate(x.written, start_ + decided_.accepted, x.processor,
                                         x.drafter, x.target_model);
    for (std::size_t i = decided_.accepted; i < decided_.emitted; ++i)
      specagg::append(x.written, x.work.emissions[i].token, x.processor);
    result_.accepted = decided_.accepted;
    result_.emitted = decided_.emitted;
    result_.why = decided_.why != status::ok ? decided_.why : cut;
    // If the law needed the row that the drafter did not give, report why it did not.
    if (decided_.why != status::ok && decided_.emitted == result_.drafted &&
        result_.draft_why != status::ok && detail::needs_draft(x.policy))
      result_.why = result_.draft_why;
  }

  // ---- the text after the round -----------------------------------------------------------------
  // In two steps, since accept() may throw: then the texts of other rounds know where they are.
  void settle() {
    Text& x = *text_;
    x.result = result_;
    x.why = result_.why;
    x.most -= result_.emitted;
    const auto all = [](const emission&) { return true; };
    x.ended = ended_by(all) || x.why != status::ok || x.most == 0;
  }
  void ask_accept() {
    if (text_->accept && ended_by(text_->accept)) text_->ended = true;
  }

  // ---- the draft, token by token ----------------------------------------------------------------
  // The last token of a round comes from the target, so one token fewer than `most`, and than fit,
  // is drafted.
  void begin_draft() {
    Text& x = *text_;
    gamma_ = std::min(
        {options().gamma, x.most - 1, detail::room(x.written, x.target_model) - start_ - 1});
    length_.begin();
    drafts_ = gamma_ > 0;
  }
  void limit(std::size_t most_drafted) {
    gamma_ = std::min(gamma_, most_drafted);
    drafts_ = drafts_ && gamma_ > 0;
  }
  // Whether one more is to be drafted; no more; how many more may be.
  bool drafts() const { return drafts_; }
  void stop() { drafts_ = false; }
  std::size_t left() const { return gamma_ - result_.drafted; }
  // The text with its draft; the row of the next token, if it is known; and what is expected of it.
  std::span<const token_id> tokens() const {
    return text_->written.tokens.first(text_->written.size);
  }
  const row_type* row() const {
    return has_row_ ? &text_->work.draft_rows[result_.drafted] : nullptr;
  }
  const auto& forecast() const { return length_; }
  // Looks for the row after the draft: that of the first drafter that has one that is worth a
  // token.
  void find_row() {
    drafts_ = drafts_ && specagg::any_in_turn(text_->drafter, [&](auto& one, std::size_t number) {
                double confidence = 0;
                if (result_.draft_why == status::stopped || !length_.another(number) ||
                    !ask(one, number, confidence) || !length_.keep(number, confidence))
                  return false;
                text_->work.drafters[result_.drafted] = std::uint8_t(number);
                text_->work.confidences[result_.drafted] = confidence;
                return true;
              });
  }
  void draft_token() {
    Text& x = *text_;
    drafts_ = false;
    std::size_t& g = result_.drafted;
    const token_id y = specagg::with_chosen(x.work.draft_rows[g], [&](const auto& row) {
      return x.verifier.propose(row, std::uint32_t(start_), g, x.chooser, x.work.scratch);
    });
    if (y == no_token) return;
    specagg::append(x.written, y, x.processor);
    ++g;
    has_row_ = false;
    tried_ = 0;
    drafts_ = g < gamma_ && !options().end_of_text.contains(y);
  }
  // If the drafter failed, only the draft has ended, unless its status is `stopped`.
  status drafted() const {
    return result_.draft_why == status::stopped ? status::stopped : status::ok;
  }

  // ---- what a shared round does for all ---------------------------------------------------------
  // The call of the drafter's model for the next row, or for the bonus row; and whether it was
  // made.
  bool call_for_row(auto& call) const {
    return drafts_ && length_.another(0) && text_->drafter.call(position(), call);
  }
  bool call_for_bonus_row(auto& call) const {
    return wants_bonus_row() && tried_ == 0 && text_->drafter.call(position(), call);
  }
  void called(bool made) { computed_ = made; }
  // The call of the target; and what is done with its rows.
  status call_for_score(auto& call) {
    return detail::score_call(tokens(), text_->target_model, target_logits(), call);
  }
  void scored() {
    process_rows(tokens(), text_->work.vocabulary, text_->processor, target_logits());
  }
  // Asks for the bonus row now, so that verification calls no model. The round is told the answer
  // only if verification looks at the row, as where it asks itself.
  void ask_bonus_row() {
    if (!wants_bonus_row()) return;
    const answer before{false, result_.draft_why, asked_};
    (void)bonus_row();
    bonus_ = {true, result_.draft_why, asked_};
    result_.draft_why = before.why;
    asked_ = before.asked;
  }
  auto request() {
    Text& x = *text_;
    const std::size_t g = result_.drafted;
    const auto q_rows = lasting_rows_of(g + 1, [this, g](std::size_t j) -> const row_type& {
      return j < g ? text_->work.draft_rows[j] : bonus_row();
    });
    const auto p_rows = sampled_rows<policy_type>(target_logits(), options().sample,
                                                  std::span(x.work.target_rows).first(g + 1));
    const specagg::draft drafted{x.written.tokens.subspan(start_, g), std::uint32_t(start_),
                                 options().end_of_text, true, measured()};
    using Q = std::remove_const_t<decltype(q_rows)>;
    using R = std::remove_const_t<decltype(p_rows)>;
    return verification<Q, R, const policy_type&, decltype((x.chooser))>{
        drafted, q_rows, p_rows, x.policy, x.chooser, x.work.emissions};
  }
  const verifier_type& verifier() const { return text_->verifier; }
  std::size_t scratch() const { return verify_scratch(text_->work.vocabulary, result_.drafted); }
  // The length does not see tokens that were drafted with noise that later rounds use again.
  void decide(const verdict& decided) {
    decided_ = decided;
    std::span<const draft_acceptance> acceptances = measured();
    if constexpr (remembers) {
      const std::size_t seen = std::min(result_.drafted, decided_.accepted + 1);
      length_ = text_->length;
      length_.begin();
      asked_.fill(0);
      for (std::size_t j = 0; j < seen; ++j) {
        const std::size_t number = text_->work.drafters[j];
        if (length_.another(number)) (void)length_.keep(number, text_->work.confidences[j]);
        ++asked_[number];
      }
      acceptances = acceptances.first(std::min(seen, acceptances.size()));
    }
    length_.observe(acceptances, decided_.emitted, asked_);
    if constexpr (!std::is_const_v<std::remove_reference_t<decltype(text_->length)>>)
      text_->length = length_;
  }
  // For a round of a text that has the model, drafter or workspace of another.
  void refuse(status why) { result_.why = why; }
  bool shares_with(const speculation& other) const {
    const Text &x = *text_, &y = *other.text_;
    return &x.target_model == &y.target_model || &x.drafter == &y.drafter || &x.work == &y.work;
  }

 private:
  const decode_options& options() const { return text_->work.options; }
  draft_position position() const {
    constexpr bool of_policy = reads_confidence<policy_type>;
    return {tokens(), result_.drafted, of_policy || bool(length_.reads_confidence), computed_};
  }
  std::span<T> target_logits() {
    return std::span(text_->work.target_logits)
        .first((result_.drafted + 1) * text_->work.vocabulary);
  }
  std::span<draft_acceptance> measured() {
    const bool measure = options().acceptances || length_.reads_acceptances;
    return std::span(text_->work.acceptances).first(measure ? result_.drafted : 0);
  }
  template <class One>
  bool ask(One& one, std::size_t number, double& confidence) {
    typename One::row_type row;
    ++asked_[number];
    ++tried_;
    result_.draft_why = one.next(position(), text_->processor, row, confidence);
    computed_ = false;
    const bool has = result_.draft_why == status::ok;
    if (has) text_->work.draft_rows[result_.drafted] = row;
    has_row_ = has_row_ || has;  // one that was not worth a token will do for the bonus
    return has;
  }
  bool wants_bonus_row() const { return runs() && !has_row_ && detail::needs_draft(text_->policy); }
  // The drafter's row after the draft: only a policy that reads the draft needs it, for the bonus
  // token. It may cost one more call.
  const row_type& bonus_row() {
    row_type& row = text_->work.draft_rows[result_.drafted];
    if (bonus_.known) {
      result_.draft_why = bonus_.why;
      asked_ = bonus_.asked;
    } else if (!has_row_) {
      row = row_type();
      if (tried_ < drafters)
        specagg::any_in_turn(text_->drafter, [&](auto& one, std::size_t number) {
          double confidence;
          return ask(one, number, confidence) || result_.draft_why == status::stopped;
        });
    }
    return row;
  }
  bool ended_by(auto& accept) {
    Text& x = *text_;
    const auto cut = [&](std::size_t n) {
      return specagg::truncate(x.written, n, x.processor, x.drafter, x.target_model);
    };
    return detail::ends_text(std::span(x.work.emissions).first(result_.emitted), start_,
                             options().end_of_text, cut, accept, x.why);
  }

  // The number of rows asked of each drafter.
  using counts = std::array<std::size_t, drafters>;
  // The answer to the question for the bonus row, once ask_bonus_row() has asked.
  struct answer {
    bool known = false;
    status why = status::ok;
    counts asked = {};
  };
  Text* text_;
  std::size_t start_;
  // It learns only from a round that was verified.
  std::remove_cvref_t<decltype(Text::length)> length_;
  speculative_result result_ = {};
  counts asked_ = {};
  std::size_t gamma_ = 0;  // most tokens that may be drafted
  bool drafts_ = false;    // one more is to be drafted
  bool computed_ = false;  // of the next row (draft_position)
  std::size_t tried_ = 0;  // drafters asked for the row after the draft
  bool has_row_ = false;   // one of them gave it
  answer bonus_ = {};
  verdict decided_ = {};
};

}  // namespace detail
SPECAGG_END
