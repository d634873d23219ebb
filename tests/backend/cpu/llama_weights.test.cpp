// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/llama_weights.hpp>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::cpu;
using test::bundled, test::weights_of;

namespace {

std::string refusal(const test::gguf_writer& file) {
  return test::error_of([&] { weights_of(test::gguf_bytes(file.bytes())); });
}

}  // namespace

TEST_CASE("sine and cosine are within 4e-16 of exact ones up to 2^25") {
  std::mt19937_64 random(6);
  double worst = 0;
  const auto check = [&](double x) {
    const auto [sine, cosine] = cpu::detail::sin_cos(x);
    worst = std::max(
        {worst, static_cast<double>(std::abs(sine - std::sin(static_cast<long double>(x)))),
         static_cast<double>(std::abs(cosine - std::cos(static_cast<long double>(x))))});
  };
  for (int i = 0; i < 200000; ++i)
    check(std::ldexp(static_cast<double>(random() >> 11), -28 - static_cast<int>(random() % 40)));
  for (int i = 0; i < 5000; ++i) {
    check(i);
    check(i * 0.785398163397448309616);
  }
  CHECK(worst < 4e-16);
}

TEST_CASE("rotary frequencies are base^(-2i/d)") {
  const auto weights = bundled("target");
  REQUIRE(weights->frequencies.size() == 16);
  for (std::size_t i = 0; i < 16; ++i)
    CHECK(weights->frequencies[i] ==
          Approx(std::pow(10000., -2. * static_cast<double>(i) / 32)).epsilon(1e-14));
}

TEST_CASE(
    "a model of another architecture, or whose tensors and metadata disagree, is refused by name") {
  const auto has = [](const std::string& message, const std::string& reason) {
    INFO(message);
    CHECK(message.rfind("test.gguf: ", 0) == 0);
    CHECK(message.find(reason) != std::string::npos);
  };
  CHECK(refusal(test::small_model{}.write()) == "");
  has(refusal(test::gguf_writer{}), "metadata general.architecture: is missing");
  has(refusal(test::small_model{.architecture = "qwen2"}.write()),
      "general.architecture: \"qwen2\" is not supported (\"llama\" is)");
  has(refusal(test::small_model{.context = 0}.write()),
      "llama.context_length: is 0 (1 to 16777216 are possible)");
  has(refusal(test::small_model{.context = ~0u}.write()), "llama.context_length: is 4294967295");
  has(refusal(test::small_model{.blocks = 0}.write()), "llama.block_count: is 0");
  has(refusal(test::small_model{.kv_heads = 3}.write()),
      "llama.attention.head_count_kv: 3 does not divide 4 heads");
  has(refusal(test::small_model{.heads = 5, .kv_heads = 5}.write()),
      "llama.attention.head_count: 5 does not divide 64 dimensions");
  has(refusal(test::small_model{.rotated = 18}.write()),
      "llama.rope.dimension_count: is 18 (1 to 16 are possible)");
  has(refusal(test::small_model{.rotated = 15}.write()), "llama.rope.dimension_count: 15 is odd");
  has(refusal(test::small_model{.skip = "blk.1.ffn_up.weight"}.write()),
      "tensor blk.1.ffn_up.weight: is missing");
  has(refusal(test::small_model{.skip = "token_embd.weight"}.write()),
      "tensor token_embd.weight: is missing");
  has(refusal(test::small_model{.twist = "blk.0.ffn_gate.weight"}.write()),
      "tensor blk.0.ffn_gate.weight: is 96 x 64 (the metadata call for 64 x 96)");
  has(refusal(test::small_model{.twist = "token_embd.weight"}.write()),
      "tensor token_embd.weight: is 271 x 64");

  const auto with = [](auto change) {
    auto file = test::small_model{}.write();
    change(file);
    return refusal(file);
  };
  has(with([](auto& f) { f.string("llama.rope.scaling.type", "yarn"); }),
      "\"yarn\" is not supported (\"none\" is)");
  for (const std::string name : {"llama.rope.scale_linear", "llama.rope.scaling.factor"})
    has(with([&](auto& f) { f.real(name, 4); }), name + ": scales positions, which");
  has(with([](auto& f) { f.integer("llama.expert_count", 8); }),
      "llama.expert_count: mixtures of experts");
  has(with([](auto& f) { f.integer("llama.vocab_size", 8); }),
      "llama.vocab_size: differs from the 271 rows");
  has(with([](auto& f) { f.integer("llama.attention.value_length", 8); }),
      "llama.attention.value_length: differs");
  for (float base : {0.5f, -1.f, std::numeric_limits<float>::infinity(),
                     std::numeric_limits<float>::quiet_NaN()})
    has(with([&](auto& f) { f.real("llama.rope.freq_base", base); }),
        "llama.rope.freq_base: is not in 1 to 1e12");
  has(with([](auto& f) { f.tensor("blk.0.attn_q.bias", {64}, 0, std::string(256, '\0')); }),
      "tensor blk.0.attn_q.bias: is not supported");
  has(with([](auto& f) { f.tensor("rope_freqs.weight", {8}, 0, std::string(32, '\0')); }),
      "tensor rope_freqs.weight: is not");
  auto bytes = test::small_model{}.write().bytes();
  const std::string key = "llama.attention.layer_norm_rms_epsilon";
  std::memset(bytes.data() + bytes.find(key) + key.size() + 4, 0, 4);
  has(test::error_of([&] { weights_of(test::gguf_bytes(bytes)); }), key + ": is not in 1e-12 to 1");
}

TEST_CASE("weights stay in the file's mapping: what is held besides is a small fraction") {
  const auto weights = bundled("target");
  const auto* first = weights->file.tensors().front().data;
  const auto inside = [&](const tensor& t) {
    return std::abs(t.data - first) < static_cast<std::ptrdiff_t>(weights->file.size());
  };
  CHECK((inside(weights->embedding) && weights->output.data == weights->embedding.data));
  for (const auto& l : weights->layers)
    for (const auto* t : {&l.q, &l.k, &l.v, &l.output, &l.gate, &l.up, &l.down}) CHECK(inside(*t));
}

TEST_CASE("loading tells how much is done, after each matrix") {
  for (auto type : {tensor_type::f16, tensor_type::q4_1}) {
    const test::gguf_bytes bytes(test::small_model{.type = type}.write().bytes());
    std::vector<double> done;
    const llama_weights weights(bytes.open(), true, [&](double x) { done.push_back(x); });
    CHECK(done.size() == 1 + 7 * weights.layers.size());
    CHECK(std::is_sorted(done.begin(), done.end()));
    CHECK((done.front() > 0 && done.back() > 0.5 && done.back() <= 1));
  }
}
