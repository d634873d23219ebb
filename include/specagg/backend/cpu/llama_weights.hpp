// SPDX-License-Identifier: Apache-2.0
// A model of the Llama architecture, read from its file and checked. Every backend that runs such a
// model uses this.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/kv_cache.hpp>
#include <specagg/backend/cpu/matrix.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>
#include <specagg/error.hpp>
#include <specagg/kernel/math.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN
namespace cpu {

// A stack of Llama layers, its final norm and its output matrix, with the sizes that the metadata
// of a file give them. Matrices of floats stay in the mapped file. Quantised matrices are repacked
// for the CPU. Repacked matrices take as much memory as in the file, with rows up to the next
// multiple of 16, in one piece (strip_memory); a mapped file's pages are given back.
struct layer_weights {
  struct layer {
    std::vector<float> attention_norm, ffn_norm;  // [dim], padded to 16 with zeros
    // rows x cols: q [heads * head_dim, dim], k and v [kv_heads * head_dim, dim],
    // output [dim, heads * head_dim], gate and up [ffn, dim], down [dim, ffn]
    matrix q, k, v, output, gate, up, down;
  };
  gguf_file file;  // keeps the mapped memory
  // context: the positions that the model was trained for. The other sizes are numbers of floats,
  // heads or tokens.
  std::size_t context = 0, dim = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  // radians per position of each rotated pair; the rest of a head is not rotated
  std::vector<double> frequencies;
  float epsilon = 0;
  matrix output;  // [vocab, dim]
  std::vector<float> output_norm;
  std::vector<layer> layers;
  std::shared_ptr<block_memory> kv_memory;  // for the caches of all sequences (kv_cache.hpp)

 protected:
  // Reads the sizes, from metadata that begin with the name of the architecture.
  layer_weights(gguf_file from, const std::string& name)
      : file(std::move(from)), used_(file.tensors().size(), false) {
    const auto architecture = file.string("general.architecture");
    if (architecture != name)
      file.fail("general.architecture",
                joined("\"", printable(architecture), "\" is not supported (\"", name, "\" is)"));
    const auto key = [&](const char* rest) { return joined(name, ".", rest); };
    context = size(key("context_length"), 1 << 24);
    dim = size(key("embedding_length"), 1 << 20);
    ffn = size(key("feed_forward_length"), 1 << 22);
    heads = size(key("attention.head_count"), 1 << 14);
    kv_heads = size(key("attention.head_count_kv"), 1 << 14, heads);
    blocks_ = size(key("block_count"), 1 << 14);
    if (heads % kv_heads != 0)
      file.fail(key("attention.head_count_kv"),
                joined(kv_heads, " does not divide ", heads, " heads"));
    if (!file.find(key("attention.key_length")) && dim % heads != 0)
      file.fail(key("attention.head_count"),
                joined(heads, " does not divide ", dim, " dimensions"));
    head_dim = size(key("attention.key_length"), 1 << 14, dim / heads);
    if (size(key("attention.value_length"), 1 << 14, head_dim) != head_dim)
      file.fail(key("attention.value_length"),
                "differs from the length of keys, which is not supported");
    const auto rotated = size(key("rope.dimension_count"), head_dim, head_dim);
    if (rotated % 2 != 0) file.fail(key("rope.dimension_count"), joined(rotated, " is odd"));
    const auto scaling = file.string(key("rope.scaling.type"), "none");
    if (scaling != "none")
      file.fail(key("rope.scaling.type"),
                joined("\"", printable(scaling), "\" is not supported (\"none\" is)"));
    // without a type these mean linear scaling (0: none), as libllama reads them
    if (!file.find(key("rope.scaling.type")))
      for (const char* factor : {"rope.scaling.factor", "rope.scale_linear"})
        if (const double by = file.real(key(factor), 1); by != 0 && by != 1)
          file.fail(key(factor), "scales positions, which is not supported");
    if (file.integer(key("expert_count"), 0) != 0)
      file.fail(key("expert_count"), "mixtures of experts are not supported");
    const auto base = file.real(key("rope.freq_base"), 10000);
    if (!(base >= 1 && base <= 1e12)) file.fail(key("rope.freq_base"), "is not in 1 to 1e12");
    for (std::size_t i = 0; i < rotated; i += 2)
      frequencies.push_back(specagg::exp(-(double(i) / double(rotated)) * specagg::log(base)));
    const auto eps = file.real(key("attention.layer_norm_rms_epsilon"));
    if (!(eps >= 1e-12 && eps <= 1))
      file.fail(key("attention.layer_norm_rms_epsilon"), "is not in 1e-12 to 1");
    epsilon = float(eps);
  }

  std::size_t size(const std::string& key, std::uint64_t most,
                   std::optional<std::uint64_t> otherwise = {}) const {
    const auto n = file.integer(key, otherwise);
    if (n < 1 || n > most) file.fail(key, joined("is ", n, " (1 to ", most, " are possible)"));
    return std::size_t(n);
  }
  // How many rows a tensor has that is a list of tokens: at most as many as there are token ids. 0:
  // it is missing.
  std::size_t tokens_of(const char* name) const {
    const auto* t = file.find_tensor(name);
    if (t && t->rows > std::size_t(std::numeric_limits<token_id>::max()))
      throw error(file.name(), joined("tensor ", name), "has more rows than there are token ids");
    return t ? t->rows : 0;
  }
  tensor take(const std::string& name, std::size_t rows, std::size_t cols, bool vector = false) {
    const auto* t = file.find_tensor(name);
    if (!t) throw error(file.name(), joined("tensor ", name), "is missing");
    if (t->rank > 2 || t->rows != rows || t->cols != cols || (vector && t->rank != 1))
      throw error(file.name(), joined("tensor ", name),
                  joined("is ", t->cols, " x ", t->rows, " (the metadata call for ", cols, " x ",
                         rows, ")"));
    used_[std::size_t(t - file.tensors().data())] = true;
    return *t;
  }
  std::vector<float> take_norm(const std::string& name) {
    const auto t = take(name, 1, dim, true);
    std::vector<float> out(padded(dim));
    read_row(t, 0, out.data());
    return out;
  }
  // repack = false: the matrix stays as it is in the file. progress, if given, is called with how
  // much is done.
  matrix take_matrix(const std::string& name, std::size_t rows, std::size_t cols, bool repack,
                     const std::function<void(double)>& progress) {
    const auto t = take(name, rows, cols);
    if (repack && !strips_) {
      std::size_t room = 0;
      for (const tensor& each : file.tensors()) room += strip_memory::room_for(each);
      strips_.emplace(room);
    }
    auto m = repack ? cpu::repack(t, *strips_) : matrix{t, nullptr};
    if (m.strips) file.give_back(t);
    bytes_done_ += rows * row_bytes(t.type, cols);
    if (progress) progress(double(bytes_done_) / double(file.size()));
    return m;
  }
  // The final norm and the layers. Then no tensor may be left: an unused one (a bias, rotary
  // factors, an expert) would change the logits.
  void take_layers(const char* model, bool repack, const std::function<void(double)>& progress) {
    output_norm = take_norm("output_norm.weight");
    for (std::size_t i = 0; i < blocks_; ++i) {
      const auto multiplied = [&](const char* name, std::size_t rows, std::size_t cols) {
        return take_matrix(joined("blk.", i, ".", name), rows, cols, repack, progress);
      };
      const auto width = heads * head_dim, kv_width = kv_heads * head_dim;
      layer l;
      l.attention_norm = take_norm(joined("blk.", i, ".attn_norm.weight"));
      l.q = multiplied("attn_q.weight", width, dim);
      l.k = multiplied("attn_k.weight", kv_width, dim);
      l.v = multiplied("attn_v.weight", kv_width, dim);
      l.output = multiplied("attn_output.weight", dim, width);
      l.ffn_norm = take_norm(joined("blk.", i, ".ffn_norm.weight"));
      l.gate = multiplied("ffn_gate.weight", ffn, dim);
      l.up = multiplied("ffn_up.weight", ffn, dim);
      l.down = multiplied("ffn_down.weight", dim, ffn);
      layers.push_back(std::move(l));
    }
    kv_memory = kv_cache::memory_for(layers.size(), kv_heads, head_dim);
    const auto unknown = std::find(used_.begin(), used_.end(), false) - used_.begin();
    if (std::size_t(unknown) < used_.size())
      throw error(file.name(),
                  joined("tensor ", printable(file.tensors()[std::size_t(unknown)].name)),
                  joined("is not supported (a ", model, " of ", layers.size(),
                         " blocks without biases has none)"));
  }

 private:
  std::size_t blocks_ = 0, bytes_done_ = 0;
  std::vector<bool> used_;              // tensors of the file
  std::optional<strip_memory> strips_;  // of all matrices that are repacked
};

// The columns of the widest quantised matrix, of `further` too if it is not null; 0 if there is
// none. Throws specagg::error if one was not repacked.
[[nodiscard]] inline std::size_t widest_quantised(const layer_weights& w,
                                                  const matrix* further = nullptr) {
  std::size_t cols = 0;
  const auto look_at = [&](const matrix& m) {
    if (block_bytes(m.type) == 0) return;
    if (!m.strips)
      throw error(w.file.name(), joined("tensor ", printable(m.name)),
                  "was not repacked for the CPU");
    cols = std::max(cols, m.cols);
  };
  look_at(w.output);
  if (further) look_at(*further);
  for (const auto& l : w.layers)
    for (const auto* m : {&l.q, &l.k, &l.v, &l.output, &l.gate, &l.up, &l.down}) look_at(*m);
  return cols;
}

// The contents of a file, checked: every tensor has the shape that the metadata require. Immutable;
// sessions share it.
struct llama_weights : layer_weights {
  matrix embedding;  // [vocab, dim]; the output matrix if tied

  // repack = false: all matrices stay as they are in the file, for another backend. progress, if
  // given, is called with how much is done, from 0 to 1, after each matrix.
  explicit llama_weights(gguf_file from, bool repack = true,
                         const std::function<void(double)>& progress = {})
      : layer_weights(std::move(from), "llama") {
    vocab = tokens_of("token_embd.weight");
    const bool tied = !file.find_tensor("output.weight");
    output =
        take_matrix(tied ? "token_embd.weight" : "output.weight", vocab, dim, repack, progress);
    embedding = tied ? output : matrix{take("token_embd.weight", vocab, dim), nullptr};
    take_layers("Llama model", repack, progress);
    if (file.integer("llama.vocab_size", vocab) != vocab)
      file.fail("llama.vocab_size",
                joined("differs from the ", vocab, " rows of token_embd.weight"));
    if (const auto* tokens = file.find("tokenizer.ggml.tokens"); tokens && tokens->count != vocab)
      file.fail("tokenizer.ggml.tokens",
                joined("holds ", tokens->count, " pieces, token_embd.weight ", vocab, " rows"));
  }
};

namespace detail {

struct sine_cosine {
  double sine, cosine;
};
// For |x| < 2^25; absolute error below 4e-16. (Results of the C library's sin and cos differ
// between systems.)
inline sine_cosine sin_cos(double x) {
  constexpr double rounder = 0x1.8p52, two_over_pi = 0x1.45f306dc9c883p-1;
  constexpr double half_pi[] = {0x1.921fb54442d18p0, 0x1.1a62633145c07p-54};  // pi/2 to 107 bits
  // n quarter turns; also in t's low bits
  const double t = specagg::fma(x, two_over_pi, rounder), n = t - rounder;
  const double r = specagg::fma(-n, half_pi[1], specagg::fma(-n, half_pi[0], x)), z = r * r;
  // Taylor on [-pi/4, pi/4]: the omitted terms are below 5e-17.
  constexpr double s[] = {-1. / 6,        1. / 120,         -1. / 5040,          1. / 362880,
                          -1. / 39916800, 1. / 6227020800., -1. / 1307674368000.};
  constexpr double c[] = {-1. / 2,       1. / 24,        -1. / 720,          1. / 40320,
                          -1. / 3628800, 1. / 479001600, -1. / 87178291200., 1. / 20922789888000.};
  double ps = s[6], pc = c[7];
  for (int i = 5; i >= 0; --i) ps = specagg::fma(ps, z, s[i]);
  for (int i = 6; i >= 0; --i) pc = specagg::fma(pc, z, c[i]);
  const double sine = specagg::fma(ps * z, r, r), cosine = specagg::fma(pc, z, 1.);
  switch (std::bit_cast<std::uint64_t>(t) & 3) {
    case 0: return {sine, cosine};
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

}  // namespace detail

// The weights are read once for this many tokens of a call.
inline constexpr std::size_t tokens_at_a_time = 48;

// Bytes that a session of `capacity` positions takes, where all of them are in use and none is
// shared: keys and values (f16), partial sums of attention (one in 128 positions), a hidden state
// for each, and scratch memory for tokens_at_a_time. A double, because products of hostile sizes
// overflow integers.
[[nodiscard]] inline double session_bytes(const layer_weights& w, std::size_t capacity) {
  const auto real = [](std::size_t n) { return double(n); };
  const double head = real(padded(w.head_dim)), tokens = real(tokens_at_a_time);
  const double keys_and_values = real(w.layers.size() * w.kv_heads) * head,
               sums = tokens * real(w.heads) * (head + 2) / 128;
  const double a_position = keys_and_values + sums + real(padded(w.dim));
  const double a_token = 5 * real(w.dim) + 3 * real((w.heads + w.kv_heads) * w.head_dim) +
                         4 * real(w.ffn) + 32 * real(w.heads);
  return 4 * (real((capacity + 127) / 128 * 128) * a_position + tokens * a_token);
}

// The number of positions that a session keeps: `wanted`, but at most the model's context. 0 means
// the whole context, but at most 4096. Throws specagg::error if a session would take more than 64
// times the file's size, and more than 16 MiB: a hostile file could ask for that. Sessions of real
// models take a few times the file at most.
[[nodiscard]] inline std::size_t checked_capacity(const layer_weights& w, std::size_t wanted) {
  const auto capacity = std::min(wanted ? wanted : std::size_t{4096}, w.context);
  const double bytes = session_bytes(w, capacity);
  if (bytes > std::max(64 * double(w.file.size()), 0x1p24))
    throw error(w.file.name(), joined("context of ", capacity, " tokens"),
                joined("takes ", std::uint64_t(bytes) >> 20, " MiB of memory"));
  return capacity;
}

}  // namespace cpu
SPECAGG_END
