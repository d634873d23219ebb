// SPDX-License-Identifier: Apache-2.0
// EXPECT: specagg: after the models come the weights
#include <specagg/audit/toy_source.hpp>
#include <specagg/sites.hpp>

using namespace specagg;
using namespace specagg::sites;

status decode(text& t, toy_source<float>& l, dragon_workspace<float>& work);
status decode(text& t, toy_source<float>& l, dragon_workspace<float>& work) {
  sites::shared_drafts drafts{coupled_noise(1)};
#ifdef SPECAGG_BROKEN
  return dragon_decode(t, 9, l, l, lossless{}, drafts, work);
#else
  return dragon_decode(t, 9, l, l, weigh_sites(0, 1), drafts, work);
#endif
}
