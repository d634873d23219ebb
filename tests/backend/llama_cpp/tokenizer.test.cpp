// SPDX-License-Identifier: Apache-2.0
// libllama's tokenizers, against our own for the files that both read.
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/backend/llama_cpp/tokenizer.hpp>

#include <random>

#include "backend/cpu/tiny_models.hpp"
#include "backend/llama_cpp/models.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using namespace specagg;

namespace {

const std::vector<std::string> texts = {
    "",
    "a",
    " a",
    "\n",
    "\n\nThe end.",
    "And it came to pass in those days, that there went out a decree.",
    "ROMEO:\nO, she doth teach the torches to burn bright!\n",
    "naïve café, 12345 x_1 <s></s> <|im_end|>",
    "  two  spaces ",
    "日本語",
    "😀 emoji",
    "if (a <= b) { return \"x\"; }\t// comment"};

void check_against_ours(const std::string& file) {
  INFO(file);
  const cpu::tokenizer ours(cpu::gguf_file::open(file));
  const llama_cpp::tokenizer theirs(llama_cpp::load_model(file));
  CHECK(theirs.size() == ours.size());
  CHECK(theirs.bos() == ours.bos());
  CHECK(theirs.eos() == ours.eos());
  CHECK(theirs.beginning() == ours.beginning());
  for (const std::string& text : texts) {
    INFO("\"" << text << "\"");
    const auto ids = ours.encode(text);
    CHECK(theirs.encode(text) == ids);
    CHECK(theirs.decode(ids) == text);
    CHECK(theirs.encode_inside(text) == ours.encode_inside(text));
  }
  const auto a = ours.texts(), b = theirs.texts();
  REQUIRE(a.size() == b.size());
  std::size_t other = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].is == token_text::kind::special) CHECK(b[i].is == token_text::kind::special);
    else CHECK(theirs.piece(token_id(i)) == ours.piece(token_id(i)));
    CHECK(theirs.is_unused(token_id(i)) == ours.is_unused(token_id(i)));
    other += a[i].bytes != b[i].bytes || a[i].is != b[i].is;
  }
  CHECK(other == 0);
  const auto ends = theirs.end_of_generation();
  CHECK(std::find(ends.begin(), ends.end(), ours.eos()) != ends.end());
  CHECK(theirs.piece(-1).empty());
  CHECK(theirs.piece(token_id(ours.size())).empty());
}

}  // namespace

TEST_CASE("bundled models: libllama's tokens are ours") {
  for (const std::string name : {"draft", "target"}) check_against_ours(test::bundled_file(name));
}

#if defined(SPECAGG_PCRE2)
TEST_CASE("SmolLM2: libllama's tokens are ours") {
  const std::string file = test::smollm2();
  if (!file.empty()) check_against_ours(file);
}

TEST_CASE(
    "SmolLM2: libllama loses bytes that are not UTF-8, and says so. Every end of a turn ends a "
    "text") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const llama_cpp::tokenizer tokens(llama_cpp::load_model(file));
  CHECK(test::error_of([&] { (void)tokens.encode_inside("a\xff"); }) ==
        "text: libllama's tokenizer loses bytes of it");
  CHECK(tokens.encode_inside("").empty());
  CHECK(tokens.encode_with_control("<|im_end|>").size() == 1);
  CHECK(tokens.encode("<|im_end|>").size() > 1);
  const auto ends = tokens.end_of_generation();
  CHECK(std::find(ends.begin(), ends.end(), tokens.encode_with_control("<|im_end|>")[0]) !=
        ends.end());
}
#endif

TEST_CASE("the hash tells vocabularies apart, and not models of one vocabulary") {
  const test::temporary_file other(test::window_model(8));
  const auto hash = [](const std::string& file) {
    return llama_cpp::tokenizer(llama_cpp::load_model(file)).hash();
  };
  CHECK(hash(test::bundled_file("draft")) == hash(test::bundled_file("target")));
  CHECK(hash(test::bundled_file("draft")) != hash(other.path()));
}
