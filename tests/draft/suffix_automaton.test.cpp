// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/suffix_automaton.hpp>

#include <random>
#include <vector>

#define SPECAGG_COUNT_ALLOCATIONS
#include "support/allocations.hpp"
#include "support/catch.hpp"

using namespace specagg;

namespace {

using tokens = std::vector<token_id>;

// What the automaton answers for the longest suffix of `text` that occurs in one of the documents
// and is continued there, by trying all of them. The position counts the tokens of all documents.
suffix_automaton::continuation by_search(const std::vector<tokens>& documents, const tokens& text,
                                         std::size_t longest) {
  for (std::size_t length = std::min(text.size(), longest); length > 0; --length) {
    suffix_automaton::continuation last;
    std::size_t before = 0;
    for (const tokens& d : documents) {
      for (std::size_t end = length; end < d.size(); ++end)
        if (std::equal(text.end() - std::ptrdiff_t(length), text.end(),
                       d.begin() + std::ptrdiff_t(end - length)))
          last = {std::uint32_t(before + end), std::uint32_t(length)};
      before += d.size();
    }
    if (last.length > 0) return last;
  }
  return {};
}

}  // namespace

TEST_CASE(
    "a suffix automaton finds the longest suffix that is continued and its most recent "
    "continuation, by search") {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return std::size_t(random() % n); };
  std::size_t found = 0, capped = 0;
  for (int run = 0; run < 400; ++run) {
    const std::size_t letters = 1 + below(4), longest = run % 3 == 0 ? 3 : 32;
    suffix_automaton a(run % 2 == 0 ? 0 : 60, std::uint32_t(longest));
    std::vector<tokens> documents(1);
    for (int step = 0; step < 60; ++step) {
      if (below(12) == 0) {
        a.end_document();
        documents.emplace_back();
      }
      const auto t = token_id(below(letters));
      a.push(t);
      documents.back().push_back(t);
      // The document itself, and a few tokens that were not entered.
      suffix_automaton::match m = a.suffix();
      tokens text = documents.back();
      for (int more = 0; more < 4; ++more) {
        const auto due = by_search(documents, text, longest), is = a.follows(m);
        REQUIRE(is.length == due.length);
        REQUIRE(is.position == due.position);
        found += is.length > 0;
        capped += is.length == longest;
        const auto y = token_id(below(letters + 1));
        m = a.step(m, y);
        text.push_back(y);
      }
    }
  }
  CHECK(found > 10000);
  CHECK(capped > 1000);
}
TEST_CASE(
    "a suffix automaton with room for its tokens allocates nothing, for any tokens, and can be "
    "cleared") {
  std::mt19937 random(2);
  for (const unsigned letters : {1u, 2u, 3u, 50u, 1000u}) {
    suffix_automaton a(500);
    for (int turn = 0; turn < 2; ++turn) {
      const std::size_t before = allocations;
      a.clear();
      for (int i = 0; i < 500; ++i) a.push(token_id(random() % letters));
      CHECK(allocations == before);
    }
    CHECK(a.size() == 500);
  }
  // The text with the most states: a b b b ... b c.
  suffix_automaton a(100);
  const std::size_t before = allocations;
  for (int i = 0; i < 100; ++i) a.push(i == 0 ? 1 : i == 99 ? 3 : 2);
  CHECK(allocations == before);
}
