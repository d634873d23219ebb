// SPDX-License-Identifier: Apache-2.0
// --backend cuda: the one file of the command-line program that the CUDA compiler reads.
#include <specagg/backend/cuda/llama.hpp>

#include "backends.hpp"

namespace cli {
namespace {

using namespace specagg;

struct cuda_backend final : backend {
  // of all models
  std::shared_ptr<const cuda::device> device = std::make_shared<const cuda::device>();
  std::unique_ptr<session> open(const std::string& file) override {
    const auto weights =
        std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file), false);
    return std::make_unique<session_of<cuda::llama>>(
        std::make_shared<const cuda::llama_weights>(weights, device));
  }
};

}  // namespace
}  // namespace cli

cli::backend* specagg_make_cuda_backend() {
  try {
    return new cli::cuda_backend;
  } catch (const specagg::error& e) {
    throw specagg::error("--backend cuda", "", specagg::printable(e.what()));
  }
}
