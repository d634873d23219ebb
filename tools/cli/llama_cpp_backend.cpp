// SPDX-License-Identifier: Apache-2.0
// --backend llama.cpp: models of any architecture that libllama knows.
#include "backends.hpp"

#include <specagg/error.hpp>

#include "site_model.hpp"

#if defined(SPECAGG_CLI_LLAMA_CPP)

#include <specagg/backend/llama_cpp/model.hpp>
#include <specagg/backend/llama_cpp/source.hpp>

#include <algorithm>
#include <map>

#include "llama_cpp_tokenizer.hpp"
#include "rpc.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;

// The longest context that is made: libllama takes the memory at once.
constexpr std::uint32_t most_context = 8192;
constexpr std::uint32_t most_branches = 31;  // of a tree of drafts

struct kept_context {
  std::shared_ptr<llama_context> context;
};
struct owning_source : private kept_context, public llama_cpp::source {
  owning_source(std::shared_ptr<llama_context> context, const llama_cpp::source_options& options)
      : kept_context{context}, llama_cpp::source(context.get(), options) {}
};

void prepare(const llama_cpp_options& o) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  use_rpc_servers(o.rpc);
}
std::shared_ptr<llama_model> load(const std::string& file) {
  progress bar("loading " + file);
  llama_model_params how = llama_model_default_params();
  how.progress_callback = [](float done, void* to) {
    return static_cast<progress*>(to)->show(double{done}), true;
  };
  how.progress_callback_user_data = &bar;
  const auto model = llama_cpp::load_model(file, how);
  if (!llama_model_has_decoder(model.get()) || llama_model_has_encoder(model.get()) ||
      llama_model_is_diffusion(model.get()))
    throw error(file, "", "is no model that writes one token after the other");
  return model;
}
// For up to `most` tokens.
llama_context_params context_of(const llama_model& model, std::size_t most, unsigned threads) {
  llama_context_params how = llama_context_default_params();
  const auto trained = static_cast<std::size_t>(std::max(llama_model_n_ctx_train(&model), 1));
  how.n_ctx = static_cast<std::uint32_t>(std::min(trained, most));
  how.n_batch = how.n_ubatch = 128;
  how.n_threads = how.n_threads_batch = static_cast<std::int32_t>(threads);
  how.swa_full = true;  // so that rounds can go back
  return how;
}

struct llama_cpp_backend final : backend {
  unsigned threads_;
  std::size_t exact_batches;
  std::map<std::string, std::shared_ptr<llama_model>> models;  // by file

  llama_cpp_backend(unsigned threads, const llama_cpp_options& o)
      : threads_(threads), exact_batches(o.exact_batches) {
    prepare(o);
  }
  std::shared_ptr<llama_model> model_of(const std::string& file) {
    auto& known = models[file];
    if (!known) known = load(file);
    return known;
  }
  std::unique_ptr<session> open(const std::string& file) override {
    const auto model = model_of(file);
    llama_context_params how = context_of(*model, most_context, threads_);
    how.n_seq_max = 1 + most_branches;
    how.kv_unified = true;
    if (llama_model_is_recurrent(model.get()) || llama_model_is_hybrid(model.get()))
      how.n_seq_max = 1;
    return std::make_unique<session_of<owning_source>>(
        llama_cpp::make_context(model, how, file),
        llama_cpp::source_options{.branches = how.n_seq_max - 1, .exact_batches = exact_batches});
  }
  std::unique_ptr<const tokenizer> own_tokenizer(const std::string& file) override {
    return std::make_unique<llama_cpp_tokenizer>(model_of(file), file);
  }
  unsigned threads() const override { return threads_; }
};

// Sites: see cpu_sites.
struct llama_cpp_sites {
  struct saved_text {
    std::vector<std::uint8_t> bytes;
    std::vector<token_id> tokens;
  };
  using saved = std::shared_ptr<const saved_text>;
  struct source {
    using value_type = float;
    std::unique_ptr<owning_source> of;
    std::size_t vocab_size() const { return of->vocab_size(); }
    std::size_t capacity() const { return of->capacity(); }
    std::size_t position() const { return of->position(); }
    std::span<const token_id> tokens() const { return of->tokens(); }
    status extend(std::span<const token_id> more, std::span<float> logits) {
      return of->extend(more, logits);
    }
    status rollback(std::size_t position) { return of->rollback(position); }
    void stop_when(const std::atomic<bool>* flag) { of->stop_when(flag); }
  };
  const site_options how;
  const std::shared_ptr<llama_model> model;
  const llama_cpp::tokenizer tokens;

  explicit llama_cpp_sites(const site_options& o)
      : how(o), model((prepare(o.llama_cpp), load(o.model))), tokens(model) {}
  static llama_cpp::tokenizer read_tokens(const std::string& file) {
    llama_model_params how = llama_model_default_params();
    how.vocab_only = true;
    return llama_cpp::tokenizer(llama_cpp::load_model(file, how));
  }
  std::size_t vocab() const { return tokens.size(); }
  source make(std::size_t room, const std::shared_ptr<thread_pool>& pool) const {
    const std::size_t padding = how.llama_cpp.exact_batches ? how.llama_cpp.exact_batches - 1 : 0;
    const auto context = context_of(*model, room + padding, pool ? pool->threads() : 1);
    return {std::make_unique<owning_source>(
        llama_cpp::make_context(model, context, how.model),
        llama_cpp::source_options{.exact_batches = how.llama_cpp.exact_batches})};
  }
  saved save(const source& of) const {
    auto bytes = of.of->save();
    if (bytes.empty()) return nullptr;
    const std::vector<token_id> held(of.tokens().begin(), of.tokens().end());
    return std::make_shared<const saved_text>(saved_text{std::move(bytes), held});
  }
  status restore(source& to, const saved& from) const {
    return to.of->restore(from->bytes, from->tokens);
  }
};

}  // namespace

std::unique_ptr<backend> make_llama_cpp_backend(unsigned threads, const llama_cpp_options& o) {
  return std::make_unique<llama_cpp_backend>(threads, o);
}
std::shared_ptr<site_maker> make_llama_cpp_site_maker(const site_options& o) {
  return make_site_maker<llama_cpp_sites>(o);
}

}  // namespace cli

#else

namespace {
[[noreturn]] void refuse() {
  throw specagg::error(
      "--backend llama.cpp", "",
      "this build has no libllama (scripts/get-llama-cpp builds it; then build specagg again)");
}
}  // namespace
std::unique_ptr<cli::backend> cli::make_llama_cpp_backend(unsigned, const llama_cpp_options&) {
  refuse();
}
std::shared_ptr<cli::site_maker> cli::make_llama_cpp_site_maker(const site_options&) { refuse(); }

#endif
