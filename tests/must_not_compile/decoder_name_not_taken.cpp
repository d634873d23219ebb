// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: after the workspace everything is given by its name, .*decoder does not take
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, tree_workspace<float>& work);
status decode(text& t, toy_source<float>& q, tree_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return tree_decode(t, 9, q, q, lossless{}, random, work, with::length{fixed_draft_length{}});
#else
  return tree_decode(t, 9, q, q, lossless{}, random, work, with::growth{fixed_growth{}});
#endif
}
