// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/ngram_counts.hpp>

#include <map>
#include <random>
#include <vector>

#include "support/allocations.hpp"
#include "support/catch.hpp"

using namespace specagg;

namespace {

using tokens = std::vector<token_id>;

// What followed the string h, and how often, by a search of all texts.
std::map<token_id, std::size_t> by_search(const std::vector<tokens>& texts, const tokens& h) {
  std::map<token_id, std::size_t> followers;
  for (const tokens& t : texts)
    for (std::size_t end = h.size(); end < t.size(); ++end)
      if (std::equal(h.begin(), h.end(), t.begin() + std::ptrdiff_t(end - h.size())))
        ++followers[t[end]];
  return followers;
}

}  // namespace

TEST_CASE("what followed each history, and how often, is what a search of the same texts counts") {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return std::size_t(random() % n); };
  std::size_t found = 0;
  for (int run = 0; run < 200; ++run) {
    const std::size_t letters = 1 + below(4), order = 2 + below(4);
    std::vector<tokens> texts(1 + below(3), tokens(below(20)));
    ngram_counts counts(order);
    CHECK(counts.order() == order);
    for (tokens& text : texts) {
      counts.end_document();
      for (token_id& t : text) {
        t = token_id(below(letters));
        counts.push(t);
      }
    }
    // The histories of the last text, and those after tokens that are not counted.
    tokens all = texts.back();
    ngram_counts::histories h = counts.suffix();
    for (int steps = 0; steps < 6; ++steps) {
      for (std::size_t k = 0; k < order; ++k) {
        const auto due = k > all.size()
                             ? std::map<token_id, std::size_t>()
                             : by_search(texts, {all.end() - std::ptrdiff_t(k), all.end()});
        std::size_t followed = 0;
        for (const auto& [t, n] : due) {
          CHECK(counts.count(h[k], t) == n);
          followed += n;
        }
        CHECK(counts.followed(h[k]) == followed);
        CHECK(counts.kinds(h[k]) == due.size());
        CHECK(counts.count(h[k], token_id(letters)) == 0);
        std::map<token_id, std::size_t> seen;
        counts.for_each(h[k], [&](token_id t, std::size_t n) { seen[t] += n; });
        CHECK(seen == due);
        found += k > 0 && followed > 0;
      }
      all.push_back(token_id(below(letters)));
      h = counts.step(h, all.back());
    }
  }
  CHECK(found > 1000);
}
TEST_CASE(
    "counts allocate nothing for the tokens that were reserved, and nothing is left of them after "
    "clear()") {
  ngram_counts counts(4, 1000);
  for (int run = 0; run < 2; ++run) {
    std::mt19937 random(1);
    const std::size_t before = allocations;
    for (int i = 0; i < 1000; ++i)
      counts.push(token_id(random()));  // no two strings are equal: as many nodes as can be
    CHECK(allocations == before);
    CHECK(counts.size() == 1000);
    counts.clear();
    CHECK(allocations == before);
    CHECK(counts.followed(0) == 0);
    CHECK(counts.kinds(0) == 0);
    CHECK(counts.size() == 0);
  }
  for (const token_id t : {1, 2}) counts.push(t);
  CHECK(counts.followed(0) == 2);
  CHECK(counts.followed(counts.suffix()[1]) == 0);
}
TEST_CASE("an order that is too small or too large counts as the nearest that there is") {
  CHECK(ngram_counts(0).order() == 2);
  CHECK(ngram_counts(100).order() == ngram_counts::most_order);
  ngram_counts counts(100);
  for (int i = 0; i < 20; ++i) counts.push(7);
  for (std::size_t k = 0; k < counts.order(); ++k)
    CHECK(counts.count(counts.suffix()[k], 7) == 20 - k);
}
