// SPDX-License-Identifier: Apache-2.0
// DSSD: the draft model runs on a device, the target model at the server, and the verification is
// split between them. Ning et al. 2025. Its authors state that the method is covered by a filed
// patent, application number CN2025108856278.
//
// There are four protocols, and all of them emit exactly p:
//                 up                               down                              residual drawn
//    DSD          gamma x (token, row q_j)         (accepted, token)                 server
//    quantised    the same, rows of a few counts   (accepted, token)                 server
//    DSSD         gamma x (token, q_j(y_j))        (accepted, row p_j) if rejected,  device
//                                                  (accepted, token) if not
//    coupled      gamma tokens                     (accepted, token)                 server
// A token is accepted with probability min(1, p(y) / q(y)). (The paper prints q / p throughout,
// which is biased.) If a row is sent, both sides use the decoded row (codec.hpp). Device and server
// may have different seeds. With the same seed every protocol emits the tokens that verify_token
// would emit.
#pragma once
#include <span>
#include <vector>

#include <specagg/policy/lossless.hpp>
#include <specagg/sites/codec.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN
namespace sites {

// ---- what is sent -------------------------------------------------------------------------------
// All are views of the sender's memory. bytes() is the size of the content: 4 for a token, 1 for
// the number of accepted tokens. Frames and addresses are added by the transport.

// A round's draft.
template <class T>
struct uplink {
  draft drafted = {};  // its tokens and their positions
  // DSSD: the token at drafted.start - 1, which the device drew after a rejection
  token_id correction = no_token;
  std::span<const T> probabilities = {};  // DSSD: q_j(y_j), not rounded: rounding would change q
  // DSD and quantised: the encoded rows, one after another
  std::span<const std::uint8_t> rows = {};
  std::size_t bytes() const {
    return 4 * (drafted.size() + (correction != no_token)) + sizeof(T) * probabilities.size() +
           rows.size();
  }
};
// The server's answer to a draft. accepted: how many of its first tokens are accepted.
struct [[nodiscard]] downlink {
  std::size_t accepted = 0;
  // residual or bonus token after them; none if the text ended or a row is sent
  token_id token = no_token;
  std::span<const std::uint8_t> row = {};  // DSSD, after a rejection: p_accepted, encoded
  status why = status::ok;                 // else: why no token follows the accepted
  std::size_t bytes() const { return 1 + (row.empty() ? (token == no_token ? 0 : 4) : row.size()); }
};
// tokens drawn with the Gumbel-max coupling; a type of its own: only verify_shared may verify them
struct shared_uplink {
  coupled_draft coupled = {};
  std::size_t bytes() const { return 4 * coupled.drafted.size(); }
};

// All memory that one half needs, allocated once: for gamma tokens, and rows as encoded by `codec`.
template <class T>
struct split_workspace {
  std::vector<token_id> tokens, ids;
  std::vector<T> probabilities, mass;
  std::vector<std::uint8_t> bytes;
  std::vector<normal_form<sparse_row<T>>> rows;
  std::vector<emission> emissions;
  std::vector<double> scratch;
  std::size_t used = 0;  // of bytes, while a draft is made
  uplink<T> up = {};     // the draft so far

  split_workspace(const row_codec& codec, std::size_t gamma)
      : tokens(gamma),
        ids((gamma + 1) * codec.max_tokens()),
        probabilities(gamma),
        mass(gamma * codec.max_tokens() + codec.vocabulary),
        bytes((gamma + 1) * codec.max_bytes<T>()),
        rows(gamma),
        emissions(gamma + 1),
        scratch(verify_scratch(codec.vocabulary, gamma)) {}

  // The moment of the next drafted token.
  moment next_moment() const {
    const draft& d = up.drafted;
    return {stream::draft, std::uint32_t(d.start + d.tokens.size()), d.start};
  }
  // Drafts y; invalid_row if it is no_token.
  status append(token_id y) {
    if (y == no_token) return status::invalid_row;
    const std::size_t g = up.drafted.tokens.size();
    tokens[g] = y;
    up.drafted.tokens = std::span(tokens).first(g + 1);
    return status::ok;
  }
  // The server's answer. Its tokens are in `emissions`.
  downlink answer(const verdict& v) const {
    return {v.accepted, v.emitted > v.accepted ? emissions[v.accepted].token : no_token, {}, v.why};
  }
};

// ---- device -------------------------------------------------------------------------------------

// Begins a draft at position `start` of the text. correction: the token that finish_round() drew in
// the last round, if any.
template <class T>
void begin_draft(split_workspace<T>& work, std::uint32_t start, token_id end_of_text = no_token,
                 token_id correction = no_token) {
  work.up = {.drafted = {{}, start, end_of_text}, .correction = correction};
  work.used = 0;
}

// Whether the draft may grow: it has fewer than gamma tokens, and its text has not ended. Otherwise
// the draft_ functions return invalid_parameter. If a draft_ function does not return ok, the draft
// is unchanged and can be sent. A row that no token can be drawn from (invalid_row, not_normalised)
// only ends the draft.
template <class T>
bool can_draft(const split_workspace<T>& work) {
  const draft& d = work.up.drafted;
  return d.tokens.size() < work.tokens.size() && !d.ends_text(d.tokens.size());
}

// For DSD and quantised drafts: drafts one more token, from the row as the server will decode it.
// Send work.up.
template <class T, Distribution R, Chooser C>
status draft_coded(split_workspace<T>& work, const row_codec& codec, const R& row, C&& chooser) {
  if (!can_draft(work)) return status::invalid_parameter;
  const coded_row<T> coded = specagg::sites::encode(
      codec, row, std::span(work.bytes).subspan(work.used), work.ids, work.mass);
  if (coded.why != status::ok) return coded.why;
  const status s = work.append(specagg::draw(coded.row, work.next_moment(), chooser, work.scratch));
  if (s == status::ok) {
    work.used += coded.bytes;
    work.up.rows = std::span(work.bytes).first(work.used);
  }
  return s;
}

// For DSSD: drafts one more token, from the row itself, which the device keeps.
template <class T, Distribution D, Chooser C>
status draft_split(split_workspace<T>& work, const D& distribution, C&& chooser) {
  if (!can_draft(work)) return status::invalid_parameter;
  if (block_count(distribution.size()) > work.scratch.size()) return status::vocabulary_mismatch;
  const auto row = specagg::normalise(distribution);
  if (row.why() != status::ok) return row.why();
  const std::size_t g = work.up.drafted.tokens.size();
  const token_id y = specagg::draw(row, work.next_moment(), chooser, work.scratch);
  const status s = work.append(y);
  if (s != status::ok) return s;
  work.probabilities[g] = row[std::size_t(y)];
  work.up.probabilities = std::span(work.probabilities).first(g + 1);
  return s;
}

// The result of a round on the device, for every protocol: the token after the down.accepted
// accepted tokens, or no token if the text ended. If a row was sent, the device draws this token
// from the residual norm((p - q)+), with its own row q_accepted (it asks `q_rows`, a list
// (rows/rows.hpp), for this row only). It must be sent as the next uplink's correction. why: the
// status that the server reported; or invalid_row, invalid_parameter ... if the answer does not fit
// this draft.
struct [[nodiscard]] finished {
  token_id token = no_token;
  token_id correction = no_token;
  status why = status::ok;
};
// drafted: work.up.drafted, as it was sent.
template <class T, class QRows, Chooser C>
finished finish_round(const downlink& down, const draft& drafted, const row_codec& codec,
                      QRows&& q_rows, C&& chooser, split_workspace<T>& work) {
  const std::size_t j = down.accepted, g = drafted.size();
  if (down.why != status::ok) return {.why = down.why};
  if (j > g || (!down.row.empty() && (j == g || down.token != no_token)))
    return {.why = status::invalid_parameter};
  if (down.token < no_token || (down.token >= 0 && std::size_t(down.token) >= codec.vocabulary))
    return {.why = status::token_out_of_range};
  if (down.row.empty()) return {.token = down.token};
  const coded_row<T> p = decode<T>(codec, down.row, work.ids, work.mass);
  if (p.why != status::ok || p.bytes != down.row.size())
    return {.why = p.why != status::ok ? p.why : status::invalid_row};
  emission e;
  const status s = specagg::detail::with_row_at(q_rows, j, [&](const auto& given) {
    if (given.size() != p.row.size()) return status::vocabulary_mismatch;
    const auto& q = specagg::normalise(given);
    if (q.why() != status::ok) return q.why();
    const row_pair rows(q, p.row);
    const auto p_itself = [](auto at) { return at.p; };
    const specagg::detail::drawing by{drafted.start, chooser, work.scratch};
    return by.draw_residual(rows, p_itself, 1, j, e);
  });
  return s == status::ok ? finished{e.token, e.token, s} : finished{.why = s};
}

// ---- server -------------------------------------------------------------------------------------

// Decodes the `count` rows of an uplink into work.rows. They must be all of its bytes.
template <class T>
status decode_rows(std::span<const std::uint8_t> bytes, std::size_t count, const row_codec& codec,
                   split_workspace<T>& work) {
  const std::size_t most = codec.max_tokens();
  if (count > work.rows.size()) return status::invalid_parameter;
  for (std::size_t j = 0; j < count; ++j) {
    const coded_row<T> coded = decode<T>(codec, bytes, std::span(work.ids).subspan(j * most, most),
                                         std::span(work.mass).subspan(j * most, most));
    if (coded.why != status::ok) return coded.why;
    work.rows[j] = coded.row;
    bytes = bytes.subspan(coded.bytes);
  }
  return bytes.empty() ? status::ok : status::invalid_row;
}

// For DSD and quantised drafts. p_rows as for verify_token. verifier: token_verifier or
// block_verifier. If the rows do not decode to one row for each token, or the draft is too long,
// nothing is decided.
template <class T, class PRows, Chooser C, class Verifier = token_verifier>
downlink verify_coded(const uplink<T>& up, const row_codec& codec, PRows&& p_rows, C&& chooser,
                      split_workspace<T>& work, const Verifier& verifier = {}) {
  const std::size_t g = up.drafted.size();
  if (const status s = decode_rows(up.rows, g, codec, work); s != status::ok) return {.why = s};
  draft drafted = up.drafted;
  drafted.tokens = drafted.tokens.first(g);
  const verdict v = verifier.verify(
      drafted, std::span<const normal_form<sparse_row<T>>>(work.rows).first(g), p_rows, lossless{},
      chooser, std::span(work.emissions), std::span(work.scratch));
  return work.answer(v);
}

// For DSSD. Each p_j is encoded, and the decoded row is used, because the device will subtract its
// q_j from the decoded row. A token outside the support (outside the vocabulary, or of probability
// 0) ends the draft before it. The server then draws the token there from p. A given() bonus is an
// invalid_parameter.
template <class T, class PRows, Chooser C>
downlink verify_split(const uplink<T>& up, const row_codec& codec, PRows&& p_rows, C&& chooser,
                      split_workspace<T>& work) {
  const draft& drafted = up.drafted;
  const std::size_t g = drafted.size();
  const specagg::detail::drawing by{drafted.start, chooser, work.scratch};
  downlink down;
  const auto fail = [&](status s) {
    down.why = s;
    return down;
  };  // the accepted tokens remain
  if (up.probabilities.size() < g || g > work.rows.size() || drafted.bonus.is_given())
    return fail(status::invalid_parameter);
  for (std::size_t j = 0; j < g; ++j)
    if (!(up.probabilities[j] >= 0 && up.probabilities[j] <= 1 + normalisation_tolerance))
      return fail(status::invalid_row);
  for (;; ++down.accepted) {
    const std::size_t j = down.accepted;
    if (j == g && !drafted.bonus_follows(g)) return down;
    coded_row<T> p;
    const status s = specagg::detail::with_row_at(p_rows, j, [&](const auto& p_row) {
      p = specagg::sites::encode(codec, p_row, work.bytes, work.ids, work.mass);
      return p.why;
    });
    if (s != status::ok) return fail(s);
    specagg::detail::examined d;
    if (j < g) {
      d.e.why = specagg::detail::outside_support(drafted.tokens[j], p.row.size(),
                                                 double(up.probabilities[j]));
      if (d.e.why != status::ok && !drafted.bonus) return fail(d.e.why);
    }
    if (j == g || d.e.why != status::ok) {
      down.token = specagg::draw(p.row, by.at(stream::bonus, j), chooser, work.scratch);
      return down;
    }
    d.w = double(p.row[std::size_t(drafted.tokens[j])]);
    d.t = double(up.probabilities[j]);
    if (!by.keep(d, j)) {
      down.row = std::span(work.bytes).first(p.bytes);
      return down;
    }
  }
}

// ---- Gumbel-max coupling ------------------------------------------------------------------------

// Drafts one more token with the noise that the server will use. Both ends have the seed, and no
// row is sent.
template <class T, Distribution D>
status draft_shared(split_workspace<T>& work, const D& distribution, const coupled_noise& noise) {
  if (!can_draft(work)) return status::invalid_parameter;
  const auto row = specagg::normalise(distribution);
  if (row.why() != status::ok) return row.why();
  return work.append(specagg::race(row, noise, work.next_moment().position));
}
// Emits argmin E / p_j while it is the drafted token. The text is a function of the seed and the
// target alone.
template <class T, class PRows>
downlink verify_shared(const shared_uplink& up, PRows&& p_rows, const coupled_noise& noise,
                       split_workspace<T>& work) {
  if (up.coupled.drafted.size() >= work.emissions.size()) return {.why = status::invalid_parameter};
  return work.answer(verify_coupled(up.coupled, p_rows, p_rows, lossless{}, noise, work.emissions));
}

}  // namespace sites
SPECAGG_END
