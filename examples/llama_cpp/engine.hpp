// SPDX-License-Identifier: Apache-2.0
// Many requests in one context of libllama, each with its own policy, temperature, drafter and
// seed. In each step one call of libllama scores the drafts of all of them, and one verify_batch
// decides.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <specagg/backend/llama_cpp/model.hpp>
#include <specagg/backend/llama_cpp/source.hpp>
#include <specagg/specagg.hpp>

#include "request.hpp"

using namespace specagg;

struct engine_options {
  std::string target, draft;
  std::size_t requests = 8, waiting = 64, context = 2048, gamma = 4, exact_batches = 0;
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
};

inline constexpr std::size_t prompt_tokens = 128;  // of prompts, read in each step

struct opened_model {
  std::shared_ptr<llama_model> model;
  std::shared_ptr<llama_context> context;
  opened_model(const std::string& file, const engine_options& o)
      : model(llama_cpp::load_model(file)) {
    if (llama_model_is_recurrent(model.get()) || llama_model_is_hybrid(model.get()) ||
        !llama_model_has_decoder(model.get()) || llama_model_has_encoder(model.get()))
      throw error(file, "", "is no model whose memory goes back by some tokens, as drafts need");
    llama_context_params how = llama_context_default_params();
    how.n_seq_max = static_cast<std::uint32_t>(o.requests);
    how.n_ctx = static_cast<std::uint32_t>(o.requests * (o.context + o.gamma + o.exact_batches));
    how.n_batch = how.n_ubatch =
        static_cast<std::uint32_t>(o.requests * (o.gamma + 1) + prompt_tokens);
    how.n_threads = how.n_threads_batch = static_cast<std::int32_t>(o.threads);
    // A buffer for each sequence. In one for all, each token's attention would go through the cells
    // of all requests.
    how.kv_unified = false;
    how.swa_full = true;
    context = llama_cpp::make_context(model, how, file);
  }
};

// Counters of everything since the start, for /metrics.
struct counters {
  std::uint64_t finished = 0, cancelled = 0, failed = 0, refused = 0, steps = 0, calls = 0;
  std::uint64_t drafted = 0, accepted = 0, emitted = 0;
  double expected = 0;  // tokens, from the acceptances
};

// The place of one request in the contexts, and its memory in a step.
struct slot {
  using row = any_row<one_hot_row<float>, sparse_row<float>, processed_row<float>>;
  llama_cpp::source target;
  std::optional<llama_cpp::source> draft;
  std::size_t V, gamma;
  std::vector<float> p, q;  // (gamma + 1) x V logits
  std::vector<row> q_rows;
  std::vector<processed_row<float>> p_rows;
  std::vector<emission> out;
  std::vector<draft_acceptance> acceptances;
  // The request's.
  std::shared_ptr<request> asked = {};  // null: the slot is free
  std::vector<token_id> text = {};      // and the drafted tokens behind it
  // of the text; tokens that may be drafted, and that are
  std::size_t size = 0, most = 0, drafted = 0;
  std::optional<lookup_drafter<float>> lookup = {};
  std::optional<counts_drafter<float>> counts = {};
  random_streams random{0};

  slot(const opened_model& of, const opened_model* drafter, llama_seq_id sequence,
       const engine_options& o)
      : target(of.context.get(), {.sequence = sequence, .exact_batches = o.exact_batches}),
        V(target.vocab_size()),
        gamma(o.gamma),
        p((gamma + 1) * V),
        q(drafter ? (gamma + 1) * V : 0),
        q_rows(gamma + 1),
        p_rows(gamma + 1),
        out(gamma + 1),
        acceptances(gamma) {
    if (drafter)
      draft.emplace(
          drafter->context.get(),
          llama_cpp::source_options{.sequence = sequence, .exact_batches = o.exact_batches});
  }
  void begin(std::shared_ptr<request> r) {
    asked = std::move(r);
    text = asked->prompt;
    size = text.size();
    const std::size_t longest = size + asked->max_tokens + gamma;
    text.reserve(longest);
    if (asked->draft == drafts::lookup) lookup.emplace(V, longest);
    if (asked->draft == drafts::counts) counts.emplace(V, longest, gamma, asked->how);
    random = random_streams(asked->seed);
  }
  void end() {
    (void)target.rollback(0);
    if (draft) (void)draft->rollback(0);
    asked.reset();
    lookup.reset();
    counts.reset();
    text = {};
  }
  bool reads_prompt() const { return target.position() + 1 < size; }
  bool uses_model() const { return asked->draft == drafts::model; }
  std::span<float> part(std::vector<float>& of, std::size_t j) const {
    return std::span(of).subspan(j * V, V);
  }
  // Whether the row of the draft's token j is needed: to draw it, or by the policy alone.
  bool wants_row(std::size_t j) const {
    return j == drafted && asked->draft != drafts::none &&
           (j < most || (j <= gamma && asked->reads_draft()));
  }
  // Writes the row, and draws token j from it if there may be one.
  void propose(std::size_t j, std::span<double> scratch, const end_tokens& ends) {
    const draft_position at{text, j};
    double confidence;
    no_processor none;
    status s = status::ok;
    if (lookup) {
      one_hot_row<float> row;
      s = lookup->next(at, none, row, confidence);
      q_rows[j] = row;
    } else if (counts) {
      sparse_row<float> row;
      s = counts->next(at, none, row, confidence);
      q_rows[j] = row;
    } else {
      q_rows[j] = processed_row<float>(part(q, j), asked->how);
    }
    token_id y = no_token;
    if (s == status::ok && j < most)
      y = with_row(q_rows[j], [&](auto& row) {
        return draw_draft(row, std::uint32_t(size), j, random, scratch);
      });
    if (y == no_token || ends.contains(y)) most = std::min(most, j + (y != no_token));
    if (y != no_token) {
      text.push_back(y);
      ++drafted;
    }
  }
  auto to_verify(const end_tokens& ends) {
    for (std::size_t j = 0; j <= drafted; ++j)
      p_rows[j] = processed_row<float>(part(p, j), asked->how);
    return verification{
        specagg::draft{std::span<const token_id>(text).subspan(size), std::uint32_t(size), ends},
        rows_of(drafted + asked->reads_draft(),
                [this](std::size_t j) -> const row& { return q_rows[j]; }),
        rows_of(drafted + 1,
                [this](std::size_t j) -> const processed_row<float>& {
                  (void)p_rows[j].normalise(true);
                  return p_rows[j];
                }),
        asked->policy,
        random,
        std::span(out),
        std::span(acceptances).first(drafted)};
  }
  // The text without what was rejected, and with what was drawn instead.
  status commit(const verdict& v) {
    size += v.accepted;
    text.resize(size);
    for (std::size_t i = v.accepted; i < v.emitted; ++i) {
      text.push_back(out[i].token);
      ++size;
    }
    const std::size_t known = size - (v.emitted - v.accepted);
    if (draft && draft->position() > known)
      if (const status s = draft->rollback(known); s != status::ok) return s;
    return target.rollback(known);
  }
};

// One thread decodes; the threads of HTTP hand requests in and wait for their tokens.
class engine {
 public:
  engine(const engine_options& o)
      : options_(o),
        target_(o.target, o),
        tokens_(target_.model),
        ends_(tokens_.end_of_generation()) {
    if (!o.draft.empty()) {
      draft_ = std::make_unique<opened_model>(o.draft, o);
      if (llama_cpp::tokenizer(draft_->model).hash() != tokens_.hash())
        throw error(o.draft, "", "has another vocabulary than " + o.target);
    }
    for (std::size_t i = 0; i < o.requests; ++i)
      slots_.push_back(std::make_unique<slot>(target_, draft_.get(), llama_seq_id(i), o));
    const std::size_t V = tokens_.size();
    scratch_.resize(o.requests * verify_scratch(V, o.gamma));
    verdicts_.resize(o.requests);
    thread_ = std::thread([this] { run(); });
  }
  ~engine() {
    stop();
    thread_.join();
  }
  const llama_cpp::tokenizer& tokens() const { return tokens_; }
  void stop() {
    const std::lock_guard hold(lock_);
    stopped_ = true;
    work_.notify_all();
  }

  bool stopped() {
    const std::lock_guard hold(lock_);
    return stopped_;
  }

  // False: there is no room for all of them in the queue.
  bool submit(const std::vector<std::shared_ptr<request>>& all) {
    const std::lock_guard hold(lock_);
    std::size_t free = options_.waiting;
    for (const auto& s : slots_) free += !s->asked || s->asked->cancelled || s->asked->enough;
    if (stopped_ || queue_.size() + all.size() > free) {
      ++count_.refused;
      return false;
    }
    queue_.insert(queue_.end(), all.begin(), all.end());
    work_.notify_all();
    return true;
  }
  // Nobody reads further tokens: the client is gone, or has what it wanted. A place in the queue is
  // free at once.
  void leave(request& r, bool finished) {
    const std::lock_guard hold(lock_);
    (finished ? r.enough : r.cancelled) = true;
    const auto waits =
        std::find_if(queue_.begin(), queue_.end(), [&](const auto& q) { return q.get() == &r; });
    if (waits != queue_.end()) {
      queue_.erase(waits);
      settle(r, ended::failed, "");
    }
    work_.notify_all();
  }
  // The tokens behind the first `from`, and whether there will be more.
  ended more(const request& r, std::size_t from, std::vector<emission>& to) {
    const std::lock_guard hold(lock_);
    to.assign(r.tokens.begin() + std::ptrdiff_t(from), r.tokens.end());
    return r.ended;
  }
  // Waits until there is more for some request than at the last call with this `seen`, a tenth of a
  // second at most.
  void wait(std::uint64_t& seen) {
    std::unique_lock hold(lock_);
    news_.wait_for(hold, std::chrono::milliseconds(100), [&] { return told_ != seen; });
    seen = told_;
  }
  std::string metrics() {
    const std::lock_guard hold(lock_);
    std::size_t active = 0;
    for (const auto& s : slots_) active += s->asked != nullptr;
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
    add("decode_calls_total", "counter", "Calls for the target's rows, each for all requests",
        double(count_.calls));
    add("request_steps_total", "counter", "Verified drafts, empty ones too", double(count_.steps));
    add("tokens_total", "counter", "Tokens emitted", double(count_.emitted));
    add("drafted_tokens_total", "counter", "Tokens drafted", double(count_.drafted));
    add("accepted_tokens_total", "counter", "Drafted tokens that were kept",
        double(count_.accepted));
    add("expected_tokens_total", "counter", "Tokens expected from the acceptances",
        count_.expected);
    add("acceptance", "gauge", "Accepted of drafted tokens",
        double(count_.accepted) / double(std::max<std::uint64_t>(count_.drafted, 1)));
    add("tokens_per_call", "gauge", "Tokens emitted for a verified draft",
        double(count_.emitted) / steps);
    add("expected_tokens_per_call", "gauge", "The same, as the acceptances say",
        count_.expected / steps);
    return all;
  }

 private:
  void run() {
    for (std::vector<slot*> active; wait_for_work(active);) try {
        step(active);
      } catch (const std::exception& e) {
        for (slot* s : active)
          if (s->asked) finish(*s, ended::failed, e.what());
      }
  }
  // Gives free slots to requests. False: stopped; all requests have failed.
  bool wait_for_work(std::vector<slot*>& active) {
    std::unique_lock hold(lock_);
    for (;;) {
      active.clear();
      for (const auto& s : slots_) {
        if (s->asked && s->asked->enough) leave(*s, ended::stop, "");
        if (s->asked && (s->asked->cancelled || stopped_))
          leave(*s, ended::failed, "the server stops");
        while (!s->asked && !queue_.empty()) {
          const auto r = queue_.front();
          queue_.pop_front();
          if (stopped_) settle(*r, ended::failed, "the server stops");
          else begin(*s, r);
        }
        if (s->asked) active.push_back(s.get());
      }
      if (stopped_) return false;
      if (!active.empty()) return true;
      work_.wait(hold);
    }
  }
  void begin(slot& s, const std::shared_ptr<request>& r) {
    try {
      s.begin(r);
    } catch (const std::exception& e) {  // no memory
      leave(s, ended::failed, e.what());
    }
  }
  void tell() {  // the lock is held
    ++told_;
    news_.notify_all();
  }
  void settle(request& r, ended how, const std::string& why) {  // the lock is held
    r.ended = how;
    r.failure = why;
    ++(r.cancelled ? count_.cancelled : how == ended::failed ? count_.failed : count_.finished);
    tell();
  }
  void leave(slot& s, ended how, const std::string& why) {
    settle(*s.asked, how, why);
    s.end();
  }
  void finish(slot& s, ended how, const std::string& why) {
    const std::lock_guard hold(lock_);
    leave(s, how, why);
  }
  // One call of a model for all of `calls`. Where it fails, no row of them can be used.
  void extend(std::vector<llama_cpp::source::addition>& calls) {
    // libllama computes what neighbouring sequences have in common together.
    std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
      return a.to->options().sequence < b.to->options().sequence;
    });
    const status why = llama_cpp::source::extend(calls);
    calls.clear();
    if (why != status::ok) throw error(options_.target, "", std::string(name(why)));
  }

  void step(std::span<slot* const> active) {
    const end_tokens ends(ends_);
    // Prompts: all but their last token, as many as fit.
    std::size_t left = prompt_tokens;
    ready_.clear();
    target_calls_.clear();
    draft_calls_.clear();
    ++turn_;  // each request is the first in turn
    for (std::size_t i = 0; i < active.size(); ++i) {
      slot* const s = active[(turn_ + i) % active.size()];
      s->drafted = 0;
      s->most = s->asked->draft == drafts::none
                    ? 0
                    : std::min(s->asked->gamma, s->asked->max_tokens - s->asked->tokens.size() - 1);
      if (!s->reads_prompt()) ready_.push_back(s);
      const std::size_t n = std::min(left, s->size - 1 - s->target.position());
      const auto tokens = std::span<const token_id>(s->text).subspan(s->target.position(), n);
      if (s->reads_prompt() && n > 0) target_calls_.push_back({&s->target, tokens, {}});
      if (s->reads_prompt() && n > 0 && s->uses_model())
        draft_calls_.push_back({&*s->draft, tokens, {}});
      left -= n;
    }
    // Drafts: the draft model is called once for the j-th tokens of all requests.
    for (std::size_t j = 0; j <= options_.gamma; ++j) {
      for (slot* s : ready_)
        if (s->uses_model() && s->wants_row(j))
          draft_calls_.push_back(
              {&*s->draft, std::span(s->text).subspan(s->draft->position()), s->part(s->q, j)});
      if (!draft_calls_.empty()) extend(draft_calls_);
      for (slot* s : ready_)
        if (s->wants_row(j)) s->propose(j, scratch_, ends);
    }
    // The target's rows, in one call; the verdicts.
    for (slot* s : ready_)
      target_calls_.push_back({&s->target, std::span(s->text).subspan(s->size - 1),
                               std::span(s->p).first((s->drafted + 1) * s->V)});
    extend(target_calls_);
    verify_batch([&](std::size_t i) { return ready_[i]->to_verify(ends); },
                 std::span(verdicts_).first(ready_.size()), scratch_);
    const std::lock_guard hold(lock_);
    ++count_.calls;
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      slot& s = *ready_[i];
      const verdict& v = verdicts_[i];
      ++count_.steps;
      count_.drafted += s.drafted;
      count_.accepted += v.accepted;
      count_.emitted += v.emitted;
      count_.expected += expected_tokens(std::span(s.acceptances).first(s.drafted));
      request& r = *s.asked;
      r.tokens.insert(r.tokens.end(), s.out.begin(), s.out.begin() + std::ptrdiff_t(v.emitted));
      const status why = v.emitted > 0 ? s.commit(v) : v.why;
      if (why != status::ok) leave(s, ended::failed, std::string(name(why)));
      else if (ends.contains(r.tokens.back().token)) leave(s, ended::stop, "");
      else if (r.tokens.size() >= r.max_tokens) leave(s, ended::length, "");
    }
    tell();
  }

  engine_options options_;
  opened_model target_;
  std::unique_ptr<opened_model> draft_;
  llama_cpp::tokenizer tokens_;
  std::vector<token_id> ends_;
  std::vector<std::unique_ptr<slot>> slots_;
  std::size_t turn_ = 0;  // of steps
  // Of a step.
  std::vector<slot*> ready_;
  std::vector<llama_cpp::source::addition> target_calls_, draft_calls_;
  std::vector<verdict> verdicts_;
  std::vector<double> scratch_;
  // The lock protects what follows, slot::asked, and what requests say is written by the engine.
  std::mutex lock_;
  std::condition_variable work_, news_;
  std::deque<std::shared_ptr<request>> queue_;
  counters count_;
  std::uint64_t told_ = 0;  // how often there were news
  bool stopped_ = false;
  std::thread thread_;
};
