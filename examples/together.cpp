// SPDX-License-Identifier: Apache-2.0
// Three texts, each with its own seed, temperature and length of drafts, in rounds that they share:
// one call of the target reads its weights for all. Each is the text that it is alone.
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/decoders.hpp>

#include <cstdio>

using namespace specagg;
using cpu::llama;
const auto model(const char* file) {
  return std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file));
}
const auto small = model(SPECAGG_MODELS "/draft.gguf"),
           large = model(SPECAGG_MODELS "/target.gguf");
const cpu::tokenizer tokens(large->file);
const auto pool = std::make_shared<thread_pool>(2);
constexpr std::size_t most = 12, capacity = 128;  // tokens to append; of a text
const lossless policy;
struct request {
  std::vector<token_id> memory;
  text written;
  random_streams random;
  llama draft{small, pool, capacity}, target{large, pool, capacity};
  speculative_workspace<float> work;
  model_drafter<llama> drafter{draft, work.draft_logits, work.options.sample};
  together_text<model_drafter<llama>, llama, lossless, random_streams> shared{
      drafter, target, policy, random, {.text = written, .most = most, .work = work}};
  request(const char* prompt, std::uint64_t seed, const decode_options& how)
      : memory(tokens.encode(prompt)), random(seed), work(large->vocab, how) {
    written.size = memory.size();
    memory.resize(capacity);
    written.tokens = memory;
  }
  auto said() const { return tokens.decode(written.tokens.first(written.size)); }
};

int main() {
  request a("ROMEO:", 1, {4, {0.7}}), b("In the beginning", 2, {2, {0}}), c("What say you", 3, {6});
  const std::vector all = {&a.shared, &b.shared, &c.shared};
  together_workspace<std::remove_reference_t<decltype(a.shared)>> work;
  std::size_t rounds = 1;
  while (together_round(all, work, *pool) > 0) ++rounds;
  for (const request* r : {&a, &b, &c}) std::printf("%s\n", r->said().c_str());
  request alone("What say you", 3, {6});
  const status why = speculative_decode(alone.drafter, alone.target, policy, alone.random,
                                        {.text = alone.written, .most = most, .work = alone.work});
  std::printf("%zu rounds; the last text alone, %s: %s\n", rounds, name(why),
              alone.said() == c.said() ? "the same" : "another");
}

// Output:
// ROMEO:
// And now I will be of the LORD, and
// In the beginning of the LORD, and in the days of the LORD,
// What say you?
// I hate to our eyes? Fort thou call
// 5 rounds; the last text alone, ok: the same
