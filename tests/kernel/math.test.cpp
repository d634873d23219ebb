// SPDX-License-Identifier: Apache-2.0
#include <specagg/kernel/math.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::exp_error;
using specagg::exp_scale;
using specagg::log_error;
using specagg::vec;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                no_number = std::numeric_limits<float>::quiet_NaN();

template <class T>
T exp_of(T x) {
  return exp(vec<T, 1>(x)).v;
}
template <class T>
T log_of(T x) {
  return log(vec<T, 1>(x)).v;
}
template <class T>
T pow_of(T x, T y) {
  return pow(vec<T, 1>(x), vec<T, 1>(y)).v;
}
template <class T>
T exp_over(T x, double temperature) {
  return exp_scaled(vec<T, 1>(x), exp_scale<T>::of_temperature(temperature)).v;
}

template <class Real>  // long double, or double where floats are judged
double relative_error(std::type_identity_t<Real> got, Real due) {
  return double(std::fabs((got - due) / due));
}

// The largest relative error over `count` arguments that `next` makes, and where it is.
template <class T, class Next, class F, class Due>
void within(double bound, int count, Next next, F f, Due due) {
  double worst = 0;
  T where = 0;
  for (int i = 0; i < count; ++i) {
    const T x = next();
    const double error = relative_error(f(x), due(static_cast<long double>(x)));
    if (!(error <= worst)) {
      worst = error;
      where = x;
    }
  }
  CAPTURE(where);
  CHECK(worst <= bound);
  CHECK(worst >= bound / 4);  // a bound that says something
}

// Every step-th float from a to b, both of one sign.
template <class F>
void for_floats(float a, float b, std::uint32_t step, F f) {
  for (std::uint64_t i = std::bit_cast<std::uint32_t>(a), end = std::bit_cast<std::uint32_t>(b);
       i <= end; i += step)
    f(std::bit_cast<float>(std::uint32_t(i)));
}

template <class T>
// below it exp is 0
constexpr T lowest_log = (specagg::least_exponent<T> - T(0.5)) * T(0.6931471805599453);

}  // namespace

TEST_CASE("exp of a float is within its stated error (every 97th float)") {
  double worst = 0;
  const auto check = [&](float x) {
    worst = std::max(worst, relative_error(exp_of(x), std::exp(double(x))));
  };
  for_floats(-0.f, lowest_log<float>, 97, check);
  for_floats(0, 0x1.62e42ep6f, 97, check);
  CHECK(worst <= exp_error<float>);
  CHECK(worst >= 0.9 * exp_error<float>);
}

TEST_CASE("log of a float is within its stated error and monotone (every 97th float)") {
  double worst = 0;
  float before = -inf;
  bool rises = true;
  for_floats(std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), 97,
             [&](float x) {
               const float y = log_of(x);
               rises = rises && y >= before;
               before = y;
               if (x != 1) worst = std::max(worst, relative_error(y, std::log(double(x))));
             });
  CHECK(rises);
  CHECK(worst <= log_error<float>);
  CHECK(worst >= 0.9 * log_error<float>);
}

TEST_CASE("exp of a double is within its stated error") {
  numbers random(1);
  const auto due = [](long double x) { return std::exp(x); };
  for (const auto& [a, b] :
       {std::array{lowest_log<double>, 0.}, {0., 709.78}, {-1., 1.}, {-0.35, 0.35}, {-1e-3, 1e-3}})
    within<double>(
        exp_error<double>, 50000, [&, a = a, b = b] { return random.between(a, b); },
        exp_of<double>, due);
  CHECK(specagg::exp(1.0) == exp_of(1.0));
}

TEST_CASE("log of a double is within its stated error, also beside 1") {
  numbers random(2);
  const auto due = [](long double x) { return std::log(x); };
  const auto bits = [&] {
    return std::ldexp(1 + random.uniform() + random.uniform() * 0x1p-32,
                      int(random.below(2045)) - 1022);
  };
  within<double>(log_error<double>, 100000, bits, log_of<double>, due);
  for (const auto& [a, b] : {std::array{0.25, 0.7}, {0.7, 1.}, {1., 1.42}, {1.42, 4.}})
    within<double>(
        log_error<double>, 50000, [&, a = a, b = b] { return random.between(a, b); },
        log_of<double>, due);
  const auto beside = [&] {
    return 1 + std::ldexp(random.bell(), -int(random.below(50)) - 2) + 0x1p-52;
  };
  for (int i = 0; i < 100000; ++i)
    if (const double x = beside(); x != 1 && relative_error(log_of(x), due(x)) > log_error<double>)
      FAIL_CHECK(x);
  CHECK(specagg::log(2.0) == log_of(2.0));
}

TEMPLATE_TEST_CASE("exp_scaled is within the error of exp at temperatures from 1e-3 to 1e3", "",
                   float, double) {
  using T = TestType;
  numbers random(3);
  for (const double temperature : {1e-3, 0.01, 0.1, 0.3, 0.7, 1., 1.3, 2., 10., 100., 1e3})
    within<T>(
        exp_error<T>, 30000,
        [&] { return T(random.uniform() * double(lowest_log<T>) * 0.999 * temperature); },
        [&](T x) { return exp_over(x, temperature); },
        [&](long double x) { return std::exp(x / static_cast<long double>(temperature)); });
}

TEMPLATE_TEST_CASE(
    "exp_scaled is exactly 1 at 0, at most 1 elsewhere, 0 from the stated cut on, NaN for NaN", "",
    float, double) {
  using T = TestType;
  numbers random(4);
  for (const double temperature : {1e-3, 0.1, 0.7, 1., 2., 1e3}) {
    CAPTURE(temperature);
    CHECK(exp_over(T(0), temperature) == 1);
    CHECK(exp_over(T(-0.0), temperature) == 1);
    CHECK(std::isnan(exp_over(T(no_number), temperature)));
    CHECK(exp_over(T(-inf), temperature) == 0);
    CHECK(exp_over(std::numeric_limits<T>::lowest(), temperature) == 0);
    CHECK(exp_scaled(vec<T, 1>(T(-3.15 * temperature)), exp_scale<T>::of_temperature(temperature),
                     T(-4))
              .v == 0);
    CHECK(exp_scaled(vec<T, 1>(T(-3.1 * temperature)), exp_scale<T>::of_temperature(temperature),
                     T(-4))
              .v > 0);
    const T edge = T(double(lowest_log<T>) * temperature);
    CHECK(exp_over(T(edge * T(1.0001)), temperature) == 0);
    CHECK(exp_over(T(edge * T(0.9999)), temperature) >= std::numeric_limits<T>::min());
    CHECK(exp_over(-std::numeric_limits<T>::min(), temperature) <= 1);
    bool inside = true;
    for (int i = 0; i < 10000; ++i) {
      const T y =
          exp_over(T(-std::ldexp(random.uniform(), int(random.below(60)) - 40)), temperature);
      inside = inside && y >= 0 && y <= 1 && (y == 0 || y >= std::numeric_limits<T>::min());
    }
    CHECK(inside);
  }
}

TEST_CASE("exp is exp_scaled at temperature 1 up to 0") {
  bool equal = true;
  for_floats(-0.f, -100, 9973, [&](float x) { equal = equal && exp_of(x) == exp_over(x, 1); });
  CHECK(equal);
}

TEMPLATE_TEST_CASE("exp and log at their special values", "", float, double) {
  using T = TestType;
  using L = std::numeric_limits<T>;
  const T infinity = L::infinity(), largest = T(std::log(static_cast<long double>(L::max())));
  const T top = std::log(static_cast<long double>(L::max())) < largest ? below(largest) : largest;
  CHECK(exp_of(T(0)) == 1);
  CHECK(exp_of(T(-0.0)) == 1);
  CHECK(exp_of(infinity) == infinity);
  CHECK(exp_of(-infinity) == 0);
  CHECK(std::isnan(exp_of(T(no_number))));
  CHECK(exp_of(L::max()) == infinity);
  CHECK(exp_of(L::lowest()) == 0);
  CHECK(exp_of(L::denorm_min()) == 1);
  CHECK(relative_error(exp_of(top), std::exp(static_cast<long double>(top))) <= exp_error<T>);
  CHECK(exp_of(above(top)) == infinity);
  CHECK(log_of(T(1)) == 0);
  CHECK_FALSE(std::signbit(log_of(T(1))));
  CHECK(log_of(T(0)) == -infinity);
  CHECK(log_of(T(-0.0)) == -infinity);
  CHECK(log_of(infinity) == infinity);
  CHECK(std::isnan(log_of(T(no_number))));
  CHECK(std::isnan(log_of(T(-1))));
  CHECK(std::isnan(log_of(-infinity)));
  for (const T subnormal : {below(L::min()), L::min() / 3, L::min() / 4096, L::denorm_min()})
    CHECK(relative_error(log_of(subnormal), std::log(static_cast<long double>(subnormal))) <=
          log_error<T>);
  CHECK(relative_error(log_of(L::min()), std::log(static_cast<long double>(L::min()))) <=
        log_error<T>);
  CHECK(relative_error(log_of(L::max()), std::log(static_cast<long double>(L::max()))) <=
        log_error<T>);
}

TEMPLATE_TEST_CASE("pow is within its stated error, x^0 and 1^y are 1", "", float, double) {
  using T = TestType;
  numbers random(5);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const T x = T(std::ldexp(1 + random.uniform(), int(random.below(40)) - 20)),
            y = T(4 * random.bell());
    const long double y_log_x = y * std::log(static_cast<long double>(x));
    if (std::fabs(y_log_x) > 80) continue;
    worst = std::max(worst, relative_error(pow_of(x, y), std::exp(y_log_x)) /
                                specagg::pow_error<T>(double(std::fabs(y_log_x))));
  }
  CHECK(worst <= 1);
  CHECK(worst >= 0.25);
  for (const T x : {T(0), T(0.3), T(1), T(7), T(inf), T(no_number)}) CHECK(pow_of(x, T(0)) == 1);
  for (const T y : {T(-300), T(0.3), T(1), T(1e30)}) CHECK(pow_of(T(1), y) == 1);
  CHECK(pow_of(T(0), T(2)) == 0);
  CHECK(pow_of(T(0), T(-2)) == T(inf));
  CHECK(pow_of(T(inf), T(0.5)) == T(inf));
  CHECK(pow_of(T(inf), T(-0.5)) == 0);
  CHECK(std::isnan(pow_of(T(-1), T(2))));
  CHECK(std::isnan(pow_of(T(2), T(no_number))));
  CHECK(specagg::pow(3.0, 1.5) == pow_of(3.0, 1.5));
}

TEMPLATE_TEST_CASE("exp, log and pow on 16 lanes are those of each lane alone", "", float, double) {
  using T = TestType;
  using V = vec<T, 16>;
  numbers random(6);
  const auto& special = nasty<T>();
  bool equal = true;
  for (int i = 0; i < 2000; ++i) {
    std::array<T, 16> x, y, e, s, l, p;
    for (std::size_t k = 0; k < 16; ++k) {
      x[k] = i < 100 ? special[random.below(special.size())]
                     : std::ldexp(T(random.bell()), int(random.below(20)) - 8);
      y[k] = i < 100 ? special[random.below(special.size())] : T(random.bell());
    }
    const auto scale = exp_scale<T>::of_temperature(0.7);
    exp(V::load(x.data())).store(e.data());
    exp_scaled(-abs(V::load(x.data())), scale).store(s.data());
    log(V::load(x.data())).store(l.data());
    pow(abs(V::load(x.data())), V::load(y.data())).store(p.data());
    for (std::size_t k = 0; k < 16; ++k)
      equal = equal && same(e[k], exp_of(x[k])) && same(l[k], log_of(x[k])) &&
              same(p[k], pow_of(std::fabs(x[k]), y[k])) &&
              same(s[k], exp_scaled(vec<T, 1>(-std::fabs(x[k])), scale).v);
  }
  CHECK(equal);
}
