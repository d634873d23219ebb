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
  RESULT speculative_round(q, p, lossless{}, chooser, {.text = t, .most = 9, .work = work.chain});
  RESULT tree_round(q, p, lossless{}, chooser, {.text = t, .most = 9, .work = work.tree});
  RESULT collaborative_turn(std::tie(q, p), lossless{}, chooser,
                            {.text = t, .most = 9, .work = work.turns});
}
