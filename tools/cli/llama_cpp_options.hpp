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

}  // namespace cli
