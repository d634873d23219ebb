// SPDX-License-Identifier: Apache-2.0
// Small GGUF files that are like SmolLM2's: a bundled model with its weights rounded to blocks of 4
// or 8 bits, and, if asked for, its pieces as a byte-level BPE vocabulary with control tokens and a
// ChatML template.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <specagg/backend/cpu/gguf.hpp>
#include <specagg/backend/cpu/tensor_row.hpp>

#include "backend/cpu/gguf_writer.hpp"

namespace test {

// The nearest number of 16 bits, for |x| from 2^-14 to 65504; smaller ones become 0.
inline std::uint16_t half_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size < 113u << 23) return static_cast<std::uint16_t>(sign);
  return static_cast<std::uint16_t>(sign |
                                    (((size + 0xfff + (size >> 13 & 1)) >> 13) - (112u << 10)));
}
inline float half_value(std::uint16_t bits) {
  const std::uint32_t size = bits & 0x7fffu;
  const float x = size == 0 ? 0 : std::bit_cast<float>((size << 13) + (112u << 23));
  return bits & 0x8000u ? -x : x;
}

// A row in blocks of 32 elements.
inline std::string quantised(const std::vector<float>& row, tensor_type type) {
  std::string out;
  for (std::size_t at = 0; at < row.size(); at += 32) {
    const auto block = std::span(row).subspan(at, 32);
    const auto [least, most] = std::minmax_element(block.begin(), block.end());
    const float largest = std::abs(*least) > std::abs(*most) ? *least : *most;
    if (type == tensor_type::q8_0) {
      const auto d = half_bits(std::abs(largest) / 127);
      out += raw(d);
      for (const float x : block)
        out += static_cast<char>(
            half_value(d) > 0 ? std::lround(std::clamp(x / half_value(d), -127.f, 127.f)) : 0);
      continue;
    }
    const bool has_minimum = type == tensor_type::q4_1;
    const auto d = half_bits(has_minimum ? (*most - *least) / 15 : largest / -8);
    const float scale = half_value(d),
                minimum = has_minimum ? half_value(half_bits(*least)) : -8 * scale;
    out += raw(d);
    if (has_minimum) out += raw(half_bits(*least));
    const auto nibble = [&](float x) {
      return scale == 0 ? 0l : std::lround(std::clamp((x - minimum) / scale, 0.f, 15.f));
    };
    for (std::size_t i = 0; i < 16; ++i)
      out += static_cast<char>(nibble(block[i]) | nibble(block[i + 16]) << 4);
  }
  return out;
}

struct tiny_model {
  std::string from = "draft";  // the bundled model
  tensor_type matrices = tensor_type::q4_1, embedding = tensor_type::q8_0;
  bool dequantised = false;  // the same numbers, stored in F32
  // SmolLM2's kind of tokenizer; a piece has the same id, and stands for the same text
  bool byte_level = false;
  std::size_t pieces = 4096, blocks = 4;  // the first of them
  int without_byte = -1;                  // no piece stands for it (if byte_level)
  // this token's embedding is that of "," times the number
  std::pair<std::int32_t, double> like = {-1, 1};

  gguf_writer write() const {
    const auto source =
        specagg::cpu::gguf_file::open(std::string(SPECAGG_MODELS) + "/" + from + ".gguf");
    const auto number = [&](const char* key) {
      return static_cast<std::uint32_t>(source.integer(key));
    };
    gguf_writer to;
    to.string("general.architecture", "llama");
    for (const char* key : {"llama.context_length", "llama.embedding_length",
                            "llama.feed_forward_length", "llama.attention.head_count",
                            "llama.attention.head_count_kv", "llama.rope.dimension_count"})
      to.integer(key, number(key));
    const auto kept_blocks =
        std::min(number("llama.block_count"), static_cast<std::uint32_t>(blocks));
    to.integer("llama.block_count", kept_blocks);
    for (const char* key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"})
      to.real(key, static_cast<float>(source.real(key)));
    write_vocabulary(source, to);
    const auto words = source.strings("tokenizer.ggml.tokens");
    const auto comma =
        static_cast<std::size_t>(std::find(words.begin(), words.end(), ",") - words.begin());
    for (const auto& t : source.tensors()) {
      if (t.name.starts_with("blk.") && std::stoul(std::string(t.name.substr(4))) >= kept_blocks)
        continue;
      write_tensor(t, to, comma);
    }
    return to;
  }

 private:
  void write_tensor(const specagg::cpu::tensor& t, gguf_writer& to, std::size_t comma) const {
    const bool is_embedding = t.name == "token_embd.weight", is_norm = t.rank == 1;
    const tensor_type type = is_norm ? tensor_type::f32 : is_embedding ? embedding : matrices;
    const std::size_t rows = is_embedding ? std::min(t.rows, pieces) : t.rows;
    std::string bytes;
    std::vector<float> row(t.cols);
    for (std::size_t r = 0; r < rows; ++r) {
      const bool is_like = is_embedding && static_cast<std::int64_t>(r) == like.first;
      specagg::cpu::read_row(t, is_like ? comma : r, row.data());
      if (is_like)
        for (float& x : row) x = static_cast<float>(x * like.second);
      std::string stored;
      if (is_norm) {
        for (const float x : row) stored += raw(x);
      } else {
        stored = quantised(row, type);
        if (dequantised) stored = as_f32(stored, type, t.cols);
      }
      bytes += stored;
    }
    auto shape = std::vector<std::uint64_t>{t.cols};
    if (!is_norm) shape.push_back(rows);
    to.tensor(t.name, shape, static_cast<std::uint32_t>(dequantised ? tensor_type::f32 : type),
              bytes);
  }
  // The formulas of tensor.hpp, in double: the library's code is not asked.
  static std::string as_f32(const std::string& blocks, tensor_type type, std::size_t cols) {
    std::string out;
    const std::size_t size = specagg::cpu::block_bytes(type);
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(blocks[i]); };
    const auto half = [&](std::size_t i) {
      return double(half_value(std::uint16_t(byte(i) | byte(i + 1) << 8)));
    };
    for (std::size_t c = 0; c < cols; ++c) {
      const std::size_t at = c / 32 * size, i = c % 32;
      if (type == tensor_type::q8_0) {
        out += raw(static_cast<float>(half(at) * static_cast<signed char>(byte(at + 2 + i))));
        continue;
      }
      const std::size_t first = at + (type == tensor_type::q4_1 ? 4 : 2);
      const int k = i < 16 ? byte(first + i) & 15 : byte(first + i - 16) >> 4;
      out += raw(static_cast<float>(type == tensor_type::q4_1 ? half(at) * k + half(at + 2)
                                                              : half(at) * (k - 8)));
    }
    return out;
  }

  void write_vocabulary(const specagg::cpu::gguf_file& source, gguf_writer& to) const {
    auto words = source.strings("tokenizer.ggml.tokens");
    auto types = source.numbers<std::int32_t>("tokenizer.ggml.token_type");
    auto scores = source.numbers<float>("tokenizer.ggml.scores");
    const std::size_t n = std::min(words.size(), pieces);
    words.resize(n);
    types.resize(n);
    scores.resize(n);
    to.integer("tokenizer.ggml.bos_token_id", 1);
    to.integer("tokenizer.ggml.eos_token_id", 2);
    if (!byte_level) {
      to.string("tokenizer.ggml.model", "llama");
      to.strings("tokenizer.ggml.tokens", {words.begin(), words.end()});
      to.numbers("tokenizer.ggml.token_type", types);
      to.numbers("tokenizer.ggml.scores", scores);
      return;
    }
    std::vector<std::string> text(n), all(n);  // what a piece stands for, and its spelling
    std::unordered_map<std::string, std::size_t> ids;
    for (std::size_t i = 0; i < n; ++i) {
      if (types[i] == 6)
        text[i] = std::string(
            1, static_cast<char>(std::stoi(std::string(words[i].substr(3, 2)), nullptr, 16)));
      if (types[i] == 1) text[i] = without_marks(words[i]);
    }
    for (std::size_t i = 0; i < n; ++i)
      if (text[i].size() == 1 && static_cast<unsigned char>(text[i][0]) == without_byte)
        types[i] = 5;
    for (const std::int32_t type : {1, 6})  // a byte that is also a piece is that piece
      for (std::size_t i = 0; i < n; ++i)
        if (types[i] == type && !ids.emplace(text[i], i).second) types[i] = 5;
    // SmolLM2's ids
    const std::vector<std::string> control = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (std::size_t i = 0; i < n; ++i) {
      all[i] = i < 3 ? control[i] : types[i] == 5 ? std::string(words[i]) : spelled(text[i]);
      types[i] = i < 3 ? 3 : types[i] == 6 ? 1 : types[i];
    }
    to.string("tokenizer.ggml.model", "gpt2");
    to.string("tokenizer.ggml.pre", "smollm");
    to.strings("tokenizer.ggml.tokens", all);
    to.numbers("tokenizer.ggml.token_type", types);
    to.strings("tokenizer.ggml.merges", merges(text, types, scores, ids));
    to.flag("tokenizer.ggml.add_bos_token", false);
    to.string("tokenizer.chat_template", chat_template);
  }
  static std::string without_marks(std::string_view piece) {
    std::string text(piece);
    for (std::size_t at; (at = text.find("\xe2\x96\x81")) != std::string::npos;)
      text.replace(at, 3, " ");
    return text;
  }
  // SentencePiece merges any two neighbours that make a piece, best score first: every way to cut a
  // piece in two is a merge. Characters of several bytes, which SentencePiece does not cut, come
  // first.
  static std::vector<std::string> merges(const std::vector<std::string>& text,
                                         const std::vector<std::int32_t>& types,
                                         const std::vector<float>& scores,
                                         const std::unordered_map<std::string, std::size_t>& ids) {
    std::vector<std::tuple<bool, float, std::size_t>> order;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto characters =
          std::count_if(text[i].begin(), text[i].end(), [](char c) { return (c & 0xC0) != 0x80; });
      if (types[i] == 1 && text[i].size() > 1) order.emplace_back(characters > 1, -scores[i], i);
    }
    std::sort(order.begin(), order.end());
    std::vector<std::string> lines;
    for (const auto& [is_word, rank, i] : order)
      for (std::size_t cut = 1; cut < text[i].size(); ++cut) {
        const std::string left = text[i].substr(0, cut), right = text[i].substr(cut);
        if (ids.count(left) && ids.count(right))
          lines.push_back(spelled(left) + " " + spelled(right));
      }
    return lines;
  }

 public:
  static constexpr std::string_view chat_template =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
      "{{ '<|im_start|>system\nSpeak as a player does<|im_end|>\n' }}{% endif %}"
      "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% "
      "endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
};

}  // namespace test
