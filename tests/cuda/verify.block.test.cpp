// SPDX-License-Identifier: Apache-2.0
#include "cuda/policies.hpp"

TEST_CASE("cuda: block verification of every policy agrees with the CPU bit by bit") {
  every_policy_agrees(specagg::block_verifier{});
}
#if !defined(__CUDACC__)
TEST_CASE("cuda: block verification of every policy agrees in clusters, in dozens of orders",
          "[slow]") {
  every_policy_agrees_in_clusters(specagg::block_verifier{});
}
#endif
