// SPDX-License-Identifier: Apache-2.0
// What crosses the border between the program and its versions for each instruction set: plain
// data.
#pragma once
#include <cstdint>
#include <span>

#include <specagg/token.hpp>

struct request {
  std::span<const float> q, p;  // logits
  std::span<const specagg::token_id> drafted;
  std::uint64_t seed;
};
struct answer {
  specagg::token_id token;
  std::uint64_t log_pi;  // its bits
};

extern "C" std::size_t step(const request& r, std::span<answer> out);  // answers written
extern "C" const char* step_isa();                                     // which version this is
