// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/handshake.hpp>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <specagg/sites/dragon.hpp>
#include <specagg/sites/dssd.hpp>

#include "sites/sealed.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

struct inbox {
  std::vector<std::vector<std::uint8_t>> sent = {};
  void send(std::span<const std::uint8_t> b) { sent.emplace_back(b.begin(), b.end()); }
};
struct end {
  handshake link;
  inbox out = {};
  explicit end(side s, std::uint64_t life = 1, std::size_t vocabulary = 5)
      : link(terms(s, life, vocabulary)) {}
  static hello terms(side s, std::uint64_t life, std::size_t vocabulary) {
    hello h{.life = life, .from = s};
    h.codec = {.vocabulary = vocabulary};
    return h;
  }
  handshake::arrival hears(const std::vector<std::uint8_t>& bytes) {
    message m;
    return link.receive(bytes, m, out);
  }
};
using arrival = handshake::arrival;

}  // namespace

TEST_CASE("each end says hello until the other has heard it, and no longer") {
  end l(side::l), r(side::r);
  l.link.connected(l.out);
  r.link.connected(r.out);
  REQUIRE((l.out.sent.size() == 1 && r.out.sent.size() == 1));
  // r's own was lost: r says it again, and that it has heard
  CHECK(r.hears(l.out.sent[0]) == arrival::opened);
  REQUIRE(r.out.sent.size() == 2);
  CHECK_FALSE(l.link.open());
  l.link.send(progress{}, l.out);
  CHECK(l.out.sent.size() == 1);  // not before the handshake
  CHECK(l.hears(r.out.sent[1]) == arrival::opened);
  CHECK(l.out.sent.size() == 1);  // heard: no answer
  CHECK(l.hears(r.out.sent[1]) == arrival::nothing);
  l.link.send(progress{}, l.out);
  CHECK(r.hears(l.out.sent.back()) == arrival::content);
}
TEST_CASE("an echo comes back once, with its stamp, and only after the handshake") {
  struct listening : inbox {
    std::vector<std::uint64_t> stamps = {};
    void echoed(std::uint64_t stamp) { stamps.push_back(stamp); }
  };
  end l(side::l), r(side::r);
  listening out;
  l.link.connected(out);
  r.link.connected(r.out);
  l.link.send(echo{7}, out);
  CHECK(out.sent.size() == 1);  // the hello alone
  message m;
  CHECK(l.link.receive(r.out.sent[0], m, out) == arrival::opened);
  CHECK(r.hears(out.sent.back()) == arrival::opened);
  l.link.send(echo{~std::uint64_t(0)}, out);
  CHECK(r.hears(out.sent.back()) == arrival::nothing);
  const auto answer = r.out.sent.back();
  CHECK(l.link.receive(answer, m, out) == arrival::nothing);
  CHECK(out.stamps == std::vector<std::uint64_t>{~std::uint64_t(0)});
  const std::size_t said = r.out.sent.size();
  CHECK(r.hears(answer) == arrival::nothing);  // an answer to nothing: no answer
  CHECK(r.out.sent.size() == said);
}
TEST_CASE("an end that starts with empty memory is known by its life, one that reconnects is not") {
  end l(side::l), r(side::r);
  const auto meet = [&](end& other) {
    l.link.disconnected();
    l.link.connected(l.out);
    other.link.connected(other.out);
    return l.hears(other.out.sent.back());
  };
  CHECK(meet(r) == arrival::opened);
  CHECK(meet(r) == arrival::opened);
  end again(side::r, 2);
  CHECK(meet(again) == arrival::reborn);
  CHECK(meet(again) == arrival::opened);
}
TEST_CASE("ends that differ refuse, both know why, and a new connection begins anew") {
  end l(side::l), r(side::r, 1, 6);
  l.link.connected(l.out);
  r.link.connected(r.out);
  CHECK(r.hears(l.out.sent[0]) == arrival::nothing);
  // what both print names the ends
  const std::string difference = "vocabulary: 5 on the device, 6 on the server";
  CHECK(r.link.problem() == difference);
  CHECK(l.hears(r.out.sent.back()) == arrival::nothing);
  CHECK(l.link.problem() == "refused by the other end: \"" + difference + '"');
  const std::size_t said = l.out.sent.size();
  CHECK(l.hears(r.out.sent[0]) == arrival::nothing);
  l.link.knock(l.out);
  l.link.send(progress{}, l.out);
  CHECK(l.out.sent.size() == said);
  l.link.connected(l.out);
  CHECK(l.link.problem().empty());
}
TEST_CASE("bytes that are no message end the connection, and the other end learns of it") {
  end l(side::l), r(side::r);
  l.link.connected(l.out);
  r.link.connected(r.out);
  l.hears(r.out.sent[0]);
  CHECK(l.hears(sealed({9, 9})) == arrival::nothing);
  CHECK(l.link.problem() == "message of 6 bytes: unknown kind");
  CHECK(r.hears(l.out.sent.back()) == arrival::nothing);
  CHECK(r.link.problem() == "refused by the other end: \"message of 6 bytes: unknown kind\"");
  CHECK(l.hears(r.out.sent[0]) == arrival::nothing);
}
TEST_CASE("a message that is damaged is as good as lost, and the sink hears of it") {
  struct listening : inbox {
    int hurt = 0;
    void damaged() { ++hurt; }
  };
  end l(side::l), r(side::r);
  listening out;
  l.link.connected(out);
  r.link.connected(r.out);
  std::vector<std::uint8_t> hurt = r.out.sent[0];
  hurt[hurt.size() / 2] ^= 1;
  message m;
  CHECK(l.link.receive(hurt, m, out) == arrival::nothing);
  CHECK(l.hears({}) == arrival::nothing);  // a sink that does not listen
  CHECK((out.hurt == 1 && l.link.problem().empty() && !l.link.open()));
  CHECK(l.link.receive(r.out.sent[0], m, out) == arrival::opened);
}
TEST_CASE("an end of a release without checksums is refused in words that it reads") {
  end l(side::l);
  l.link.connected(l.out);
  hello older = end::terms(side::r, 1, 5);
  older.version = 2;
  std::vector<std::uint8_t> bytes(most_message_bytes(older));
  bytes.resize(encode(older, older, bytes));
  CHECK(l.hears(bytes) == arrival::nothing);
  CHECK(l.link.problem().find("wrong version of the protocol (4 here, 2 there") !=
        std::string::npos);
  const auto& answer = l.out.sent.back();  // its kind, its length, its text
  CHECK((answer[0] == 5 && answer.size() == 2 + std::size_t(answer[1])));
}
TEST_CASE("a problem is one printable line, with any name and refusal of the other end") {
  const std::string hostile = "x\r\nsession 2: all is well\x1b[2J\xff\xe2\x80\xae";
  const std::string shown = "x\\x0d\\nsession 2: all is well\\x1b[2J\\xff\\u{202e}";
  const auto said = [&](const auto& m) {
    std::vector<std::uint8_t> bytes(4096);
    bytes.resize(encode(m, end::terms(side::l, 2, 5), bytes));
    return bytes;
  };
  end r(side::r);
  r.link.connected(r.out);
  r.hears(said(refusal{short_text(hostile)}));
  CHECK(r.link.problem() == "refused by the other end: \"" + shown + '"');
  r.link.connected(r.out);
  hello other = end::terms(side::l, 2, 5);
  other.sampling = short_text(hostile);
  r.hears(said(other));
  CHECK(r.link.problem() == "sampling: " + shown + " on the device,  on the server");
  message m;  // and so is what is sent back
  REQUIRE(decode(r.out.sent.back(), r.link.terms(), m) == wire::ok);
  CHECK(std::get<refusal>(m).reason.view() == r.link.problem());
}

namespace {

struct silent_sink {
  std::size_t actions = 0;
  void send(std::span<const std::uint8_t>) { ++actions; }
  void emit(std::uint32_t, token_id) { ++actions; }
  void aggregates(side) { ++actions; }
  void decode(const decode_order&) { ++actions; }
  void score(const score_order&) { ++actions; }
};

}  // namespace

TEST_CASE("a site of a hello that is out of range says so, and does nothing") {
  const std::array prompt{token_id(1), token_id(2)};
  const std::vector<std::function<void(hello&)>> spoil{
      [](hello& h) { h.look_ahead = 0; },
      [](hello& h) { h.look_ahead = std::uint32_t(most_tokens_in_message + 1); },
      [](hello& h) { h.codec.vocabulary = 0; },
      [](hello& h) { h.codec.vocabulary = std::size_t(1) << 40; },
      [](hello& h) { h.codec.top_p = std::nan(""); },
      [](hello& h) { h.real_bytes = 3; },
      [](hello& h) { h.most_tokens = 0; },
      [](hello& h) { h.end_of_text = -5; },
      [](hello& h) { h.kind = protocol(6); },
      [](hello& h) { h.from = side(7); },
      [](hello& h) { h.first = side(2); }};
  for (const auto& change : spoil) {
    silent_sink sink;
    const auto refuses = [&](auto&& site) {
      for (int connection = 0; connection < 2; ++connection) {
        site.start(sink);
        site.connected(sink);
        site.tick(sink);
        site.received(std::array<std::uint8_t, 3>{1, 2, 3}, sink);
        site.ping(1, sink);
        site.disconnected();
      }
      CHECK(site.problem() == "this end's hello is out of range");
      CHECK(site.text().size() == 2);
    };
    for (const protocol kind : {protocol::dragon, protocol::dsd, protocol::dssd}) {
      hello own = hello_for(8, side::l, kind);
      change(own);
      CHECK(!valid(own));
      if (kind == protocol::dragon) {
        refuses(dragon_site<float, shared_drafts>(own, prompt, shared_drafts{coupled_noise(1)}));
      } else {
        refuses(split_device<float>(own, prompt, random_streams(1)));
        refuses(split_server<float>(own, prompt, random_streams(1)));
      }
    }
    CHECK(sink.actions == 0);
  }
}
