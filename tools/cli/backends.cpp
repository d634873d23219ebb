// SPDX-License-Identifier: Apache-2.0
#include "backends.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <specagg/backend/cpu/draft_head.hpp>
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/draft/head.hpp>
#include <specagg/draft/mapped.hpp>
#include <specagg/error.hpp>

#include "chat.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;

struct cpu_head final : head_session {
  cpu::draft_head head;
  head_source<cpu::draft_head, cpu::llama> source;
  cpu_head(const std::string& file, cpu::llama& target, const std::shared_ptr<thread_pool>& pool)
      : head(std::make_shared<const cpu::head_weights>(cpu::gguf_file::open(file)),
             target.shared_weights(), pool, target.capacity()),
        source(head, target) {
    target.keep_hidden();
  }
  const vocabulary_map& map() const override { return head.weights().map; }
  std::size_t vocab_size() const override { return source.vocab_size(); }
  std::size_t capacity() const override { return source.capacity(); }
  std::size_t position() const override { return source.position(); }
  status extend(std::span<const token_id> tokens, std::span<float> logits) override {
    return source.extend(tokens, logits);
  }
  status rollback(std::size_t n) override { return source.rollback(n); }
  bool scores_trees() const override { return true; }
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<float> logits) override {
    return source.extend_tree(tokens, parents, logits);
  }
  status keep_path(std::span<const std::uint32_t> nodes) override {
    return source.keep_path(nodes);
  }
};

// Its rows made rows over the target's vocabulary.
struct mapped_head : mapped_source<session> {
  std::unique_ptr<head_session> own;
  explicit mapped_head(std::unique_ptr<head_session> head)
      : mapped_source<session>(*head, head->map()), own(std::move(head)) {}
};

struct cpu_backend final : backend {
  std::shared_ptr<thread_pool> pool;
  explicit cpu_backend(unsigned threads) : pool(std::make_shared<thread_pool>(threads)) {}
  std::unique_ptr<session> open(const std::string& file) override {
    progress bar("loading " + file);
    const auto weights = std::make_shared<const cpu::llama_weights>(
        cpu::gguf_file::open(file), true, [&](double done) { bar.show(done); });
    return std::make_unique<session_of<cpu::llama>>(weights, pool);
  }
  std::unique_ptr<head_session> open_head(const std::string& file, session& target) override {
    return std::make_unique<cpu_head>(file, dynamic_cast<session_of<cpu::llama>&>(target).model,
                                      pool);
  }
  unsigned threads() const override { return pool->threads(); }
};

}  // namespace

std::unique_ptr<session> over_target(std::unique_ptr<head_session> head) {
  return std::make_unique<session_of<mapped_head>>(std::move(head));
}

bool is_draft_head(const std::string& file) {
  try {
    const auto opened = cpu::gguf_file::open(file);
    return opened.find("general.architecture") &&
           opened.string("general.architecture") == "specagg-head";
  } catch (const error&) {  // the backend says what is wrong with it, or can read it
    return false;
  }
}
std::unique_ptr<const tokenizer> open_tokenizer(backend& on, const std::string& file) {
  if (auto own = on.own_tokenizer(file)) return own;
  return std::make_unique<cpu_tokenizer>(cpu::gguf_file::open(file));
}

std::unique_ptr<backend> make_backend(const std::string& name, unsigned threads,
                                      const llama_cpp_options& o) {
  if (name == "llama.cpp") return make_llama_cpp_backend(threads, o);
  if (name == "cpu") return std::make_unique<cpu_backend>(threads);
  if (name != "cuda")
    throw error("--backend " + name, "", "is unknown (cpu, cuda, llama.cpp are known)");
#ifdef SPECAGG_CLI_CUDA
  // Loaded when it is wanted: cuBLASLt alone takes 0.15 s.
  if (access(SPECAGG_CLI_CUDA, R_OK) != 0)
    throw error("--backend cuda", "",
                SPECAGG_CLI_CUDA " is not built (cmake --build build builds it)");
  void* const library = dlopen(SPECAGG_CLI_CUDA, RTLD_NOW);
  void* const make = library ? dlsym(library, "specagg_make_cuda_backend") : nullptr;
  if (!make) throw error("--backend cuda", "", dlerror());
  return std::unique_ptr<backend>(reinterpret_cast<decltype(&specagg_make_cuda_backend)>(make)());
#else
  throw error("--backend cuda", "",
              "this build has no CUDA backend (CMake found no CUDA compiler)");
#endif
}

}  // namespace cli
