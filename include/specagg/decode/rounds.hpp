// SPDX-License-Identifier: Apache-2.0
// The loop over rounds that all decoders share.
#pragma once
#include <cstddef>
#include <span>

#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// Runs rounds until `most` tokens were appended, the text ended, accept(emission) returned false,
// or a round failed. The token for which accept() is false is the last one kept; later tokens of
// that round are removed.
//   round(left)  appends at most `left` tokens, writes their emissions, and returns {emitted, why}
//   cut(n)       rolls the text, the processor and the models back to n tokens; returns a status as
//                truncate
template <class Round, class Cut, class Accept>
status decode_rounds(text& t, std::size_t most, const end_tokens& end_of_text,
                     std::span<const emission> emissions, Round&& round, Cut&& cut,
                     Accept&& accept) {
  for (std::size_t left = most; left > 0;) {
    const std::size_t before = t.size;
    const auto result = round(left);
    for (std::size_t i = 0; i < result.emitted; ++i) {
      if (accept(emissions[i]) && !end_of_text.contains(emissions[i].token)) continue;
      return cut(before + i + 1);
    }
    if (result.why != status::ok) return result.why;
    left -= result.emitted;
  }
  return status::ok;
}

SPECAGG_END
