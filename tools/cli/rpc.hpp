// SPDX-License-Identifier: Apache-2.0
// --rpc HOST:PORT,...: libllama computes on these servers. Where one cannot be reached, or goes
// away, libllama aborts; here that is one line and status 2.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <specagg/backend/llama_cpp/model.hpp>

namespace cli {

// Throws specagg::error where the list is none, or libllama has no RPC.
inline void use_rpc_servers(const std::string& list) {
  if (list.empty()) return;
  ggml_set_abort_callback([](const char* text) {  // "file:line: reason"
    const std::string_view why(text);
    const std::size_t reason = why.find(": ") == why.npos ? 0 : why.find(": ") + 2;
    const std::string line =
        specagg::printable(why.substr(reason, why.find('\n', reason) - reason));
    std::fprintf(stderr, "specagg: --rpc: %s\n", line.c_str());
    std::_Exit(2);
  });
  specagg::llama_cpp::add_rpc_servers(list);
}

}  // namespace cli
