// SPDX-License-Identifier: Apache-2.0
// DRAGON's protocol, one side of it. Two sites draft ahead. One of them aggregates, and may hand
// this over to the other after every token. Liu et al. 2025 (arXiv:2504.11197). There are no
// sockets, clocks, threads or models here: events go in, actions come out.
//
// The token of a step is a function of (seed, text before it, rows) alone, and a site settles the
// steps in order, each once. So losses, repetitions, delays, the side that aggregates, and restarts
// may change when a token is emitted, but never which token.
//   * The epoch of a side is the step after the last step at which a draft of this side was
//     rejected. A draft assumes that the drafts of its side from its epoch on were accepted. A
//     draft of an earlier epoch is dropped. Every site that knows the settled text knows the
//     epochs. An epoch that begins after a restart, where that site's memory ends, cannot be below
//     the epochs seen before.
//   * Both ends keep the drafts of each side, at most K, so that either can aggregate. The end that
//     made the drafts compares them with the settled text, and needs no message about them. The
//     other end may lack some drafts, and uses the epochs that are sent with the drafts.
//   * There are no acknowledgements. A site that waits too long says on its timer what it has, and
//     the other site sends what is missing.
//   * A draft is checked before it is kept. A draft that is not valid ends the connection, and is
//     asked for at the next connection.
#pragma once
#include <algorithm>
#include <array>
#include <cassert>
#include <span>
#include <string>
#include <vector>

#include <specagg/sites/aggregate.hpp>
#include <specagg/sites/handshake.hpp>

SPECAGG_BEGIN
namespace sites {

// ---- how drafts are drawn, and how two become one token -----------------------------------------
// rows(side) is the row of that side's draft, a coded_row. It is decoded at each call.

// Independent drafts. Each chooser is its site's: random_streams(seed, request, 0) and (seed,
// request, 1).
template <Chooser L = random_streams, Chooser R = L>
struct independent_drafts {
  L site_l;
  R site_r;
  token_id draw(side s, const Row auto& row, std::uint32_t step, std::span<double> scratch) {
    const moment m{stream::draft, step, 0};
    return s == side::l ? specagg::draw(row, m, site_l, scratch)
                        : specagg::draw(row, m, site_r, scratch);
  }
  // Makes one token of both drafts; no token if a row is not valid.
  aggregation aggregate(std::uint32_t step, token_id x_l, token_id x_r, const site_weights& eta,
                        auto&& rows, std::span<double> scratch) {
    const auto l = rows(side::l), r = rows(side::r);
    if (l.why != status::ok || r.why != status::ok)
      return {.why = l.why != status::ok ? l.why : r.why};
    return specagg::sites::aggregate(step, site_draft{x_l, l.row, site_l},
                                     site_draft{x_r, r.row, site_r}, eta, scratch);
  }
  agreement expected(const site_weights& eta, auto&& rows) const {
    return agreement_of(rows(side::l).row, rows(side::r).row, eta);
  }
};
// Drafts drawn with the same noise. If both sites drafted the same token, it is the result,
// for any rows and weights.
struct shared_drafts {
  coupled_noise noise;
  token_id draw(side, const Row auto& row, std::uint32_t step, std::span<double>) const {
    return race(row, noise, step);
  }
  aggregation aggregate(std::uint32_t step, token_id x_l, token_id x_r, const site_weights& eta,
                        auto&& rows, std::span<double>) const {
    if (x_l == x_r) return {x_l, true, true, status::ok};
    const auto l = rows(side::l), r = rows(side::r);
    if (l.why != status::ok || r.why != status::ok)
      return {.why = l.why != status::ok ? l.why : r.why};
    return aggregate_shared(step, x_l, l.row, x_r, r.row, eta, noise);
  }
};

// ---- actions ------------------------------------------------------------------------------------

// A Sink executes the actions, in order:
//   send(bytes)            sends one message to the other site
//   decode(decode_order)   see handshake.hpp
//   emit(step, token)      a token of the text, each step once
//   aggregates(side)       called when the side that makes the next token changes

// The side that aggregated a step, and the drafts that the step confirmed. Schedulers get this.
struct dragon_outcome {
  std::uint32_t step;
  side at;
  bool accepted_l, accepted_r;
  std::array<float, 2> seconds = {};  // time to decode the drafts of the step, and
  // size of their rows, by side; 0 where this end has no draft
  std::array<std::size_t, 2> bytes = {};
  // before the drafts were verified; if rows are not looked at: the outcome
  agreement expected = {};
};
// A scheduler says which side aggregates next. It is called where the step was aggregated. If it
// has a member learned(), learned() is called with the outcome first. It is also called at the
// other site, if the outcome arrives alone and not together with earlier ones. If it has `static
// constexpr bool looks_at_rows = true`, `expected` is computed if the coupling can do it; this
// costs one pass over the rows.
struct stay {
  side operator()(const dragon_outcome& o) const { return o.at; }
};

// ---- one site -----------------------------------------------------------------------------------

// T: float or double, matching real_bytes. The constructor allocates all memory. A hello that is
// not valid() is a problem(), and nothing happens.
template <class T, class Coupling, class Schedule = stay>
class dragon_site : public detail::site {
 public:
  // prompt: the first tokens of the text, or nothing if the site is to learn them from the other.
  dragon_site(const hello& own, std::span<const token_id> prompt, Coupling coupling,
              Schedule schedule = {})
      : site(own, prompt),
        coupling_(std::move(coupling)),
        schedule_(std::move(schedule)),
        aggregates_(terms().first),
        bytes_(2 * terms().look_ahead * row_bytes(terms())),
        ids_(2 * terms().codec.max_tokens()),
        mass_(2 * terms().codec.vocabulary),
        scratch_(verify_scratch(terms().codec.vocabulary)) {
    assert(!valid(own) || sizeof(T) == own.real_bytes);
    for (auto& drafts : drafts_) drafts.resize(terms().look_ahead);
    epoch_ = {size(), size()};
    keep_ = size();
  }

  // The side that makes the next token.
  side aggregates() const { return aggregates_; }
  // The step after the last step at which a draft of the side was rejected.
  std::uint32_t epoch(side s) const { return epoch_[index(s)]; }
  // Token i of the text, or of this side's drafts after it.
  token_id token(std::uint32_t i) const { return i < size() ? text_[i] : at(me(), i).token; }
  // The number of drafts of a side from the next step on.
  std::size_t waiting(side s) const { return lacking(s) - size(); }
  float decode_seconds(side s) const { return seconds_[index(s)]; }  // of its last draft
  const Schedule& schedule() const { return schedule_; }

  // ---- events -----------------------------------------------------------------------------------

  // Decoding may begin before there is a connection.
  void start(auto& sink) { go_on(sink); }
  void connected(auto& sink) {
    link_.connected(sink);
    go_on(sink);
  }

  // The result of an order: the row, h (see aggregate.hpp), and the seconds it took.
  void decoded(std::uint32_t ticket, const auto& row, double h, double seconds, auto& sink) {
    if (!busy_ || ticket != ticket_) return;
    busy_ = false;
    const std::uint32_t step = ordered_;
    const auto coded = encode(terms().codec, row, row_of(me(), step), ids_, mass_);
    const token_id y =
        coded.why == status::ok ? coupling_.draw(me(), coded.row, step, scratch_) : no_token;
    if (y == no_token) {
      const status s = coded.why == status::ok ? status::invalid_row : coded.why;
      return link_.refuse("row of step " + std::to_string(step) + ": " + std::string(name(s)),
                          sink);
    }
    if (!(h < infinity))
      return link_.refuse("h of step " + std::to_string(step) + " is not below infinity", sink);
    at(me(), step) = {epoch(me()), step, y, h, float(seconds), coded.bytes, 0};
    seconds_[index(me())] = float(seconds);
    send_draft(step, sink);
    go_on(sink);
  }

  // A message of the other site. An invalid message closes the connection (problem()).
  void received(std::span<const std::uint8_t> bytes, auto& sink) {
    message m;
    const auto what = link_.receive(bytes, m, sink);
    if (what == handshake::arrival::reborn) {  // it has lost its drafts, and will draw new ones
      for (auto& d : drafts_[index(peer())]) d = {};
    }
    if (what == handshake::arrival::opened || what == handshake::arrival::reborn) {
      // a later one is told again with the drafts
      epoch_[index(peer())] = std::min(epoch(peer()), size());
      for (auto& d : drafts_[index(me())]) d.asked = 0;
      send_progress(sink);
    }
    if (what != handshake::arrival::content) return;
    if (const auto* d = std::get_if<drafted>(&m)) on(*d, sink);
    else if (const auto* s = std::get_if<settled_text>(&m)) on(*s, sink);
    else if (const auto* p = std::get_if<progress>(&m)) on(*p, sink);
    else link_.refuse("a message of another protocol", sink);
    go_on(sink);
  }

  // Call it on a timer. The period must be longer than a round trip. If nothing new has come since
  // the last call, something may be lost.
  void tick(auto& sink) {
    if (!link_.open()) link_.knock(sink);
    else if (!news_ && !finished()) send_progress(sink);
    news_ = false;
  }

 private:
  struct draft_slot {
    std::uint32_t epoch = 0, step = 0;
    token_id token = no_token;
    double h = 0;
    float seconds = 0;
    std::size_t bytes = 0;
    std::uint32_t asked = 0;  // requests for it by the other end: see repeat_is_due()
  };
  static constexpr std::size_t index(side s) { return std::size_t(s); }
  side me() const { return terms().from; }
  side peer() const { return me() == side::l ? side::r : side::l; }

  // The slot of a step's draft. Drafts of K consecutive steps have different slots.
  const draft_slot& at(side s, std::uint32_t step) const {
    return drafts_[index(s)][step % terms().look_ahead];
  }
  draft_slot& at(side s, std::uint32_t step) {
    return drafts_[index(s)][step % terms().look_ahead];
  }
  std::span<std::uint8_t> row_of(side s, std::uint32_t step) {
    const std::size_t each = row_bytes(terms()), K = terms().look_ahead;
    return std::span(bytes_).subspan((index(s) * K + step % K) * each, each);
  }
  bool has(side s, std::uint32_t step) const {
    const draft_slot& d = at(s, step);
    return d.token != no_token && d.step == step && d.epoch == epoch(s);
  }
  std::uint32_t lacking(side s) const {
    std::uint32_t step = size();
    while (step < size() + terms().look_ahead && has(s, step)) ++step;
    return step;
  }

  void send_draft(std::uint32_t step, auto& sink) {
    const draft_slot& d = at(me(), step);
    link_.send(drafted{d.epoch, step, d.token, d.h, d.seconds, row_of(me(), step).first(d.bytes)},
               sink);
  }
  void send_settled(std::uint32_t first, std::size_t count, auto& sink) {
    settled_text m = part_of(text_, first, first + count);
    for (std::size_t s = 0; s < 2; ++s)
      m.epoch[s] = std::min(epoch_[s], std::uint32_t(first + count));
    m.next = aggregates_;
    link_.send(m, sink);
  }
  void send_progress(auto& sink) {
    link_.send(progress{size(), epoch(peer()), lacking(peer())}, sink);
  }

  // The row that a side sent, decoded into memory that the next call for this side uses again.
  coded_row<T> row_from(side s, std::span<const std::uint8_t> bytes) {
    const std::size_t V = terms().codec.vocabulary, most = terms().codec.max_tokens();
    return decode<T>(terms().codec, bytes, std::span(ids_).subspan(index(s) * most, most),
                     std::span(mass_).subspan(index(s) * V, V));
  }
  void on(const drafted& d, auto& sink) {
    if (d.step < size() || d.step >= size() + terms().look_ahead || d.epoch < epoch(peer())) return;
    const coded_row<T> row = row_from(peer(), d.row);
    if (row.why != status::ok || row.bytes != d.row.size()) {
      const status s = row.why != status::ok ? row.why : status::invalid_row;
      return link_.refuse("draft of step " + std::to_string(d.step) + ": " + std::string(name(s)),
                          sink);
    }
    // if it is larger, the other end knows of a rejection that this end will learn of
    epoch_[index(peer())] = d.epoch;
    if (has(peer(), d.step)) return;
    at(peer(), d.step) = {d.epoch, d.step, d.token, d.h, d.seconds, d.row.size(), 0};
    std::copy(d.row.begin(), d.row.end(), row_of(peer(), d.step).begin());
    seconds_[index(peer())] = d.seconds;
    news_ = true;
  }
  void on(const settled_text& m, auto& sink) {
    if (m.first > size()) return send_progress(sink);  // tokens in between are lost or late
    const auto tokens = unknown_tokens(m, sink);
    if (tokens.empty()) return;
    for (const token_id x : tokens) settle(x, sink);
    for (const side s : {side::l, side::r})
      if (m.epoch[index(s)] > epoch(s)) reject(s, m.epoch[index(s)] - 1);
    if (m.count == 1) learn(outcome_of(m.first, peer()));
    hand_over(m.next, sink);
    if (m.count > 1) send_progress(sink);  // this site was behind, and may still be
  }
  void on(const progress& p, auto& sink) {
    if (p.size > size()) return send_progress(sink);
    const auto count = std::min<std::size_t>(size() - p.size, most_tokens_in_message);
    if (count > 0) send_settled(p.size, count, sink);
    if (p.size + count < size()) return;
    for (std::uint32_t step = p.epoch == epoch(me()) ? std::max(p.have, size()) : size();
         step < size() + terms().look_ahead && has(me(), step); ++step)
      if (repeat_is_due(++at(me(), step).asked)) send_draft(step, sink);
  }

  void reject(side s, std::uint32_t step) {
    epoch_[index(s)] = step + 1;
    if (s == me()) {
      busy_ = false;
      keep_ = std::min(keep_, step);
    }
  }
  void settle(token_id x, auto& sink) {
    const std::uint32_t step = size();
    if (!has(me(), step) || at(me(), step).token != x) reject(me(), step);
    append(x, sink);
  }
  // The outcome of `step`, which must be the last settled step.
  dragon_outcome outcome_of(std::uint32_t step, side aggregated_at) const {
    dragon_outcome o{step, aggregated_at, epoch(side::l) <= step, epoch(side::r) <= step};
    for (const side s : {side::l, side::r})
      if (const draft_slot& d = at(s, step); d.step == step && d.token != no_token) {
        o.seconds[index(s)] = d.seconds;
        o.bytes[index(s)] = d.bytes;
      }
    o.expected = {double(o.accepted_l && o.accepted_r), double(o.accepted_l && !o.accepted_r),
                  double(!o.accepted_l && o.accepted_r)};
    return o;
  }
  void learn(const dragon_outcome& o) {
    if constexpr (requires { schedule_.learned(o); }) schedule_.learned(o);
  }
  void hand_over(side next, auto& sink) {
    if (next != aggregates_) sink.aggregates(aggregates_ = next);
  }

  // Does everything that can be done now.
  void go_on(auto& sink) {
    while (aggregates_ == me() && !finished() && has(side::l, size()) && has(side::r, size())) {
      const std::uint32_t step = size();
      const auto rows = [&](side s) {
        return row_from(s, row_of(s, step).first(at(s, step).bytes));
      };
      const draft_slot &l = at(side::l, step), &r = at(side::r, step);
      const site_weights eta = weigh_sites(l.h, r.h);
      const auto a = coupling_.aggregate(step, l.token, r.token, eta, rows, scratch_);
      if (a.token == no_token) {
        at(peer(), step) = {};  // the other end is asked for it again
        return link_.refuse(
            "aggregation at step " + std::to_string(step) + ": " + std::string(name(a.why)), sink);
      }
      if (at(peer(), step).token != a.token) reject(peer(), step);
      settle(a.token, sink);
      dragon_outcome o = outcome_of(step, me());
      if constexpr (requires {
                      requires Schedule::looks_at_rows;
                      coupling_.expected(eta, rows);
                    })
        o.expected = coupling_.expected(eta, rows);
      learn(o);
      hand_over(schedule_(o), sink);
      send_settled(step, 1, sink);
    }
    if (busy_ || size() == 0 || size() < terms().prompt || finished() || !problem().empty()) return;
    const std::uint32_t step = lacking(me());
    if (step >= std::min(size() + terms().look_ahead, terms().most_tokens)) return;
    if (token(step - 1) == terms().end_of_text) return;
    busy_ = true;
    ordered_ = step;
    const decode_order order{++ticket_, keep_, step};
    keep_ = step;
    sink.decode(order);
  }

  Coupling coupling_;
  Schedule schedule_;
  side aggregates_;
  std::array<std::uint32_t, 2> epoch_ = {};  // by side, as all pairs here
  std::array<float, 2> seconds_ = {};
  std::array<std::vector<draft_slot>, 2> drafts_;
  std::vector<std::uint8_t> bytes_;  // of the drafts' rows
  std::vector<token_id> ids_;
  std::vector<T> mass_;
  std::vector<double> scratch_;
  std::uint32_t ordered_ = 0;  // the step of the last order
};

}  // namespace sites
SPECAGG_END
