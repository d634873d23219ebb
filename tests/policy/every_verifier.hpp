// SPDX-License-Identifier: Apache-2.0
// What a policy emits under each verifier, to compare two policies bit by bit.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

#include <specagg/decoders.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

namespace {

using namespace specagg;

struct seen {
  verdict v;
  std::vector<emission> out;
};
inline bool same(double x, double y) {
  return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
}
inline bool operator==(const seen& a, const seen& b) {
  bool equal = a.v.accepted == b.v.accepted && a.v.emitted == b.v.emitted && a.v.why == b.v.why &&
               a.v.ended == b.v.ended;
  for (std::size_t i = 0; equal && i < a.v.emitted; ++i) {
    const emission &x = a.out[i], &y = b.out[i];
    equal = x.token == y.token && x.from == y.from && x.why == y.why && same(x.log_pi, y.log_pi) &&
            same(x.log_p, y.log_p);
  }
  return equal;
}

// Three drafted tokens by each verifier, rows of V tokens.
template <class T, class Policy>
std::vector<seen> by_every_verifier(const Policy& policy, std::uint64_t seed, std::size_t V) {
  numbers n(seed);
  std::vector<std::vector<T>> q(4, std::vector<T>(V)), p = q;
  for (auto* rows : {&q, &p})
    for (auto& row : *rows)
      for (T& x : row) x = T(n.between(-4, 4));
  const auto q_row = rows_of(4, [&](std::size_t j) { return softmax_row<T>(q[j]); });
  const auto p_row = rows_of(4, [&](std::size_t j) { return softmax_row<T>(p[j]); });
  std::vector<double> scratch(verify_scratch(V, 3));
  const auto run = [&](const auto& verifier) {
    random_streams chooser(seed, 7);
    std::vector<token_id> y;
    for (std::size_t j = 0; j < 3; ++j) {
      auto row = q_row[j];
      y.push_back(verifier.propose(row, 0, j, chooser, scratch));
    }
    seen s{{}, std::vector<emission>(4)};
    s.v = verifier.verify(draft{y, 0}, q_row, p_row, policy, chooser, std::span(s.out),
                          std::span(scratch));
    return s;
  };
  std::vector<seen> all;
  for_each_verifier(seed, 7, [&](const auto& verifier) { all.push_back(run(verifier)); });
  return all;
}

}  // namespace
