// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/net/runner.hpp>

#include <condition_variable>
#include <deque>

#include "sites/net/two_ends.hpp"

namespace {

// Carries messages between two runners, on a thread of its own.
class cable {
 public:
  cable(std::shared_ptr<net::running_site> l, std::shared_ptr<net::running_site> r)
      : ends_{std::move(l), std::move(r)} {
    thread_ = std::thread([this] { carry(); });
  }
  ~cable() {
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    wake_.notify_all();
    thread_.join();
    unplug();
  }
  void plug() {
    const std::lock_guard between_messages(carrying_);
    for (std::size_t i = 0; i < 2; ++i) outlets_[i] = std::make_shared<plug_of>(*this, i);
    for (std::size_t i = 0; i < 2; ++i) ends_[i]->connected(outlets_[i]);
  }
  void unplug() {
    const std::lock_guard between_messages(carrying_);
    for (std::size_t i = 0; i < 2; ++i)
      if (outlets_[i]) ends_[i]->disconnected(outlets_[i].get());
    const std::lock_guard lock(mutex_);
    queue_.clear();
  }
  // Changes a message on its way.
  std::function<void(std::vector<std::uint8_t>&)> spoil = [](auto&) {};
  std::string closed(std::size_t end) {
    const std::lock_guard lock(mutex_);
    return closed_[end];
  }

 private:
  struct plug_of final : net::outlet {
    cable& all;
    std::size_t end;
    plug_of(cable& c, std::size_t e) : all(c), end(e) {}
    void send(std::span<const std::uint8_t> bytes) override {
      const std::lock_guard lock(all.mutex_);
      all.queue_.push_back({end, {bytes.begin(), bytes.end()}});
      all.wake_.notify_all();
    }
    void close(const std::string& why) override {
      const std::lock_guard lock(all.mutex_);
      all.closed_[end] = why;
    }
  };
  void carry() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait_for(lock, 5ms, [&] { return quit_ || !queue_.empty(); });
      if (quit_) return;
      if (queue_.empty()) {
        lock.unlock();
        for (const auto& e : ends_) e->tick();
        lock.lock();
        continue;
      }
      lock.unlock();
      deliver();
      lock.lock();
    }
  }
  void deliver() {
    const std::lock_guard one(carrying_);
    std::unique_lock lock(mutex_);
    if (queue_.empty()) return;
    auto [from, bytes] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    spoil(bytes);
    ends_[1 - from]->received(outlets_[1 - from].get(), bytes);
  }
  std::array<std::shared_ptr<net::running_site>, 2> ends_;
  std::array<std::shared_ptr<plug_of>, 2> outlets_;
  std::mutex carrying_, mutex_;  // in this order
  std::condition_variable wake_;
  std::deque<std::pair<std::size_t, std::vector<std::uint8_t>>> queue_;
  std::array<std::string, 2> closed_;
  bool quit_ = false;
  std::thread thread_;
};
bool finish(net::running_site& l, net::running_site& r) {
  return soon([&] { return l.finished() && r.finished(); });
}

}  // namespace

TEST_CASE("two runners on a cable say what the simulation says") {
  for (const protocol kind : {protocol::dragon, protocol::dragon_shared, protocol::dsd,
                              protocol::dsd_block, protocol::dssd, protocol::split_shared}) {
    const setting s = some_setting(40 + std::uint64_t(kind), kind, 3);
    const running_end l = run(s, side::l), r = run(s, side::r);
    cable c(l.site, r.site);
    c.plug();
    INFO(name(kind));
    REQUIRE(finish(*l.site, *r.site));
    CHECK(l.site->text() == text_due(s));
    CHECK(r.site->text() == text_due(s));
    CHECK(l.watch->out_of_order + r.watch->out_of_order == 0);
  }
}

TEST_CASE("a message that is damaged ends the connection, not the text, and was not heard") {
  for (const protocol kind : {protocol::dragon, protocol::dsd, protocol::dssd})
    for (const int how : {0, 1, 2}) {
      const setting s = some_setting(50 + std::uint64_t(kind), kind, 3, 40);
      const running_end l = run(s, side::l), r = run(s, side::r);
      cable c(l.site, r.site);
      std::atomic<int> carried = 0, spoilt = 0;
      c.spoil = [&](std::vector<std::uint8_t>& m) {
        if (++carried % 7 != 0 || spoilt >= 9) return;
        const int at = spoilt++;  // another place each time
        if (how == 0) m[std::size_t(at) * (m.size() - 1) / 8] ^= std::uint8_t(1 << at % 8);
        else if (how == 1) m.resize(std::size_t(at) * (m.size() - 1) / 8);
        else m.insert(m.end(), m.begin(), m.begin() + 1 + at);
      };
      INFO(name(kind) << how);
      REQUIRE(soon([&] {
        if (!l.site->online() || !r.site->online()) {
          c.unplug();
          c.plug();
        }
        return l.site->finished() && r.site->finished();
      }));
      CHECK(l.site->text() == text_due(s));
      CHECK(r.site->text() == text_due(s));
      CHECK((l.site->problem().empty() && r.site->problem().empty()));
      CHECK(spoilt > 2);
      CHECK(l.site->count().connections > std::size_t(spoilt.load()) / 2);
      CHECK(l.site->count().received + r.site->count().received + std::size_t(spoilt.load()) <=
            std::size_t(carried.load()));
      CHECK((c.closed(0) + c.closed(1)).find("damaged on the way") != std::string::npos);
    }
}

TEST_CASE("a decoding whose prefix is rejected is given up at once") {
  setting s = some_setting(7, protocol::dragon, 4, 20);
  s.how = scheduling::r;
  const running_end l = run(s, side::l, 1, [](toy_model& m) { m.seconds = 0.05; }),
                    r = run(s, side::r);
  cable c(l.site, r.site);
  c.plug();
  REQUIRE(finish(*l.site, *r.site));
  CHECK(l.site->text() == text_due(s));
  CHECK(l.model->stopped > 0);
  CHECK(int(l.site->count().given_up) >= l.model->stopped);
}

TEST_CASE("a device whose model is full drafts nothing more, and the text goes on") {
  for (const protocol kind :
       {protocol::dsd, protocol::dsd_block, protocol::dssd, protocol::split_shared}) {
    const setting s = some_setting(60 + std::uint64_t(kind), kind, 3);
    const running_end l = run(s, side::l, 1, [](toy_model& m) { m.fails_at = 10; }),
                      r = run(s, side::r);
    cable c(l.site, r.site);
    c.plug();
    INFO(name(kind));
    REQUIRE(finish(*l.site, *r.site));
    CHECK(l.site->text() == r.site->text());
    CHECK(l.site->problem().empty());
    // With the Gumbel-max coupling the tokens are the target's, for any drafts.
    if (kind == protocol::split_shared) CHECK(l.site->text() == text_due(s));
  }
}

TEST_CASE(
    "a model that fails, by status or exception, ends the connection at both ends and is named "
    "here only") {
  for (const bool throws : {false, true}) {
    const setting s = some_setting(8, protocol::dragon_shared, 2);
    const running_end l = run(s, side::l), r = run(s, side::r, 1, [&](toy_model& m) {
                                             m.fails_at = 10;
                                             m.throws = throws;
                                           });
    cable c(l.site, r.site);
    c.plug();
    const std::string due = throws ? "the model: the index is gone" : "the model: context_full";
    REQUIRE(soon([&] { return !r.site->problem().empty(); }));
    const std::string said = r.site->problem();
    CHECK((said == due || said == "the model: context full"));
    CHECK_FALSE(r.site->online());
    REQUIRE(soon([&] { return !l.site->problem().empty(); }));
    CHECK(l.site->problem() == "refused by the other end: \"the model of the other end fails\"");
    CHECK_FALSE(c.closed(1).empty());

    // Asked again at the next connection, when all is well.
    c.unplug();
    r.site->at_rest([&] { r.model->fails_at = ~std::size_t(0); });
    c.plug();
    REQUIRE(finish(*l.site, *r.site));
    CHECK(l.site->text() == text_due(s));
    CHECK(l.watch->out_of_order + r.watch->out_of_order == 0);
  }
}

TEST_CASE("a runner is destroyed while its model decodes, without waiting for it") {
  const setting s = some_setting(9, protocol::dragon, 4);
  const auto began = net::clock::now();
  {
    const running_end l = run(s, side::l, 1, [](toy_model& m) { m.seconds = 600; });
    REQUIRE(soon([&] { return l.model->seen > 0; }));
  }
  CHECK(seconds_since(began) < 60);
}

TEST_CASE("connections come and go while models decode: nothing is lost or said twice") {
  for (const protocol kind : {protocol::dragon, protocol::dssd}) {
    const setting s = some_setting(11, kind, 3, 40);
    const auto slow = [](toy_model& m) { m.seconds = 0.004; };
    const running_end l = run(s, side::l, 1, slow), r = run(s, side::r, 1, slow);
    for (int i = 0; i < 12; ++i) {
      cable c(l.site, r.site);
      c.plug();
      std::this_thread::sleep_for(20ms);
    }
    cable c(l.site, r.site);
    c.plug();
    REQUIRE(finish(*l.site, *r.site));
    CHECK(l.site->text() == text_due(s));
    CHECK(l.watch->out_of_order + r.watch->out_of_order == 0);
  }
}
