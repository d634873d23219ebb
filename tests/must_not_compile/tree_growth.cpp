// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: with::growth.g. takes an object with the members of plan::tree_growth
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

struct always {  // has not all members
  static constexpr bool grows = true;
  void begin() {}
};

status decode(text& t, toy_source<float>& q, tree_workspace<float>& work);
status decode(text& t, toy_source<float>& q, tree_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  return tree_decode(t, 9, q, q, lossless{}, random, work, with::growth{always{}});
#else
  return tree_decode(t, 9, q, q, lossless{}, random, work, with::growth{plan::tree_growth{}});
#endif
}
