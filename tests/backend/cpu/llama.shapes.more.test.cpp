// SPDX-License-Identifier: Apache-2.0
// Sizes that are no multiples of 16 or 32, heads of which a part is rotated, and matrices of
// several types in one layer, against a second forward pass in double, written plainly. It rounds
// keys and values to f16, as the cache does.
#include <specagg/backend/cpu/llama.hpp>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/gguf_writer.hpp"
#include "backend/cpu/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::cpu;

// As the file format calls them.
constexpr auto F32 = tensor_type::f32, F16 = tensor_type::f16, BF16 = tensor_type::bf16,
               Q4_0 = tensor_type::q4_0, Q4_1 = tensor_type::q4_1, Q8_0 = tensor_type::q8_0;

namespace {

struct shape {
  std::uint32_t dim, heads, kv_heads, head_dim, ffn, rotated;
  tensor_type embedding, output, q, k, v, attention_output, gate, up, down;
  bool tied;
};
constexpr std::uint32_t vocabulary = 37, blocks = 2, context = 150;

std::string file_of(const shape& s) {
  test::gguf_writer to;
  to.string("general.architecture", "llama");
  to.integer("llama.context_length", context);
  to.integer("llama.embedding_length", s.dim);
  to.integer("llama.block_count", blocks);
  to.integer("llama.feed_forward_length", s.ffn);
  to.integer("llama.attention.head_count", s.heads);
  to.integer("llama.attention.head_count_kv", s.kv_heads);
  to.integer("llama.attention.key_length", s.head_dim);
  to.integer("llama.attention.value_length", s.head_dim);
  to.integer("llama.rope.dimension_count", s.rotated);
  to.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  std::mt19937 random(7);
  const auto put = [&](const std::string& name, std::uint64_t cols, std::uint64_t rows,
                       tensor_type type) {
    std::vector<int> numbers(cols * rows);
    for (int& x : numbers) x = (static_cast<int>(random() % 63) - 31) / 2 + (rows == 1 ? 20 : 0);
    const auto size =
        rows == 1 ? std::vector<std::uint64_t>{cols} : std::vector<std::uint64_t>{cols, rows};
    to.tensor(name, size, static_cast<std::uint32_t>(type), test::encode(numbers, type));
  };
  put("token_embd.weight", s.dim, vocabulary, s.embedding);
  if (!s.tied) put("output.weight", s.dim, vocabulary, s.output);
  put("output_norm.weight", s.dim, 1, F32);
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const auto at = joined("blk.", i, ".");
    put(at + "attn_norm.weight", s.dim, 1, F32);
    put(at + "attn_q.weight", s.dim, s.heads * s.head_dim, s.q);
    put(at + "attn_k.weight", s.dim, s.kv_heads * s.head_dim, s.k);
    put(at + "attn_v.weight", s.dim, s.kv_heads * s.head_dim, s.v);
    put(at + "attn_output.weight", s.heads * s.head_dim, s.dim, s.attention_output);
    put(at + "ffn_norm.weight", s.dim, 1, F32);
    put(at + "ffn_gate.weight", s.dim, s.ffn, s.gate);
    put(at + "ffn_up.weight", s.dim, s.ffn, s.up);
    put(at + "ffn_down.weight", s.ffn, s.dim, s.down);
  }
  return to.bytes();
}

using numbers = std::vector<double>;

numbers product(const matrix& m, const numbers& x) {
  numbers y(m.rows);
  std::vector<float> row(m.cols);
  for (std::size_t r = 0; r < m.rows; ++r) {
    read_row(m, r, row.data());
    for (std::size_t c = 0; c < m.cols; ++c) y[r] += double(row[c]) * x[c];
  }
  return y;
}

// At position p.
numbers rotated(const llama_weights& w, std::size_t p, numbers heads) {
  for (std::size_t from = 0; from < heads.size(); from += w.head_dim)
    for (std::size_t i = 0; i < w.frequencies.size(); ++i) {
      const double angle = double(p) * w.frequencies[i];
      double &a = heads[from + 2 * i], &b = heads[from + 2 * i + 1];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  return heads;
}
// What the last position reads of all.
numbers attended(const llama_weights& w, const numbers& q, const std::vector<numbers>& keys,
                 const std::vector<numbers>& values) {
  numbers read(w.heads * w.head_dim);
  for (std::size_t head = 0; head < w.heads; ++head) {
    const std::size_t shared = head / (w.heads / w.kv_heads) * w.head_dim, own = head * w.head_dim;
    numbers score(keys.size());
    double all = 0;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      for (std::size_t d = 0; d < w.head_dim; ++d) score[j] += q[own + d] * keys[j][shared + d];
      all += score[j] = std::exp(score[j] / std::sqrt(double(w.head_dim)));
    }
    for (std::size_t j = 0; j < keys.size(); ++j)
      for (std::size_t d = 0; d < w.head_dim; ++d)
        read[own + d] += score[j] / all * values[j][shared + d];
  }
  return read;
}

// All rows of logits, in double.
std::vector<numbers> forward(const llama_weights& w, std::span<const token_id> tokens) {
  const auto normalised = [&](numbers x, const std::vector<float>& weight) {
    double squares = 0;
    for (const double v : x) squares += v * v;
    for (std::size_t c = 0; c < x.size(); ++c)
      x[c] *= weight[c] / std::sqrt(squares / double(w.dim) + double(w.epsilon));
    return x;
  };
  const auto add = [](numbers& x, const numbers& y) {
    for (std::size_t c = 0; c < x.size(); ++c) x[c] += y[c];
  };
  std::vector<numbers> x;
  for (const token_id t : tokens) {
    std::vector<float> row(w.dim);
    read_row(w.embedding, std::size_t(t), row.data());
    x.emplace_back(row.begin(), row.end());
  }
  for (const auto& l : w.layers) {
    std::vector<numbers> keys, values;
    for (std::size_t p = 0; p < x.size(); ++p) {
      const auto h = normalised(x[p], l.attention_norm);
      const auto q = rotated(w, p, product(l.q, h));
      const auto stored = [](numbers heads) {
        for (double& v : heads)
          v = double(specagg::detail::number(specagg::detail::stored<f16>(v)));
        return heads;
      };
      keys.push_back(stored(rotated(w, p, product(l.k, h))));
      values.push_back(stored(product(l.v, h)));
      add(x[p], product(l.output, attended(w, q, keys, values)));
      const auto f = normalised(x[p], l.ffn_norm);
      auto gate = product(l.gate, f);
      const auto up = product(l.up, f);
      for (std::size_t c = 0; c < gate.size(); ++c) gate[c] *= up[c] / (1 + std::exp(-gate[c]));
      add(x[p], product(l.down, gate));
    }
  }
  std::vector<numbers> logits;
  for (const auto& row : x) logits.push_back(product(w.output, normalised(row, w.output_norm)));
  return logits;
}

// The same bits one by one and on four threads, and near the plain forward pass.
void check(const shape& s, double tolerance) {
  const test::gguf_bytes bytes(file_of(s));
  const auto weights = test::weights_of(bytes);
  const auto tokens = test::some_tokens(141, vocabulary);
  llama one(weights), four(weights, std::make_shared<thread_pool>(4));
  const auto logits = test::rows_of(one, tokens);
  CHECK(test::same_bits(test::rows_of(four, tokens), logits));
  (void)four.rollback(0);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    CHECK(test::same_bits(test::rows_of(four, std::span(tokens).subspan(i, 1)),
                          std::span(logits).subspan(i * vocabulary, vocabulary)));
  const auto expected = forward(*weights, tokens);
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double e = expected[i / vocabulary][i % vocabulary];
    apart = std::max(apart, std::abs(logits[i] - e));
    size = std::max(size, std::abs(e));
  }
  INFO("apart " << apart << " of " << size);
  CHECK(apart <= tolerance * size);
}

}  // namespace

TEST_CASE("heads and feed-forward layers of any size, heads of which half is rotated") {
  for (const std::uint32_t head_dim : {2u, 6u, 8u, 24u, 40u, 100u})
    for (const std::uint32_t ffn : {7u, 33u, 50u, 96u}) {
      INFO("head_dim " << head_dim << ", ffn " << ffn);
      const std::uint32_t rotated = head_dim / 2 % 2 == 0 ? head_dim / 2 : head_dim;
      check({head_dim * 3 + 5, 4, 2, head_dim, ffn, rotated, F16, F32, BF16, F16, F32, F32, BF16,
             F32, F16, true},
            1e-4);  // 3e-5 where a key is half way between two f16
    }
}

TEST_CASE("matrices of several types in one layer, quantised and not, with few rows") {
  for (const shape& s : {
           shape{64, 4, 2, 16, 96, 8, Q8_0, Q4_1, Q4_1, F16, Q8_0, Q4_0, F16, Q4_1, Q4_1, false},
           shape{64, 4, 2, 16, 96, 16, F32, Q8_0, Q4_0, F32, F32, F32, Q4_1, F16, BF16, false},
           shape{64, 4, 2, 16, 96, 16, F16, F32, F32, F32, Q8_0, F16, F32, Q8_0, Q8_0, false},
           shape{32, 4, 1, 8, 96, 8, Q8_0, F32, F32, Q4_1, Q4_1, Q8_0, F32, F32, Q4_0, true},
           shape{32, 4, 2, 24, 50, 12, F32, Q8_0, Q8_0, Q8_0, F32, Q8_0, Q4_1, Q8_0, F32, false},
           shape{32, 4, 2, 10, 33, 10, F32, F32, Q8_0, Q4_0, Q4_1, F32, Q4_1, Q8_0, F32, true},
           shape{32, 2, 2, 16, 33, 16, Q4_1, F32, F32, F32, F32, F32, F32, F32, F32, false},
           shape{32, 2, 2, 16, 32, 16, F32, F32, F32, F32, F32, F32, F32, F32, Q8_0, false},
           shape{32, 1, 1, 2, 32, 2, Q8_0, F32, Q8_0, Q8_0, Q8_0, F32, Q8_0, Q8_0, Q8_0, true},
       })
    check(s, 0.03);
}
