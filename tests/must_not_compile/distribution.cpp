// SPDX-License-Identifier: Apache-2.0
// LATER: Distribution
#include <specagg/decoders.hpp>

#include <string>
#include <vector>

#ifdef SPECAGG_BROKEN
using row = std::vector<std::string>;
#else
using row = std::vector<double>;
#endif

inline auto row_of(const row& x) { return specagg::as_row(x); }
using result = decltype(row_of({}));
