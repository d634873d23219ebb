// SPDX-License-Identifier: Apache-2.0
// LATER: .*Chooser.*an engine of <random> gives bits: pass specagg::random_streams.seed.
#include <specagg/decoders.hpp>

#include <array>
#include <random>

specagg::verdict verify(const specagg::draft& draft,
                        const std::array<std::array<float, 4>, 2>& rows);
specagg::verdict verify(const specagg::draft& draft,
                        const std::array<std::array<float, 4>, 2>& rows) {
#ifdef SPECAGG_BROKEN
  std::mt19937 chooser;  // bits are no decisions
#else
  specagg::random_streams chooser(1);
#endif
  std::array<specagg::emission, 2> out;
  std::array<double, 1> scratch;
  return specagg::verify_token(draft, rows, rows, specagg::lossless{}, chooser, out, scratch);
}
