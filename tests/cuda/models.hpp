// SPDX-License-Identifier: Apache-2.0
// Models on the device, for tests.
#pragma once
#include <memory>
#include <utility>

#include <specagg/backend/cuda/llama.hpp>

#include "backend/cpu/models.hpp"

namespace test {

inline std::shared_ptr<const specagg::cuda::llama_weights> on_device(
    std::shared_ptr<const specagg::cpu::llama_weights> weights,
    std::shared_ptr<const specagg::cuda::device> on =
        std::make_shared<const specagg::cuda::device>()) {
  return std::make_shared<const specagg::cuda::llama_weights>(std::move(weights), std::move(on));
}
// No size is a multiple of 16.
inline small_model odd_model() { return {.dim = 72, .ffn = 100, .rotated = 14}; }

}  // namespace test
