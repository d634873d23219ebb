// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/net/sessions.hpp>

#include "sites/net/two_ends.hpp"
#include "sites/sealed.hpp"

namespace {

// The end of a connection at the server: what was sent, and why it was closed.
struct recorded final : net::outlet {
  std::mutex mutex;
  std::vector<std::vector<std::uint8_t>> sent;
  std::string closed;
  void send(std::span<const std::uint8_t> bytes) override {
    const std::lock_guard lock(mutex);
    sent.emplace_back(bytes.begin(), bytes.end());
  }
  void close(const std::string& why) override {
    const std::lock_guard lock(mutex);
    if (closed.empty()) closed = why;
  }
  std::string why() {
    const std::lock_guard lock(mutex);
    return closed;
  }
  std::size_t messages() {
    const std::lock_guard lock(mutex);
    return sent.size();
  }
};
struct connection {
  std::shared_ptr<recorded> out = std::make_shared<recorded>();
  std::shared_ptr<net::listener> in;
  explicit connection(net::sessions& all) : in(all.accept(out)) {}
  template <class M>
  void say(const M& m, const hello& terms) {
    std::vector<std::uint8_t> bytes(most_message_bytes(terms));
    bytes.resize(encode(m, terms, bytes));
    in->received(bytes);
  }
  void hang_up() { in->closed("over"); }
};
hello named(std::uint64_t session) {
  setting s = some_setting(3, protocol::dragon_shared, 2, 9);
  s.terms.session = session;
  return s.at(side::l, 5);
}
// Counts what it makes and what ends.
struct counted {
  std::atomic<int> made = 0, ended = 0;
  std::function<void(const hello&)> before_making = [](const hello&) {};
  std::vector<running_end> all;
  std::mutex mutex;
  net::sessions sessions;
  counted(std::size_t most, double keep)
      : sessions(
            [](const hello& h) {
              hello mine = named(h.session);
              mine.from = side::r;
              return mine;
            },
            [this](const hello& h) {
              before_making(h);
              setting s = some_setting(3, protocol::dragon_shared, 2, 9);
              s.terms.session = h.session;
              ++made;
              const std::lock_guard lock(mutex);
              all.push_back(run(s, side::r));
              return all.back().site;
            },
            most, keep, [this](net::running_site&, const hello&) { ++ended; }) {}
};

}  // namespace

TEST_CASE(
    "nobody gets a session who does not begin with a valid hello, and nothing is made for him") {
  counted c(4, 60);
  const auto refused = [&](const std::vector<std::uint8_t>& bytes, const std::string& why) {
    connection x(c.sessions);
    x.in->received(bytes);
    CHECK(x.out->why() == why);
    REQUIRE(x.out->messages() == 1);  // a refusal
    message m;
    REQUIRE(decode(x.out->sent[0], hello{}, m) == wire::ok);
    CHECK(std::get<refusal>(m).reason.view() == why);
    x.say(named(1), named(1));  // too late
    CHECK(x.out->messages() == 1);
    CHECK(c.sessions.size() == 0);
  };
  const hello terms = named(1);
  std::vector<std::uint8_t> good(most_message_bytes(terms));
  good.resize(encode(terms, terms, good));
  const std::vector<std::uint8_t> body(good.begin(), good.end() - checksum_bytes);
  refused(sealed({0xff, 0xff, 0xff}), "the first message: truncated");
  refused(sealed({0x63}), "the first message: unknown kind");
  refused(sealed(std::vector<std::uint8_t>(100000, 1)), "the first message: oversized");
  auto bytes = body;
  bytes.pop_back();
  refused(sealed(bytes), "the first message: truncated");
  bytes = body;
  bytes.push_back(0);
  refused(sealed(bytes), "the first message: trailing bytes");
  const auto version = [](const std::string& there) {
    return "the first message: wrong version of the protocol (4 here, " + there +
           " there: both ends need releases that speak the same)";
  };
  bytes = body;
  bytes[1] = 9;
  refused(sealed(bytes), version("9"));
  bytes[1] = 2;  // without a checksum, as that version was
  refused(bytes, version("2"));
  refused(sealed({4, 0, 0, 0}), "the first message is no valid hello");  // content before hello
  refused(sealed({8, 1, 0}), "the first message is no valid hello");
  hello other = terms;
  other.look_ahead = 0;
  bytes.assign(500, 0);
  bytes.resize(encode(other, other, bytes));
  refused(bytes, "the first message is no valid hello");
  other = terms;
  other.seed_hash ^= 1;
  bytes.assign(500, 0);
  bytes.resize(encode(other, other, bytes));
  refused(bytes, "seed: device and server have different ones (--seed of their commands)");
  other = terms;
  other.from = side::r;
  bytes.assign(500, 0);
  bytes.resize(encode(other, other, bytes));
  refused(bytes, "side: both ends are the server");
  CHECK(c.made == 0);
  CHECK(c.ended == 0);
}

TEST_CASE("a device whose first message is damaged is sent away without a refusal, to try again") {
  counted c(4, 60);
  const hello terms = named(1);
  std::vector<std::uint8_t> hurt(most_message_bytes(terms));
  hurt.resize(encode(terms, terms, hurt));
  hurt[hurt.size() / 2] ^= 1;
  for (const auto& bytes : {hurt, std::vector<std::uint8_t>()}) {
    connection x(c.sessions);
    x.in->received(bytes);
    CHECK(x.out->why() == "the first message was damaged on the way");
    CHECK(x.out->messages() == 0);
  }
  CHECK(c.made == 0);
}

TEST_CASE("there are so many sessions, and one without a connection makes room") {
  counted c(2, 60);
  connection a(c.sessions), b(c.sessions), late(c.sessions);
  a.say(named(1), named(1));
  b.say(named(2), named(2));
  late.say(named(3), named(3));
  CHECK(late.out->why() == "there are too many sessions");
  CHECK(late.out->messages() == 0);  // no refusal, which would end the device
  CHECK(c.sessions.size() == 2);
  CHECK(a.out->why().empty());
  a.hang_up();
  std::this_thread::sleep_for(1100ms);
  connection again(c.sessions);
  again.say(named(3), named(3));
  CHECK(again.out->why().empty());
  CHECK(c.sessions.size() == 2);
  CHECK(c.made == 3);
  CHECK(c.ended == 1);
  connection back(c.sessions);  // its place is taken, and the others are here
  back.say(named(1), named(1));
  CHECK(back.out->why() == "there are too many sessions");
  for (connection* x : {&b, &again}) x->hang_up();
}

TEST_CASE("a session is kept for its time without a connection, and with one for ever") {
  counted c(4, 0.2);
  connection a(c.sessions), b(c.sessions);
  a.say(named(1), named(1));
  b.say(named(2), named(2));
  a.hang_up();
  const every_so_often ticks([&] { c.sessions.tick(); });
  CHECK(soon([&] { return c.ended == 1; }));
  std::this_thread::sleep_for(400ms);
  CHECK(c.sessions.size() == 1);
  CHECK(c.ended == 1);
  CHECK(b.out->why().empty());
  b.hang_up();
  CHECK(soon([&] { return c.sessions.size() == 0 && c.ended == 2; }));
}

TEST_CASE(
    "of two connections of one session the newer stays. Other terms under its name do not disturb "
    "it") {
  counted c(4, 60);
  connection older(c.sessions), newer(c.sessions), thief(c.sessions);
  older.say(named(1), named(1));
  newer.say(named(1), named(1));
  CHECK(older.out->why() == "another connection of this session was made");
  CHECK(newer.out->why().empty());
  hello other = named(1);
  other.most_tokens = 8;
  thief.say(other, other);
  CHECK(thief.out->why() == "most tokens: 8 on the device, 9 on the server");
  CHECK(newer.out->why().empty());
  CHECK(c.made == 1);
  const std::size_t before = older.out->messages();
  older.say(progress{}, named(1));  // not listened to
  older.hang_up();                  // and not the newer one's end
  CHECK(older.out->messages() == before);
  const std::size_t answered = newer.out->messages();
  newer.say(echo{5, false}, named(1));
  CHECK(newer.out->messages() == answered + 1);
  newer.hang_up();
}

TEST_CASE("a session that cannot be made is refused with the reason, and may be tried again") {
  counted c(1, 60);
  c.before_making = [](const hello&) { throw std::runtime_error("no memory for it"); };
  connection a(c.sessions);
  a.say(named(1), named(1));
  CHECK(a.out->why() == "no memory for it");
  CHECK(c.sessions.size() == 0);
  c.before_making = [](const hello&) {};
  connection b(c.sessions);
  b.say(named(1), named(1));
  CHECK(b.out->why().empty());
  CHECK(c.sessions.size() == 1);
  b.hang_up();
}

TEST_CASE(
    "a device that comes back while its session is being made is not refused, only sent away") {
  counted c(2, 60);
  std::atomic<bool> go_on = false, begun = false;
  c.before_making = [&](const hello&) {
    begun = true;
    soon([&] { return go_on.load(); });
  };
  connection first(c.sessions), second(c.sessions);
  std::thread slow([&] { first.say(named(1), named(1)); });
  CHECK(soon([&] { return begun.load(); }));
  second.say(named(1), named(1));
  CHECK(second.out->messages() == 0);  // a refusal would be the end of its text
  CHECK(second.out->why() == "the session is just being made: try again");
  go_on = true;
  slow.join();
  connection third(c.sessions);
  third.say(named(1), named(1));
  CHECK(third.out->why().empty());
  CHECK(c.made == 1);
  third.hang_up();
}

TEST_CASE("many connections at once, of few sessions: none is made twice") {
  counted c(8, 60);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i < 50; ++i) {
        connection x(c.sessions);
        x.say(named(i % 4), named(i % 4));
        x.say(echo{i, false}, named(i % 4));
        c.sessions.tick();
        x.hang_up();
      }
    });
  for (auto& t : threads) t.join();
  CHECK(c.made == 4);
  CHECK(c.sessions.size() == 4);
}

TEST_CASE(
    "a session does not end between the hello of its device and the connection, even if none is "
    "kept") {
  struct slow_to_connect final : net::running_site {
    std::function<void()> meanwhile;
    bool here = false;
    void connected(std::shared_ptr<net::outlet>) override {
      meanwhile();
      here = true;
    }
    void disconnected(const net::outlet*) override { here = false; }
    bool online() override { return here; }
    void received(const net::outlet*, std::span<const std::uint8_t>) override {}
    void tick() override {}
    bool finished() override { return false; }
    std::string problem() override { return {}; }
    std::vector<token_id> text() override { return {}; }
    net::counters count() override { return {}; }
    double round_trip() override { return 0; }
    void at_rest(const std::function<void()>& f) override { f(); }
  };
  int ended = 0;
  const auto site = std::make_shared<slow_to_connect>();
  net::sessions all(
      [](hello h) {
        h.from = side::r;
        return h;
      },
      [&](const hello&) { return site; }, 4, 0, [&](net::running_site&, const hello&) { ++ended; });
  site->meanwhile = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    all.tick();
    CHECK(all.size() == 1);
  };
  for (int i = 0; i < 2; ++i) {  // made, and come back to
    connection device(all);
    device.say(named(7), named(7));
    all.tick();
    CHECK((site->here && all.size() == 1 && ended == 0));
    device.hang_up();
    if (i == 0) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    all.tick();
    CHECK((all.size() == 0 && ended == 1));
  }
}
