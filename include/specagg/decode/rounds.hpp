// SPDX-License-Identifier: Apache-2.0
// The common part of decoders: the loop over rounds, and the parts of a round of speculative
// decoding whose draft is a chain (speculative.hpp) or a tree (tree.hpp): draft, score, verify,
// commit.
#pragma once
#include <cstddef>
#include <span>
#include <type_traits>

#include <specagg/decode/request.hpp>
#include <specagg/policy/policies_of.hpp>
#include <specagg/rows/rows.hpp>
#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

namespace detail {

// Whether a token that a round emitted after `before` tokens ends the text. Then `why` is
// the status of cut(n), where n is the size after that token.
bool ends_text(std::span<const emission> emitted, std::size_t before, const end_tokens& end_of_text,
               auto&& cut, auto& accept, status& why) {
  for (std::size_t i = 0; i < emitted.size(); ++i) {
    if (accept(emitted[i]) && !end_of_text.contains(emitted[i].token)) continue;
    why = cut(before + i + 1);
    return true;
  }
  return false;
}

}  // namespace detail

// Runs rounds until `most` tokens were appended, the text ended, accept(emission) returned false,
// or a round failed. The token for which accept() is false is the last one kept; later tokens of
// that round are removed.
//   round(left)  appends at most `left` tokens, writes their emissions, and returns {emitted, why}
//   cut(n)       rolls the text, the processor and the models back to n tokens; returns a status as
//                truncate
status decode_rounds(text& t, std::size_t most, const end_tokens& end_of_text,
                     std::span<const emission> emissions, auto&& round, auto&& cut, auto&& accept) {
  for (std::size_t left = most; left > 0;) {
    const std::size_t before = t.size;
    const auto result = round(left);
    status why = result.why;
    if (detail::ends_text(emissions.first(result.emitted), before, end_of_text, cut, accept, why) ||
        why != status::ok)
      return why;
    left -= result.emitted;
  }
  return status::ok;
}

namespace detail {

// decode_rounds with a request. emissions, options: of its workspace.
template <class W, class Round, class Cut>
status decode(const decode_request<W>& how, Round&& round, Cut&& cut) {
  const auto told = [&](std::size_t left) {
    const auto result = round(left);
    if (how.after_round) how.after_round(result, how.work);
    return result;
  };
  const auto accept = [&](const emission& e) { return !how.accept || how.accept(e); };
  return specagg::decode_rounds(how.text, how.most, how.work.options.end_of_text,
                                how.work.emissions, told, cut, accept);
}

// One round of each text. A round that fails (or throws) leaves no trace but its status. It has
//   begin()      whether it can take place
//   draft()      drafts, as far as the drafter gives rows; returns ok, or why the round ends
//   score()      the target's rows for the draft; a status
//   verify()     decides which tokens to emit, and learns from it
//   commit()     keeps the accepted tokens, appends the others, and writes the result
//   roll_back()  puts the text and the models back to where the round began
//   runs()       whether nothing has failed; fail(why): rolls back, and why is the result's
// parts: draft, score and verify of all of them: in_turn, or together_workspace (together.hpp).
template <class Round, class Parts>
void run_rounds(std::span<Round> rounds, Parts&& parts) {
  const on_exception restore([&] {
    for (Round& r : rounds) r.roll_back();
  });
  for (Round& r : rounds) r.begin();
  parts.draft(rounds);
  parts.score(rounds);
  parts.verify(rounds);
  for (Round& r : rounds)
    if (r.runs()) r.commit();
}
struct in_turn {
  template <class Round>
  void draft(std::span<Round> rounds) {
    for (Round& r : rounds)
      if (r.runs())
        if (const status s = r.draft(); s != status::ok) r.fail(s);
  }
  template <class Round>
  void score(std::span<Round> rounds) {
    for (Round& r : rounds)
      if (r.runs())
        if (const status s = r.score(); s != status::ok) r.fail(s);
  }
  template <class Round>
  void verify(std::span<Round> rounds) {
    for (Round& r : rounds)
      if (r.runs()) r.verify();
  }
};
// The round of one text. Returns its result.
auto run_round(auto&& round) {
  detail::run_rounds(std::span(&round, 1), in_turn());
  return round.result();
}

// Whether pi depends on the draft's row. Of a policy that is chosen at run time the chosen policy
// decides.
template <class Policy>
bool needs_draft(const Policy& policy) {
  static_assert(!PolicyList<Policy>,
                "specagg: a decoder takes one policy, or one with state (policy/stateful.hpp)");
  return specagg::with_chosen(policy, [](const auto& chosen) {
    return reads_draft<std::remove_cvref_t<decltype(chosen)>>;
  });
}

// The rows of these logits [rows.size()][V], written to `rows`, as a list for a verifier. Each is
// normalised when it is looked at, once, however often that is.
template <class Policy, class T>
auto sampled_rows(std::span<T> logits, const sampling& how,
                  std::span<normal_form<processed_row<T>>> rows) {
  using row = normal_form<processed_row<T>>;
  const std::size_t vocabulary = logits.size() / rows.size();
  for (row& r : rows) r = row();
  return lasting_rows_of(rows.size(), [=](std::size_t j) -> const row& {
    if (rows[j].why() == status::missing_row)
      rows[j] =
          specagg::normalise(processed_row<T>(logits.subspan(j * vocabulary, vocabulary), how),
                             reads_confidence<Policy>);
    return rows[j];
  });
}

}  // namespace detail

SPECAGG_END
