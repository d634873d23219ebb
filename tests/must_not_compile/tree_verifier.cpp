// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .tree_decode
// LATER: .*TreeVerifier
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, tree_workspace<float>& work);
status decode(text& t, toy_source<float>& q, tree_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return tree_decode(q, q, lossless{}, random, {.text = t, .most = 9, .work = work},
                     block_verifier{});
#else
  return tree_decode(q, q, lossless{}, random, {.text = t, .most = 9, .work = work},
                     recursive_rejection{});
#endif
}
