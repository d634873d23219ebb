// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/models.hpp>

#include <array>
#include <vector>

#include "support/catch.hpp"

using namespace specagg;

namespace {

using one = vec<double, 1>;
// The first of N models.
struct first_model {
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return model<0>(at); };
  }
};
struct first_of_three : first_model {
  static constexpr std::size_t models = 3;
};

}  // namespace

TEST_CASE("model<K> is the number of row K. Of a pair, model 0 is q and model 1 is p") {
  const auto three = view_of(std::array{0.25, 0.5, 0.75});
  CHECK((model<0>(three).v == 0.25 && model<1>(three).v == 0.5 && model<2>(three).v == 0.75));
  const token_view<one, false> pair{one(0.125), one(0.875)};
  CHECK((model<0>(pair).v == 0.125 && model<1>(pair).v == 0.875));
}
TEST_CASE("models are folded from the last to the first, from 0") {
  const auto digits = [](std::size_t k, one x, one so_far) {
    return so_far * one(100) + one(double(k) * 10) + x;
  };
  CHECK(fold_models<3>(view_of(std::array{1., 2., 3.}), digits).v == 231201);
  CHECK(fold_models<1>(view_of(std::array{7.}), digits).v == 7);
}
TEST_CASE("passes over three rows see the same token of each, in every block") {
  const std::size_t size = 2500;  // three blocks
  std::array<std::vector<double>, 3> p;
  for (std::size_t k = 0; k < 3; ++k) {
    p[k].assign(size, 0);
    for (std::size_t v = 0; v < size; ++v) p[k][v] = double((v * (k + 1)) % 7);
    double sum = 0;
    for (const double x : p[k]) sum += x;
    for (double& x : p[k]) x /= sum;
  }
  p[1][2400] += 0.0004;
  p[1][2401] += 0.0004;  // rows may be a thousandth off: they are normalised
  double due = 0, top = 0, total = 0;
  for (const double x : p[1]) total += x;
  for (std::size_t v = 0; v < size; ++v) {
    due += p[0][v] * p[1][v] * p[2][v] / total;
    top = std::max(top, p[1][v] / total);
  }
  std::array<dense_row<double>, 3> rows{dense_row<double>(p[0]), dense_row<double>(p[1]),
                                        dense_row<double>(p[2])};
  const status s = with_models(first_of_three{}, rows, [&](const auto& all, const auto& pi) {
    CHECK(all.size() == size);
    CHECK(all.sum([](auto at) { return model<0>(at) * model<1>(at) * model<2>(at); }) ==
          Approx(due).epsilon(1e-12));
    CHECK(all.max([](auto at) { return model<1>(at); }) == Approx(top).epsilon(1e-14));
    const std::size_t best = all.argmax([](auto at) { return model<2>(at); });
    for (std::size_t v = 0; v < size; ++v)
      REQUIRE((p[2][v] < p[2][best] || (p[2][v] == p[2][best] && v >= best)));
    CHECK(pi(at(all, 5)).v == Approx(p[0][5]).epsilon(1e-14));
    return status::ok;
  });
  CHECK(s == status::ok);
}
TEST_CASE("a row that is none is reported, and nothing is called. Two rows are a pair") {
  const std::vector<double> good{0.5, 0.5}, bad{0.5, -0.5};
  const auto never = [](const auto&, const auto&) {
    FAIL("called");
    return status::ok;
  };
  std::array<dense_row<double>, 3> three{dense_row<double>(good), dense_row<double>(bad),
                                         dense_row<double>(good)};
  CHECK(with_models(first_of_three{}, three, never) == status::invalid_row);
  std::array<dense_row<double>, 2> two{dense_row<double>(good), dense_row<double>(good)};
  CHECK(with_models(first_model{}, two, [](const auto& rows, const auto&) {
          CHECK(rows.sum([](auto at) { return at.q * at.confidence_p; }) == 0.5);
          return status::stopped;
        }) == status::stopped);
}
