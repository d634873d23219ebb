// SPDX-License-Identifier: Apache-2.0
// Options that are lists of numbers: --gamma 5,1,1 and --tree 3,2,1,1; and --propose.
#pragma once
#include <fmt/format.h>

#include <charconv>
#include <string>
#include <vector>

#include <specagg/decode/tree.hpp>
#include <specagg/error.hpp>

namespace cli {

inline constexpr std::size_t most_drafted = 62;  // a round; what metered counts call by call

// "5" or "5,1,1": numbers from 0 to `most`. also: what the option takes besides, for the message.
inline std::vector<std::size_t> parse_list(const std::string& option, const std::string& text,
                                           std::size_t most, const std::string& also = "") {
  std::vector<std::size_t> all;
  const char *at = text.data(), *const end = at + text.size();
  for (bool more = true; more; ++at) {
    std::size_t n = 0;
    const auto [after, failure] = std::from_chars(at, end, n);
    const bool leading_zero = after - at > 1 && *at == '0';
    if (failure != std::errc() || n > most || leading_zero || (after != end && *after != ','))
      throw specagg::error(option + " " + text, "",
                           fmt::format("is no number from 0 to {} or list of them{}", most, also));
    all.push_back(n);
    at = after;
    more = at != end;
  }
  return all;
}
// The shape of a tree with 1 to most_drafted nodes.
inline std::vector<std::size_t> parse_shape(const std::string& text) {
  const std::vector<std::size_t> shape = parse_list("--tree", text, most_drafted);
  if (const std::size_t nodes = specagg::tree_size(shape); nodes == 0 || nodes > most_drafted)
    throw specagg::error("--tree " + text, "",
                         fmt::format("has {} nodes; 1 to {} can be drafted",
                                     nodes == 0 ? "no" : "too many", most_drafted));
  return shape;
}
// One of the words of --propose; empty: greedy.
inline specagg::proposal proposal_named(const std::string& text) {
  using specagg::proposal;
  for (const proposal p : {proposal::sampled, proposal::top})
    if (text == name(p)) return p;
  return proposal::greedy;
}

}  // namespace cli
