// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: after the workspace everything is given by its name, .*one name twice
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work);
status decode(text& t, toy_source<float>& q, speculative_workspace<float>& work) {
  random_streams random(1);
#ifdef SPECAGG_BROKEN
  no_processor a, b;
  return speculative_decode(t, 9, q, q, lossless{}, random, work, with::processor{a},
                            with::processor{b});
#else
  no_processor a;
  return speculative_decode(t, 9, q, q, lossless{}, random, work, with::processor{a});
#endif
}
