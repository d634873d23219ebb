// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: after the weights come the drafts
#include <specagg/audit/toy_source.hpp>
#include <specagg/sites.hpp>

using namespace specagg;
using namespace specagg::sites;

status decode(text& t, toy_source<float>& l, dragon_workspace<float>& work);
status decode(text& t, toy_source<float>& l, dragon_workspace<float>& work) {
  sites::shared_drafts drafts{coupled_noise(1)};
#ifdef SPECAGG_BROKEN
  (void)drafts;
  random_streams random(1);
  return dragon_decode(t, 9, l, l, weigh_sites(0, 1), random, work);
#else
  return dragon_decode(t, 9, l, l, weigh_sites(0, 1), drafts, work);
#endif
}
