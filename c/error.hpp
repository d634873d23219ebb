// SPDX-License-Identifier: Apache-2.0
// What specagg_last_error() returns.
#pragma once
#include <cstdarg>
#include <cstdio>

#include "specagg.h"

namespace c_library {

inline thread_local char last_error[256] = "";

// Keeps the text, cut to its room, and returns SPECAGG_INVALID_PARAMETER.
[[gnu::format(printf, 1, 2)]] inline std::int32_t refuse(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return SPECAGG_INVALID_PARAMETER;
}
// At the beginning of a call: nothing is wrong yet.
inline void forget_error() { last_error[0] = 0; }

}  // namespace c_library
