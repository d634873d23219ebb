// SPDX-License-Identifier: Apache-2.0
// The 1/8 grid: every distribution over 3 tokens whose probabilities are multiples of 1/8, exactly representable.
#pragma once
#include <array>
#include <cstddef>
#include <vector>

template <class T>
std::vector<std::array<T, 3>> eighths() {
  std::vector<std::array<T, 3>> all;
  for (int a = 0; a <= 8; ++a)
    for (int b = 0; a + b <= 8; ++b) all.push_back({T(a) / 8, T(b) / 8, T(8 - a - b) / 8});
  return all;
}
