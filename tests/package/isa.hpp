// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

struct part {
  const char* isa;                    // what the translation unit was built for
  const char* ran;                    // whose copy of an inline function ran
  std::array<std::uint64_t, 8> bits;  // what it computed
};
