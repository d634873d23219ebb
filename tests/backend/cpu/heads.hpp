// SPDX-License-Identifier: Apache-2.0
// Draft heads for tests: small ones (gguf_writer.hpp), and one that was trained for the bundled
// target.
#pragma once
#include <memory>
#include <string>

#include <specagg/backend/cpu/head_weights.hpp>

#include "backend/cpu/gguf_writer.hpp"
#include "backend/cpu/models.hpp"

namespace test {

// Of a file in memory, which they must not outlive.
inline std::shared_ptr<const specagg::cpu::head_weights> head_of(const gguf_bytes& bytes) {
  return std::make_shared<const specagg::cpu::head_weights>(bytes.open());
}

// tools/train-head wrote it for the bundled target; models/heads.md has the command.
inline const std::string trained_head_file =
    std::string(SPECAGG_SOURCE_DIR) + "/tests/backend/cpu/target_head.gguf";
inline std::shared_ptr<const specagg::cpu::head_weights> trained_head() {
  return std::make_shared<const specagg::cpu::head_weights>(
      specagg::cpu::gguf_file::open(trained_head_file));
}

}  // namespace test
