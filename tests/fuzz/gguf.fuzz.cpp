// SPDX-License-Identifier: Apache-2.0
// FUZZ: -max_len=65536
// Bytes as a GGUF file: they are refused with specagg::error, or they make a tokenizer, a chat if they have a template,
// and a model that runs a token, or a draft head.
#include <specagg/backend/cpu/head_weights.hpp>
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>

#include <cstdlib>
#include <fstream>

#include "../examples/cli/chat.hpp"
#include "backend/cpu/gguf_writer.hpp"
#include "backend/cpu/tiny_models.hpp"

// Nobody finds a model by flipping bits: good files are written into the corpus folder, the first argument that is no
// option, before it is read.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::string folder = (*arguments)[i];
    if (folder.starts_with("-")) continue;
    int number = 0;
    const auto write = [&](const test::gguf_writer& file) {
      std::ofstream(specagg::cpu::text(folder, "/seed-", number++), std::ios::binary) << file.bytes();
    };
    write({});
    for (auto type : {test::tensor_type::f32, test::tensor_type::f16, test::tensor_type::bf16, test::tensor_type::q4_0,
                      test::tensor_type::q4_1, test::tensor_type::q8_0})
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
    write(test::small_head{.fingerprint = 1}.write());
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

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace specagg;
  using namespace specagg::cpu;
  try {
    const test::gguf_bytes bytes({reinterpret_cast<const char*>(data), size});
    const auto file = bytes.open();
    std::vector<token_id> tokens = {0};
    try {
      const tokenizer text(file);
      const std::string prompt("a cab  \xe2\x96\x81|\xc3\xa9\xff\n");
      tokens = text.encode(prompt);
      for (token_id token : tokens)
        if (token < 0 || static_cast<std::size_t>(token) >= text.size()) std::abort();
      (void)text.decode(tokens);
      const auto ends = cli::end_tokens_of(file);
      const cli::chat_ml chat(file);
      auto turns = chat.beginning(std::nullopt);
      chat.ask(turns, prompt + "<|im_end|>");
      chat.end_answer(turns);
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
    if (weights->head_dim * weights->layers.size() > 1 << 12 || weights->ffn > 1 << 12) return 0;
    llama model(weights, nullptr, 40);
    std::vector<float> row(model.vocab_size());
    if (tokens.size() > model.capacity()) tokens.resize(model.capacity());
    (void)model.extend(tokens, row);
    model.rollback(model.position() / 2);
    (void)model.extend(std::span(tokens).first(1), row);
  } catch (const error&) {
  }
  return 0;
}
