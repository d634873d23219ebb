// SPDX-License-Identifier: Apache-2.0
// How many tokens to draft, as --gamma and --tree say: the controllers of plan/, with the times of
// the rounds.
#pragma once
#include <chrono>
#include <span>

#include <specagg/plan/draft_length.hpp>
#include <specagg/plan/tree_growth.hpp>

#include "draft_watch.hpp"

namespace cli {

// Rounds are timed, and drafts stop where they turn out slower than none. A policy that reads the
// draft asks for a row in rounds without drafts, too: their last cost is the unit of prices.
struct timed_rounds {
  draft_watch watch = {};
  double plain_cost = 1;
  std::chrono::steady_clock::time_point began = {};
  void begin() { began = std::chrono::steady_clock::now(); }
  void observe(bool tried, double cost, std::size_t emitted) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    if (!tried) plain_cost = cost;
    watch.observe(tried, cost / plain_cost, emitted, seconds.count());
  }
};

// A fixed length or one that learns, as one type: the verifiers are compiled once for both.
struct any_length {
  bool learns, reads_acceptances = learns, reads_confidence = learns;
  specagg::plan::draft_length_controller controller;
  // false with the Gumbel-max coupling and a policy that reads the draft: times tell how much was
  // rejected
  bool timed = true;
  timed_rounds rounds = {};
  bool tried = false;  // a row that costs something was asked for to draft from it
  void begin() {
    if (learns) {
      controller.begin();
      rounds.begin();
      tried = false;
    }
  }
  bool another(std::size_t drafter) {
    if (!learns) return true;
    const bool asks = (!timed || rounds.watch.drafts()) && controller.another(drafter);
    tried = tried || (asks && controller.cost.row(drafter) > 0);
    return asks;
  }
  bool keep(std::size_t drafter, double confidence) {
    return !learns || controller.keep(drafter, confidence);
  }
  void observe(std::span<const specagg::draft_acceptance> drafted, std::size_t emitted,
               std::span<const std::size_t> asked) {
    if (!learns) return;
    controller.observe(drafted, emitted, asked);
    if (timed)
      rounds.observe(tried || !drafted.empty(), controller.cost.round(asked, drafted.size()),
                     emitted);
  }
};

// A tree that grows, and no longer where it turns out slower than no drafts.
struct watched_growth : specagg::plan::tree_growth {
  timed_rounds rounds = {};
  explicit watched_growth(const specagg::plan::draft_costs& c) : tree_growth(c) {}
  void begin() {
    tree_growth::begin();
    rounds.begin();
  }
  bool worth_level(double reached) const {
    return rounds.watch.drafts() && tree_growth::worth_level(reached);
  }
  void observe(const path_record& path, std::size_t emitted, std::size_t draft_steps,
               std::size_t nodes) {
    tree_growth::observe(path, emitted, draft_steps, nodes);
    rounds.observe(path.levels > 0, cost.round(draft_steps, nodes), emitted);
  }
};

}  // namespace cli
