// SPDX-License-Identifier: Apache-2.0
// Narasimhan et al. 2025, Figure 8: the original BiLD (Kim et al. 2023), with runs of several
// lengths and several fallback thresholds, beside BiLD's law executed speculatively. Greedy.
// Quality: how many of the tokens written are the target's own choice after the same text. Cost:
// calls of the target a token.
#include <specagg/error.hpp>

#include "decoding.hpp"

namespace experiments {
namespace {

continuation original(std::size_t longest_run, double fallback, double rollback) {
  return [=](text& t, std::size_t most, std::vector<meter>& m, random_streams&, decoded& d) {
    const cascade_options options{.longest_run = longest_run};
    cascade_workspace<float> work(m[0].vocab_size(), options);
    return bild_decode(m[0], m[1], bild_thresholds{fallback, rollback},
                       {.text = t,
                        .most = most,
                        .work = work,
                        .after_round = [&](const cascade_result& r, const auto&) {
                          d.rounds.push_back({r.drafted, r.accepted, r.emitted, 0});
                        }});
  };
}
bild greedy(double alpha) { return {.alpha = alpha, .greedy = true}; }  // Figure 8's D
continuation law(double alpha) {
  return [=](text& t, std::size_t most, std::vector<meter>& m, random_streams& chooser,
             decoded& d) { return speculate(t, most, m, chooser, d, greedy(alpha), 5, 0, false); };
}

}  // namespace

void bilds(lab& lab, table& out) {
  const std::size_t prompt = 64, most = lab.how.quick ? 32 : 64;
  const auto prompts = lab.prompts(lab.how.quick ? 2 : 6, prompt);
  const std::vector<double> rollbacks{0.5, 1, 2, 3, 5, 9};
  struct setting {
    const char* algorithm;
    std::size_t longest_run;
    double fallback, rollback;  // fallback: 1 - the paper's alpha_f
    continuation decode;
  };
  std::vector<setting> all;
  for (const double x : rollbacks) {
    for (const std::size_t run : std::vector<std::size_t>{5, 10})
      for (const double fallback : {0.1, 0.5, 0.9})
        all.push_back({"original", run, fallback, x, original(run, fallback, x)});
    all.push_back({"law", 5, NAN, x, law(x)});
  }
  for (std::size_t s = 0; s < all.size(); ++s) {
    std::vector<decoded> of_prompt(prompts.size());
    std::vector<double> quality(prompts.size());
    lab.each(prompts.size(), [&](std::size_t i) {
      readers sessions = lab.open({"draft", "target"});
      of_prompt[i] = decode_prompt(prompts[i], most, sessions, all[s].decode, lab.how.seed, i);
      quality[i] = agreement_with(*sessions[1], of_prompt[i].text, prompt);
    });
    decoded sum;
    for (const decoded& d : of_prompt) sum += d;
    const auto q = mean_of(0, quality.size(), 1, [&](std::size_t i) { return quality[i]; });
    out.add(all[s].algorithm, all[s].longest_run, all[s].fallback, all[s].rollback, sum.tokens,
            q.mean, q.se, double(sum.calls(1)) / double(sum.tokens),
            double(sum.calls(0)) / double(sum.tokens));
    lab.progress(double(s + 1) / double(all.size()));
  }
}

}  // namespace experiments
