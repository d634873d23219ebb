// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include <specagg/draft/propose.hpp>

namespace cli {

struct law_options {
  std::string policy, verify;  // empty: lossless and token; all of them on the grid
  std::string q, p;            // numbers, or @FILE
  std::string tree, propose;   // of a tree of drafts; empty: none, and greedy
  bool batch = false, grid = false, enumerate = false, json = false;
};

// specagg law: the exact law of one position under a policy and a verifier. Throws specagg::error
// for bad input.
void law(const law_options& options);
// Rows of numbers, a line each: the text itself, or @FILE.
std::vector<std::vector<double>> parse_rows(std::string option, const std::string& given);
// The same of texts under a policy with state. The rows of each token are a line of q and of p.
struct stateful_policy;
void law_of_text(const law_options& options, const stateful_policy& policy);
// The same of a tree of drafts, where q and p stand after every node.
void law_of_tree(const law_options& options, const std::string& policy,
                 const std::vector<double>& q, const std::vector<double>& p,
                 const std::vector<std::size_t>& shape, specagg::proposal propose);

}  // namespace cli
