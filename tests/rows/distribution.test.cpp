// SPDX-License-Identifier: Apache-2.0
#include <specagg/rows/distribution.hpp>
#include <specagg/rows/detail/blocks.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#if __has_include(<Eigen/Core>)
#include <Eigen/Core>
#endif

#include "support/catch.hpp"
#include "support/numbers.hpp"

using specagg::as_row;
using specagg::dense_row;
using specagg::indexed_row;
using specagg::one_hot_row;
using specagg::Row;
using specagg::softmax_row;
using specagg::sparse_row;
using specagg::status;
using specagg::token_id;

namespace {

// A row as kernels read it: block by block, 16 tokens at a time.
template <class R>
auto read(const R& row, bool confidence = false) {
  using T = typename R::value_type;
  using V = specagg::vec<T, 16>;
  std::vector<T> p(row.size() + 16);
  for (std::size_t begin = 0; begin < row.size(); begin += specagg::block_size) {
    const std::size_t count = std::min(row.size() - begin, specagg::block_size);
    const auto block = row.open(begin, count);
    for (std::size_t k = 0; k < count; k += 16) {
      const int lanes = int(std::min(count - k, std::size_t(16)));
      const V x = confidence ? block.template confidence<V>(k, lanes)
                             : block.template operator()<V>(k, lanes);
      x.store(&p[begin + k]);
    }
  }
  // after the last token
  for (std::size_t v = row.size(); v < (row.size() + 15) / 16 * 16; ++v) CHECK(p[v] == 0);
  p.resize(row.size());
  return p;
}

// What is read 16 at a time and one at a time: the due probabilities within a relative error.
template <class R, class Due>
void holds(const R& of, const std::vector<Due>& due, double error) {
  const auto row = normalise(of, true);
  REQUIRE(row.why() == status::ok);
  REQUIRE(row.size() == due.size());
  const auto p = read(row);
  bool equal = true, close = true;
  for (std::size_t v = 0; v < due.size(); ++v) {
    equal = equal && row[v] == p[v] && specagg::at(row, v).v == p[v];
    close = close && std::fabs(double(p[v]) - double(due[v])) <= error * double(due[v]);
  }
  CHECK(equal);
  CHECK(close);
}

template <class T>
constexpr double unit = double(std::numeric_limits<T>::epsilon()) / 2;

// `mass` spread over `size` tokens at random, every `sparsity`-th of them with any.
template <class T>
std::vector<T> probabilities(numbers& random, std::size_t size, double mass = 1,
                             std::size_t sparsity = 1) {
  std::vector<double> w(size);
  double sum = 0;
  for (std::size_t v = 0; v < size; v += sparsity) sum += w[v] = 1 - random.uniform();
  std::vector<T> p(size);
  for (std::size_t v = 0; v < size; ++v) p[v] = T(mass * w[v] / sum);
  return p;
}
template <class T>
std::vector<long double> normalised(const std::vector<T>& p) {
  long double sum = 0;
  for (const T x : p) sum += static_cast<long double>(x);
  std::vector<long double> due;
  for (const T x : p) due.push_back(static_cast<long double>(x) / sum);
  return due;
}

template <class T>
struct sparse {
  std::vector<token_id> ids;
  std::vector<T> p;
  explicit sparse(const std::vector<T>& dense) {
    for (std::size_t v = 0; v < dense.size(); ++v)
      if (dense[v] > 0) {
        ids.push_back(token_id(v));
        p.push_back(dense[v]);
      }
  }
  sparse_row<T> row(std::size_t vocabulary) const { return {ids, p, vocabulary}; }
};

// A Distribution that is only size() and operator[].
template <class T>
struct table {
  std::vector<T> p;
  std::size_t size() const { return p.size(); }
  T operator[](std::size_t v) const { return p[v]; }
};

template <class R>
status verdict(const R& row) {
  return normalise(row).why();
}

}  // namespace

TEMPLATE_TEST_CASE(
    "stored probabilities are the row, scaled to sum 1: dense, indexed and sparse alike", "", float,
    double) {
  using T = TestType;
  numbers random(1);
  for (const std::size_t size : {1u, 2u, 15u, 16u, 17u, 1000u, 1024u, 1025u, 3000u, 151936u})
    for (const double mass : {1., 1 - 0.99e-3, 1 + 0.99e-3}) {
      const auto p = probabilities<T>(random, size, mass, size > 20 && mass != 1 ? 7 : 1);
      const auto due = normalised(p);
      const double error = specagg::sum_error<T>(size) + 3 * unit<T>;
      CAPTURE(size, mass);
      holds(dense_row<T>(p), due, error);
      holds(as_row(table<T>{p}), due, error);
      holds(sparse(p).row(size), due, unit<T> * 3 + double(size) * 0x1p-53);
    }
}

TEMPLATE_TEST_CASE(
    "a row is the same row dense, indexed and sparse, as its own confidence, and normalised twice",
    "", float, double) {
  using T = TestType;
  std::vector<T> p(2500);
  p[0] = T(0.5);
  p[1023] = T(0.125);
  p[1024] = T(0.25);
  p[2499] = T(0.125);
  for (T& x : p) x *= 1 + T(0x1p-11);  // exact; the rows have to be scaled
  const sparse<T> s(p);
  const table<T> t{p};
  const auto dense = normalise(dense_row<T>(p));
  const auto indexed = normalise(as_row(t));
  const auto few = normalise(s.row(2500));
  for (int twice = 0; twice < 2; ++twice) {
    CHECK(dense.why() == status::ok);
    CHECK(indexed.why() == status::ok);
    CHECK(few.why() == status::ok);
    const auto scaled = read(dense);
    CHECK(scaled != p);
    CHECK(std::fabs(double(scaled[0]) - 0.5) <= unit<T>);
    CHECK(read(indexed) == scaled);
    CHECK(read(few) == scaled);
    CHECK((read(dense, true) == scaled && read(indexed, true) == scaled &&
           read(few, true) == scaled));
  }
  const auto hot = normalise(one_hot_row<T>(1024, 2500), true);
  CHECK(hot.why() == status::ok);
  std::vector<T> due(2500);
  due[1024] = 1;
  CHECK(read(hot) == due);
  CHECK(read(hot, true) == due);
  CHECK((hot[1023] == 0 && hot[1024] == 1 && hot[1025] == 0));
  CHECK(read(normalise(sparse(due).row(2500))) == due);
}

TEMPLATE_TEST_CASE("each defect of a row has its status, wherever it is", "", float, double) {
  using T = TestType;
  using L = std::numeric_limits<T>;
  numbers random(2);
  struct defect {
    T value;
    status due;
  };
  const std::vector<defect> defects = {
      {L::quiet_NaN(), status::invalid_row}, {L::infinity(), status::invalid_row},
      {-L::infinity(), status::invalid_row}, {T(-1e-30), status::invalid_row},
      {T(-0.5), status::invalid_row},        {T(2), status::not_normalised},
      {L::denorm_min(), status::ok},         {T(-0.0), status::ok}};
  for (const std::size_t size : {2u, 17u, 1024u, 1030u, 3100u})
    for (std::size_t v = 0; v < size; v += size > 100 ? 31 : 1)
      for (const defect& d : defects) {
        auto p = probabilities<T>(random, size);
        const std::size_t other = v ? 0 : 1;
        p[other] += p[v];
        p[v] = d.value;
        std::vector<token_id> ids(size);
        for (std::size_t i = 0; i < size; ++i) ids[i] = token_id(i);
        const status found[] = {verdict(dense_row<T>(p)), verdict(as_row(table<T>{p})),
                                verdict(sparse_row<T>(ids, p, size))};
        if (found[0] == d.due && found[1] == d.due && found[2] == d.due) continue;
        CAPTURE(size, v, d.value, name(d.due), name(found[0]), name(found[1]), name(found[2]));
        FAIL("a defect was not reported as what it is");
      }
  for (const std::size_t size : {1u, 16u, 1500u})
    for (const auto& [mass, due] : {std::pair{0., status::invalid_row},
                                    {0.9, status::not_normalised},
                                    {1.1, status::not_normalised},
                                    {1 - 1.01e-3, status::not_normalised},
                                    {1 + 1.01e-3, status::not_normalised},
                                    {1 - 0.99e-3, status::ok},
                                    {1 + 0.99e-3, status::ok},
                                    {1e-30, status::not_normalised}}) {
      const auto p = probabilities<T>(random, size, mass);
      CAPTURE(size, mass);
      CHECK(verdict(dense_row<T>(p)) == due);
      CHECK(verdict(as_row(table<T>{p})) == due);
      CHECK(verdict(sparse(p).row(size)) == due);
    }
  CHECK(verdict(dense_row<T>()) == status::invalid_row);
  CHECK(verdict(as_row(table<T>{})) == status::invalid_row);
  CHECK(verdict(sparse_row<T>()) == status::invalid_row);
  CHECK(verdict(sparse(std::vector<T>(10)).row(10)) == status::invalid_row);
  CHECK(verdict(one_hot_row<T>()) == status::invalid_row);
  CHECK(verdict(softmax_row<T>()) == status::invalid_row);
}

TEST_CASE(
    "sparse ids must ascend strictly within the vocabulary, and a bad row can be read without "
    "harm") {
  const std::vector<float> p = {0.5f, 0.25f, 0.25f};
  const auto of = [&](std::vector<token_id> ids) {
    const auto row = normalise(sparse_row<float>(ids, p, 2000));
    double touched = 0;
    for (const std::size_t v : {0u, 5u, 1023u, 1024u, 1999u}) touched += double(row[v]);
    for (const float x : read(row)) touched += double(x);
    return touched >= 0 ? verdict(row) : status::model_failed;
  };
  CHECK(of({3, 5, 1999}) == status::ok);
  CHECK(of({0, 1023, 1024}) == status::ok);
  CHECK(of({5, 3, 7}) == status::invalid_row);
  CHECK(of({1500, 3, 1999}) == status::invalid_row);
  CHECK(of({1100, 1500, 3}) == status::invalid_row);
  CHECK(of({3, 3, 7}) == status::invalid_row);
  CHECK(of({3, 5, 2000}) == status::invalid_row);
  CHECK(of({3, 5, 0x7fffffff}) == status::invalid_row);
  CHECK(of({-1, 3, 5}) == status::invalid_row);
  CHECK(of({3, -1, 5}) == status::invalid_row);
  CHECK(of({3, 5, -2147483647 - 1}) == status::invalid_row);
  CHECK(of({3, 5}) == status::invalid_row);
  CHECK(of({3, 5, 7, 9}) == status::invalid_row);
  CHECK(of({}) == status::invalid_row);
}

TEST_CASE("blocks in which a sparse or one-hot row holds nothing say so") {
  const std::vector<token_id> ids = {5, 2048, 4095};
  const std::vector<float> p = {0.5f, 0.25f, 0.25f};
  const auto row = normalise(sparse_row<float>(ids, p, 5000));
  const auto hot = normalise(one_hot_row<float>(2047, 5000)),
             later = normalise(one_hot_row<float>(2048, 5000));
  const bool row_empty[] = {false, true, false, false, true},
             hot_empty[] = {true, false, true, true, true};
  for (std::size_t b = 0; b < 5; ++b) {
    const std::size_t count = std::min<std::size_t>(1024, 5000 - 1024 * b);
    CHECK(specagg::detail::known_empty(row.open(1024 * b, count)) == row_empty[b]);
    CHECK(specagg::detail::known_empty(hot.open(1024 * b, count)) == hot_empty[b]);
    CHECK(specagg::detail::known_empty(later.open(1024 * b, count)) == (b != 2));
  }
}

TEST_CASE("a one-hot row needs a token of the vocabulary") {
  CHECK(verdict(one_hot_row<float>(0, 1)) == status::ok);
  CHECK(verdict(one_hot_row<float>(9, 10)) == status::ok);
  for (const token_id t : {10, -1, -2147483647 - 1, 2147483647}) {
    const auto row = normalise(one_hot_row<float>(t, 10));
    CHECK(verdict(row) == status::invalid_row);
    CHECK(read(row) == std::vector<float>(10));
    CHECK(row[9] == 0);
  }
}

TEMPLATE_TEST_CASE(
    "a softmax row is the softmax of its logits, with the one at temperature 1 as confidence", "",
    float, double) {
  using T = TestType;
  numbers random(3);
  for (const std::size_t size : {1u, 3u, 16u, 1000u, 1025u, 5000u})
    for (const double temperature : {0.3, 1., 2.5}) {
      std::vector<T> l(size);
      for (T& x : l) x = T(4 * random.bell());
      const auto softmax = [&](double t) {
        std::vector<long double> due;
        long double sum = 0;
        for (const T x : l) {
          due.push_back(std::exp(static_cast<long double>(x) / static_cast<long double>(t)));
          sum += due.back();
        }
        for (auto& x : due) x /= sum;
        return due;
      };
      const double error = specagg::softmax_error<T>(size) + unit<T> * (6 + 16 / temperature);
      holds(softmax_row<T>(l, temperature), softmax(temperature), error);
      const softmax_row<T> made(l.data(), size, temperature);
      const auto row = normalise(made, true), cold = normalise(made);
      CHECK(row.why() == status::ok);
      CHECK(cold.why() == status::ok);
      CHECK(row.confident());
      CHECK(cold.confident() == (temperature == 1));
      const auto confidence = read(row, true),
                 due = read([&] {
                   const auto at_temperature_1 = normalise(softmax_row<T>(l));
                   CHECK(at_temperature_1.why() == status::ok);
                   return at_temperature_1;
                 }());
      CHECK(confidence == due);
      CHECK(read(cold) == read(row));
      CHECK((read(row) == due) == (temperature == 1 || size == 1));
      CHECK(row.temperature() == temperature);
      CHECK(row.logits() == l.data());
    }
}

TEMPLATE_TEST_CASE("a softmax row finds bad logits and bad temperatures", "", float, double) {
  using T = TestType;
  using L = std::numeric_limits<T>;
  const std::vector<T> good = {1, 2, 3}, masked(5, -L::infinity());
  for (const std::size_t v : {0u, 1u, 2u})
    for (const T bad : {L::quiet_NaN(), L::infinity()}) {
      auto l = good;
      l[v] = bad;
      CHECK(verdict(softmax_row<T>(l)) == status::invalid_row);
      CHECK(verdict(softmax_row<T>(l, 0.5)) == status::invalid_row);
      softmax_row<T> cut(l, 0.5);
      cut.restrict_to({3, 2});
      CHECK(verdict(cut) == status::invalid_row);
    }
  CHECK(verdict(softmax_row<T>(masked)) == status::invalid_row);
  softmax_row<T> nothing_left(good);
  nothing_left.restrict_to({4});
  CHECK(verdict(nothing_left) == status::invalid_row);
  for (const double temperature :
       {0., -1., double(NAN), double(INFINITY), -double(INFINITY), double(L::denorm_min())}) {
    CHECK_FALSE(softmax_row<T>::usable(temperature));
    CHECK(verdict(softmax_row<T>(good, temperature)) == status::invalid_parameter);
  }
  for (const double temperature : {1e-30, 1e-3, 1e3, 1e30})
    CHECK(verdict(softmax_row<T>(good, temperature)) == status::ok);
  const std::vector<T> half_masked{-L::infinity(), 0};
  CHECK(verdict(softmax_row<T>(half_masked)) == status::ok);
}

TEMPLATE_TEST_CASE("a restricted softmax row keeps what it was told to, its confidence everything",
                   "", float, double) {
  using T = TestType;
  const std::vector<T> l = {0, 1, 1, 2, 1};
  softmax_row<T> restricted(l);
  restricted.restrict_to({1, 2});
  const auto row = normalise(restricted, true), whole = normalise(softmax_row<T>(l));
  CHECK(row.restriction.last == 2);
  REQUIRE(row.why() == status::ok);
  REQUIRE(whole.why() == status::ok);
  const auto p = read(row);
  const double e = std::exp(1.), sum = 2 + e;
  const double due[] = {0, 1 / sum, 1 / sum, e / sum, 0};
  for (std::size_t v = 0; v < 5; ++v) {
    CHECK(std::fabs(double(p[v]) - due[v]) < 1e-6);
    CHECK(row[v] == p[v]);
  }
  CHECK(read(row, true) == read(whole));
}

TEST_CASE("a confident row takes its confidence from another row of the same vocabulary") {
  const std::vector<float> l = {0, 3, 1}, p = {0.5f, 0.25f, 0.25f},
                           longer = {0.25f, 0.25f, 0.25f, 0.25f}, wrong = {1, 1, 1};
  const auto row = specagg::normalise(
      specagg::confident_row(softmax_row<float>(l, 0.5), dense_row<float>(p)), true);
  CHECK(row.why() == status::ok);
  CHECK(read(row, true) == p);
  const auto sampled = normalise(softmax_row<float>(l, 0.5));
  CHECK(sampled.why() == status::ok);
  CHECK(read(row) == read(sampled));
  CHECK(row[1] == sampled[1]);
  CHECK(row.size() == 3);
  CHECK(specagg::normalise(specagg::confident_row(dense_row<float>(p), dense_row<float>(longer)))
            .why() == status::vocabulary_mismatch);
  const specagg::confident_row bad{dense_row<float>(p), dense_row<float>(wrong)};
  CHECK(normalise(bad).why() == status::ok);
  CHECK(normalise(bad, true).why() == status::not_normalised);
  static_assert(Row<decltype(row)>);
}

TEST_CASE("arrays are rows without a copy. Temporaries live in their row") {
  std::vector<float> v = {0.25f, 0.5f, 0.25f};
  const std::vector<float>& constant = v;
  std::array<double, 2> a = {0.75, 0.25};
  const std::span<const float> s(v);
  CHECK(normalise(as_row(v)).open(0, 3).x == v.data());
  CHECK(normalise(as_row(constant)).open(0, 3).x == v.data());
  CHECK(normalise(as_row(a)).open(1, 1).x == a.data() + 1);
  CHECK(normalise(as_row(s)).open(0, 3).x == v.data());
  CHECK(normalise(as_row(std::span<float>(v))).open(0, 3).x == v.data());
  static_assert(std::is_same_v<decltype(as_row(v)), dense_row<float>>);
  static_assert(std::is_same_v<decltype(as_row(a)), dense_row<double>>);
  static_assert(std::is_same_v<decltype(as_row(s)), dense_row<float>>);
  holds(as_row(v), v, 0);
  holds(as_row(a), std::vector<double>(a.begin(), a.end()), 0);
  // numbers that are neither float nor double are read as double
  const std::vector<int> counts = {0, 1, 0};
  static_assert(std::is_same_v<decltype(as_row(counts))::value_type, double>);
  holds(as_row(counts), counts, 0);
  holds(as_row(std::vector<long double>{0.5, 0.5}), std::vector<double>{0.5, 0.5}, 0);
  holds(as_row(std::vector<float>(v)), v, 0);
  holds(as_row(std::array<double, 2>(a)), std::vector<double>(a.begin(), a.end()), 0);
  const auto kept = normalise(as_row([&] { return std::vector<float>(v); }()));
  static_assert(std::is_same_v<decltype(kept),
                               const specagg::normalised_row<indexed_row<std::vector<float>>>>);
  std::vector<float> somewhere_else(1000, 7);
  CHECK(kept.why() == status::ok);
  CHECK(read(kept) == v);
  dense_row<float> row(v);
  static_assert(std::is_same_v<decltype(as_row(row)), const dense_row<float>&>);
  CHECK(normalise(as_row(row)).open(0, 3).x == v.data());
}

TEST_CASE("what has no size or no element that is a number is no Distribution") {
  static_assert(specagg::Distribution<std::vector<float>> &&
                specagg::Distribution<const std::vector<double>&>);
  static_assert(specagg::Distribution<std::span<const float>> &&
                specagg::Distribution<table<double>>);
  static_assert(Row<dense_row<float>> && Row<sparse_row<double>> && Row<one_hot_row<float>> &&
                Row<softmax_row<float>>);
  static_assert(Row<indexed_row<table<float>>> && !Row<std::vector<float>>);
  static_assert(!specagg::Distribution<int> && !specagg::Distribution<std::list<float>> &&
                !specagg::Distribution<float*>);
  static_assert(!specagg::Distribution<std::vector<std::string>>);
  SUCCEED();
}

#if __has_include(<Eigen/Core>)
namespace {
using column_major = Eigen::MatrixXf;
using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
}  // namespace

TEST_CASE(
    "Eigen's vectors, and rows, columns and strided maps of its matrices, are Distributions") {
  const std::vector<float> p = {0.125f, 0.5f, 0.125f, 0.25f};
  Eigen::VectorXf vector = Eigen::Map<const Eigen::VectorXf>(p.data(), 4);
  Eigen::RowVectorXd wide = vector.transpose().cast<double>();
  Eigen::Vector4f fixed = vector;
  holds(as_row(vector), p, 0);
  holds(as_row(wide), p, 0);
  holds(as_row(fixed), p, 0);
  holds(as_row(Eigen::VectorXf(vector)), p, 0);
  holds(as_row(0.5f * (vector + fixed)), p, 0);
  CHECK(normalise(as_row(vector)).open(0, 4).x == vector.data());
  CHECK(normalise(as_row(wide)).open(0, 4).x == wide.data());

  column_major columns = column_major::Constant(3, 4, 9);
  row_major rows = row_major::Constant(3, 4, 9);
  columns.row(1) = vector.transpose();
  rows.row(1) = vector.transpose();
  auto column_row = columns.row(1);
  auto row_row = rows.row(1);
  holds(as_row(column_row), p, 0);
  holds(as_row(columns.row(1)), p, 0);
  holds(as_row(row_row), p, 0);
  holds(as_row(rows.row(1)), p, 0);
  CHECK(normalise(as_row(row_row)).open(0, 4).x == &rows(1, 0));
  static_assert(
      std::is_same_v<decltype(as_row(column_row)), indexed_row<const decltype(column_row)&>>);

  column_major standing = column_major::Constant(4, 3, 9);
  standing.col(2) = vector;
  auto column = standing.col(2);
  holds(as_row(column), p, 0);
  holds(as_row(standing.col(2)), p, 0);
  CHECK(normalise(as_row(column)).open(0, 4).x == &standing(0, 2));

  std::vector<float> every_third(12, 9);
  for (std::size_t v = 0; v < 4; ++v) every_third[3 * v] = p[v];
  Eigen::Map<Eigen::VectorXf, 0, Eigen::InnerStride<3>> strided(every_third.data(), 4);
  Eigen::Map<Eigen::VectorXf, 0, Eigen::InnerStride<>> at_run_time(every_third.data(), 4,
                                                                   Eigen::InnerStride<>(3));
  Eigen::Map<const Eigen::VectorXf> plain(p.data(), 4);
  holds(as_row(strided), p, 0);
  holds(as_row(at_run_time), p, 0);
  holds(as_row(plain), p, 0);
  CHECK(normalise(as_row(plain)).open(0, 4).x == p.data());
}

TEST_CASE("a large Eigen row, contiguous or strided, is the same row") {
  numbers random(4);
  const auto p = probabilities<float>(random, 5000);
  column_major columns(2, 5000);
  for (Eigen::Index v = 0; v < 5000; ++v) columns(0, v) = columns(1, v) = p[std::size_t(v)];
  const auto strided = normalise(as_row(columns.row(1)));
  const auto dense = normalise(dense_row<float>(p));
  CHECK(strided.why() == status::ok);
  CHECK(dense.why() == status::ok);
  CHECK(read(strided) == read(dense));
}
#endif
