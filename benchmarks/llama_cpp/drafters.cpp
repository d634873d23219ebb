// SPDX-License-Identifier: Apache-2.0
// Drafts by lookup and by a draft model: llama.cpp's own drafters in llama.cpp's own loop beside
// those of this library, on the same prompts, models and threads, temperature 0. scripts/bench
// builds it with llama.cpp's sources of common/.
//   drafters TARGET DRAFT|none GAMMA TOKENS THREADS PROMPT...      files
#include <ngram-cache.h>
#include <sampling.h>
#include <speculative.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <specagg/backend/llama_cpp/model.hpp>
#include <specagg/backend/llama_cpp/source.hpp>
#include <specagg/backend/llama_cpp/tokenizer.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

namespace {

struct opened {
  std::shared_ptr<llama_model> model;
  std::shared_ptr<llama_context> context;
  opened(const std::string& file, int threads) : model(llama_cpp::load_model(file)) {
    auto how = llama_context_default_params();
    how.n_ctx = how.n_batch = 2048;
    how.n_threads = how.n_threads_batch = threads;
    how.swa_full = true;
    context = llama_cpp::make_context(model, how, file);
  }
  void forget() { llama_memory_clear(llama_get_memory(context.get()), false); }
};

struct result {
  const char* name;
  std::size_t tokens = 0, drafted = 0, accepted = 0, calls = 0, same = 0;
  double seconds = 0;  // without reading the prompt
};
struct job {
  opened& target;
  opened* draft;
  const std::vector<token_id>& prompt;
  std::size_t gamma, most;
  end_tokens ends;
  std::size_t exact_batches = 0;
};
using clock_type = std::chrono::steady_clock;
double since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

void check(bool ok, const char* what) {
  if (!ok) throw error(what, "", "failed");
}

// llama.cpp's loop (its examples/speculative-simple, for models that can go back). propose(text,
// draft) fills the draft; the text ends with the token that the target has not seen; scored(batch)
// follows each call.
std::vector<token_id> theirs(
    const job& j, result& to,
    const std::function<void(std::vector<token_id>&, std::vector<token_id>&)>& propose,
    const std::function<void(const common_batch&)>& scored) {
  llama_context* const in = j.target.context.get();
  common_params_sampling how;
  how.temp = 0;
  how.samplers = {COMMON_SAMPLER_TYPE_TEMPERATURE};
  const common_sampler_ptr sampler(common_sampler_init(j.target.model.get(), how));
  common_batch batch(in);
  std::vector<token_id> text(j.prompt), draft;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) batch.add(text[i], llama_pos(i), 0, false);
  check(batch.size() == 0 || llama_process(in, LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0,
        "llama.cpp");
  scored(batch);
  const auto start = clock_type::now();
  for (bool over = false; !over;) {
    draft.clear();
    propose(text, draft);
    const std::size_t left = j.most - (text.size() - j.prompt.size());
    draft.resize(std::min({draft.size(), j.gamma, left - 1}));
    batch.clear();
    batch.add(text.back(), llama_pos(text.size() - 1), 0, true);
    for (std::size_t i = 0; i < draft.size(); ++i)
      batch.add(draft[i], llama_pos(text.size() + i), 0, true);
    check(llama_process(in, LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0, "llama.cpp");
    scored(batch);
    const auto kept = common_sampler_sample_and_accept_n(sampler.get(), in, draft);
    ++to.calls;
    to.drafted += draft.size();
    to.accepted += kept.size() - 1;
    for (const token_id t : kept) {
      text.push_back(t);
      over = j.ends.contains(t) || text.size() - j.prompt.size() >= j.most;
      if (over) break;
    }
    llama_memory_seq_rm(llama_get_memory(in), 0, llama_pos(text.size() - 1), -1);
    if (j.draft)
      llama_memory_seq_rm(llama_get_memory(j.draft->context.get()), 0, llama_pos(text.size() - 1),
                          -1);
  }
  to.seconds += since(start);
  return {text.begin() + std::ptrdiff_t(j.prompt.size()), text.end()};
}
std::vector<token_id> theirs_alone(const job& j, result& to) {
  return theirs(j, to, [](auto&, auto&) {}, [](auto&) {});
}
std::vector<token_id> theirs_lookup(const job& j, result& to) {  // as their examples/lookup
  common_ngram_cache of_text, none, nobody;
  std::size_t known = 0;
  const auto propose = [&](std::vector<token_id>& text, std::vector<token_id>& draft) {
    common_ngram_cache_update(of_text, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, text,
                              int(text.size() - known), false);
    known = text.size();
    draft.push_back(text.back());
    common_ngram_cache_draft(text, draft, int(j.gamma), LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, of_text,
                             none, nobody);
    draft.erase(draft.begin());
  };
  return theirs(j, to, propose, [](auto&) {});
}
std::vector<token_id> theirs_model(const job& j, result& to) {
  common_params_speculative how;
  how.types = {COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE};
  how.draft.n_max = int(j.gamma);
  how.draft.backend_sampling = false;
  how.draft.ctx_tgt = j.target.context.get();
  how.draft.ctx_dft = j.draft->context.get();
  const common_speculative_ptr drafter(common_speculative_init(how, 1));
  check(drafter != nullptr, "llama.cpp's drafter");
  std::vector<token_id> before;
  const auto propose = [&](std::vector<token_id>& text, std::vector<token_id>& draft) {
    before.assign(text.begin(), text.end() - 1);
    common_speculative_get_draft_params(drafter.get(), 0) = {.drafting = true,
                                                             .n_max = int(j.gamma),
                                                             .pos0 = llama_pos(before.size()),
                                                             .id_last = text.back(),
                                                             .prompt = &before,
                                                             .result = &draft};
    common_speculative_draft(drafter.get());
    llama_memory_seq_rm(llama_get_memory(j.draft->context.get()), 0, llama_pos(before.size()), -1);
  };
  std::size_t calls = 0;
  const auto scored = [&](const common_batch& batch) {
    check(common_speculative_process(drafter.get(), batch), "llama.cpp's drafter");
    if (++calls == 1)
      common_speculative_begin(drafter.get(), 0, {j.prompt.begin(), j.prompt.end() - 1});
  };
  return theirs(j, to, propose, scored);
}

template <class Drafter, class Work>
std::vector<token_id> ours(const job& j, result& to, Drafter& drafts, Work& work) {
  llama_cpp::source target(j.target.context.get(), {.exact_batches = j.exact_batches});
  std::vector<token_id> buffer(j.prompt);
  buffer.resize(j.prompt.size() + j.most + j.gamma);
  text t{buffer, j.prompt.size()};
  check(target.extend(std::span(j.prompt).first(j.prompt.size() - 1), {}) == status::ok,
        "the target");
  random_streams random(1);
  std::size_t emitted = 0;
  work.options = {.gamma = j.gamma, .sample = {.temperature = 0}, .end_of_text = j.ends};
  const auto start = clock_type::now();
  const status why =
      speculative_decode(drafts, target, lossless{}, random,
                         {.text = t,
                          .most = j.most,
                          .work = work,
                          .accept = [&](const emission&) { return ++emitted < j.most; },
                          .after_round =
                              [&](const speculative_result& r, const auto&) {
                                ++to.calls;
                                to.drafted += r.drafted;
                                to.accepted += r.accepted;
                              }});
  to.seconds += since(start);
  check(why == status::ok, "speculative_decode");
  return {buffer.begin() + std::ptrdiff_t(j.prompt.size()),
          buffer.begin() + std::ptrdiff_t(j.prompt.size() + emitted)};
}
std::size_t vocabulary_of(const opened& of) {
  return std::size_t(llama_vocab_n_tokens(llama_model_get_vocab(of.model.get())));
}
std::vector<token_id> ours_lookup(const job& j, result& to) {
  const std::size_t V = vocabulary_of(j.target);
  lookup_drafter<float> drafts(V, j.prompt.size() + j.most + j.gamma);
  drafting_workspace<float, lookup_drafter<float>::row_type> work(V, {.gamma = j.gamma});
  return ours(j, to, drafts, work);
}
std::vector<token_id> ours_exact(const job& j, result& to) {
  job one_by_one = j;
  one_by_one.exact_batches = 1;
  return ours_lookup(one_by_one, to);
}
std::vector<token_id> ours_model(const job& j, result& to) {
  llama_cpp::source draft(j.draft->context.get());
  check(draft.extend(std::span(j.prompt).first(j.prompt.size() - 1), {}) == status::ok,
        "the draft model");
  speculative_workspace<float> work(vocabulary_of(j.target), {.gamma = j.gamma});
  return ours(j, to, draft, work);
}

struct way {
  const char* name;
  std::vector<token_id> (*run)(const job&, result&);
  bool needs_model;
};
constexpr way ways[] = {{"target alone", theirs_alone, false},
                        {"lookup, llama.cpp", theirs_lookup, false},
                        {"lookup, specagg", ours_lookup, false},
                        {"lookup, specagg, exact batches of 1", ours_exact, false},
                        {"draft model, llama.cpp", theirs_model, true},
                        {"draft model, specagg", ours_model, true}};

void run(char** arguments, int prompts) {
  const int threads = std::atoi(arguments[4]);
  opened target(arguments[0], threads);
  std::unique_ptr<opened> draft;
  if (std::string(arguments[1]) != "none") draft = std::make_unique<opened>(arguments[1], threads);
  const llama_cpp::tokenizer tokens(target.model);
  const auto ends = tokens.end_of_generation();
  std::vector<result> results;
  for (const way& w : ways) results.push_back({w.name});
  for (int p = 0; p < prompts; ++p) {
    std::ifstream in(arguments[5 + p]);
    const auto prompt = tokens.encode(std::string{std::istreambuf_iterator<char>(in), {}});
    if (prompt.size() < 2) throw error(arguments[5 + p], "", "has no text");
    std::vector<token_id> alone;
    for (std::size_t k = 0; k < std::size(ways); ++k) {
      if (ways[k].needs_model && !draft) continue;
      target.forget();
      if (draft) draft->forget();
      const job j{target,
                  ways[k].needs_model ? draft.get() : nullptr,
                  prompt,
                  std::size_t(std::atoi(arguments[2])),
                  std::size_t(std::atoi(arguments[3])),
                  end_tokens(ends)};
      const auto text = ways[k].run(j, results[k]);
      if (k == 0) alone = text;
      results[k].tokens += text.size();
      results[k].same += text == alone;
    }
  }
  std::printf(
      "| %d prompts | same texts | accepted of drafted | tokens a call | tokens a second |\n",
      prompts);
  std::printf("| --- | ---: | ---: | ---: | ---: |\n");
  for (const result& r : results)
    if (r.calls > 0)
      std::printf("| %s | %zu | %zu of %zu | %.2f | %.1f |\n", r.name, r.same, r.accepted,
                  r.drafted, double(r.tokens) / double(r.calls), double(r.tokens) / r.seconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: drafters TARGET DRAFT|none GAMMA TOKENS THREADS PROMPT...\n");
    return 2;
  }
  try {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    run(argv + 1, argc - 6);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "drafters: %s\n", e.what());
    return 2;
  }
}
