// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files in memory, good and bad ones, and a small Llama model whose weights are the
// same numbers in every tensor type.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/gguf.hpp>

namespace test {

using specagg::cpu::tensor_type;
using specagg::cpu::value_type;

template <class T>
std::string raw(T x) {
  std::string out(sizeof x, '\0');
  std::memcpy(out.data(), &x, sizeof x);
  return out;
}
inline std::string raw_string(std::string_view s) {
  return raw(std::uint64_t{s.size()}) + std::string(s);
}

struct gguf_writer {
  std::uint32_t version = 3;
  std::uint64_t alignment = 32, values = 0, tensors = 0;
  std::string metadata, infos, data;

  void value(std::string_view key, value_type type, const std::string& bytes) {
    metadata += raw_string(key) + raw(static_cast<std::uint32_t>(type)) + bytes;
    ++values;
  }
  void integer(std::string_view key, std::uint32_t x) { value(key, value_type::u32, raw(x)); }
  void real(std::string_view key, float x) { value(key, value_type::f32, raw(x)); }
  void flag(std::string_view key, bool x) { value(key, value_type::boolean, raw(x)); }
  void string(std::string_view key, std::string_view x) {
    value(key, value_type::string, raw_string(x));
  }
  void array(std::string_view key, value_type type, std::size_t count, const std::string& bytes) {
    value(key, value_type::array,
          raw(static_cast<std::uint32_t>(type)) + raw(std::uint64_t{count}) + bytes);
  }
  void strings(std::string_view key, const std::vector<std::string>& all) {
    std::string bytes;
    for (const auto& s : all) bytes += raw_string(s);
    array(key, value_type::string, all.size(), bytes);
  }
  template <class T>
  void numbers(std::string_view key, const std::vector<T>& all) {
    std::string bytes;
    for (T x : all) bytes += raw(x);
    array(key, std::is_same_v<T, float> ? value_type::f32 : value_type::i32, all.size(), bytes);
  }
  void tensor(std::string_view name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
              const std::string& bytes) {
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    tensor_at(name, shape, type, data.size());
    data += bytes;
  }
  void tensor_at(std::string_view name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
                 std::uint64_t offset) {
    infos += raw_string(name) + raw(static_cast<std::uint32_t>(shape.size()));
    for (auto d : shape) infos += raw(d);
    infos += raw(type) + raw(offset);
    ++tensors;
  }
  std::string bytes() const {
    auto out = std::string("GGUF") + raw(version) + raw(tensors) + raw(values) + metadata + infos;
    if (tensors != 0) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

// Numbers of the form k / 64, |k| < 32, exact in all types but the two of 4 bits (a Q8_0 block gets
// the scale 1/64). Those take the nearest of k = -32, -28, ... 28.
inline std::string encode(const std::vector<int>& sixty_fourths, tensor_type type) {
  std::string out;
  if (type == tensor_type::q4_0 || type == tensor_type::q4_1) {
    const auto nibble = [&](std::size_t i) {
      return std::clamp((sixty_fourths[i] + 34) / 4, 0, 15);
    };
    for (std::size_t block = 0; block < sixty_fourths.size(); block += 32) {
      out += raw(std::uint16_t{0x2c00});                                 // 4/64
      if (type == tensor_type::q4_1) out += raw(std::uint16_t{0xb800});  // -32/64
      for (std::size_t i = block; i < block + 16; ++i)
        out += static_cast<char>(nibble(i) | nibble(i + 16) << 4);
    }
    return out;
  }
  for (std::size_t i = 0; i < sixty_fourths.size(); ++i) {
    const float x = static_cast<float>(sixty_fourths[i]) / 64;
    const auto bits = std::bit_cast<std::uint32_t>(x);
    switch (type) {
      case tensor_type::f32: out += raw(x); break;
      case tensor_type::bf16: out += raw(static_cast<std::uint16_t>(bits >> 16)); break;
      case tensor_type::f16:
        out += raw(static_cast<std::uint16_t>(
            x == 0 ? 0 : (bits >> 16 & 0x8000u) | ((bits >> 13 & 0x3ffffu) - (112u << 10))));
        break;
      case tensor_type::q8_0:
        if (i % 32 == 0) out += raw(std::uint16_t{0x2400});  // 1/64
        out += static_cast<char>(sixty_fourths[i]);
        break;
      default: break;
    }
  }
  return out;
}

// Reads the writer's bytes; they are kept 8-byte aligned here.
class gguf_bytes {
 public:
  explicit gguf_bytes(std::string_view bytes) : words_(bytes.size() / 8 + 1), size_(bytes.size()) {
    if (!bytes.empty()) std::memcpy(words_.data(), bytes.data(), bytes.size());
  }
  specagg::cpu::gguf_file open() const {
    return specagg::cpu::gguf_file::view({reinterpret_cast<const std::byte*>(words_.data()), size_},
                                         "test.gguf");
  }
  // Changes element i of a tensor, in files that are open too. T: of the tensor's element's size.
  template <class T>
  void put(std::string_view tensor, std::size_t i, T x) {
    auto* const begin = reinterpret_cast<std::byte*>(words_.data());
    std::memcpy(begin + (open().find_tensor(tensor)->data - begin) + i * sizeof x, &x, sizeof x);
  }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_;
};

// what() of the error that f throws, or "".
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const specagg::error& e) {
    return e.what();
  }
  return {};
}

// Control tokens, the 256 bytes, and some pieces whose scores make merges interesting.
inline std::vector<std::string> small_vocabulary() {
  std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
  const char* digits = "0123456789ABCDEF";
  for (int i = 0; i < 256; ++i)
    pieces.push_back(std::string("<0x") + digits[i / 16] + digits[i % 16] + ">");
  const std::string space = "\xe2\x96\x81";
  for (const auto& s : {space + "a", std::string("ab"), std::string("bc"), std::string("abc"),
                        space + "ab", std::string("cab"), std::string("\xc3\xa9"), space + space,
                        space, std::string("a"), std::string("b"), std::string("c")})
    pieces.push_back(s);
  return pieces;
}

inline void write_tokenizer(gguf_writer& to, const std::vector<std::string>& pieces) {
  std::vector<float> scores;
  std::vector<std::int32_t> types;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    scores.push_back(i < 259 ? 0 : -static_cast<float>(i - 259));
    types.push_back(i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1);
  }
  to.string("tokenizer.ggml.model", "llama");
  to.strings("tokenizer.ggml.tokens", pieces);
  to.numbers("tokenizer.ggml.scores", scores);
  to.numbers("tokenizer.ggml.token_type", types);
  to.integer("tokenizer.ggml.bos_token_id", 1);
  to.integer("tokenizer.ggml.eos_token_id", 2);
}

// The piece of some bytes in the alphabet of byte-level BPE: printable bytes of Latin-1 are
// themselves, the others are U+0100, U+0101, ... in order.
inline std::string spelled(const std::string& bytes) {
  std::string piece;
  for (const char c : bytes) {
    unsigned character = static_cast<unsigned char>(c);
    if (const unsigned b = character; b < 33 || (b > 126 && b < 161) || b == 173)
      character = 256 + (b < 33 ? b : b < 161 ? b - 127 + 33 : 67);
    if (character < 128) piece += static_cast<char>(character);
    else {
      piece += static_cast<char>(0xC0 | character >> 6);
      piece += static_cast<char>(0x80 | (character & 63));
    }
  }
  return piece;
}

// A byte-level BPE tokenizer: two control tokens, user-defined pieces, the 256 bytes, and the
// merges given as bytes.
inline gguf_writer small_bpe(
    const std::string& pre,
    const std::vector<std::pair<std::string, std::string>>& merges = {{"a", "b"},
                                                                      {" ", "a"},
                                                                      {" ", "ab"},
                                                                      {"b", "c"},
                                                                      {"ab", "c"},
                                                                      {"1", "2"},
                                                                      {"\n", "\n"},
                                                                      {"\xc3", "\xa9"}},
    const std::vector<std::string>& users = {"<user>"}) {
  std::vector<std::string> pieces = {"<|end|>", "<|turn|>"}, lines;
  pieces.insert(pieces.end(), users.begin(), users.end());
  std::vector<std::int32_t> types = {3, 3};
  types.resize(pieces.size(), 4);
  for (int b = 0; b < 256; ++b) pieces.push_back(spelled(std::string(1, static_cast<char>(b))));
  for (const auto& [left, right] : merges) {
    pieces.push_back(spelled(left + right));
    lines.push_back(spelled(left) + " " + spelled(right));
  }
  types.resize(pieces.size(), 1);
  gguf_writer to;
  to.string("tokenizer.ggml.model", "gpt2");
  to.string("tokenizer.ggml.pre", pre);
  to.strings("tokenizer.ggml.tokens", pieces);
  to.numbers("tokenizer.ggml.token_type", types);
  to.strings("tokenizer.ggml.merges", lines);
  to.integer("tokenizer.ggml.bos_token_id", 1);
  to.integer("tokenizer.ggml.eos_token_id", 0);
  return to;
}

struct small_model {
  tensor_type type = tensor_type::f32;
  std::uint32_t dim = 64, heads = 4, kv_heads = 2, ffn = 96, blocks = 2, context = 80, rotated = 16;
  // 0: tied; else the embedding times this
  int separate_output = 0;
  // a tensor to leave out; one to give a wrong shape
  std::string architecture = "llama", skip = {}, twist = {};

  gguf_writer write() const {
    gguf_writer to;
    const auto pieces = small_vocabulary();
    to.string("general.architecture", architecture);
    to.integer("llama.context_length", context);
    to.integer("llama.embedding_length", dim);
    to.integer("llama.block_count", blocks);
    to.integer("llama.feed_forward_length", ffn);
    to.integer("llama.attention.head_count", heads);
    to.integer("llama.attention.head_count_kv", kv_heads);
    to.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    to.integer("llama.rope.dimension_count", rotated);
    write_tokenizer(to, pieces);
    std::uint32_t state = 1;
    const auto put = [&](const std::string& name, std::uint64_t cols, std::uint64_t rows,
                         tensor_type as, int factor = 1) {
      std::vector<int> numbers(cols * rows);
      for (auto& x : numbers)
        x = factor * (static_cast<int>((state = state * 1664525u + 1013904223u) >> 26) - 31) / 2;
      auto shape =
          rows == 1 ? std::vector<std::uint64_t>{cols} : std::vector<std::uint64_t>{cols, rows};
      if (name == twist) shape = {rows, cols};
      if (name != skip) to.tensor(name, shape, static_cast<std::uint32_t>(as), encode(numbers, as));
    };
    const auto kv = dim / heads * kv_heads;
    put("token_embd.weight", dim, pieces.size(), type);
    if (separate_output != 0) {
      state = 1;
      put("output.weight", dim, pieces.size(), type, separate_output);
    }
    put("output_norm.weight", dim, 1, tensor_type::f32);
    for (std::uint32_t i = 0; i < blocks; ++i) {
      const auto at = specagg::cpu::joined("blk.", i, ".");
      put(at + "attn_norm.weight", dim, 1, tensor_type::f32);
      put(at + "attn_q.weight", dim, dim, type);
      put(at + "attn_k.weight", dim, kv, type);
      put(at + "attn_v.weight", dim, kv, type);
      put(at + "attn_output.weight", dim, dim, type);
      put(at + "ffn_norm.weight", dim, 1, tensor_type::f32);
      put(at + "ffn_gate.weight", dim, ffn, type);
      put(at + "ffn_up.weight", dim, ffn, type);
      put(at + "ffn_down.weight", ffn, dim, type);
    }
    return to;
  }
};

// A draft head for a small_model target of the same dim. Its weights are the same numbers in every
// tensor type.
struct small_head {
  std::uint64_t fingerprint = 0;
  tensor_type type = tensor_type::f32;
  std::uint32_t dim = 64, heads = 4, kv_heads = 2, ffn = 96, context = 80, rotated = 16, blocks = 1;
  std::uint32_t target_vocab = static_cast<std::uint32_t>(small_vocabulary().size());
  std::vector<std::int32_t> to = {3, 0, 270, 12, 13, 99, 100, 269, 40, 41};  // then as d2t
  // tensors: left out, turned, added
  std::string architecture = "specagg-head", skip = {}, twist = {}, extra = {};

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
    const auto put = [&](const std::string& name, std::uint64_t cols, std::uint64_t rows,
                         tensor_type as) {
      std::vector<int> numbers(cols * rows);
      for (auto& x : numbers)
        x = (static_cast<int>((state = state * 1664525u + 1013904223u) >> 26) - 31) / 2;
      auto shape =
          rows == 1 ? std::vector<std::uint64_t>{cols} : std::vector<std::uint64_t>{cols, rows};
      if (name == twist) shape = {rows, cols};
      if (name != skip)
        out.tensor(name, shape, static_cast<std::uint32_t>(as), encode(numbers, as));
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
}  // namespace test
