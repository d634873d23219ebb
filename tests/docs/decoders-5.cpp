// SPDX-License-Identifier: Apache-2.0
#include "decoders.hpp"

int main() {
  const auto by = [](auto decode) {
    return appends_20(
        [=](text& t, std::size_t n, auto& r, auto& q, auto& p) { return decode(t, n, q, p, r); },
        toy(1), toy(2));
  };
  const bool token_by_token = by([](auto&... a) { return sequential(a...); });
  const bool both_models = by([](auto&... a) { return oracle(a...); });
  const bool whole = by([](auto&... a) { return sequence(a...); });
  const bool greedy =
      by([](text& t, std::size_t n, auto& q, auto& p, auto&) { return bild_text(t, n, q, p); });
  return token_by_token && both_models && whole && greedy ? 0 : 1;
}
