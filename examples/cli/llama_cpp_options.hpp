// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <string>

namespace cli {

// What --backend llama.cpp can be told, and no other backend.
struct llama_cpp_options {
  std::size_t exact_batches = 0;  // source_options (backend/llama_cpp/source.hpp)
  std::string rpc;                // servers that compute for libllama: HOST:PORT,...
};
// Throws specagg::error where another backend is told it.
void refuse_for_others(const std::string& backend, const llama_cpp_options& o);

}  // namespace cli
