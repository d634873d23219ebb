// SPDX-License-Identifier: Apache-2.0
// Temperature and filters of sharded rows (shards/detail/sharded_logits.hpp): what they keep, and
// its probabilities, are those of a processed_row.
#include "shards/ranks.hpp"

#include <cstring>
#include <vector>

#include <specagg/shards/detail/sharded_logits.hpp>
#include <specagg/shards/sharded_row.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// Rows by how hard they are: many different logits, few (ties), a flat one, one that has nearly all
// mass on a token, with masked tokens, with NaN.
enum class kind { bell, ties, flat, peak, masked, nan, all_masked };
template <class S>
std::vector<S> row_of(numbers& random, kind k, std::size_t V) {
  std::vector<S> row(V);
  for (S& l : row) {
    double x = 8 + 4 * random.bell();
    if (k == kind::ties) x = std::floor(x);
    if (k == kind::flat) x = 3;
    if (k == kind::all_masked || (k == kind::masked && random.below(3))) x = -INFINITY;
    l = logit<S>(x);
  }
  if (k == kind::peak) row[random.below(V)] = logit<S>(40);
  if (k == kind::nan) row[random.below(V)] = logit<S>(NAN);
  return row;
}

template <class S>
struct filtered {
  std::vector<S> logits;
  sampling how;
  bool confidence;
};

// The row on these ranks, against the whole one: every rank compares its tokens, and a few others.
template <class S>
traffic check(const filtered<S>& row, std::span<const std::size_t> begins, numbers& random) {
  using T = computed<S>;
  const std::size_t V = row.logits.size(), ranks = begins.size() - 1;
  const auto due = normalise(processed_row<S>(std::span(row.logits), row.how), row.confidence);
  std::vector<token_id> some(12);  // more than come with the first exchange
  for (token_id& v : some) v = token_id(random.below(V));
  std::vector<status> why(ranks);
  std::vector<std::size_t> wrong(ranks);
  traffic seen{};
  const traffic all = on_threads(ranks, [&](std::size_t r, auto& exchange) {
    std::vector<double> memory(vocabulary_shards::memory_of(begins));
    vocabulary_shards together(exchange, begins, r, memory);
    const std::vector<S> own(row.logits.begin() + std::ptrdiff_t(begins[r]),
                             row.logits.begin() + std::ptrdiff_t(begins[r + 1]));
    const auto got = normalise(sharded_row<S>(own.data(), together, row.how, some), row.confidence);
    if (r == 0) seen = sent_by(exchange);
    why[r] = got.why();
    if (got.why() != status::ok || due.why() != status::ok) return;
    const auto differs = [&](T a, T b) { return std::memcmp(&a, &b, sizeof a) != 0; };
    for (const token_id v : some) wrong[r] += differs(got[std::size_t(v)], due[std::size_t(v)]);
    using B = vec<T, 16>;
    for (std::size_t b = begins[r]; b < begins[r + 1]; b += block_size)
      for (std::size_t k = 0; k < block_size && b + k < begins[r + 1]; k += 16) {
        const std::size_t n = std::min<std::size_t>(16, V - b - k),
                          count = std::min(V - b, block_size);
        T x[16], y[16];
        got.open(b, count).template operator()<B>(k, int(n)).store(x);
        due.open(b, count).template operator()<B>(k, int(n)).store(y);
        for (std::size_t i = 0; i < n; ++i) wrong[r] += differs(x[i], y[i]);
        if (!row.confidence) continue;
        got.open(b, count).template confidence<B>(k, int(n)).store(x);
        due.open(b, count).template confidence<B>(k, int(n)).store(y);
        for (std::size_t i = 0; i < n; ++i) wrong[r] += differs(x[i], y[i]);
      }
  });
  CHECK(why == std::vector<status>(ranks, due.why()));
  CHECK(wrong == std::vector<std::size_t>(ranks, 0));
  (void)all;
  return seen;
}

template <class S>
void check_filters(std::uint64_t seed) {
  numbers random(seed);
  const sampling filters[] = {{.top_k = 1},
                              {.top_k = 50},
                              {.top_k = 1024},
                              {.top_k = 1500},
                              {.top_p = 0.9},
                              {.top_p = 0.3},
                              {.top_p = 1 - 1e-12},
                              {.min_p = 0.1},
                              {.top_k = 50, .top_p = 0.9, .min_p = 0.05},
                              {.top_k = 2000, .top_p = 0.95},
                              {.top_p = 0.99, .min_p = 0.3},
                              {.top_k = 7, .min_p = 1},
                              {}};
  for (const kind k :
       {kind::bell, kind::ties, kind::flat, kind::peak, kind::masked, kind::nan, kind::all_masked})
    for (const sampling& f : filters) {
      const std::size_t V = random.below(2) ? 9000 : 1 + random.below(2500);
      filtered<S> row{row_of<S>(random, k, V), f, random.below(2) == 1};
      row.how.temperature = std::array{1., 0.3, 0., 1.7}[random.below(4)];
      row.how.order = filter_order(random.below(4));
      const std::size_t ranks = std::array<std::size_t, 4>{1, 2, 3, 7}[random.below(4)];
      const auto begins = begins_of(V, ranks, random.below(2));
      CAPTURE(int(k), V, begins, f.top_k, f.top_p, f.min_p, row.how.temperature, int(row.how.order),
              row.confidence);
      (void)check(row, begins, random);
    }
}

}  // namespace

TEST_CASE("sharded rows: filters keep what they keep of the whole row, floats") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) check_filters<float>(seed);
}
TEST_CASE("sharded rows: filters keep what they keep of the whole row, doubles and bf16") {
  check_filters<double>(4);
  check_filters<bf16>(5);
}

TEST_CASE("sharded rows: the exchanges that filters take") {
  numbers random(6);
  const std::size_t V = 20000, R = 3;
  const auto begins = begins_of(V, R);  // 7 blocks on the widest rank
  const auto calls = [&](kind k, const sampling& how, std::size_t bytes = 0) {
    const traffic seen = check<float>({row_of<float>(random, k, V), how, false}, begins, random);
    if (bytes > 0) CHECK(seen.bytes == bytes);
    return seen.calls;
  };
  const std::size_t row = 8 * (2 * 7 + 2 + 8);  // with 8 expected tokens
  CHECK(calls(kind::bell, {}, row) == 1);
  CHECK(calls(kind::bell, {.temperature = 0}, row) == 1);
  CHECK(calls(kind::bell, {.top_k = 50}, 8 * (1 + 8 + 100)) == 1);
  CHECK(calls(kind::bell, {.top_k = 50, .top_p = 0.9}, 8 * (1 + 8 + 100)) == 1);
  CHECK(calls(kind::bell, {.min_p = 0.01}, row + 8 * 3 * 7) == 2);
  CHECK(calls(kind::bell, {.top_k = 1500}) == 1 + 1 + 6 + 1);
  using enum filter_order;
  const std::size_t top_k = 8 * (1 + 8 + 100), block = 8 * 7;
  CHECK(calls(kind::bell, {.temperature = 2, .top_k = 50, .top_p = 0.9, .order = llama_cpp},
              top_k) == 1);
  CHECK(calls(kind::bell, {.temperature = 2, .min_p = 0.01, .order = llama_cpp},
              row + 2 * 3 * block) == 3);
  CHECK(calls(kind::bell, {.top_k = 50, .top_p = 0.9, .order = joint}, top_k + row) == 2);
  CHECK(calls(kind::bell, {.top_p = 0.9, .min_p = 0.01, .order = vllm}) ==
        2 + calls(kind::bell, {.top_p = 0.9}) - 1);
  // The sums; the largest logits of each rank, unless there cannot be enough of them, among which
  // the prefix ends or not; six more.
  CHECK(calls(kind::peak, {.top_p = 0.9}) == 1 + 1);
  CHECK(calls(kind::bell, {.top_p = 0.5}, row + 8 * (1 + 2 * 256)) == 1 + 1);
  for (const double p : {0.9, 0.99}) CHECK(calls(kind::bell, {.top_p = p}) == 1 + 1 + 6);
  for (const double p : {0.5, 0.9, 0.99}) CHECK(calls(kind::flat, {.top_p = p}) == 1 + 6);
}
