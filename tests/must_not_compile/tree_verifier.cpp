// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: this verifies no trees
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, tree_workspace<float>& work);
status decode(text& t, toy_source<float>& q, tree_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return tree_decode(t, 9, q, q, lossless{}, random, work, with::verifier{block_verifier{}});
#else
  return tree_decode(t, 9, q, q, lossless{}, random, work, with::verifier{recursive_rejection{}});
#endif
}
