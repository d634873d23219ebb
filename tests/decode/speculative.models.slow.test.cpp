// SPDX-License-Identifier: Apache-2.0
// Decoding with the bundled models, also of many texts: here alone, for their kernels take long to
// compile.
#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <specagg/decode/speculative.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/plan/draft_length.hpp>
#include <specagg/policy/lossless.hpp>

#include "decode/many_texts.hpp"

using namespace specagg;

namespace {

// A text for every line of research/prompts.txt, 10^4 tokens in all, and what they took.
struct spent {
  double tokens = 0, draft_steps = 0, scored = 0, rounds = 0;
  double rate(const plan::draft_costs& c) const {
    return tokens / (c.target * rounds + c.draft * draft_steps + (c.verify + c.link) * scored);
  }
};
const std::string models = SPECAGG_MODELS;
auto open(const char* name) {
  return std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(models + name));
}
spent decode_prompts(std::size_t gamma, double temperature, some_length& length) {
  static const auto target_weights = open("/target.gguf"), draft_weights = open("/draft.gguf");
  static const cpu::tokenizer tokens(target_weights->file);
  cpu::llama draft_model(draft_weights), target_model(target_weights);
  std::ifstream file(models + "/../research/prompts.txt");
  spent all;
  std::uint32_t request = 0;
  for (std::string prompt; std::getline(file, prompt); ++request) {
    std::vector<token_id> buffer = tokens.encode(prompt);
    text t{buffer, buffer.size()};
    buffer.resize(target_model.capacity());
    t.tokens = buffer;
    (void)rollback(0, draft_model, target_model);
    speculative_workspace<float> work(
        tokens.size(), {.gamma = gamma, .sample = {temperature}, .end_of_text = tokens.eos()});
    random_streams chooser(1, request);
    metered<cpu::llama> drafting(draft_model);
    const status s = speculative_decode(drafting, target_model, lossless{}, chooser,
                                        {.text = t,
                                         .most = std::min<std::size_t>(500, buffer.size() - t.size),
                                         .work = work,
                                         .accept =
                                             [&](const emission&) {
                                               ++all.tokens;
                                               return true;
                                             },
                                         .after_round =
                                             [&](const speculative_result& r, const auto&) {
                                               ++all.rounds;
                                               all.scored += double(r.drafted);
                                             }},
                                        token_verifier{}, length);
    REQUIRE(s == status::ok);
    all.draft_steps += double(drafting.calls);
  }
  return all;
}

}  // namespace

TEST_CASE(
    "gamma auto makes at least 97 % of the tokens per cost of the best fixed gamma, with the "
    "bundled models",
    "[slow]") {
  constexpr std::size_t most = 6;
  constexpr double temperature = 1;
  std::vector<spent> fixed;
  some_length all;
  for (std::size_t gamma = 0; gamma <= most; ++gamma)
    fixed.push_back(decode_prompts(gamma, temperature, all));
  // Costs of a large model's step on an accelerator, of these models on a processor, and a slow
  // draft.
  for (const plan::draft_costs& c :
       {plan::draft_costs{1, 0.05, 0.01}, {1, 0.18, 0.5}, {1, 0.3, 0.05}}) {
    std::size_t best = 0;
    for (std::size_t gamma = 0; gamma <= most; ++gamma)
      if (fixed[gamma].rate(c) > fixed[best].rate(c)) best = gamma;
    some_length controller(some_length::as_controller, c);  // learns through all prompts
    const spent automatic = decode_prompts(16, temperature, controller);
    std::printf(
        "temperature %.1f, draft %.2f, verify %.2f: best fixed gamma %zu %.4f tokens per cost, "
        "auto %.4f (%.1f %%), "
        "%.0f tokens, drafts of %.2f\n",
        temperature, c.draft, c.verify, best, fixed[best].rate(c), automatic.rate(c),
        100 * automatic.rate(c) / fixed[best].rate(c), automatic.tokens,
        automatic.scored / automatic.rounds);
    CHECK(automatic.rate(c) >= 0.97 * fixed[best].rate(c));
  }
}
TEST_CASE(
    "0 of 200 texts of the bundled models, with their own seeds, temperatures, drafts, arrivals "
    "and cancels, differ from the text alone, on 1, 2 and 4 threads") {
  const auto small = open("/draft.gguf"), large = open("/target.gguf");
  const auto asked = orders(200, small->vocab, 9, true);
  for (const unsigned threads : {1u, 2u, 4u}) {
    const auto pool = std::make_shared<thread_pool>(threads);
    const auto make = [&](bool target) { return cpu::llama(target ? large : small, pool, 40); };
    CHECK(differing<token_verifier, policies_once>(asked, {}, make, 32, *pool) == 0);
  }
}
