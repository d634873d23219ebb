// SPDX-License-Identifier: Apache-2.0
// One type of policy, of rows and of verifier for tests that walk all branches, so that what they
// need of a verifier is compiled once. Files that begin with this header are compiled together.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/tree_law.hpp>
#include <specagg/decoders.hpp>

#include "support/all_policies.hpp"

namespace every_policy {

using specagg::draft, specagg::draft_tree, specagg::emission, specagg::exhaustive_chooser,
    specagg::moment, specagg::round_error, specagg::token_id, specagg::verdict;
using policy = any_policy;
using ids = std::vector<token_id>;
using row = std::vector<double>;
using table = std::vector<row>;
using row_after = std::function<row(const ids&)>;
using tree_work = specagg::tree_memory<double>;

// Reproducible noise, whose coins may all fall on one side.
struct some_noise : specagg::random_streams {
  std::optional<bool> heads;
  explicit some_noise(std::uint64_t seed, std::optional<bool> always = {})
      : random_streams(seed), heads(always) {}
  bool coin(moment m, double w, double t) const {
    return heads ? *heads : random_streams::coin(m, w, t);
  }
};

using verify_round =
    std::function<verdict(const draft&, const table&, const table&, const policy&,
                          exhaustive_chooser&, std::span<emission>, std::span<double>)>;
template <class C>
verdict by_token(const draft& d, const table& q, const table& p, const policy& pi, C& chooser,
                 std::span<emission> out, std::span<double> scratch) {
  return specagg::verify_token(d, q, p, pi, chooser, out, scratch);
}
template <class C>
verdict by_block(const draft& d, const table& q, const table& p, const policy& pi, C& chooser,
                 std::span<emission> out, std::span<double> scratch) {
  return specagg::verify_block(d, q, p, pi, chooser, out, scratch);
}
// As worst_error_of_round.
inline round_error error_of_round(const policy& pi, std::size_t gamma, const row_after& q,
                                  const row_after& p, const verify_round& verify,
                                  const row_after& promised) {
  return specagg::worst_error_of_round(pi, gamma, q, p, verify, promised);
}

// The law that a node was drawn from: a row without some tokens, or one token.
using law = specagg::proposal_row<specagg::dense_row<double>>;
using laws = std::vector<law>;
// What is left of a row without these tokens; the tokens must stay where they are.
inline law law_of(const row& x, std::span<const token_id> without = {}) {
  const auto all = specagg::normalise(specagg::dense_row<double>(x));
  return law(specagg::normalise(specagg::row_without(all, without)));
}
inline law only(token_id y, std::size_t V) {
  return law(specagg::normalise(specagg::one_hot_row<double>(y, V)));
}
using verify_nodes =
    std::function<specagg::tree_verdict(const draft_tree&, const laws&, const table&, const table&,
                                        const policy&, exhaustive_chooser&, const tree_work&)>;
// By traversal, or recursively.
template <class C>
specagg::tree_verdict by_tree(bool whole, const draft_tree& tree, const laws& l, const table& q,
                              const table& p, const policy& pi, C& chooser, const tree_work& work) {
  return whole ? specagg::verify_tree(tree, l, q, p, pi, chooser, work)
               : specagg::verify_tree_recursive(tree, l, q, p, pi, chooser, work);
}
// As worst_error_of_tree.
inline round_error error_of_tree(const policy& pi, const std::vector<std::size_t>& shape,
                                 specagg::proposal kind, const row_after& q, const row_after& p,
                                 const verify_nodes& verify, const row_after& promised) {
  return specagg::worst_error_of_tree(pi, shape, kind, q, p, verify, promised);
}

}  // namespace every_policy
