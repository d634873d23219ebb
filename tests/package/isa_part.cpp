// SPDX-License-Identifier: Apache-2.0
// Compiled once for each instruction set, as PART: verifies a draft and a tree over rows of 5000
// logits.
#include <cstddef>
#include <vector>

#include "isa.hpp"

SPECAGG_BEGIN
__attribute__((noinline)) inline const char* isa() { return SPECAGG_STRING(SPECAGG_ISA); }
SPECAGG_END

part PART(const task&, plain_data);
part PART(const task& t, plain_data) {
  constexpr std::size_t size = 5000;
  std::vector<float> q(size), p(size);
  for (std::size_t v = 0; v < size; ++v) {
    q[v] = static_cast<float>(v * v % 997) * 0x1p-6F;
    p[v] = static_cast<float>(v * v % 991) * 0x1p-6F;
  }
  const auto rows = [&](const std::vector<float>& logits) {
    return specagg::rows_of(
        4, [&](std::size_t) { return specagg::processed_row<float>(logits, t.how); });
  };
  specagg::random_streams chooser(7);
  std::vector<double> scratch(specagg::verify_scratch(size, 3));
  std::vector<float> residual(4 * size);
  part result{SPECAGG_STRING(SPECAGG_ISA), specagg::isa(), {}, {}};
  result.of_chain = specagg::verify_token(t.chain, rows(q), rows(p), specagg::token_v3{0.3},
                                          chooser, t.emitted, scratch);
  result.of_tree = specagg::verify_tree(
      t.tree, rows(q), rows(q), rows(p), specagg::lossless{}, chooser,
      specagg::tree_memory<float>{t.emitted_of_tree, t.nodes, residual, scratch});
  return result;
}
