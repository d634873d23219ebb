// SPDX-License-Identifier: Apache-2.0
// Compiled once for each instruction set, as PART: verifies one draft of three tokens over rows of
// 5000 logits.
#include <specagg/specagg.hpp>

#include <bit>
#include <cstddef>
#include <vector>

#include "isa.hpp"

SPECAGG_BEGIN
__attribute__((noinline)) inline const char* isa() { return SPECAGG_STRING(SPECAGG_ISA); }
SPECAGG_END

part PART();
part PART() {
  constexpr std::size_t size = 5000;
  std::vector<float> q(size), p(size);
  for (std::size_t v = 0; v < size; ++v) {
    q[v] = static_cast<float>(v * v % 997) * 0x1p-6F;
    p[v] = static_cast<float>(v * v % 991) * 0x1p-6F;
  }
  const specagg::token_id drafted[] = {3321, 2343, 4};
  const auto row = [](const std::vector<float>& logits) {
    return specagg::rows_of(4, [&](std::size_t) { return specagg::softmax_row<float>(logits); });
  };
  specagg::random_streams chooser(7);
  std::vector<specagg::emission> out(4);
  std::vector<double> scratch(specagg::verify_scratch(size));
  const auto verdict = specagg::verify_token({.tokens = drafted}, row(q), row(p),
                                             specagg::token_v3{0.3}, chooser, out, scratch);

  part result{SPECAGG_STRING(SPECAGG_ISA), specagg::isa(), {}};
  for (std::size_t i = 0; i < verdict.emitted; ++i) {
    result.bits[2 * i] = static_cast<std::uint64_t>(out[i].token);
    result.bits[2 * i + 1] = std::bit_cast<std::uint64_t>(out[i].log_pi);
  }
  return result;
}
