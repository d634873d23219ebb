// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/exponentials.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <specagg/kernel/softmax.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::block_size;
using specagg::block_sum;
using specagg::softmax_sum;
using specagg::vec;
using specagg::detail::unit_of_sum;
using specagg::detail::weight_in_unit;

namespace {

template <class T>
constexpr T masked = -std::numeric_limits<T>::infinity();
// The temperature at which a logit is a power of two: weights are exact.
const double base_2 = specagg::detail::coefficients<double>::log2e;

// A sum as the head of kernel/reduce.hpp says, one number at a time.
template <class T>
double in_order(const std::vector<T>& x) {
  T lane[4][16] = {};
  for (std::size_t k = 0; k < x.size(); ++k) lane[k / 16 % 4][k % 16] += x[k];
  T sum[16];
  for (int i = 0; i < 16; ++i) sum[i] = (lane[0][i] + lane[1][i]) + (lane[2][i] + lane[3][i]);
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) sum[i] += sum[i + n];
  return double(sum[0]);
}
double of_blocks_in_order(const std::vector<double>& x) {
  double lane[32] = {};
  for (std::size_t b = 0; b < x.size(); ++b) lane[b % 32] += x[b];
  for (int n = 16; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) lane[i] += lane[i + n];
  return lane[0];
}

// The sum of a row by what is said of it: each block alone, in the unit of its largest logit; then
// those of the highest unit and of the one below.
template <class T>
softmax_sum<T> due(const std::vector<T>& l, double temperature, T shift = 0) {
  const T scale = specagg::exp_scale<T>::of_temperature(temperature).high;
  const auto unit_of = [&](T top) {
    return unit_of_sum<T>::of(weight_in_unit<T>::exponent(top - shift, scale));
  };
  const T top = *std::ranges::max_element(l);
  const auto highest = unit_of(top);
  std::vector<double> in_highest, below;
  for (std::size_t begin = 0; begin < l.size(); begin += block_size) {
    const std::vector<T> block(l.begin() + std::ptrdiff_t(begin),
                               l.begin() + std::ptrdiff_t(std::min(begin + block_size, l.size())));
    const auto unit = unit_of(*std::ranges::max_element(block));
    std::vector<T> w;
    for (const T x : block) w.push_back(weight_in_unit<T>(scale, unit)(vec<T, 1>(x - shift)).v);
    const double sum = in_order(w);
    in_highest.push_back(unit.index == highest.index ? sum : 0);
    below.push_back(unit.index + 1 == highest.index ? sum : 0);
  }
  const double half = std::ldexp(1, -int(unit_of_sum<T>::step / 2));
  const double all = of_blocks_in_order(in_highest) + of_blocks_in_order(below) * half * half;
  return {top, all / double(weight_in_unit<T>(scale, highest)(vec<T, 1>(top - shift)).v)};
}
template <class T>
softmax_sum<T> got(const std::vector<T>& l, double temperature) {
  return specagg::sum_exponentials(l.data(), l.size(), temperature);
}

}  // namespace

TEMPLATE_TEST_CASE("the unit of a block covers its largest weight, and units leave no gap", "",
                   float, double) {
  using T = TestType;
  using unit = unit_of_sum<T>;
  for (const std::int64_t centre :
       {std::int64_t(0), std::int64_t(unit::step - unit::below), std::int64_t(-unit::below),
        std::int64_t(unit::most), std::int64_t(-unit::most)})
    for (std::int64_t n = centre - 2000; n <= centre + 2000; ++n) {
      const unit u = unit::of(T(n));
      CHECK(u.fits(T(n)));
      CHECK_FALSE(unit{u.index + 1}.fits(T(n)));
      CHECK_FALSE(unit{u.index - 1}.fits(T(n)));
    }
  CHECK(unit::of(std::numeric_limits<T>::quiet_NaN()).index == unit::of(masked<T>).index);
  CHECK(unit::of(masked<T>).index == unit::of(T(-unit::limit)).index);
  CHECK(unit::of(-masked<T>).index == unit::of(T(unit::limit)).index);
}

TEMPLATE_TEST_CASE("a weight is the same number in every unit, or 0, and never subnormal", "",
                   float, double) {
  using T = TestType;
  using unit = unit_of_sum<T>;
  numbers random(1);
  double worst = 0;
  int zeros = 0;
  for (int round = 0; round < 20000; ++round) {
    const T scale = T(random.between(0.5, 3));
    const unit u{typename unit::whole(random.below(7)) - 3};
    const double n = double(u.exponent()) + random.between(sizeof(T) == 4 ? -140 : -1040, 110);
    const T x = T(n / double(scale));
    const long double exact = static_cast<long double>(x) * static_cast<long double>(scale) -
                              static_cast<long double>(u.exponent());  // log2
    const T w = weight_in_unit<T>(scale, u)(vec<T, 1>(x)).v;
    const bool zero = std::nearbyint(exact) <= std::numeric_limits<T>::min_exponent - 1;
    zeros += zero;
    if (zero) CHECK(w == 0);
    else CHECK(w >= std::numeric_limits<T>::min());
    if (!zero)
      worst =
          std::max(worst, std::fabs(double(static_cast<long double>(w) / std::exp2(exact) - 1)));
    // one unit higher: exactly 2^-step of it
    const T higher = weight_in_unit<T>(scale, {u.index + 1})(vec<T, 1>(x)).v;
    if (higher != 0) CHECK(std::ldexp(higher, int(unit::step)) == w);
  }
  CHECK(zeros > 100);
  // doubles: so exact are the long doubles above
  CHECK(worst < 4 * double(std::numeric_limits<T>::epsilon() / 2) + (sizeof(T) == 8) * 4e-16);
}

TEMPLATE_TEST_CASE("a weight has the same bits without a division, and added by one fma", "", float,
                   double) {
  using T = TestType;
  using V = vec<T, 1>;
  using unit = unit_of_sum<T>;
  numbers random(11);
  constexpr double most = std::numeric_limits<T>::max_exponent - 2;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const auto same = [](T a, T b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  const auto index = typename unit::whole(unit::limit / unit::step + 1);
  std::size_t zeros = 0, others = 0;
  for (int i = 0; i < 4000; ++i) {
    const T scale = T(std::exp2(most * (random.uniform() * 1.5 - 0.5)));
    const unit in{i % 4 == 0 ? -index : i % 4 == 1 ? index : typename unit::whole(i % 9 - 4)};
    const weight_in_unit<T> by_division(scale, in), by_product(scale, 1 / scale, in);
    for (int k = 0; k < 40; ++k) {
      const T n = in.exponent() + std::numeric_limits<T>::min_exponent + T(k / 8 - 3);
      T x = k % 8 == 0 ? by_division.lowest : k % 8 == 1 ? by_product.lowest : n / scale;
      for (int ulps = k % 8; ulps > 2; --ulps) x = std::nextafter(x, k % 2 ? infinity : -infinity);
      if (k == 8) x = -infinity;
      if (k == 9) x = std::numeric_limits<T>::quiet_NaN();
      const T w = by_division(V(x)).v, sum = T(random.uniform() * (k % 3 == 0 ? 1e-30 : 100));
      CAPTURE(scale, in.index, x, w);
      REQUIRE(same(w, by_product(V(x)).v));
      const auto product = by_division.product(V(x));
      REQUIRE(same(sum + w, fma(product.a, product.b, V(sum)).v));
      ++(w == 0 ? zeros : others);
    }
  }
  CHECK(zeros > 10000);
  CHECK(others > 10000);
}

TEMPLATE_TEST_CASE("the sum of a row is that of blocks which know nothing of each other", "", float,
                   double) {
  using T = TestType;
  numbers random(2);
  int units = 0;
  for (const std::size_t size : {1u, 500u, 1024u, 1025u, 3000u, 33u * 1024u, 70u * 1024u + 5u})
    for (const double apart : {0., 20., 60., 200., 900., 4000.})
      for (const double temperature : {0.1, 0.7, 1., 3.}) {
        std::vector<T> l(size);
        double centre = 0;
        for (std::size_t v = 0; v < size; ++v) {
          if (v % block_size == 0) centre = apart * random.bell();
          l[v] = T(centre + 3 * random.bell());
        }
        const T scale = specagg::exp_scale<T>::of_temperature(temperature).high;
        units +=
            unit_of_sum<T>::of(l[0] * scale).index != unit_of_sum<T>::of(l.back() * scale).index;
        CAPTURE(size, apart, temperature);
        const auto sum = got(l, temperature);
        CHECK(same(sum.total, due(l, temperature).total));
        CHECK(sum.max == *std::ranges::max_element(l));
      }
  CHECK(units > 10);
}

// A block too low to count is not summed in its own unit: what is wrong must still be found.
TEMPLATE_TEST_CASE("a NaN or +inf makes the sum NaN in a block of any unit", "", float, double) {
  using T = TestType;
  using limits = std::numeric_limits<T>;
  for (const T low : {T(0), T(-300), T(-5000)})
    for (const T wrong : {limits::quiet_NaN(), limits::infinity()})
      for (const std::size_t place : {1u, 1500u, 2999u}) {
        std::vector<T> l(3000, low);
        l[0] = l[2048] = 0;
        CHECK(got(l, 0.5).total >= 1);
        l[place] = wrong;
        CAPTURE(low, wrong, place);
        CHECK(std::isnan(got(l, 0.5).total));
      }
}

// In the unit of the block before it, the last term would be 0, and the sum would be rounded down.
TEST_CASE("a block is summed in its own unit, however little that changes") {
  std::vector<float> l(2 * block_size, masked<float>);
  l[0] = 0;
  const std::size_t b = block_size;
  l[b] = -85 - 24;       // lane 0 of accumulator 0
  l[b + 64] = -85 - 46;  // the next of it
  l[b + 8] = -85;        // lane 8
  std::vector<float> alone(l.begin() + std::ptrdiff_t(b), l.end());
  CHECK(got(alone, base_2).total == 1 + 0x1p-23);
  CHECK(got(l, base_2).total == 1 + (1 + 0x1p-23) * 0x1p-85);
  std::vector<float> turned = alone;
  turned.insert(turned.end(), l.begin(), l.begin() + std::ptrdiff_t(b));
  CHECK(same(got(turned, base_2).total, got(l, base_2).total));
}

TEMPLATE_TEST_CASE("beyond all units a row is summed relative to its largest logit", "", float,
                   double) {
  using T = TestType;
  const T far = T(unit_of_sum<T>::most) * T(0.7);  // times log2(e): beyond
  for (const T centre : {far, -far, T(1e30), T(-1e30)})
    for (const double step : {0., 1., 30.}) {
      std::vector<T> l(5000, centre);
      for (std::size_t v = 0; v < l.size(); ++v) l[v] -= T(step * double(v % 7));
      const T top = *std::ranges::max_element(l);
      CHECK(same(got(l, 1).total, due(l, 1, top).total));
      CHECK(got(l, 1).total >= 1);
    }
  // what is not beyond is not
  const std::vector<T> within(5000, T(unit_of_sum<T>::most) * T(0.6));
  CHECK(same(got(within, 1).total, due(within, 1).total));
}

TEST_CASE("the sum of n equal logits is within 3e-7 of n") {
  numbers random(4);
  double worst = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t n = 16 * (1 + random.below(64));
    const std::vector<float> l(n, float(random.between(-40, 40)));
    worst = std::max(worst, std::fabs(got(l, 1).total / double(n) - 1));
  }
  CHECK(worst < 3e-7);
  CHECK(worst > 1e-7);
}

TEMPLATE_TEST_CASE("at the highest temperatures -inf has no weight beside the lowest number", "",
                   float, double) {
  using T = TestType;
  constexpr T least = std::numeric_limits<T>::lowest();
  for (const double temperature :
       {1., double(-least) / 1e8, double(-least) / 1e6, double(-least) / 2e3}) {
    const double exact = std::exp(double(least) / temperature);
    std::vector<T> l{least, masked<T>, least};
    CHECK(got(l, temperature).total == 2);
    l.assign(2 * block_size, T(0));
    for (std::size_t v = block_size; v < l.size(); ++v) l[v] = v % 2 ? least : masked<T>;
    CHECK(got(l, temperature).total == Approx(1024 + 512 * exact).epsilon(1e-6));
  }
}

TEMPLATE_TEST_CASE("a token that has all the mass has exactly 1", "", float, double) {
  using T = TestType;
  numbers random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<T> l(3000, masked<T>);
    l[random.below(3000)] = T(random.between(-80, 80));
    CHECK(got(l, random.between(0.1, 2)).total == 1);
  }
}
