// SPDX-License-Identifier: Apache-2.0
// EXPECT: this combiner is not monotone and 1-homogeneous
// Sites that agree on a token under a contrastive law have not found its token.
#include <specagg/decoders.hpp>

#include <array>

specagg::token_id agreed(const std::array<specagg::token_id, 2>& winners);
specagg::token_id agreed(const std::array<specagg::token_id, 2>& winners) {
#ifdef SPECAGG_BROKEN
  const specagg::contrastive law{0.5};
#else
  const specagg::geometric law{0.5};
#endif
  return specagg::unanimous(law, winners);
}
