// SPDX-License-Identifier: Apache-2.0
// EXPECT: this draft was not drawn with the coupled noise
// A draft drawn without the Gumbel-max coupling is not verified by coupled verification.
#include <specagg/decoders.hpp>

#include <vector>

specagg::verdict verify_it(const specagg::draft& drafted, const specagg::coupled_noise& noise,
                           std::vector<specagg::emission>& out) {
  const std::vector<std::vector<float>> rows(2, {0.5f, 0.5f});
#ifdef SPECAGG_BROKEN
  return specagg::verify_coupled(drafted, rows, rows, specagg::lossless{}, noise, out);
#else
  return specagg::verify_coupled(specagg::coupled_draft{drafted}, rows, rows, specagg::lossless{},
                                 noise, out);
#endif
}
