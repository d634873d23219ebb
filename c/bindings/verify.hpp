// SPDX-License-Identifier: Apache-2.0
// Verification with the library's own verifiers. Each source that includes this is compiled by
// itself: one for all takes 2.8 GB of memory.
#pragma once
#include <specagg/kernels.hpp>
#include <specagg/verify/verifiers.hpp>

#include "any.hpp"

namespace {

// The token of one-hot row j. There is none if the mask forbids it. Then the row is invalid, as
// rows of logits are where all tokens are masked, and the draft ends before it.
token_id one_hot_at(const engine::request& r, std::size_t j) {
  if (j >= r.drafted.tokens.size()) return no_token;
  const token_id y = r.drafted.tokens[j];
  const bool known = y >= 0 && std::size_t(y) < r.vocabulary;
  return known && r.edits.forbids(j, y) ? no_token : y;
}

template <class Verifier, class Policy, class QRows, class PRows>
verdict verify_rows(const engine::request& r, const Verifier& verifier, const Policy& policy,
                    const QRows& q, const PRows& p) {
  random_streams chooser(r.seed, r.id);
  return verifier.verify(r.drafted, q, p, policy, chooser, r.out, r.scratch);
}

// The rows of draft or target, of any kind with one value type.
template <class Any>
auto rows_in(const engine::request& r, const engine::rows& all) {
  return lasting_rows_of(all.count, [&r, &all](std::size_t j) {
    return row_at<Any>(all, j, r.vocabulary, one_hot_at(r, j));
  });
}

template <class Any>
verdict verify_any(const engine::request& r) {
  verdict v;
  with_verifier(r.verifier, r.seed, r.id, [&](const auto& verifier) {
    v = with_policy(r.policy, [&](const auto& policy) {
      return verify_rows(r, verifier, policy, rows_in<Any>(r, r.q), rows_in<Any>(r, r.p));
    });
  });
  return v;
}

}  // namespace
