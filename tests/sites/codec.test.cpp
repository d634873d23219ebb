// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/detail/bits.hpp>
#include <specagg/sites/codec.hpp>

#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/grid.hpp>
#include <specagg/policy/lossless.hpp>

#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::sites;
using namespace specagg::sites::detail;
using values = row_codec::values;

namespace {

template <class T>
struct memory {
  std::vector<token_id> ids;
  std::vector<T> mass;
  std::vector<std::uint8_t> bytes;
  explicit memory(const row_codec& c)
      : ids(c.max_tokens()), mass(c.vocabulary), bytes(c.max_bytes<T>()) {}
};

// A softmax of pseudo-random logits; peaked for a large spread.
template <class T>
std::vector<T> random_row(std::size_t size, std::uint64_t seed, double spread) {
  const random_streams noise(seed);
  std::vector<T> logits(size), row(size);
  for (std::size_t v = 0; v < size; ++v) logits[v] = T(-spread * noise.noise(0, token_id(v)));
  const auto soft = normalise(softmax_row<T>(logits));
  REQUIRE(soft.why() == status::ok);
  for (std::size_t v = 0; v < size; ++v) row[v] = soft[v];
  return row;
}
template <class T>
std::vector<T> dense(const sparse_row<T>& row) {
  std::vector<T> x(row.size());
  const typename sparse_row<T>::facts as_it_is;  // not normalised
  for (std::size_t v = 0; v < x.size(); ++v)
    x[v] = row.open(as_it_is, v, 1).template operator()<vec<T, 1>>(0, 1).v;
  return x;
}
template <class T>
double distance(const std::vector<T>& a, const std::vector<T>& b) {
  double sum = 0;
  for (std::size_t v = 0; v < a.size(); ++v) sum += std::fabs(double(a[v]) - double(b[v])) / 2;
  return sum;
}
double log2_binomial(double n, double k) {
  return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2);
}

std::vector<row_codec> codecs(std::size_t vocabulary) {
  std::vector<row_codec> all;
  for (const auto format : {values::full, values::half})
    for (const std::uint32_t k : {0u, 1u, 3u, 40u})
      for (const double p : {1.0, 0.8})
        all.push_back({.vocabulary = vocabulary, .format = format, .top_k = k, .top_p = p});
  for (const std::uint32_t k : {1u, 2u, 8u, 64u})
    for (const std::uint32_t l : {1u, 7u, 64u, 65536u})
      all.push_back({.vocabulary = vocabulary,
                     .format = values::counts,
                     .top_k = k,
                     .top_p = k == 2 ? 0.9 : 1.0,
                     .total = l});
  return all;
}

}  // namespace

// What a first message is decoded against, before anything is agreed.
static_assert(row_codec{}.max_bytes<float>() == 0);

TEST_CASE("quantised drafts: V = 32000, K = 8, l = 64 take 17 bytes") {
  const row_codec codec{.vocabulary = 32000, .format = values::counts, .top_k = 8, .total = 64};
  CHECK(codec.max_bytes<float>() == 17);
  memory<float> m(codec);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto coded = encode(codec, random_row<float>(32000, seed, 10), m.bytes, m.ids, m.mass);
    REQUIRE(coded.why == status::ok);
    CHECK(coded.bytes == 17);
  }
}
TEST_CASE("counts are never longer than log2 C(V, K) + log2 C(l + K - 1, K - 1) bits") {
  for (const std::size_t v : {8u, 100u, 32000u, 151936u})
    for (const std::uint32_t k : {1u, 2u, 8u, 32u, 64u})
      for (const std::uint32_t l : {1u, 16u, 64u, 1024u, 65536u}) {
        const row_codec codec{.vocabulary = v, .format = values::counts, .top_k = k, .total = l};
        const double kept = double(std::min<std::size_t>(k, v));
        const double bound = log2_binomial(double(v), kept) + log2_binomial(l + kept - 1, kept - 1);
        CHECK(double(codec.max_bytes<float>()) <= std::ceil(bound / 8 - 1e-9));
      }
  constexpr row_codec largest{.vocabulary = (std::size_t(1) << 31) - 1,
                              .format = values::counts,
                              .top_k = 64,
                              .total = 65536};
  CHECK(largest.max_bytes<float>() == 301);
}
TEST_CASE("counts are a nearest row of the lattice: no other has a smaller largest error") {
  for (const auto& p : eighths<double>())
    for (const std::uint32_t l : {1u, 2u, 3u, 5u, 8u, 11u}) {
      const row_codec codec{.vocabulary = 3, .format = values::counts, .top_k = 3, .total = l};
      memory<double> m(codec);
      const auto coded = encode(codec, p, m.bytes, m.ids, m.mass);
      REQUIRE(coded.why == status::ok);
      const auto error = [&](double a, double b, double c) {
        return std::max(
            {std::fabs(a / l - p[0]), std::fabs(b / l - p[1]), std::fabs(c / l - p[2])});
      };
      double best = 1;
      for (std::uint32_t a = 0; a <= l; ++a)
        for (std::uint32_t b = 0; a + b <= l; ++b) best = std::min(best, error(a, b, l - a - b));
      CHECK(error(coded.row[0] * l, coded.row[1] * l, coded.row[2] * l) <= best + 1e-12);
    }
}
TEST_CASE("every row of counts on a small lattice has its own number, and every number is a row") {
  for (const std::uint32_t k : {1u, 2u, 4u})
    for (const std::uint32_t l : {1u, 3u, 6u}) {
      const row_codec codec{.vocabulary = 4, .format = values::counts, .top_k = k, .total = l};
      const natural all = sites::detail::all_counted_rows(codec);
      std::uint32_t rows = 0;
      std::vector<std::vector<double>> seen;
      memory<double> m(codec);
      for (natural rank; rank < all; rank += 1, ++rows) {
        rank.write(m.bytes);
        const auto bytes = m.bytes;
        const auto coded = decode<double>(codec, bytes, m.ids, m.mass);
        REQUIRE(coded.why == status::ok);
        const auto row = dense(coded.row);
        for (const auto& other : seen) CHECK(distance(row, other) > 0.1 / l);
        seen.push_back(row);
      }
      std::uint32_t due = 0;  // rows of at most k tokens whose counts sum to l
      for (std::uint32_t a = 0; a <= l; ++a)
        for (std::uint32_t b = 0; a + b <= l; ++b)
          for (std::uint32_t c = 0; a + b + c <= l; ++c)
            due += (a > 0) + (b > 0) + (c > 0) + (l > a + b + c) <= int(k);
      CHECK(rows == due);
      if (std::size_t bits = 8 * m.bytes.size(); all.bits() <= bits && bits > 0) {
        all.write(m.bytes);
        natural written = natural::read(m.bytes);
        if (written == all)
          CHECK(decode<double>(codec, m.bytes, m.ids, m.mass).why == status::invalid_row);
      }
    }
}
TEMPLATE_TEST_CASE("encode(decode(x)) = x for every codec, and both ends hold the same bits", "",
                   float, double) {
  using T = TestType;
  for (const std::size_t size : {1u, 2u, 16u, 50u, 1500u})
    for (const row_codec& codec : codecs(size))
      for (const double spread : {0.0, 0.3, 4.0, 30.0}) {
        const auto row = random_row<T>(size, 7, spread);
        memory<T> here(codec), there(codec);
        const auto sent = encode(codec, row, here.bytes, here.ids, here.mass);
        REQUIRE(sent.why == status::ok);
        REQUIRE(sent.bytes <= here.bytes.size());
        const auto bytes = std::span<const std::uint8_t>(here.bytes).first(sent.bytes);
        const auto got = decode<T>(codec, bytes, std::span(there.ids).first(codec.max_tokens()),
                                   std::span(there.mass).first(codec.max_tokens()));
        REQUIRE(got.why == status::ok);
        CHECK(got.bytes == sent.bytes);
        CHECK(dense(got.row) == dense(sent.row));
        std::size_t n = 0;
        for (const T x : dense(got.row)) n += x > 0;
        const auto again = encode<T>(codec, std::span<const token_id>(there.ids).first(n),
                                     std::span<const T>(there.mass).first(n), there.bytes);
        REQUIRE(again.why == status::ok);
        CHECK(again.bytes == sent.bytes);
        CHECK(std::equal(bytes.begin(), bytes.end(), there.bytes.begin()));
      }
}
TEST_CASE("full rows without truncation are the row. Halves are within 2^-11 of each probability") {
  const auto row = random_row<float>(3000, 3, 2);
  const row_codec full{.vocabulary = 3000}, half{.vocabulary = 3000, .format = values::half};
  memory<float> a(full), b(half);
  const auto x = encode(full, row, a.bytes, a.ids, a.mass),
             y = encode(half, row, b.bytes, b.ids, b.mass);
  CHECK(x.bytes == 12000);
  CHECK(y.bytes == 6000);
  for (std::size_t v = 0; v < row.size(); ++v) {
    CHECK(x.row[v] == Approx(row[v]).epsilon(2e-7));
    if (row[v] > 1e-8) CHECK(y.row[v] == Approx(row[v]).epsilon(0x1p-10));
  }
}
TEST_CASE("halves convert like the hardware: every half is a fixed point, ties go to even") {
  for (std::uint32_t h = 0; h <= sites::detail::half_of_top; ++h) {
    const double x = sites::detail::units_of_half(h) * 0x1p-24;
    CHECK(x == double(specagg::detail::float_of_f16(std::uint16_t(h))));
    CHECK(sites::detail::half_of(x) == h);
    if (h < sites::detail::half_of_top) {
      const double middle = (x + sites::detail::units_of_half(h + 1) * 0x1p-24) / 2;
      CHECK(sites::detail::half_of(middle) == h + h % 2);
      CHECK(sites::detail::half_of(std::nextafter(middle, 0)) == h);
      CHECK(sites::detail::half_of(std::nextafter(middle, 1e9)) == h + 1);
    }
  }
}
TEST_CASE("top-k and top-p keep what `sampling` keeps") {
  std::vector<float> logits(2000);
  const random_streams noise(5);
  for (std::size_t v = 0; v < logits.size(); ++v)
    logits[v] = float(-int(8 * noise.noise(0, token_id(v)))) / 8;  // with ties
  for (const std::uint32_t k : {0u, 1u, 17u, 500u, 1500u})
    for (const double p : {0.1, 0.8, 1.0}) {
      const auto due = normalise(processed_row<float>(logits, {.top_k = k, .top_p = p}));
      REQUIRE(due.why() == status::ok);
      softmax_row<float> row(logits);
      const row_codec codec{.vocabulary = 2000, .top_k = k, .top_p = p};
      memory<float> m(codec);
      const auto coded = encode(codec, row, m.bytes, m.ids, m.mass);
      REQUIRE(coded.why == status::ok);
      for (std::size_t v = 0; v < logits.size(); ++v)
        CHECK(coded.row[v] == Approx(due[v]).epsilon(1e-5));
    }
}
TEST_CASE("a top-p of next to nothing keeps one token") {
  const std::vector<float> row(4, 0.25f);
  const row_codec codec{.vocabulary = 4, .top_k = 1, .top_p = 5e-324};
  memory<float> m(codec);
  const auto coded = encode(codec, dense_row<float>(row), m.bytes, m.ids, m.mass);
  REQUIRE(coded.why == status::ok);
  CHECK(coded.row[0] == 1);
}
TEST_CASE("truncated bytes are an invalid_row, every length of them") {
  for (const row_codec& codec : codecs(60)) {
    memory<float> m(codec);
    const auto coded = encode(codec, random_row<float>(60, 1, 1), m.bytes, m.ids, m.mass);
    for (std::size_t n = 0; n < coded.bytes; ++n) {
      const std::vector<std::uint8_t> shorter(m.bytes.begin(),
                                              // reading on is seen by ASan
                                              m.bytes.begin() + std::ptrdiff_t(n));
      memory<float> other(codec);
      const auto got = decode<float>(codec, shorter, other.ids, other.mass);
      CHECK(got.why != status::ok);
      CHECK(got.row.size() == 0);
    }
  }
}
TEST_CASE(
    "ids out of range, wrong sums, negative, infinite or NaN numbers and stray bits each get their "
    "status") {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  const auto why = [](const row_codec& codec, const auto&... numbers) {
    std::vector<std::uint8_t> bytes(100);
    sites::detail::bit_writer to(bytes);
    (to.put(numbers.first, numbers.second), ...);
    memory<float> m(codec);
    return decode<float>(codec, std::span(bytes).first(to.finish()), m.ids, m.mass).why;
  };
  const auto number = [](float x) {
    return std::pair(std::uint64_t(specagg::detail::bit_cast<std::uint32_t>(x)), 32);
  };
  const row_codec dense2{.vocabulary = 2}, list{.vocabulary = 3, .top_k = 2};
  CHECK(why(dense2, number(0.25f), number(0.75f)) == status::ok);
  CHECK(why(dense2, number(0.25f), number(0.7f)) == status::not_normalised);
  CHECK(why(dense2, number(0), number(0)) == status::invalid_row);
  for (const float bad : {nan, inf, -0.25f, -inf, -0.f})
    CHECK(why(dense2, number(bad), number(1)) == status::invalid_row);
  // vocabulary 3, list of k (2 bits); for k = 1 a gap has 1 low bit after its unary part, for k = 2
  // none
  const auto b = [](std::uint64_t x, int n) { return std::pair(x, n); };
  // token 1
  CHECK(why(list, b(1, 2), b(0, 1), b(1, 1), number(1)) == status::ok);
  // token 3
  CHECK(why(list, b(1, 2), b(1, 2), b(1, 1), number(1)) == status::token_out_of_range);
  // no token
  CHECK(why(list, b(0, 2), number(1)) == status::invalid_row);
  // more than K
  CHECK(why(list, b(3, 2), b(0, 3), number(1), number(1), number(1)) == status::invalid_row);
  // a token without mass
  CHECK(why(list, b(1, 2), b(0, 2), number(0)) == status::invalid_row);
  // a stray bit
  CHECK(why(list, b(1, 2), b(0, 1), b(1, 1), number(1), b(8, 4)) == status::invalid_row);
  const row_codec halves{.vocabulary = 2, .format = values::half};
  CHECK(why(halves, b(0x7800, 16), b(1, 16)) == status::ok);
  // not relative to the largest
  CHECK(why(halves, b(0x77ff, 16), b(1, 16)) == status::invalid_row);
  for (const std::uint64_t bad : {0x7801u, 0x7c00u, 0x7e00u, 0x8000u, 0xffffu})
    CHECK(why(halves, b(0x7800, 16), b(bad, 16)) == status::invalid_row);
  // 3 + 3 * 3 rows
  const row_codec counts{.vocabulary = 3, .format = values::counts, .top_k = 2, .total = 4};
  CHECK(why(counts, b(11, 8)) == status::ok);
  CHECK(why(counts, b(12, 8)) == status::invalid_row);
}
TEST_CASE(
    "a codec out of range, too little memory and rows of another vocabulary get their status") {
  memory<float> m(row_codec{.vocabulary = 4});
  const std::vector<float> row(4, 0.25f), three(3, 0.25f);
  const auto why = [&](const row_codec& c) { return encode(c, row, m.bytes, m.ids, m.mass).why; };
  CHECK(why({.vocabulary = 4}) == status::ok);
  CHECK(why({.vocabulary = 0}) == status::invalid_parameter);
  CHECK(why({.vocabulary = 4, .top_p = 0}) == status::invalid_parameter);
  CHECK(why({.vocabulary = 4, .format = values::counts}) == status::invalid_parameter);
  CHECK(why({.vocabulary = 4, .format = values::counts, .top_k = 65, .total = 8}) ==
        status::invalid_parameter);
  CHECK(why({.vocabulary = 4, .format = values::counts, .top_k = 2, .total = 65537}) ==
        status::invalid_parameter);
  CHECK(why({.vocabulary = 3}) == status::vocabulary_mismatch);
  CHECK(encode(row_codec{.vocabulary = 4}, three, m.bytes, m.ids, m.mass).why ==
        status::vocabulary_mismatch);
  CHECK(encode(row_codec{.vocabulary = 4}, row, std::span(m.bytes).first(15), m.ids, m.mass).why ==
        status::invalid_parameter);
  CHECK(encode(row_codec{.vocabulary = 4}, row, m.bytes, std::span(m.ids).first(3), m.mass).why ==
        status::invalid_parameter);
  CHECK(
      encode(row_codec{.vocabulary = 4}, std::vector<float>(4, NAN), m.bytes, m.ids, m.mass).why ==
      status::invalid_row);
}
TEST_CASE("rows follow each other in one buffer") {
  const row_codec codec{.vocabulary = 50, .format = values::half, .top_p = 0.9};
  memory<float> m(codec);
  std::vector<std::uint8_t> all;
  std::vector<std::vector<float>> rows;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto coded = encode(codec, random_row<float>(50, seed, 1), m.bytes, m.ids, m.mass);
    all.insert(all.end(), m.bytes.begin(), m.bytes.begin() + std::ptrdiff_t(coded.bytes));
    rows.push_back(dense(coded.row));
  }
  std::span<const std::uint8_t> rest = all;
  for (const auto& row : rows) {
    const auto coded = decode<float>(codec, rest, m.ids, m.mass);
    REQUIRE(coded.why == status::ok);
    CHECK(dense(coded.row) == row);
    rest = rest.subspan(coded.bytes);
  }
  CHECK(rest.empty());
}
TEST_CASE("bytes of each codec at V = 32000") {
  std::vector<float> row(32000);
  double sum = 0;
  for (std::size_t v = 1; v <= row.size(); ++v) sum += std::pow(double(v), -1.5);
  for (std::size_t v = 0; v < row.size(); ++v)
    row[v * 7919 % 32000] = float(std::pow(double(v + 1), -1.5) / sum);
  const auto report = [&](const char* name, const row_codec& codec) {
    memory<float> m(codec);
    const auto coded = encode(codec, row, m.bytes, m.ids, m.mass);
    REQUIRE(coded.why == status::ok);
    std::printf("%-30s %7zu bytes, at most %7zu, TV from the row %.4f\n", name, coded.bytes,
                m.bytes.size(), distance(dense(coded.row), row));
  };
  report("full", {.vocabulary = 32000});
  report("half", {.vocabulary = 32000, .format = values::half});
  report("half, top-p 0.8", {.vocabulary = 32000, .format = values::half, .top_p = 0.8});
  report("half, top-k 8", {.vocabulary = 32000, .format = values::half, .top_k = 8});
  report("counts, K 8, l 64",
         {.vocabulary = 32000, .format = values::counts, .top_k = 8, .total = 64});
  report("counts, K 64, l 1024",
         {.vocabulary = 32000, .format = values::counts, .top_k = 64, .total = 1024});
}

// ---- the decoded row is the row -----------------------------------------------------------------

namespace {

// Emits p when drafts come from `drafted(q)` and verification sees the decoded row: the worst error
// on the 1/8 grid.
template <class Drafted>
double worst_with(const row_codec& codec, Drafted drafted) {
  memory<double> m(codec);
  const auto decoded = [&](const std::array<double, 3>& q) {
    const auto coded = encode(codec, q, m.bytes, m.ids, m.mass);
    if (coded.why != status::ok) return std::vector<double>();
    return dense(coded.row);
  };
  double worst = 0;
  for (const auto& q : eighths<double>()) {
    const std::vector<double> row = decoded(q);
    for (const auto& p : eighths<double>()) {
      const auto q_model = [&](const std::vector<token_id>&) { return drafted(row, q); };
      const auto p_model = [&](const std::vector<token_id>&) { return p; };
      const auto verify = [&](const draft& d, const auto&, const auto& ps, const auto& policy,
                              auto& chooser, auto out, auto scratch) {
        return verify_token(d, std::vector(2, row), ps, policy, chooser, out, scratch);
      };
      const auto law = [&](const std::vector<token_id>&) {
        return std::vector<double>(p.begin(), p.end());
      };
      worst =
          std::max(worst, worst_error_of_round(lossless{}, 2, q_model, p_model, verify, law).error);
    }
  }
  return worst;
}

}  // namespace

// A token that the truncation dropped is outside the support: it ends the draft, and those it kept
// have the decoded row's law.
TEST_CASE(
    "drafts from the decoded row emit exactly p. Mutant: drafts from a full row, counts sent") {
  const auto from_decoded = [](const auto& decoded, const auto&) { return decoded; };
  const auto from_full = [](const auto&, const auto& q) {
    return std::vector<double>(q.begin(), q.end());
  };
  for (const row_codec& codec :
       {row_codec{.vocabulary = 3, .top_p = 0.8}, row_codec{.vocabulary = 3, .top_k = 2},
        row_codec{.vocabulary = 3, .format = values::half, .top_p = 0.6},
        row_codec{.vocabulary = 3, .format = values::counts, .top_k = 2, .total = 5}}) {
    const double right = worst_with(codec, from_decoded), wrong = worst_with(codec, from_full);
    std::printf("draft from the decoded row: worst error %.1e; from the full row: %.3f\n", right,
                wrong);
    CHECK(right < 1e-12);
    if (codec.format == values::counts) CHECK(wrong > 0.05);
    else CHECK(wrong < 1e-12);
  }
}
