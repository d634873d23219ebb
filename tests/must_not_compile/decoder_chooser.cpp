// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: this is no Chooser: .*docs/decoders.md
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include <random>

using namespace specagg;

status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work) {
#ifdef SPECAGG_BROKEN
  std::mt19937 chooser;  // bits are no decisions
#else
  random_streams chooser(1);
#endif
  return oracle_decode(t, 9, q, q, chow{0.3}, chooser, work);
}
