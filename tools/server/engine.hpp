// SPDX-License-Identifier: Apache-2.0
// Requests, from their arrival to their last token. One thread steps all that have a place
// (decoder.hpp); the threads of HTTP hand requests in and wait for their tokens.
#pragma once
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "decoder.hpp"
#include "resources.hpp"

// Counters of everything since the start, for /metrics.
struct counters {
  std::uint64_t finished = 0, cancelled = 0, failed = 0, refused = 0, steps = 0, calls = 0;
  std::uint64_t drafted = 0, accepted = 0, emitted = 0, prompts = 0;
  double expected = 0;  // tokens, from the acceptances
  specagg::plan::acceptance_record record = {};
  double seconds = 0;  // in steps
};

// vLLM's counters of drafts, by their names and with their labels, for what reads those of vLLM.
inline std::string metrics_of_drafts(const specagg::plan::acceptance_record& r,
                                     const std::string& model, std::size_t gamma) {
  std::string all, named;
  for (const char c : model) {
    if (c == '"' || c == '\\') named += '\\';
    named += c == '\n' ? ' ' : c;
  }
  const auto head = [&](const std::string& name, const char* what) {
    all += fmt::format("# HELP {0} {1}\n# TYPE {0} counter\n", name, what);
  };
  const auto add = [&](const std::string& name, double value, const std::string& more = "") {
    all += fmt::format("{}{{engine=\"0\",model_name=\"{}\"{}}} {}\n", name, named, more, value);
  };
  const std::string drafts = "vllm:spec_decode_num_drafts_total",
                    drafted = "vllm:spec_decode_num_draft_tokens_total",
                    accepted = "vllm:spec_decode_num_accepted_tokens_total",
                    by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  head(drafts, "Drafts of at least one token");
  add(drafts, r.steps());
  head(drafted, "Tokens of these drafts");
  add(drafted, r.drafted);
  head(accepted, "Those that verification accepted, also beyond a stop string");
  add(accepted, r.accepted_tokens());
  head(by_position, "The same by their position in the draft");
  for (std::size_t j = 0; j < gamma; ++j)
    add(by_position, r.at_least(j + 1), fmt::format(",position=\"{}\"", j));
  return all;
}

// What has come of a request.
struct news {
  std::vector<written_token> tokens;
  std::string text;
  std::size_t prompt_read = 0;
  enum ended ended = ended::no;
  std::string failure;
  int status = 500;
};

class engine {
 public:
  // memory: bytes that requests may have together. of_steps: what a request keeps of its steps.
  engine(std::unique_ptr<decoder> how, std::size_t requests, std::size_t waiting, double memory,
         step_metrics of_steps = step_metrics::summary)
      : decoder_(std::move(how)),
        waiting_(waiting),
        memory_(memory),
        of_steps_(of_steps),
        places_(requests) {
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 4);  // else each thread keeps what it has freed
#endif
    thread_ = start_thread([this] { run(); });
  }
  ~engine() {
    stop();
    thread_.join();
  }
  const decoder& models() const { return *decoder_; }
  double memory() const { return memory_; }
  step_metrics of_steps() const { return of_steps_; }

  // No request is taken any more. Those that are here are finished.
  void drain() {
    const std::lock_guard hold(lock_);
    draining_ = true;
  }
  // Ends all requests.
  void stop() {
    const std::lock_guard hold(lock_);
    draining_ = stopped_ = true;
    work_.notify_all();
  }
  bool draining() {
    const std::lock_guard hold(lock_);
    return draining_;
  }
  bool idle() {
    const std::lock_guard hold(lock_);
    return queue_.empty() &&
           std::none_of(places_.begin(), places_.end(), [](const auto& p) { return bool(p); });
  }

  // False: there is no room for all of them in the queue.
  bool submit(const std::vector<std::shared_ptr<request>>& all) {
    const std::lock_guard hold(lock_);
    std::size_t free = waiting_;
    for (const auto& p : places_) free += !p || p->asked->cancelled;
    if (draining_ || queue_.size() + all.size() > free) {
      ++count_.refused;
      return false;
    }
    for (const auto& r : all) r->number = number_++;
    queue_.insert(queue_.end(), all.begin(), all.end());
    work_.notify_all();
    return true;
  }
  // The client is gone. A place in the queue is free at once.
  void leave(request& r) {
    const std::lock_guard hold(lock_);
    r.cancelled = true;
    const auto waits =
        std::find_if(queue_.begin(), queue_.end(), [&](const auto& q) { return q.get() == &r; });
    if (waits != queue_.end()) {
      queue_.erase(waits);
      settle(r, ended::failed, "");
    }
    work_.notify_all();
  }
  // What has come after the first `tokens` tokens and the first `bytes` bytes.
  news more(const request& r, std::size_t tokens, std::size_t bytes) {
    const std::lock_guard hold(lock_);
    return {std::vector(r.tokens.begin() + std::ptrdiff_t(tokens), r.tokens.end()),
            r.text.substr(bytes, r.sure() - std::min(r.sure(), bytes)),
            r.prompt_read,
            r.ended,
            r.failure,
            r.status};
  }
  // Waits until there is more for some request of this bell than at the last call with this `seen`,
  // a tenth of a second at most.
  void wait(bell& told, std::uint64_t& seen) {
    std::unique_lock hold(lock_);
    told.rings.wait_for(hold, std::chrono::milliseconds(100), [&] { return told.rung != seen; });
    seen = told.rung;
  }
  // model, gamma: the server's, for the labels of vLLM's counters.
  std::string metrics(const std::string& model, std::size_t gamma) {
    const std::lock_guard hold(lock_);
    std::size_t active = 0;
    for (const auto& p : places_) active += p != nullptr;
    std::string all;
    const auto add = [&](const char* name, const char* type, const char* what, double value) {
      all += fmt::format("# HELP specagg_{0} {2}\n# TYPE specagg_{0} {1}\nspecagg_{0} {3}\n", name,
                         type, what, value);
    };
    const double steps = double(std::max<std::uint64_t>(count_.steps, 1));
    add("requests_finished_total", "counter", "Requests whose text is complete",
        double(count_.finished));
    add("requests_cancelled_total", "counter", "Requests whose client went away",
        double(count_.cancelled));
    add("requests_failed_total", "counter", "Requests that the model failed",
        double(count_.failed));
    add("requests_refused_total", "counter", "Requests answered 503", double(count_.refused));
    add("requests_active", "gauge", "Requests that are decoded", double(active));
    add("requests_waiting", "gauge", "Requests in the queue", double(queue_.size()));
    add("memory_bytes", "gauge", "Memory of the requests that are decoded", used_);
    add("decode_calls_total", "counter", "Calls for the target's rows, each for all requests",
        double(count_.calls));
    add("decode_seconds_total", "counter", "Time in these calls, in drafts and in verification",
        count_.seconds);
    add("request_steps_total", "counter", "Verified drafts, empty ones too", double(count_.steps));
    add("prompt_tokens_total", "counter", "Tokens of prompts, read or copied",
        double(count_.prompts));
    add("tokens_total", "counter", "Tokens emitted", double(count_.emitted));
    add("drafted_tokens_total", "counter", "Tokens drafted", double(count_.drafted));
    add("accepted_tokens_total", "counter", "Drafted tokens that were accepted",
        double(count_.accepted));
    add("expected_tokens_total", "counter", "Tokens expected from the acceptances",
        count_.expected);
    add("acceptance", "gauge", "Accepted of drafted tokens",
        double(count_.accepted) / double(std::max<std::uint64_t>(count_.drafted, 1)));
    add("tokens_per_call", "gauge", "Tokens emitted for a verified draft",
        double(count_.emitted) / steps);
    add("expected_tokens_per_call", "gauge", "The same, as the acceptances say",
        count_.expected / steps);
    return all + metrics_of_drafts(count_.record, model, gamma);
  }

 private:
  void run() {
    std::vector<job*> active;
    active.reserve(places_.size());
    while (wait_for_work(active)) {
      // Texts take memory as they grow. Where little is left, the youngest gives way.
      if (!has_memory(least_left)) {
        const std::lock_guard hold(lock_);
        end(*std::max_element(places_.begin(), places_.end(),
                              [](const auto& a, const auto& b) {
                                return b && (!a || a->asked->number < b->asked->number);
                              }),
            ended::failed, no_memory, 503);
        continue;
      }
      const auto start = std::chrono::steady_clock::now();
      decoder_->step(active);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      const std::lock_guard hold(lock_);
      ++count_.calls;
      count_.seconds += spent.count();
      for (auto& p : places_)
        if (p) try {
            take(p);
          } catch (const std::bad_alloc&) {
            end(p, ended::failed, no_memory, 503);
          }
    }
  }
  // Gives free places to requests, in the order of arrival. False: stopped; all have failed.
  bool wait_for_work(std::vector<job*>& active) {
    std::unique_lock hold(lock_);
    for (;;) {
      active.clear();
      for (auto& p : places_)
        if (p && (p->asked->cancelled || stopped_)) end(p, ended::failed, "the server stops", 503);
      for (; stopped_ && !queue_.empty(); queue_.pop_front())
        settle(*queue_.front(), ended::failed, "the server stops", 503);
      for (std::size_t i = 0; i < places_.size(); ++i)
        while (!places_[i] && !queue_.empty() && fits(*queue_.front())) {
          const auto r = queue_.front();
          queue_.pop_front();
          begin(i, r);
        }
      for (const auto& p : places_)
        if (p) active.push_back(p.get());
      if (stopped_) return false;
      if (!active.empty()) return true;
#ifdef __GLIBC__
      malloc_trim(0);  // what requests had goes back to the system
#endif
      work_.wait(hold);
    }
  }
  bool fits(const request& r) const { return used_ == 0 || used_ + decoder_->bytes(r) <= memory_; }
  void begin(std::size_t i, const std::shared_ptr<request>& r) {
    try {
      if (r->stop) r->stops = r->stop->find();
      places_[i] = decoder_->begin(r, i);
      used_ += decoder_->bytes(*r);
      if (!has_memory(least_left)) end(places_[i], ended::failed, no_memory, 503);
    } catch (const std::bad_alloc&) {
      settle(*r, ended::failed, no_memory, 503);
    } catch (const std::exception& e) {
      settle(*r, ended::failed, e.what());
    }
  }
  // What the last step gave.
  void take(std::unique_ptr<job>& p) {
    job& j = *p;
    request& r = *j.asked;
    count_.prompts += j.prompt_read - r.prompt_read;
    r.prompt_read = j.prompt_read;
    bool stopped = false;
    std::size_t n = 0, accepted = 0;
    for (; n < j.emitted.size() && !stopped; ++n) {
      written_token next{j.emitted[n]};
      if (r.logprobs) next.model = std::move(j.logprobs[n]);
      stopped = r.append(std::move(next), decoder_->tokens().piece(j.emitted[n].token));
      accepted += j.emitted[n].from == specagg::origin::accepted;
    }
    if (j.drafted) {
      count_.emitted += n;
      ++count_.steps, ++r.steps;
      count_.drafted += j.measured.size(), r.drafted += j.measured.size();
      count_.accepted += accepted, r.accepted += accepted;
      r.record.observe(j.measured.size(), j.accepted);
      count_.record.observe(j.measured.size(), j.accepted);
      if (of_steps_ == step_metrics::detailed && !j.measured.empty()) {
        r.step_drafted.push_back(j.measured.size());
        r.step_accepted.push_back(j.accepted);
      }
      // Tokens after a stop string are none of the text, so none of them was expected.
      const bool cut = n < j.emitted.size();
      count_.expected +=
          specagg::expected_tokens(j.measured.first(cut ? n - 1 : j.measured.size()));
    }
    const auto ends = decoder_->ends();
    const bool ended_here =
        n > 0 && std::find(ends.begin(), ends.end(), r.tokens.back().token) != ends.end();
    if (stopped || ended_here) end(p, ended::stop, "");
    else if (!j.failure.empty())
      end(p, ended::failed, j.failure, j.failure == no_memory ? 503 : 500);
    else if (r.tokens.size() >= r.max_tokens) end(p, ended::length, "");
    else if (r.stream) ring(r);  // a whole answer is asked for at its end
  }
  void ring(request& r) {
    ++r.told->rung;
    r.told->rings.notify_all();
  }
  void settle(request& r, ended how, const std::string& why, int status = 500) {
    r.ended = how;
    r.status = status;
    r.failure = why;
    ++(r.cancelled ? count_.cancelled : how == ended::failed ? count_.failed : count_.finished);
    ring(r);
  }
  void end(std::unique_ptr<job>& p, ended how, const std::string& why, int status = 500) {
    const auto r = p->asked;
    used_ -= decoder_->bytes(*r);
    p.reset();
    r->stops.reset();
    if (std::none_of(places_.begin(), places_.end(), [](const auto& q) { return bool(q); }))
      used_ = 0;
    settle(*r, how, why, status);
  }

  const std::unique_ptr<decoder> decoder_;
  const std::size_t waiting_;
  const double memory_;
  const step_metrics of_steps_;
  // The lock protects what follows, and what requests say is written by the engine.
  std::mutex lock_;
  std::condition_variable work_;
  std::vector<std::unique_ptr<job>> places_;  // null: free
  std::deque<std::shared_ptr<request>> queue_;
  counters count_;
  double used_ = 0;  // bytes
  std::uint64_t number_ = 0;
  bool draining_ = false, stopped_ = false;
  std::thread thread_;
};
