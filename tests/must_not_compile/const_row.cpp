// SPDX-License-Identifier: Apache-2.0
// EXPECT: draw_draft normalises its row, which is const
// ERRORS: 2
#include <specagg/decoders.hpp>

#ifdef SPECAGG_BROKEN
using row = const specagg::dense_row<float>;
#else
using row = specagg::dense_row<float>;
#endif

specagg::token_id propose(row& q, std::span<double> scratch);
specagg::token_id propose(row& q, std::span<double> scratch) {
  specagg::random_streams chooser(1);
  return specagg::draw_draft(q, 0, 0, chooser, scratch);
}
