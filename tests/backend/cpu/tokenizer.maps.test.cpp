// SPDX-License-Identifier: Apache-2.0
// Two tokenizers: the map of their tokens, and a text in the tokens of the other.
#include <specagg/backend/cpu/tokenizer.hpp>

#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>

#include <specagg/draft/retokenised.hpp>

#include "support/catch.hpp"
#include "support/smollm2.hpp"

using namespace specagg;
using cpu::gguf_file, cpu::tokenizer;

namespace {

using tokens = std::vector<token_id>;
using kind = token_text::kind;

const tokenizer& bundled() {
  static const tokenizer t(gguf_file::open(SPECAGG_MODELS "/target.gguf"));
  return t;
}
std::string spelled(const tokenizer& t, std::span<const token_id> all) {
  std::string bytes;
  for (const token_id x : all) bytes += t.piece(x);
  return bytes;
}
std::string random_bytes(std::mt19937& random, std::size_t n) {
  std::string text;
  while (n-- > 0) switch (random() % 5) {
      case 0: text += static_cast<char>(random()); break;
      case 1: text += "\xe2\x96\x81 \xf0\x9f\x98\x80\xe4\xbd\xa0"[random() % 11]; break;
      case 2: text += "\xe2\x96\x81"; break;
      case 3: text += std::string(random() % 4, ' ') + "\n1's"[random() % 4]; break;
      default: text += "the and of king"[random() % 15];
    }
  return text;
}

// Feeds texts of `theirs` to own tokens of `mine`: after any pushes and pops both have the same
// bytes. Returns how often the own tokens were those of the whole text encoded at once.
double in_step(const tokenizer& theirs, const tokenizer& mine, std::span<const std::string> texts,
               unsigned seed) {
  const auto a = theirs.texts(), b = mine.texts();
  const vocabulary_map map = map_of_equal_tokens(b, a);
  const cpu::inside_encoder<> encode{&mine};
  std::mt19937 random(seed);
  std::size_t canonical = 0, all = 0;
  for (const std::string& text : texts) {
    const tokens ids = theirs.encode_inside(text);
    retokenised_text<cpu::inside_encoder<>> t(a, b, map, encode);
    for (int turn = 0; t.size() < ids.size(); ++turn) {
      if (random() % 3 == 0)
        for (std::size_t n =
                 random() % (std::min<std::size_t>(t.size(), turn % 20 == 0 ? 40 : 5) + 1);
             n > 0; --n)
          t.pop();
      for (std::size_t n = random() % 9; n > 0 && t.size() < ids.size(); --n)
        if (t.push(ids[t.size()]) != status::ok) FAIL("refused: " << text);
      std::string bytes;  // what can be written
      for (const token_id x : std::span(ids).first(t.size()))
        if (!encode(theirs.piece(x)).empty()) bytes += theirs.piece(x);
      if (spelled(mine, t.own_tokens()) != bytes) FAIL("out of step: " << text);
      canonical += std::ranges::equal(t.own_tokens(), encode(bytes));
      ++all;
    }
  }
  return double(canonical) / double(std::max<std::size_t>(all, 1));
}
std::vector<std::string> passages() {
  std::vector<std::string> all;
  for (const char* name :
       {"/README.md", "/../research/prompts.txt", "/../research/text/README.md"}) {
    std::ifstream file(std::string(SPECAGG_MODELS) + name);
    std::stringstream text;
    text << file.rdbuf();
    REQUIRE(text.str().size() > 100);
    all.push_back(text.str().substr(0, 800));
  }
  return all;
}

}  // namespace

TEST_CASE("bytes inside a text are encoded with nothing put before or after them") {
  const auto a = bundled().encode("the king"), b = bundled().encode_inside("the king");
  REQUIRE(bundled().beginning() == tokens{bundled().bos()});
  CHECK(a.front() == bundled().bos());
  CHECK(spelled(bundled(), a) == " the king");
  CHECK(spelled(bundled(), b) == "the king");
  CHECK(bundled().encode_inside(" the king") == tokens(a.begin() + 1, a.end()));
  CHECK(bundled().encode_inside("").empty());
}
TEST_CASE(
    "the tokens as texts: bytes, names of special ones, and spare those that the encoder never "
    "gives") {
  const auto all = bundled().texts();
  REQUIRE(all.size() == bundled().size());
  CHECK((all[1].is == kind::special && all[1].bytes == "<s>" && all[1].in_text().empty()));
  CHECK((all[0].is == kind::text && all[0].bytes.empty()));  // <unk>
  std::size_t spare = 0, special = 0;
  for (token_id t = 0; t < token_id(all.size()); ++t) {
    const token_text& one = all[std::size_t(t)];
    special += one.is == kind::special;
    if (one.is != kind::special) CHECK(one.bytes == bundled().piece(t));
    if (one.is != kind::spare) continue;
    ++spare;
    const tokens written = bundled().encode_inside(one.bytes);  // another token with these bytes
    REQUIRE(written.size() == 1);
    CHECK(written[0] != t);
    CHECK(all[std::size_t(written[0])].is == kind::text);
  }
  CHECK(special == 2);
  CHECK(spare > 50);  // byte tokens of letters
  const vocabulary_map same = map_of_equal_tokens(all, all);
  CHECK(same.size() == all.size() - spare - 1);
  for (token_id t = 0; t < token_id(all.size()); ++t)
    CHECK((same.to(t) == t || same.to(t) == no_token));
}
TEST_CASE("a text in the tokens of its own tokenizer keeps its bytes, after any push and pop") {
  std::mt19937 random(1);
  std::vector<std::string> texts(100);
  for (std::string& t : texts) t = random_bytes(random, 1 + random() % 80);
  CHECK(in_step(bundled(), bundled(), texts, 1) > 0.99);
}
TEST_CASE(
    "SmolLM2: its map to the bundled vocabulary, and texts of each in step with the other's tokens "
    "by bytes",
    "[more]") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const tokenizer smol(gguf_file::open(file));
  const auto a = bundled().texts(), b = smol.texts();
  const vocabulary_map to_smol = map_of_equal_tokens(a, b), to_bundled = map_of_equal_tokens(b, a);
  std::printf("%zu of %zu bundled tokens are tokens of SmolLM2\n", to_smol.size(), a.size());
  CHECK(to_smol.size() == to_bundled.size());
  CHECK(to_smol.size() > 2000);
  for (token_id d = 0; d < token_id(a.size()); ++d) {
    const token_id t = to_smol.to(d);
    if (t == no_token) continue;
    CHECK(to_bundled.to(t) == d);
    CHECK(a[std::size_t(d)].bytes == b[std::size_t(t)].bytes);
    CHECK(a[std::size_t(d)].is == b[std::size_t(t)].is);
    const tokens written = smol.encode_inside(b[std::size_t(t)].bytes);
    if (written.size() == 1) CHECK(written[0] == t);
  }
  CHECK(cpu::inside_encoder{&smol}("\x04").empty());  // SmolLM2 has no token of this byte
  CHECK_THROWS_AS(smol.encode_inside("\x04"), error);
  std::mt19937 random(2);
  std::vector<std::string> texts(60);
  for (std::string& t : texts) t = random_bytes(random, 1 + random() % 60);
  in_step(bundled(), smol, texts, 5);  // without the bytes that it lacks
  for (std::string& t : texts) do {
      t = random_bytes(random, 1 + random() % 60);
    } while (cpu::inside_encoder{&smol}(t).empty());
  std::printf(
      "random bytes: the tokens of the whole text encoded at once in %.4f and %.4f of the cases\n",
      in_step(bundled(), smol, texts, 1), in_step(smol, bundled(), texts, 2));
  const auto prose = passages();
  const double one = in_step(bundled(), smol, prose, 3), other = in_step(smol, bundled(), prose, 4);
  std::printf("prose: %.4f and %.4f\n", one, other);
  CHECK(one > 0.95);
  CHECK(other > 0.95);
}
