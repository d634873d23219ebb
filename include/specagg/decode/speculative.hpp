// SPDX-License-Identifier: Apache-2.0
// Speculative decoding with two models: draft gamma tokens, score them in one call, verify, commit, roll both caches
// back.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include <specagg/decode/text.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// Decides how long a draft is, up to gamma. This one always drafts gamma tokens; plan/draft_length.hpp has one that
// learns where to stop. The decision to draft on may depend on the text, the drafted tokens and the next row, but not
// on the token drawn from that row. So the emitted law does not change.
struct fixed_draft_length {
  static constexpr bool reads_acceptances = false, reads_confidence = false;
  void begin() {}
  bool another() const { return true; }  // is one more draft step worth its cost, before its row is known?
  // The row is known now: is it worth drafting a token from it and scoring it? The argument is the largest probability
  // of the untempered row (0 unless reads_confidence). Temperature and filters would make a row look more confident
  // than the model is.
  bool keep(double /*largest*/) const { return true; }
  // Called after the round: the acceptances of the draft (if reads_acceptances), the tokens emitted, the draft steps
  // made.
  void observe(std::span<const draft_acceptance>, std::size_t, std::size_t) {}
};

struct decode_options {
  std::size_t gamma = 4;  // most tokens drafted in a round; 0: only the target writes
  sampling sample = {};   // for draft and target
  end_tokens end_of_text = {};
  bool acceptances = false;  // also measure the acceptance of every drafted position; see expected_tokens
};

// All memory that a round needs, allocated once. T: the type of the models' logits.
template <class T>
struct speculative_workspace {
  std::size_t vocabulary, gamma;
  std::vector<T> draft_logits, target_logits;             // (gamma + 1) x V each
  std::vector<processed_row<T>> draft_rows, target_rows;  // gamma + 1 each
  std::vector<emission> emissions;                        // gamma + 1
  std::vector<draft_acceptance> acceptances;              // gamma
  std::vector<double> scratch;

  speculative_workspace(std::size_t vocab_size, std::size_t most_drafted)
      : vocabulary(vocab_size),
        gamma(most_drafted),
        draft_logits((gamma + 1) * vocabulary),
        target_logits((gamma + 1) * vocabulary),
        draft_rows(gamma + 1),
        target_rows(gamma + 1),
        emissions(gamma + 1),
        acceptances(gamma),
        scratch(verify_scratch(vocabulary, gamma)) {}
  std::span<T> draft_row(std::size_t j) { return std::span(draft_logits).subspan(j * vocabulary, vocabulary); }
  std::span<T> target_row(std::size_t j) { return std::span(target_logits).subspan(j * vocabulary, vocabulary); }
};

// The result of one round. `emitted` tokens were appended to the text (workspace.emissions says where each came from).
// They have the law pi even if `why` is not ok; `why` only says why there are no more. draft_why: why the draft ended
// early, if the draft model gave no row, or one that no token can be drawn from (a grammar's dead end, NaN, a full
// context).
struct speculative_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok, draft_why = status::ok;
};

// Appends 1 to `most` tokens to the text (0 only if `why` is not ok). It works in the workspace and allocates no
// memory. The draft model's context may be smaller than the target's. When it is full nothing is drafted. That ends the
// text only if the policy reads the draft's row.
template <LogitSource D, LogitSource M, class Policy, Chooser C, class P, class V = token_verifier,
          class L = fixed_draft_length>
speculative_result speculative_round(text& t, std::size_t most, D& draft_model, M& target_model, const Policy& policy,
                                     C& chooser, P& processor, const decode_options& options,
                                     speculative_workspace<typename M::value_type>& work, const V& verifier = {},
                                     L&& length = {}) {
  using T = typename M::value_type;
  static_assert(std::same_as<typename D::value_type, T>, "specagg: both models must give logits of one type");
  speculative_result result;
  const std::size_t start = t.size;
  result.why = most == 0 || !valid(policy) ? status::invalid_parameter : ready(t, work.vocabulary, target_model);
  if (std::size_t(draft_model.vocab_size()) != work.vocabulary) result.why = status::vocabulary_mismatch;
  if (result.why != status::ok) return result;
  const on_exception restore([&] { (void)truncate(t, start, processor, draft_model, target_model); });

  // Draft. The last token of a round comes from the target, so one token fewer than `most`, and than fit, is drafted.
  std::size_t& g = result.drafted;
  const std::size_t gamma = std::min({options.gamma, work.gamma, most - 1, room(t, target_model) - start - 1});
  std::size_t draft_steps = 0;
  const bool confidence = length.reads_confidence;
  const auto draft_row = [&](std::size_t j) {  // q_j: the row after the text and j drafted tokens
    const std::span<T> logits = work.draft_row(j);
    const bool fits = start + j <= std::size_t(draft_model.capacity());
    draft_steps += fits;
    const status s = fits ? score(t.tokens.first(start + j), draft_model, processor, logits) : status::context_full;
    work.draft_rows[j] = s == status::ok ? processed_row<T>(logits, options.sample) : processed_row<T>();
    result.draft_why = s == status::ok ? work.draft_rows[j].normalise(confidence) : s;
  };
  std::size_t rows = 0;  // rows asked of the draft model
  length.begin();
  while (g < gamma && length.another()) {
    draft_row(g), ++rows;
    if (result.draft_why != status::ok) break;
    if (!length.keep(confidence ? double(work.draft_rows[g].largest_confidence()) : 0)) break;
    const token_id y = verifier.propose(work.draft_rows[g], std::uint32_t(start), g, chooser, work.scratch);
    if (y == no_token) break;
    append(t, y, processor), ++g;
    if (options.end_of_text.contains(y)) break;
  }

  // Score. If the draft model failed, only the draft has ended, unless its status is `stopped`.
  const auto target_logits = std::span(work.target_logits).first((g + 1) * work.vocabulary);
  result.why = result.draft_why == status::stopped
                   ? status::stopped
                   : score(t.tokens.first(start + g), target_model, processor, target_logits);
  if (result.why != status::ok) {
    (void)truncate(t, start, processor, draft_model, target_model);  // if a model refuses, the next score() reports it
    return {.why = result.why, .draft_why = result.draft_why};
  }

  // Verify. If the policy reads the draft, the bonus may cost one more call of the draft model, for row g.
  const auto q_rows = [&](std::size_t j) -> const processed_row<T>& {
    if (j == rows) draft_row(g), ++rows;
    return work.draft_rows[j];
  };
  for (std::size_t j = 0; j <= g; ++j) work.target_rows[j] = processed_row<T>(work.target_row(j), options.sample);
  const auto p_rows = [&](std::size_t j) -> const processed_row<T>& {
    (void)work.target_rows[j].normalise(reads_confidence<Policy>);  // once; a verifier may ask several times
    return work.target_rows[j];
  };
  const draft drafted{t.tokens.subspan(start, g), std::uint32_t(start), options.end_of_text};
  const bool measure = options.acceptances || length.reads_acceptances;
  const auto acceptances = measure ? std::span(work.acceptances).first(g) : std::span<draft_acceptance>();
  const verdict v =
      verifier.verify(drafted, q_rows, p_rows, policy, chooser, work.emissions, work.scratch, acceptances);

  length.observe(acceptances, v.emitted, draft_steps);

  // Commit, roll back.
  const status cut = truncate(t, start + v.accepted, processor, draft_model, target_model);
  for (std::size_t i = v.accepted; i < v.emitted; ++i) append(t, work.emissions[i].token, processor);
  result.accepted = v.accepted, result.emitted = v.emitted;
  // If the law needed the row that the draft model did not give, report why it did not.
  const bool needs_draft =
      with_rule(policy, [](const auto& rule) { return reads_draft<std::remove_cvref_t<decltype(rule)>>; });
  const bool lacks_row = needs_draft && v.why != status::ok && v.emitted == g && result.draft_why != status::ok;
  result.why = lacks_row ? result.draft_why : v.why != status::ok ? v.why : cut;
  return result;
}

// Runs rounds as decode_rounds does. after_round(result, workspace) is called after each.
template <LogitSource D, LogitSource M, class Policy, Chooser C, class P, class Accept, class AfterRound,
          class V = token_verifier, class L = fixed_draft_length>
status speculative_decode(text& t, std::size_t most, D& draft_model, M& target_model, const Policy& policy, C& chooser,
                          P& processor, const decode_options& options,
                          speculative_workspace<typename M::value_type>& work, Accept&& accept,
                          AfterRound&& after_round, const V& verifier = {}, L&& length = {}) {
  const auto round = [&](std::size_t left) {
    const auto r = speculative_round(t, left, draft_model, target_model, policy, chooser, processor, options, work,
                                     verifier, length);
    after_round(r, work);
    return r;
  };
  const auto cut = [&](std::size_t n) { return truncate(t, n, processor, draft_model, target_model); };
  return decode_rounds(t, most, options.end_of_text, work.emissions, round, cut, accept);
}

SPECAGG_END
