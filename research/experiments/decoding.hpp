// SPDX-License-Identifier: Apache-2.0
// Prompts, decoded and counted.
#pragma once
#include <string>
#include <vector>

#include "lab.hpp"

namespace experiments {

using meter = metered<cli::session>;

// One round of a decoder, as it was.
struct round {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  double expected = 0;  // tokens, by the rows alone; 0 if not measured
};
// One or more prompts, decoded.
struct decoded {
  std::vector<token_id> text;  // of the last prompt, which is its beginning
  std::vector<round> rounds;
  std::size_t tokens = 0;
  double seconds = 0;  // without the prompts
  // of each model, by the number of tokens appended
  std::vector<std::array<std::size_t, meter::most + 1>> calls_of;

  void operator+=(const decoded& d) {
    text = d.text;
    rounds.insert(rounds.end(), d.rounds.begin(), d.rounds.end());
    tokens += d.tokens;
    seconds += d.seconds;
    calls_of.resize(d.calls_of.size());
    for (std::size_t m = 0; m < calls_of.size(); ++m)
      for (std::size_t n = 0; n <= meter::most; ++n) calls_of[m][n] += d.calls_of[m][n];
  }
  std::size_t calls(std::size_t model) const {
    std::size_t sum = 0;
    for (const std::size_t n : calls_of[model]) sum += n;
    return sum;
  }
  // Mean of f over the rounds and its standard error.
  template <class F>
  estimate over_rounds(F&& f) const {
    return mean_of(0, rounds.size(), 1, [&](std::size_t i) { return double(f(rounds[i])); });
  }
};

// How a prompt is continued by `most` tokens: decode(text, most, models, chooser), models being
// metered.
using continuation =
    std::function<status(text&, std::size_t, std::vector<meter>&, random_streams&, decoded&)>;

// Every model reads the prompt, all but its last token.
inline void read_prompt(const std::vector<token_id>& prompt, readers& models) {
  for (const auto& m : models) {
    (void)m->rollback(0);
    if (m->extend(std::span(prompt).first(prompt.size() - 1), {}) != status::ok)
      throw error("prompt", "", "is too long");
  }
}

// models: they have read the prompt, and what came after it is forgotten.
inline decoded continue_prompt(const std::vector<token_id>& prompt, std::size_t most,
                               readers& models, const continuation& decode, std::uint64_t seed,
                               std::uint64_t request) {
  decoded d;
  d.text = prompt;
  d.text.resize(prompt.size() + most + 80);  // and what is drafted beyond
  std::vector<meter> meters;
  for (const auto& m : models) {
    (void)m->rollback(prompt.size() - 1);
    meters.emplace_back(*m);
  }
  text t{d.text, prompt.size()};
  random_streams chooser(seed, request);
  const auto start = std::chrono::steady_clock::now();
  const status s = decode(t, most, meters, chooser, d);
  d.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (s != status::ok) throw error("decoding", std::to_string(request), std::string(name(s)));
  d.tokens = t.size - prompt.size();
  d.text.resize(t.size);
  for (const meter& m : meters) {
    auto& calls = d.calls_of.emplace_back();
    std::copy(m.calls_of, m.calls_of + meter::most + 1, calls.begin());
  }
  return d;
}

inline decoded decode_prompt(const std::vector<token_id>& prompt, std::size_t most, readers& models,
                             const continuation& decode, std::uint64_t seed,
                             std::uint64_t request) {
  read_prompt(prompt, models);
  return continue_prompt(prompt, most, models, decode, seed, request);
}

// All prompts, one after the other, on this thread: for the clock. Each is read once in a part.
inline decoded decode_all(lab& lab, const std::vector<std::string>& models,
                          const std::vector<std::vector<token_id>>& prompts, std::size_t most,
                          const continuation& decode) {
  decoded all;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    readers& kept = lab.kept(models, prompts[i]);
    if (kept[0]->position() < prompts[i].size() - 1) read_prompt(prompts[i], kept);
    all += continue_prompt(prompts[i], most, kept, decode, lab.how.seed, i);
  }
  return all;
}

// Of the tokens after the prompt, how many are the most likely of the target.
inline double agreement_with(cli::session& target, std::span<const token_id> text,
                             std::size_t prompt) {
  const std::size_t v = target.vocab_size(), n = text.size() - prompt;
  std::vector<float> rows(n * v);
  (void)target.rollback(0);
  if (target.extend(text.first(prompt - 1), {}) != status::ok)
    throw error("text", "", "the prompt is too long");
  if (target.extend(text.subspan(prompt - 1, n), rows) != status::ok)
    throw error("text", "", "the text is too long");
  double same = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto row = std::span(rows).subspan(i * v, v);
    same += token_id(std::max_element(row.begin(), row.end()) - row.begin()) == text[prompt + i];
  }
  return same / double(n);
}

// Speculative decoding with models[0] as draft and models[1] as target. verifier_of(chooser's seed,
// request) is made anew for each prompt; a draft length is shared by all prompts.
template <class Policy, class Verifier = token_verifier, class Length = fixed_draft_length>
status speculate(text& t, std::size_t most, std::vector<meter>& models, random_streams& chooser,
                 decoded& d, const Policy& policy, std::size_t gamma, double temperature,
                 bool acceptances, const Verifier& verifier = {}, Length&& length = {}) {
  const decode_options options{gamma, {temperature}, no_token, acceptances};
  speculative_workspace<float> work(models[0].vocab_size(), options);
  const auto after_round = [&](const speculative_result& r, const auto& w) {
    d.rounds.push_back(
        {r.drafted, r.accepted, r.emitted,
         acceptances ? expected_tokens(std::span(w.acceptances).first(r.drafted)) : 0});
  };
  return speculative_decode(models[0], models[1], policy, chooser,
                            {.text = t, .most = most, .work = work, .after_round = after_round},
                            verifier, length);
}

}  // namespace experiments
