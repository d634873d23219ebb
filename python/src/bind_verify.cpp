// SPDX-License-Identifier: Apache-2.0
// specagg._core.verify: drafts of any shape, and the rows they need, to requests of the engine.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include <specagg/verify/verifiers.hpp>

#include "bindings.hpp"
#include "verified.hpp"

namespace python {
namespace {

struct verify_arguments {
  nb::handle drafts, q, p, policies;
  std::size_t verifier;
  nb::handle seeds, requests, positions;
  bool q_logits, p_logits;
  const sampling& q_sampling;
  const sampling& p_sampling;
  const edit_arguments& edit;
  nb::handle lengths, offsets;
  const std::vector<token_id>& end_of_text;
  nb::handle bonus;
  bool acceptances;
  nb::handle skip, states, kept;
  // of synthetic acceptance; length 0: none
  double synthetic_length;
  const std::vector<double>& synthetic_rates;
};

// Whether the target's row is read after the drafted tokens.
bool draws(specagg::bonus_choice bonus) { return bonus && !bonus.is_given(); }
// Whether the draft's row is, too.
bool reads_draft(specagg::bonus_choice bonus, const policy& one) {
  return draws(bonus) && !bonus.is_target() && one.known.reads_draft;
}

// The drafts of a call: of one request, [B, gamma], or with offsets one after the other.
struct drafts_of {
  array given;
  std::vector<token_id> tokens;
  bool ragged;
  std::vector<std::size_t> begin, size;  // request i's: tokens[begin[i]] ..., of which size[i]
  std::size_t padded = 0;                // the longest

  explicit drafts_of(const verify_arguments& a)
      : given(array_of(a.drafts, "drafts")), tokens(ids_of(given)), ragged(!a.offsets.is_none()) {
    if (ragged && given.ndim() != 1)
      refuse("drafts: with offsets they are one after the other, in one dimension, not ",
             given.shape_text());
    if (ragged) {
      split(a.offsets);
    } else {
      const std::size_t B = given.ndim() == 2 ? given.shape(0) : 1;
      padded = given.shape(given.ndim() - 1);
      size.assign(B, padded);
      for (std::size_t i = 0; i < B; ++i) begin.push_back(i * padded);
    }
    if (!a.lengths.is_none()) shorten(a.lengths);
  }
  bool flat() const { return ragged || given.ndim() == 1; }
  // Whether there is a row after the last drafted token of each request.
  bool with_bonus_row(const placed_rows& rows) const {
    return !ragged || rows.most == tokens.size() + size.size();
  }

 private:
  void split(nb::handle offsets_given) {
    const array at = array_of(offsets_given, "offsets");
    if (at.ndim() != 1 || at.shape(0) < 1)
      refuse("offsets: expected B + 1 numbers, not ", at.shape_text());
    const std::vector<token_id> offsets = ids_of(at);
    if (offsets[0] != 0 || !std::is_sorted(offsets.begin(), offsets.end()))
      refuse("offsets: must begin with 0 and must not fall");
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      begin.push_back(std::size_t(offsets[i]));
      size.push_back(std::size_t(offsets[i + 1] - offsets[i]));
      padded = std::max(padded, size.back());
    }
    if (std::size_t(offsets.back()) != tokens.size())
      refuse("offsets: end at ", std::to_string(offsets.back()), ", where there are ",
             text_of(tokens.size()), " drafted tokens");
  }
  void shorten(nb::handle given_lengths) {
    const per_request<std::int64_t> lengths(given_lengths, "lengths", size.size());
    for (std::size_t i = 0; i < size.size(); ++i) {
      const std::int64_t length = lengths[i];
      if (length < 0 || std::size_t(length) > size[i])
        refuse("lengths: ", std::to_string(length), " of request ", text_of(i),
               " is not between 0 and ", text_of(size[i]));
      size[i] = std::size_t(length);
    }
  }
};

// Enough rows: gamma + 1 of p (gamma if no bonus is drawn), and as many of q if the policy reads it
// at the bonus.
void check_rows(const verify_arguments& a, const drafts_of& drafts, const both_rows& rows,
                const std::vector<const policy*>& policies,
                const std::vector<specagg::bonus_choice>& bonuses) {
  const std::size_t B = drafts.size.size();
  const placed_rows &q = rows.q, &p = rows.p;
  std::size_t rows_of_p = 0, rows_of_q = 0;
  bool any_draws = false, any_reads = false;
  for (std::size_t i = 0; i < B; ++i) {
    rows_of_p = std::max(rows_of_p, drafts.size[i] + draws(bonuses[i]));
    rows_of_q = std::max(rows_of_q, drafts.size[i] + reads_draft(bonuses[i], *policies[i]));
    any_draws |= draws(bonuses[i]);
    any_reads |= reads_draft(bonuses[i], *policies[i]);
  }
  const bool q_has_bonus = drafts.with_bonus_row(q);
  if (drafts.ragged) {
    if (!drafts.with_bonus_row(p) && (any_draws || p.most != drafts.tokens.size()))
      refuse("p: ", rows.p_array.shape_text(), ", where ", text_of(drafts.tokens.size() + B),
             " rows are expected: one for each drafted token, and a bonus row after each draft");
    if (!a.q.is_none() && q.most != drafts.tokens.size() && !q_has_bonus)
      refuse("q: ", rows.q_array.shape_text(), ", where ", text_of(drafts.tokens.size()),
             " rows are expected, or ", text_of(drafts.tokens.size() + B),
             " with a bonus row after each draft");
  } else if (p.most < rows_of_p) {
    refuse("p: ", text_of(p.most), " rows, where ", text_of(rows_of_p),
           " are needed: one for each drafted token, and one for the bonus (or bonus=False)");
  }
  const bool no_rows = a.q.is_none() || (drafts.ragged && !q_has_bonus);  // of q at the bonus
  if (no_rows ? any_reads : !drafts.ragged && q.most < rows_of_q) {
    for (std::size_t i = 0; i < B; ++i)
      if (reads_draft(bonuses[i], *policies[i]) && (no_rows || q.most < drafts.size[i] + 1))
        refuse("q: the policy ", policies[i]->known.name,
               " reads the draft's row at the bonus position, too: give a row after the last "
               "drafted token, or bonus=\"target\", or bonus=False");
    refuse("q: ", text_of(q.most), " rows, where ", text_of(rows_of_q), " tokens are drafted");
  }
}

// The rows of request i. bonus: whether there is one after the drafted tokens.
engine::rows rows_of(std::size_t i, const drafts_of& drafts, const placed_rows& from, bool bonus,
                     const specagg::sampling& how) {
  engine::rows mine = from.all;
  mine.sampling = how;
  mine.count = std::min(drafts.size[i] + bonus, from.most);
  if (from.all.data == nullptr) mine.count = drafts.size[i];  // one-hot
  else if (!drafts.ragged) mine.data += std::ptrdiff_t(i) * from.request_stride;
  else {
    const bool with_bonus = drafts.with_bonus_row(from);
    mine.count = drafts.size[i] + (with_bonus && bonus);
    mine.data += std::ptrdiff_t(drafts.begin[i] + (with_bonus ? i : 0)) * mine.stride;
  }
  return mine;
}

// A verifier that uses no row of the draft cannot use a cut one.
void check_cut(std::size_t verifier) {
  std::string names;
  bool uses_rows = false;
  std::size_t number = 0;
  specagg::for_each_verifier(0, 0, [&]<class V>(const V& one) {
    if (V::reads_draft_rows(false)) {
      names += (names.empty() ? "" : " and ") + std::string(one.name);
      uses_rows |= number == verifier;
    }
    ++number;
  });
  if (!uses_rows) refuse("kept: is for the verifiers ", names);
}

// What a policy of a text, and a cut row, ask for.
void check_policies(const verify_arguments& a, const drafts_of& drafts,
                    const std::vector<const policy*>& policies,
                    const std::vector<specagg::bonus_choice>& bonuses) {
  for (std::size_t i = 0; i < policies.size(); ++i) {
    const policy& one = *policies[i];
    if (!a.kept.is_none() && one.known.reads_draft)
      refuse("kept: the policy ", one.known.name,
             " reads the draft's row, of which a cut leaves a part; it must be one that does not");
    if (!one.known.of_text) continue;
    if (bonuses[i].is_given())
      refuse("bonus: of a policy of a text (", one.known.name,
             ") it is True, False or \"target\", and no token");
    const std::size_t needed = drafts.size[i] + draws(bonuses[i]);
    if (one.chosen.line == engine::by_position && one.parts.size() < needed)
      refuse("policy: by_position has ", text_of(one.parts.size()), " policies, where request ",
             text_of(i), " has ", text_of(needed), " positions, that of the bonus included");
  }
  if (!a.kept.is_none()) check_cut(a.verifier);
}

// Which requests are left alone.
std::vector<bool> skipped_of(nb::handle given, std::size_t B) {
  std::vector<bool> skipped(B);
  if (given.is_none()) return skipped;
  const array flags = array_of(given, "skip");
  if (flags.shape(0) != B)
    refuse("skip: ", text_of(flags.shape(0)), " values for ", text_of(B), " requests");
  for (std::size_t i = 0; i < B; ++i) skipped[i] = flags.data()[i] != std::byte{0};
  return skipped;
}

// The states before the drafts; NaN of policies without one, whose numbers are not read.
std::vector<double> states_of(nb::handle given, const std::vector<const policy*>& policies,
                              const std::vector<bool>& skipped) {
  const per_request<double> state(given, "state", policies.size());
  std::vector<double> states(policies.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < policies.size(); ++i)
    if (policies[i]->has_state()) {
      states[i] = state[i];
      if (!skipped[i]) policies[i]->check_state(state[i], "request " + text_of(i) + ": ");
    }
  return states;
}

// By one policy for all positions or by one of a text, with whole rows or cut ones.
specagg::verdict decide(const engine::request& r, bool of_text, double& state,
                        std::pair<const std::uint8_t*, std::ptrdiff_t> kept) {
  specagg::verdict v;
  if (kept.first) specagg_engine_verify_cut(&r, kept.first, kept.second, &v);
  else if (of_text) specagg_engine_verify_text(&r, &state, &v);
  else specagg_engine_verify(&r, &v);
  return v;
}

verified verify(const verify_arguments& a) {
  const drafts_of drafts(a);
  const std::size_t B = drafts.size.size(), padded = drafts.padded;
  const both_rows rows(a.q, a.p, a.q_logits, a.p_logits, B, drafts.flat() ? 2 : 3,
                       drafts.flat() ? "[rows, V]" : "[B, rows, V]");
  const std::vector<const policy*> policies = policies_of(a.policies, B);
  const auto bonuses = bonuses_of(a.bonus, B, rows.vocabulary);
  check_rows(a, drafts, rows, policies, bonuses);
  check_policies(a, drafts, policies, bonuses);

  const std::vector<bool> skipped = skipped_of(a.skip, B);
  const streams numbers(a.seeds, a.requests, a.positions, B);
  const samplings q_sampling(a.q_sampling, B), p_sampling(a.p_sampling, B);
  const edits edit(a.edit, B, rows.vocabulary);
  std::vector<engine::edits> edited(B);
  for (std::size_t i = 0; i < B; ++i) edited[i] = edit.of(i, drafts.size[i] + draws(bonuses[i]));

  const specagg::synthetic_acceptance synthetic{a.synthetic_length, a.synthetic_rates};
  const token_flags kept(a.kept, "kept", B, rows.vocabulary);
  std::vector<decltype(kept.of(0, 0))> kept_of(B);
  for (std::size_t i = 0; i < B; ++i) kept_of[i] = kept.of(i, drafts.size[i]);

  verified result(B, padded);
  result.states = states_of(a.states, policies, skipped);
  const std::size_t part = specagg::verify_scratch(rows.vocabulary, padded);
  std::vector<double> scratch(B * part);
  std::vector<specagg::emission> out(B * (padded + 1));
  std::vector<specagg::draft_acceptance> acceptances(a.acceptances ? B * padded : 0);
  {
    nb::gil_scoped_release released;
    shared_workers().for_each(B, [&](std::size_t i) {
      if (skipped[i]) return;
      engine::request r;
      r.drafted = {.tokens = std::span(drafts.tokens).subspan(drafts.begin[i], drafts.size[i]),
                   .start = numbers.position[i],
                   .end_of_text = std::span(a.end_of_text),
                   .bonus = bonuses[i]};
      r.vocabulary = rows.vocabulary;
      r.q = rows_of(i, drafts, rows.q, draws(bonuses[i]), q_sampling[i]);
      r.p = rows_of(i, drafts, rows.p, draws(bonuses[i]), p_sampling[i]);
      r.verifier = a.verifier;
      r.policy = policies[i]->chosen;
      r.edits = edited[i];
      r.seed = numbers.seed[i];
      r.id = numbers.id(i);
      r.out = std::span(out).subspan(i * (padded + 1), drafts.size[i] + 1);
      if (a.acceptances)
        r.drafted.acceptances = std::span(acceptances).subspan(i * padded, drafts.size[i]);
      r.scratch = std::span(scratch).subspan(i * part, part);
      double position = 0;
      double& state = policies[i]->has_state() ? result.states[i] : position;
      specagg::verdict v = decide(r, policies[i]->known.of_text, state, kept_of[i]);
      if (a.synthetic_length && v.why == specagg::status::ok)
        specagg_engine_synthetic(&r, &synthetic, &v);
      result.keep(i, v, r.out, r.drafted.acceptances.first(a.acceptances ? r.drafted.size() : 0));
    });
  }
  return result;
}

void bind_verified(nb::module_& m) {
#define VIEW1(name, member, T, doc)                           \
  def_prop_ro(                                                \
      name,                                                   \
      [](nb::handle_t<verified> self) {                       \
        verified& v = nb::cast<verified&>(self);              \
        return view1<T>(v.member.data(), {v.requests}, self); \
      },                                                      \
      doc)
#define VIEW2(name, member, T, columns, doc)                           \
  def_prop_ro(                                                         \
      name,                                                            \
      [](nb::handle_t<verified> self) {                                \
        verified& v = nb::cast<verified&>(self);                       \
        return view2<T>(v.member.data(), {v.requests, columns}, self); \
      },                                                               \
      doc)
  nb::class_<verified>(
      m, "Verified",
      "The result of verify() for B requests. The arrays are views of this object. "
      "It can be pickled.")
      .VIEW2("tokens", tokens, token_id, v.columns, "[B, gamma + 1]: the emitted tokens, then -1.")
      .VIEW1("emitted", emitted, std::int32_t, "[B]: how many there are.")
      .VIEW1("accepted", accepted, std::int32_t, "[B]: how many of them were drafted.")
      .VIEW1("ended", ended, std::int32_t,
             "[B]: the end-of-text token that is the last one, or -1.")
      .VIEW1("statuses", statuses, std::uint8_t,
             "[B]: Status.ok, or why no further token could be emitted.")
      .VIEW1("states", states, double,
             "[B]: of a policy with state, that after the emitted tokens; NaN of another policy.")
      .VIEW2("origins", origins, std::int8_t, v.columns,
             "[B, gamma + 1]: where the token is from: Origin.accepted: the draft; residual: drawn "
             "in place of a rejected one; bonus: drawn from the law where the draft has ended; "
             "no_token.")
      .VIEW2("reasons", reasons, std::uint8_t, v.columns,
             "[B, gamma + 1]: Status.ok, or what ended the draft at this position.")
      .VIEW2("log_pi", log_pi, double, v.columns,
             "[B, gamma + 1]: log-probability under the policy's law; NaN where there is no token.")
      .VIEW2("log_p", log_p, double, v.columns, "[B, gamma + 1]: the same under p.")
      .VIEW2("acceptance_of_row", of_row, double, v.columns - 1,
             "[B, gamma]: the probability that a token drawn from this row is accepted, sum min(q, "
             "pi); match: sum q pi; coupled: 1 or 0, whether the drafted token is accepted, as "
             "Gumbel-max coupling leaves no chance. NaN beyond the draft.")
      .VIEW2("acceptance_of_token", of_token, double, v.columns - 1,
             "[B, gamma]: that of the drafted token y: min(1, pi(y) / q(y)); match: pi(y); "
             "coupled: as of_row.")
      .def("__len__", [](const verified& v) { return v.requests; })
      .def("__repr__", [](const verified& v) { return "Verified(" + text_of(v) + ")"; })
      .def("__getstate__", &state_of<verified>)
      .def("__setstate__", &set_state<verified>);
#undef VIEW1
#undef VIEW2
}

}  // namespace

void bind_verify(nb::module_& m) {
  bind_verified(m);
  m.def(
      "verify",
      [](nb::handle drafts, nb::handle q, nb::handle p, nb::handle policies, std::size_t verifier,
         nb::handle seeds, nb::handle requests, nb::handle positions, bool q_logits, bool p_logits,
         const sampling& q_sampling, const sampling& p_sampling, const edit_arguments& edit,
         nb::handle lengths, nb::handle offsets, const std::vector<token_id>& end_of_text,
         nb::handle bonus, bool acceptances, nb::handle skip, nb::handle states, nb::handle kept,
         double synthetic_length, const std::vector<double>& synthetic_rates) {
        return verify({drafts,   q,         p,        policies,         verifier,       seeds,
                       requests, positions, q_logits, p_logits,         q_sampling,     p_sampling,
                       edit,     lengths,   offsets,  end_of_text,      bonus,          acceptances,
                       skip,     states,    kept,     synthetic_length, synthetic_rates});
      },
      "drafts"_a.none(), "q"_a.none(), "p"_a.none(), "policies"_a, "verifier"_a, "seeds"_a,
      "requests"_a.none(), "positions"_a, "q_logits"_a, "p_logits"_a, "q_sampling"_a,
      "p_sampling"_a, "edits"_a, "lengths"_a.none(), "offsets"_a.none(), "end_of_text"_a, "bonus"_a,
      "acceptances"_a, "skip"_a.none(), "states"_a, "kept"_a.none(), "synthetic_length"_a,
      "synthetic_rates"_a);
}

}  // namespace python
