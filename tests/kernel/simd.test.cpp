// SPDX-License-Identifier: Apache-2.0
// Also tests specagg/kernel/vec.hpp and specagg/kernel/detail/simd/: registers, pairs and lanes are
// seen through the vectors that are made of them.
#include <specagg/kernel/simd.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include <specagg/half.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::vec;

namespace {

template <class T>
using lanes = std::array<T, 16>;
template <class T>
vec<T, 16> wide(const lanes<T>& x) {
  return vec<T, 16>::load(x.data());
}
template <class T>
lanes<T> narrow(vec<T, 16> x) {
  lanes<T> y;
  x.store(y.data());
  return y;
}

template <class T>
T positive_normal(T x) {
  x = std::fabs(x);
  return x >= std::numeric_limits<T>::min() && x <= std::numeric_limits<T>::max() ? x : T(1.25);
}

// f(a, b, c) on 16 lanes and on each lane alone, for every pair of nasty values and for random
// bits. `adapt` maps the inputs into the domain of f.
template <class T, class F, class Adapt>
void agrees(const char* operation, F f, Adapt adapt) {
  numbers random(1);
  const auto& special = nasty<T>();
  const std::size_t pairs = special.size() * special.size(), rounds = 2 * pairs / 16;
  for (std::size_t i = 0, pair = 0; i < rounds; ++i) {
    lanes<T> a, b, c;
    for (std::size_t k = 0; k < 16; ++k, ++pair) {
      const bool both_special = pair < pairs;
      a[k] = adapt(both_special ? special[pair / special.size()] : random.bits<T>());
      b[k] = adapt(both_special ? special[pair % special.size()] : random.bits<T>());
      c[k] = adapt(random.below(2) ? special[random.below(special.size())] : random.bits<T>());
    }
    const auto got = narrow<T>(f(wide(a), wide(b), wide(c)));
    for (std::size_t k = 0; k < 16; ++k) {
      const T one = f(vec<T, 1>(a[k]), vec<T, 1>(b[k]), vec<T, 1>(c[k])).v;
      if (same(got[k], one)) continue;
      CAPTURE(operation, k, a[k], b[k], c[k], got[k], one);
      FAIL("a lane of 16 differs from the lane alone");
    }
  }
  SUCCEED(operation);
}
template <class T, class F>
void agrees(const char* operation, F f) {
  agrees<T>(operation, f, [](T x) { return x; });
}

// round(a * b + c) in integers: nothing here can be contracted, and nothing is rounded before the
// end.
template <class T>
T exact_fma(T a, T b, T c) {
  using wide_int = unsigned __int128;
  if (!std::isfinite(a) || !std::isfinite(b) || a == 0 || b == 0) return a * b + c;
  if (!std::isfinite(c)) return c;
  const auto integer = [](T x, int& exponent) {  // |x| = result * 2^exponent
    const T m = std::frexp(std::fabs(x), &exponent);
    exponent -= std::numeric_limits<T>::digits;
    return std::uint64_t(std::ldexp(m, std::numeric_limits<T>::digits));
  };
  const auto length = [](wide_int x) {
    return x >> 64 ? 128 - std::countl_zero(std::uint64_t(x >> 64))
                   : 64 - std::countl_zero(std::uint64_t(x));
  };
  int ea = 0, eb = 0, ec = 0;
  wide_int p = wide_int(integer(a, ea)) * integer(b, eb), z = integer(c, ec);
  int ep = ea + eb;
  bool minus = std::signbit(a) != std::signbit(b), z_minus = std::signbit(c);
  ep -= 125 - length(p);
  p <<= 125 - length(p);
  if (z > 0) {
    ec -= 125 - length(z);
    z <<= 125 - length(z);
    if (ec > ep || (ec == ep && z > p)) {
      std::swap(p, z);
      std::swap(ep, ec);
      std::swap(minus, z_minus);
    }
    const int shift = ep - ec;
    // what is shifted out sticks
    z = shift > 126 ? 1 : (z >> shift) | wide_int((z >> shift) << shift != z);
    p = minus == z_minus ? p + z : p - z;
    if (p == 0) return 0;
  }
  const int drop =
      std::max(length(p) - std::numeric_limits<T>::digits,
               std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits - ep);
  wide_int kept = drop > 127 ? 0 : p >> drop;
  const wide_int rest = drop > 127 ? p : p - (kept << drop);
  const wide_int half = drop > 127 ? ~wide_int(0) : wide_int(1) << (drop - 1);
  if (rest > half || (rest == half && (kept & 1))) ++kept;
  const T magnitude = std::ldexp(T(std::uint64_t(kept)), ep + drop);
  return minus ? -magnitude : magnitude;
}

template <class T>
void rounds_once(T a, T b, T c) {
  const T due = exact_fma(a, b, c), one = fma(vec<T, 1>(a), vec<T, 1>(b), vec<T, 1>(c)).v;
  const auto sixteen = narrow<T>(fma(vec<T, 16>(a), vec<T, 16>(b), vec<T, 16>(c)));
  if (same(one, due) && same(sixteen[0], due) && same(sixteen[15], due) &&
      same(std::fma(a, b, c), due))
    return;
  CAPTURE(a, b, c, due, one, sixteen[0], sixteen[15], std::fma(a, b, c));
  FAIL("fma is not rounded once");
}

template <class T>
T tree(lanes<T> x, T (*combine)(T, T)) {  // lane i with lane i + 8, then i + 4, i + 2, i + 1
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) x[i] = combine(x[i], x[i + half]);
  return x[0];
}

}  // namespace

TEMPLATE_TEST_CASE("every operation on 16 lanes is the operation on each lane alone", "", float,
                   double) {
  using T = TestType;
  agrees<T>("a + b", [](auto a, auto b, auto) { return a + b; });
  agrees<T>("a - b", [](auto a, auto b, auto) { return a - b; });
  agrees<T>("a * b", [](auto a, auto b, auto) { return a * b; });
  agrees<T>("a / b", [](auto a, auto b, auto) { return a / b; });
  agrees<T>("-a", [](auto a, auto, auto) { return -a; });
  agrees<T>("abs", [](auto a, auto, auto) { return abs(a); });
  agrees<T>("sqrt", [](auto a, auto, auto) { return sqrt(a); });
  agrees<T>("max", [](auto a, auto b, auto) { return max(a, b); });
  agrees<T>("min", [](auto a, auto b, auto) { return min(a, b); });
  agrees<T>("positive", [](auto a, auto, auto) { return specagg::positive(a); });
  agrees<T>("fma", [](auto a, auto b, auto c) { return fma(a, b, c); });
  agrees<T>("uncontracted", [](auto a, auto, auto) { return uncontracted(a); });
  agrees<T>("a < b", [](auto a, auto b, auto c) { return select(a < b, c, a); });
  agrees<T>("a <= b", [](auto a, auto b, auto c) { return select(a <= b, c, a); });
  agrees<T>("a > b", [](auto a, auto b, auto c) { return select(a > b, c, a); });
  agrees<T>("a >= b", [](auto a, auto b, auto c) { return select(a >= b, c, a); });
  agrees<T>("a == b", [](auto a, auto b, auto c) { return select(a == b, c, a); });
  agrees<T>("& | !",
            [](auto a, auto b, auto c) { return select(((a < b) & (b < c)) | !(a < c), c, b); });
  agrees<T>("zero_where", [](auto a, auto b, auto c) { return zero_where(a < b, c); });
  agrees<T>("select by one bool",
            [](auto a, auto b, auto) { return select(true, select(false, b, a), b); });
  agrees<T>("exponent_of", [](auto a, auto, auto) { return exponent_of(a); }, positive_normal<T>);
  agrees<T>("mantissa_of", [](auto a, auto, auto) { return mantissa_of(a); }, positive_normal<T>);
  // from 1 / epsilon on, the low bits of a number are an integer
  agrees<T>(
      "shift_to_exponent", [](auto a, auto, auto) { return shift_to_exponent(a); },
      [](T x) {
        const T whole = std::floor(std::fabs(std::fmod(std::isfinite(x) ? x : 1, T(255))));
        return whole + 1 / std::numeric_limits<T>::epsilon();
      });
}

TEMPLATE_TEST_CASE(
    "arithmetic keeps the sign of zero. Max and min return the second unless the first wins", "",
    float, double) {
  using T = TestType;
  using V = vec<T, 16>;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const auto is = [](V got, T due) {
    for (const T x : narrow<T>(got)) CHECK(same(x, due));
  };
  is(-V(0), T(-0.0));
  is(-V(T(-0.0)), 0);
  is(abs(V(T(-0.0))), 0);
  is(max(V(0), V(T(-0.0))), T(-0.0));
  is(max(V(T(-0.0)), V(0)), 0);
  is(min(V(0), V(T(-0.0))), T(-0.0));
  is(max(V(nan), V(1)), 1);
  is(max(V(1), V(nan)), nan);
  is(min(V(nan), V(1)), 1);
  is(min(V(1), V(nan)), nan);
  is(specagg::positive(V(nan)), nan);
  is(specagg::positive(V(-1)), 0);
  is(specagg::positive(V(2)), 2);
}

TEMPLATE_TEST_CASE("times_exp2 is the product with a power of two, and NaN for NaN", "", float,
                   double) {
  using T = TestType;
  using L = std::numeric_limits<T>;
  // its low bits are the biased exponent of 1
  const T anchor = T(1.5) / L::epsilon() + T(L::max_exponent - 1);
  const auto of = [&](T y, T n) {
    const auto got = narrow(times_exp2(vec<T, 16>(y), vec<T, 16>(n), vec<T, 16>(anchor + n)));
    CHECK(same(got[0], got[15]));
    CHECK(same(got[0], times_exp2(vec<T, 1>(y), vec<T, 1>(n), vec<T, 1>(anchor + n)).v));
    return got[0];
  };
  bool right = true;
  for (int n = 0; n >= L::min_exponent; --n)
    for (const T y : {T(1), T(0.75), T(1.375), 1 + L::epsilon()})
      right = right && of(y, T(n)) == std::ldexp(y, n);
  CHECK(right);
  CHECK(std::isnan(of(L::quiet_NaN(), L::quiet_NaN())));
}

TEMPLATE_TEST_CASE("a mask has any lane set or none", "", float, double) {
  using T = TestType;
  lanes<T> x{};
  CHECK_FALSE(any(wide(x) > vec<T, 16>(0)));
  for (std::size_t i = 0; i < 16; ++i) {
    x[i] = 1;
    CHECK(any(wide(x) > vec<T, 16>(0)));
    x[i] = 0;
  }
  const auto first = narrow(vec<T, 16>::iota(5));
  for (std::size_t i = 0; i < 16; ++i) CHECK(first[i] == T(5 + i));
}

TEMPLATE_TEST_CASE("select takes two numbers, lane by lane", "", float, double) {
  using T = TestType;
  const auto high = vec<T, 16>::iota(0) > vec<T, 16>(7);
  const auto y = narrow(select(high, 1, 0.25));
  for (std::size_t i = 0; i < 16; ++i) CHECK(y[i] == (i > 7 ? T(1) : T(0.25)));
  CHECK(select(vec<T, 1>(3) < vec<T, 1>(2), 0, 1).v == 1);
}
static std::size_t mask = 0;  // a name that users have
static std::size_t name_of_users() {
  using namespace specagg;
  return mask;
}
TEST_CASE("the namespace has no name `mask`") { CHECK(name_of_users() == 0); }

TEMPLATE_TEST_CASE(
    "fma rounds once: ties, near ties, cancellation, subnormal results, overflow, NaN", "", float,
    double) {
  using T = TestType;
  constexpr int digits = std::numeric_limits<T>::digits,
                lowest = std::numeric_limits<T>::min_exponent - digits;
  constexpr int highest = std::numeric_limits<T>::max_exponent;
  numbers random(2);
  for (const T a : nasty<T>())
    for (const T b : nasty<T>())
      for (const T c : nasty<T>()) rounds_once(a, b, c);
  const auto near_one = [&] {
    return std::fma(T(int(random.below(9)) - 4), std::numeric_limits<T>::epsilon(), T(1));
  };
  const auto mantissa = [&] {
    return 1 + T(random.uniform()) + T(random.uniform()) * std::numeric_limits<T>::epsilon();
  };
  const auto sign = [&](T x) { return random.below(2) ? -x : x; };
  for (int i = 0; i < 100000; ++i) {
    rounds_once(random.bits<T>(), random.bits<T>(), random.bits<T>());
    // c, and a product of about half its last place: a tie but for a few units of 2^(-2 digits)
    const int e = int(random.below(40)) - 20, gap = digits - 2 + int(random.below(5));
    const T c = std::ldexp(random.below(2) ? near_one() : mantissa(), e);
    rounds_once(sign(std::ldexp(near_one(), e - gap)), near_one(), c);
    rounds_once(sign(std::ldexp(mantissa(), e - gap)), mantissa(), c);
    // c takes off all of the product but its last places
    const T a = sign(mantissa()), b = mantissa();
    rounds_once(a, b, -(a * b));
    rounds_once(a, b, -(a * b) * near_one());
    // around the smallest and the largest numbers
    const int half = lowest / 2 + int(random.below(30)) - 2;
    rounds_once(std::ldexp(a, half),
                std::ldexp(b, lowest - half + int(random.below(std::size_t(digits) + 4)) - 3),
                sign(std::ldexp(mantissa(), lowest + int(random.below(std::size_t(digits) + 4)))));
    rounds_once(std::ldexp(a, highest / 2), std::ldexp(b, highest / 2 - int(random.below(3))),
                sign(std::ldexp(mantissa() / 2, highest - int(random.below(3)))));
  }
  SUCCEED();
}

// The way without the instruction, which this machine may never take: nasty numbers, and products
// of about half the last place of c, of which many round twice.
TEST_CASE("the emulated fma rounds once, one lane at a time and in registers") {
  numbers random(5);
  std::size_t wrong = 0, twice = 0;
  const auto check = [&](const lanes<float>& a, const lanes<float>& b, const lanes<float>& c) {
    lanes<float> got;
    for (std::size_t k = 0; k < 16; ++k) got[k] = specagg::detail::emulated_fused(a[k], b[k], c[k]);
    const auto agree = [&](const lanes<float>& x) {
      for (std::size_t k = 0; k < 16; ++k) {
        const float due = exact_fma(a[k], b[k], c[k]);
        wrong += !same(x[k], due);
        twice += !same(float(double(a[k]) * double(b[k]) + double(c[k])), due);
      }
    };
    agree(got);
#if SPECAGG_ISA_ID <= 1 && SPECAGG_ASKS_FOR_FMA
    agree(narrow<float>(fma_emulated(wide(a), wide(b), wide(c))));
#endif
  };
  const auto& special = nasty<float>();
  for (std::size_t i = 0; i < special.size() * special.size(); ++i) {
    lanes<float> a, b, c;
    for (std::size_t k = 0; k < 16; ++k) {
      a[k] = special[i / special.size()];
      b[k] = special[i % special.size()];
      c[k] = special[random.below(special.size())];
    }
    check(a, b, c);
  }
  for (int i = 0; i < 40000; ++i) {
    lanes<float> a, b, c;
    for (std::size_t k = 0; k < 16; ++k) {
      const auto near_one = [&] { return 1 + float(int(random.below(9)) - 4) * 0x1p-23f; };
      const bool subnormal = i % 4 == 0;  // and the product half of the least one
      const int e = int(random.below(40)) - 20,
                of_product = subnormal ? -150 : e - 22 - int(random.below(5));
      c[k] = subnormal ? float(random.below(1 << 23)) * 0x1p-149f : std::ldexp(near_one(), e);
      a[k] = std::ldexp(random.below(2) ? near_one() : -near_one(), of_product / 2);
      b[k] = std::ldexp(near_one(), of_product - of_product / 2);
    }
    check(a, b, c);
  }
  CHECK(wrong == 0);
  CHECK(twice > 1000);  // without the second look these would be wrong
}

TEST_CASE("doubles outside the lanes have the same fma") {
  CHECK(specagg::fma(1 + 0x1p-52, 1 - 0x1p-53, -1.) == exact_fma(1 + 0x1p-52, 1 - 0x1p-53, -1.));
  CHECK(specagg::fma(1 + 0x1p-52, 1 - 0x1p-53, -1.) == 0x1p-53 - 0x1p-105);
}

TEMPLATE_TEST_CASE(
    "a double is stored as the nearest half or bfloat16, of two the even one, rounded once", "",
    specagg::f16, specagg::bf16) {
  using S = TestType;
  constexpr bool half = std::is_same_v<S, specagg::f16>;
  constexpr std::uint32_t infinity = half ? 0x7c00 : 0x7f80;
  constexpr double beyond = half ? 0x1p16 : 0x1p128;  // what infinity would be, were it a number
  const auto value = [&](std::uint32_t bits) {
    return bits == infinity ? beyond : double(specagg::detail::number(S{std::uint16_t(bits)}));
  };
  const auto gives = [](double x, std::uint32_t bits) {
    return specagg::detail::stored<S>(x).bits == bits &&
           specagg::detail::stored<S>(-x).bits == (bits | 0x8000u);
  };
  std::size_t wrong = 0;
  for (std::uint32_t low = 0; low < infinity; ++low) {
    const double middle = (value(low) + value(low + 1)) / 2;  // exact
    wrong += !gives(value(low), low) || !gives(middle, low % 2 ? low + 1 : low);
    wrong += !gives(std::nextafter(middle, 0.), low) ||
             !gives(std::nextafter(middle, HUGE_VAL), low + 1);
  }
  CHECK(wrong == 0);
  for (const double x : {beyond, 1e300, std::numeric_limits<double>::infinity()})
    CHECK(gives(x, infinity));
  CHECK(gives(std::numeric_limits<double>::denorm_min(), 0));
  CHECK(std::isnan(specagg::detail::number(specagg::detail::stored<S>(std::nan("")))));
}

TEST_CASE("floats are stored as the nearest half, of two the even one, in every lane") {
  std::vector<float> numbers = {65519.996f,
                                65520,
                                1e30f,
                                std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::denorm_min(),
                                std::nanf("")};
  for (std::uint32_t low = 0; low < 0x7bff; ++low) {
    const auto value = [](std::uint32_t bits) {
      return specagg::detail::number(specagg::f16{std::uint16_t(bits)});
    };
    const float middle = (value(low) + value(low + 1)) / 2;  // exact
    for (const float x : {value(low), middle, below(middle), above(middle)}) numbers.push_back(x);
  }
  numbers.resize((numbers.size() + 15) / 16 * 16);
  std::size_t wrong = 0;
  for (const float sign : {1.f, -1.f})
    for (std::size_t i = 0; i < numbers.size(); i += 16) {
      lanes<float> x;
      specagg::f16 one, all[16];
      for (std::size_t k = 0; k < 16; ++k) x[k] = std::copysign(numbers[i + k], sign);
      wide(x).store(all);
      for (std::size_t k = 0; k < 16; ++k) {
        vec<float, 1>(x[k]).store(&one);
        const auto due = specagg::detail::stored<specagg::f16>(double(x[k])).bits;
        wrong += one.bits != due || all[k].bits != due;
      }
    }
  CHECK(wrong == 0);
}

TEST_CASE("every half, every bfloat16 and every 8-bit integer loads as its value, in every lane") {
  const auto value_of_half = [](std::uint32_t h) {
    const std::uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
    const float magnitude =
        exponent == 31  ? fraction ? std::nanf("") : std::numeric_limits<float>::infinity()
        : exponent == 0 ? std::ldexp(float(fraction), -24)
                        : std::ldexp(float(1024 + fraction), int(exponent) - 25);
    return h >> 15 ? -magnitude : magnitude;
  };
  bool halves = true, bfloats = true, integers = true;
  std::array<std::uint16_t, 17> x;  // loaded from an odd place too
  std::array<std::int8_t, 17> y;
  for (std::uint32_t h = 0; h < 65536 + 16; h += 16)
    for (std::size_t shift = 0; shift < 2; ++shift) {
      for (std::uint32_t k = 0; k < 16; ++k) {
        x[shift + k] = std::uint16_t(h + k);
        y[shift + k] = std::int8_t(h + k);
      }
      const auto* h16 = reinterpret_cast<const specagg::f16*>(&x[shift]);
      const auto* b16 = reinterpret_cast<const specagg::bf16*>(&x[shift]);
      const auto f16 = narrow(vec<float, 16>::load(h16)), bf16 = narrow(vec<float, 16>::load(b16));
      const auto i8 = narrow(vec<float, 16>::load_i8(&y[shift]));
      for (std::size_t k = 0; k < 16; ++k) {
        const float half = value_of_half(x[shift + k]);
        const float bfloat = std::bit_cast<float>(std::uint32_t(x[shift + k]) << 16);
        halves = halves && same(f16[k], half) && same(vec<float, 1>::load(h16 + k).v, half);
        bfloats = bfloats && same(bf16[k], bfloat) && same(vec<float, 1>::load(b16 + k).v, bfloat);
        integers = integers && i8[k] == float(y[shift + k]) &&
                   vec<float, 1>::load_i8(&y[shift + k]).v == i8[k];
      }
    }
  CHECK(halves);
  CHECK(bfloats);
  CHECK(integers);
}

TEMPLATE_TEST_CASE("loads and stores touch their own elements and nothing beside them", "", float,
                   double) {
  using T = TestType;
  using V = vec<T, 16>;
  const fenced<T> memory(16);
  for (int n = 0; n <= 16; ++n)
    for (T* const x : {memory.begin(), memory.end() - n}) {
      for (int i = 0; i < n; ++i) x[i] = T(i + 1);
      const auto got = narrow(V::load_partial(x, n, T(-7)));
      for (int i = 0; i < 16; ++i) CHECK(got[std::size_t(i)] == (i < n ? T(i + 1) : T(-7)));
      CHECK(vec<T, 1>::load_partial(x, n, T(-7)).v == (n > 0 ? T(1) : T(-7)));
    }
  for (T* const x : {memory.begin(), memory.end() - 16}) {
    V::iota(3).store(x);
    CHECK(narrow(V::load(x)) == narrow(V::iota(3)));
  }
  const fenced<std::uint16_t> halves(16);
  for (auto* const x : {halves.begin(), halves.end() - 16})
    vec<float, 16>(0).store(reinterpret_cast<specagg::f16*>(x));
  const fenced<std::int8_t> bytes(16);
  for (const int from_end : {0, 1}) {
    const auto* h = from_end ? halves.end() - 16 : halves.begin();
    const auto* b = from_end ? bytes.end() - 16 : bytes.begin();
    CHECK(reduce_max(vec<float, 16>::load(reinterpret_cast<const specagg::f16*>(h))) == 0);
    CHECK(reduce_max(vec<float, 16>::load(reinterpret_cast<const specagg::bf16*>(h))) == 0);
    CHECK(reduce_max(vec<float, 16>::load_i8(b)) == 0);
  }
}

TEMPLATE_TEST_CASE("reduce_add and reduce_max combine lane i with lane i + 8, i + 4, i + 2, i + 1",
                   "", float, double) {
  using T = TestType;
  numbers random(3);
  const auto& special = nasty<T>();
  for (int round = 0; round < 3000; ++round) {
    lanes<T> x;
    for (T& v : x)
      v = round % 3 == 0   ? T(random.bell())
          : round % 3 == 1 ? std::ldexp(T(random.bell()), int(random.below(60)) - 30)
                           : special[random.below(special.size())];
    const T sum = reduce_add(wide(x)), due = tree<T>(x, [](T a, T b) { return a + b; });
    const T top = reduce_max(wide(x)), top_due = tree<T>(x, [](T a, T b) { return a > b ? a : b; });
    if (same(sum, due) && same(top, top_due)) continue;
    CAPTURE(round, sum, due, top, top_due);
    FAIL("another order");
  }
  CHECK(reduce_add(vec<T, 1>(3)) == 3);
  CHECK(reduce_max(vec<T, 1>(3)) == 3);
}
