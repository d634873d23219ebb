// SPDX-License-Identifier: Apache-2.0
#include <specagg/rows/row.hpp>

#include <array>
#include <type_traits>
#include <vector>

#include <specagg/draft/row_without.hpp>
#include <specagg/rows/any_row.hpp>
#include <specagg/rows/cut_row.hpp>
#include <specagg/rows/rows.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// The three ways of writing a row of one's own. The law is 1/2, 1/4, 1/4.
constexpr std::array<float, 3> law{0.5f, 0.25f, 0.25f}, twice{1, 0.5f, 0.5f};

// Probabilities that are known to sum to 1: nothing is to be found.
struct ready_row {
  using value_type = float;
  std::size_t* walks = nullptr;
  std::size_t size() const { return law.size(); }
  status why() const { return status::ok; }
  std::size_t& walker() const { return *walks; }
  struct block {
    std::size_t begin;
    template <class V>
    V operator()(std::size_t k, int lanes) const {
      return V::load_partial(law.data() + begin + k, lanes, 0);
    }
  };
  block open(std::size_t begin, std::size_t) const { return {begin}; }
};
// Weights, and their sum is found.
class weighed_row {
 public:
  using value_type = float;
  struct facts {
    float sum = 0;
    bool read_at_1 = false;
  };
  std::size_t size() const { return twice.size(); }
  struct block {
    std::size_t begin;
    float sum;
    template <class V>
    V operator()(std::size_t k, int lanes) const {
      return V::load_partial(twice.data() + begin + k, lanes, 0) / V(sum);
    }
  };
  block open(const facts& known, std::size_t begin, std::size_t) const {
    return {begin, known.sum};
  }

 protected:
  status find_facts(bool confidence, facts& found) const {
    for (const float x : twice) found.sum += x;
    found.read_at_1 = confidence;
    return status::ok;
  }
};
// A row that is normalised to another type.
struct other_row {
  using value_type = float;
  std::size_t size() const { return law.size(); }
  ready_row normalise(bool) const { return {}; }
};

template <class R>
constexpr bool shows_find_facts =
    requires(const R& row, typename R::facts& facts) { row.find_facts(false, facts); };

}  // namespace

TEST_CASE("rows of one's own: ready, with facts to be found, or with a member normalise()") {
  static_assert(Row<ready_row> && NormalisedRow<ready_row> && !Row<std::vector<float>>);
  static_assert(Row<weighed_row> && !NormalisedRow<weighed_row>);
  static_assert(Row<other_row> && !NormalisedRow<other_row>);
  static_assert(std::is_same_v<normal_form<weighed_row>, normalised_row<weighed_row>>);
  static_assert(std::is_same_v<normal_form<other_row>, ready_row>);
  const auto is_the_law = [](const auto& row) {
    REQUIRE(row.why() == status::ok);
    for (std::size_t v = 0; v < law.size(); ++v)
      if (at(row, v).v != law[v]) return false;
    return true;
  };
  CHECK(is_the_law(specagg::normalise(ready_row())));
  CHECK(is_the_law(specagg::normalise(other_row())));
  const auto found = specagg::normalise(weighed_row(), true);
  CHECK(is_the_law(found));
  CHECK(found.sum == 2);
  CHECK((found.read_at_1 && !specagg::normalise(weighed_row()).read_at_1));
  // rows of several kinds, of which some are ready
  const any_row<ready_row, weighed_row> any{weighed_row()};
  static_assert(
      std::is_same_v<normal_form<decltype(any)>, any_row<ready_row, normalised_row<weighed_row>>>);
  CHECK(is_the_law(normalise(any)));
  using once = compiled_once<any_row<ready_row, weighed_row>>;
  static_assert(std::is_same_v<normal_form<once>,
                               compiled_once<any_row<ready_row, normalised_row<weighed_row>>>>);
  CHECK(is_the_law(normalise(once(weighed_row()))));
}

TEST_CASE("a normalised row is returned as it is: by reference, or as a value if it is temporary") {
  const auto row = normalise(one_hot_row<float>(1, 3));
  CHECK(&normalise(row, true) == &row);
  static_assert(
      std::is_same_v<decltype(normalise(row)), const normalised_row<one_hot_row<float>>&>);
  static_assert(std::is_same_v<decltype(normalise(normalise(one_hot_row<float>(1, 3)))),
                               normalised_row<one_hot_row<float>>>);
  const any_row<normalised_row<one_hot_row<float>>> any{row};
  CHECK(&normalise(any) == &any);
  const compiled_once<any_row<normalised_row<one_hot_row<float>>>> once(any);
  CHECK(&normalise(once) == &once);
}

TEST_CASE("a distribution is normalised without as_row(). Elements of a temporary are kept") {
  const std::vector<double> p{0.25, 0.75};
  CHECK(specagg::normalise(p).open(0, 2).x == p.data());
  const std::vector<int> counts{0, 1};
  static_assert(std::is_same_v<decltype(specagg::normalise(counts)),
                               normalised_row<indexed_row<const std::vector<int>&>>>);
  const auto kept = specagg::normalise(std::vector<double>(p));
  static_assert(
      std::is_same_v<decltype(kept), const normalised_row<indexed_row<std::vector<double>>>>);
  std::vector<double> somewhere_else(2, 7);
  CHECK((kept[0] == 0.25 && kept[1] == 0.75));
  const indexed_row<std::vector<double>> holder(p);
  static_assert(detail::holds_elements<indexed_row<std::vector<double>>> &&
                !detail::holds_elements<indexed_row<const std::vector<double>&>> &&
                !detail::holds_elements<dense_row<double>> && !detail::holds_elements<ready_row>);
  static_assert(std::is_same_v<decltype(normalise(holder)),
                               normalised_row<indexed_row<const std::vector<double>&>>>);
  CHECK(specagg::normalise(std::vector<double>{0.5, 0.6}).why() == status::not_normalised);
}

TEST_CASE("how a row finds its facts is its own business") {
  static_assert(!shows_find_facts<dense_row<float>> && !shows_find_facts<sparse_row<float>> &&
                !shows_find_facts<indexed_row<std::vector<float>>> &&
                !shows_find_facts<one_hot_row<float>> && !shows_find_facts<softmax_row<float>> &&
                !shows_find_facts<processed_row<float>> &&
                !shows_find_facts<confident_row<dense_row<float>, dense_row<float>>> &&
                !shows_find_facts<cut_row<ready_row>> && !shows_find_facts<row_without<ready_row>>);
  SUCCEED();
}

TEST_CASE("rows made of a row that has a walker are read by it") {
  std::size_t walks = 0;
  const ready_row row{&walks};
  static_assert(Walked<ready_row> && !Walked<weighed_row> && !Walked<dense_row<float>>);
  const cut_row<ready_row> cut(row, law);
  CHECK(&walker_of(cut) == &walks);
  static_assert(Walked<row_without<ready_row>> && Walked<normal_form<cut_row<ready_row>>> &&
                !Walked<cut_row<normal_form<dense_row<float>>>>);
  const detail::row_with<cut_row<ready_row>> twice_removed{cut, {}};
  CHECK(&walker_of(twice_removed) == &walks);
  CHECK(std::is_same_v<decltype(walker_of(law)), one_thread>);
}

TEST_CASE("two rows are read together if they have one size and the first does not object") {
  struct objecting : ready_row {
    bool fits(const weighed_row&) const { return false; }
  };
  const weighed_row three;
  CHECK(detail::fit_together(ready_row(), three));
  CHECK_FALSE(detail::fit_together(objecting(), three));
  CHECK(detail::fit_together(objecting(), ready_row()));
  CHECK_FALSE(detail::fit_together(three, one_hot_row<float>(0, 4)));
}
