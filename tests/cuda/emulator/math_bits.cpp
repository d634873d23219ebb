// SPDX-License-Identifier: Apache-2.0
// The CPU's side of emulator.arch.slow.test.cpp, which builds the library as nvcc sees it.
#include "cuda/agree.hpp"
#include "cuda/emulator/math_bits.hpp"

extern "C" void math_bits_of_cpu(std::vector<std::uint32_t>& bits);
extern "C" void math_bits_of_cpu(std::vector<std::uint32_t>& bits) { bits = math_bits(); }
