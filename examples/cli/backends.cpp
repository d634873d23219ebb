// SPDX-License-Identifier: Apache-2.0
#include "backends.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/error.hpp>

#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;

struct cpu_backend final : backend {
  std::shared_ptr<cpu::thread_pool> pool;
  explicit cpu_backend(unsigned threads) : pool(std::make_shared<cpu::thread_pool>(threads)) {}
  std::unique_ptr<session> open(const std::string& file) override {
    progress bar("loading " + file);
    const auto weights = std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file), true,
                                                                    [&](double done) { bar.show(done); });
    return std::make_unique<session_of<cpu::llama>>(weights, pool);
  }
  unsigned threads() const override { return pool->threads(); }
};

}  // namespace

std::unique_ptr<backend> make_backend(const std::string& name, unsigned threads) {
  if (name == "cpu") return std::make_unique<cpu_backend>(threads);
  if (name != "cuda") throw error("--backend " + name, "", "is unknown (cpu, cuda are known)");
#ifdef SPECAGG_CLI_CUDA
  // Loaded when it is wanted: cuBLASLt alone takes 0.15 s.
  if (access(SPECAGG_CLI_CUDA, R_OK) != 0)
    throw error("--backend cuda", "", SPECAGG_CLI_CUDA " is not built (cmake --build build builds it)");
  void* const library = dlopen(SPECAGG_CLI_CUDA, RTLD_NOW);
  void* const make = library ? dlsym(library, "specagg_make_cuda_backend") : nullptr;
  if (!make) throw error("--backend cuda", "", dlerror());
  return std::unique_ptr<backend>(reinterpret_cast<decltype(&specagg_make_cuda_backend)>(make)());
#else
  throw error("--backend cuda", "", "this build has no CUDA backend (CMake found no CUDA compiler)");
#endif
}

}  // namespace cli
