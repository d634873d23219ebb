// SPDX-License-Identifier: Apache-2.0
// Stop strings: text is bytes by now, and a stop may span tokens and end inside an accepted prefix.
#pragma once
#include <algorithm>
#include <span>
#include <string_view>

#include <specagg/config.hpp>

SPECAGG_BEGIN

// Where the earliest stop begins in `text`, npos if there is none. Only stops that end behind byte `from` are looked
// for (what was before it has been looked at). Empty stops never match.
template <class Strings>
std::size_t find_stop(std::string_view text, std::size_t from, const Strings& stops) {
  std::size_t first = std::string_view::npos;
  for (const std::string_view stop : stops)
    if (!stop.empty()) first = std::min(first, text.find(stop, from >= stop.size() ? from - stop.size() + 1 : 0));
  return first;
}

// How many bytes at the end of `text` might be the beginning of a stop: a stream holds them back.
template <class Strings>
std::size_t held_back(std::string_view text, const Strings& stops) {
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
