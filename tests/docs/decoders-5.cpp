// SPDX-License-Identifier: Apache-2.0
#include "decoders.hpp"

int main() {
  const bool two = appends_20(
      [](text& t, std::size_t n, auto& r, auto& q, auto& p) { return write_two(t, n, q, p, r); },
      toy(1), toy(2));
  const bool three = appends_20([](text& t, std::size_t n, auto& r, auto& a, auto& b,
                                   auto& c) { return write_three(t, n, a, b, c, r); },
                                toy(1), toy(2), toy(3));
  return two && three ? 0 : 1;
}
