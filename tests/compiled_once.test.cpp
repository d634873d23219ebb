// SPDX-License-Identifier: Apache-2.0
#include <specagg/compiled_once.hpp>

#include <type_traits>
#include <vector>

#include <specagg/policy/any_of.hpp>
#include <specagg/rows/any_row.hpp>

#include "policy/every_verifier.hpp"

using namespace specagg;

namespace {

using any_policy = any_of<lossless, lossy, ensemble>;
struct derived_rule : any_policy {
  using any_policy::any_policy;
};
using any_kind = any_row<one_hot_row<float>, dense_row<float>>;
struct derived_kind : any_kind {
  using any_kind::any_kind;
};

// The type by which f is called.
template <class Seen, class T>
bool seen_as(const T& x) {
  return with_chosen(
      x, [](const auto& one) { return std::is_same_v<std::remove_cvref_t<decltype(one)>, Seen>; });
}

}  // namespace

TEST_CASE("code is compiled for each policy and kind of row, also of a derived struct, or once") {
  CHECK(seen_as<lossy>(any_policy(lossy{0.2})));
  CHECK(seen_as<lossy>(derived_rule(lossy{0.2})));
  CHECK(seen_as<compiled_once<any_policy>>(compiled_once<any_policy>(lossy{0.2})));
  CHECK(seen_as<lossless>(lossless{}));
  const one_hot_row<float> one(1, 3);
  CHECK(seen_as<one_hot_row<float>>(any_kind(one)));
  CHECK(seen_as<one_hot_row<float>>(derived_kind(one)));
  CHECK(seen_as<compiled_once<any_kind>>(compiled_once<any_kind>(one)));
  CHECK(seen_as<one_hot_row<float>>(one));
}

TEST_CASE("what is compiled once is made from the same things, and emits the same bits") {
  const any_policy made = ensemble{0.4};
  const compiled_once<any_policy> once = made, from_rule = ensemble{0.4}, by_default;
  CHECK(by_default.chosen.index() == 0);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const auto due = by_every_verifier<float>(ensemble{0.4}, seed, 1100);
    CHECK(by_every_verifier<float>(once, seed, 1100) == due);
    CHECK(by_every_verifier<float>(from_rule, seed, 1100) == due);
  }
}
