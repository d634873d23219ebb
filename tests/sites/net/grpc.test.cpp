// SPDX-License-Identifier: Apache-2.0
// Also what tests specagg/sites/net/grpc/: a server is seen by its clients.
#include <specagg/sites/net/grpc.hpp>

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include <specagg/sites/net/sessions.hpp>
#include <specagg/sites/net/transport.hpp>

#include "sites/net/two_ends.hpp"
#include "sites/sealed.hpp"
#include "support/sanitized.hpp"
#include "support/slow_link.hpp"

namespace {

const net::security open_to_all{.insecure = true};

// A server of toy sites: a session's number says which setting it is of.
class cloud {
 public:
  std::map<std::uint64_t, setting> settings;
  std::function<void(toy_model&)> change = {};
  std::atomic<int> made = 0;

  explicit cloud(std::vector<setting> all, const net::security& s = open_to_all,
                 net::limits l = small(), std::string address = "127.0.0.1:0")
      : sessions([this](const hello& h) { return known(h.session).at(side::r, ++lives_ + 100); },
                 [this](const hello& h) {
                   ++made;
                   const running_end e = run(known(h.session), side::r, h.life, change);
                   const std::lock_guard lock(mutex_);
                   ends_.push_back(e);
                   return e.site;
                 },
                 8, 60, [](net::running_site&, const hello&) {}),
        server(address, s, l, [this](const auto& out) { return sessions.accept(out); }),
        ticks_([this] {
          server.tick();
          sessions.tick();
        }) {
    for (setting& x : all) settings[x.terms.session] = std::move(x);
  }
  static net::limits small() {
    net::limits l;
    l.most_message_bytes = 8192, l.most_queued_bytes = 1 << 16;
    return l;
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(server.port()); }
  std::vector<running_end> ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }

 private:
  const setting& known(std::uint64_t session) const {
    const auto found = settings.find(session);
    if (found == settings.end()) throw error("session", "", "is unknown here");
    return found->second;
  }
  std::mutex mutex_;
  std::vector<running_end> ends_;
  std::atomic<std::uint64_t> lives_ = 0;

 public:
  net::sessions sessions;
  net::server server;

 private:
  every_so_often ticks_;
};

// A listener made of functions.
struct heard final : net::listener {
  std::function<void(std::span<const std::uint8_t>)> got;
  std::function<void()> over = [] {};
  void received(std::span<const std::uint8_t> bytes) override { got(bytes); }
  void closed(const std::string&) override { over(); }
};

// A device: connects again and again, as specagg's does.
class device {
 public:
  device(const setting& s, const std::string& address, const net::security& with = open_to_all,
         std::function<void(toy_model&)> change = {}, const net::limits& l = cloud::small())
      : end(run(s, side::l, 2, std::move(change))), due_(text_due(s)), client_(address, with, l) {}
  void go_on() {
    bool again;
    {
      const std::lock_guard lock(mutex_);
      again = over_;
      over_ = false;
    }
    if (again)
      client_.connect(
          [site = end.site](const auto& out) {
            auto l = std::make_shared<heard>();
            site->connected(out);
            l->got = [=](auto bytes) { site->received(out.get(), bytes); };
            l->over = [=] { site->disconnected(out.get()); };
            return l;
          },
          [this](const std::string& why) {
            const std::lock_guard lock(mutex_);
            over_ = true;
            why_ = why;
          });
    client_.tick();
    end.site->tick();
  }
  bool finished() { return end.site->finished() || !end.site->problem().empty(); }
  std::string why() {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  // The text is the one it must be, every token of it emitted once and in order.
  void check() {
    CHECK(end.site->problem() == "");
    CHECK(end.site->text() == due_);
    CHECK(end.watch->out_of_order == 0);
  }
  bool right() {
    return end.site->problem().empty() && end.site->text() == due_ && end.watch->out_of_order == 0;
  }
  void run_to_the_end(double seconds = 20) {
    CHECK(soon(
        [&] {
          go_on();
          return finished();
        },
        seconds));
    check();
  }
  const running_end end;

 private:
  const tokens due_;
  std::mutex mutex_;
  bool over_ = true;
  std::string why_;
  net::client client_;
};

// A peer that says what it likes.
class raw_peer {
 public:
  explicit raw_peer(const std::string& address, const net::security& with = open_to_all,
                    net::limits l = {.most_message_bytes = 64 << 20,
                                     .most_queued_bytes = 256 << 20,
                                     .messages_per_second = 1e6})
      : client_(address, with, l), ticks_([this] { client_.tick(); }) {
    client_.connect(
        [this](const auto& out) {
          auto l = std::make_shared<heard>();
          l->got = [this](auto bytes) {
            const std::lock_guard lock(mutex_);
            got_.emplace_back(bytes.begin(), bytes.end());
          };
          const std::lock_guard lock(mutex_);
          out_ = out;
          return l;
        },
        [this](const std::string& why) {
          const std::lock_guard lock(mutex_);
          over_ = true;
          why_ = why;
        });
  }
  bool connected() {
    return soon([&] {
             const std::lock_guard lock(mutex_);
             return out_ != nullptr || over_;
           }) &&
           !over();
  }
  void say(const std::vector<std::uint8_t>& bytes) {
    if (!connected()) return;
    std::shared_ptr<net::outlet> out;
    {
      const std::lock_guard lock(mutex_);
      out = out_;
    }
    out->send(bytes);
  }
  template <class M>
  void say(const M& m, const hello& terms) {
    std::vector<std::uint8_t> bytes(most_message_bytes(terms));
    bytes.resize(encode(m, terms, bytes));
    say(bytes);
  }
  bool over() {
    const std::lock_guard lock(mutex_);
    return over_;
  }
  // How the connection ended.
  std::string end() {
    if (!soon([&] { return over(); })) return "it did not end";
    const std::lock_guard lock(mutex_);
    return why_;
  }
  std::string refusal_heard() {
    const std::lock_guard lock(mutex_);
    for (const auto& bytes : got_) {
      message m;
      if (decode(bytes, hello{}, m) == wire::ok)
        if (const auto* r = std::get_if<refusal>(&m)) return std::string(r->reason.view());
    }
    return "none";
  }
  std::size_t messages() {
    const std::lock_guard lock(mutex_);
    return got_.size();
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<net::outlet> out_;
  std::vector<std::vector<std::uint8_t>> got_;
  bool over_ = false;
  std::string why_;
  net::client client_;
  every_so_often ticks_;
};

// Kilobytes of this process, now (VmRSS) or at most (VmHWM); nothing where a sanitizer keeps what
// was freed.
long memory([[maybe_unused]] const char* which) {
#if !SPECAGG_SANITIZED
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(which, 0) == 0) return std::stol(line.substr(line.find(':') + 1));
#endif
  return 0;
}

}  // namespace

TEST_CASE(
    "over gRPC the tokens of DRAGON are the simulation's, for every scheduler, noise and "
    "look-ahead") {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const setting s = some_setting(seed, seed / 8 % 2 ? protocol::dragon : protocol::dragon_shared,
                                   1 + std::uint32_t(seed % 8));
    cloud c({s});
    device d(s, c.address());
    INFO(seed);
    d.run_to_the_end();
    CHECK(soon([&] { return c.ends()[0].site->finished(); }));
    CHECK(c.ends()[0].site->text() == d.end.site->text());
  }
}

TEST_CASE("over gRPC the tokens of every way of split verification are the simulation's") {
  for (const protocol kind :
       {protocol::dsd, protocol::dsd_block, protocol::dssd, protocol::split_shared})
    for (const std::uint32_t gamma : {1u, 4u, 8u}) {
      const setting s = some_setting(60 + 4 * gamma + std::uint64_t(kind), kind, gamma);
      cloud c({s});
      device d(s, c.address());
      INFO(name(kind) << gamma);
      d.run_to_the_end();
    }
}

TEST_CASE("after any cut, nothing emitted is lost or said twice") {
  for (const protocol kind :
       {protocol::dragon, protocol::dragon_shared, protocol::dssd, protocol::dsd}) {
    const setting s = some_setting(80 + std::uint64_t(kind), kind, 4, 60);
    const auto slow = [](toy_model& m) { m.seconds = 0.01; };
    cloud c({s});
    c.change = slow;
    slow_link link(c.server.port(), slow_link::way{.delay = 0.005});
    device d(s, "127.0.0.1:" + std::to_string(link.port()), open_to_all, slow);
    auto last = net::clock::now();
    int cuts = 0;
    CHECK(soon([&] {
      if (seconds_since(last) > 0.15 && cuts < 8) {
        link.cut();
        ++cuts;
        last = net::clock::now();
      }
      d.go_on();
      return d.finished();
    }));
    INFO(name(kind) << " " << d.why());
    d.check();
    CHECK(cuts > 1);
    CHECK(d.end.watch->connections > 1);
    CHECK(c.made == 1);
    CHECK(c.ends()[0].watch->out_of_order == 0);
  }
}

TEST_CASE("a link that flips bits, loses or doubles pieces of the stream changes no text") {
  enum way { flip, lose, repeat };
  for (const auto& [kind, how] : {std::pair{protocol::dssd, flip},
                                  {protocol::dragon, flip},
                                  {protocol::dssd, lose},
                                  {protocol::dragon, repeat}}) {
    setting s = some_setting(140 + std::uint64_t(kind), kind, 4, 60);
    s.terms.codec = {.vocabulary = 12};  // full rows: most bytes are of them
    const auto slow = [](toy_model& m) { m.seconds = 0.01; };
    net::limits impatient = cloud::small();
    impatient.silence_seconds = 0.5;  // a lost piece leaves the other end waiting for bytes
    cloud c({s}, open_to_all, impatient);
    c.change = slow;
    slow_link link(c.server.port(), slow_link::way{});
    numbers n(7 + std::uint64_t(kind));
    std::size_t seen = 0;
    std::atomic<int> spoilt = 0;
    link.spoil([&, how = how](std::vector<char>& bytes) {
      if (++seen % 25 != 0 || spoilt >= 3) return;
      ++spoilt;
      const std::size_t at = n.below(bytes.size()), end = at + 1 + n.below(bytes.size() - at);
      const auto from = bytes.begin() + std::ptrdiff_t(at),
                 to = bytes.begin() + std::ptrdiff_t(end);
      const std::vector<char> piece(from, to);
      if (how == flip) *from = char(std::uint8_t(*from) ^ 1u << n.below(8));
      else if (how == lose) bytes.erase(from, to);
      else bytes.insert(to, piece.begin(), piece.end());
    });
    device d(s, "127.0.0.1:" + std::to_string(link.port()), open_to_all, slow, impatient);
    INFO(name(kind) << ", " << how);
    d.run_to_the_end(60);
    INFO(d.why());
    CHECK(spoilt > 0);
  }
}

TEST_CASE("a server that is gone and comes back with empty memory goes on with the text") {
  const setting s = some_setting(90, protocol::dragon_shared, 3, 40);
  const auto slow = [](toy_model& m) { m.seconds = 0.01; };
  auto first = std::make_unique<cloud>(std::vector{s});
  slow_link link(first->server.port(), slow_link::way{.delay = 0.002});
  device d(s, "127.0.0.1:" + std::to_string(link.port()), open_to_all, slow);
  REQUIRE(soon([&] {
    d.go_on();
    return d.end.site->text().size() > 10;
  }));
  first.reset();
  cloud second({s});
  link.serve_at(second.server.port());
  d.run_to_the_end();
  CHECK(second.made == 1);
}

TEST_CASE(
    "several devices at once, and a hostile one among them: their tokens come out unharmed and in "
    "time") {
  std::vector<setting> all;
  for (std::uint64_t i = 0; i < 4; ++i)
    all.push_back(some_setting(100 + i, i % 2 ? protocol::dssd : protocol::dragon, 4, 30));
  cloud c(all);
  c.change = [](toy_model& m) { m.seconds = 0.02; };
  std::vector<std::unique_ptr<device>> devices;
  for (const setting& s : all) devices.push_back(std::make_unique<device>(s, c.address()));
  std::atomic<bool> quit = false;
  std::atomic<int> attacks = 0;
  std::thread hostile([&] {
    numbers n(1);
    for (; !quit; ++attacks) {
      raw_peer p(c.address());
      for (int i = 0; i < 20; ++i) {
        std::vector<std::uint8_t> bytes(n.below(300));
        for (auto& b : bytes) b = std::uint8_t(n.word());
        p.say(bytes);
      }
      // A session of somebody else, by its number, with other terms.
      raw_peer thief(c.address());
      hello terms = all[0].at(side::l, 99);
      terms.most_tokens = 12;
      thief.say(terms, terms);
      thief.end();
    }
  });
  CHECK(soon([&] {
    bool finished = true;
    for (auto& d : devices) {
      d->go_on();
      finished &= d->finished();
    }
    return finished;
  }));
  quit = true;
  hostile.join();
  for (auto& d : devices) d->check();
  CHECK(attacks > 3);
  CHECK(c.made == 4);
}

TEST_CASE(
    "bytes that are no message of the protocol end the connection with the reason, and only that "
    "connection") {
  const setting s = some_setting(110, protocol::dragon, 4, 30);
  setting other = s;
  other.terms.session = 5;
  cloud c({s, other});
  c.change = [](toy_model& m) { m.seconds = 0.02; };
  device d(s, c.address());
  CHECK(soon([&] {
    d.go_on();
    return d.end.site->text().size() > s.prompt.size();
  }));
  const hello terms = other.at(side::l, 7);
  const auto refused = [&](const std::vector<std::uint8_t>& bytes, bool after_hello,
                           const std::string& why) {
    raw_peer p(c.address());
    if (after_hello) p.say(terms, terms);
    p.say(sealed(bytes));
    INFO(why);
    CHECK(p.end().find(why) != std::string::npos);
    CHECK(p.refusal_heard().find(why) != std::string::npos);
    d.go_on();
    CHECK(d.end.site->problem() == "");
  };
  refused({1, 1, 3}, false, "wrong version of the protocol (4 here, 1 there");
  refused({200, 1}, false, "unknown kind");
  refused(std::vector<std::uint8_t>(8000, 1), false, "oversized");
  refused({3, 0}, false, "truncated");
  refused({4, 0, 0, 0}, false, "no valid hello");
  refused({2, 0}, true, "truncated");
  refused({4, 0, 0, 0, 0}, true, "trailing bytes");
  refused({2, 255, 255, 127}, true, "oversized");
  refused({9}, true, "unknown kind");
  refused(std::vector<std::uint8_t>(8000, 4), true, "oversized");
  std::vector<std::uint8_t> bytes(4000);
  bytes.resize(encode(split_request{.start = 1}, terms, bytes) - checksum_bytes);
  refused(bytes, true, "another protocol");
  bytes.resize(4000);
  settled_text lie{.first = 0, .count = 1, .tokens = {1}};
  bytes.resize(encode(settled_text{.first = 0, .count = 1, .tokens = {0}}, terms, bytes));
  {
    raw_peer p(c.address());
    p.say(terms, terms);
    p.say(bytes);
    std::vector<std::uint8_t> twice(4000);
    twice.resize(encode(lie, terms, twice));
    p.say(twice);
    CHECK(p.end().find("token 0: 0 here, 1 there") != std::string::npos);
  }
  d.run_to_the_end();
}

TEST_CASE("what a peer refuses or closes with is one printable line at the other end") {
  const std::string hostile = "bye\nsession 2: all is well\x1b[2J";
  const std::string shown = "bye\\nsession 2: all is well\\x1b[2J";
  const setting s = some_setting(113, protocol::dssd, 4, 20);
  cloud c({s});
  raw_peer p(c.address());
  p.say(s.at(side::l, 7), s.terms);
  p.say(refusal{short_text(hostile)}, s.terms);
  CHECK(soon([&] { return c.ends().size() == 1 && !c.ends()[0].site->problem().empty(); }));
  CHECK(c.ends()[0].site->problem() == "refused by the other end: \"" + shown + '"');
  net::server rude("127.0.0.1:0", open_to_all, cloud::small(),
                   [&](const std::shared_ptr<net::outlet>& out) {
                     auto l = std::make_shared<heard>();
                     l->got = [=](auto) { out->close(hostile); };
                     return l;
                   });
  raw_peer q("127.0.0.1:" + std::to_string(rude.port()));
  q.say({1});
  CHECK(q.end() == shown);
}
TEST_CASE("a message beyond the limit is not taken into memory, and ends the connection") {
  const setting s = some_setting(111, protocol::dragon, 4, 20);
  cloud c({s});
  raw_peer p(c.address());
  p.say(s.at(side::l, 7), s.terms);
  p.say(std::vector<std::uint8_t>(32 << 20));
  CHECK(p.end() != "it did not end");
  device d(s, c.address());
  d.run_to_the_end();
}

TEST_CASE("old messages and stale epochs, said again and again, change nothing") {
  const setting s = some_setting(112, protocol::dragon, 4, 30);
  // What a device and a server say to each other, taken down.
  std::vector<std::vector<std::uint8_t>> said;
  {
    cloud c({s});
    std::mutex mutex;
    const running_end l = run(s, side::l);
    net::client client(c.address(), open_to_all, cloud::small());
    struct tap final : net::outlet {
      std::shared_ptr<net::outlet> to;
      std::function<void(std::span<const std::uint8_t>)> note;
      void send(std::span<const std::uint8_t> b) override {
        note(b);
        to->send(b);
      }
      void close(const std::string& why) override { to->close(why); }
    };
    client.connect(
        [&](const auto& out) {
          auto t = std::make_shared<tap>();
          t->to = out;
          t->note = [&](auto b) {
            const std::lock_guard lock(mutex);
            said.emplace_back(b.begin(), b.end());
          };
          auto h = std::make_shared<heard>();
          h->got = [&l, t](auto b) { l.site->received(t.get(), b); };
          h->over = [&l, t] { l.site->disconnected(t.get()); };
          l.site->connected(t);
          return h;
        },
        [](const std::string&) {});
    CHECK(soon([&] {
      l.site->tick();
      client.tick();
      return l.site->finished();
    }));
    client.close("done");
  }
  REQUIRE(said.size() > 10);
  // A new session of the same terms, in which every message of the old life is replayed, several
  // times.
  cloud c({s});
  raw_peer p(c.address());
  for (int i = 0; i < 3; ++i)
    for (const auto& m : said) p.say(m);
  std::this_thread::sleep_for(200ms);
  device d(s, c.address());  // takes the session over
  d.run_to_the_end();
  CHECK(c.made == 1);
  CHECK(c.ends()[0].watch->out_of_order == 0);
}

TEST_CASE("a peer that connects and never speaks is sent away, and so is one that stops") {
  const setting s = some_setting(113, protocol::dragon, 4, 20);
  net::limits l = cloud::small();
  l.silence_seconds = 0.5;
  cloud c({s}, open_to_all, l);
  raw_peer silent(c.address()), stops(c.address());
  stops.say(s.at(side::l, 7), s.terms);
  CHECK(silent.end() == "nothing was heard for too long");
  CHECK(stops.end() == "nothing was heard for too long");
  CHECK(soon([&] { return c.server.connections() == 0; }));
  device d(s, c.address());
  d.run_to_the_end();
}

TEST_CASE("a device is not silent while its session takes long to be made") {
  const setting s = some_setting(122, protocol::dragon, 4, 12);
  net::limits l = cloud::small();
  l.silence_seconds = 0.4;
  cloud c({s}, open_to_all, l);
  c.change = [](toy_model&) { std::this_thread::sleep_for(1200ms); };
  device d(s, c.address());
  d.run_to_the_end();
  CHECK(d.end.watch->connections == 1);
}

TEST_CASE("a server that takes the connection and never answers is left") {
  net::server mute("127.0.0.1:0", open_to_all, {}, [](const auto&) {
    auto h = std::make_shared<heard>();
    h->got = [](auto) {};
    return h;
  });
  net::limits l;
  l.silence_seconds = 0.3;
  raw_peer p("127.0.0.1:" + std::to_string(mute.port()), open_to_all, l);
  CHECK(p.end() != "it did not end");
}

TEST_CASE(
    "a flood is read as slowly as the limit says, in bounded memory, and the others do not drown") {
  const setting s = some_setting(114, protocol::dragon_shared, 4, 30),
                flooded = some_setting(115, protocol::dragon, 2);
  net::limits l = cloud::small();
  l.messages_per_second = 2000;
  cloud c({s, flooded}, open_to_all, l);
  const hello terms = flooded.at(side::l, 7);
  raw_peer p(c.address());
  p.say(terms, terms);
  const long before = memory("VmRSS");
  std::atomic<bool> quit = false;
  std::thread flood([&] {
    while (!quit) {
      for (int i = 0; i < 100; ++i) {
        p.say(echo{1, false}, terms);
        p.say(progress{}, terms);
        p.say(terms, terms);
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  std::this_thread::sleep_for(500ms);
  device d(s, c.address());
  d.run_to_the_end();
  std::this_thread::sleep_for(500ms);
  quit = true;
  flood.join();
  const running_end at_server = c.ends()[0];
  const double rate = double(at_server.site->count().received);
  CHECK(rate > 100);
  CHECK(memory("VmRSS") - before < 400 << 10);  // what the flooder itself queues is in it: 256 MB
}

namespace {
// A peer that writes and never reads, and may compress.
struct deaf_peer {
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  grpc::GenericStub stub;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
  explicit deaf_peer(const std::string& address, bool compress = false)
      : stub([&] {
          grpc::ChannelArguments a;
          a.SetMaxSendMessageSize(-1);
          a.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
          a.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
          return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), a);
        }()) {
    if (compress) context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    call = stub.PrepareCall(&context, net::detail::method, &queue);
    call->StartCall(this);
    CHECK(next());
  }
  ~deaf_peer() {
    context.TryCancel();
    grpc::Status s;
    call->Finish(&s, this);
    next();
    queue.Shutdown();
  }
  bool next() {
    void* tag = nullptr;
    bool ok = false;
    const auto until = std::chrono::system_clock::now() + 10s;
    return queue.AsyncNext(&tag, &ok, until) == grpc::CompletionQueue::GOT_EVENT && ok;
  }
  bool say(const grpc::ByteBuffer& bytes) {
    call->Write(bytes, this);
    return next();
  }
  template <class M>
  bool say(const M& m, const hello& terms) {
    std::vector<std::uint8_t> bytes(most_message_bytes(terms));
    const grpc::Slice slice(bytes.data(), encode(m, terms, bytes));
    return say(grpc::ByteBuffer(&slice, 1));
  }
};
}  // namespace

TEST_CASE(
    "towards a peer that never reads so much is queued and no more. It can be sent away, and the "
    "server ends") {
  const setting s = some_setting(116, protocol::dragon, 4, 30),
                deaf = some_setting(117, protocol::dragon, 2);
  net::limits l = cloud::small();
  l.messages_per_second = 1e6;
  l.silence_seconds = 1;
  cloud c({s, deaf}, open_to_all, l);
  const hello terms = deaf.at(side::l, 7);
  deaf_peer p(c.address());
  REQUIRE(p.say(terms, terms));
  const long before = memory("VmRSS");
  for (int i = 0; i < 20000; ++i) REQUIRE(p.say(echo{~0ull, false}, terms));
  CHECK(memory("VmRSS") - before < 30 << 10);
  {
    device d(s, c.address());
    d.run_to_the_end();
  }
  CHECK(soon([&] { return c.server.connections() == 1; }));
  // It is silent now. Its connection is closed, which it does not read either: then it is cut.
  CHECK(soon([&] { return c.server.connections() == 0; }));
}

TEST_CASE("a small message that would inflate to a large one is not inflated") {
  const setting s = some_setting(118, protocol::dragon, 4, 20);
  net::limits l = cloud::small();
  l.most_message_bytes = 1 << 20;  // compressed, it is of 130 kB
  cloud c({s}, open_to_all, l);
  const std::vector<std::uint8_t> zeros(1 << 20);
  const std::vector<grpc::Slice> slices(128, grpc::Slice(zeros.data(), zeros.size()));
  deaf_peer p(c.address(), true);
  const long before = memory("VmHWM");
  p.say(grpc::ByteBuffer(slices.data(), slices.size()));
  CHECK(soon([&] { return c.server.connections() == 0; }));
  CHECK(memory("VmHWM") - before < 60 << 10);
  CHECK(c.made == 0);
  device d(s, c.address());
  d.run_to_the_end();
}

TEST_CASE("a listener that throws loses its connection, and nothing else") {
  std::atomic<int> accepted = 0, closed = 0;
  net::server server("127.0.0.1:0", open_to_all, {},
                     [&](const auto&) -> std::shared_ptr<net::listener> {
                       if (++accepted == 2) throw std::runtime_error("nobody is here");
                       auto h = std::make_shared<heard>();
                       h->got = [](auto) { throw std::runtime_error("a secret"); };
                       h->over = [&] {
                         ++closed;
                         throw std::runtime_error("and again");
                       };
                       return h;
                     });
  const std::string address = "127.0.0.1:" + std::to_string(server.port());
  {
    raw_peer p(address);
    p.say({1, 2, 3});
    CHECK(p.end() == "an error at the other end");
  }
  CHECK(raw_peer(address).end() == "nobody listens");
  raw_peer p(address);
  p.say({1});
  CHECK(p.end() == "an error at the other end");
  CHECK(soon([&] { return closed == 2 && server.connections() == 0; }));
}

TEST_CASE("server and client are destroyed with connections open and messages on their way") {
  const setting s = some_setting(119, protocol::dragon, 4, 2000);
  for (int i = 0; i < 8; ++i) {
    auto c = std::make_unique<cloud>(std::vector{s});
    auto d = std::make_unique<device>(s, c->address());
    raw_peer silent(c->address());
    CHECK(silent.connected());
    const std::size_t size = 10 + std::size_t(i) * 10;
    CHECK(soon([&] {
      d->go_on();
      return d->end.site->text().size() > size;
    }));
    const auto began = net::clock::now();
    if (i % 2) {
      c.reset();
      d.reset();
    } else {
      d.reset();
      c.reset();
    }
    CHECK(seconds_since(began) < 10);
  }
}

TEST_CASE("there are so many connections and no more") {
  net::limits l = cloud::small();
  l.most_connections = 3;
  const setting s = some_setting(120, protocol::dragon, 4, 20);
  cloud c({s}, open_to_all, l);
  {
    raw_peer a(c.address()), b(c.address()), d(c.address());
    CHECK((a.connected() && b.connected() && d.connected()));
    CHECK(raw_peer(c.address()).end() == "there are too many connections");
  }
  CHECK(soon([&] { return c.server.connections() == 0; }));
  device d(s, c.address());
  d.run_to_the_end();
}

TEST_CASE("where nobody listens, or something that is no server does, the client is told") {
  CHECK(raw_peer("127.0.0.1:1").end().find("failed to connect") != std::string::npos);
  const std::string file =
      std::filesystem::temp_directory_path() / ("specagg-" + std::to_string(getpid()));
  const setting s = some_setting(121, protocol::dragon, 4, 20);
  cloud c({s}, open_to_all, cloud::small(), "unix:" + file);
  device d(s, "unix:" + file);
  d.run_to_the_end();
  const cloud taken({s});
  CHECK_THROWS_WITH(net::server(taken.address(), open_to_all, {}, nullptr),
                    taken.address() + ": cannot be listened to (in use, or no such address)");
  const auto nowhere = [](const std::string& address, const std::string& why) {
    CHECK_THROWS_WITH(net::server(address, open_to_all, {}, nullptr), address + ": " + why);
    CHECK_THROWS_AS(net::client(address, open_to_all, {}), error);
  };
  for (const std::string port :
       {"99999", "65536", "4294967296", "-1", "abc", "", "80x", " 80", "0x50"})
    nowhere("127.0.0.1:" + port, "port: \"" + port + "\" is no number from 0 to 65535");
  for (const std::string address : {"127.0.0.1", "", "[::1]", "::1:7411", ":7411", "unix"})
    nowhere(address, "is neither HOST:PORT, [IPV6]:PORT nor unix:PATH");
  CHECK_THROWS_AS(net::client("127.0.0.1:0", open_to_all, {}), error);
  CHECK_THROWS_AS(net::server("127.0.0.1:0", {.insecure = true, .token = "two words"}, {}, nullptr),
                  error);
  CHECK_THROWS_AS(net::client("127.0.0.1:0", {.insecure = true, .token = "a\nb"}, {}), error);
}

// ---- TLS ----------------------------------------------------------------------------------------

namespace {

// Two authorities, each with a certificate for localhost.
struct certificates {
  std::string folder = (std::filesystem::temp_directory_path() / "specagg-tls-XXXXXX").string();
  certificates() {
    REQUIRE(mkdtemp(folder.data()));
    for (const std::string ca : {"a", "b"}) {
      const auto shell = [&](const std::string& command) {
        REQUIRE(std::system(("cd " + folder + " && openssl " + command + " >>log 2>&1").c_str()) ==
                0);
      };
      const std::string key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";
      shell("req -x509 " + key + "-days 2 -subj /CN=" + ca + " -keyout " + ca + ".ca.key -out " +
            ca + ".ca.pem");
      for (const std::string who : {"server", "client"}) {
        const std::string name = ca + "." + who;
        std::ofstream(folder + "/" + name + ".ext")
            << "subjectAltName=DNS:localhost,IP:127.0.0.1\n";
        shell("req " + key + "-subj /CN=" + who + " -keyout " + name + ".key -out " + name +
              ".csr");
        shell("x509 -req -days 2 -in " + name + ".csr -CA " + ca + ".ca.pem -CAkey " + ca +
              ".ca.key -CAcreateserial -extfile " + name + ".ext -out " + name + ".pem");
      }
    }
  }
  ~certificates() { std::filesystem::remove_all(folder); }
  std::string operator()(const std::string& name) const {
    std::ifstream file(folder + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};
bool openssl_is_here() {
  if (std::system("openssl version >/dev/null 2>&1") == 0) return true;
  WARN("skipped: there is no openssl to make certificates with");
  return false;
}

void gets_nothing(cloud& c, const setting& s, const net::security& with, const std::string& why) {
  raw_peer p(c.address(), with);
  p.say(s.at(side::l, 7), s.terms);
  const std::string said = p.end();
  INFO(said);
  CHECK(said.find(why) != std::string::npos);
  CHECK(p.messages() == 0);
  CHECK(c.made == 0);
  CHECK(c.server.connections() == 0);
}

}  // namespace

TEST_CASE(
    "TLS, mutual TLS and tokens: who has what is due is served, anybody else gets nothing and is "
    "told why") {
  if (!openssl_is_here()) return;
  const certificates pem;
  const setting s = some_setting(130, protocol::dragon, 4, 20);
  const net::security tls{
      .certificate = pem("a.server.pem"), .key = pem("a.server.key"), .token = "secret"};
  net::security mutual = tls;
  mutual.authority = pem("a.ca.pem");
  mutual.token.clear();
  const net::security right{.authority = pem("a.ca.pem"), .token = "secret"};
  const net::security known{
      .certificate = pem("a.client.pem"), .key = pem("a.client.key"), .authority = pem("a.ca.pem")};
  for (const bool both : {false, true}) {
    cloud c({s}, both ? mutual : tls);
    const auto nothing = [&](const net::security& with, const std::string& why) {
      gets_nothing(c, s, with, why);
    };
    const std::string no_connection = "failed to connect";
    nothing(open_to_all, "the server hangs up: it may want TLS");
    if (both) {
      net::security other = known;
      other.certificate = pem("b.client.pem");
      other.key = pem("b.client.key");
      nothing(right, no_connection);  // no certificate
      nothing(right, "it may want a certificate of this end (mutual TLS)");
      nothing(other, no_connection);  // somebody else's
      nothing(other, "its authority may not have signed this end's certificate");
      other = known;
      other.authority = pem("b.ca.pem");
      nothing(other, no_connection);
      nothing(other, "the authority has not signed the server's certificate");
    } else {
      net::security other = right;
      other.authority = pem("b.ca.pem");
      nothing(other, no_connection);  // the server is not who it should be
      nothing(other, "the authority has not signed the server's certificate");
      other.authority.clear();
      nothing(other, "none of the system's authorities has signed the server's certificate");
      other = right;
      other.token = "secres";
      nothing(other, "the token is missing or wrong");
      other.token = "secretsecret";
      nothing(other, "the token is missing or wrong");
      other.token.clear();
      nothing(other, "the token is missing or wrong");
    }
    device d(s, c.address(), both ? known : right);
    d.run_to_the_end();
    CHECK(c.made == 1);
  }
  cloud plain({s});
  CHECK(raw_peer(plain.address(), right).end().starts_with("the server does not speak TLS ("));
}
TEST_CASE(
    "credentials that cannot be used are refused at both ends, with what is wrong with which of "
    "them") {
  if (!openssl_is_here()) return;
  const certificates pem;
  REQUIRE(std::system(("cd " + pem.folder +
                       " && openssl ec -in a.client.key -aes128 -passout pass:x -out locked.key "
                       ">>log 2>&1")
                          .c_str()) == 0);
  const net::security good{
      .certificate = pem("a.server.pem"), .key = pem("a.server.key"), .authority = pem("a.ca.pem")};
  const net::server works("127.0.0.1:0", good, {}, nullptr);
  const auto refused = [&](auto change, const std::string& why) {
    net::security s = good;
    change(s);
    CHECK_THROWS_WITH(net::server("127.0.0.1:0", s, {}, nullptr), why);
    CHECK_THROWS_WITH(net::client("127.0.0.1:1", s, {}), why);
  };
  using security = net::security;
  const std::string no_pair =
      "the certificate and the key: do not belong together, or one of them is damaged";
  refused([&](security& s) { s.key = pem("b.server.key"); }, no_pair);
  refused([&](security& s) { s.key.replace(s.key.find('\n') + 5, 20, std::string(20, '*')); },
          no_pair);
  refused(
      [&](security& s) {
        s.certificate.replace(s.certificate.find('\n') + 5, 20, std::string(20, '*'));
      },
      no_pair);
  refused(
      [&](security& s) {
        s.authority.replace(s.authority.find('\n') + 5, 20, std::string(20, '*'));
      },
      "the authority: is damaged: no certificate can be read from it");
  refused([](security& s) { s.key = s.certificate; },
          "the key: has a certificate and no private key");
  refused([](security& s) { s.certificate = s.key; },
          "the certificate: has a private key and no certificate");
  refused([](security& s) { s.authority = "-----BEGIN X-----"; },
          "the authority: has no certificate");
  refused([](security& s) { s.authority = "none"; },
          "the authority: is no PEM text (there is no line -----BEGIN ...-----)");
  refused([](security& s) { s.certificate.resize(s.certificate.size() - 30); },
          "the certificate: is cut off");
  refused([&](security& s) { s.key = pem("locked.key"); },
          "the key: is protected by a passphrase, which cannot be asked for here: write the key "
          "without one");
  const net::security damaged{.authority = [&] {
    std::string text = good.authority;
    return text.replace(text.find('\n') + 5, 20, std::string(20, '*'));
  }()};
  CHECK(raw_peer("127.0.0.1:1", damaged).end().starts_with("the authority is damaged"));
}
