// SPDX-License-Identifier: Apache-2.0
// Rows in parts, with every policy, every verifier and every kind of row.
#include "cuda/sharded.hpp"

#include "cuda/policies.hpp"

using namespace specagg;

namespace {

// The values of the catalogue. mentored would take minutes: it makes a hundred exchanges.
std::vector<cli::any_policy> policies_but_mentored() {
  std::vector<cli::any_policy> all;
  for_each_in_catalogue([&]<class Line>(const Line& line) {
    if constexpr (!std::is_same_v<typename Line::type, mentored>)
      for (const auto& policy : line.values) all.push_back({policy});
  });
  return all;
}

template <class Verifier>
void every_policy_in_parts(const Verifier& verifier) {
  // relaxed{} asks for more than enough
  in_two_and_three_parts<float>(policies_but_mentored(), verifier, shape::edges, 4 * enough);
}

}  // namespace

TEST_CASE("cuda: token verification of every policy and row in parts gives what whole rows give") {
  every_policy_in_parts(token_verifier{});
}
TEST_CASE("cuda: block verification of every policy and row in parts gives what whole rows give") {
  every_policy_in_parts(block_verifier{});
}
TEST_CASE("cuda: match verification of every policy and row in parts gives what whole rows give") {
  every_policy_in_parts(match_verifier{});
}
TEST_CASE(
    "cuda: coupled verification of every policy and row in parts gives what whole rows give") {
  every_policy_in_parts(specagg::cuda::coupled{});
}
