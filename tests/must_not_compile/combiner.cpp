// SPDX-License-Identifier: Apache-2.0
// EXPECT: the policy combines another number of models than it is given
// A combiner of two models does not ignore the third.
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#ifdef SPECAGG_BROKEN
constexpr specagg::ensemble law{0.4};
#else
constexpr specagg::mixture<3> law{{0.2, 0.4, 0.4}};
#endif

using model = specagg::toy_source<float>;
using memory = specagg::collaborative_workspace<float, 3>;
specagg::status decode(specagg::text& t, model& q, model& m, model& p, memory& work);
specagg::status decode(specagg::text& t, model& q, model& m, model& p, memory& work) {
  specagg::random_streams chooser(1);
  return specagg::collaborative_decode(std::tie(q, m, p), law, chooser,
                                       {.text = t, .most = 9, .work = work});
}
