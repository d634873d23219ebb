// SPDX-License-Identifier: Apache-2.0
// Draft heads for tests: small ones made on the spot, and one that was trained for the bundled target.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <specagg/backend/cpu/head_weights.hpp>

#include "backend/cpu/gguf_writer.hpp"
#include "backend/cpu/models.hpp"

namespace test {

// For a small_model target of the same dim. Its weights are the same numbers in every tensor type.
struct small_head {
  std::uint64_t fingerprint = 0;
  tensor_type type = tensor_type::f32;
  std::uint32_t dim = 64, heads = 4, kv_heads = 2, ffn = 96, context = 80, rotated = 16, blocks = 1;
  std::uint32_t target_vocab = static_cast<std::uint32_t>(small_vocabulary().size());
  std::vector<std::int32_t> to = {3, 0, 270, 12, 13, 99, 100, 269, 40, 41};  // then as d2t
  std::string architecture = "specagg-head", skip = {}, twist = {}, extra = {};  // tensors: left out, turned, added

  gguf_writer write() const {
    gguf_writer out;
    out.string("general.architecture", architecture);
    const auto key = [](const char* rest) { return std::string("specagg-head.") + rest; };
    out.integer(key("context_length"), context);
    out.integer(key("embedding_length"), dim);
    out.integer(key("block_count"), blocks);
    out.integer(key("feed_forward_length"), ffn);
    out.integer(key("attention.head_count"), heads);
    out.integer(key("attention.head_count_kv"), kv_heads);
    out.real(key("attention.layer_norm_rms_epsilon"), 1e-5f);
    out.integer(key("rope.dimension_count"), rotated);
    out.integer(key("target_vocab_size"), target_vocab);
    out.value(key("target_fingerprint"), value_type::u64, raw(fingerprint));
    auto d2t = to;
    for (std::size_t d = 0; d < d2t.size(); ++d) d2t[d] -= static_cast<std::int32_t>(d);
    out.numbers(key("d2t"), d2t);
    std::uint32_t state = 7;
    const auto put = [&](const std::string& name, std::uint64_t cols, std::uint64_t rows, tensor_type as) {
      std::vector<int> numbers(cols * rows);
      for (auto& x : numbers) x = (static_cast<int>((state = state * 1664525u + 1013904223u) >> 26) - 31) / 2;
      auto shape = rows == 1 ? std::vector<std::uint64_t>{cols} : std::vector<std::uint64_t>{cols, rows};
      if (name == twist) shape = {rows, cols};
      if (name != skip) out.tensor(name, shape, static_cast<std::uint32_t>(as), encode(numbers, as));
    };
    const auto kv = dim / heads * kv_heads;
    put("fc.weight", 2 * dim, dim, type);
    put("output.weight", dim, 10, type);
    put("output_norm.weight", dim, 1, tensor_type::f32);
    put("blk.0.attn_norm.weight", dim, 1, tensor_type::f32);
    put("blk.0.attn_q.weight", dim, dim, type);
    put("blk.0.attn_k.weight", dim, kv, type);
    put("blk.0.attn_v.weight", dim, kv, type);
    put("blk.0.attn_output.weight", dim, dim, type);
    put("blk.0.ffn_norm.weight", dim, 1, tensor_type::f32);
    put("blk.0.ffn_gate.weight", dim, ffn, type);
    put("blk.0.ffn_up.weight", dim, ffn, type);
    put("blk.0.ffn_down.weight", ffn, dim, type);
    if (!extra.empty()) put(extra, dim, 1, tensor_type::f32);
    return out;
  }
};
// Of a file in memory, which they must not outlive.
inline std::shared_ptr<const specagg::cpu::head_weights> head_of(const gguf_bytes& bytes) {
  return std::make_shared<const specagg::cpu::head_weights>(bytes.open());
}

// scripts/train-head wrote it for the bundled target; docs/drafters.md has the command.
inline const std::string trained_head_file = std::string(SPECAGG_SOURCE_DIR) + "/tests/backend/cpu/target_head.gguf";
inline std::shared_ptr<const specagg::cpu::head_weights> trained_head() {
  return std::make_shared<const specagg::cpu::head_weights>(specagg::cpu::gguf_file::open(trained_head_file));
}

}  // namespace test
