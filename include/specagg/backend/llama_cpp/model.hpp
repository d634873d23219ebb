// SPDX-License-Identifier: Apache-2.0
// Loads models by libllama, the library of llama.cpp. An engine that has a llama_context needs
// source.hpp alone.
#pragma once
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include <specagg/config.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN
namespace llama_cpp {

// While it lives, what libllama logs is not printed, and the first line of an error is kept.
// libllama has one log for all threads: only one of these may live at a time.
class quiet_log {
 public:
  quiet_log() {
    llama_log_get(&before_, &data_before_);
    llama_log_set(take, this);
  }
  quiet_log(const quiet_log&) = delete;
  quiet_log& operator=(const quiet_log&) = delete;
  ~quiet_log() { llama_log_set(before_, data_before_); }
  const std::string& first_error() const { return error_; }  // one line, may be empty

 private:
  static void take(ggml_log_level level, const char* text, void* self) {
    if (level != GGML_LOG_LEVEL_ERROR) return;
    std::string line(text);
    line.resize(line.find_last_not_of(" \n") + 1);
    for (char& c : line)
      if (c == '\n') c = ' ';
    auto& first = static_cast<quiet_log*>(self)->error_;
    if (first.empty()) first = line;
  }
  ggml_log_callback before_ = nullptr;
  void* data_before_ = nullptr;
  std::string error_;
};

// Models that are loaded from then on are spread over these servers, "HOST:PORT,...": llama.cpp's
// ggml-rpc-server. Throws specagg::error where libllama was built without GGML_RPC, and for a list
// of another form. libllama ends the process (ggml_set_abort_callback) where a server cannot be
// reached, then or later.
inline void add_rpc_servers(const std::string& list) {
  const quiet_log log;
  using add_server = ggml_backend_reg_t(const char*);
  ggml_backend_load_all();
  const ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
  void* const add =
      rpc ? ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server") : nullptr;
  if (!add) throw error("RPC servers " + list, "", "this libllama has no RPC backend (GGML_RPC)");
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t end = std::min(list.find(',', from), list.size());
    const std::string server = list.substr(from, end - from);
    const std::size_t colon = server.rfind(':');
    if (colon == 0 || colon == std::string::npos || colon + 1 == server.size() ||
        server.size() - colon > 6 ||
        server.find_first_not_of("0123456789", colon + 1) != std::string::npos)
      throw error("RPC servers " + list, "", "\"" + server + "\" is not HOST:PORT");
    const ggml_backend_reg_t added = reinterpret_cast<add_server*>(add)(server.c_str());
    if (!added) throw error("RPC server " + server, "", "has no device");
    ggml_backend_register(added);
    from = end + 1;
  }
}

// Loads a GGUF file. Throws specagg::error with libllama's own reason where it refuses the file.
[[nodiscard]] inline std::shared_ptr<llama_model> load_model(
    const std::string& file, const llama_model_params& how = llama_model_default_params()) {
  const quiet_log log;
  llama_backend_init();
  if (llama_model* const made = llama_model_load_from_file(file.c_str(), how))
    return {made, llama_model_free};
  throw error(file, "",
              "libllama cannot load it" +
                  (log.first_error().empty() ? "" : " (" + log.first_error() + ")"));
}

// A context of a model, which it keeps alive. file: for the message. Throws specagg::error where
// libllama makes none.
[[nodiscard]] inline std::shared_ptr<llama_context> make_context(
    const std::shared_ptr<llama_model>& model, const llama_context_params& how,
    const std::string& file) {
  const quiet_log log;
  llama_context* const made = llama_init_from_model(model.get(), how);
  if (!made)
    throw error(file, "",
                "libllama makes no context" +
                    (log.first_error().empty() ? "" : " (" + log.first_error() + ")"));
  return {made, [model](llama_context* c) { llama_free(c); }};
}

}  // namespace llama_cpp
SPECAGG_END
