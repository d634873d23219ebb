// SPDX-License-Identifier: Apache-2.0
// FUZZ: -max_len=131072
// Bytes as a GGUF file: they are refused with specagg::error, or they make a tokenizer, a chat if
// they have a template, and a model that runs a token, or a draft head. Memory is in proportion to
// the bytes.
#include <specagg/backend/cpu/head_weights.hpp>
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "../tools/cli/chat.hpp"
#include "backend/cpu/gguf_writer.hpp"
#include "backend/cpu/tiny_models.hpp"
#include "support/bounded_memory.hpp"

// Where a file has integers that may decide how much memory is made: in the metadata, the shapes
// and places of tensors.
struct place {
  std::size_t at, bytes;
};
std::vector<place> integers_of(std::string_view bytes) {
  using namespace specagg::cpu;
  std::vector<std::uint64_t> aligned(bytes.size() / 8 + 1);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  auto* const begin = reinterpret_cast<const std::byte*>(aligned.data());
  std::vector<place> places;
  try {
    const auto file = gguf_file::view({begin, bytes.size()}, "mutant");
    for (const auto& v : file.values())
      if (!v.is_array && (v.type == value_type::u32 || v.type == value_type::u64))
        places.push_back({static_cast<std::size_t>(v.data - begin), detail::value_size(v.type)});
    for (const auto& t : file.tensors()) {
      const auto* rank = reinterpret_cast<const std::byte*>(t.name.data() + t.name.size());
      const auto shape = static_cast<std::size_t>(rank - begin) + 4;
      for (unsigned d = 0; d < t.rank; ++d) places.push_back({shape + 8 * d, 8});
      places.push_back({shape + 8 * t.rank + 4, 8});  // after the type
    }
  } catch (const specagg::error&) {
  }
  return places;
}

// Nobody finds a model by flipping bits: good files are written into the corpus folder, the first
// argument that is no option, before it is read. With each of them: the same file with one integer
// made large.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::string folder = (*arguments)[i];
    if (folder.starts_with("-")) continue;
    int number = 0;
    const auto write = [&](const test::gguf_writer& file) {
      auto bytes = file.bytes();
      if (bytes.size() > 131072) std::abort();  // -max_len, where libFuzzer cuts a seed off
      const auto save = [&] {
        std::ofstream(specagg::cpu::joined(folder, "/seed-", number++), std::ios::binary) << bytes;
      };
      save();
      for (const auto& [at, size] : integers_of(bytes)) {
        const std::uint64_t large = 2000000000;
        const std::string before = bytes.substr(at, size);
        std::memcpy(bytes.data() + at, &large, size);
        save();
        bytes.replace(at, size, before);
      }
    };
    write({});
    for (auto type : {test::tensor_type::f32, test::tensor_type::f16, test::tensor_type::bf16,
                      test::tensor_type::q4_0, test::tensor_type::q4_1, test::tensor_type::q8_0})
      for (int separate : {0, 1}) {
        const test::small_model small{.type = type,
                                      .dim = 32,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .ffn = 32,
                                      .blocks = 1,
                                      .context = 20,
                                      .rotated = 8,
                                      .separate_output = separate};
        write(small.write());
      }
    write(test::small_head{
        .fingerprint = 1, .dim = 32, .heads = 2, .kv_heads = 1, .ffn = 32, .rotated = 8}
              .write());
    test::gguf_writer text;
    test::write_tokenizer(text, test::small_vocabulary());
    write(text);
    write(test::small_bpe("smollm"));
    write(test::small_bpe("llama-bpe"));
    for (const bool byte_level : {false, true})
      write(test::tiny_model{.byte_level = byte_level, .pieces = 300, .blocks = 1}.write());
    break;
  }
  return 0;
}

// Few flips of bits hit such an integer. So every third mutant of a good file has another one.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<place> places;
  if (random() % 3 == 0) places = integers_of({reinterpret_cast<const char*>(data), size});
  if (places.empty()) return LLVMFuzzerMutate(data, size, most);
  const auto [at, bytes] = places[random() % places.size()];
  std::uint64_t number = random() >> random() % 32;
  if (random() % 2 == 0) number = number / 32 * 32;
  std::memcpy(data + at, &number, bytes);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace specagg;
  using namespace specagg::cpu;
  const test::bounded_memory bounded((1 << 20) + 64 * size);
  try {
    const test::gguf_bytes bytes({reinterpret_cast<const char*>(data), size});
    const auto file = bytes.open();
    std::size_t in_tensors = 0;
    for (const auto& t : file.tensors()) in_tensors += bytes_of(t);
    if (in_tensors > size) std::abort();
    std::vector<token_id> tokens = {0};
    try {
      const tokenizer text(file);
      const std::string prompt("a cab  \xe2\x96\x81|\xc3\xa9\xff\n");
      tokens = text.encode(prompt);
      for (token_id token : tokens)
        if (token < 0 || static_cast<std::size_t>(token) >= text.size()) std::abort();
      (void)text.decode(tokens);
      const auto ends = cli::end_tokens_of(file);
      const cli::cpu_tokenizer words(file);
      const auto chat = words.chat();
      const std::vector<std::string> texts = {prompt + "<|im_end|>", prompt, prompt};
      auto turns = chat->tokens({}, texts);
      turns.insert(turns.end(), ends.begin(), ends.end());
      for (token_id token : turns)
        if (token < 0 || static_cast<std::size_t>(token) >= text.size()) std::abort();
    } catch (const error&) {
    }
    if (file.find("specagg-head.d2t")) {
      (void)head_weights(file);
      return 0;
    }
    const auto weights = std::make_shared<const llama_weights>(file);
    const test::bounded_memory of_the_session((1 << 24) + 64 * size);  // checked_capacity
    if (weights->head_dim * weights->layers.size() > 1 << 12 || weights->ffn > 1 << 12) return 0;
    llama model(weights, nullptr, 40);
    std::vector<float> row(model.vocab_size());
    if (tokens.size() > model.capacity()) tokens.resize(model.capacity());
    (void)model.extend(tokens, row);
    (void)model.rollback(model.position() / 2);
    (void)model.extend(std::span(tokens).first(1), row);
  } catch (const error&) {
  }
  return 0;
}
