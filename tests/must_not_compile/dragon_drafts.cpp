// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .dragon_decode
// LATER: .*SiteDrafts
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
  return dragon_decode(l, l, weigh_sites(0, 1), random, {.text = t, .most = 9, .work = work});
#else
  return dragon_decode(l, l, weigh_sites(0, 1), drafts, {.text = t, .most = 9, .work = work});
#endif
}
