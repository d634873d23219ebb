// SPDX-License-Identifier: Apache-2.0
// specagg law --tree: the law that a tree of drafts emits, and how many tokens each verifier
// accepts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include <specagg/audit/tree_law.hpp>
#include <specagg/decode/tree.hpp>
#include <specagg/error.hpp>

#include "law.hpp"
#include "policies.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using numbers = std::vector<double>;

constexpr std::size_t most_tokens = 8;  // of a row
constexpr double most_trees = 2e5;      // that are walked

// How many trees can be drafted: the outcomes of the draws at every node that has children.
double count_trees(const std::vector<std::size_t>& shape, proposal kind, std::size_t size) {
  double trees = 1, nodes = 1;
  for (const std::size_t b : shape) {
    double outcomes = 1;
    const std::size_t n = std::min(b, size);
    if (kind == proposal::greedy) outcomes = double(size - n + 1);
    if (kind == proposal::sampled)
      for (std::size_t i = 0; i < n; ++i) outcomes *= double(size - i);
    if (kind == proposal::independent)
      for (std::size_t i = 0; i < b; ++i) outcomes *= double(size);
    trees *= std::pow(outcomes, nodes);
    nodes *= double(b);
  }
  return trees;
}

// The most tokens that any verifier can accept of one level, in expectation: 1 + the least of pi(H)
// - Pr[every drafted token lies in H] over all sets H of tokens.
double optimum_of_level(proposal kind, std::size_t b, const numbers& q, const numbers& pi) {
  std::map<std::size_t, double> drafted;  // sets of tokens
  exhaustive_chooser chooser;
  do {
    std::vector<token_id> tokens(b);
    std::vector<proposal_row<dense_row<double>>> laws(b);
    numbers scratch(verify_scratch(q.size()));
    dense_row<double> row(q);
    const std::size_t n = propose_children(kind, row, {}, chooser, std::span(tokens),
                                           std::span(laws), std::span(scratch));
    std::size_t set = 0;
    for (std::size_t i = 0; i < n; ++i) set |= std::size_t(1) << tokens[i];
    drafted[set] += chooser.probability;
  } while (chooser.next());
  double least = 0;
  for (std::size_t H = 0; H < std::size_t(1) << q.size(); ++H) {
    double mass = 0;
    for (std::size_t v = 0; v < q.size(); ++v) mass += H >> v & 1 ? pi[v] : 0;
    for (const auto& [set, probability] : drafted) mass -= (set & ~H) == 0 ? probability : 0;
    least = std::min(least, mass);
  }
  return 1 + least;
}

}  // namespace

void law_of_tree(const law_options& o, const std::string& policy_name, const numbers& q,
                 const numbers& p, const std::vector<std::size_t>& shape, specagg::proposal kind) {
  const any_policy policy = parse_policy(policy_name);
  if (q.size() > most_tokens)
    throw error("--tree " + o.tree, "",
                fmt::format("the rows have {} tokens; trees are enumerated for at most {}",
                            q.size(), most_tokens));
  if (const double trees = count_trees(shape, kind, q.size()); !(trees <= most_trees))
    throw error("--tree " + o.tree, "",
                fmt::format("{:.0e} trees can be drafted; at most {:.0e} are enumerated", trees,
                            most_trees));
  status why = status::ok;
  const numbers pi = target_law(policy, q, p, &why);
  if (why != status::ok) throw error("law", "--q, --p", std::string(name(why)));
  const auto same_q = [&](const std::vector<token_id>&) { return q; };
  const auto same_p = [&](const std::vector<token_id>&) { return p; };
  const auto promised = [&](const std::vector<token_id>&) { return pi; };
  std::vector<std::pair<const char*, round_error>> verified;
  progress bar("enumerating");
  for_each_verifier<all_tree_verifiers>(0, 0, [&](const auto& how) {
    const auto verify = [&](auto&&... a) { return how.verify(a...); };
    const round_error e =
        worst_error_of_tree(policy, shape, kind, same_q, same_p, verify, promised);
    if (e.why != status::ok) throw error("law", "--q, --p", std::string(name(e.why)));
    verified.emplace_back(how.name, e);
    bar.show(double(verified.size()) / double(tree_verifiers.size()));
  });
  bar.clear();
  const bool one_level = shape.size() == 1;
  const double optimum = one_level ? optimum_of_level(kind, shape[0], q, pi) : 0;
  if (o.json) {
    nlohmann::json out{
        {"policy", policy_name}, {"tree", o.tree}, {"propose", name(kind)}, {"pi", pi}};
    for (const auto& [how, e] : verified)
      out[how] = {{"accepted", e.accepted}, {"worst_error", e.error}};
    if (one_level) out["optimum"] = optimum;
    fmt::print("{}\n", out.dump(2));
    return;
  }
  fmt::print("{} nodes, {}, q and p after every node alike\n", tree_size(shape), name(kind));
  fmt::print("{:<10} {:>16} {:>24}\n", "verify", "accepted tokens", "worst |law - pi|");
  for (const auto& [how, e] : verified)
    fmt::print("{:<10} {:>16.9f} {:>24.1e}\n", how, e.accepted, e.error);
  if (one_level) fmt::print("{:<10} {:>16.9f}\n", "optimum", optimum);
}

}  // namespace cli
