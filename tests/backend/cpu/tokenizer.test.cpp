// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/sentencepiece.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/backend/cpu/vocabulary.hpp>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "backend/cpu/gguf_writer.hpp"
#include "support/catch.hpp"

using namespace specagg;
using cpu::gguf_file;
using cpu::tokenizer;

namespace {

const tokenizer& bundled() {
  static const tokenizer t(gguf_file::open(SPECAGG_MODELS "/draft.gguf"));
  return t;
}

// The rule, slowly: as long as two neighbours together are a piece, merge the best scored pair, the
// leftmost of equals.
std::vector<token_id> slow_encode(const gguf_file& file, const std::string& text) {
  const auto pieces = file.strings("tokenizer.ggml.tokens");
  const auto scores = file.numbers<float>("tokenizer.ggml.scores");
  const auto types = file.numbers<std::int32_t>("tokenizer.ggml.token_type");
  std::unordered_map<std::string, std::size_t> ids;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (types[i] == 1) ids.emplace(pieces[i], i);
  std::vector<std::string> symbols;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (symbols.empty() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
      symbols.emplace_back();
    symbols.back() += text[i];
  }
  for (auto& s : symbols)
    if (s == " ") s = "\xe2\x96\x81";
  symbols.insert(symbols.begin(), "\xe2\x96\x81");
  for (;;) {
    std::size_t best = 0;
    double score = -1e30;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      if (const auto it = ids.find(symbols[i] + symbols[i + 1]);
          it != ids.end() && scores[it->second] > score) {
        best = i + 1;
        score = scores[it->second];
      }
    if (best == 0) break;
    symbols[best - 1] += symbols[best];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best));
  }
  std::vector<token_id> out = {1};
  for (const auto& s : symbols)
    if (const auto it = ids.find(s); it != ids.end())
      out.push_back(static_cast<token_id>(it->second));
    else
      for (char c : s) out.push_back(3 + static_cast<unsigned char>(c));
  return out;
}

std::string refusal(test::gguf_writer file) {
  return test::error_of([&] {
    const test::gguf_bytes bytes(file.bytes());
    tokenizer t(bytes.open());
  });
}

}  // namespace

TEST_CASE(
    "every bundled model encodes the reference texts to the reference ids, and decodes the "
    "continuations") {
  for (const std::string name : {"draft", "target", "bard", "bible"}) {
    const tokenizer t(gguf_file::open(std::string(SPECAGG_MODELS) + "/" + name + ".gguf"));
    for (const auto& r : nlohmann::json::parse(
             std::ifstream(std::string(SPECAGG_MODELS) + "/" + name + ".reference.json"))) {
      CHECK(t.encode(r["text"].get<std::string>()) == r["ids"].get<std::vector<token_id>>());
      CHECK(t.decode(r["ids"].get<std::vector<token_id>>()) == r["text"].get<std::string>());
      // The continuation starts inside a text, where a leading space is the text's own.
      std::string text;
      for (token_id id : r["greedy_continuation_ids"].get<std::vector<token_id>>())
        text += t.piece(id);
      const auto expected = r["greedy_continuation_text"].get<std::string>();
      CHECK((text == expected || text == " " + expected));
    }
  }
}

TEST_CASE("merging with a heap is merging the best pair again and again") {
  const auto file = gguf_file::open(SPECAGG_MODELS "/draft.gguf");
  const test::gguf_bytes small_bytes(test::small_model{}.write().bytes());
  const auto small = small_bytes.open();
  const tokenizer t(small);
  std::mt19937 random(1);
  std::ifstream reference(SPECAGG_MODELS "/README.md");
  std::string word;
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (auto n = random() % 40; n > 0; --n) text += "abc \n\xc3\xa9"[random() % 5];
    if (!text.empty()) CHECK(t.encode(text) == slow_encode(small, text));
    while (text.size() < 30 && reference >> word) text += word + (random() % 4 ? " " : "  ");
    if (!text.empty()) CHECK(bundled().encode(text) == slow_encode(file, text));
  }
}

TEST_CASE(
    "every byte string survives encoding: each byte, each pair, random bytes, U+2581, a hundred "
    "thousand spaces") {
  const test::gguf_bytes small_bytes(test::small_model{}.write().bytes());
  const tokenizer small(small_bytes.open());
  const auto survives = [&](const std::string& text) {
    if (bundled().decode(bundled().encode(text)) != text ||
        small.decode(small.encode(text)) != text)
      FAIL("lost: " << text);
  };
  survives("");
  for (int a = 0; a < 256; ++a) {
    survives(std::string(1, static_cast<char>(a)));
    for (int b = 0; b < 256; ++b) survives({static_cast<char>(a), static_cast<char>(b)});
  }
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (auto n = random() % 30; n > 0; --n) {
      switch (random() % 4) {
        case 0: text += static_cast<char>(random()); break;
        case 1: text += "\xe2\x96\x81"; break;
        case 2: text += "\xe2\x96\x81 \xf0\x9f\x98\x80"[random() % 8]; break;
        default: text += "the and\n"[random() % 8];
      }
    }
    survives(text);
  }
  survives(std::string(100000, ' '));
  survives(std::string(100000, 'a'));
}

TEST_CASE(
    "pieces streamed one by one spell the text after one leading space, control tokens nothing") {
  const std::string text =
      "Gr\xc3\xbc\xc3\x9f"
      "e \xe4\xbd\xa0\xe5\xa5\xbd, \xf0\x9f\x98\x80!";
  std::string streamed;
  for (token_id id : bundled().encode(text)) streamed += bundled().piece(id);
  CHECK(streamed == " " + text);
  for (token_id id : {token_id{0}, bundled().bos(), bundled().eos(), no_token, token_id{4096},
                      std::numeric_limits<token_id>::max()})
    CHECK(bundled().piece(id) == "");
  CHECK(bundled().piece(3 + 0xC3) == "\xc3");
}

TEST_CASE("flags decide about begin token, end token and the space in front") {
  const std::vector<token_id> a = {259 + 9};  // "a"; with a space in front the piece 259
  const auto encode_with = [](std::string_view key, std::optional<bool> on) {
    test::gguf_writer file;
    test::write_tokenizer(file, test::small_vocabulary());
    if (on) file.flag(key, *on);
    const test::gguf_bytes bytes(file.bytes());
    return tokenizer(bytes.open()).encode("a");
  };
  CHECK(encode_with("", {}) == std::vector<token_id>{1, 259});
  CHECK(encode_with("tokenizer.ggml.add_bos_token", false) == std::vector<token_id>{259});
  CHECK(encode_with("tokenizer.ggml.add_eos_token", true) == std::vector<token_id>{1, 259, 2});
  CHECK(encode_with("tokenizer.ggml.add_space_prefix", false) == std::vector<token_id>{1, 268});
}

TEST_CASE("the file says which tokens are unused") {
  const auto pieces = test::small_vocabulary();
  test::gguf_writer file;
  test::write_tokenizer(file, pieces);
  auto bytes = file.bytes();
  const std::string key = "tokenizer.ggml.token_type";
  const auto types = bytes.find(key) + key.size() + 16;
  for (const std::size_t i : {262u, 265u}) bytes[types + 4 * i] = 5;
  const test::gguf_bytes some(bytes);
  const tokenizer t(some.open());
  for (token_id i = 0; std::size_t(i) < t.size(); ++i)
    CHECK(t.is_unused(i) == (i == 262 || i == 265));
}
TEST_CASE("user-defined pieces are kept whole, the longest first") {
  auto pieces = test::small_vocabulary();
  pieces.insert(pieces.end(), {"ca", "cab|", "\xe2\x96\x81|"});
  test::gguf_writer file;
  test::write_tokenizer(file, pieces);
  auto bytes = file.bytes();
  const std::string key = "tokenizer.ggml.token_type";
  const auto types = bytes.find(key) + key.size() + 16;
  for (std::size_t i = pieces.size() - 3; i < pieces.size(); ++i) bytes[types + 4 * i] = 4;
  const test::gguf_bytes kept(bytes);
  const tokenizer t(kept.open());
  const auto first = static_cast<token_id>(pieces.size() - 3);
  // " ab" "ca" "b", though "cab" is a piece
  CHECK(t.encode("abcab") == std::vector<token_id>{1, 263, first, 269});
  CHECK(t.encode("cab|b") == std::vector<token_id>{1, 267, first + 1, 269});  // " " "cab|" "b"
  CHECK(t.encode("a |") == std::vector<token_id>{1, 259, first + 2});         // " a" " |"
  // not a space in the text
  CHECK(t.encode("a\xe2\x96\x81|") != std::vector<token_id>{1, 259, first + 2});
  for (const std::string text :
       {"abcab", "cab|b", "a |", "a\xe2\x96\x81|", "ca", "c", "cab|\xe2\x96", "ca\xe2\x96\x81"})
    CHECK(t.decode(t.encode(text)) == text);
}

TEST_CASE(
    "the longest piece that a text begins with is what looking at every piece finds, of equal ones "
    "the first") {
  std::mt19937 random(11);
  const auto some = [&](std::size_t most) {
    std::string s(random() % (most + 1), ' ');
    for (char& c : s) c = "ab\x80\xff"[random() % 4];
    return s;
  };
  for (int round = 0; round < 50; ++round) {
    auto pieces = test::small_vocabulary();
    const std::size_t own = pieces.size();
    for (std::size_t i = random() % 60; i > 0; --i) pieces.push_back(some(5));
    test::gguf_writer file;
    test::write_tokenizer(file, pieces);
    const test::gguf_bytes bytes(file.bytes());
    const cpu::vocabulary words(bytes.open(), true);
    std::vector<token_id> ids;
    for (std::size_t i = own; i < pieces.size(); ++i) ids.push_back(static_cast<token_id>(i));
    const cpu::piece_finder finder(words, ids);
    std::size_t found = 0;
    for (int n = 0; n < 200; ++n) {
      const std::string text = some(8);
      token_id longest = no_token;
      std::size_t size = 0;
      for (const token_id t : ids)
        if (words.piece(t).size() > size && text.starts_with(words.piece(t))) {
          longest = t;
          size = words.piece(t).size();
        }
      const token_id got = finder.longest_at(text);
      if (got != longest)
        FAIL("round " << round << ", text " << n << ": " << got << " for " << longest);
      found += longest != no_token;
    }
    CHECK((ids.size() < 20 || found > 50));
  }
  CHECK(cpu::piece_finder().longest_at("a") == no_token);
}

TEST_CASE("the vocabulary's hash is the same for the same pieces and tells different ones apart") {
  for (const std::string name : {"target", "bard", "bible"})
    CHECK(tokenizer(gguf_file::open(std::string(SPECAGG_MODELS) + "/" + name + ".gguf")).hash() ==
          bundled().hash());
  auto pieces = test::small_vocabulary();
  const auto hash = [&] {
    test::gguf_writer file;
    test::write_tokenizer(file, pieces);
    const test::gguf_bytes bytes(file.bytes());
    return tokenizer(bytes.open()).hash();
  };
  const auto first = hash();
  std::swap(pieces[260], pieces[261]);
  const auto swapped = hash();
  pieces.pop_back();
  const auto shorter = hash();
  CHECK((first != swapped && swapped != shorter && first != shorter && first != bundled().hash()));
}

TEST_CASE("a tokenizer that is missing, of another kind or inconsistent is refused by name") {
  test::gguf_writer file;
  CHECK(refusal(file) ==
        "test.gguf: metadata tokenizer.ggml.model: is missing (a string is needed)");
  file.string("tokenizer.ggml.model", "bert");
  CHECK(refusal(file) ==
        "test.gguf: metadata tokenizer.ggml.model: \"bert\" is not supported (\"llama\", "
        "SentencePiece BPE, and "
        "\"gpt2\", byte-level BPE, are)");

  const auto write = [](std::vector<std::string> pieces, std::vector<float> scores,
                        std::vector<std::int32_t> types) {
    test::gguf_writer to;
    to.string("tokenizer.ggml.model", "llama");
    to.strings("tokenizer.ggml.tokens", pieces);
    to.numbers("tokenizer.ggml.scores", scores);
    to.numbers("tokenizer.ggml.token_type", types);
    return refusal(to);
  };
  const auto has = [](const std::string& message, const std::string& reason) {
    INFO(message);
    CHECK(message.find(reason) != std::string::npos);
  };
  has(write({}, {}, {}), "tokenizer.ggml.tokens: holds 0 pieces");
  has(write({"a"}, {}, {1}), "tokenizer.ggml.scores: 0 scores for 1 pieces");
  has(write({"a"}, {0}, {1, 1}), "tokenizer.ggml.token_type: 2 types for 1 pieces");
  has(write({"a"}, {std::numeric_limits<float>::quiet_NaN()}, {1}),
      "piece 0 has a score that is not finite");
  has(write({"a"}, {0}, {7}), "piece 0 has the unknown type 7 (1 to 6 are known)");
  has(write({"a\n"}, {0}, {6}), "piece 0 is of type byte but spelled \"a\\n\"");
  has(write({"a"}, {0}, {1}), "not all 256 byte pieces");
  test::gguf_writer bos;
  test::write_tokenizer(bos, test::small_vocabulary());
  bos.integer("tokenizer.ggml.unused", 9);
  auto bytes = bos.bytes();
  bytes[bytes.find("tokenizer.ggml.bos_token_id") + 27 + 4 + 1] = 2;  // 1 becomes 513
  const test::gguf_bytes kept(bytes);
  has(test::error_of([&] { tokenizer t(kept.open()); }),
      "bos_token_id: 513 is not a token (there are 271)");
}
