// SPDX-License-Identifier: Apache-2.0
// What calls of models cost on this machine, measured.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include <specagg/plan/draft_length.hpp>
#include <specagg/process.hpp>

#include "backends.hpp"

namespace cli {

inline double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

// Seconds that calls take which append n tokens to what the model has seen, and drawing a token from each of their
// rows: for each n the fastest of several, taken in turn. 0 where the context has no room. in_tree: all follow the
// context, as the nodes of a tree.
inline std::vector<double> seconds_of_calls(session& model, specagg::token_id any,
                                            const std::vector<std::size_t>& sizes, const specagg::sampling& sample,
                                            bool in_tree = false) {
  const std::size_t position = model.position(), vocabulary = model.vocab_size();
  const std::vector<specagg::token_id> tokens(*std::max_element(sizes.begin(), sizes.end()), any);
  const std::vector<std::uint32_t> parents(tokens.size());
  std::vector<float> logits(tokens.size() * vocabulary);
  std::vector<double> scratch(specagg::verify_scratch(vocabulary)), fastest(sizes.size());
  const specagg::random_streams random(1);
  for (int i = 0; i < 5; ++i)
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const std::span<float> rows = std::span(logits).first(sizes[k] * vocabulary);
      const auto from = std::span(tokens).first(sizes[k]);
      const auto start = std::chrono::steady_clock::now();
      const specagg::status s =
          in_tree ? model.extend_tree(from, std::span(parents).first(sizes[k]), rows) : model.extend(from, rows);
      const bool ok = s == specagg::status::ok;
      for (std::size_t j = 0; j < sizes[k] && ok; ++j)
        draw_draft(specagg::processed_row<float>(rows.subspan(j * vocabulary, vocabulary), sample), 0, j, random,
                   scratch);
      const double t = seconds_since(start);
      if (ok && (fastest[k] == 0 || t < fastest[k])) fastest[k] = t;
      model.rollback(position);
    }
  return fastest;
}

// Of a round, where a step of the target costs 1. draft: or none. Scoring 1, 2, 4 and 8 tokens more is measured, and
// what lies between is on a line. Less is measured where the context has no room for it. in_trees: a token more has a
// row of the draft, too.
inline specagg::plan::draft_costs measured_costs(session* draft, session& target, specagg::token_id any,
                                                 const specagg::sampling& sample, bool in_trees = false) {
  specagg::plan::draft_costs costs;
  const std::vector<double> of_target = seconds_of_calls(target, any, {1, 2, 3, 5, 9}, sample);
  double row = 0;  // of the draft
  if (draft) {
    const std::vector<double> of_draft = seconds_of_calls(*draft, any, {1, 5}, sample, in_trees);
    costs.draft = of_draft[0] / of_target[0];
    if (in_trees) row = std::max(0., of_draft[1] - of_draft[0]) / 4 / of_target[0];
  }
  std::array<double, 9> more = {};  // scoring n tokens more than one
  std::size_t known = 0;
  for (std::size_t k = 1; k < of_target.size() && of_target[k] > 0; ++k) {
    const std::size_t n = std::size_t(1) << (k - 1);
    more[n] = std::max(more[known], of_target[k] / of_target[0] - 1);
    for (std::size_t i = known + 1; i < n; ++i)
      more[i] = more[known] + (more[n] - more[known]) * double(i - known) / double(n - known);
    known = n;
  }
  const std::size_t slope_until = std::min<std::size_t>(known, 4);
  costs.verify = known > 0 ? more[slope_until] / double(slope_until) : 0;
  for (std::size_t n = 1; n <= known; ++n) costs.jumps[n - 1] = more[n] - costs.verify * double(n);
  costs.verify += row;
  return costs;
}

}  // namespace cli
