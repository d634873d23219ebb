// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/detail/ranking.hpp>

#include <vector>

#include <specagg/token.hpp>

#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::sites::detail;

TEST_CASE("subsets are numbered from 0 to C(n, k) - 1 in colexicographic order, m-fold") {
  for (const std::uint32_t n : {1u, 5u, 9u})
    for (std::uint32_t k = 0; k <= n; ++k) {
      std::uint32_t expected = 0;
      // masks of one size, in numeric order, are in colex order
      for (std::uint32_t set = 0; set < 1u << n; ++set) {
        if (std::uint32_t(std::popcount(set)) != k) continue;
        std::vector<token_id> elements;
        for (std::uint32_t i = 0; i < n; ++i)
          if (set >> i & 1) elements.push_back(token_id(i));
        natural rank = subset_rank(std::span<const token_id>(elements), 13);
        CHECK(rank == natural(13 * expected));
        std::vector<token_id> back(k);
        rank += 12;
        CHECK(subset_of_rank(rank, n, std::span(back), 13) == natural(12));
        CHECK(back == elements);
        ++expected;
      }
      CHECK(times_binomial(1, n, k) == natural(expected));
    }
}
TEST_CASE("natural numbers add, subtract, multiply and divide exactly up to their capacity") {
  natural x = 1;
  for (std::uint32_t i = 1; i <= 300; ++i) x *= i;  // 300! has 2042 bits
  CHECK(x.bits() == 2042);
  natural y = x;
  y += x;
  y -= x;
  CHECK(y == x);
  y += 1;
  CHECK(y > x);
  std::vector<std::uint8_t> bytes((x.bits() + 7) / 8);
  x.write(bytes);
  CHECK(natural::read(bytes) == x);
  for (std::uint32_t i = 300; i > 0; --i) x /= i;
  CHECK(x == natural(1));
  CHECK(times_binomial(1, 60, 30) == [] {
    natural z = 118264581;
    z *= 1000000000;
    z += 564861424;
    return z;
  }());
}
