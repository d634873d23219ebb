// SPDX-License-Identifier: Apache-2.0
// Prints texts decoded with the bundled models at temperature 1: the same on every instruction set
// and compiler.
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/decoders.hpp>

#include <cstdio>
#include <memory>

using namespace specagg;

template <class Policy>
void print_text(const char* title, cpu::llama& d, cpu::llama& m, const cpu::tokenizer& tokens,
                const Policy& policy, std::size_t gamma, std::uint64_t seed) {
  std::vector<token_id> buffer = tokens.encode("KING RICHARD:\nWhat shall I");
  text t{buffer, buffer.size()};
  buffer.resize(200);
  t.tokens = buffer;
  (void)d.rollback(0);
  (void)m.rollback(0);
  speculative_workspace<float> work(m.vocab_size(),
                                    {.gamma = gamma, .sample = {.temperature = 1, .top_p = 0.95}});
  random_streams chooser(seed);
  double log_pi = 0;
  const status why =
      speculative_decode(d, m, policy, chooser,
                         {.text = t, .most = 40, .work = work, .accept = [&](const emission& e) {
                            log_pi += e.log_pi;
                            return true;
                          }});
  std::printf("%s, seed %d, %s, log pi %a\n%s\n", title, int(seed), name(why), log_pi,
              tokens.decode(std::span(buffer).first(t.size)).c_str());
}

int main() {
  const auto load = [](const char* path) {
    return std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(path));
  };
  const auto target = load(SPECAGG_MODELS "/target.gguf"),
             small = load(SPECAGG_MODELS "/draft.gguf");
  cpu::llama m(target), d(small);
  const cpu::tokenizer tokens(target->file);
  print_text("lossless", d, m, tokens, lossless{}, 4, 1);
  print_text("token-v3", d, m, tokens, token_v3{0.3}, 3, 2);
  print_text("lossy", d, m, tokens, lossy{0.2}, 5, 3);
}
