// SPDX-License-Identifier: Apache-2.0
// The texts of many requests, step by step. In a step the target is called once, for the drafts of
// all texts and for pieces of prompts. decoder.hpp is one template over a backend's models; cpu.cpp
// and llama_cpp.cpp have those.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <specagg/decoders.hpp>

#include "../cli/backends.hpp"
#include "request.hpp"

enum class step_metrics { none, summary, detailed };  // of each request, in its answer
inline const std::map<std::string, step_metrics> step_metrics_names = {
    {"none", step_metrics::none},
    {"summary", step_metrics::summary},
    {"detailed", step_metrics::detailed}};

struct server_options {
  std::string backend = "cpu", target, draft, head;
  std::size_t requests = 8, waiting = 64, context = 2048, gamma = 4;
  step_metrics metrics = step_metrics::summary;
  std::optional<specagg::synthetic_acceptance> synthetic = {};  // of all requests
  std::vector<double> synthetic_rates = {};                     // that it may read
  std::size_t memory = 0;  // MiB for requests; 0: half of the machine's
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  cli::llama_cpp_options llama_cpp;
};

inline constexpr std::size_t prompt_tokens = 128;  // of prompts, read in each step

inline constexpr const char* no_memory = "no memory";  // so short that a string of it takes none

// What a request has of the models while its text is written, and what its last step gave.
struct job {
  std::shared_ptr<request> asked;
  std::size_t prompt_read = 0;                               // tokens
  bool drafted = false;                                      // there was a draft, an empty one too
  std::size_t accepted = 0;                                  // of its tokens
  std::span<const specagg::emission> emitted = {};           // tokens of the text
  std::vector<model_logprobs> logprobs = {};                 // of each, where asked for
  std::span<const specagg::draft_acceptance> measured = {};  // of the drafted tokens
  std::string failure = {};                                  // not empty: the text cannot go on
  explicit job(std::shared_ptr<request> r) : asked(std::move(r)) {}
  virtual ~job() = default;
};

class decoder {
 public:
  virtual ~decoder() = default;
  virtual std::size_t context() const = 0;        // tokens of a request, with its answer
  virtual std::size_t draft_context() const = 0;  // the same where all need the draft model
  virtual const cli::tokenizer& tokens() const = 0;
  virtual std::span<const specagg::token_id> ends() const = 0;  // tokens that end a text
  // Memory that begin() takes for this request.
  virtual double bytes(const request& r) const = 0;
  // place: below server_options::requests, one for each job. May throw.
  virtual std::unique_ptr<job> begin(std::shared_ptr<request> r, std::size_t place) = 0;
  // One step of all jobs. Where one fails, nothing of the others changes.
  virtual void step(std::span<job* const> all) = 0;
};

// Throw specagg::error.
std::unique_ptr<decoder> make_cpu_decoder(const server_options& o);
std::unique_ptr<decoder> make_llama_cpp_decoder(const server_options& o);

// ---- the template -------------------------------------------------------------------------------

// Models is what a backend has:
//   model                      a BatchLogitSource, the context of one text
//   head                       the drafter of a draft head, or never_drafts
//   target(place, capacity)    a std::unique_ptr<model>; draft(place, capacity) likewise
//   make_head(model, ...)      a head
//   extend(additions)          those of one model in one call; each has its status then
//   bytes(request), context(), draft_context(), tokens(), pool()

// Nothing is drafted.
struct never_drafts {
  using row_type = specagg::normal_form<specagg::one_hot_row<float>>;
  std::size_t position() const { return 0; }
  specagg::status rollback(std::size_t) { return specagg::status::ok; }
  template <class P>
  specagg::status next(const specagg::draft_position&, P&, row_type&, double&) {
    return specagg::status::no_draft;
  }
};

template <class Models>
struct shared_call;

// The model of one text. A call for several of them reads pieces of prompts, too: those that stand
// in the shared_call then.
template <class Models>
class shared_source {
 public:
  using value_type = float;
  using model = typename Models::model;
  using addition = specagg::addition<shared_source>;
  shared_source(std::unique_ptr<model> own, shared_call<Models>& call)
      : own_(std::move(own)), call_(&call) {}
  model& own() { return *own_; }
  specagg::status why = specagg::status::ok;  // of the last piece of a prompt
  std::size_t vocab_size() const { return own_->vocab_size(); }
  std::size_t capacity() const { return own_->capacity(); }
  std::size_t position() const { return own_->position(); }
  std::span<const specagg::token_id> tokens() const { return own_->tokens(); }
  specagg::status rollback(std::size_t n) { return own_->rollback(n); }
  specagg::status extend(std::span<const specagg::token_id> tokens, std::span<float> logits) {
    return own_->extend(tokens, logits);
  }
  static specagg::status extend(std::span<addition> all) {
    if (!all.empty()) all[0].to->call_->make(all);
    for (addition& a : all) {
      std::vector<float>& kept = a.to->kept_;
      std::copy_n(a.logits.begin(), std::min(a.logits.size(), kept.size()), kept.begin());
    }
    return specagg::detail::first_failure(all);
  }
  // Keeps the rows of each call, which a round overwrites; so many at most.
  void keep(std::size_t rows) { kept_.resize(rows * vocab_size()); }
  std::span<const float> kept(std::size_t row) const {
    return std::span(kept_).subspan(row * vocab_size(), vocab_size());
  }

 private:
  std::unique_ptr<model> own_;
  std::vector<float> kept_;
  shared_call<Models>* call_;
};

template <class Models>
struct shared_call {
  std::vector<specagg::addition<shared_source<Models>>> prompts;
  std::vector<specagg::addition<typename Models::model>> all;

  void make(std::span<specagg::addition<shared_source<Models>>> texts) {
    all.clear();
    const auto add = [&](auto& some) {
      for (auto& a : some) all.push_back({&a.to->own(), a.tokens, a.logits});
    };
    add(prompts);
    add(texts);
    if (all.empty()) return;
    Models::extend(all);
    for (std::size_t i = 0; i < prompts.size(); ++i) prompts[i].to->why = all[i].why;
    for (std::size_t i = 0; i < texts.size(); ++i) texts[i].why = all[prompts.size() + i].why;
    prompts.clear();
  }
};

// What the request asks for.
template <class Models>
class chosen_drafter {
 public:
  using model_type = shared_source<Models>;
  template <class R>
  using normal_form = specagg::normal_form<R>;
  using row_type = specagg::any_row<
      normal_form<specagg::one_hot_row<float>>, normal_form<specagg::sparse_row<float>>,
      normal_form<specagg::processed_row<float>>, normal_form<specagg::mapped_row<float>>>;
  using model = specagg::model_drafter<model_type>;
  using counts = specagg::counts_drafter<float>;
  using lookup = specagg::lookup_drafter<float>;
  using drafters = std::variant<never_drafts, lookup, counts, model, typename Models::head>;
  chosen_drafter(std::size_t vocabulary, drafters own)
      : vocabulary_(vocabulary), own_(std::move(own)) {}

  std::size_t vocab_size() const { return vocabulary_; }
  std::size_t position() const {
    return std::visit([](const auto& d) { return std::size_t(d.position()); }, own_);
  }
  specagg::status rollback(std::size_t n) {
    return std::visit([n](auto& d) { return d.rollback(n); }, own_);
  }
  template <class P>
  specagg::status next(const specagg::draft_position& at, P& processor, row_type& row,
                       double& confidence) {
    return std::visit(
        [&](auto& d) {
          typename std::remove_reference_t<decltype(d)>::row_type own;
          const specagg::status s = d.next(at, processor, own, confidence);
          if (s == specagg::status::ok) row = own;
          return s;
        },
        own_);
  }
  bool call(const specagg::draft_position& at, specagg::addition<model_type>& to_make) const {
    const auto* const calls = std::get_if<model>(&own_);
    return calls && calls->call(at, to_make);
  }

 private:
  std::size_t vocabulary_;
  drafters own_;
};

// logit_bias, penalties and the tokens that are never drawn, as processors of one text. Presence
// and frequency count the answer's tokens, repetition the prompt's, too.
class adjustments {
 public:
  adjustments(const request& r, std::size_t vocabulary, std::size_t longest,
              std::span<const specagg::token_id> unused)
      : bias_(r.bias), unused_(unused) {
    using specagg::penalties;
    const std::size_t each = penalties::memory(vocabulary, longest), one = r.repeats() ? each : 0;
    memory_.resize(one + (r.occurs() ? each : 0));
    const std::span<specagg::token_id> all(memory_);
    if (r.repeats())
      repeated_ =
          penalties({.repetition = r.penalties.repetition}, vocabulary, r.prompt, all.first(one));
    if (r.occurs())
      occurring_ = penalties({.presence = r.penalties.presence, .frequency = r.penalties.frequency},
                             vocabulary, {}, all.subspan(one));
  }
  adjustments(const adjustments&) = delete;

  bool none() const {
    return repeated_.none() && occurring_.none() && (!bias_ || bias_->empty()) && unused_.empty();
  }
  void push(specagg::token_id t) {
    (void)repeated_.push(t);
    (void)occurring_.push(t);
  }
  void pop() {
    repeated_.pop();
    occurring_.pop();
  }
  void apply(std::span<float> logits) const {
    repeated_.apply(logits);
    occurring_.apply(logits);
    if (bias_)
      for (const auto& [token, by] : *bias_) logits[std::size_t(token)] += by;
    cli::mask(logits, unused_);
  }

 private:
  std::shared_ptr<const request::biases> bias_;
  std::span<const specagg::token_id> unused_;
  std::vector<specagg::token_id> memory_;
  specagg::penalties repeated_, occurring_;
};

template <class Models>
class decoder_on final : public decoder {
 public:
  explicit decoder_on(const server_options& o)
      : models_(o),
        ends_(models_.tokens().end_tokens()),
        unused_(models_.tokens().unused()),
        synthetic_(o.synthetic) {}
  std::size_t context() const override { return models_.context(); }
  std::size_t draft_context() const override { return models_.draft_context(); }
  const cli::tokenizer& tokens() const override { return models_.tokens(); }
  std::span<const specagg::token_id> ends() const override { return ends_; }

  double bytes(const request& r) const override {
    const double V = double(tokens().size()), longest = double(r.longest());
    const double rows =
        double(r.gamma + 1) * 4 * V * (1 + (r.draft == drafts::model) + r.logprobs.has_value());
    const double logprobs = r.logprobs ? longest * double(32 + 16 * *r.logprobs) : 0;
    const double drafter = r.draft == drafts::counts ? 16 * V + 220 * longest : 100 * longest;
    const double adjusted = (r.repeats() + r.occurs()) * 4 * (2 * V + longest);
    const double stops = r.stop ? 24 * double(r.stop->bytes()) : 0;
    return rows + logprobs + drafter + adjusted + stops + models_.bytes(r);
  }
  std::unique_ptr<job> begin(std::shared_ptr<request> r, std::size_t place) override {
    return std::make_unique<text_job>(std::move(r), place, *this);
  }
  void step(std::span<job* const> all) override {
    for (job* j : all) {
      j->drafted = false;
      j->emitted = {};
    }
    ++turn_;
    try {
      step_together(all);
    } catch (const std::exception&) {
      // What threw has changed no text. Alone it throws again, and the others go on.
      for (job* const j : all) try {
          step_together({&j, 1});
        } catch (const std::bad_alloc&) {
          j->failure = no_memory;
        } catch (const std::exception& e) {
          j->failure = e.what();
        }
    }
    for (job* const j : all) try {
        describe(static_cast<text_job&>(*j));
      } catch (const std::bad_alloc&) {
        j->emitted = {};
        j->failure = no_memory;
      }
  }

 private:
  using source = shared_source<Models>;
  using drafter_type = chosen_drafter<Models>;
  using shared =
      specagg::together_text<drafter_type, source, request_policy, specagg::random_streams,
                             specagg::synthetic_verifier<specagg::token_verifier>>;

  struct text_job final : job {
    std::vector<specagg::token_id> memory;
    specagg::text written;
    specagg::random_streams random;
    source target;
    std::optional<source> draft;
    std::vector<float> draft_logits;
    specagg::drafting_workspace<float, typename drafter_type::row_type> work;
    drafter_type drafter;
    adjustments adjusted;
    shared decoded;

    text_job(std::shared_ptr<request> r, std::size_t place, decoder_on& of)
        : job(std::move(r)),
          memory(asked->longest()),
          written{memory, asked->prompt.size()},
          random(asked->seed, asked->choice),
          target(of.models_.target(place, memory.size()), of.target_call_),
          work(target.vocab_size(),
               {asked->gamma, asked->how, specagg::end_tokens(of.ends_), true}),
          drafter(work.vocabulary, choose(place, of)),
          adjusted(*asked, work.vocabulary, memory.size(), of.unused_),
          decoded(drafter, target, asked->policy, random,
                  {.text = written, .most = asked->max_tokens, .work = work, .processor = adjusted},
                  {specagg::token_verifier(), of.synthetic_ ? &*of.synthetic_ : nullptr}) {
      std::copy(asked->prompt.begin(), asked->prompt.end(), memory.begin());
      if (asked->logprobs) target.keep(work.gamma + 1);
    }
    typename drafter_type::drafters choose(std::size_t place, decoder_on& of) {
      const std::size_t V = work.vocabulary, longest = memory.size();
      const specagg::decode_options& how = work.options;
      switch (asked->draft) {
        case drafts::none: break;
        case drafts::lookup: return specagg::lookup_drafter<float>(V, longest);
        case drafts::counts:
          return specagg::counts_drafter<float>(V, longest, how.gamma, how.sample);
        case drafts::model:
          draft.emplace(of.models_.draft(place, longest), of.draft_call_);
          draft_logits.resize((how.gamma + 1) * V);
          return specagg::model_drafter<source>(*draft, draft_logits, how.sample);
        case drafts::head: return of.models_.make_head(target.own(), how);
      }
      return never_drafts();
    }
    // What is read before the first draft: all of the prompt but its last token.
    std::span<const specagg::token_id> prompt() const {
      return std::span<const specagg::token_id>(asked->prompt).first(asked->prompt.size() - 1);
    }
    // A draft model whose context is too small for the prompt reads nothing, and drafts nothing.
    bool has_read(const source& s) const {
      return s.position() >= prompt().size() || s.capacity() < asked->prompt.size();
    }
    bool ready() const { return has_read(target) && (!draft || has_read(*draft)); }
  };

  void step_together(std::span<job* const> all) {
    ready_.clear();
    reading_.clear();
    for (job* const j : all) {
      auto& t = static_cast<text_job&>(*j);
      if (t.failure.empty() && !t.decoded.ended) (t.ready() ? ready_ : reading_).push_back(&t);
    }
    read_prompts(all);
    const auto calls_draft = [](const text_job* t) { return t->draft && t->work.gamma > 0; };
    if (ready_.empty()) target_call_.make({});
    if (std::none_of(ready_.begin(), ready_.end(), calls_draft)) draft_call_.make({});
    decoded_.clear();
    for (text_job* const t : ready_) decoded_.push_back(&t->decoded);
    (void)specagg::together_round(std::span<shared* const>(decoded_), work_, models_.pool());
    for (text_job* const t : ready_) {
      const auto& result = t->decoded.result;
      t->drafted = true;
      t->accepted = result.accepted;
      t->emitted = std::span(t->work.emissions).first(result.emitted);
      t->measured = std::span(t->work.acceptances).first(result.drafted);
      if (t->decoded.why != specagg::status::ok) t->failure = std::string(name(t->decoded.why));
    }
    for (text_job* const t : reading_) {
      t->prompt_read = t->target.position();
      for (const source* const s : {&t->target, t->draft ? &*t->draft : &t->target})
        if (s->why != specagg::status::ok) t->failure = std::string(name(s->why));
    }
    for (text_job* const t : ready_) t->prompt_read = t->asked->prompt.size();
  }

  // The target model's log-probabilities of what a step has emitted, where they are asked for.
  void describe(text_job& t) {
    t.logprobs.clear();
    if (!t.asked->logprobs) return;
    for (std::size_t i = 0; i < t.emitted.size(); ++i) {
      const std::span<const float> row = t.target.kept(i);
      const double all = specagg::log_sum_exp(row);
      const auto log_p = [&](specagg::token_id v) { return double(row[std::size_t(v)]) - all; };
      order_.resize(row.size());
      std::iota(order_.begin(), order_.end(), specagg::token_id(0));
      const auto end = order_.begin() + std::ptrdiff_t(std::min(*t.asked->logprobs, row.size()));
      std::partial_sort(order_.begin(), end, order_.end(), [&](auto a, auto b) {
        return std::pair(-row[std::size_t(a)], a) < std::pair(-row[std::size_t(b)], b);
      });
      t.logprobs.push_back({log_p(t.emitted[i].token), {}});
      for (auto v = order_.begin(); v != end; ++v)
        t.logprobs.back().most_likely.push_back({*v, log_p(*v)});
    }
  }

  // Puts pieces of prompts into the calls of this step; each text is the first in turn.
  void read_prompts(std::span<job* const> all) {
    target_call_.prompts.clear();
    draft_call_.prompts.clear();
    std::size_t left = prompt_tokens, draft_left = prompt_tokens;
    std::rotate(reading_.begin(),
                reading_.begin() + std::ptrdiff_t(reading_.empty() ? 0 : turn_ % reading_.size()),
                reading_.end());
    for (text_job* const t : reading_) {
      const auto one = [&](text_job& other) -> source& { return other.target; };
      const auto two = [&](text_job& other) -> source& { return *other.draft; };
      read(*t, t->target, all, one, target_call_, left);
      if (t->draft) read(*t, *t->draft, all, two, draft_call_, draft_left);
    }
  }
  // Of other texts that begin alike, what they have read is copied, and what an older one is about
  // to read is waited for.
  template <class Of>
  void read(text_job& t, source& s, std::span<job* const> all, Of&& of, shared_call<Models>& call,
            std::size_t& left) {
    if (t.has_read(s)) return;
    const auto prompt = t.prompt();
    if constexpr (requires { s.own().adopt(s.own()); }) {
      const std::size_t own = s.position(), worth = own + 16;
      source* best = nullptr;
      std::size_t most = worth;
      for (job* const j : all) {
        auto& other = static_cast<text_job&>(*j);
        if (&other == &t || !other.failure.empty() || (&s != &t.target && !other.draft)) continue;
        source& from = of(other);
        if (other.asked->number < t.asked->number && !other.has_read(from) &&
            specagg::common_prefix(other.prompt(), prompt) >= worth)
          return;
        const std::size_t n = specagg::common_prefix(from.tokens(), prompt);
        if (n < most || from.position() > s.capacity()) continue;
        most = n + 1;
        best = &from;
      }
      if (best && s.own().adopt(best->own()) == specagg::status::ok)
        (void)s.rollback(specagg::common_prefix(s.tokens(), prompt));
    }
    const std::size_t n = std::min(left, prompt.size() - s.position());
    if (n > 0) call.prompts.push_back({&s, prompt.subspan(s.position(), n), {}});
    left -= n;
  }

  std::size_t turn_ = 0;
  Models models_;
  std::vector<specagg::token_id> ends_, unused_;
  const std::optional<specagg::synthetic_acceptance> synthetic_;
  shared_call<Models> target_call_, draft_call_;
  specagg::together_workspace<shared> work_;
  // Of a step.
  std::vector<text_job*> ready_, reading_;
  std::vector<shared*> decoded_;
  std::vector<specagg::token_id> order_;  // of a row
};
