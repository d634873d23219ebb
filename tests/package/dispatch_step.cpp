// SPDX-License-Identifier: Apache-2.0
// Built once for each instruction set by specagg_dispatch. std::vector and std::sort are used here
// and by the caller: if the versions shared them with the program, an older machine would run AVX
// code.
#include "dispatch.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include <specagg/decoders.hpp>

const char* step_isa() { return specagg::instruction_set; }

std::size_t step(const request& r, std::span<answer> out) {
  const auto q = specagg::rows_of(
      r.drafted.size() + 1, [&](std::size_t) { return specagg::softmax_row<float>(r.q, 0.8); });
  const auto p = specagg::rows_of(r.drafted.size() + 1, [&](std::size_t) {
    return specagg::processed_row<float>(r.p, {.temperature = 0.9, .top_k = 500});
  });
  specagg::random_streams random(r.seed);
  std::vector<specagg::emission> emitted(r.drafted.size() + 1);
  std::vector<double> scratch(specagg::verify_scratch(r.q.size()));
  const auto verdict = specagg::verify_token({.tokens = r.drafted}, q, p, specagg::token_v3{0.3},
                                             random, emitted, scratch);

  std::vector<double> sorted(r.p.begin(), r.p.end());  // something the compiler makes vectors of
  for (double& x : sorted) x = x * 0.5 + 1;
  std::sort(sorted.begin(), sorted.end());
  std::size_t n = 0;
  for (; n < verdict.emitted && n < out.size(); ++n)
    out[n] = {emitted[n].token, std::bit_cast<std::uint64_t>(emitted[n].log_pi)};
  if (n < out.size()) out[n++] = {-1, std::bit_cast<std::uint64_t>(sorted[sorted.size() / 2])};
  return n;
}
