// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: here comes the workspace of this decoder
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

#ifdef SPECAGG_BROKEN
using number = double;  // of floats
#else
using number = float;
#endif

status decode(text& t, toy_source<float>& q, tree_workspace<number>& work);
status decode(text& t, toy_source<float>& q, tree_workspace<number>& work) {
  random_streams chooser(1);
  return tree_decode(t, 9, q, q, lossless{}, chooser, work);
}
