// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/byte_level_bpe.hpp>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include <specagg/backend/cpu/tokenizer.hpp>

#include "backend/cpu/gguf_writer.hpp"
#include "support/catch.hpp"

using namespace specagg;
using cpu::byte_level_bpe;

namespace {

std::string refusal(const test::gguf_writer& file) {
  return test::error_of([&] {
    const test::gguf_bytes bytes(file.bytes());
    byte_level_bpe t(bytes.open());
  });
}

}  // namespace

#if defined(SPECAGG_PCRE2)

namespace {

using strings = std::vector<std::string>;
using merges = std::vector<std::pair<std::string, std::string>>;

strings words_of(const std::string& pre, const std::string& text) {
  std::vector<std::string_view> parts{text};
  for (const auto& known : cpu::detail::known_words)
    if (known.name == pre)
      for (const char* p : known.patterns)
        if (p) {
          std::vector<std::string_view> cut;
          for (const auto part : parts) cpu::detail::pattern(p).cut(part, cut);
          parts = cut;
        }
  return {parts.begin(), parts.end()};
}

// The rule, slowly: in each word, merge the pair of the lowest rank, the leftmost of equals, while
// there is one.
strings slow_pieces(const std::string& pre, const merges& by_rank, const std::string& text) {
  strings all;
  for (const std::string& word : words_of(pre, text)) {
    strings symbols;
    for (const char c : word) symbols.emplace_back(1, c);
    for (std::size_t rank = 0; rank < by_rank.size();) {
      std::size_t at = 0;
      while (at + 1 < symbols.size() &&
             !(symbols[at] == by_rank[rank].first && symbols[at + 1] == by_rank[rank].second))
        ++at;
      if (at + 1 >= symbols.size()) {
        ++rank;
        continue;
      }
      symbols[at] += symbols[at + 1];
      symbols.erase(symbols.begin() + std::ptrdiff_t(at) + 1);
      rank = 0;
    }
    all.insert(all.end(), symbols.begin(), symbols.end());
  }
  return all;
}
strings pieces_of(const byte_level_bpe& t, const std::vector<token_id>& tokens) {
  strings all;
  for (const token_id x : tokens) all.push_back(t.piece(x));
  return all;
}

// Merges of what came before them, at random, over few letters: many words have several ways.
merges random_merges(std::mt19937& random, std::size_t count) {
  strings known;
  for (const char* c : {"a", "b", "c", " ", "1", "\n", "\xc3", "\xa9"}) known.emplace_back(c);
  merges all;
  while (all.size() < count) {
    const auto& left = known[random() % known.size()];
    const auto& right = known[random() % known.size()];
    if (std::find(known.begin(), known.end(), left + right) != known.end()) continue;
    all.emplace_back(left, right);
    known.push_back(left + right);
  }
  return all;
}

}  // namespace

TEST_CASE("words are cut as each family of models cuts them") {
  const std::string text = "I've 123 caf\xc3\xa9s,  it's\n\n x=4!! \t";
  CHECK(words_of("gpt-2", text) == strings{"I", "'ve", " 123", " caf\xc3\xa9s", ",", " ", " it",
                                           "'s", "\n\n", " x", "=", "4", "!!", " \t"});
  CHECK(words_of("smollm", text) == strings{"I", "'ve", " ", "1", "2", "3", " caf\xc3\xa9s", ",",
                                            " ", " it", "'s", "\n\n", " x", "=", "4", "!!", " \t"});
  CHECK(words_of("llama-bpe", text) == strings{"I", "'ve", " ", "123", " caf\xc3\xa9s", ",", " ",
                                               " it", "'s", "\n\n", " x", "=", "4", "!!", " \t"});
  CHECK(words_of("qwen2", text) == strings{"I", "'ve", " ", "1", "2", "3", " caf\xc3\xa9s", ",",
                                           " ", " it", "'s", "\n\n", " x", "=", "4", "!!", " \t"});
  CHECK(words_of("llama-bpe", "1234567 HE'LL\r\n\n") ==
        strings{"123", "456", "7", " HE", "'LL", "\r\n\n"});
  CHECK(words_of("gpt-2", "HE'LL \xe6\x9d\xb1\xe4\xba\xac\xd9\xa3") ==
        // letters; an Arabic digit
        strings{"HE", "'", "LL", " \xe6\x9d\xb1\xe4\xba\xac", "\xd9\xa3"});
  CHECK(words_of("gpt-2", "").empty());
}

TEST_CASE(
    "merging by a heap gives the pieces of merging by the rule, for random merges and texts") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    const merges by_rank = random_merges(random, 1 + random() % 40);
    const std::string pre = trial % 2 ? "gpt-2" : "smollm";
    const test::gguf_bytes bytes(test::small_bpe(pre, by_rank).bytes());
    const byte_level_bpe t(bytes.open());
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (std::size_t n = random() % 60; n > 0; --n)
        text += std::string_view("aaabbbccc  11\n\xc3\xa9.")[random() % 16];
      const auto tokens = t.encode(text);
      CHECK(pieces_of(t, tokens) == slow_pieces(pre, by_rank, text));
      CHECK(t.decode(tokens) == text);
    }
  }
}

TEST_CASE("a word that is a piece is that token for llama-bpe, with any merges") {
  const merges by_rank = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  for (const char* pre : {"llama-bpe", "qwen2"}) {
    const test::gguf_bytes bytes(test::small_bpe(pre, by_rank).bytes());
    const byte_level_bpe t(bytes.open());
    const bool whole = std::string(pre) == "llama-bpe";
    CHECK(pieces_of(t, t.encode("abc")) == (whole ? strings{"abc"} : strings{"a", "bc"}));
    CHECK(pieces_of(t, t.encode("abcc")) == strings{"a", "bc", "c"});
  }
}

TEST_CASE(
    "merges that repeat, or go round in a circle of pieces, end: a merge always gives a longer "
    "piece") {
  const merges by_rank = {{"ab", "a"}, {"a", "b"},   {"b", "a"},
                          {"ba", "b"}, {"aba", "b"}, {"bab", "a"}};
  const auto file = [](const merges& lines) {
    strings pieces = {"a", "b", "ab", "ba", "aba", "bab", "abab", "baba"}, text;
    for (const auto& [left, right] : lines) text.push_back(left + " " + right);
    test::gguf_writer to;
    to.string("tokenizer.ggml.model", "gpt2");
    to.string("tokenizer.ggml.pre", "gpt-2");
    to.strings("tokenizer.ggml.tokens", pieces);
    to.numbers("tokenizer.ggml.token_type", std::vector<std::int32_t>(pieces.size(), 1));
    to.strings("tokenizer.ggml.merges", text);
    return to.bytes();
  };
  merges twice = by_rank;
  twice.insert(twice.end(), by_rank.rbegin(), by_rank.rend());
  const test::gguf_bytes once_bytes(file(by_rank)), twice_bytes(file(twice));
  const byte_level_bpe once(once_bytes.open()), again(twice_bytes.open());
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += i % 7 == 3 ? "bb" : i % 2 ? "a" : "b";
    CHECK(pieces_of(once, once.encode(text)) == slow_pieces("gpt-2", by_rank, text));
    CHECK(again.encode(text) == once.encode(text));  // of equal merges the first one counts
  }
}

TEST_CASE("every byte string survives, UTF-8 or not, and a long word takes no time") {
  const test::gguf_bytes bytes(test::small_bpe("smollm").bytes());
  const byte_level_bpe t(bytes.open());
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  CHECK(t.decode(t.encode(all)) == all);
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (std::size_t n = random() % 40; n > 0; --n) text += static_cast<char>(random());
    CHECK(t.decode(t.encode(text)) == text);
  }
  const std::string word(1 << 20, 'b');
  CHECK(t.encode(word).size() == word.size());
  CHECK(t.encode("").empty());
}

TEST_CASE("control tokens are parsed on request alone, user-defined pieces always") {
  const test::gguf_bytes bytes(test::small_bpe("smollm").bytes());
  const byte_level_bpe t(bytes.open());
  const std::string text = "a<|turn|>b<user>c<|end|>";
  CHECK(t.decode(t.encode(text)) == text);
  const auto plain = t.encode(text), special = t.encode(text, true);
  CHECK(std::count(plain.begin(), plain.end(), 2) == 1);
  CHECK(std::count(plain.begin(), plain.end(), 0) + std::count(plain.begin(), plain.end(), 1) == 0);
  CHECK(special ==
        std::vector<token_id>{t.encode("a")[0], 1, t.encode("b")[0], 2, t.encode("c")[0], 0});
  CHECK(t.decode(special) == "ab<user>c");
  CHECK(t.piece(2) == "<user>");
  CHECK((t.piece(1).empty() && t.piece(-1).empty() && t.piece(100000).empty()));
}

TEST_CASE("thousands of user-defined pieces do not cost hundreds of times what three cost") {
  const auto fastest = [](std::size_t count) {
    std::vector<std::string> users;
    for (std::size_t i = 0; i < count; ++i) users.push_back("<extra_" + std::to_string(i) + ">");
    const test::gguf_bytes bytes(test::small_bpe("smollm", {{"a", "b"}}, users).bytes());
    const cpu::byte_level_bpe t(bytes.open());
    std::string text;
    while (text.size() < 20000) text += "< a text, <extra_2>, <extra";
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const auto tokens = t.encode(text);
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      CHECK(std::count(tokens.begin(), tokens.end(), token_id(4)) == 741);
    }
    return best;
  };
  const double few = fastest(3), many = fastest(6000);
  INFO(1e3 * few << " ms, " << 1e3 * many << " ms");
  CHECK(many < 50 * few);  // it was 700 times; also on busy machines and under sanitizers
}

TEST_CASE("the tokenizer of a file is the one that it names, with its begin and end tokens") {
  auto file = test::small_bpe("gpt-2");
  file.flag("tokenizer.ggml.add_bos_token", true);
  const test::gguf_bytes bytes(file.bytes());
  const cpu::tokenizer t(bytes.open());
  CHECK(t.size() == 3 + 256 + 8);
  CHECK((t.bos() == 1 && t.eos() == 0));
  CHECK(t.encode("ab").size() == 2);
  CHECK(t.encode("ab")[0] == 1);
  CHECK(t.decode(t.encode(" ab12")) == " ab12");
  CHECK(t.hash() != 0);
}

TEST_CASE("a tokenizer that cannot be one is refused in a line that names the place") {
  const auto with = [](auto&& change) {
    test::gguf_writer to;
    to.string("tokenizer.ggml.model", "gpt2");
    strings pieces = {"a", "b", "ab"}, lines = {"a b"};
    std::vector<std::int32_t> types = {1, 1, 1};
    std::string pre = "smollm";
    change(pre, pieces, types, lines);
    to.string("tokenizer.ggml.pre", pre);
    to.strings("tokenizer.ggml.tokens", pieces);
    to.numbers("tokenizer.ggml.token_type", types);
    to.strings("tokenizer.ggml.merges", lines);
    return refusal(to);
  };
  CHECK(with([](auto&...) {}) == "");
  CHECK(with([](auto& pre, auto&...) { pre = "deepseek"; }) ==
        "test.gguf: metadata tokenizer.ggml.pre: \"deepseek\" is not supported (\"gpt-2\", "
        "\"smollm\", \"llama-bpe\", "
        "\"qwen2\" are)");
  CHECK(with([](auto&, auto& pieces, auto& types, auto&) {
          pieces.push_back("a");
          types.push_back(1);
        }) == "test.gguf: metadata tokenizer.ggml.tokens: piece 3 is \"a\", as piece 0 is");
  CHECK(with([](auto&, auto& pieces, auto&...) {
          pieces[1] = "\xe2\x96\x81";
        }).find("piece 1 is \"\xe2\x96\x81\", which is not spelled in characters of bytes") !=
        std::string::npos);
  CHECK(with([](auto&, auto& pieces, auto&...) { pieces[1] = ""; }).find("piece 1 is \"\"") !=
        std::string::npos);
  CHECK(with([](auto&, auto&, auto& types, auto&) {
          types[2] = 9;
        }).find("piece 2 has the unknown type 9") != std::string::npos);
  CHECK(with([](auto&, auto&, auto& types, auto&) {
          types.pop_back();
        }).find("2 types for 3 pieces") != std::string::npos);
  for (const char* line : {"ab", "", " ", "a ", " b", "a b c", "a  b"})
    CHECK(with([&](auto&, auto&, auto&, auto& lines) { lines[0] = line; })
              .find("tokenizer.ggml.merges: merge 0, \"" + std::string(line) +
                    "\", is not two pieces") != std::string::npos);
  CHECK(with([](auto&, auto&, auto&, auto& lines) {
          lines[0] = "a c";
        }).find("merges what is no piece") != std::string::npos);
  CHECK(with([](auto&, auto&, auto&, auto& lines) {
          lines.push_back("b a");
        }).find("merge 1, \"b a\", gives what is no piece") != std::string::npos);
  const test::gguf_bytes few([] {
    test::gguf_writer to;
    to.string("tokenizer.ggml.model", "gpt2");
    to.string("tokenizer.ggml.pre", "smollm");
    to.strings("tokenizer.ggml.tokens", {"a"});
    to.numbers("tokenizer.ggml.token_type", std::vector<std::int32_t>{1});
    to.strings("tokenizer.ggml.merges", {});
    return to.bytes();
  }());
  const byte_level_bpe t(few.open());
  CHECK(t.encode("aa") == std::vector<token_id>{0, 0});
  CHECK(test::error_of([&] { (void)t.encode("ab"); }) ==
        "test.gguf: tokenizer: the text has the byte 98, which no piece stands for");
}

#else

TEST_CASE("without PCRE2 a byte-level BPE tokenizer is refused") {
  CHECK(refusal(test::small_bpe("smollm")) ==
        "test.gguf: metadata tokenizer.ggml.model: \"gpt2\" needs PCRE2, and this program was "
        "built without it");
}

#endif
