// SPDX-License-Identifier: Apache-2.0
// Is my engine's sampler biased? A planned test of another engine's speculative sampler, given as a
// callback.
#pragma once
#include <vector>

#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// Calls sampler(request) for requests 0..n-1. Each call drafts, verifies and returns the first
// `length` tokens of a text; all requests have the same context. joint(tokens) is the probability
// that the text should have (the product of the law's conditional probabilities). All
// vocabulary^length texts are listed, so keep both numbers small. `passed` of the result is false
// for a biased sampler; for a correct sampler it is false with probability at most false_alarm.
// `detectable` says how small a bias the test would have detected (docs/audit.md has both
// theorems). With length 1 no token is a bonus: a bonus of a wrong law needs a length of 2.
fit audit_sampler(std::size_t vocabulary, std::size_t length, std::size_t n, auto&& sampler,
                  auto&& joint, double false_alarm = usual_false_alarm) {
  std::size_t texts = 1;
  for (std::size_t i = 0; i < length; ++i) texts *= vocabulary;
  std::vector<double> counts(texts + 1), law(texts + 1);  // the last: all other texts
  for (std::size_t i = 0; i < texts; ++i) {
    std::vector<token_id> tokens(length);
    for (std::size_t j = 0, rest = i; j < length; ++j, rest /= vocabulary)
      tokens[j] = token_id(rest % vocabulary);
    law[i] = joint(tokens);
  }
  for (std::size_t request = 0; request < n; ++request) {
    const std::vector<token_id> tokens = sampler(request);
    std::size_t index = 0;
    for (std::size_t j = length; j-- > 0;) {
      const bool valid = j < tokens.size() && tokens[j] >= 0 &&
                         std::size_t(tokens[j]) < vocabulary && index < texts;
      index = valid ? index * vocabulary + std::size_t(tokens[j]) : texts;
    }
    counts[index] += 1;
  }
  return goodness_of_fit(counts, law, false_alarm);
}

SPECAGG_END
