// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/propose.hpp>

#include <algorithm>
#include <set>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/draft/first_of.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

struct children {
  std::vector<token_id> tokens;
  std::vector<std::vector<double>> laws;
};
template <class R, class C>
children propose(proposal kind, R row, std::size_t b, C& chooser) {
  children c{std::vector<token_id>(b), {}};
  std::vector<proposal_row<R>> laws(b);
  std::vector<double> scratch(verify_scratch(row.size()));
  const std::size_t n =
      propose_children(kind, row, {}, chooser, std::span(c.tokens), std::span(laws), scratch);
  REQUIRE(n <= b);
  c.tokens.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    c.laws.emplace_back();
    for (std::size_t v = 0; v < row.size(); ++v) c.laws.back().push_back(double(laws[i][v]));
  }
  return c;
}
constexpr proposal kinds[] = {proposal::greedy, proposal::sampled, proposal::top,
                              proposal::independent};

}  // namespace

TEST_CASE("every child was drawn from its law, given the siblings before it") {
  const std::vector<double> q{0.4, 0.1, 0.3, 0.2};
  for (const proposal kind : kinds)
    for (std::size_t b = 1; b <= 4; ++b) {
      // The probability of each sequence of siblings is the product of the laws that were given
      // with it.
      exhaustive_chooser chooser;
      double all = 0;
      do {
        const children c = propose(kind, dense_row<double>(q), b, chooser);
        double product = 1;
        for (std::size_t i = 0; i < c.tokens.size(); ++i)
          product *= c.laws[i][std::size_t(c.tokens[i])];
        CHECK(product == Approx(chooser.probability).epsilon(1e-14));
        CHECK(chooser.reused == 0);
        CHECK(c.tokens.size() == b);
        if (kind != proposal::independent)
          CHECK(std::set(c.tokens.begin(), c.tokens.end()).size() == b);
        all += chooser.probability;
        if (kind == proposal::top)
          for (std::size_t i = 0; i < b; ++i)
            CHECK(c.tokens[i] == (std::vector<token_id>{0, 2, 3, 1})[i]);
        if (kind == proposal::greedy)
          for (std::size_t i = 1; i < b; ++i)
            CHECK(c.tokens[i] == (std::vector<token_id>{0, 2, 3})[i - 1]);
      } while (chooser.next());
      CHECK(all == Approx(1).epsilon(1e-14));
    }
}
TEST_CASE("fewer tokens than were asked for, none in an invalid row") {
  const std::vector<double> two{0.5, 0, 0.5, 0}, bad{0.5, -1, 1.5, 0};
  for (const proposal kind : kinds) {
    exhaustive_chooser chooser;
    do {
      const children c = propose(kind, dense_row<double>(two), 4, chooser);
      CHECK(c.tokens.size() == (kind == proposal::independent ? 4 : 2));
      for (const token_id t : c.tokens) CHECK((t == 0 || t == 2));
    } while (chooser.next());
    CHECK(propose(kind, dense_row<double>(bad), 2, chooser).tokens.empty());
    CHECK(propose(kind, dense_row<double>(two), 0, chooser).tokens.empty());
  }
}
TEST_CASE("at temperature 0 the most likely tokens of the row at temperature 1 are proposed") {
  const std::vector<float> logits{1, 3, 2, -1};
  random_streams chooser(1);
  for (const proposal kind : {proposal::greedy, proposal::top}) {
    const children c = propose(kind, processed_row<float>(logits, {.temperature = 0}), 3, chooser);
    REQUIRE(c.tokens.size() == 3);
    CHECK(std::set(c.tokens.begin(), c.tokens.end()) == std::set<token_id>{0, 1, 2});
    for (std::size_t i = 0; i < 3; ++i) CHECK(c.laws[i][std::size_t(c.tokens[i])] == 1);
  }
  for (const sampling& s :
       {sampling{.temperature = 0}, sampling{.temperature = 0.7}, sampling{1, 3}})
    CHECK(propose(proposal::top, processed_row<float>(logits, s), 1, chooser).tokens ==
          std::vector<token_id>{1});
  CHECK(propose(proposal::sampled, processed_row<float>(logits, {.temperature = 0}), 3, chooser)
            .tokens == std::vector<token_id>{1});
}
TEST_CASE("rows of several kinds: a lookup's token is one child") {
  using R = any_row<one_hot_row<float>, processed_row<float>>;
  const std::vector<float> logits{1, 3, 2, -1};
  random_streams chooser(1);
  for (const proposal kind : {proposal::greedy, proposal::sampled, proposal::top}) {
    CHECK(propose(kind, R(one_hot_row<float>(3, 4)), 2, chooser).tokens ==
          std::vector<token_id>{3});
    CHECK(propose(kind, R(processed_row<float>(logits, {})), 2, chooser).tokens.size() == 2);
  }
}
