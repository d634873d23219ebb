// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/message.hpp>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "sites/sealed.hpp"
#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;
using namespace specagg::sites;
using octets = std::vector<std::uint8_t>;

namespace {

hello terms_of(protocol kind, std::size_t real_bytes = 8) {
  hello h{.life = 77,
          .kind = kind,
          .session = 1234567890123456789u,
          .model_l = short_text("draft-7b"),
          .real_bytes = real_bytes};
  h.codec = {.vocabulary = 300, .format = row_codec::values::half, .top_k = 8, .top_p = 0.9};
  h.end_of_text = 2;
  h.look_ahead = 5;
  h.most_tokens = 1000;
  h.prompt = 7;
  h.sampling = short_text("temperature 0.8");
  h.model_r = short_text("target-70b");
  return h;
}
template <class M>
octets bytes_of(const M& m, const hello& terms) {
  octets out(most_message_bytes(terms));
  out.resize(encode(m, terms, out));
  return out;
}
// Encoded again: the same bytes.
octets again(const message& m, const hello& terms) {
  return std::visit([&](const auto& x) { return bytes_of(x, terms); }, m);
}
wire why(const octets& bytes, const hello& terms) {
  message m;
  const octets copy(bytes.begin(), bytes.end());  // exactly as long, so that reading on is seen
  return decode(copy, terms, m);
}

struct sample {
  protocol kind;
  std::function<octets(const hello&)> bytes;
};
const octets row(6, 200);
settled_text some_tokens() {
  settled_text m{.first = 990, .count = 3, .epoch = {993, 7}, .next = side::r};
  m.tokens[0] = 299;
  m.tokens[1] = 0;
  m.tokens[2] = 128;
  return m;
}
split_request some_draft() {
  split_request m{.start = 300, .correction = 5, .count = 2};
  m.tokens[0] = 1;
  m.tokens[1] = 299;
  m.probabilities[0] = 0.125;
  m.probabilities[1] = 1;
  return m;
}
const std::vector<sample> samples{
    {protocol::dragon, [](const hello& t) { return bytes_of(t, t); }},
    {protocol::dragon,
     [](const hello& t) { return bytes_of(drafted{998, 999, 299, 1000000.03, 1e-3f, row}, t); }},
    {protocol::dragon, [](const hello& t) { return bytes_of(some_tokens(), t); }},
    {protocol::dragon, [](const hello& t) { return bytes_of(progress{1000, 0, 1005}, t); }},
    {protocol::dragon,
     [](const hello& t) {
       return bytes_of(refusal{short_text("vocabulary: 3 here, 4 there")}, t);
     }},
    {protocol::dssd, [](const hello& t) { return bytes_of(some_draft(), t); }},
    {protocol::split_shared, [](const hello& t) { return bytes_of(some_draft(), t); }},
    {protocol::dsd,
     [](const hello& t) {
       split_request m = some_draft();
       m.rows = row;
       return bytes_of(m, t);
     }},
    {protocol::dssd,
     [](const hello& t) { return bytes_of(split_answer{300, 1, no_token, status::ok, row}, t); }},
    {protocol::dsd,
     [](const hello& t) { return bytes_of(split_answer{300, 2, 17, status::ok, {}}, t); }},
    {protocol::dragon, [](const hello& t) { return bytes_of(echo{~std::uint64_t(0), true}, t); }},
};

}  // namespace

TEST_CASE("every message is read as it was written, and written as it was read") {
  for (const std::size_t real_bytes : {4u, 8u})
    for (const sample& s : samples) {
      const hello terms = terms_of(s.kind, real_bytes);
      const octets bytes = s.bytes(terms);
      REQUIRE_FALSE(bytes.empty());
      message m;
      REQUIRE(decode(bytes, terms, m) == wire::ok);
      CHECK(again(m, terms) == bytes);
    }
  const hello terms = terms_of(protocol::dragon);
  message m;
  const octets d = bytes_of(drafted{998, 999, 299, 1000000.03, 1e-3f, row}, terms);
  REQUIRE(decode(d, terms, m) == wire::ok);
  const auto& got = std::get<drafted>(m);
  CHECK((got.epoch == 998 && got.step == 999 && got.token == 299 && got.h == 1000000.03 &&
         got.seconds == 1e-3f));
  CHECK(octets(got.row.begin(), got.row.end()) == row);
  CHECK(d.size() == 1 + 2 + 1 + 2 + 8 + 4 + row.size() + 4);
  CHECK(bytes_of(some_tokens(), terms).size() == 1 + 2 + 1 + 1 + (2 + 1 + 2) + 1 + 2 + 4);
  CHECK(bytes_of(progress{1, 2, 3}, terms).size() == 4 + 4);
  const octets greeting = bytes_of(terms, terms);
  REQUIRE(decode(greeting, terms, m) == wire::ok);
  hello other = std::get<hello>(m);
  other.from = side::r;
  CHECK(first_difference(terms, other).empty());
  CHECK((other.life == 77 && other.model_l.view() == "draft-7b"));
}
TEST_CASE(
    "every prefix of a message is truncated, or lacks bytes of a row. A byte more is too many") {
  for (const sample& s : samples) {
    const hello terms = terms_of(s.kind);
    octets bytes = s.bytes(terms);
    message whole;
    REQUIRE(decode(bytes, terms, whole) == wire::ok);
    bytes.resize(bytes.size() - checksum_bytes);
    const bool ends_in_row = std::visit(
        [](const auto& m) {
          if constexpr (requires { m.row; }) return !m.row.empty();
          else if constexpr (requires { m.rows; }) return !m.rows.empty();
          else return false;
        },
        whole);
    for (std::size_t n = 0; n + (ends_in_row ? row.size() : 0) < bytes.size(); ++n)
      CHECK(why(sealed({bytes.begin(), bytes.begin() + std::ptrdiff_t(n)}), terms) ==
            (n == 0 ? wire::damaged : wire::truncated));
    if (ends_in_row) continue;
    octets more = bytes;
    more.push_back(0);
    const wire w = why(sealed(more), terms);
    CHECK((w == wire::trailing_bytes || w == wire::oversized || std::get_if<drafted>(&whole)));
  }
}
TEST_CASE("lengths and numbers beyond what was agreed are refused before anything is stored") {
  const hello terms = terms_of(protocol::dsd);
  const octets long_row(row_bytes(terms) + 1);
  CHECK(why(bytes_of(drafted{0, 1, 1, 0, 0, long_row}, terms), terms) == wire::oversized);
  CHECK(why(bytes_of(drafted{0, 1, 300, 0, 0, row}, terms), terms) == wire::oversized);
  CHECK(why(bytes_of(drafted{0, 1, no_token, 0, 0, row}, terms), terms) == wire::malformed);
  CHECK(why(bytes_of(drafted{0, 1001, 1, 0, 0, row}, terms), terms) == wire::oversized);
  // an epoch above the step
  CHECK(why(bytes_of(drafted{2, 1, 1, 0, 0, row}, terms), terms) == wire::oversized);
  settled_text beyond = some_tokens();
  beyond.first = 998;
  CHECK(why(bytes_of(beyond, terms), terms) == wire::oversized);
  split_request many = some_draft();
  many.count = 6;
  CHECK(why(bytes_of(many, terms), terms) == wire::oversized);
  split_request rows = some_draft();
  const octets two(2 * row_bytes(terms) + 1);
  rows.rows = two;
  CHECK(why(bytes_of(rows, terms), terms) == wire::oversized);
  CHECK(why(bytes_of(split_answer{300, 6, 17, status::ok, {}}, terms), terms) == wire::oversized);
  CHECK(why(bytes_of(split_answer{300, 1, no_token, status::ok, row}, terms), terms) ==
        wire::oversized);  // dsd: no row
  CHECK(why(sealed(octets(most_message_bytes(terms) + 1)), terms) == wire::oversized);
  for (const double bad : {-0.1, 1.01, double(NAN), double(INFINITY)}) {
    const hello split = terms_of(protocol::dssd);
    split_request m = some_draft();
    m.probabilities[1] = bad;
    CHECK(why(bytes_of(m, split), split) == wire::malformed);
  }
  const hello dragon = terms_of(protocol::dragon);
  for (const double bad : {double(NAN), double(INFINITY)}) {
    CHECK(why(bytes_of(drafted{0, 1, 1, bad, 0, row}, dragon), dragon) == wire::malformed);
    CHECK(why(bytes_of(drafted{0, 1, 1, 0, float(bad), row}, dragon), dragon) == wire::malformed);
  }
  CHECK(why(bytes_of(drafted{0, 1, 1, 0, -1, row}, dragon), dragon) == wire::malformed);
  // a site without documents
  CHECK(why(bytes_of(drafted{0, 1, 1, -INFINITY, 0, row}, dragon), dragon) == wire::ok);
}
TEST_CASE("a message of any kind in which a bit flips, or a part is lost or doubled, is damaged") {
  for (const sample& s : samples) {
    hello terms = terms_of(s.kind);
    terms.heard = true;  // so the other end has checksums
    const octets bytes = s.bytes(terms);
    const auto at = [](const auto& of, std::size_t n) { return of.begin() + std::ptrdiff_t(n); };
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      octets flipped = bytes;
      flipped[bit / 8] ^= std::uint8_t(1u << bit % 8);
      CHECK(why(flipped, terms) == wire::damaged);
    }
    for (std::size_t from = 0; from < bytes.size(); ++from)
      for (std::size_t to = from + 1; to <= bytes.size(); to += 1 + to / 8) {
        octets lost = bytes, doubled = bytes;
        lost.erase(at(lost, from), at(lost, to));
        doubled.insert(at(doubled, to), at(bytes, from), at(bytes, to));
        CHECK(why(lost, terms) == wire::damaged);
        CHECK(why(doubled, terms) == wire::damaged);
      }
  }
}
TEST_CASE("unknown kinds, other versions and numbers written longer than need be are named") {
  const hello terms = terms_of(protocol::dragon);
  CHECK(why({}, terms) == wire::damaged);
  CHECK(why({4, 1, 2, 3}, terms) == wire::damaged);
  CHECK(why(sealed({0}), terms) == wire::unknown_kind);
  CHECK(why(sealed({9, 1}), terms) == wire::unknown_kind);
  CHECK(why(sealed({200, 1}), terms) == wire::unknown_kind);
  hello next = terms;
  next.version = 1;
  CHECK(why(bytes_of(next, terms), terms) == wire::wrong_version);
  message m;
  CHECK(decode(bytes_of(next, terms), terms, m) == wire::wrong_version);
  CHECK(complaint(wire::wrong_version, m) ==
        "wrong version of the protocol (4 here, 1 there: both ends need releases that speak the "
        "same)");
  CHECK(complaint(wire::truncated, m) == "truncated");
  CHECK(why(sealed({4, 1, 2, 3}), terms) == wire::ok);
  CHECK(why(sealed({4, 0x81, 0, 2, 3}), terms) == wire::malformed);
  CHECK(why(sealed({4, 1, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}), terms) ==
        wire::malformed);
  for (const wire w : {wire::ok, wire::truncated, wire::oversized, wire::trailing_bytes,
                       wire::wrong_version, wire::unknown_kind, wire::malformed, wire::damaged})
    CHECK_FALSE(name(w).empty());
}
TEST_CASE("an end without checksums is told apart from damage, and is told why in its own way") {
  hello terms = terms_of(protocol::dragon);
  for (const std::uint32_t version : {1u, 2u}) {
    hello older = terms;
    older.version = version;
    message m;
    terms.heard = false;
    CHECK(decode(bytes_of(older, older), terms, m) == wire::wrong_version);
    CHECK(complaint(wire::wrong_version, m).find("4 here, " + std::to_string(version)) !=
          std::string::npos);
    const octets no = bytes_of(refusal{short_text("no")}, older);
    CHECK(no == octets{5, 2, 'n', 'o'});
    REQUIRE(decode(no, terms, m) == wire::ok);
    CHECK(std::get<refusal>(m).reason.view() == "no");
    terms.heard = true;  // by then both have checksums
    CHECK(decode(no, terms, m) == wire::damaged);
    CHECK(why(bytes_of(progress{}, older), terms) == wire::damaged);
  }
}
TEST_CASE("bytes changed at random are refused, or are a message that is written as it was read") {
  numbers n(3);
  std::size_t read = 0;
  for (int i = 0; i < 200000; ++i) {
    const sample& s = samples[n.below(samples.size())];
    const hello terms = terms_of(s.kind, n.below(2) ? 4 : 8);
    octets bytes = s.bytes(terms);
    bytes.resize(bytes.size() - checksum_bytes);
    for (std::size_t changes = 1 + n.below(3); changes > 0; --changes)
      bytes[n.below(bytes.size())] = std::uint8_t(n.word());
    bytes = sealed(bytes);
    message m;
    if (decode(bytes, terms, m) != wire::ok) continue;
    ++read;
    REQUIRE(again(m, terms) == bytes);
  }
  CHECK(read > 1000);
}
