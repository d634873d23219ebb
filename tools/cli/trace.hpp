// SPDX-License-Identifier: Apache-2.0
// What a session looked like: counts for people, and a file with every event, from which
// scripts/plot-pipelines draws.
#pragma once
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/sites/net/runner.hpp>

namespace cli {

// A file of JSON lines, for any number of sessions. Times are seconds since 1970.
class trace_file {
 public:
  explicit trace_file(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w")) {
    if (!file_) throw specagg::error(path, "", "cannot be written");
  }
  ~trace_file() { std::fclose(file_); }
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;
  void line(const std::string& s) {
    const std::lock_guard lock(mutex_);
    std::fputs((s + "\n").c_str(), file_);
    std::fflush(file_);
  }
  // Throws specagg::error if a line could not be written.
  void check() {
    const std::lock_guard lock(mutex_);
    if (std::ferror(file_)) throw specagg::error(path_, "", "cannot be written");
  }
  static double seconds(specagg::net::clock::time_point t) {
    using namespace std::chrono;
    static const auto offset =
        system_clock::now().time_since_epoch() - specagg::net::clock::now().time_since_epoch();
    return duration<double>(t.time_since_epoch() + offset).count();
  }

 private:
  std::string path_;
  std::FILE* file_;
  std::mutex mutex_;
};

// Of one session, at one end. Its members are read while the site is at rest.
struct session_watch final : specagg::net::observer {
  using time_point = specagg::net::clock::time_point;

  specagg::sites::hello terms;
  std::shared_ptr<trace_file> trace;  // or none
  std::vector<specagg::token_id> tokens;
  std::vector<double> at;                      // when each was emitted
  std::vector<const char*> origins;            // DRAGON: whose draft each was
  std::array<std::size_t, 4> outcomes = {};    // both accepted, only l, only r, neither
  std::array<std::size_t, 2> aggregated = {};  // at l, at r
  specagg::agreement expected;  // sum of the joint law before the drafts were verified

  std::array<std::uint32_t, 2> epoch = {};  // after the last rejection of a draft of l, of r
  specagg::side now_at = specagg::side::l;
  std::size_t rounds = 0, accepted = 0;  // split verification

  session_watch(const specagg::sites::hello& h, std::shared_ptr<trace_file> t)
      : terms(h), trace(std::move(t)) {}

  void emitted(std::uint32_t position, specagg::token_id x) override {
    if (tokens.empty()) first_ = position;
    tokens.push_back(x);
    origins.push_back("unknown");  // of tokens that arrive together after a cut it stays so
    at.push_back(trace_file::seconds(specagg::net::clock::now()));
    if (trace)
      trace->line(fmt::format("{}\"event\":\"token\",\"step\":{},\"token\":{}}}", head(at.back()),
                              position, x));
  }
  void settled(const specagg::sites::dragon_outcome& o) override {
    static constexpr const char* whose[] = {"both", "device", "cloud", "neither"};
    const std::size_t outcome = o.accepted_l ? (o.accepted_r ? 0 : 1) : (o.accepted_r ? 2 : 3);
    ++outcomes[outcome];
    if (o.step >= first_ && o.step - first_ < origins.size())
      origins[o.step - first_] = whose[outcome];
    ++aggregated[std::size_t(o.at)];
    for (std::size_t s = 0; s < 2; ++s)
      if (!(s == 0 ? o.accepted_l : o.accepted_r)) epoch[s] = o.step + 1;
    now_at = o.at;
    expected.both += o.expected.both;
    expected.only_l += o.expected.only_l;
    expected.only_r += o.expected.only_r;
    if (trace)
      trace->line(
          fmt::format("{}\"event\":\"settled\",\"step\":{},\"at\":\"{}\",\"accepted\":[{},{}]}}",
                      head(trace_file::seconds(specagg::net::clock::now())), o.step, name(o.at),
                      o.accepted_l, o.accepted_r));
  }
  void drafted(std::uint32_t step, time_point begin, time_point end, bool used) override {
    if (trace)
      trace->line(fmt::format("{}\"event\":\"decoded\",\"step\":{},\"until\":{:.6f},\"used\":{}}}",
                              head(trace_file::seconds(begin)), step, trace_file::seconds(end),
                              used));
  }
  void message(bool sent, std::span<const std::uint8_t> bytes) override {
    specagg::sites::message m;
    if (specagg::sites::decode(bytes, terms, m) != specagg::sites::wire::ok) return;
    if (const auto* a = std::get_if<specagg::sites::split_answer>(&m);
        a && (rounds == 0 || a->start > last_round)) {
      ++rounds;
      accepted += a->accepted;
      last_round = a->start;
    }
    if (!trace) return;
    static constexpr const char* kinds[] = {"hello",   "drafted",       "settled_text", "progress",
                                            "refusal", "split_request", "split_answer", "echo"};
    std::uint32_t step = 0, epoch = 0;
    if (const auto* d = std::get_if<specagg::sites::drafted>(&m)) {
      step = d->step;
      epoch = d->epoch;
    }
    if (const auto* s = std::get_if<specagg::sites::settled_text>(&m)) step = s->first;
    if (const auto* r = std::get_if<specagg::sites::split_request>(&m)) step = r->start;
    if (const auto* a = std::get_if<specagg::sites::split_answer>(&m)) step = a->start;
    trace->line(
        fmt::format("{}\"event\":\"{}\",\"kind\":\"{}\",\"step\":{},\"epoch\":{},\"bytes\":{}}}",
                    head(trace_file::seconds(specagg::net::clock::now())),
                    sent ? "sent" : "received", kinds[m.index()], step, epoch, bytes.size()));
  }
  void connection(bool made) override {
    if (trace)
      trace->line(fmt::format("{}\"event\":\"{}\"}}",
                              head(trace_file::seconds(specagg::net::clock::now())),
                              made ? "connected" : "disconnected"));
  }

  static const char* name(specagg::side s) { return s == specagg::side::l ? "device" : "cloud"; }

 private:
  std::uint32_t last_round = 0, first_ = 0;  // the latter: position of the first token
  std::string head(double t) const {
    return fmt::format("{{\"time\":{:.6f},\"side\":\"{}\",\"session\":\"{:016x}\",", t,
                       name(terms.from), terms.session);
  }
};

}  // namespace cli
