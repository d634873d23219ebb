// SPDX-License-Identifier: Apache-2.0
// Dot products of whole numbers: weights times activations from -127 to 127. Integer sums are exact
// and have no order, so every machine gives the same sums. There is one file for each machine, and
// each has
//   store_bytes(x, bytes)    stores 16 whole numbers x, -127 to 127, as bytes
//   dots, byte_dots          sums of `rows` weight rows times one token, 0 at first: of weights
//                            from 0 to 15, and of weights k from -128 to 127, stored as k + 128
//   dots::tokens             number of tokens whose sums fit into the registers
//   ::bytes                  4 columns of those rows, one byte each: byte 4 r + i is column i of
//                            row r
//   load(p)                  4 rows bytes of memory
//   dots::low(w), high(w)    the low and the high halves of each byte
//   add(w, x)                adds w times the 4 activations at x
//   total()                  the sums as floats, without error: they are below 2^24
//   byte_dots::offset        0 or 128: total() is the sum of k + offset times x
// add may be called 8 times: some machines keep sums of 16 bits, and those hold 8 (15 127 + 15
// 127).
#pragma once
#include <specagg/backend/cpu/dots/avx2.hpp>
#include <specagg/backend/cpu/dots/avx512.hpp>
#include <specagg/backend/cpu/dots/neon.hpp>
#include <specagg/backend/cpu/dots/scalar.hpp>
#include <specagg/backend/cpu/dots/sse2.hpp>
