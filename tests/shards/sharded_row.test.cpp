// SPDX-License-Identifier: Apache-2.0
#include "shards/ranks.hpp"

#include <specagg/shards/sharded_row.hpp>

#include <cstring>
#include <vector>

#include <specagg/policy/cascade.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/token_cascade.hpp>
#include <specagg/random.hpp>
#include <specagg/verify/verifiers.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

template <class S>
struct step {
  std::vector<S> q, p;  // [gamma + 1][V]
  std::vector<token_id> tokens;
  std::size_t V;
  double temperature;
  std::uint64_t seed;
};
struct result {
  verdict v;
  std::vector<emission> emissions;
  bool operator==(const result& o) const {
    bool equal = v.accepted == o.v.accepted && v.emitted == o.v.emitted && v.why == o.v.why;
    for (std::size_t i = 0; equal && i < v.emitted; ++i)
      equal = emissions[i].token == o.emissions[i].token &&
              emissions[i].why == o.emissions[i].why && emissions[i].from == o.emissions[i].from &&
              same(emissions[i].log_p, o.emissions[i].log_p) &&
              same(emissions[i].log_pi, o.emissions[i].log_pi);
    return equal;
  }
};

template <class S, class Verifier, class Policy>
result verified(const step<S>& s, const Verifier& verifier, const Policy& policy, const auto& q,
                const auto& p) {
  random_streams chooser(s.seed, 3);
  result r;
  r.emissions.resize(s.tokens.size() + 1);
  std::vector<double> scratch(verify_scratch(s.V) + 1000);
  draft d{.tokens = s.tokens, .start = 5};
  r.v = verifier.verify(d, q, p, policy, chooser, r.emissions, scratch);
  return r;
}
template <class S, class Verifier, class Policy>
result whole(const step<S>& s, const Verifier& verifier, const Policy& policy) {
  const sampling how{.temperature = s.temperature};
  return verified(s, verifier, policy, rows_of_logits(s.q, s.V, how),
                  rows_of_logits(s.p, s.V, how));
}

// The rows of one rank, which has nothing else of them.
template <class S>
struct shards_of_step {
  std::vector<double> memory;
  vocabulary_shards together;
  std::vector<std::vector<S>> own;
  const step<S>& s;
  shards_of_step(const step<S>& of, any_exchange& exchange, std::span<const std::size_t> begins,
                 std::size_t rank)
      : memory(vocabulary_shards::memory_of(begins, 2 * of.tokens.size() + 2)),
        together(exchange, begins, rank, memory),
        s(of) {
    for (const auto* all : {&s.q, &s.p})
      for (std::size_t j = 0; j <= s.tokens.size(); ++j)
        own.emplace_back(all->begin() + std::ptrdiff_t(j * s.V + begins[rank]),
                         all->begin() + std::ptrdiff_t(j * s.V + begins[rank + 1]));
  }
  std::size_t rows() const { return s.tokens.size() + 1; }
  sharded_row<S> row(std::size_t i) {  // of q, then of p
    const std::size_t j = i % rows();
    return {own[i].data(),
            together,
            {.temperature = s.temperature},
            j < s.tokens.size() ? s.tokens[j] : no_token};
  }
};
// All rows are normalised in one exchange.
template <class S, class Verifier, class Policy>
result by_rank(const step<S>& s, const Verifier& verifier, const Policy& policy,
               any_exchange& exchange, std::span<const std::size_t> begins, std::size_t rank,
               bool* failed = nullptr) {
  shards_of_step<S> shards(s, exchange, begins, rank);
  std::vector<normalised_row<sharded_row<S>>> rows(2 * shards.rows());
  (void)shards.together.run(rows.size(), [&](std::size_t i) {
    if (reads_draft<Policy> ||
        i != s.tokens.size())  // else the draft's row for a bonus is not read
      rows[i] = normalise(shards.row(i), reads_confidence<Policy>);
  });
  const std::span<const normalised_row<sharded_row<S>>> all(rows);
  const result r = verified(s, verifier, policy, all.first(shards.rows()), all.last(shards.rows()));
  if (failed) *failed = shards.together.failed();
  return r;
}
// Each row is normalised when the verifier comes to it.
template <class S, class Verifier, class Policy>
result one_by_one(const step<S>& s, const Verifier& verifier, const Policy& policy,
                  any_exchange& exchange, std::span<const std::size_t> begins, std::size_t rank) {
  shards_of_step<S> shards(s, exchange, begins, rank);
  return verified(
      s, verifier, policy, rows_of(shards.rows(), [&](std::size_t j) { return shards.row(j); }),
      rows_of(shards.rows(), [&](std::size_t j) { return shards.row(shards.rows() + j); }));
}

template <class S>
step<S> random_step(numbers& random, std::size_t V, std::size_t gamma, double temperature,
                    bool plain = false) {
  step<S> s{{}, {}, {}, V, temperature, random.word()};
  s.p.resize((gamma + 1) * V);
  s.q.resize((gamma + 1) * V);
  const std::size_t kind = plain ? 99 : random.below(12), where = random.below(s.p.size());
  for (std::size_t i = 0; i < s.p.size(); ++i) {
    const double x =
        8 + 4 * random.bell() + (kind == 1 ? 2e6 : 0) + (kind == 2 ? double(i / 1024 % 3) * 90 : 0);
    s.p[i] = logit<S>(kind == 3 && i < V ? -INFINITY : kind == 0 && i == where ? NAN : x);
    s.q[i] = logit<S>(kind == 4 && i < V ? 1 : x + 0.5 * random.bell());
  }
  std::vector<double> scratch(block_count(V));
  random_streams chooser(s.seed, 3);
  for (std::size_t j = 0; j < gamma; ++j) {
    const processed_row<S> row(std::span<const S>(s.q).subspan(j * V, V),
                               {.temperature = temperature});
    const auto q = normalise(row);
    s.tokens.push_back(q.why() == status::ok
                           ? draw(q, {stream::draft, std::uint32_t(5 + j), 5}, chooser, scratch)
                           : 0);
  }
  return s;
}

template <class S, class Verifier, class Policy>
void check_shards(const Verifier& verifier, const Policy& policy, std::uint64_t seed) {
  numbers random(seed);
  std::size_t rejected = 0, failed = 0, runs = 0;
  for (const std::size_t V : {5u, 1025u, 8000u})
    for (const double temperature : {1., 0.3, 0., 1e-6})
      for (const std::size_t ranks : {1u, 2u, 3u, 7u}) {
        const auto s = random_step<S>(random, V, 3, temperature);
        const result due = whole(s, verifier, policy);
        const auto begins = begins_of(V, ranks, random.below(2));
        CAPTURE(V, temperature, ranks, begins);
        std::vector<result> got(ranks);
        on_threads(ranks, [&](std::size_t r, auto& exchange) {
          got[r] = by_rank(s, verifier, policy, exchange, begins, r);
        });
        for (const result& r : got) CHECK(r == due);
        rejected += due.v.accepted < 3;
        failed += due.v.why != status::ok;
        ++runs;
      }
  CHECK(rejected > 0);
  CHECK(failed > 0);
  CHECK(failed < runs / 2);
}

}  // namespace

TEST_CASE("sharded rows: every verifier gives what it gives with whole rows, on every rank") {
  check_shards<float>(token_verifier{}, lossless{}, 1);
  check_shards<float>(token_verifier{}, token_v3{0.3}, 2);
  check_shards<double>(token_verifier{}, opt{0.2}, 3);
  check_shards<float>(block_verifier{}, lossless{}, 4);
  check_shards<bf16>(match_verifier{}, lossless{}, 6);
  check_shards<float>(coupled_verifier{coupled_noise(7, 3)}, lossless{}, 7);
}

TEST_CASE("sharded rows: the messages and bytes of one step, as the documentation says") {
  // docs/engine.md: V = 128,256 on 4 ranks, which have 32 blocks at most; gamma = 4.
  numbers random(9);
  std::size_t bonuses = 0, residuals = 0;
  for (int round = 0; round < 6 || bonuses * residuals == 0; ++round) {
    REQUIRE(round < 60);
    const auto s = random_step<float>(random, 128256, 4, 1, true);
    const result due = whole(s, token_verifier{}, lossless{});
    const auto begins = begins_of(s.V, 4);
    std::vector<char> good(4);
    traffic seen = on_threads(4, [&](std::size_t r, auto& exchange) {
      good[r] = by_rank(s, token_verifier{}, lossless{}, exchange, begins, r) == due;
    });
    CHECK(good == std::vector<char>(4, 1));
    // All rows (536 bytes each, the one without an expected token 528), what the token is drawn
    // from, and the token.
    REQUIRE(due.v.emitted == due.v.accepted + 1);
    CHECK(seen.calls == 3);
    CHECK(seen.bytes == 4816 + 256 + 40);
    CHECK(4816 == 8 * 536 + 528);
    (due.v.accepted == 4 ? bonuses : residuals) += 1;
    // One by one: an exchange for each row that is looked at.
    seen = on_threads(4, [&](std::size_t r, auto& exchange) {
      good[r] = one_by_one(s, token_verifier{}, lossless{}, exchange, begins, r) == due;
    });
    CHECK(good == std::vector<char>(4, 1));
    const std::size_t rows = 2 * std::min<std::size_t>(due.v.accepted + 1, 4);
    const bool bonus = due.v.accepted == 4;
    CHECK(seen.calls == rows + bonus + 2);
    CHECK(seen.bytes == rows * 536 + bonus * 528 + 256 + 40);
  }
}

TEST_CASE("sharded rows: over processes, the tokens are those of whole rows") {
  numbers random(10);
  for (const std::size_t ranks : {2u, 3u}) {
    const auto s = random_step<float>(random, 3000, 3, 0.8, true);
    const result due = whole(s, token_verifier{}, lossless{});
    const auto begins = begins_of(s.V, ranks);
    bool failed = false;
    CHECK(on_processes(
        ranks,
        [&](std::size_t r, auto& exchange) {
          return by_rank(s, token_verifier{}, lossless{}, exchange, begins, r) == due;
        },
        [&](auto& exchange) {  // the others are gone
          (void)by_rank(s, token_verifier{}, lossless{}, exchange, begins, 0, &failed);
        }));
    CHECK(failed);
  }
}

TEST_CASE("sharded rows: an exchange that fails, whichever it is, is told and ends all others") {
  struct failing {
    std::size_t at, calls = 0;
    bool operator()(std::span<const double> own, std::span<double> all) {
      std::ranges::copy(own, all.begin());
      if (calls++ != at) return true;
      std::ranges::fill(all, std::numeric_limits<double>::quiet_NaN());
      return false;
    }
  };
  numbers random(12);
  for (const double temperature : {1., 0.}) {
    const auto s = random_step<float>(random, 3000, 3, temperature);
    const std::vector<std::size_t> one{0, s.V};
    const auto check = [&](const auto& verifier, const auto& policy) {
      for (std::size_t k = 0;; ++k) {
        failing one_fails{k};
        any_exchange exchange = std::ref(one_fails);
        bool failed = false;
        (void)by_rank(s, verifier, policy, exchange, one, 0, &failed);
        CHECK(failed == (one_fails.calls > k));
        CHECK(one_fails.calls <= k + 1);
        if (!failed) break;
      }
    };
    check(token_verifier{}, lossless{});
    check(token_verifier{}, token_v3{0.3});
    check(block_verifier{}, lossless{});
    check(coupled_verifier{coupled_noise(7, 3)}, lossless{});
  }
}

TEST_CASE("sharded rows: wrong shards, memory and parameters are refused, and rows of two kinds") {
  thread_ranks shared(1);
  any_exchange exchange = thread_ranks::exchange{&shared, 0};
  using shards = vocabulary_shards;
  using row = sharded_row<float>;
  const std::vector<float> logits(3000);
  const std::vector<std::size_t> good{0, 3000}, crooked{0, 1000, 3000}, empty{0};
  std::vector<double> memory(shards::memory_of(good, 0)), other(memory);
  shards one(exchange, good, 0, memory), two(exchange, good, 0, other);
  CHECK(normalise(row(logits.data(), one)).why() == status::ok);
  for (shards bad : {shards(exchange, crooked, 0, memory), shards(exchange, good, 1, memory),
                     shards(exchange, empty, 0, memory),
                     shards(exchange, good, 0, std::span(memory).first(memory.size() - 1))})
    CHECK(normalise(row(logits.data(), bad)).why() == status::invalid_parameter);
  for (const double temperature : {-1., std::nan(""), 3.4e35, 1e39})
    CHECK(normalise(row(logits.data(), one, {.temperature = temperature})).why() ==
          status::invalid_parameter);
  CHECK(normalise(row(logits.data(), one, {.top_p = 0})).why() == status::invalid_parameter);

  const std::vector<token_id> tokens{7};
  const auto verify_with = [&](shards& q, shards& p) {
    step<float> s{{}, {}, tokens, 3000, 1, 1};
    return verified(s, token_verifier{}, lossless{},
                    rows_of(2, [&](std::size_t) { return row(logits.data(), q); }),
                    rows_of(2, [&](std::size_t) { return row(logits.data(), p); }))
        .v.why;
  };
  CHECK(verify_with(one, one) == status::ok);
  CHECK(verify_with(one, two) == status::vocabulary_mismatch);
}
