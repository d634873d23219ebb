// SPDX-License-Identifier: Apache-2.0
// The messages between two sites, and their encoding. Every length is checked against what the
// handshake agreed on before anything is stored. If bytes can be decoded, encoding the result gives
// the same bytes. Numbers are varints of least length (7 bits per byte, the lowest first), rows are
// encoded as in codec.hpp, floating-point numbers as their bits. The last 4 bytes are the CRC-32C
// of the bytes before them, the lowest first: a message that was changed on the way does not pass
// for another message.
//
// A connection carries messages between one life of each site. It may lose, repeat and reorder
// messages. No message is delivered after its connection has ended.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <specagg/plan/side.hpp>
#include <specagg/sites/codec.hpp>
#include <specagg/sites/hello.hpp>

SPECAGG_BEGIN
namespace sites {

// ---- messages -----------------------------------------------------------------------------------

// DRAGON: a draft of the sender. epoch: the step after the last step at which a draft of this side
// was rejected (or after all steps that it remembers). The draft assumes that the drafts of the
// steps from `epoch` on were accepted. h: see aggregate.hpp; a double, because only the difference
// of two of them counts.
struct drafted {
  std::uint32_t epoch = 0, step = 0;
  token_id token = no_token;
  double h = 0;
  float seconds = 0;  // time to decode
  std::span<const std::uint8_t> row = {};
};
// Settled tokens. With DRAGON also the outcomes: the epochs of both sides, and the side of the next
// aggregation, after the last of these tokens. accept^s at a step is epoch^s <= step. This message
// is also sent to a site that lacks these tokens.
struct settled_text {
  std::uint32_t first = 0;
  std::size_t count = 0;
  std::array<token_id, most_tokens_in_message> tokens = {};
  std::array<std::uint32_t, 2> epoch = {};
  side next = side::l;
};
// The state of the sender: it has `size` settled tokens, and all of the receiver's drafts of this
// epoch below step `have`. The end that has more sends what is missing.
struct progress {
  std::uint32_t size = 0, epoch = 0, have = 0;
};
// Why the sender ends the connection, as one line.
struct refusal {
  short_text reason;
};
// DSSD: the content of an uplink or downlink of split.hpp, for the round that starts at this
// position.
struct split_request {
  std::uint32_t start = 0;
  token_id correction = no_token;
  std::size_t count = 0;
  std::array<token_id, most_tokens_in_message> tokens = {};
  std::array<double, most_tokens_in_message> probabilities = {};  // dssd
  std::span<const std::uint8_t> rows = {};                        // dsd
};
// row: DSSD, after a rejection. why: otherwise, why no token follows the accepted tokens.
struct split_answer {
  std::uint32_t start = 0;
  std::uint32_t accepted = 0;
  token_id token = no_token;
  status why = status::ok;
  std::span<const std::uint8_t> row = {};
};
// The receiver sends the echo back at once, unchanged but for `back`. An echo measures a round
// trip.
struct echo {
  std::uint64_t stamp = 0;
  bool back = false;
};
// The result of decode(): a message of one of these kinds. The number of a kind is its index here +
// 1.
using message = std::variant<hello, drafted, settled_text, progress, refusal, split_request,
                             split_answer, echo>;

// Tokens first .. end - 1 of a text, or as many of them as fit in a message.
inline settled_text part_of(std::span<const token_id> text, std::size_t first, std::size_t end) {
  settled_text m{.first = std::uint32_t(first),
                 .count = std::min(end - first, most_tokens_in_message)};
  std::copy_n(text.begin() + std::ptrdiff_t(first), m.count, m.tokens.begin());
  return m;
}
// The first token at which such a part differs from the text: "token 7: 3 here, 5 there". Empty if
// no token differs.
inline std::string conflict(std::span<const token_id> text, const settled_text& m) {
  for (std::size_t i = m.first; i < std::min(text.size(), m.first + m.count); ++i)
    if (text[i] != m.tokens[i - m.first])
      return "token " + std::to_string(i) + ": " + std::to_string(text[i]) + " here, " +
             std::to_string(m.tokens[i - m.first]) + " there";
  return {};
}

// ---- bytes --------------------------------------------------------------------------------------

// Whether bytes are a message, or the first reason why not.
enum class [[nodiscard]] wire : std::uint8_t {
  ok,
  truncated,
  oversized,
  trailing_bytes,
  wrong_version,
  unknown_kind,
  malformed,
  damaged
};
constexpr std::string_view name(wire w) {
  constexpr std::string_view names[] = {
      "ok",           "truncated", "oversized", "trailing bytes", "wrong version",
      "unknown kind", "malformed", "damaged"};
  return names[std::size_t(w)];
}

namespace detail {

// Writer and reader have the same members, so that one list of fields describes both directions.
class wire_writer {
 public:
  wire_writer(std::span<std::uint8_t> to, const hello& agreed) : terms(agreed), to_(to) {}
  const hello& terms;
  wire why = wire::ok;
  void number(const auto& x, std::uint64_t /*most*/) {
    auto rest = std::uint64_t(x);
    for (; rest >= 0x80; rest >>= 7) put(std::uint8_t(rest | 0x80));
    put(std::uint8_t(rest));
  }
  void fixed(std::uint64_t x, std::size_t bytes) {
    std::uint8_t b[8];
    store_number(b, x, bytes);
    for (std::size_t i = 0; i < bytes; ++i) put(b[i]);
  }
  void real(const float& x) { fixed(bit_cast<std::uint32_t>(x), 4); }
  void real(const double& x) { fixed(bit_cast<std::uint64_t>(x), 8); }
  void text(const short_text& s) {
    number(s.size, most_text_in_message);
    for (const char c : s.view()) put(std::uint8_t(c));
  }
  void rest(std::span<const std::uint8_t> bytes, std::size_t /*most*/) {
    for (const std::uint8_t b : bytes) put(b);
  }
  void fail(wire) {}
  std::size_t size() const { return size_; }
  bool fits() const { return size_ <= to_.size(); }

 private:
  void put(std::uint8_t b) {
    if (size_++ < to_.size()) to_[size_ - 1] = b;
  }
  std::span<std::uint8_t> to_;
  std::size_t size_ = 0;
};

class wire_reader {
 public:
  wire_reader(std::span<const std::uint8_t> from, const hello& agreed)
      : terms(agreed), from_(from) {}
  const hello& terms;
  wire why = wire::ok;  // the first error; after it every number is 0
  template <class N>
  void number(N& x, std::uint64_t most) {
    std::uint64_t value = 0;
    int shift = 0;
    std::uint8_t b = 0x80;
    for (; b >= 0x80; shift += 7) {
      b = take();
      if (shift > 63 || (shift == 63 && b > 1) || (b == 0 && shift > 0)) fail(wire::malformed);
      if (why != wire::ok) break;
      value |= std::uint64_t(b & 0x7f) << shift;
    }
    if (value > most) fail(wire::oversized);
    x = why == wire::ok ? static_cast<N>(value) : N{};
  }
  std::uint64_t fixed(std::size_t bytes) {
    std::uint8_t b[8] = {};
    for (std::size_t i = 0; i < bytes; ++i) b[i] = take();
    return load_number(b, bytes);
  }
  void real(float& x) { x = bit_cast<float>(std::uint32_t(fixed(4))); }
  void real(double& x) { x = bit_cast<double>(fixed(8)); }
  void text(short_text& s) {
    number(s.size, most_text_in_message);
    for (std::size_t i = 0; i < s.size; ++i) s.characters[i] = char(take());
  }
  void rest(std::span<const std::uint8_t>& bytes, std::size_t most) {
    if (from_.size() > most) fail(wire::oversized);
    if (why == wire::ok) {
      bytes = from_;
      from_ = {};
    }
  }
  void fail(wire w) {
    if (why == wire::ok) why = w;
  }
  bool at_end() const { return from_.empty(); }

 private:
  std::uint8_t take() {
    if (from_.empty()) fail(wire::truncated);
    if (why != wire::ok) return 0;
    const std::uint8_t b = from_[0];
    from_ = from_.subspan(1);
    return b;
  }
  std::span<const std::uint8_t> from_;
};

void token_field(auto& c, token_id& t) {  // encoded as t + 1; 0: no token
  std::uint64_t x = std::uint64_t(std::int64_t(t) + 1);
  c.number(x, c.terms.codec.vocabulary);
  t = token_id(std::int64_t(x) - 1);
}
// A step that is at most `end`, encoded as its distance from `end`.
void step_before(auto& c, std::uint32_t& step, std::uint32_t end) {
  std::uint32_t distance = end - step;
  c.number(distance, end);
  step = end - distance;
}
void tokens_field(auto& c, std::size_t& count, auto& tokens, std::size_t most) {
  c.number(count, most);
  for (std::size_t i = 0; i < count; ++i) {
    token_field(c, tokens[i]);
    if (tokens[i] == no_token) c.fail(wire::malformed);
  }
}

void fields(auto& c, hello& m) {
  constexpr std::uint64_t any = ~std::uint64_t(0), any32 = 0xffffffffu;
  c.number(m.version, any32);
  if (m.version != protocol_version) return c.fail(wire::wrong_version);
  c.number(m.heard, 1);
  c.number(m.from, 1);
  c.number(m.first, 1);
  c.number(m.kind, 5);
  c.number(m.life, any);
  c.number(m.session, any);
  c.text(m.model_l);
  c.text(m.model_r);
  c.number(m.codec.vocabulary, 0x7fffffffu);
  c.number(m.codec.format, 2);
  c.number(m.codec.top_k, any32);
  c.real(m.codec.top_p);
  c.number(m.codec.total, row_codec::largest_total);
  c.number(m.real_bytes, 8);
  c.number(m.vocabulary_hash, any);
  c.number(m.seed_hash, any);
  c.number(m.tokenization_hash, any);
  c.text(m.sampling);
  std::uint64_t end = std::uint64_t(std::int64_t(m.end_of_text) + 1);
  c.number(end, 0x7fffffffu);
  m.end_of_text = token_id(std::int64_t(end) - 1);
  c.number(m.look_ahead, any32);
  c.number(m.most_tokens, any32);
  c.number(m.prompt, any32);
}
void fields(auto& c, drafted& m) {
  c.number(m.step, c.terms.most_tokens);
  step_before(c, m.epoch, m.step);
  token_field(c, m.token);
  if (m.token == no_token) c.fail(wire::malformed);
  c.real(m.h);
  c.real(m.seconds);
  constexpr double inf = std::numeric_limits<double>::infinity();
  if (!(m.h < inf) || !(m.seconds >= 0 && double(m.seconds) < inf)) c.fail(wire::malformed);
  c.rest(m.row, row_bytes(c.terms));
}
void fields(auto& c, settled_text& m) {
  c.number(m.first, c.terms.most_tokens);
  c.number(m.next, 1);
  tokens_field(c, m.count, m.tokens, most_tokens_in_message);
  const std::size_t end = m.first + m.count;
  if (end > c.terms.most_tokens) return c.fail(wire::oversized);
  for (std::uint32_t& e : m.epoch) step_before(c, e, std::uint32_t(end));
}
void fields(auto& c, progress& m) {
  const std::uint64_t most = c.terms.most_tokens;
  c.number(m.size, most);
  c.number(m.epoch, most);
  c.number(m.have, most + most_tokens_in_message);
}
void fields(auto& c, refusal& m) { c.text(m.reason); }
void fields(auto& c, split_request& m) {
  c.number(m.start, c.terms.most_tokens);
  token_field(c, m.correction);
  tokens_field(c, m.count, m.tokens, c.terms.look_ahead);
  for (std::size_t j = 0; j < m.count && c.terms.kind == protocol::dssd; ++j) {
    if (c.terms.real_bytes == 8) {
      c.real(m.probabilities[j]);
    } else {
      float x = float(m.probabilities[j]);
      c.real(x);
      m.probabilities[j] = double(x);
    }
    if (!(m.probabilities[j] >= 0 && m.probabilities[j] <= 1 + normalisation_tolerance))
      c.fail(wire::malformed);
  }
  c.rest(m.rows, sends_rows_up(c.terms.kind) ? m.count * row_bytes(c.terms) : 0);
}
void fields(auto& c, split_answer& m) {
  c.number(m.start, c.terms.most_tokens);
  c.number(m.accepted, c.terms.look_ahead);
  token_field(c, m.token);
  c.number(m.why, std::uint64_t(status::missing_row));
  c.rest(m.row, c.terms.kind == protocol::dssd ? row_bytes(c.terms) : 0);
}
void fields(auto& c, echo& m) {
  c.number(m.stamp, ~std::uint64_t(0));
  c.number(m.back, 1);
}

}  // namespace detail

// At the end of each message.
inline constexpr std::size_t checksum_bytes = 4;

// Encodes a message. terms: the agreed terms, or the terms that this end will agree to. If their
// version has no checksums, the message has none (for an end that speaks this version). Returns the
// bytes written; 0 if `out` is too short (most_message_bytes is enough).
template <class M>
[[nodiscard]] std::size_t encode(const M& m, const hello& terms, std::span<std::uint8_t> out) {
  detail::wire_writer to(out, terms);
  to.number(message(std::in_place_type<M>).index() + 1, 0);
  M copy = m;
  detail::fields(to, copy);
  if (has_checksums(terms.version) && to.fits())
    to.fixed(detail::crc32c(out.first(to.size())), checksum_bytes);
  return to.fits() ? to.size() : 0;
}
// Decodes a message. Rows in `out` are views of `in`. damaged: the checksum is wrong. Until a hello
// was heard (terms.heard), the other end may speak a version without checksums: the version in its
// hello, and its refusal, are read.
inline wire decode(std::span<const std::uint8_t> in, const hello& terms, message& out) {
  const std::size_t end = in.size() - std::min(in.size(), checksum_bytes);
  const bool intact =
      end > 0 && detail::load_number(&in[end], checksum_bytes) == detail::crc32c(in.first(end));
  if (intact && in.size() > most_message_bytes(terms)) return wire::oversized;
  detail::wire_reader from(intact ? in.first(end) : in, terms);
  std::size_t kind = 0;
  from.number(kind, 0xff);
  const auto read = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return ((kind == I + 1 && (detail::fields(from, out.emplace<I>()), true)) || ...);
  };
  if (!read(std::make_index_sequence<std::variant_size_v<message>>()))
    from.fail(wire::unknown_kind);
  if (!from.at_end()) from.fail(wire::trailing_bytes);
  const auto* h = std::get_if<hello>(&out);
  const bool older = h ? from.why == wire::wrong_version && !has_checksums(h->version)
                       : std::get_if<refusal>(&out) && from.why == wire::ok;
  return intact || (older && !terms.heard) ? from.why : wire::damaged;
}
// Why decode() has refused a message, for a person. m: the message as far as it was decoded.
inline std::string complaint(wire why, const message& m) {
  const auto* h = std::get_if<hello>(&m);
  std::string text(name(why));
  if (why == wire::wrong_version && h)
    text += " of the protocol (" + std::to_string(protocol_version) + " here, " +
            std::to_string(h->version) + " there: both ends need releases that speak the same)";
  return text;
}

}  // namespace sites
SPECAGG_END
