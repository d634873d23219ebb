// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/head_weights.hpp>

#include <limits>

#include "backend/cpu/heads.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::cpu;
using test::small_head;

namespace {

std::string refusal(const small_head& head) {
  return test::error_of([&] { test::head_of(test::gguf_bytes(head.write().bytes())); });
}
void has(const std::string& message, const std::string& reason) {
  INFO(message);
  CHECK(message.rfind("test.gguf: ", 0) == 0);
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.find(reason) != std::string::npos);
}

}  // namespace

TEST_CASE("a head's file gives its shapes, its layer and the map to the target's tokens") {
  const test::gguf_bytes bytes(small_head{.fingerprint = 0xfedcba9876543210u}.write().bytes());
  const auto head = test::head_of(bytes);
  CHECK((head->dim == 64 && head->vocab == 10 && head->layers.size() == 1 && head->ffn == 96));
  CHECK((head->input.rows == 64 && head->input.cols == 128));
  CHECK(head->target_fingerprint == 0xfedcba9876543210u);
  CHECK((head->map.draft_size() == 10 && head->map.size() == 10 && head->map.target_size() == 271));
  CHECK((head->map.to(0) == 3 && head->map.to(2) == 270 && head->map.to(9) == 41));
  CHECK((head->map.from(270) == 2 && head->map.from(1) == no_token));
}

TEST_CASE("heads whose tensors, map or metadata are wrong are refused by name") {
  CHECK(refusal({}) == "");
  has(refusal({.architecture = "llama"}),
      "general.architecture: \"llama\" is not supported (\"specagg-head\" is)");
  has(refusal({.skip = "fc.weight"}), "tensor fc.weight: is missing");
  has(refusal({.skip = "output.weight"}), "tensor output.weight: is missing");
  has(refusal({.skip = "blk.0.ffn_up.weight"}), "tensor blk.0.ffn_up.weight: is missing");
  has(refusal({.twist = "fc.weight"}),
      "tensor fc.weight: is 64 x 128 (the metadata call for 128 x 64)");
  has(refusal({.twist = "output.weight"}),
      "tensor output.weight: is 10 x 64 (the metadata call for 64 x 64)");
  has(refusal({.extra = "blk.0.attn_q.bias"}),
      "tensor blk.0.attn_q.bias: is not supported (a draft head of 1 blocks without biases has "
      "none)");
  has(refusal({.blocks = 2}), "tensor blk.1.attn_norm.weight: is missing");
  has(refusal({.target_vocab = 270}),
      "specagg-head.d2t: maps token 2 to 270 (the target has 270 tokens)");
  has(refusal({.target_vocab = 0}), "specagg-head.target_vocab_size: is 0");
  has(refusal({.target_vocab = ~0u}), "specagg-head.target_vocab_size: is 4294967295");
  has(refusal({.to = {3, 0, -1, 12, 13, 99, 100, 269, 40, 41}}),
      "specagg-head.d2t: maps token 2 to -1");
  has(refusal({.to = {3, 0, 5, 12, 13, 99, 100, 3, 40, 41}}),
      "specagg-head.d2t: maps two tokens to one");
  has(refusal({.to = {3, 0, 5}}), "specagg-head.d2t: has 3 numbers, output.weight 10 rows");
  has(refusal({.to = {std::numeric_limits<std::int32_t>::max(), 0, 5, 12, 13, 99, 100, 1, 40, 41}}),
      "specagg-head.d2t: maps token 0 to 2147483647");
}

TEST_CASE("a head is for one target: width, vocabulary and fingerprint") {
  const test::gguf_bytes target_bytes(test::small_model{}.write().bytes());
  const auto target = test::weights_of(target_bytes);
  const auto checked = [&](const small_head& head, const llama_weights& with) {
    const test::gguf_bytes bytes(head.write().bytes());
    return test::error_of([&] { test::head_of(bytes)->check_target(with); });
  };
  const auto own = fingerprint(*target);
  CHECK(checked({.fingerprint = own}, *target) == "");
  has(checked({.fingerprint = own ^ 1}, *target),
      "is a draft head for another target than test.gguf: the final norm's weights differ");
  has(checked({.fingerprint = own, .target_vocab = 272}, *target),
      "it knows 272 tokens, the target has 271");
  has(checked({.fingerprint = own}, *test::bundled("target")),
      "its hidden states have 64 numbers, the target's 192");
}

TEST_CASE(
    "the fingerprint is that of the script that trains heads, for any type of the target's "
    "matrices") {
  const auto head = test::trained_head();
  CHECK(head->target_fingerprint == fingerprint(*test::bundled("target")));
  CHECK(head->target_fingerprint != fingerprint(*test::bundled("bard")));  // of the same shape
  const test::gguf_bytes f32(test::small_model{}.write().bytes());
  const test::gguf_bytes q8(test::small_model{.type = tensor_type::q8_0}.write().bytes());
  CHECK(fingerprint(*test::weights_of(f32)) == fingerprint(*test::weights_of(q8)));
}
