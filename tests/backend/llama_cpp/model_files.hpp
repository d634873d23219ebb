// SPDX-License-Identifier: Apache-2.0
// Small models of architectures that libllama knows and the CPU backend does not, with a memory
// that cannot go back.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/gguf_writer.hpp"
#include "backend/cpu/models.hpp"

namespace test {

// A file with these bytes while the object lives.
class temporary_file {
 public:
  explicit temporary_file(const std::string& bytes) {
    char name[] = "/tmp/specagg-XXXXXX";
    close(mkstemp(name));
    path_ = name;
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  temporary_file(const temporary_file&) = delete;
  ~temporary_file() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Tensors of random numbers.
class random_tensors {
 public:
  explicit random_tensors(gguf_writer& to) : to_(&to) {}
  void put(const std::string& name, const std::vector<std::uint64_t>& shape, float scale,
           float around = 0) {
    std::size_t count = 1;
    for (const auto n : shape) count *= n;
    std::string bytes;
    std::normal_distribution<float> normal(around, scale);
    for (std::size_t i = 0; i < count; ++i) bytes += raw(normal(random_));
    to_->tensor(name, shape, static_cast<std::uint32_t>(tensor_type::f32), bytes);
  }

 private:
  gguf_writer* to_;
  std::mt19937 random_{1};
};

// A small Mamba model: a recurrent state.
inline std::string recurrent_model() {
  gguf_writer to;
  const std::uint32_t dim = 32, inner = 64, state = 4, rank = 2, conv = 4;
  to.string("general.architecture", "mamba");
  to.integer("mamba.context_length", 256);
  to.integer("mamba.embedding_length", dim);
  to.integer("mamba.feed_forward_length", 0);
  to.integer("mamba.attention.head_count", 0);
  to.integer("mamba.block_count", 2);
  to.integer("mamba.ssm.conv_kernel", conv);
  to.integer("mamba.ssm.inner_size", inner);
  to.integer("mamba.ssm.state_size", state);
  to.integer("mamba.ssm.time_step_rank", rank);
  to.real("mamba.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto pieces = small_vocabulary();
  write_tokenizer(to, pieces);
  random_tensors tensors(to);
  tensors.put("token_embd.weight", {dim, pieces.size()}, 1);
  tensors.put("output_norm.weight", {dim}, 0.1f, 1);
  for (const std::string at : {"blk.0.", "blk.1."}) {
    tensors.put(at + "attn_norm.weight", {dim}, 0.1f, 1);
    tensors.put(at + "ssm_in.weight", {dim, 2 * inner}, 0.2f);
    tensors.put(at + "ssm_conv1d.weight", {conv, inner}, 0.5f);
    tensors.put(at + "ssm_conv1d.bias", {inner}, 0.1f);
    tensors.put(at + "ssm_x.weight", {inner, rank + 2 * state}, 0.2f);
    tensors.put(at + "ssm_dt.weight", {rank, inner}, 0.5f);
    tensors.put(at + "ssm_dt.bias", {inner}, 0.1f);
    tensors.put(at + "ssm_a", {state, inner}, 0.1f, -1);
    tensors.put(at + "ssm_d", {inner}, 0.1f, 1);
    tensors.put(at + "ssm_out.weight", {inner, dim}, 0.2f);
  }
  return to.bytes();
}

// A small Gemma 3 model: five layers of six see the last `window` tokens alone.
inline std::string window_model(std::uint32_t window) {
  gguf_writer to;
  const std::uint32_t dim = 32, heads = 2, ffn = 48;
  to.string("general.architecture", "gemma3");
  to.integer("gemma3.context_length", 512);
  to.integer("gemma3.embedding_length", dim);
  to.integer("gemma3.feed_forward_length", ffn);
  to.integer("gemma3.block_count", 6);
  to.integer("gemma3.attention.head_count", heads);
  to.integer("gemma3.attention.head_count_kv", 1);
  to.integer("gemma3.attention.key_length", dim / heads);
  to.integer("gemma3.attention.value_length", dim / heads);
  to.integer("gemma3.attention.sliding_window", window);
  to.real("gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
  const auto pieces = small_vocabulary();
  write_tokenizer(to, pieces);
  random_tensors tensors(to);
  tensors.put("token_embd.weight", {dim, pieces.size()}, 0.5f);
  tensors.put("output_norm.weight", {dim}, 0.1f, 1);
  for (int i = 0; i < 6; ++i) {
    const auto at = "blk." + std::to_string(i) + ".";
    for (const std::string name : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
      tensors.put(at + name + ".weight", {dim}, 0.1f, 1);
    for (const std::string name : {"attn_q_norm", "attn_k_norm"})
      tensors.put(at + name + ".weight", {dim / heads}, 0.1f, 1);
    tensors.put(at + "attn_q.weight", {dim, dim}, 0.3f);
    tensors.put(at + "attn_k.weight", {dim, dim / heads}, 0.3f);
    tensors.put(at + "attn_v.weight", {dim, dim / heads}, 0.3f);
    tensors.put(at + "attn_output.weight", {dim, dim}, 0.3f);
    tensors.put(at + "ffn_gate.weight", {dim, ffn}, 0.3f);
    tensors.put(at + "ffn_up.weight", {dim, ffn}, 0.3f);
    tensors.put(at + "ffn_down.weight", {ffn, dim}, 0.3f);
  }
  return to.bytes();
}

}  // namespace test
