// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: accept is a function of an emission
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work);
status decode(text& t, toy_source<float>& q, cascade_workspace<float>& work) {
  random_streams chooser(1);
#ifdef SPECAGG_BROKEN
  const auto accept = [] { return true; };
#else
  const auto accept = [](const emission&) { return true; };
#endif
  return sequence_decode(t, 9, q, q, 0.3, chooser, work, with::accept{accept});
}
