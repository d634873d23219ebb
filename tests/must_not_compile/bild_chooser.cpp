// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: bild_decode is greedy and takes no random numbers
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work) {
#ifdef SPECAGG_BROKEN
  random_streams chooser(1);
  return bild_decode(t, 9, q, q, bild_thresholds{}, chooser, work);
#else
  return bild_decode(t, 9, q, q, bild_thresholds{}, work);
#endif
}
