// SPDX-License-Identifier: Apache-2.0
// specagg dragon serve and dssd serve.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <specagg/thread_pool.hpp>

#include "files.hpp"
#include "site_ends.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using namespace specagg::sites;
using namespace std::chrono_literals;

// gRPC makes threads as it goes, and where it cannot, it loses what they were to do: a connection
// falls silent, and gRPC's end waits for it for ever. So a session is refused that leaves no room
// for so many more threads,
constexpr unsigned threads_of_grpc = 8;
// and this thread, made in time, ends the program if gRPC has not ended 5 seconds after it was told
// to.
class way_out {
 public:
  explicit way_out(std::function<void()> last_words) : last_words_(std::move(last_words)) {
    try {
      thread_ = std::thread([this] { watch(); });
    } catch (const std::system_error& e) {
      throw error("serve", "", "no thread can be made (" + printable(e.what()) + ")");
    }
  }
  ~way_out() {
    told(over_);
    thread_.join();
  }
  void from_now() { told(ends_); }

 private:
  void told(bool& what) {
    const std::lock_guard lock(mutex_);
    what = true;
    changed_.notify_all();
  }
  void watch() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ends_ || over_; });
    if (changed_.wait_for(lock, 5s, [&] { return over_; })) return;
    last_words_();
    std::fputs(
        "specagg: serve: gRPC does not end (too little memory, or too few threads?): left as it "
        "is\n",
        stderr);
    std::_Exit(2);
  }
  const std::function<void()> last_words_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false, over_ = false;
  std::thread thread_;
};

// What the sessions share.
struct shared_by_sessions {
  const two_sites_options& o;
  std::shared_ptr<site_maker> library;
  std::shared_ptr<trace_file> trace;
  std::uint64_t vocabulary, tokenization;  // hashes
  std::mutex mutex = {};
  std::map<std::uint64_t, running> all = {};
  std::mutex makes = {};  // sessions are made by turns: see below
};

// The terms of a session; throws specagg::error where those proposed cannot be had.
hello agreed(const shared_by_sessions& s, const hello& proposed) {
  const two_sites_options& o = s.o;
  if (o.dragon != (proposed.kind <= protocol::dragon_shared))
    throw error("protocol", "",
                fmt::format("this is a server of {}", o.dragon ? "dragon" : "dssd"));
  if (proposed.most_tokens > o.site.most)
    throw error("most tokens", "",
                fmt::format("{} there, {} at most here", proposed.most_tokens, o.site.most));
  hello terms = proposed;
  terms.from = side::r;
  terms.heard = false;
  terms.life = random_bits();
  terms.model_r = short_text(std::filesystem::path(o.site.model).stem().string());
  terms.codec.vocabulary = s.library->vocab_size();
  terms.vocabulary_hash = s.vocabulary;
  terms.tokenization_hash = s.tokenization;
  terms.seed_hash = hash_of_seed(o.seed, terms.session);
  terms.end_of_text = s.library->eos();
  terms.real_bytes = 4;
  if (!valid(terms)) throw error("hello", "", "the terms are not valid here");
  return terms;
}

std::shared_ptr<net::running_site> made(shared_by_sessions& s, const hello& terms) {
  // two at once would find each other's threads in their way, and both be refused
  const std::lock_guard turn(s.makes);
  running r = run_site(s.o, terms, {}, *s.library, s.o.site.most, s.trace);
  if (thread_pool(threads_of_grpc).threads() < threads_of_grpc)
    throw error("this session", "", "there is no room for its threads");
  const std::lock_guard lock(s.mutex);
  s.all[terms.session] = r;
  return r.site;
}

// Prints what a session did.
void ended(shared_by_sessions& s, net::running_site& site, const hello& terms) {
  running r;
  {
    const std::lock_guard lock(s.mutex);
    const auto found = s.all.find(terms.session);
    if (found == s.all.end() || found->second.site.get() != &site) return;
    r = found->second;
    s.all.erase(found);
  }
  const ordered_json j = report(r);
  const std::string line =
      s.o.as_json
          ? line_of(j)
          : fmt::format("session {:016x}: {} tokens, {} bytes sent{}", terms.session,
                        j["tokens"].size(), j["bytes"]["sent"].get<std::size_t>(),
                        j.contains("problem") ? ", " + j["problem"].get<std::string>() : "");
  // fmt::print throws, and this is called by a destructor, too
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void say_where(const shared_by_sessions& s, unsigned port) {
  const two_sites_options& o = s.o;
  const std::string where =
      o.address.starts_with("unix:")
          ? o.address
          : fmt::format("{}:{}", o.address.substr(0, o.address.rfind(':')), port);
  if (o.as_json) fmt::print("{}\n", line_of(ordered_json{{"listening", where}}));
  else
    fmt::print("listening on {} with {}{}\n", where, o.site.model,
               o.site.folder.empty()
                   ? ""
                   : fmt::format(", {} passages of {}", s.library->passage_count(), o.site.folder));
  flush_output();
}

void tick_until_interrupted(shared_by_sessions& s, net::server& server, net::sessions& sessions) {
  const bool live = knows_escapes(STDERR_FILENO);
  for (int i = 0; !interrupted; ++i) {
    std::this_thread::sleep_for(10ms);
    server.tick();
    sessions.tick();
    if (!live || i % 20 != 0) continue;
    std::string line = fmt::format("{} connections", server.connections());
    const std::lock_guard lock(s.mutex);
    if (!s.all.empty())  // the last of them
      line += fmt::format(", {} sessions | ", s.all.size()) +
              live_line(side::r, s.all.rbegin()->second);
    fmt::print(stderr, "\r\033[K{}", line);
    std::fflush(stderr);
  }
  if (live) fmt::print(stderr, "\r\033[K");
}

}  // namespace

void serve(two_sites_options o) {
  o.decode = profiles_of(o);
  const auto library = open_sites(o);
  model_for(o, *library, o.site.most, o.site.most);
  const net::security security = security_of(o, true);
  shared_by_sessions s{o, library,
                       o.trace.empty() ? nullptr : std::make_shared<trace_file>(o.trace),
                       hash_of_vocabulary(*library), hash_of_tokenization(*library)};
  net::sessions sessions([&](const hello& proposed) { return agreed(s, proposed); },
                         [&](const hello& terms) { return made(s, terms); }, o.sessions, o.keep,
                         [&](auto& site, const hello& terms) { ended(s, site, terms); });
  way_out out([&] {
    std::vector<running> left;
    {
      const std::lock_guard lock(s.mutex);
      for (const auto& [id, r] : s.all) left.push_back(r);
    }
    for (const running& r : left) ended(s, *r.site, r.watch->terms);
  });
  until_interrupted();
  {
    net::server server(o.address, security, limits_of(o, library->vocab_size()),
                       [&](const auto& to) { return sessions.accept(to); });
    say_where(s, unsigned(server.port()));
    tick_until_interrupted(s, server, sessions);
    out.from_now();
  }
  if (s.trace) s.trace->check();
}

}  // namespace cli
