// SPDX-License-Identifier: Apache-2.0
// What llama.smollm2.more.test.cpp says of a model that has to be downloaded, here of small ones
// that are made on the spot.
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>

#include <algorithm>
#include <random>

#include "backend/cpu/models.hpp"
#include "backend/cpu/tiny_models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::cpu;

namespace {

const std::vector<std::string> texts = {
    "And it came to pass in those days, that there went out a decree from the king, that all the "
    "people should come.",
    "ROMEO:\nO, she doth teach the torches to burn bright!\nIt seems she hangs upon the cheek of "
    "night\n",
    "What say you to my suit? I pray thee, good Mercutio, let us retire: the day is hot, the "
    "enemies abroad.",
    "In the beginning was the word, and the word was with the men of Israel, and they went up to "
    "the house.",
};

std::vector<double> likelihoods(const std::shared_ptr<const llama_weights>& weights) {
  const tokenizer tokens(test::bundled("draft")->file);
  llama model(weights);
  std::vector<double> all(1);  // of all texts, of each
  for (const auto& text : texts) {
    (void)model.rollback(0);
    all.push_back(test::negative_log_likelihood(model, tokens.encode(text)));
    all[0] += all.back();
  }
  return all;
}
std::vector<double> likelihoods(const test::tiny_model& model) {
  const test::gguf_bytes bytes(model.write().bytes());
  return likelihoods(test::weights_of(bytes));
}

}  // namespace

TEST_CASE(
    "a rounded model has the likelihoods of its own numbers: a text to 1.5 %, all texts to 0.3 %") {
  for (const std::string from : {"draft", "target"}) {
    const double exact = likelihoods(test::bundled(from))[0];
    for (const auto type : {tensor_type::q4_0, tensor_type::q4_1, tensor_type::q8_0}) {
      const auto given = likelihoods(test::tiny_model{.from = from, .matrices = type});
      const auto expected =
          likelihoods(test::tiny_model{.from = from, .matrices = type, .dequantised = true});
      INFO(from << ", type " << static_cast<int>(type) << ": " << given[0] << ", its numbers "
                << expected[0] << ", before rounding " << exact);
      CHECK(given[0] == Approx(expected[0]).epsilon(0.003));
      for (std::size_t i = 1; i < given.size(); ++i)
        CHECK(given[i] == Approx(expected[i]).epsilon(0.015));
      CHECK(given[0] == Approx(exact).epsilon(type == tensor_type::q8_0 ? 0.005 : 0.1));
    }
  }
}

TEST_CASE(
    "rounded models have the same bits at once and one by one, on 1, 2 and 4 threads, after "
    "rollbacks") {
  for (const std::string from : {"draft", "target"})
    for (const auto type : {tensor_type::q4_0, tensor_type::q4_1, tensor_type::q8_0}) {
      const test::gguf_bytes bytes(
          test::tiny_model{.from = from, .matrices = type}.write().bytes());
      const auto weights = test::weights_of(bytes);
      const auto tokens = test::some_tokens(45, weights->vocab);
      llama at_once(weights);
      const auto expected = test::rows_of(at_once, tokens);
      const auto row = [&](std::size_t i, std::size_t n) {
        return std::span(expected).subspan(i * weights->vocab, n * weights->vocab);
      };
      for (const unsigned threads : {1u, 2u, 4u}) {
        llama model(weights, std::make_shared<thread_pool>(threads));
        CHECK(test::same_bits(test::rows_of(model, tokens), expected));
        (void)model.rollback(0);
        for (std::size_t i = 0; i < tokens.size(); ++i)
          REQUIRE(
              test::same_bits(test::rows_of(model, std::span(tokens).subspan(i, 1)), row(i, 1)));
        test::check_rollbacks(model, tokens, expected, threads, 20, 35);
      }
    }
}

#if defined(SPECAGG_PCRE2)
TEST_CASE("the two tokenizers, of the same pieces and merges, give the same tokens") {
  const test::gguf_bytes bytes(test::tiny_model{.byte_level = true}.write().bytes());
  const tokenizer sentences(test::bundled("draft")->file), words(bytes.open());
  CHECK(words.size() == sentences.size());
  std::size_t tokens = 0;
  for (const auto& text : texts) {
    auto expected = sentences.encode(text);
    expected.erase(expected.begin());  // the begin token
    const auto given = words.encode(" " + text);
    INFO(text);
    CHECK(given == expected);
    CHECK(words.decode(given) == " " + text);
    tokens += given.size();
  }
  CHECK(tokens < 160);  // they were merged
  const std::string other = "caf\xc3\xa9 \xe6\x9d\xb1\xe4\xba\xac 12\t\xff<|im_end|>";
  CHECK(words.decode(words.encode(other)) == other);
}

TEST_CASE("a model of SmolLM2's types, tokenizer and template runs") {
  const test::gguf_bytes bytes(test::tiny_model{.byte_level = true}.write().bytes());
  const auto weights = test::weights_of(bytes);
  const tokenizer words(weights->file);
  llama model(weights);
  const auto ids = words.encode(" " + texts[0]);
  const double nll = test::negative_log_likelihood(model, ids) / double(ids.size() - 1);
  CHECK(nll < 5);  // ln 4096 = 8.3: the rows belong to the pieces
  CHECK(weights->file.string("tokenizer.chat_template") == test::tiny_model::chat_template);
}

TEST_CASE(
    "tables that are cut off or have a wrong byte are refused in one line, or make a tokenizer "
    "that works") {
  const std::string whole =
      test::tiny_model{.byte_level = true, .pieces = 600, .blocks = 1}.write().bytes();
  // the tokenizer's tables lie before it
  const std::size_t tables = whole.find("token_embd.weight");
  REQUIRE(tables < whole.size());
  int refused = 0, read = 0;
  const auto open = [&](const std::string& bytes) {
    try {
      const test::gguf_bytes kept(bytes);
      const tokenizer words(kept.open());
      const llama_weights weights(kept.open());
      ++read;
      const auto ids = words.encode("the king and the people\n");
      for (const token_id t : ids) REQUIRE((t >= 0 && static_cast<std::size_t>(t) < words.size()));
      (void)words.decode(ids);
    } catch (const error& e) {
      ++refused;
      const std::string line = e.what();
      CHECK(line.find('\n') == std::string::npos);
      CHECK((line.starts_with("test.gguf: ") && line.size() < 400));
      CHECK(line == printable(line, line.size()));
    }
  };
  open(whole);
  CHECK(read == 1);
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) open(whole.substr(0, random() % whole.size()));
  CHECK(refused == 300);
  for (int i = 0; i < 600; ++i) {
    std::string flipped = whole;
    flipped[random() % tables] ^= static_cast<char>(1 << random() % 8);
    open(flipped);
  }
  CHECK(refused > 400);
  CHECK(read > 10);
}
#endif
