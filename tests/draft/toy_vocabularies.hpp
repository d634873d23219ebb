// SPDX-License-Identifier: Apache-2.0
// Two toy vocabularies over the letters a and b, with shared, unshared, duplicate and special
// tokens; their encoder.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <specagg/draft/mapped.hpp>
#include <specagg/draft/retokenised.hpp>

#include "decode/toy_text.hpp"

namespace {

using texts = std::vector<specagg::token_text>;
using tokens = std::vector<specagg::token_id>;
using kind = specagg::token_text::kind;

// Takes the longest token at each place. Where there is none it gives up, and the bytes are not
// spelled.
struct longest_match {
  const texts* own;
  tokens operator()(std::string_view bytes) const {
    tokens all;
    while (!bytes.empty()) {
      std::size_t best = own->size(), size = 0;
      for (std::size_t d = 0; d < own->size(); ++d) {
        const std::string_view t = (*own)[d].in_text();
        if ((*own)[d].is == kind::text && t.size() > size && bytes.starts_with(t)) {
          best = d;
          size = t.size();
        }
      }
      if (size == 0) return {};
      all.push_back(specagg::token_id(best));
      bytes.remove_prefix(size);
    }
    return all;
  }
};

inline const texts of_target{{"a"}, {"b"}, {"ab"}, {"<end>", kind::special}};
// "aa", "ba" and the text "<end>" are not the target's; 4 is 2 again, and 7 is 0 again, not known
// to be spare.
inline const texts of_draft{
    {"b"}, {"<end>", kind::special}, {"a"}, {"aa"}, {"a", kind::spare}, {"ba"}, {"<end>"}, {"b"}};
inline const specagg::vocabulary_map toy_map = specagg::map_of_equal_tokens(of_draft, of_target);

using toy = specagg::toy_source<double>;
using retokenised_toy = specagg::retokenising_source<toy, longest_match>;
inline specagg::retokenised_text<longest_match> toy_text(
    std::span<const specagg::token_id> beginning = {}) {
  return {of_target, of_draft, toy_map, longest_match{&of_draft}, beginning};
}

// The own tokens of a text by their definition: what stands between special tokens is encoded at
// once. (As long as no stretch has more than retokenised_text::lookback own tokens.)
inline tokens encoded_at_once(const tokens& text) {
  tokens all;
  std::string bytes;
  const auto flush = [&] {
    const tokens some = longest_match{&of_draft}(bytes);
    all.insert(all.end(), some.begin(), some.end());
    bytes.clear();
  };
  for (const specagg::token_id t : text) {
    if (of_target[std::size_t(t)].is != kind::special) bytes += of_target[std::size_t(t)].bytes;
    else {
      flush();
      all.push_back(1);
    }
  }
  flush();
  return all;
}

// The probabilities q' that a toy model of the draft's vocabulary gives after a text of the
// target's.
inline std::vector<double> mapped_row_after(std::span<const specagg::token_id> text,
                                            std::uint64_t seed) {
  toy model(of_draft.size(), seed);
  retokenised_toy reader(model, toy_text());
  specagg::mapped_source mapped(reader, toy_map);
  std::vector<double> row(of_target.size());
  if (mapped.extend(text, row) != specagg::status::ok) FAIL("a mapped toy has no row");
  const auto q = specagg::normalise(specagg::softmax_row<double>(row));
  if (q.why() != specagg::status::ok) FAIL("a mapped toy's row is none");
  std::vector<double> probabilities(row.size());
  for (std::size_t v = 0; v < row.size(); ++v) probabilities[v] = q[v];
  return probabilities;
}

}  // namespace
