// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .oracle_decode
// LATER: .*Chooser.*an engine of <random> gives bits: pass specagg::random_streams.seed.
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
  return oracle_decode(q, q, chow{0.3}, chooser, {.text = t, .most = 9, .work = work});
}
