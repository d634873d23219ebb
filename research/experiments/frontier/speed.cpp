// SPDX-License-Identifier: Apache-2.0
// Tokens a second, measured: the target alone, lossless, and the policies of SPECAGG_POLICIES
// (NAME:KEY=VALUE with spaces between) go on with the same texts, one text after another, in an
// order of chance. Prompts are read before the clock starts. Each repetition draws the same tokens,
// so the times of a text differ by the machine alone. Seconds are those that this process computes,
// and for whole texts also those of a clock.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <sstream>
#include <variant>

#include "../policies.hpp"
#include "reading.hpp"

namespace experiments::frontier {
namespace {

using any_policy = compiled_once<any_catalogued>;

double computed_ms() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e3 * double(t.tv_sec) + 1e-6 * double(t.tv_nsec);
}
double clock_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}
// A model that counts the milliseconds of its calls.
class timed {
 public:
  using value_type = float;
  explicit timed(cpu::llama& of) : model_(&of) {}
  std::size_t vocab_size() const { return model_->vocab_size(); }
  std::size_t capacity() const { return model_->capacity(); }
  std::size_t position() const { return model_->position(); }
  std::span<const token_id> tokens() const { return model_->tokens(); }
  status rollback(std::size_t n) { return model_->rollback(n); }
  status extend(std::span<const token_id> tokens, std::span<float> rows) {
    const double begin = computed_ms();
    const status s = model_->extend(tokens, rows);
    ms += computed_ms() - begin;
    return s;
  }
  double ms = 0;

 private:
  cpu::llama* model_;
};

struct writer {
  std::string rule, text;
  // lossless has a type of its own: of the others the decoder cannot know that none needs the
  // draft's row after its last token
  std::variant<lossless, any_policy> policy;
  std::size_t gamma;
};
std::vector<writer> writers() {
  std::vector<writer> all{{"alone", "alone", lossless{}, 0},
                          {"lossless", "lossless", lossless{}, gamma}};
  std::istringstream list(variable("SPECAGG_POLICIES"));
  for (std::string text; list >> text;) {
    const auto colon = text.find(':'), equals = text.find('=');
    if (colon == std::string::npos || equals == std::string::npos)
      throw error("SPECAGG_POLICIES", text, "is not NAME:KEY=VALUE");
    any_catalogued found = lossless{};
    with_policy(text.substr(0, colon), std::stod(text.substr(equals + 1)),
                [&](const auto& policy) { found = policy; });
    all.push_back({text.substr(0, colon), text, any_policy(found), gamma});
  }
  return all;
}

struct counted {
  double calls = 0, tokens = 0, ms = 0, q_ms = 0, p_ms = 0, by_clock = 0;
};
// Both models have read all tokens of the prompt but the last.
counted write(cpu::llama& q_model, cpu::llama& p_model, const written& t, const writer& by,
              double temperature, std::uint64_t seed) {
  const std::size_t most = t.tokens.size() - t.prompt;
  std::vector<token_id> memory(t.tokens);
  text to{memory, t.prompt};
  const auto end = token_id(p_model.weights().file.integer("tokenizer.ggml.eos_token_id"));
  speculative_workspace<float> work(p_model.vocab_size(),
                                    {.gamma = by.gamma,
                                     .sample = {.temperature = temperature, .top_p = top_p},
                                     .end_of_text = std::span(&end, 1)});
  must(q_model.rollback(t.prompt - 1), "draft");
  must(p_model.rollback(t.prompt - 1), "target");
  timed q(q_model), p(p_model);
  counted c;
  const auto count = [&](const speculative_result& r, auto&) {
    ++c.calls;
    c.tokens += double(r.emitted);
  };
  const random_streams noise(seed);
  const double begin = computed_ms(), began = clock_ms();
  std::visit(
      [&](const auto& policy) {
        must(speculative_decode(q, p, policy, noise,
                                {.text = to, .most = most, .work = work, .after_round = count}),
             "text");
      },
      by.policy);
  c.ms = computed_ms() - begin;
  c.by_clock = clock_ms() - began;
  c.q_ms = q.ms;
  c.p_ms = p.ms;
  return c;
}
// Milliseconds of a call of n tokens with all their rows, from the end of the prompt on.
double call(cpu::llama& model, const written& t, std::size_t n, std::vector<float>& rows) {
  must(model.rollback(t.prompt - 1), "model");
  rows.resize(n * model.vocab_size());
  const double begin = computed_ms();
  must(model.extend(std::span(t.tokens).subspan(t.prompt - 1, n), rows), "model");
  return computed_ms() - begin;
}

}  // namespace

void speed(laboratory& l, const char* draft, double temperature, table& out) {
  cpu::llama p(target(), nullptr, 1024), q(draft_named(draft), nullptr, 1024);  // one thread
  const auto all = writers();
  const auto& texts = texts_at(l, temperature);
  const std::size_t repetitions = l.how.quick ? 1 : 3, every = 3;
  std::mt19937 chance(std::uint32_t(l.how.seed));
  std::vector<float> rows;
  std::vector<std::size_t> order(all.size() + 3);  // the last three: calls
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (std::size_t i = 0; i < texts.size(); i += every) {
    const written& t = texts[i];
    if (t.tokens.size() < t.prompt + gamma + 1) continue;  // it ended at once
    for (cpu::llama* model : {&q, &p}) {
      must(model->rollback(0), "model");
      must(model->extend(std::span(t.tokens).first(t.prompt - 1), {}), "model");
    }
    for (std::size_t r = 0; r < repetitions; ++r) {
      std::shuffle(order.begin(), order.end(), chance);
      for (const std::size_t k : order) {
        if (k < all.size()) {
          const counted c = write(q, p, t, all[k], temperature, 100 * l.how.seed + t.place);
          out.add(all[k].rule, fmt::format("\"{}\"", all[k].text), t.set, t.number, r, c.calls,
                  c.tokens, c.ms, c.q_ms, c.p_ms, c.by_clock);
          continue;
        }
        const std::size_t what = k - all.size();
        cpu::llama& model = what == 0 ? q : p;
        const std::size_t n = what == 2 ? gamma + 1 : 1;
        constexpr std::size_t calls = 4;
        double ms = 0;
        for (std::size_t j = 0; j < calls; ++j) ms += call(model, t, n, rows);
        out.add(fmt::format("{}-{}", what == 0 ? "draft" : "target", n), "\"\"", t.set, t.number, r,
                calls, n * calls, ms, what == 0 ? ms : 0, what == 0 ? 0 : ms, NAN);
      }
    }
    l.progress(double(i + 1) / double(texts.size()));
  }
}

}  // namespace experiments::frontier
