// SPDX-License-Identifier: Apache-2.0
// --backend llama.cpp: each request is a sequence of one context of libllama.
#include <specagg/error.hpp>

#include "decoder.hpp"

#if defined(SPECAGG_CLI_LLAMA_CPP)

#include <specagg/backend/llama_cpp/model.hpp>
#include <specagg/backend/llama_cpp/source.hpp>

#include <numeric>

#include "../cli/llama_cpp_tokenizer.hpp"
#include "../cli/rpc.hpp"

namespace {

using namespace specagg;

struct opened_model {
  std::shared_ptr<llama_model> model;
  std::shared_ptr<llama_context> context;
  opened_model(const std::string& file, const server_options& o)
      : model(llama_cpp::load_model(file)) {
    if (llama_model_is_recurrent(model.get()) || llama_model_is_hybrid(model.get()) ||
        !llama_model_has_decoder(model.get()) || llama_model_has_encoder(model.get()))
      throw error(file, "", "is no model whose memory goes back by some tokens, as drafts need");
    llama_context_params how = llama_context_default_params();
    how.n_seq_max = static_cast<std::uint32_t>(o.requests);
    how.n_ctx =
        static_cast<std::uint32_t>(o.requests * (o.context + o.gamma + o.llama_cpp.exact_batches));
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

class llama_cpp_models {
 public:
  using model = llama_cpp::source;
  struct head : never_drafts {};
  explicit llama_cpp_models(const server_options& o)
      : context_(o.context),
        exact_batches_(o.llama_cpp.exact_batches),
        target_((prepare(o), o.target), o),
        tokens_(target_.model, o.target) {
    if (o.draft.empty()) return;
    draft_.emplace(o.draft, o);
    if (llama_cpp::tokenizer(draft_->model).hash() != tokens_.hash())
      throw error(o.draft, "", "has another vocabulary than " + o.target);
  }

  std::size_t context() const { return context_; }
  std::size_t draft_context() const { return context_; }
  const cli::tokenizer& tokens() const { return tokens_; }
  this_thread pool() const { return {}; }
  std::unique_ptr<model> target(std::size_t place, std::size_t) const {
    return source(target_, place);
  }
  std::unique_ptr<model> draft(std::size_t place, std::size_t) const {
    return source(*draft_, place);
  }
  head make_head(const model&, const decode_options&) const { return {}; }
  double bytes(const request&) const { return 0; }  // libllama has taken the memory
  // libllama computes what neighbouring sequences have in common together.
  static void extend(std::span<addition<model>> all) {
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return all[a].to->options().sequence < all[b].to->options().sequence;
    });
    std::vector<addition<model>> sorted;
    for (const std::size_t i : order) sorted.push_back(all[i]);
    (void)model::extend(sorted);
    for (std::size_t i = 0; i < order.size(); ++i) all[order[i]].why = sorted[i].why;
  }

 private:
  static void prepare(const server_options& o) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    cli::use_rpc_servers(o.llama_cpp.rpc);
  }
  std::unique_ptr<model> source(const opened_model& of, std::size_t place) const {
    return std::make_unique<model>(
        of.context.get(), llama_cpp::source_options{.sequence = static_cast<llama_seq_id>(place),
                                                    .exact_batches = exact_batches_});
  }
  std::size_t context_, exact_batches_;
  opened_model target_;
  std::optional<opened_model> draft_;
  cli::llama_cpp_tokenizer tokens_;
};

}  // namespace

std::unique_ptr<decoder> make_llama_cpp_decoder(const server_options& o) {
  return std::make_unique<decoder_on<llama_cpp_models>>(o);
}

#else

std::unique_ptr<decoder> make_llama_cpp_decoder(const server_options&) {
  throw specagg::error("--backend llama.cpp", "",
                       "this build has no libllama (scripts/get-llama-cpp builds it; then build "
                       "specagg-server again)");
}

#endif
