// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .speculative_decode
// LATER: .*SameValueType
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#ifdef SPECAGG_BROKEN
using number = float;
#else
using number = double;
#endif

using draft_model = specagg::toy_source<number>;
using target_model = specagg::toy_source<double>;
specagg::status decode(specagg::text& t, draft_model& q, target_model& p,
                       specagg::speculative_workspace<double>& work);
specagg::status decode(specagg::text& t, draft_model& q, target_model& p,
                       specagg::speculative_workspace<double>& work) {
  specagg::random_streams chooser(1);
  return specagg::speculative_decode(q, p, specagg::lossless{}, chooser,
                                     {.text = t, .most = 9, .work = work});
}
