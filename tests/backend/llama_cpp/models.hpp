// SPDX-License-Identifier: Apache-2.0
// Contexts of libllama for tests: of the bundled models, and of those of model_files.hpp.
#pragma once
#include <specagg/backend/llama_cpp/model.hpp>
#include <specagg/backend/llama_cpp/source.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/models.hpp"
#include "backend/difference.hpp"
#include "backend/llama_cpp/model_files.hpp"
#include "support/catch.hpp"

namespace test {

inline std::string bundled_file(const std::string& name) {
  return std::string(SPECAGG_MODELS) + "/" + name + ".gguf";
}

// One thread, a small context, sequences in one buffer.
inline llama_context_params small_context(std::uint32_t tokens = 512, std::uint32_t sequences = 1) {
  llama_context_params how = llama_context_default_params();
  how.n_ctx = tokens;
  how.n_batch = how.n_ubatch = 128;
  how.n_seq_max = sequences;
  how.kv_unified = true;
  how.n_threads = how.n_threads_batch = 1;
  how.swa_full = true;
  return how;
}

// A context of a model file; `source` is its one sequence, or with branches a tree's.
struct loaded {
  std::shared_ptr<llama_model> model;
  std::shared_ptr<llama_context> context;
  specagg::llama_cpp::source source;
  // What libllama logs is not printed.
  explicit loaded(const std::string& file, const llama_context_params& how = small_context(),
                  const specagg::llama_cpp::source_options& options = {})
      : model(specagg::llama_cpp::load_model(file)),
        context(specagg::llama_cpp::make_context(model, how, file)),
        source(context.get(), options) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  }
};

inline std::span<const float> row(std::span<const float> rows, std::size_t i, std::size_t vocab) {
  return rows.subspan(i * vocab, vocab);
}
// All rows of a text that is fed from its beginning in calls of these sizes, in turn.
inline std::vector<float> rows_in_calls(specagg::llama_cpp::source& of,
                                        std::span<const specagg::token_id> tokens,
                                        const std::vector<std::size_t>& sizes) {
  REQUIRE(of.rollback(0) == specagg::status::ok);
  std::vector<float> all;
  for (std::size_t i = 0, k = 0; i < tokens.size(); ++k) {
    const std::size_t n = std::min(sizes[k % sizes.size()], tokens.size() - i);
    const auto some = rows_of(of, tokens.subspan(i, n));
    all.insert(all.end(), some.begin(), some.end());
    i += n;
  }
  return all;
}

}  // namespace test
