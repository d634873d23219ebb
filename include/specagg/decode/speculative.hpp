// SPDX-License-Identifier: Apache-2.0
// Speculative decoding with two models: draft gamma tokens, score them once, verify, commit, roll both caches back.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include <specagg/logit_source.hpp>
#include <specagg/process.hpp>
#include <specagg/verify/token.hpp>

SPECAGG_BEGIN

struct decode_options {
  std::size_t gamma = 4;  // tokens drafted a round; 0: the target alone
  sampling sample = {};   // of draft and target alike
  token_id end_of_text = no_token;
  bool overlaps = false;  // also measure the overlap of every drafted position; see expected_tokens
};

// The text of one request: tokens[0..size) of a buffer that has room to grow, prompt first, at least one token.
struct text {
  std::span<token_id> tokens;
  std::size_t size = 0;
};

// All memory a round works in, allocated once. T: the models' logits.
template <class T>
struct speculative_workspace {
  std::size_t vocabulary, gamma;
  std::vector<T> draft_logits, target_logits;  // (gamma + 1) x V each
  std::vector<processed_row<T>> draft_rows;    // gamma + 1
  std::vector<emission> emissions;             // gamma + 1
  std::vector<overlap> overlaps;               // gamma
  std::vector<double> scratch;

  speculative_workspace(std::size_t vocab_size, std::size_t most_drafted)
      : vocabulary(vocab_size),
        gamma(most_drafted),
        draft_logits((gamma + 1) * vocabulary),
        target_logits((gamma + 1) * vocabulary),
        draft_rows(gamma + 1),
        emissions(gamma + 1),
        overlaps(gamma),
        scratch(verify_scratch(vocabulary)) {}
  std::span<T> draft_row(std::size_t j) { return std::span(draft_logits).subspan(j * vocabulary, vocabulary); }
  std::span<T> target_row(std::size_t j) { return std::span(target_logits).subspan(j * vocabulary, vocabulary); }
};

// One round. `emitted` tokens were appended to the text (workspace.emissions says where each came from); they are what
// the law promises even if `why` is not ok, which only says why there are not more.
struct speculative_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok;
};

// Cuts the text to n tokens and takes back what the models and the processor know beyond.
template <LogitSource D, LogitSource M, class P>
void truncate(text& t, std::size_t n, D& draft_model, M& target_model, P& processor) {
  for (; t.size > n; --t.size) processor.pop();
  if (draft_model.position() > n) draft_model.rollback(n);
  if (target_model.position() > n) target_model.rollback(n);
}

// Appends 1 to most tokens to the text (0 only if `why` is not ok). The models may have seen any prefix of the text;
// the processor has been pushed all of it. Working memory is the workspace; no allocation.
template <LogitSource D, LogitSource M, class Policy, Chooser C, class P>
  requires std::same_as<typename D::value_type, typename M::value_type> speculative_result
  speculative_round(text& t, std::size_t most, D& draft_model, M& target_model, const Policy& policy, C& chooser,
                    P& processor, const decode_options& options, speculative_workspace<typename M::value_type>& work) {
    using T = typename M::value_type;
    speculative_result result;
    const std::size_t start = t.size, vocabulary = work.vocabulary;
    const auto fail = [&](status s) { return result.why = s, result; };
    if (start == 0 || most == 0) return fail(status::invalid_parameter);
    if (draft_model.vocab_size() != vocabulary || target_model.vocab_size() != vocabulary)
      return fail(status::vocabulary_mismatch);
    const std::size_t room = std::min({t.tokens.size(), target_model.capacity(), draft_model.capacity()});
    if (start >= room) return fail(status::context_full);

    // A row comes from feeding the token before it, so neither model may have seen the last token yet.
    if (draft_model.position() >= start) draft_model.rollback(start - 1);
    if (target_model.position() >= start) target_model.rollback(start - 1);

    // Draft. The last token of a round is the target's, so one less than `most` is drafted; scoring needs room for all.
    const std::size_t gamma = std::min({options.gamma, work.gamma, most - 1, room - start});
    const auto unseen = [&](const auto& model, std::size_t end) {
      return std::span<const token_id>(t.tokens.first(end)).subspan(model.position());
    };
    const auto draft_row = [&](std::size_t j) {  // q_j: the row after the text and j drafted tokens
      const std::span<T> logits = work.draft_row(j);
      const status s = draft_model.extend(unseen(draft_model, start + j), logits);
      if (s == status::ok) processor.apply(logits);
      work.draft_rows[j] = processed_row<T>(logits, options.sample);
      return s == status::ok ? work.draft_rows[j].normalise() : s;
    };
    std::size_t& g = result.drafted;
    status failed = status::ok;
    while (g < gamma) {
      failed = draft_row(g);
      if (failed != status::ok) break;
      const moment m{stream::draft, std::uint32_t(start + g), std::uint32_t(start)};
      const token_id y = draw(work.draft_rows[g], m, chooser, work.scratch);
      if (y == no_token) break;
      t.tokens[start + g++] = y;
      processor.push(y);
      if (y == options.end_of_text) break;
    }
    const auto restore = [&] {
      t.size = start + g;
      truncate(t, start, draft_model, target_model, processor);
    };
    if (failed != status::ok) return restore(), g = 0, fail(failed);

    // Score, and process the rows from the last to the first while taking the draft back from the processor.
    const std::span<T> target_logits = std::span(work.target_logits).first((g + 1) * vocabulary);
    failed = target_model.extend(unseen(target_model, start + g), target_logits);
    if (failed != status::ok) return restore(), g = 0, fail(failed);
    for (std::size_t j = g;; --j) {
      processor.apply(work.target_row(j));
      if (j == 0) break;
      processor.pop();
    }

    // Verify.
    const auto q_rows = [&](std::size_t j) -> const processed_row<T>& {
      if (j == g) {  // the bonus of a policy that reads the draft: one more call, with the whole draft in the processor
        for (std::size_t i = 0; i < g; ++i) processor.push(t.tokens[start + i]);
        failed = draft_row(g);
        for (std::size_t i = 0; i < g; ++i) processor.pop();
      }
      return work.draft_rows[j];
    };
    const auto p_rows = [&](std::size_t j) { return processed_row<T>(work.target_row(j), options.sample); };
    const draft drafted{t.tokens.subspan(start, g), std::uint32_t(start), options.end_of_text};
    const auto overlaps = options.overlaps ? std::span(work.overlaps).first(g) : std::span<overlap>();
    const verdict v = verify_token(drafted, q_rows, p_rows, policy, chooser, work.emissions, work.scratch, overlaps);

    // Commit, roll back.
    for (std::size_t i = 0; i < v.emitted; ++i) {
      t.tokens[start + i] = work.emissions[i].token;
      processor.push(t.tokens[start + i]);
    }
    t.size = start + v.emitted;
    if (draft_model.position() > start + v.accepted) draft_model.rollback(start + v.accepted);
    if (target_model.position() > start + v.accepted) target_model.rollback(start + v.accepted);
    result.accepted = v.accepted, result.emitted = v.emitted;
    result.why = failed != status::ok ? failed : v.why;
    return result;
  }

// Rounds until `most` tokens were appended, the text ended, accept(emission) said false (that token is the last one
// kept; whatever the round emitted behind it is taken back), or a round could not go on.
// after_round(result, workspace), if given, sees each round.
template <LogitSource D, LogitSource M, class Policy, Chooser C, class P, class Accept, class AfterRound>
status speculative_decode(text& t, std::size_t most, D& draft_model, M& target_model, const Policy& policy, C& chooser,
                          P& processor, const decode_options& options,
                          speculative_workspace<typename M::value_type>& work, Accept&& accept,
                          AfterRound&& after_round) {
  for (std::size_t left = most; left > 0;) {
    const std::size_t before = t.size;
    const auto round = speculative_round(t, left, draft_model, target_model, policy, chooser, processor, options, work);
    after_round(round, work);
    for (std::size_t i = 0; i < round.emitted; ++i) {
      if (accept(work.emissions[i]) && work.emissions[i].token != options.end_of_text) continue;
      truncate(t, before + i + 1, draft_model, target_model, processor);
      return status::ok;
    }
    if (round.why != status::ok) return round.why;
    left -= round.emitted;
  }
  return status::ok;
}

SPECAGG_END
