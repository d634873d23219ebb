// SPDX-License-Identifier: Apache-2.0
// What calls of models cost on this machine, measured.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include <specagg/plan/draft_length.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/verify/verify.hpp>

#include "backends.hpp"

namespace cli {

inline double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

// A call that appends n tokens to what the model has seen, and draws a token from each of their
// rows. in_tree: all follow the context, as the nodes of a tree.
struct measured_call {
  session* model;
  std::size_t n;
  bool in_tree = false;
};

// What calls cost, in units of the first one: quotients of the fastest of several, taken in turn,
// so that all of them meet the same moments of a shared machine: until six turns made none of them
// 2 % faster, or a second is over, but at least five turns. 0 where the context has no room.
inline std::vector<double> relative_costs(const std::vector<measured_call>& calls,
                                          specagg::token_id any, const specagg::sampling& sample) {
  std::size_t most = 0, vocabulary = 0;
  for (const measured_call& c : calls) {
    most = std::max(most, c.n);
    vocabulary = std::max<std::size_t>(vocabulary, c.model->vocab_size());
  }
  const std::vector<specagg::token_id> tokens(most, any);
  const std::vector<std::uint32_t> parents(most);
  std::vector<float> logits(most * vocabulary);
  std::vector<double> scratch(specagg::verify_scratch(vocabulary));
  const specagg::random_streams random(1);
  const auto seconds = [&](const measured_call& c) {
    const std::size_t position = c.model->position(), v = c.model->vocab_size();
    const std::span<float> rows = std::span(logits).first(c.n * v);
    const auto from = std::span(tokens).first(c.n);
    const auto start = std::chrono::steady_clock::now();
    const specagg::status s = c.in_tree
                                  ? c.model->extend_tree(from, std::span(parents).first(c.n), rows)
                                  : c.model->extend(from, rows);
    const bool ok = s == specagg::status::ok;
    for (std::size_t j = 0; j < c.n && ok; ++j)
      draw_draft(specagg::processed_row<float>(rows.subspan(j * v, v), sample), 0, j, random,
                 scratch);
    const double t = seconds_since(start);
    (void)c.model->rollback(position);
    return ok ? t : 0;
  };
  std::vector<double> fastest(calls.size());
  const auto began = std::chrono::steady_clock::now();
  int unchanged = 0;  // turns
  for (int turn = 0; turn < 5 || (unchanged < 6 && seconds_since(began) < 1); ++turn) {
    ++unchanged;
    for (std::size_t k = 0; k < calls.size(); ++k) {
      const double t = seconds(calls[k]);
      if (!(t > 0)) continue;
      if (fastest[k] == 0 || t < .98 * fastest[k]) unchanged = 0;
      fastest[k] = fastest[k] == 0 ? t : std::min(fastest[k], t);
    }
  }
  for (std::size_t k = calls.size(); k-- > 0;)
    fastest[k] = fastest[0] > 0 ? fastest[k] / fastest[0] : 0;
  return fastest;
}

// Of a round, where a step of the target costs 1. draft: or none. Scoring 1, 2, 4 and 8 tokens more
// is measured, and what lies between is on a line. Less is measured where the context has no room
// for it. in_trees: a token more has a row of the draft, too.
inline specagg::plan::draft_costs measured_costs(session* draft, session& target,
                                                 specagg::token_id any,
                                                 const specagg::sampling& sample,
                                                 bool in_trees = false) {
  specagg::plan::draft_costs costs;
  std::vector<measured_call> calls;
  for (const std::size_t n : {1u, 2u, 3u, 5u, 9u}) calls.push_back({&target, n});
  if (draft) {
    calls.push_back({draft, 1});
    calls.push_back({draft, 5, in_trees});
  }
  const std::vector<double> cost = relative_costs(calls, any, sample);
  double row = 0;  // of the draft
  if (draft) {
    costs.draft = cost[5];
    if (in_trees) row = std::max(0., cost[6] - cost[5]) / 4;
  }
  std::array<double, 9> more = {};  // scoring n tokens more than one
  std::size_t known = 0;
  for (std::size_t k = 1; k < 5 && cost[k] > 0; ++k) {
    const std::size_t n = std::size_t(1) << (k - 1);
    more[n] = std::max(more[known], cost[k] - 1);
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
