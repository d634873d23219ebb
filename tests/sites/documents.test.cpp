// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/documents.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include <specagg/audit/toy_source.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr std::size_t V = 21;
using tokens = std::vector<token_id>;

// A toy model that gives up after some calls, or cannot go back.
struct interrupted : toy_source<float> {
  using toy_source<float>::toy_source;
  std::size_t calls_left = ~std::size_t{0};
  bool refuses = false;
  status rollback(std::size_t to) {
    return refuses && to < position() ? status::rollback_refused : toy_source<float>::rollback(to);
  }
  status extend(std::span<const token_id> t, std::span<float> logits) {
    if (calls_left-- == 0) {
      calls_left = ~std::size_t{0};
      return status::stopped;
    }
    return toy_source<float>::extend(t, logits);
  }
};

// Sources that have seen a document each; their rows depend on the last 6 tokens, so on the
// document for a short text.
struct site {
  std::vector<tokens> prefixes;
  std::vector<interrupted> sources;
  explicit site(std::size_t documents, std::size_t capacity = 400) {
    numbers n(3);
    for (std::size_t d = 0; d < documents; ++d) {
      prefixes.emplace_back(1 + d);
      for (auto& t : prefixes[d]) t = token_id(n.below(V));
      sources.emplace_back(V, 7, 6, 3, capacity);
      (void)sources[d].extend(prefixes[d], {});
    }
  }
  std::size_t misuses() const {
    std::size_t sum = 0;
    for (const auto& s : sources) sum += s.misuses;
    return sum;
  }
};

tokens some_text(numbers& n, std::size_t size) {
  tokens t(size);
  for (auto& x : t) x = token_id(n.below(V));
  return t;
}

struct rows {
  status why = status::ok;
  std::vector<float> logits;
  std::vector<double> h;
  bool operator==(const rows& other) const {
    return why == other.why && h == other.h && logits.size() == other.logits.size() &&
           (logits.empty() ||
            std::memcmp(logits.data(), other.logits.data(), 4 * logits.size()) == 0);
  }
};
template <class ForEach = in_order>
rows see(document_mixture<interrupted>& m, const tokens& text, const std::vector<double>& relevance,
         std::size_t k = 1, const ForEach& for_each = {}) {
  rows r{status::ok, std::vector<float>(k * V), std::vector<double>(k)};
  std::vector<double> all;
  for (std::size_t i = 0; i < k; ++i) all.insert(all.end(), relevance.begin(), relevance.end());
  r.why = m.see(text, all, r.logits, r.h, for_each);
  return r;
}
// By a site that has seen nothing else.
rows fresh(const tokens& text, const std::vector<double>& relevance, std::size_t k = 1) {
  site s(relevance.size());
  document_mixture<interrupted> m(s.sources, k);
  return see(m, text, relevance, k);
}

const std::vector<double> relevance{0.3, -1, 2.5};

}  // namespace

TEST_CASE(
    "the row of a site is the mixture of its documents' rows by their relevance, h their log-sum") {
  numbers n(1);
  site s(3);
  document_mixture<interrupted> m(s.sources, 4);
  for (const std::size_t size : {1u, 2u, 5u, 9u, 130u}) {
    const auto text = some_text(n, size);
    const std::size_t k = std::min<std::size_t>(size, 3);
    const auto got = see(m, text, relevance, k);
    REQUIRE(got.why == status::ok);
    for (std::size_t row = 0; row < k; ++row) {
      double all = 0;
      for (const double r : relevance) all += std::exp(r);
      CHECK(std::abs(got.h[row] - std::log(all)) < 1e-12);
      std::vector<double> p(V);
      for (std::size_t d = 0; d < 3; ++d) {
        tokens context = s.prefixes[d];
        context.insert(context.end(), text.begin(), text.end() - std::ptrdiff_t(k - 1 - row));
        std::vector<float> logits(V);
        s.sources[d].row(context, logits);
        double sum = 0;
        for (const float x : logits) sum += std::exp(double(x));
        for (std::size_t v = 0; v < V; ++v)
          p[v] += std::exp(relevance[d]) / all * std::exp(double(logits[v])) / sum;
      }
      for (std::size_t v = 0; v < V; ++v)
        CHECK(std::abs(double(got.logits[row * V + v]) - std::log(p[v])) < 1e-6);
    }
  }
  CHECK(s.misuses() == 0);
}

TEST_CASE("a source that cannot go back is reported, and what it has is not forgotten") {
  numbers n(4);
  site s(3);
  document_mixture<interrupted> m(s.sources, 1);
  tokens text = some_text(n, 40), longer = text, other = text;
  longer.push_back(1);
  other[20] = (other[20] + 1) % token_id(V);
  CHECK(see(m, text, relevance) == fresh(text, relevance));
  s.sources[1].refuses = true;
  CHECK(see(m, other, relevance).why == status::rollback_refused);
  CHECK(see(m, longer, relevance) == fresh(longer, relevance));  // nothing to take back
  s.sources[1].refuses = false;
  CHECK(see(m, other, relevance) == fresh(other, relevance));
  CHECK(s.misuses() == 0);
}

TEST_CASE(
    "a site's rows are a function of the text: any order of texts, rows at once and interruptions, "
    "same bits") {
  numbers n(2);
  site s(3);
  const auto two_threads = [](std::size_t count, auto&& body) {
    std::thread other([&] {
      for (std::size_t i = count; i-- > 1;) body(i);
    });
    body(0);
    other.join();
  };
  std::size_t stopped = 0;
  for (const std::size_t at_once : {1u, 2u, 5u}) {
    document_mixture<interrupted> m(s.sources, at_once);
    tokens text = some_text(n, 150);
    for (int i = 0; i < 150; ++i) {
      text.resize(1 + n.below(text.size()));
      const auto more = some_text(n, n.below(2) ? n.below(3) : n.below(100));
      if (text.size() + more.size() < 300) text.insert(text.end(), more.begin(), more.end());
      const std::size_t k = n.below(std::min<std::size_t>(text.size() + 1, 8));
      if (n.below(2)) s.sources[n.below(3)].calls_left = n.below(3);
      const auto got =
          i % 7 == 0 ? see(m, text, relevance, k, two_threads) : see(m, text, relevance, k);
      for (auto& source : s.sources) source.calls_left = ~std::size_t{0};
      if (got.why == status::stopped) {
        ++stopped;
        continue;
      }
      REQUIRE(got == fresh(text, relevance, k));
    }
    for (std::size_t d = 0; d < 3; ++d) (void)s.sources[d].rollback(s.prefixes[d].size());
  }
  CHECK(stopped > 50);
  CHECK(s.misuses() == 0);
}

TEST_CASE(
    "new tokens of text cost each document one call, and one that is stopped keeps what it had "
    "computed") {
  numbers n(4);
  site s(2);
  document_mixture<interrupted> m(s.sources);
  tokens text = some_text(n, 200);
  REQUIRE(see(m, text, {0, 0}, 0).why == status::ok);
  const std::size_t before = s.sources[0].calls;
  text.push_back(3);
  REQUIRE(see(m, text, {0, 0}).why == status::ok);
  CHECK(s.sources[0].calls == before + 1);
  text.insert(text.end(), {4, 5, 6});
  REQUIRE(see(m, text, {0, 0}).why == status::ok);
  CHECK(s.sources[0].calls == before + 2);
  // 200 tokens are four calls, the third of which is stopped.
  const auto other = some_text(n, 200);
  s.sources[1].calls_left = 2;
  CHECK(see(m, other, {0, 0}).why == status::stopped);
  CHECK(s.sources[1].position() == s.prefixes[1].size() + 128);
  CHECK(see(m, other, {0, 0}) == fresh(other, {0, 0}));
}

TEST_CASE("each row has the relevances of its own length") {
  numbers n(5);
  site s(2);
  document_mixture<interrupted> m(s.sources, 2);
  const auto text = some_text(n, 4);
  const std::vector<double> both{0, -3, 1, 2};
  rows got{status::ok, std::vector<float>(2 * V), std::vector<double>(2)};
  got.why = m.see(text, both, got.logits, got.h);
  const auto first = fresh(tokens(text.begin(), text.end() - 1), {0, -3}),
             second = fresh(text, {1, 2});
  CHECK(got.h == std::vector<double>{first.h[0], second.h[0]});
  CHECK(std::equal(first.logits.begin(), first.logits.end(), got.logits.begin()));
  CHECK(std::equal(second.logits.begin(), second.logits.end(), got.logits.begin() + V));
}

TEST_CASE(
    "a document left out counts for nothing. With all left out there is a row to give no weight") {
  numbers n(6);
  const auto text = some_text(n, 3);
  site s(3);
  document_mixture<interrupted> m(s.sources);
  const auto got = see(m, text, {0.3, -inf, -inf});
  CHECK(got.h == std::vector<double>{0.3});
  const auto alone = fresh(text, {0.3});
  for (std::size_t v = 0; v < V; ++v) CHECK(std::abs(got.logits[v] - alone.logits[v]) < 1e-6);
  auto none = see(m, text, {-inf, -inf, -inf});
  CHECK(none.why == status::ok);
  CHECK(none.h == std::vector<double>{-inf});
  none.h = fresh(text, {0, 0, 0}).h;
  CHECK(none == fresh(text, {0, 0, 0}));
  for (const double bad : {inf, std::nan("")})
    CHECK(see(m, text, {0, bad, 0}).why == status::invalid_parameter);
}

TEST_CASE("a site without documents is its plain model, h = 0") {
  numbers n(7);
  const auto text = some_text(n, 5);
  std::vector<toy_source<float>> plain{{V, 7, 6}};
  document_mixture<toy_source<float>> m(plain);
  std::vector<float> row(V), due(V);
  double h = 1;
  REQUIRE(m.see(text, std::vector<double>{0}, row, {&h, 1}) == status::ok);
  CHECK(h == 0);
  plain[0].row(text, due);
  double sum = 0;
  for (const float x : due) sum += std::exp(double(x));
  for (std::size_t v = 0; v < V; ++v)
    CHECK(std::abs(double(row[v]) - (double(due[v]) - std::log(sum))) < 1e-6);
}

TEST_CASE(
    "a mixture answers with a status when a text does not fit or arguments do not match, and goes "
    "on") {
  numbers n(8);
  site s(2, 12);
  document_mixture<interrupted> m(s.sources);
  CHECK(m.capacity() == 10);
  CHECK(see(m, some_text(n, 11), {0, 0}).why == status::context_full);
  CHECK(see(m, {5, token_id(V)}, {0, 0}).why == status::token_out_of_range);
  CHECK(see(m, {}, {0, 0}).why == status::invalid_parameter);
  CHECK(see(m, {}, {0, 0}, 0).why == status::ok);
  CHECK(see(m, {1, 2}, {0}).why == status::invalid_parameter);
  CHECK(see(m, {1, 2}, {0, 0, 0}).why == status::invalid_parameter);
  const auto text = some_text(n, 10);
  CHECK(see(m, text, {0, 0}) == fresh(text, {0, 0}));
  std::vector<interrupted> none;
  document_mixture<interrupted> nobody(none);
  CHECK(see(nobody, text, {}).why == status::invalid_parameter);
}

TEST_CASE(
    "without a document, a state that only knows its beginning is read again. The rows are the "
    "same") {
  struct recurrent : toy_source<float> {
    using toy_source<float>::toy_source;
    status rollback(std::size_t to) {
      return to > 0 && to < position() ? status::rollback_refused : toy_source<float>::rollback(to);
    }
  };
  std::vector<recurrent> refusing;
  std::vector<toy_source<float>> plain;
  refusing.emplace_back(V, 7, 6, 3, 400);
  plain.emplace_back(V, 7, 6, 3, 400);
  document_mixture<recurrent> a(refusing);
  document_mixture<toy_source<float>> b(plain);
  numbers n(9);
  const auto text = some_text(n, 30), other = some_text(n, 30);
  const std::vector<double> none(1);
  for (const auto& [of, size] :
       {std::pair(&text, 20), {&text, 30}, {&text, 12}, {&other, 25}, {&text, 30}}) {
    std::vector<float> x(V), y(V);
    std::vector<double> h(1);
    REQUIRE(a.see(std::span(*of).first(std::size_t(size)), none, x, h) == status::ok);
    REQUIRE(b.see(std::span(*of).first(std::size_t(size)), none, y, h) == status::ok);
    CHECK(x == y);
    CHECK(refusing[0].position() == std::size_t(size));
  }
}

TEST_CASE("a site_source is a LogitSource: its rows and h are the mixture's, after any text") {
  site s(3);
  std::size_t asked = 0;
  const auto scores = [&](std::span<const token_id> text, std::span<double> R) {
    ++asked;
    for (std::size_t d = 0; d < R.size(); ++d) R[d] = 0.1 * double(d + text.size());
  };
  site_source model{std::span(s.sources), scores, 2};
  static_assert(LogitSource<decltype(model)>);
  CHECK(model.h() == 0);
  numbers n(5);
  for (int i = 0; i < 100; ++i) {
    const std::size_t keep = n.below(model.position() + 1), more = 1 + n.below(5);
    REQUIRE(model.rollback(keep) == status::ok);
    const tokens next = some_text(n, more);
    tokens text(model.tokens().begin(), model.tokens().end());
    text.insert(text.end(), next.begin(), next.end());
    rows got{status::ok, std::vector<float>((1 + n.below(more)) * V), {}};
    asked = 0;
    REQUIRE(model.extend(next, got.logits) == status::ok);
    CHECK(asked == got.logits.size() / V);
    CHECK(model.position() == text.size());
    // each row by a site that has seen nothing else
    for (std::size_t j = 0; j < asked; ++j) {
      const std::size_t size = text.size() - asked + j + 1;
      const rows due = fresh(tokens(text.begin(), text.begin() + std::ptrdiff_t(size)),
                             {0.1 * double(size), 0.1 * double(size + 1), 0.1 * double(size + 2)});
      CHECK(std::memcmp(due.logits.data(), got.logits.data() + j * V, 4 * V) == 0);
      if (j + 1 == asked) CHECK(model.h() == due.h[0]);
    }
  }
  CHECK(s.misuses() == 0);
}
TEST_CASE("a site_source that fails or throws is where it was, and goes on") {
  site s(2, 40);
  bool throws = false;
  const auto scores = [&](std::span<const token_id>, std::span<double> R) {
    if (throws) throw 1;
    R[0] = R[1] = 0;
  };
  site_source model{std::span(s.sources), scores};
  std::vector<float> row(V), again(V);
  REQUIRE(model.extend(tokens{1, 2, 3}, row) == status::ok);
  s.sources[1].calls_left = 0;
  CHECK(model.extend(tokens{4}, row) == status::stopped);
  CHECK(model.position() == 3);
  throws = true;
  CHECK_THROWS(model.extend(tokens{4}, row));
  CHECK(model.position() == 3);
  throws = false;
  REQUIRE(model.extend(tokens{4}, row) == status::ok);
  CHECK(std::memcmp(row.data(), fresh({1, 2, 3, 4}, {0, 0}).logits.data(), 4 * V) == 0);
  CHECK(model.extend(tokens(40, 1), {}) == status::context_full);
  CHECK(model.extend({}, again) == status::invalid_parameter);
  CHECK(model.position() == 4);
}
