// SPDX-License-Identifier: Apache-2.0
// How a connection between two sites begins: each site says hello until it has heard the other
// site, and refuses if their terms differ. Also the order that every site gives to its model.
#pragma once
#include <bit>
#include <cassert>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <specagg/printable.hpp>
#include <specagg/sites/message.hpp>

SPECAGG_BEGIN
namespace sites {

// The order to decode a row: roll the model back to `keep` tokens if it has seen more, feed it the
// site's token(i) up to i = step, and call decoded() with the row that follows and this ticket. An
// order replaces the order before it, which may be stopped.
struct decode_order {
  std::uint32_t ticket = 0, keep = 0, step = 0;
};

// Whether a message that the other end asks for is sent again. asked: how often it has asked. 1, 2,
// 4, 8, and then every 8th time. Growing pauses keep repetitions from filling a slow link whose
// timer is too short. The pauses are bounded, which keeps the expected time finite for any loss
// below 1.
constexpr bool repeat_is_due(std::uint32_t asked) {
  return std::has_single_bit(asked) || asked % 8 == 0;
}

// One end of a connection. A Sink has send(bytes), which may lose them. It may also have
// echoed(stamp), which is called when an echo came back, and damaged(), which is called when a
// message came whose checksum is wrong. Such a message is as good as lost. On a stream the next
// message may begin anywhere: end the connection, and make another. The constructor allocates, and
// so does the text of a refusal.
class handshake {
 public:
  // The kind of a received message. content: it is for the protocol. opened, reborn: the first
  // hello of the connection, from a site that remembers what it was told (opened) or has empty
  // memory (reborn). nothing: there is nothing to do.
  enum class arrival : std::uint8_t { nothing, content, opened, reborn };

  // A hello that is not valid() is a problem() for good: nothing is sent or received.
  explicit handshake(const hello& own)
      : own_(valid(own) ? own : hello{}), out_(most_message_bytes(own_)) {
    own_.heard = false;
    if (!valid(own)) problem_ = "this end's hello is out of range";
  }
  // The hello of this end.
  const hello& terms() const { return own_; }
  bool open() const { return own_.heard && problem_.empty(); }
  // Why this end neither sends nor receives until the next connection, as one printable line; empty
  // if all is well.
  const std::string& problem() const { return problem_; }

  void send(const auto& m, auto& sink) {
    if (open()) write(m, own_, sink);
  }
  // A connection was made: forgets the last problem, and says hello.
  void connected(auto& sink) {
    if (!valid(own_)) return;
    problem_.clear();
    own_.heard = false;
    connected_ = true;
    knock(sink);
  }
  // The connection has ended.
  void disconnected() { own_.heard = connected_ = false; }
  // Says hello. Called on a timer until the hello of the other end has come.
  void knock(auto& sink) {
    if (connected_ && problem_.empty()) write(own_, own_, sink);
  }
  // Tells the other end the reason, and listens no more on this connection. The first reason
  // counts.
  void refuse(const std::string& reason, auto& sink) { refuse(reason, protocol_version, sink); }
  // `m` has views of `bytes`. It is valid only if the result is `content`.
  arrival receive(std::span<const std::uint8_t> bytes, message& m, auto& sink) {
    if (!connected_ || !problem_.empty()) return arrival::nothing;
    const wire w = decode(bytes, own_, m);
    if (w == wire::damaged) {
      if constexpr (requires { sink.damaged(); }) sink.damaged();
      return arrival::nothing;
    }
    const auto* h = std::get_if<hello>(&m);
    if (w != wire::ok) {
      refuse("message of " + std::to_string(bytes.size()) + " bytes: " + complaint(w, m),
             h ? h->version : protocol_version, sink);
      return arrival::nothing;
    }
    if (const auto* r = std::get_if<refusal>(&m)) {
      problem_ = "refused by the other end: \"" + printable(r->reason.view()) + '"';
      return arrival::nothing;
    }
    if (!h && !own_.heard) return arrival::nothing;
    if (auto* e = std::get_if<echo>(&m)) {
      if (!e->back) write(echo{e->stamp, true}, own_, sink);
      else if constexpr (requires { sink.echoed(e->stamp); }) sink.echoed(e->stamp);
      return arrival::nothing;
    }
    if (!h) return arrival::content;
    if (const std::string difference = first_difference(own_, *h); !difference.empty()) {
      refuse(difference, sink);
      return arrival::nothing;
    }
    const bool first = !own_.heard, reborn = first && met_ && h->life != life_;
    own_.heard = met_ = true;
    life_ = h->life;
    if (!h->heard) knock(sink);
    return !first ? arrival::nothing : reborn ? arrival::reborn : arrival::opened;
  }

 private:
  // version: of the end that is told the reason
  void refuse(const std::string& reason, std::uint32_t version, auto& sink) {
    if (!problem_.empty()) return;
    problem_ = printable(reason);  // it may name what the other end has said
    if (connected_) write(refusal{short_text(problem_)}, hello{.version = version}, sink);
  }
  void write(const auto& m, const hello& terms, auto& sink) {
    if (const std::size_t n = encode(m, terms, out_); n > 0)
      sink.send(std::span<const std::uint8_t>(out_).first(n));
  }
  hello own_;  // `heard` is of this connection
  std::vector<std::uint8_t> out_;
  std::string problem_;
  bool connected_ = false, met_ = false;
  std::uint64_t life_ = 0;  // of the other end
};

namespace detail {

// The common part of all sites: the link, the order that the model has, and the text, which is the
// settled tokens.
class site {
 public:
  // The prompt and all settled tokens.
  const std::vector<token_id>& text() const { return text_; }
  // Why this end neither sends nor receives until the next connection; empty if all is well.
  const std::string& problem() const { return link_.problem(); }
  // The text has most_tokens tokens, or its end was emitted.
  bool finished() const {
    return size() >= terms().most_tokens || (size() > 0 && text_.back() == terms().end_of_text);
  }
  void disconnected() { link_.disconnected(); }
  // Sends an echo. After a round trip its stamp is given to sink.echoed().
  void ping(std::uint64_t stamp, auto& sink) { link_.send(echo{stamp}, sink); }

 protected:
  site(const hello& own, std::span<const token_id> prompt) : link_(own) {
    assert(!valid(own) || prompt.size() <= own.most_tokens);
    text_.reserve(terms().most_tokens);
    text_.assign(prompt.begin(), prompt.end());
  }
  const hello& terms() const { return link_.terms(); }
  std::uint32_t size() const { return std::uint32_t(text_.size()); }
  void append(token_id x, auto& sink) {
    text_.push_back(x);
    news_ = true;
    sink.emit(size() - 1, x);
  }
  // The tokens of a message that this end lacks; the message must not begin after the text. None if
  // it contradicts the text, and then it is refused.
  std::span<const token_id> unknown_tokens(const settled_text& m, auto& sink) {
    const std::string where = conflict(text_, m);
    if (!where.empty()) link_.refuse(where, sink);
    if (!where.empty() || m.first + m.count <= size()) return {};
    return std::span(m.tokens).first(m.count).subspan(size() - m.first);
  }

  handshake link_;
  std::vector<token_id> text_;
  bool busy_ = false, news_ = false;
  std::uint32_t ticket_ = 0;  // of the last order
  std::uint32_t keep_ = 0;    // number of tokens seen by the model that still hold
};

}  // namespace detail

}  // namespace sites
SPECAGG_END
