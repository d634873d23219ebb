// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: this policy combines another number of models than two
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

#ifdef SPECAGG_BROKEN
using policy = mixture<3>;
#else
using policy = mixture<2>;
#endif

status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work);
status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work) {
  random_streams chooser(1);
  return speculative_decode(q, q, policy{{0.5}}, chooser, {.text = t, .most = 9, .work = work});
}
