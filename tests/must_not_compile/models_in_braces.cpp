// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .collaborative_decode
// LATER: .*models: std::tie.q, p., not .q, p.
// {q, p} names no type, so no models would be given.
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include <tuple>

#ifdef SPECAGG_BROKEN
#define MODELS {q, p}
#else
#define MODELS std::tie(q, p)
#endif

using model = specagg::toy_source<float>;
specagg::status decode(specagg::text& t, model& q, model& p,
                       specagg::collaborative_workspace<float, 2>& work);
specagg::status decode(specagg::text& t, model& q, model& p,
                       specagg::collaborative_workspace<float, 2>& work) {
  specagg::random_streams chooser(1);
  return specagg::collaborative_decode(MODELS, specagg::ensemble{0.5}, chooser,
                                       {.text = t, .most = 9, .work = work});
}
