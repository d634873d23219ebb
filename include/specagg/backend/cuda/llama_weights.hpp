// SPDX-License-Identifier: Apache-2.0
// The weights of a Llama in device memory, from a file that backend/cpu/llama_weights.hpp has read.
//
// Matrices are stored in 16 bits on the device: bf16 if the file has BF16 matrices, else f16 (F16
// unchanged, F32 and Q8_0 rounded). Everything else is in floats.
#pragma once
#include <specagg/backend/cuda/llama_kernels.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/backend/cuda/llama_device.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN
namespace cuda {

// The weights of one file in device memory. Immutable; sessions share it.
class llama_weights {
 public:
  // One layer's weights, on the device. Matrices have 16-bit floats, row by row.
  struct layer {
    float *attention_norm = nullptr, *ffn_norm = nullptr;
    std::byte *qkv = nullptr, *output = nullptr, *gate_up = nullptr,
              *down = nullptr;  // of matrices one below the other
  };

  // Throws specagg::error: no memory, or a weight too large for f16.
  llama_weights(std::shared_ptr<const cpu::llama_weights> from, std::shared_ptr<const device> on)
      : host_(std::move(from)), on_(std::move(on)), layers_(host_->layers.size()) {
    const auto& h = *host_;
    if (h.head_dim > llama_kernels::most_head_dim)
      h.file.fail("llama.attention.key_length",
                  cpu::joined("is ", h.head_dim, " (the CUDA backend takes at most ",
                              llama_kernels::most_head_dim, ")"));
    each_matrix([&](std::byte*&, std::initializer_list<const cpu::tensor*> parts) {
      for (const auto* t : parts) brain_ |= t->type == cpu::tensor_type::bf16;
    });
    check(cudaSetDevice(on_->ordinal()), "weights", h.file.name());
    arena counted;
    place(counted);
    memory_ = device_memory(counted.used(), h.file.name());
    arena placed(memory_.get());
    place(placed);
    upload();
  }

  // The file's weights that this object was made from, and its device; it keeps both alive.
  const cpu::llama_weights& host() const { return *host_; }
  const device& on() const { return *on_; }
  bool brain_floats() const { return brain_; }  // bf16 instead of f16
  const std::vector<layer>& layers() const { return layers_; }
  const std::byte* embedding() const { return embedding_; }
  const std::byte* output() const { return output_ ? output_ : embedding_; }
  const float* output_norm() const { return output_norm_; }

 private:
  // Calls f(its place in device memory, the tensors that make up its rows) for every matrix and
  // every vector.
  void each_matrix(auto&& f) {
    const auto& h = *host_;
    f(embedding_, {&h.embedding});
    if (h.output.data != h.embedding.data) f(output_, {&h.output});
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto& from = h.layers[i];
      auto& to = layers_[i];
      f(to.qkv, {&from.q, &from.k, &from.v});
      f(to.output, {&from.output});
      f(to.gate_up, {&from.gate, &from.up});
      f(to.down, {&from.down});
    }
  }
  void each_vector(auto&& f) {
    f(output_norm_, host_->output_norm);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      f(layers_[i].attention_norm, host_->layers[i].attention_norm);
      f(layers_[i].ffn_norm, host_->layers[i].ffn_norm);
    }
  }
  static std::size_t elements(std::initializer_list<const cpu::tensor*> parts) {
    std::size_t rows = 0;
    for (const auto* t : parts) rows += t->rows;
    return cpu::padded(rows) * cpu::padded((*parts.begin())->cols);
  }

  void place(arena& memory) {
    each_matrix([&](std::byte*& at, std::initializer_list<const cpu::tensor*> parts) {
      at = memory.take<std::byte>(2 * elements(parts));
    });
    each_vector([&](float*& at, const std::vector<float>& numbers) {
      at = memory.take<float>(numbers.size());
    });
  }

  void upload() {
    const auto copy = [&](void* to, const void* from, std::size_t bytes) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, on_->stream()), "weights",
            host_->file.name());
      check(cudaStreamSynchronize(on_->stream()), "weights", host_->file.name());
    };
    std::vector<std::uint16_t> all;
    each_matrix([&](std::byte*& at, std::initializer_list<const cpu::tensor*> parts) {
      all.assign(elements(parts), 0);
      auto* to = all.data();
      for (const auto* t : parts)
        for (std::size_t r = 0; r < t->rows; ++r, to += cpu::padded(t->cols))
          convert_row(*t, r, to);
      copy(at, all.data(), 2 * all.size());
    });
    each_vector([&](float*& at, const std::vector<float>& numbers) {
      copy(at, numbers.data(), 4 * numbers.size());
    });
  }

  void convert_row(const cpu::tensor& t, std::size_t r, std::uint16_t* to) const {
    if (t.type == (brain_ ? cpu::tensor_type::bf16 : cpu::tensor_type::f16)) {
      std::memcpy(to, t.data + r * cpu::row_bytes(t.type, t.cols), 2 * t.cols);
      return;
    }
    std::vector<float> row(t.cols);
    cpu::read_row(t, r, row.data());
    for (const float x : row) {
      const std::uint16_t h =
          brain_ ? llama_kernels::rounded<bf16>(x).bits : llama_kernels::rounded<f16>(x).bits;
      *to++ = h;
      if (std::isfinite(x) && (h & 0x7fffu) == (brain_ ? 0x7f80u : 0x7c00u))
        throw error(host_->file.name(), cpu::joined("tensor ", printable(t.name)),
                    "has a number beyond those of 16-bit floats");
    }
  }

  std::shared_ptr<const cpu::llama_weights> host_;
  std::shared_ptr<const device> on_;
  bool brain_ = false;
  owned_memory memory_;
  std::byte *embedding_ = nullptr, *output_ = nullptr;  // output_: null if tied
  float* output_norm_ = nullptr;
  std::vector<layer> layers_;
};

}  // namespace cuda
SPECAGG_END
