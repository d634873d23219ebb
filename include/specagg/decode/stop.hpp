// SPDX-License-Identifier: Apache-2.0
// Stop strings. They are searched in bytes, since a stop string may span tokens and end inside an
// accepted prefix.
#pragma once
#include <algorithm>
#include <string_view>

#include <specagg/config.hpp>

SPECAGG_BEGIN

// The position of the earliest stop string in `text`, npos if there is none. Only stops that end
// after byte `from` are found (the caller has already searched the bytes before it). Empty stops
// never match.
std::size_t find_stop(std::string_view text, std::size_t from, const auto& stops) {
  std::size_t first = std::string_view::npos;
  for (const std::string_view stop : stops)
    if (!stop.empty())
      first = std::min(first, text.find(stop, from >= stop.size() ? from - stop.size() + 1 : 0));
  return first;
}

// The number of bytes at the end of `text` that may be the beginning of a stop string. A stream
// should hold these back.
std::size_t held_back(std::string_view text, const auto& stops) {
  std::size_t most = 0;
  for (const std::string_view stop : stops)
    for (std::size_t n = std::min(stop.size(), text.size() + 1); n-- > 1;)
      if (text.ends_with(stop.substr(0, n))) {
        most = std::max(most, n);
        break;
      }
  return most;
}

SPECAGG_END
