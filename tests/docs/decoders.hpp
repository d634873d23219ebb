// SPDX-License-Identifier: Apache-2.0
// Texts for the blocks of docs/decoders.md.
#pragma once
#include <cstdio>
#include <vector>

#include <specagg/audit/toy_source.hpp>

// Whether write(text, 20, random, model...) appends 20 tokens to a prompt of 2, and uses the models
// as a decoder may.
template <class... M>
bool appends_20(auto&& write, M&&... models) {
  std::vector<specagg::token_id> buffer(40, 1);
  specagg::text t{buffer, 2};
  specagg::random_streams random(42);
  const specagg::status why = write(t, 20, random, models...);
  std::printf("%s, %zu tokens\n", name(why), t.size);
  return why == specagg::status::ok && t.size == 22 && (models.misuses + ...) == 0 &&
         (models.calls + ...) > 0;
}
inline specagg::toy_source<float> toy(std::uint64_t seed) { return {30, seed}; }
