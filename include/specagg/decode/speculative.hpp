// SPDX-License-Identifier: Apache-2.0
// Speculative decoding with a drafter and a target model: draft up to gamma tokens, score them in
// one call, verify, commit, roll both back.
// Proved: proofs/decode.v, `speculative_decode_has_law`, `block_decode_has_law`.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/decode/detail/misfit.hpp>
#include <specagg/decode/rounds.hpp>
#include <specagg/draft/model.hpp>
#include <specagg/verify/batch.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// Decides how long a draft is, up to gamma, and which of several drafters (draft/first_of.hpp)
// proposes each token. This one always drafts gamma tokens, each from the first drafter that has a
// row; plan/draft_length.hpp has one that learns where to stop. drafter: its number, 0 if there is
// only one.
//
// The emitted law does not change if the decision to draft on depends on the text, the drafted
// tokens and the next row, but not on the token drawn from that row; and also on earlier rounds,
// but not on the random numbers of later ones. These are fresh, but for coupled verification: there
// a later round draws its tokens with the noise that drafted tokens after a rejection were drawn
// with. If pi depends on the draft's row, and that on where the round began (as a draft head's
// does) or on which drafter was asked, a length that has seen such tokens changes the law. So in
// that case it is shown the round only up to the first rejected token (speculative_round), and must
// not read a clock. Proved: proofs/coupled.v, `remembers_verified_is_pi`,
// `remembers_rejected_is_not_pi`.
struct fixed_draft_length {
  static constexpr bool reads_acceptances = false, reads_confidence = false;
  void begin() {}
  // Is one more row of this drafter worth its cost, before the row is known?
  bool another(std::size_t /*drafter*/) const { return true; }
  // The row is known now: is it worth drafting a token from it and scoring it? If not, the next
  // drafter is asked. confidence: of the drafter (of a model, 0 unless reads_confidence).
  bool keep(std::size_t /*drafter*/, double /*confidence*/) const { return true; }
  // Called after the round: the acceptances of the draft (if reads_acceptances), the tokens
  // emitted, the rows asked of each drafter.
  void observe(std::span<const draft_acceptance>, std::size_t, std::span<const std::size_t>) {}
};
// A type of lengths.
template <class L>
concept DraftLength =
    requires(L& length, std::size_t n, std::span<const draft_acceptance> acceptances,
             std::span<const std::size_t> asked) {
      { length.reads_acceptances } -> std::convertible_to<bool>;
      { length.reads_confidence } -> std::convertible_to<bool>;
      length.begin();
      { length.another(n) } -> std::convertible_to<bool>;
      { length.keep(n, 0.5) } -> std::convertible_to<bool>;
      length.observe(acceptances, n, asked);
    };

// What a workspace is made with.
struct decode_options {
  std::size_t gamma = 4;  // most tokens drafted in a round; 0: only the target writes
  sampling sample = {};   // for draft and target
  end_tokens end_of_text = {};
  // also measure the acceptance of every drafted position; see expected_tokens
  bool acceptances = false;
};

// All memory that a round needs, but for the drafter's, allocated once; and the options. These may
// be changed between rounds, but for a gamma larger than the one that there is memory for. No more
// is kept for the next round; any text may use it then. T: the type of the target's logits, R: the
// drafter's row_type.
template <class T, class R>
struct drafting_workspace {
  decode_options options;
  std::size_t vocabulary, gamma;  // gamma: that there is memory for
  std::vector<T> target_logits = std::vector<T>((gamma + 1) * vocabulary);
  std::vector<R> draft_rows = std::vector<R>(gamma + 1);
  std::vector<processed_row<T>> target_rows = std::vector<processed_row<T>>(gamma + 1);
  // Of each token: the number of the drafter that it came from, and the confidence of the row.
  std::vector<std::uint8_t> drafters = std::vector<std::uint8_t>(gamma);
  std::vector<double> confidences = std::vector<double>(gamma);
  std::vector<emission> emissions = std::vector<emission>(gamma + 1);
  std::vector<draft_acceptance> acceptances = std::vector<draft_acceptance>(gamma);
  std::vector<double> scratch = std::vector<double>(verify_scratch(vocabulary, gamma));

  drafting_workspace(std::size_t vocab_size, const decode_options& of)
      : options(of), vocabulary(vocab_size), gamma(of.gamma) {}
  // The target's logits after j drafted tokens.
  std::span<T> target_row(std::size_t j) {
    return std::span(target_logits).subspan(j * vocabulary, vocabulary);
  }
};
// The same for a draft model, with its logits.
template <class T>
struct speculative_workspace : drafting_workspace<T, processed_row<T>> {
  std::vector<T> draft_logits;  // (gamma + 1) x V
  speculative_workspace(std::size_t vocab_size, const decode_options& of)
      : drafting_workspace<T, processed_row<T>>(vocab_size, of),
        draft_logits((of.gamma + 1) * vocab_size) {}
};

// The result of one round. `emitted` tokens were appended to the text (workspace.emissions says
// where each came from). They have the law pi even if `why` is not ok; `why` only says why there
// are no more. draft_why: why the draft ended early, if the drafter gave no row: no_draft, or what
// is wrong with a model's (a grammar's dead end, NaN, a full context).
struct [[nodiscard]] speculative_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok, draft_why = status::ok;
};

namespace detail {

// One round of speculative_round. L is const where nothing is to be learned.
template <class D, class M, class Policy, class C, class P, class V, class L>
struct speculation {
  using T = typename M::value_type;
  using row_type = typename D::row_type;
  // Later rounds use the noise of what was drafted after a rejection, and pi may depend on that.
  static constexpr bool remembers = is_coupled<V> && reads_draft<Policy>;

  text& t;
  std::size_t most;
  D& drafter;
  M& target;
  const Policy& policy;
  C& chooser;
  P& processor;
  drafting_workspace<T, row_type>& work;
  const V& verifier;
  L& learned;

  const decode_options& options = work.options;
  const std::size_t start = t.size;
  speculative_result result = {};
  std::remove_const_t<L> length = learned;  // it learns only from a round that was verified
  std::array<std::size_t, drafter_count<D>> asked = {};  // rows, of each drafter
  std::size_t gamma = 0;                                 // most tokens that may be drafted
  bool drafts = false;                                   // one more is to be drafted
  bool computed = false;                                 // of the next row (draft_position)
  std::size_t tried = 0;  // drafters asked for the row after the draft
  bool has_row = false;   // one of them gave it
  // What is known after asking for that row, once ask_bonus_row() has.
  struct answer {
    bool known = false;
    status why = status::ok;
    std::array<std::size_t, drafter_count<D>> asked = {};
  };
  answer bonus = {};
  verdict decided = {};

  status begin() const {
    if (std::size_t(drafter.vocab_size()) != work.vocabulary) return status::vocabulary_mismatch;
    if (most == 0 || options.gamma > work.gamma || !specagg::valid(policy))
      return status::invalid_parameter;
    return detail::ready(t, work.vocabulary, target);
  }

  // If a model refuses to go back, the next score() reports it.
  void roll_back() { (void)specagg::truncate(t, start, processor, drafter, target); }

  void draft() {
    begin_draft();
    while (drafts)
      if (drafts = next_row(); drafts) draft_token();
  }
  // The last token of a round comes from the target, so one token fewer than `most`, and than fit,
  // is drafted.
  void begin_draft() {
    gamma = std::min({options.gamma, most - 1, detail::room(t, target) - start - 1});
    length.begin();
    drafts = gamma > 0;
  }
  std::size_t left() const { return gamma - result.drafted; }
  void limit(std::size_t most_drafted) {
    gamma = std::min(gamma, most_drafted);
    drafts = drafts && gamma > 0;
  }
  // From the row that next_row() found.
  void draft_token() {
    drafts = false;
    std::size_t& g = result.drafted;
    const token_id y = specagg::with_row(work.draft_rows[g], [&](auto& row) {
      return verifier.propose(row, std::uint32_t(start), g, chooser, work.scratch);
    });
    if (y == no_token) return;
    specagg::append(t, y, processor);
    ++g;
    has_row = false;
    tried = 0;
    drafts = g < gamma && !options.end_of_text.contains(y);
  }

  // The row after the draft, from the first drafter that has one that is worth a token.
  bool next_row() {
    return specagg::any_in_turn(drafter, [&](auto& one, std::size_t number) {
      double confidence = 0;
      if (result.draft_why == status::stopped || !length.another(number) ||
          !ask(one, number, confidence) || !length.keep(number, confidence))
        return false;
      work.drafters[result.drafted] = std::uint8_t(number);
      work.confidences[result.drafted] = confidence;
      return true;
    });
  }
  template <class One>
  bool ask(One& one, std::size_t number, double& confidence) {
    typename One::row_type row;
    ++asked[number];
    ++tried;
    result.draft_why = one.next(position(), processor, row, confidence);
    computed = false;
    const bool has = result.draft_why == status::ok;
    if (has) work.draft_rows[result.drafted] = row;
    has_row = has_row || has;  // one that was not worth a token will do for the bonus
    return has;
  }

  draft_position position() const {
    return {t.tokens.first(t.size), result.drafted, bool(length.reads_confidence), computed};
  }

  std::span<T> target_logits() {
    return std::span(work.target_logits).first((result.drafted + 1) * work.vocabulary);
  }
  status score() {
    return specagg::score(t.tokens.first(t.size), target, processor, target_logits());
  }

  auto request() {
    const std::size_t g = result.drafted;
    const auto q_rows = rows_of(g + 1, [this, g](std::size_t j) -> const row_type& {
      return j < g ? work.draft_rows[j] : bonus_row();
    });
    const auto p_rows = sampled_rows<Policy>(target_logits(), options.sample,
                                             std::span(work.target_rows).first(g + 1));
    const specagg::draft drafted{t.tokens.subspan(start, g), std::uint32_t(start),
                                 options.end_of_text};
    using Q = std::remove_const_t<decltype(q_rows)>;
    using R = std::remove_const_t<decltype(p_rows)>;
    return verification<Q, R, const Policy&, C&>{drafted, q_rows,         p_rows,    policy,
                                                 chooser, work.emissions, measured()};
  }
  std::span<draft_acceptance> measured() {
    const bool measure = options.acceptances || length.reads_acceptances;
    return std::span(work.acceptances).first(measure ? result.drafted : 0);
  }
  void verify() {
    auto asked_for = request();
    decided = specagg::verify(asked_for, verifier, work.scratch);
    learn(measured());
  }
  // The drafter's row after the draft: only a policy that reads the draft needs it, for the bonus
  // token. It may cost one more call.
  const row_type& bonus_row() {
    row_type& row = work.draft_rows[result.drafted];
    if (bonus.known) {
      result.draft_why = bonus.why;
      asked = bonus.asked;
    } else if (!has_row) {
      row = row_type();
      if (tried < drafter_count<D>)
        specagg::any_in_turn(drafter, [&](auto& one, std::size_t number) {
          double confidence;
          return ask(one, number, confidence) || result.draft_why == status::stopped;
        });
    }
    return row;
  }
  // Asks for it now, so that verification calls no model. The round is told the answer only if
  // verification looks at the row, as where it asks itself.
  void ask_bonus_row() {
    if (has_row || !detail::needs_draft(policy)) return;
    const answer before{false, result.draft_why, asked};
    (void)bonus_row();
    bonus = {true, result.draft_why, asked};
    result.draft_why = before.why;
    asked = before.asked;
  }

  // What was drafted with noise that later rounds use is not seen.
  void learn(std::span<const draft_acceptance> acceptances) {
    if constexpr (remembers) {
      const std::size_t seen = std::min(result.drafted, decided.accepted + 1);
      length = learned;
      length.begin();
      asked.fill(0);
      for (std::size_t j = 0; j < seen; ++j) {
        const std::size_t number = work.drafters[j];
        if (length.another(number)) (void)length.keep(number, work.confidences[j]);
        ++asked[number];
      }
      acceptances = acceptances.first(std::min(seen, acceptances.size()));
    }
    length.observe(acceptances, decided.emitted, asked);
    if constexpr (!std::is_const_v<L>) learned = length;
  }

  void commit() {
    const status cut = specagg::truncate(t, start + decided.accepted, processor, drafter, target);
    for (std::size_t i = decided.accepted; i < decided.emitted; ++i)
      specagg::append(t, work.emissions[i].token, processor);
    result.accepted = decided.accepted;
    result.emitted = decided.emitted;
    result.why = decided.why != status::ok ? decided.why : cut;
    // If the law needed the row that the drafter did not give, report why it did not.
    if (decided.why != status::ok && decided.emitted == result.drafted &&
        result.draft_why != status::ok && detail::needs_draft(policy))
      result.why = result.draft_why;
  }
};

// One round; what is given by other names than its own is not used.
template <class D, class M, class Policy, class C, class W, class... Given>
speculative_result speculate(text& t, std::size_t most, D& draft, M& target, const Policy& policy,
                             C& random, W& work, Given&... given) {
  if constexpr (LogitSource<D>) {
    model_drafter<D> drafter(draft, work.draft_logits, work.options.sample);
    return detail::speculate(t, most, drafter, target, policy, random, work, given...);
  } else {
    auto&& processor = detail::by_name<with::processor, no_processor>(given...);
    const auto& verifier = detail::by_name<with::verifier, token_verifier>(given...);
    auto&& length = detail::by_name<with::length, fixed_draft_length>(given...);
    return detail::run_round(
        speculation<D, M, Policy, C, std::remove_reference_t<decltype(processor)>,
                    std::remove_cvref_t<decltype(verifier)>,
                    std::remove_reference_t<decltype(length)>>{
            t, most, draft, target, policy, random, processor, work, verifier, length});
  }
}

template <class D>
struct draft_row {
  using type = typename D::row_type;
};
template <LogitSource D>
struct draft_row<D> {
  using type = processed_row<typename D::value_type>;
};
template <class W, class D, class M>
struct check_drafting_workspace {
  static constexpr bool fits =
      object_of<W, drafting_workspace<value_type_of<M>, typename draft_row<D>::type>>;
  static void say() {
    static_assert(fits,
                  "specagg: with a drafter the workspace is a drafting_workspace, not const, of "
                  "the target's value_type and the drafter's row_type, made with the options "
                  "(docs/drafters.md)");
  }
};
template <class W, LogitSource D, class M>
struct check_drafting_workspace<W, D, M> : check_workspace<W, speculative_workspace, M> {};
template <class V, class D, class M, class Policy, class C>
struct check_verifier {
  using Q = typename draft_row<D>::type;
  static constexpr bool fits = requires(
      const V& verifier, const draft& drafted, std::span<Q> q,
      std::span<processed_row<value_type_of<M>>> p, const Policy& policy, C& random,
      std::span<emission> out, std::span<double> scratch, std::span<draft_acceptance> acceptances) {
    {
      verifier.propose(q[0], std::uint32_t(), std::size_t(), random, scratch)
    } -> std::same_as<token_id>;
    {
      verifier.verify(drafted, q, p, policy, random, out, scratch, acceptances)
    } -> std::same_as<verdict>;
  };
  static void say() {
    static_assert(fits,
                  "specagg: this verifies no drafts of this decoder: with::verifier{v} takes "
                  "token_verifier{}, block_verifier{}, match_verifier{}, coupled_verifier{noise} "
                  "(docs/decoders.md)");
  }
};
template <class L>
struct check_length {
  static constexpr bool fits = DraftLength<L>;
  static void say() {
    static_assert(fits,
                  "specagg: this is no DraftLength: with::length{l} takes an object with the "
                  "members of fixed_draft_length (decode/speculative.hpp, docs/decoders.md)");
  }
};

template <class Names, class Text, class Most, class D, class M, class Policy, class C, class W,
          class... Given>
using misfit_of_speculation = typename first_misfit<
    check_text<Text, Most>, check_model<M>,
    check_processor<type_by_name<with::processor, no_processor, Given...>, M>,
    check_drafter<D, Drafter<std::remove_reference_t<D>,
                             type_by_name<with::processor, no_processor, Given...>>>,
    check_one_value_type<D, M, true>, check_chooser<C>,
    check_drafting_workspace<W, std::remove_reference_t<D>, M>,
    check_given<Names, speculative_result, W, M, Given...>,
    check_verifier<type_by_name<with::verifier, token_verifier, Given...>,
                   std::remove_reference_t<D>, M, Policy, std::remove_reference_t<C>>,
    check_length<type_by_name<with::length, fixed_draft_length, Given...>>>::type;

}  // namespace detail

// Appends 1 to `most` tokens to the text (0 only if `why` is not ok). It works in the workspace and
// allocates no memory. `draft` is a draft model, whose rows are sampled as the target's, or a
// drafter. If it has no row (a lookup that finds nothing, a draft model whose context is full) it
// drafts nothing. That ends the text only if the policy reads the draft's row: `why` is then the
// drafter's status. invalid_parameter: nothing may be appended, the policy's parameters are out of
// range, or the workspace was made for a smaller gamma. By name it takes a processor, a verifier
// and a length.
//
// A round that fails (or throws) leaves text, drafter and length as they were, so the next one with
// the same arguments draws the same draft again: the law stays exact, although what fails may
// depend on the draft.
template <class Text, class Most, class D, class M, class Policy, class C, class W, class... Given>
speculative_result speculative_round(Text&& t, Most most, D&& draft, M&& target,
                                     const Policy& policy, C&& random, W&& work, Given&&... given) {
  using misfit =
      detail::misfit_of_speculation<detail::names<with::processor, with::verifier, with::length>,
                                    Text, Most, D, M, Policy, C, W, Given...>;
  if constexpr (detail::Misfit<misfit>) return detail::refuse<speculative_result, misfit>();
  else
    return detail::speculate(t, std::size_t(most), draft, target, policy, random, work, given...);
}

// Runs rounds as decode_rounds does, with a draft model or a drafter:
//   speculative_workspace<float> work(vocab_size, decode_options{.gamma = 4});
//   speculative_decode(text, 64, draft_model, target_model, lossless{}, random, work)
// A drafter takes a drafting_workspace<float, row_type>. By name it takes what a round takes,
// accept and after_round.
template <class Text, class Most, class D, class M, class Policy, class C, class W, class... Given>
status speculative_decode(Text&& t, Most most, D&& draft, M&& target, const Policy& policy,
                          C&& random, W&& work, Given&&... given) {
  using misfit = detail::misfit_of_speculation<
      detail::names<with::processor, with::verifier, with::length, with::accept, with::after_round>,
      Text, Most, D, M, Policy, C, W, Given...>;
  if constexpr (detail::Misfit<misfit>) return detail::refuse<status, misfit>();
  else {
    auto&& processor = detail::by_name<with::processor, no_processor>(given...);
    const auto round = [&](std::size_t left) {
      return detail::speculate(t, left, draft, target, policy, random, work, given...);
    };
    const auto cut = [&](std::size_t n) {
      return specagg::truncate(t, n, processor, draft, target);
    };
    return detail::decode(t, std::size_t(most), work, round, cut, given...);
  }
}

SPECAGG_END
