// SPDX-License-Identifier: Apache-2.0
#include "version.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <specagg/kernel/simd.hpp>

namespace cli {

std::string version_text() {
#ifdef __clang__
  const std::string compiler =
      fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler =
      fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  std::string with, without;
  const auto part = [&](bool in, const char* name) {
    std::string& list = in ? with : without;
    list += (list.empty() ? "" : ", ") + std::string(name);
  };
#ifdef SPECAGG_CLI_CUDA
  part(access(SPECAGG_CLI_CUDA, R_OK) == 0, "CUDA");  // a library, built apart
#else
  part(false, "CUDA");
#endif
#ifdef SPECAGG_CLI_NET
  part(true, "gRPC");
#else
  part(false, "gRPC");
#endif
#ifdef SPECAGG_CLI_LLAMA_CPP
  part(true, "llama.cpp");
#else
  part(false, "llama.cpp");
#endif
#ifdef SPECAGG_XAPIAN
  part(true, "Xapian");
#else
  part(false, "Xapian");
#endif
  std::string text = fmt::format("specagg {}\ninstruction set: {}\ncompiler: {}", SPECAGG_VERSION,
                                 specagg::instruction_set, compiler);
  if (!with.empty()) text += "\nwith: " + with;
  if (!without.empty()) text += "\nwithout: " + without;
  return text;
}

}  // namespace cli
