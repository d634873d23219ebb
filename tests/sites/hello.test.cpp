// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/hello.hpp>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <specagg/printable.hpp>

#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

hello some_terms() {
  hello h{.life = 77,
          .session = 5,
          .model_l = short_text("draft-7b"),
          .model_r = short_text("target-70b")};
  h.codec = {.vocabulary = 300, .format = row_codec::values::half, .top_k = 8, .top_p = 0.9};
  h.real_bytes = 8;
  h.end_of_text = 2;
  h.prompt = 7;
  h.sampling = short_text("temperature 0.8");
  return h;
}

}  // namespace

TEST_CASE("two ends that differ are told where first, and what each says") {
  const hello here = some_terms();
  const auto told = [&](auto change) {
    hello there = here;
    there.from = side::r;
    there.life = 1;
    there.heard = true;
    change(there);
    return first_difference(here, there);
  };
  CHECK(told([](hello&) {}) == "");
  CHECK(told([](hello& h) { h.model_r = {}; }) == "");  // any
  CHECK(told([](hello& h) {
          h.version = 9;
          h.codec.vocabulary = 1;
        }) == "version: 4 on the device, 9 on the server");
  CHECK(told([](hello& h) { h.kind = protocol::dssd; }) ==
        "protocol: dragon on the device, dssd on the server");
  CHECK(told([](hello& h) { h.seed_hash = hash_of_seed(2); }) ==
        "seed: device and server have different ones (--seed of their commands)");
  CHECK(told([](hello& h) { h.from = side::l; }) == "side: both ends are the device");
  CHECK(told([](hello& h) { h.model_l = short_text("draft-8b"); }) ==
        "model of l: draft-7b on the device, draft-8b on the server");
  const std::string sizes = "vocabulary: 300 on the device, 32000 on the server";
  CHECK(told([](hello& h) { h.codec.vocabulary = 32000; }) == sizes);
  hello there = here;  // the other end says the same
  there.from = side::r;
  there.codec.vocabulary = 32000;
  CHECK(first_difference(there, here) == sizes);
  CHECK(told([](hello& h) { h.codec.top_p = 0.9 + 1e-12; }) ==
        "codec, top-p: they differ in the last digits");
  for (const auto& change : std::vector<std::function<void(hello&)>>{
           [](hello& h) { h.session = 1; }, [](hello& h) { h.model_r = short_text("x"); },
           [](hello& h) { h.vocabulary_hash = 1; }, [](hello& h) { h.seed_hash = hash_of_seed(2); },
           [](hello& h) { h.sampling = short_text(""); },
           [](hello& h) { h.codec.format = row_codec::values::full; },
           [](hello& h) { h.real_bytes = 4; }, [](hello& h) { h.codec.top_k = 9; },
           [](hello& h) { h.codec.total = 9; }, [](hello& h) { h.end_of_text = no_token; },
           [](hello& h) { h.look_ahead = 6; }, [](hello& h) { h.most_tokens = 999; },
           [](hello& h) { h.first = side::r; }, [](hello& h) { h.prompt = 3; }})
    CHECK_FALSE(told(change).empty());
}
TEST_CASE(
    "two ends that make other tokens of the fixed text differ. An end that reads no text goes with "
    "any") {
  hello here = some_terms(), there = here;
  there.from = side::r;
  const std::vector<token_id> tokens{5, 17, 3}, other{5, 1, 73};
  here.tokenization_hash = hash_of_tokens(tokens);
  there.tokenization_hash = hash_of_tokens(other);
  CHECK(first_difference(here, there) ==
        "tokenization: the two ends make different tokens of one text (do their tables of Unicode "
        "differ?)");
  there.tokenization_hash = hash_of_tokens(tokens);
  CHECK(first_difference(here, there).empty());
  there.tokenization_hash = 0;
  CHECK(first_difference(here, there).empty());
}
TEST_CASE(
    "the fixed text is UTF-8, with characters of every version of Unicode that tokenizers disagree "
    "on") {
  std::vector<std::uint32_t> seen;
  for (std::string_view rest = tokenization_probe; !rest.empty();) {
    const auto c = utf8::first_code_point(rest);
    REQUIRE(c.valid);
    seen.push_back(c.value);
    rest.remove_prefix(c.bytes);
  }
  // A letter that came with 6.1, 8, 9, 11, 13, 14, 15, 15.1, 16 and 17; a digit of 9, 11, 13, 15
  // and 16.
  for (const std::uint32_t c :
       {0x8a0u, 0x13f8u, 0x1c80u, 0x1c90u, 0xa7c7u, 0xa7c0u, 0x11f04u, 0x2ebf0u, 0xa7cbu, 0xa7ceu,
        0x11c50u, 0x10d30u, 0x11950u, 0x11f50u, 0x1e4f0u, 0x10d40u})
    CHECK(std::count(seen.begin(), seen.end(), c) > 0);
}
TEST_CASE("terms out of range are not valid") {
  const auto with = [](auto change) {
    hello h = some_terms();
    change(h);
    return valid(h);
  };
  CHECK(with([](hello&) {}));
  CHECK(with([](hello& h) {
    h.real_bytes = 4;
    h.end_of_text = no_token;
    h.look_ahead = 64;
    h.most_tokens = 7;
  }));
  CHECK(with([](hello& h) {
    h.end_of_text = 299;
    h.look_ahead = 1;
  }));
  CHECK_FALSE(with([](hello& h) { h.codec.vocabulary = 0; }));
  CHECK_FALSE(with([](hello& h) { h.real_bytes = 2; }));
  CHECK_FALSE(with([](hello& h) { h.look_ahead = 0; }));
  CHECK_FALSE(with([](hello& h) { h.look_ahead = 65; }));
  CHECK_FALSE(with([](hello& h) { h.most_tokens = 6; }));  // shorter than the prompt
  CHECK_FALSE(with([](hello& h) { h.end_of_text = 300; }));
  CHECK_FALSE(with([](hello& h) { h.end_of_text = -2; }));
}
TEST_CASE("only protocols that send rows up have room for more than one row in a message") {
  hello h = some_terms();
  h.look_ahead = 5;
  const auto room = [&](protocol p) {
    h.kind = p;
    return most_message_bytes(h);
  };
  for (const protocol p :
       {protocol::dragon, protocol::dragon_shared, protocol::dssd, protocol::split_shared})
    CHECK(room(p) == 1024 + 16 * 64 + row_bytes(h));
  for (const protocol p : {protocol::dsd, protocol::dsd_block})
    CHECK(room(p) == 1024 + 16 * 64 + 5 * row_bytes(h));
}
TEST_CASE(
    "hashes tell seeds, requests and the cuts between pieces apart. A text longer than 200 bytes "
    "is cut") {
  CHECK(hash_of_seed(1) != hash_of_seed(1, 1));
  CHECK(hash_of_text("b", hash_of_text("a")) != hash_of_text("", hash_of_text("ab")));
  CHECK(hash_of_seed(1) != hash_of_seed(2));
  CHECK(short_text(std::string(201, 'x')).view() == std::string(200, 'x'));
}
TEST_CASE("hello_for makes terms of two ends that agree. What is left out of hello{} is the same") {
  constexpr hello l = hello_for(32000, side::l);
  static_assert(l.codec.vocabulary == 32000 && l.real_bytes == 4);
  CHECK(valid(l));
  CHECK(first_difference(l, hello_for(32000, side::r)) == "");
  CHECK(first_difference(l, hello_for(32000, side::l)) == "side: both ends are the device");
  CHECK(first_difference(l, hello_for(50272, side::r)) ==
        "vocabulary: 32000 on the device, 50272 on the server");
  CHECK(first_difference(l, hello_for<double>(32000, side::r)) ==
        "codec, bytes of a number: 4 on the device, 8 on the server");
  CHECK(first_difference(l, hello_for(32000, side::r, protocol::dssd)) ==
        "protocol: dragon on the device, dssd on the server");
  hello same{.from = side::r};  // one field is enough
  CHECK_FALSE(valid(same));
  same.codec.vocabulary = 32000;
  CHECK(valid(same));
  CHECK(first_difference(l, same) == "");
}
