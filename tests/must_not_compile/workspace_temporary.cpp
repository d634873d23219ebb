// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: here comes the workspace of this decoder, not const
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, tree_workspace<float>& work);
status decode(text& t, toy_source<float>& q, tree_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return tree_decode(t, 9, q, q, lossless{}, random, tree_workspace<float>(4, work.options));
#else
  return tree_decode(t, 9, q, q, lossless{}, random, work);
#endif
}
