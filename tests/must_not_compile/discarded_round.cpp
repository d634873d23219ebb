// SPDX-License-Identifier: Apache-2.0
// EXPECT: nodiscard.*speculative_r.*nodiscard.*tree_r.*nodiscard.*collab
// ERRORS: 3
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#pragma GCC diagnostic error "-Wunused-result"

using namespace specagg;
using toy = toy_source<float>;

#ifdef SPECAGG_BROKEN
#define RESULT
#else
#define RESULT (void)
#endif

struct memory {
  speculative_workspace<float> chain;
  tree_workspace<float> tree;
  collaborative_workspace<float, 2> turns;
};

void rounds(text& t, toy& q, toy& p, memory& work);
void rounds(text& t, toy& q, toy& p, memory& work) {
  random_streams chooser(1);
  RESULT speculative_round(t, 9, q, p, lossless{}, chooser, work.chain);
  RESULT tree_round(t, 9, q, p, lossless{}, chooser, work.tree);
  RESULT collaborative_turn(t, 9, std::tie(q, p), lossless{}, chooser, work.turns);
}
