// SPDX-License-Identifier: Apache-2.0
// The protocol of split verification (split.hpp), both ends: a device drafts and a server verifies,
// round after round. Its authors state a patent filing, CN2025108856278. There are no sockets,
// clocks, threads or models here: events go in, actions come out.
//
// A round is named by the position where it starts. The tokens that it emits are a function of
// (seeds, text before it, rows) alone:
//   * The device sends its draft again until it gets an answer. The server answers the same round
//     from memory.
//   * A server that starts with empty memory is given the text, and verifies the round again, with
//     the same answer.
//   * A device that starts with empty memory is given the text up to the start of the last round,
//     and drafts that round again. It must not begin another round after the accepted tokens: the
//     token after them was rejected, and the law of the following tokens depends on that rejection.
// DSSD: the token that the device drew after a rejection is sent with its next draft.
#pragma once
#include <algorithm>
#include <cassert>
#include <span>
#include <string>
#include <vector>

#include <specagg/sites/handshake.hpp>
#include <specagg/sites/split.hpp>

SPECAGG_BEGIN
namespace sites {

// The order to score a draft: roll the model back to `keep` tokens if it has seen more, feed it
// token(i) up to i = end, and call scored() with the rows of positions start .. end and this
// ticket. Read the tokens when the order is given: a later message may take the draft back, and
// token(i) is then no_token after the text.
struct score_order {
  std::uint32_t ticket = 0, keep = 0, start = 0, end = 0;
};
// A Sink executes the actions, in order: send(bytes), emit(position, token); and
// decode(decode_order) for the device or score(score_order) for the server.

namespace detail {

// Writes a normalised row's probabilities.
template <NormalisedRow R, class T>
SPECAGG_FLATTEN void write_row(const R& row, T* to) {
  using V = vec<typename R::value_type, 16>;
  for (std::size_t begin = 0, count; begin < row.size(); begin += count) {
    count = std::min(block_size, row.size() - begin);
    const auto block = row.open(begin, count);
    std::size_t k = 0;
    if constexpr (std::is_same_v<typename R::value_type, T>)
      for (; k + V::lanes <= count; k += V::lanes)
        block.template operator()<V>(k, V::lanes).store(to + begin + k);
    for (; k < count; ++k) to[begin + k] = T(row[begin + k]);
  }
}

// The part that both ends have in common. The two ends differ in how much of the text they may tell
// each other.
template <class T, class Chooser>
class split_end : public site {
 protected:
  split_end(const hello& own, std::span<const token_id> prompt, Chooser chooser,
            const coupled_noise& noise)
      : site(own, prompt),
        chooser_(std::move(chooser)),
        noise_(noise),
        work_(terms().codec, terms().look_ahead) {
    assert(!valid(own) || (sizeof(T) == own.real_bytes && own.kind >= protocol::dsd));
  }
  void send_progress(auto& sink) { link_.send(progress{.size = size()}, sink); }
  // Sends the other end the tokens first .. end - 1, which it lacks, or as many as fit in a
  // message. True if all of them were sent.
  bool send_settled(std::uint32_t first, std::uint32_t end, auto& sink) {
    if (first >= end) return true;
    const settled_text m = part_of(text_, first, end);
    link_.send(m, sink);
    return m.first + m.count == end;
  }
  // Adds the tokens of the message that this end lacked. True if it lacked any.
  bool learn(const settled_text& m, auto& sink) {
    if (m.first > size()) {
      send_progress(sink);
      return false;
    }
    const auto tokens = unknown_tokens(m, sink);
    for (const token_id x : tokens) append(x, sink);
    if (tokens.empty()) return false;
    if (m.count > 1) send_progress(sink);  // there may be more tokens
    return true;
  }
  // A draft is followed by one more token, unless the text has no room for it.
  draft draft_of(std::span<const token_id> tokens, std::uint32_t start) const {
    return {tokens, start, terms().end_of_text, start + tokens.size() < terms().most_tokens};
  }

  Chooser chooser_;
  coupled_noise noise_;
  split_workspace<T> work_;
};

}  // namespace detail

// ---- device: side l -----------------------------------------------------------------------------

// Chooser: random_streams(seed, request). noise: of the same seed, for split_shared. The
// constructor allocates all memory. A hello that is not valid() is a problem(), and nothing
// happens; of split_server, too.
template <class T, class Chooser = random_streams>
class split_device : public detail::split_end<T, Chooser> {
 public:
  split_device(const hello& agreed, std::span<const token_id> prompt, Chooser chooser,
               const coupled_noise& noise = coupled_noise(0))
      : base(agreed, prompt, std::move(chooser), noise),
        q_(terms().kind == protocol::dssd ? terms().look_ahead * terms().codec.vocabulary : 0) {}

  // Token i of the text, or of the draft after it; no_token after them.
  token_id token(std::uint32_t i) const {
    if (i < size()) return text_[i];
    return i - size() < draft_size() ? work_.up.drafted.tokens[i - size()] : no_token;
  }
  std::size_t draft_size() const { return work_.up.drafted.tokens.size(); }

  // Drafting may begin before there is a connection.
  void start(auto& sink) { begin_round(no_token, sink); }
  // A connection was made; the connection before it has ended with disconnected().
  void connected(auto& sink) {
    asked_ = 0;
    link_.connected(sink);
  }
  // The result of an order: the draft model's row. h and seconds are DRAGON's.
  void decoded(std::uint32_t ticket, const auto& distribution, double /*h*/, double /*seconds*/,
               auto& sink) {
    if (!busy_ || ticket != ticket_) return;
    busy_ = false;
    const protocol kind = terms().kind;
    const std::size_t j = draft_size();
    const auto row = specagg::normalise(distribution);
    status s = row.why();
    if (s == status::ok)
      s = kind == protocol::dssd           ? draft_split(work_, row, chooser_)
          : kind == protocol::split_shared ? draft_shared(work_, row, noise_)
                                           : draft_coded(work_, terms().codec, row, chooser_);
    dead_end_ = s == status::invalid_row || s == status::not_normalised;
    if (s != status::ok && !dead_end_)
      return link_.refuse(
          "row of position " + std::to_string(size() + j) + ": " + std::string(name(s)), sink);
    if (kind == protocol::dssd && !dead_end_)
      detail::write_row(row, q_.data() + j * terms().codec.vocabulary);
    go_on(sink);
  }
  // Takes a message of the server. An invalid message closes the connection (problem()).
  void received(std::span<const std::uint8_t> bytes, auto& sink) {
    message m;
    const auto what = link_.receive(bytes, m, sink);
    if (what == handshake::arrival::opened || what == handshake::arrival::reborn) {
      this->send_progress(sink);
      if (waiting()) send_request(sink);
      else if (!busy_) go_on(sink);  // the last connection ended in a refusal
    }
    if (what != handshake::arrival::content) return;
    if (const auto* a = std::get_if<split_answer>(&m)) on(*a, sink);
    else if (const auto* s = std::get_if<settled_text>(&m)) on(*s, sink);
    else if (const auto* p = std::get_if<progress>(&m)) on(*p, sink);
    else link_.refuse("a message of another protocol", sink);
  }
  // Call it on a timer. The period must be longer than a round trip and a scoring.
  void tick(auto& sink) {
    if (!link_.open()) link_.knock(sink);
    else if (waiting() && repeat_is_due(++asked_)) send_request(sink);
  }

 private:
  using base = typename split_device::split_end;
  using base::busy_, base::chooser_, base::keep_, base::link_, base::noise_, base::size,
      base::terms, base::text_, base::ticket_, base::work_;

  // Whether the draft is complete: it has gamma tokens, or ended the text, or the text has no room,
  // or no token can be drawn from its next row.
  bool whole() const {
    return dead_end_ || !can_draft(work_) || size() + draft_size() >= terms().most_tokens;
  }
  bool waiting() const { return !busy_ && !this->finished() && size() > 0 && whole(); }

  void begin_round(token_id correction, auto& sink) {
    begin_draft(work_, size(), terms().end_of_text, correction);
    busy_ = dead_end_ = false;
    asked_ = 0;
    if (!this->finished()) go_on(sink);
    else if (correction != no_token) this->send_settled(size() - 1, size(), sink);
  }
  void go_on(auto& sink) {
    if (waiting()) return send_request(sink);
    if (this->finished() || size() == 0 || !link_.problem().empty()) return;
    const auto step = std::uint32_t(size() + draft_size());
    busy_ = true;
    const decode_order order{++ticket_, keep_, step};
    keep_ = step;
    sink.decode(order);
  }
  void send_request(auto& sink) {
    const uplink<T>& up = work_.up;
    split_request m{.start = up.drafted.start,
                    .correction = up.correction,
                    .count = draft_size(),
                    .rows = up.rows};
    std::copy(up.drafted.tokens.begin(), up.drafted.tokens.end(), m.tokens.begin());
    std::copy(up.probabilities.begin(), up.probabilities.end(), m.probabilities.begin());
    link_.send(m, sink);
  }

  void on(const split_answer& a, auto& sink) {
    if (!waiting() || a.start != size()) return;
    const std::size_t V = terms().codec.vocabulary;
    const draft mine = this->draft_of(work_.up.drafted.tokens, size());
    const downlink down{a.accepted, a.token, a.row, a.why};
    const auto q_rows = lasting_rows_of(
        mine.size(), [&](std::size_t j) { return dense_row<T>(q_.data() + j * V, V); });
    const auto f = finish_round(down, mine, terms().codec, q_rows, chooser_, work_);
    const bool ends = a.accepted == mine.size() && !mine.bonus_follows(mine.size());
    const bool odd = f.why == status::ok && (f.token == no_token) != ends;
    // the server has no valid row after these tokens
    if (down.why != status::ok && a.accepted <= mine.size()) {
      for (std::size_t j = 0; j < a.accepted; ++j) this->append(mine.tokens[j], sink);
      keep_ = std::min(keep_, std::uint32_t(a.start + a.accepted));
      begin_draft(work_, size(), terms().end_of_text);
      dead_end_ = false;
      asked_ = 0;
    }
    if (f.why != status::ok || odd)
      return link_.refuse(
          "answer at position " + std::to_string(a.start) + ": " +
              std::string(odd ? "no token where one is due, or one too many" : name(f.why)),
          sink);
    keep_ = std::min(keep_, std::uint32_t(a.start + a.accepted));
    for (std::size_t j = 0; j < a.accepted; ++j) this->append(mine.tokens[j], sink);
    if (f.token != no_token) this->append(f.token, sink);
    begin_round(f.correction, sink);
  }
  void on(const settled_text& m, auto& sink) {
    const std::uint32_t before = size();
    if (!this->learn(m, sink)) return;
    keep_ = std::min(keep_, before);
    begin_round(no_token, sink);
  }
  void on(const progress& p, auto& sink) {
    if (!this->send_settled(p.size, size(), sink) || p.size >= size() || !waiting()) return;
    if (repeat_is_due(++asked_)) send_request(sink);
  }

  std::vector<T> q_;         // DSSD: the draft's rows
  bool dead_end_ = false;    // no token can be drawn from the row after the draft
  std::uint32_t asked_ = 0;  // requests to send the draft again: see repeat_is_due()
};

// ---- server: side r -----------------------------------------------------------------------------

// Chooser: random_streams(seed, request) with any seed. noise: of the device's seed, for
// split_shared. The constructor allocates all memory. prompt: the first tokens of the text, or
// nothing if the server is to learn them from the device.
template <class T, class Chooser = random_streams>
class split_server : public detail::split_end<T, Chooser> {
 public:
  split_server(const hello& agreed, std::span<const token_id> prompt, Chooser chooser,
               const coupled_noise& noise = coupled_noise(0))
      : base(agreed, prompt, std::move(chooser), noise),
        tokens_(terms().look_ahead),
        probabilities_(terms().look_ahead),
        rows_(sends_rows_up(terms().kind) ? terms().look_ahead * row_bytes(terms()) : 0),
        start_(size()) {}

  // Token i of the text; or, while a draft is scored, of the draft from its start on; no_token
  // after them.
  token_id token(std::uint32_t i) const {
    if (busy_ && i >= start_) return i - start_ < count_ ? tokens_[i - start_] : no_token;
    return i < size() ? text_[i] : no_token;
  }

  // Nothing to do: a server waits for a draft.
  void start(auto&) {}
  // A connection was made; the connection before it has ended with disconnected().
  void connected(auto& sink) { link_.connected(sink); }
  // The rows of an order: a list (rows/rows.hpp) with one row more than drafted tokens.
  void scored(std::uint32_t ticket, auto&& p_rows, auto& sink) {
    if (!busy_ || ticket != ticket_) return;
    busy_ = false;
    const row_codec& codec = terms().codec;
    const draft d = this->draft_of(std::span(tokens_).first(count_), start_);
    const uplink<T> up{d, no_token, std::span(probabilities_).first(count_),
                       std::span(rows_).first(row_bytes_)};
    const protocol kind = terms().kind;
    const downlink down =
        kind == protocol::dssd ? verify_split(up, codec, p_rows, chooser_, work_)
        : kind == protocol::split_shared
            ? verify_shared(shared_uplink{coupled_draft{d}}, p_rows, noise_, work_)
        : kind == protocol::dsd
            ? verify_coded(up, codec, p_rows, chooser_, work_)
            : verify_coded(up, codec, p_rows, chooser_, work_, block_verifier{});
    keep_ = std::min(keep_, std::uint32_t(start_ + down.accepted));
    answered_ = true;
    answer_ = {start_, std::uint32_t(down.accepted), down.token, down.why, down.row};
    for (std::size_t j = 0; j < down.accepted; ++j) this->append(tokens_[j], sink);
    if (down.token != no_token) this->append(down.token, sink);
    link_.send(answer_, sink);
    if (down.why == status::ok) return;
    // the accepted tokens remain; the next round begins after them
    start_ = size();
    answered_ = false;
    link_.refuse(
        "draft at position " + std::to_string(answer_.start) + ": " + std::string(name(down.why)),
        sink);
  }
  // A message of the device. An invalid message closes the connection (problem()).
  void received(std::span<const std::uint8_t> bytes, auto& sink) {
    message m;
    const auto what = link_.receive(bytes, m, sink);
    if (what == handshake::arrival::opened || what == handshake::arrival::reborn)
      this->send_progress(sink);
    if (what != handshake::arrival::content) return;
    if (const auto* r = std::get_if<split_request>(&m)) on(*r, sink);
    else if (const auto* s = std::get_if<settled_text>(&m)) on(*s, sink);
    else if (const auto* p = std::get_if<progress>(&m)) on(*p, sink);
    else link_.refuse("a message of another protocol", sink);
  }
  // Call it on a timer. The period must be longer than a round trip.
  void tick(auto& sink) {
    if (!link_.open()) link_.knock(sink);
    else if (!news_ && !busy_ && !this->finished()) this->send_progress(sink);
    news_ = false;
  }

 private:
  using base = typename split_server::split_end;
  using base::busy_, base::chooser_, base::keep_, base::link_, base::news_, base::noise_,
      base::size, base::terms, base::text_, base::ticket_, base::work_;

  void on(const split_request& r, auto& sink) {
    const auto refuse = [&](const std::string& why) {
      link_.refuse("draft at position " + std::to_string(r.start) + ": " + why, sink);
    };
    // the device has lost its memory
    if (r.start < start_) return void(this->send_settled(r.start, start_, sink));
    if (r.start == start_ && (busy_ || answered_)) {
      if (!std::equal(r.tokens.begin(), r.tokens.begin() + std::ptrdiff_t(r.count), tokens_.begin(),
                      tokens_.begin() + std::ptrdiff_t(count_)))
        return refuse("another was sent before");
      if (answered_) link_.send(answer_, sink);
      return;
    }
    const bool carries = r.correction != no_token;
    // this end has lost its memory
    if (size() + carries < r.start) return this->send_progress(sink);
    if (size() > r.start || r.start + r.count > terms().most_tokens)
      return refuse("there is other text");
    if (r.start == 0 || this->finished()) return refuse("the text has ended, or not begun");
    if (sends_rows_up(terms().kind))  // checked before anything is kept
      if (const status s = decode_rows(r.rows, r.count, terms().codec, work_); s != status::ok)
        return refuse(std::string(name(s)));
    if (size() < r.start) this->append(r.correction, sink);
    else if (carries && text_.back() != r.correction) return refuse("there is other text");
    if (this->finished()) return;
    start_ = r.start;
    count_ = r.count;
    answered_ = false;
    busy_ = true;
    std::copy_n(r.tokens.begin(), count_, tokens_.begin());
    std::transform(r.probabilities.begin(), r.probabilities.begin() + std::ptrdiff_t(count_),
                   probabilities_.begin(), [](double x) { return T(x); });
    row_bytes_ = r.rows.size();
    std::copy(r.rows.begin(), r.rows.end(), rows_.begin());
    const score_order order{++ticket_, keep_, start_, std::uint32_t(start_ + count_)};
    keep_ = order.end;
    sink.score(order);
  }
  void on(const settled_text& m, auto& sink) {
    const std::uint32_t before = size();
    if (!this->learn(m, sink)) return;
    keep_ = std::min(keep_, before);
    start_ = size();
    busy_ = answered_ = false;
  }
  void on(const progress& p, auto& sink) {
    if (p.size > size()) this->send_progress(sink);
    else this->send_settled(p.size, start_, sink);
  }

  std::vector<token_id> tokens_;  // the last draft
  std::vector<T> probabilities_;
  std::vector<std::uint8_t> rows_;
  std::size_t count_ = 0, row_bytes_ = 0;
  std::uint32_t start_;  // of the last round; the tokens before it are final
  bool answered_ = false;
  split_answer answer_;
};

}  // namespace sites
SPECAGG_END
