// SPDX-License-Identifier: Apache-2.0
// The measured cost of a model's calls: plan/load.hpp decides by it.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include <specagg/logit_source.hpp>
#include <specagg/plan/load.hpp>
#include <specagg/rows/process.hpp>

SPECAGG_BEGIN

// The times of calls that append n tokens to what the source holds, for each n of `rows`
// (ascending, from 1) that it has room for, with their rows normalised as `how` says: the fastest
// of `turns`, which are taken in turn. The source holds afterwards what it held. any: a token.
// Allocates. If the source fails, there is nothing from that n on.
template <LogitSource S>
plan::call_times measured_calls(S& source, std::span<const std::size_t> rows,
                                const sampling& how = {}, std::size_t turns = 5, token_id any = 0) {
  const std::size_t position = source.position(), vocabulary = source.vocab_size();
  std::vector<plan::call_times::point> fastest;
  for (const std::size_t n : rows)
    if (position + n <= std::size_t(source.capacity())) fastest.push_back({n, infinity});
  const std::vector<token_id> tokens(fastest.empty() ? 0 : fastest.back().rows, any);
  std::vector<typename S::value_type> logits(tokens.size() * vocabulary);
  for (std::size_t turn = 0; turn < turns; ++turn)
    for (std::size_t i = 0; i < fastest.size(); ++i) {
      const std::size_t n = fastest[i].rows;
      const auto start = std::chrono::steady_clock::now();
      const auto out = std::span(logits).first(n * vocabulary);
      if (source.extend(std::span(tokens).first(n), out) != status::ok) {
        fastest.resize(i);
        break;
      }
      for (std::size_t j = 0; j < n; ++j)
        (void)specagg::normalise(
            processed_row<typename S::value_type>(out.subspan(j * vocabulary, vocabulary), how));
      const std::chrono::duration<double> t = std::chrono::steady_clock::now() - start;
      (void)source.rollback(position);
      fastest[i].seconds = std::min(fastest[i].seconds, t.count());
    }
  for (std::size_t i = 1; i < fastest.size(); ++i)
    fastest[i].seconds = std::max(fastest[i].seconds, fastest[i - 1].seconds);
  return {fastest};
}

SPECAGG_END
