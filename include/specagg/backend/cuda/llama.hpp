// SPDX-License-Identifier: Apache-2.0
// The Llama architecture on a CUDA device as a source of logits. It reads the same files as
// backend/cpu/llama.hpp.
//
// Matrices have 16-bit elements (llama_weights.hpp); everything else is in floats. The logits of an
// F16 file differ from the CPU's by rounding only.
//
// A token's row does not depend on how tokens were grouped into calls, as far as this library
// decides it. Every step is the same graph of launches for `tile` tokens, even if there are fewer.
// Algorithms are chosen once. Positions and columns fix the order of every sum, and no sum of a
// matrix product is split. One assumption remains: cuBLASLt's kernel treats all columns of one
// product alike. NVIDIA does not document this; tests/cuda/llama.test.cpp checks it where it runs
// on a device. Another device or version of cuBLASLt may give other bits.
#pragma once
#include <specagg/backend/cuda/llama_kernels.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/backend/cuda/llama_device.hpp>
#include <specagg/backend/cuda/llama_weights.hpp>
#include <specagg/backend/cuda/llama_product.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cuda {

// One sequence: the weights, a KV cache, scratch memory. The constructor allocates all memory and
// captures the two graphs of a step (with logits and without); extend() replays them. All of this
// is ordered by the device's stream.
class llama {
 public:
  using value_type = float;
  static constexpr std::size_t tile = llama_kernels::tile;  // tokens per step

  // capacity: the number of positions to keep (see cpu::checked_capacity). Throws specagg::error.
  explicit llama(std::shared_ptr<const llama_weights> weights, std::size_t capacity = 0)
      : w_(std::move(weights)),
        capacity_(cpu::checked_capacity(w_->host(), capacity)),
        shape_(shape_of(w_->host(), capacity_)),
        qkv_(product_of(shape_.qkv_padded, shape_.dim_padded)),
        output_(product_of(shape_.dim_padded, shape_.width_padded)),
        gate_up_(product_of(shape_.gate_up_padded, shape_.dim_padded)),
        down_(product_of(shape_.dim_padded, shape_.ffn_padded)),
        vocabulary_(product_of(shape_.vocab_padded, shape_.dim_padded)) {
    text_.reserve(capacity_);
    const std::string& name = w_->host().file.name();
    arena counted;
    place(counted);
    memory_ = device_memory(counted.used(), name);
    arena placed(memory_.get());
    place(placed);
    // the padding stays 0
    check(cudaMemsetAsync(memory_.get(), 0, counted.used(), stream()), "session", name);
    upload_rotations();
    steps_ = host_memory<llama_kernels::step>(steps_for(capacity_), name);
    rows_ = host_memory<float>(tile * vocab_size(), name);
    cudaEvent_t made{};
    check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "session", name);
    steps_read_.reset(made);
    // Runs one step without tokens, so that errors appear here. It does only the products and the
    // launches.
    forward(true);
    check(cudaStreamSynchronize(stream()), "first step", name);
    for (const bool logits : {false, true}) graphs_[logits] = capture(logits);
  }

  llama(llama&&) = default;
  ~llama() {
    // the last extend_on_device() may still be running
    if (w_) (void)cudaStreamSynchronize(stream());
  }

  std::size_t vocab_size() const { return shape_.vocab; }
  std::size_t position() const { return text_.size(); }
  std::size_t capacity() const { return capacity_; }
  std::span<const token_id> tokens() const { return text_; }
  const llama_weights& weights() const { return *w_; }

  // Appends the tokens, and writes the logits after each of the last logits.size() / V tokens, one
  // row of V each. Waits for the result. On any status but ok nothing was appended. model_failed:
  // CUDA failed, and failure() says how. Tokens appended by earlier calls remain (but after some
  // errors CUDA refuses everything).
  status extend(std::span<const token_id> tokens, std::span<float> logits) {
    const auto rows = logits.size() / vocab_size();
    if (rows * vocab_size() != logits.size()) return status::invalid_parameter;
    if (const status s = refusal(tokens, rows); s != status::ok) return s;
    const auto take_rows = [&](std::size_t first, std::size_t count) {
      for (std::size_t t = 0; t < count; ++t)
        if (!done(cudaMemcpyAsync(rows_.get() + t * vocab_size(), logits_at(first + t),
                                  4 * vocab_size(), cudaMemcpyDeviceToHost, stream())))
          return false;
      if (!done(cudaStreamSynchronize(stream()))) return false;
      std::copy_n(rows_.get(), count * vocab_size(), logits.data());
      logits = logits.subspan(count * vocab_size());
      return true;
    };
    if (!run(tokens, rows, take_rows) || (rows == 0 && !done(cudaStreamSynchronize(stream()))))
      return status::model_failed;
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    return status::ok;
  }

  // Appends the tokens as extend() does, without waiting. The logits of the last `rows` tokens (at
  // most `tile`) stay on the device.
  status extend_on_device(std::span<const token_id> tokens, std::size_t rows) {
    if (rows > tile) return status::invalid_parameter;
    if (const status s = refusal(tokens, rows); s != status::ok) return s;
    if (!run(tokens, rows, [](std::size_t, std::size_t) { return true; }))
      return status::model_failed;
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    return status::ok;
  }

  // The logits after the token at `position`: V floats in device memory, valid for work that is put
  // into stream() next. The rows of the following positions come after it, up to `tile` in all. A
  // row is kept until the row of position + tile is computed; rollback does not change it.
  const float* logits_at(std::size_t position) const {
    return logits_ + position % tile * vocab_size();
  }
  cudaStream_t stream() const { return w_->on().stream(); }
  [[nodiscard]] cudaError_t failure() const { return failure_; }

  // Removes all tokens from `position` on. `position` must not be beyond the present one. O(1).
  status rollback(std::size_t position) {
    text_.resize(std::min(position, text_.size()));
    return status::ok;
  }

 private:
  static std::size_t padded_to_32(std::size_t n) { return (n + 31) / 32 * 32; }
  static std::size_t steps_for(std::size_t tokens) { return (tokens + tile - 1) / tile; }

  static llama_kernels::shape shape_of(const cpu::llama_weights& w, std::size_t capacity) {
    const auto number = [](std::size_t n) { return unsigned(n); };
    const auto padded = [](std::size_t n) { return unsigned(cpu::padded(n)); };
    const auto width = w.heads * w.head_dim, kv_width = w.kv_heads * w.head_dim;
    llama_kernels::shape m{};
    m.dim = number(w.dim);
    m.dim_padded = padded(w.dim);
    m.ffn = number(w.ffn);
    m.ffn_padded = padded(w.ffn);
    m.gate_up_padded = padded(2 * w.ffn);
    m.heads = number(w.heads);
    m.kv_heads = number(w.kv_heads);
    m.head_dim = number(w.head_dim);
    m.width_padded = padded(width);
    m.qkv_padded = padded(width + 2 * kv_width);
    m.pairs = number(w.frequencies.size());
    m.vocab = number(w.vocab);
    m.vocab_padded = padded(w.vocab);
    m.capacity_padded = number(padded_to_32(capacity));
    m.epsilon = w.epsilon;
    m.query_scale = 1 / std::sqrt(float(w.head_dim));
    return m;
  }
  product product_of(std::size_t rows, std::size_t cols) const {
    return {w_->on(), w_->brain_floats() ? CUDA_R_16BF : CUDA_R_16F, rows, cols, 2 * tile};
  }

  void place(arena& memory) {
    const auto& m = shape_;
    step_ = memory.take<llama_kernels::step>(1);
    rotations_ = memory.take<float2>(capacity_ * m.pairs);
    x_ = memory.take<float>(tile * m.dim_padded);
    scratch_ = memory.take<float>(tile * std::max({m.dim_padded, m.ffn_padded}));
    queries_ = memory.take<float>(tile * m.width_padded);
    attended_ = memory.take<float>(tile * m.width_padded);
    factors_ = memory.take<float>(tile);
    // The columns of the next product, in 16 bits. Three buffers for the three widths, so that each
    // has its own padding.
    normal_ = memory.take<std::uint16_t>(2 * tile * m.dim_padded);
    heads_ = memory.take<std::uint16_t>(2 * tile * m.width_padded);
    gated_ = memory.take<std::uint16_t>(2 * tile * m.ffn_padded);
    y_ = memory.take<float>(
        2 * tile * std::max({m.qkv_padded, m.dim_padded, m.gate_up_padded, m.vocab_padded}));
    keys_ = memory.take<float>(w_->layers().size() * m.cached());
    values_ = memory.take<float>(w_->layers().size() * m.cached());
    // a ring, stored twice: any `tile` neighbours are contiguous
    logits_ = memory.take<float>(2 * tile * m.vocab);
  }

  void upload_rotations() {
    std::vector<float2> table(capacity_ * shape_.pairs);
    for (std::size_t p = 0; p < capacity_; ++p)
      for (std::size_t i = 0; i < shape_.pairs; ++i) {
        const auto [sine, cosine] = cpu::detail::sin_cos(double(p) * w_->host().frequencies[i]);
        table[p * shape_.pairs + i] = {float(cosine), float(sine)};
      }
    const auto& name = w_->host().file.name();
    check(cudaMemcpyAsync(rotations_, table.data(), table.size() * sizeof(float2),
                          cudaMemcpyHostToDevice, stream()),
          "session", name);
    check(cudaStreamSynchronize(stream()), "session", name);
  }

  status refusal(std::span<const token_id> tokens, std::size_t rows) const {
    if (rows > tokens.size()) return status::invalid_parameter;
    if (tokens.size() > capacity_ - text_.size()) return status::context_full;
    for (const token_id token : tokens)
      if (token < 0 || std::size_t(token) >= vocab_size()) return status::token_out_of_range;
    return status::ok;
  }

  // Replays a graph for each `tile` tokens; the first step takes the remainder. After each step
  // whose last `count` tokens want logits, calls take_rows(position of the first of them, count).
  // False if it failed; failure_ is the reason.
  bool run(std::span<const token_id> tokens, std::size_t rows, auto&& take_rows) {
    if (!done(cudaSetDevice(w_->on().ordinal()))) return false;
    // Steps that still run read the memory that is overwritten next.
    if (!done(cudaEventSynchronize(steps_read_.get()))) return false;
    const auto steps = steps_for(tokens.size());
    for (std::size_t i = 0, begin = 0; i < steps; ++i) {
      const auto end = tokens.size() - (steps - 1 - i) * tile, count = end - begin;
      const auto wanted = std::min(count, rows - std::min(rows, tokens.size() - end));
      auto& s = steps_[i];
      s.position = unsigned(text_.size() + begin);
      s.count = unsigned(count);
      s.skip = unsigned(count - wanted);
      std::copy_n(tokens.data() + begin, count, s.tokens);
      if (!done(cudaMemcpyAsync(step_, &s, sizeof s, cudaMemcpyHostToDevice, stream())) ||
          !done(cudaEventRecord(steps_read_.get(), stream())) ||
          !done(cudaGraphLaunch(graphs_[wanted > 0].get(), stream())))
        return false;
      if (wanted > 0 && !take_rows(text_.size() + end - wanted, wanted)) return false;
      begin = end;
    }
    return true;
  }

  bool done(cudaError_t e) {
    if (e == cudaSuccess) return true;
    failure_ = e;
    (void)cudaGetLastError();
    (void)cudaStreamSynchronize(stream());  // wait until nothing of this call is running
    return false;
  }

  // ---- the forward, launch by launch ------------------------------------------------------------

  template <class... Parameters, class... Arguments>
  void launch(dim3 blocks, unsigned threads, void (*kernel)(Parameters...),
              Arguments... arguments) const {
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.stream = stream();
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launch");
  }
  void multiply(const product& by, const std::byte* matrix, const std::uint16_t* columns) const {
    check(by.run(w_->on(), matrix, columns, y_), "cuBLASLt");
  }

  void forward(bool logits) const {
    if (w_->brain_floats()) forward_in<bf16>(logits);
    else forward_in<f16>(logits);
  }
  template <class E>
  void forward_in(bool logits) const {
    using namespace llama_kernels;
    const auto& m = shape_;
    const auto elements = [](auto* at) { return reinterpret_cast<E*>(at); };
    // Adds the last product to the residual, and normalises the sum.
    const auto norm = [&](const float* added, const float* weight, bool last = false) {
      launch(tile, block, normalise<E>, step_, m, x_, added, weight, scratch_, elements(normal_),
             factors_, last);
    };
    launch(tile, block, embed<E>, step_, m, reinterpret_cast<const E*>(w_->embedding()), x_);
    const float* added = nullptr;
    for (std::size_t i = 0; i < w_->layers().size(); ++i) {
      const auto& l = w_->layers()[i];
      float *keys = keys_ + i * m.cached(), *values = values_ + i * m.cached();
      norm(added, l.attention_norm);
      multiply(qkv_, l.qkv, normal_);
      launch(dim3(tile, m.heads + 2 * m.kv_heads), 32, remember<>, step_, m, y_, factors_,
             rotations_, queries_, keys, values);
      launch(dim3(m.heads, tile), attention_block, attend<>, step_, m, queries_, keys, values,
             attended_);
      launch(tile, block, split<E>, step_, attended_, m.heads * m.head_dim, m.width_padded,
             elements(heads_), factors_);
      multiply(output_, l.output, heads_);
      norm(y_, l.ffn_norm);
      multiply(gate_up_, l.gate_up, normal_);
      launch(tile, block, gate<E>, step_, m, y_, scratch_, elements(gated_), factors_);
      multiply(down_, l.down, gated_);
      added = y_;
    }
    if (!logits) return;  // the last product is not needed, because no layer follows
    norm(added, w_->output_norm(), true);
    multiply(vocabulary_, w_->output(), normal_);
    launch(dim3((m.vocab + block - 1) / block, tile), block, collect<>, step_, m, y_, factors_,
           logits_);
  }

  owned_graph_exec capture(bool logits) const {
    const auto& name = w_->host().file.name();
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "graph", name);
    cudaGraph_t captured{};
    try {
      forward(logits);
    } catch (...) {
      (void)cudaStreamEndCapture(stream(), &captured);
      const owned_graph discarded(captured);
      throw;
    }
    check(cudaStreamEndCapture(stream(), &captured), "graph", name);
    const owned_graph graph(captured);
    cudaGraphExec_t ready{};
    check(cudaGraphInstantiate(&ready, captured, 0), "graph", name);
    return owned_graph_exec(ready);
  }

  std::shared_ptr<const llama_weights> w_;
  std::size_t capacity_;
  std::vector<token_id> text_;
  llama_kernels::shape shape_;
  product qkv_, output_, gate_up_, down_, vocabulary_;
  owned_memory memory_;
  llama_kernels::step* step_ = nullptr;
  float2* rotations_ = nullptr;
  float *x_ = nullptr, *scratch_ = nullptr, *queries_ = nullptr, *attended_ = nullptr,
        *factors_ = nullptr;
  float *y_ = nullptr, *keys_ = nullptr, *values_ = nullptr, *logits_ = nullptr;
  std::uint16_t *normal_ = nullptr, *heads_ = nullptr, *gated_ = nullptr;
  pinned_memory<llama_kernels::step> steps_;  // of one call
  pinned_memory<float> rows_;
  owned_event steps_read_;
  std::array<owned_graph_exec, 2> graphs_;  // without logits, with
  cudaError_t failure_ = cudaSuccess;
};

}  // namespace cuda
SPECAGG_END
