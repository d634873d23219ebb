// SPDX-License-Identifier: Apache-2.0
// The 1/8 grid: all distributions over 3 tokens whose probabilities are multiples of 1/8, which are
// exact in floating point; and rounds with rows from this grid. For tests and analysis: allocates.
#pragma once
#include <array>
#include <cstddef>
#include <vector>

#include <specagg/token.hpp>

SPECAGG_BEGIN

// All 45 distributions of the grid.
template <class T>
[[nodiscard]] std::vector<std::array<T, 3>> eighths() {
  std::vector<std::array<T, 3>> all;
  for (int a = 0; a <= 8; ++a)
    for (int b = 0; a + b <= 8; ++b) all.push_back({T(a) / 8, T(b) / 8, T(8 - a - b) / 8});
  return all;
}

// The rows of round number `first`, below 2025. The first position has pair number `first` of the
// 2025 pairs of rows of the grid. Each later position has another pair, which depends on the tokens
// before it.
template <class T>
struct grid_round {
  std::size_t first = 0;
  static const std::vector<std::array<T, 3>>& rows() {
    static const std::vector<std::array<T, 3>> all = eighths<T>();
    return all;
  }
  static std::size_t rounds() { return rows().size() * rows().size(); }
  std::array<T, 3> q(const std::vector<token_id>& prefix) const {
    return rows()[pair_after(prefix) / rows().size()];
  }
  std::array<T, 3> p(const std::vector<token_id>& prefix) const {
    return rows()[pair_after(prefix) % rows().size()];
  }

 private:
  std::size_t pair_after(const std::vector<token_id>& prefix) const {
    std::size_t k = first;
    for (const token_id t : prefix) k = (k * 31 + std::size_t(t + 100) * 577 + 101) % rounds();
    return k;
  }
};

SPECAGG_END
