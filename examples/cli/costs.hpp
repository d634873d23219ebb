// SPDX-License-Identifier: Apache-2.0
// What calls of models cost on this machine, measured.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include <specagg/plan/draft_length.hpp>

#include "backends.hpp"

namespace cli {

inline double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

// Seconds of a call that appends n tokens to what the model has seen, the median of several; 0 if none succeeded.
inline double seconds_of_call(session& model, specagg::token_id any, std::size_t n) {
  const std::size_t position = model.position();
  const std::vector<specagg::token_id> tokens(n, any);
  std::vector<float> logits(n * model.vocab_size());
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (model.extend(tokens, logits) == specagg::status::ok) times.push_back(seconds_since(start));
    model.rollback(position);
  }
  std::sort(times.begin(), times.end());
  return times.empty() ? 0 : times[times.size() / 2];
}

// Of a round, where a step of the target costs 1. Both models have room for 5 tokens more, or the slope is 0.
inline specagg::plan::draft_costs measured_costs(session& draft, session& target, specagg::token_id any) {
  const std::size_t many = std::min<std::size_t>(5, target.capacity() - target.position());
  const double one = seconds_of_call(target, any, 1);
  const double slope = many > 1 ? (seconds_of_call(target, any, many) / one - 1) / double(many - 1) : 0;
  return {1, seconds_of_call(draft, any, 1) / one, std::max(0.0, slope)};
}

}  // namespace cli
