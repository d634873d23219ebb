// SPDX-License-Identifier: Apache-2.0
// EXPECT: a coupled draft shares its noise with the target
// A draft drawn with the Gumbel-max coupling cannot reach a ratio test.
#include <specagg/decoders.hpp>

#include <vector>

specagg::verdict verify_it(const specagg::coupled_draft& drafted, specagg::random_streams& chooser,
                           const specagg::coupled_noise& noise, std::vector<specagg::emission>& out,
                           std::vector<double>& scratch) {
  const std::vector<std::vector<float>> rows(2, {0.5f, 0.5f});
#ifdef SPECAGG_BROKEN
  (void)noise;
  return specagg::verify_token(drafted, rows, rows, specagg::lossless{}, chooser, out, scratch);
#else
  (void)chooser;
  (void)scratch;
  return specagg::verify_coupled(drafted, rows, rows, specagg::lossless{}, noise, out);
#endif
}
