// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .bild_decode
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work) {
#ifdef SPECAGG_BROKEN
  random_streams chooser(1);
  return bild_decode(q, q, bild_thresholds{}, chooser, {.text = t, .most = 9, .work = work});
#else
  return bild_decode(q, q, bild_thresholds{}, {.text = t, .most = 9, .work = work});
#endif
}
