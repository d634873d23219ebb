// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/llama_cpp/model.hpp>

#include "backend/llama_cpp/models.hpp"
#include "support/catch.hpp"

using namespace specagg;

TEST_CASE("a file that libllama cannot load is named, in one line with libllama's reason") {
  const test::temporary_file empty(""), text("This is no model."), damaged([] {
    auto file = test::small_model{.skip = "blk.1.attn_k.weight"}.write();
    return file.bytes();
  }());
  const std::string missing = "/nonexistent/model.gguf";
  for (const std::string& path : {missing, empty.path(), text.path(), damaged.path()}) {
    const std::string why = test::error_of([&] { (void)llama_cpp::load_model(path); });
    INFO(why);
    CHECK(why.starts_with(path + ": libllama cannot load it ("));
    CHECK(why.find('\n') == std::string::npos);
  }
}

TEST_CASE("a context that libllama refuses is named, and one keeps its model alive") {
  const std::string file = test::bundled_file("draft");
  auto model = llama_cpp::load_model(file);
  auto how = test::small_context();
  how.n_seq_max = 1u << 20;  // more than libllama knows
  const std::string why = test::error_of([&] { (void)llama_cpp::make_context(model, how, file); });
  CHECK(why.starts_with(file + ": libllama makes no context"));
  const auto context = llama_cpp::make_context(model, test::small_context(), file);
  model.reset();
  llama_cpp::source source(context.get());
  CHECK(source.extend(test::some_tokens(3, source.vocab_size()), {}) == status::ok);
}

TEST_CASE("libllama's log is quiet while a quiet_log lives, and as before after it") {
  static int lines;
  lines = 0;
  const auto count = [](ggml_log_level, const char*, void*) { ++lines; };
  llama_log_set(count, nullptr);
  {
    const llama_cpp::quiet_log log;
    CHECK(llama_model_load_from_file("/nonexistent/model.gguf", llama_model_default_params()) ==
          nullptr);
    CHECK(!log.first_error().empty());
  }
  CHECK(lines == 0);
  CHECK(llama_model_load_from_file("/nonexistent/model.gguf", llama_model_default_params()) ==
        nullptr);
  CHECK(lines > 0);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
}

TEST_CASE("a list of RPC servers that is none is refused before any of them is asked") {
  for (const std::string list :
       {"", "127.0.0.1", "127.0.0.1:", ":50052", "127.0.0.1:x", "127.0.0.1:123456", ",a:1"}) {
    const std::string why = test::error_of([&] { llama_cpp::add_rpc_servers(list); });
    INFO(why);
    CHECK((why.find("is not HOST:PORT") != std::string::npos ||
           why.find("has no RPC backend") != std::string::npos));
  }
}
