// SPDX-License-Identifier: Apache-2.0
// Also what tests specagg/shards/detail/rank_reader.hpp.
#include "shards/ranks.hpp"

#include <specagg/shards/vocabulary_shards.hpp>

#include <new>
#include <utility>
#include <vector>

#include <specagg/policy/cascade_log.hpp>
#include <specagg/policy/lossless.hpp>
#include <specagg/policy/token_cascade.hpp>
#include <specagg/verify/batch.hpp>
#include <specagg/shards/detail/exchange_log.hpp>
#include <specagg/shards/sharded_row.hpp>
#include <specagg/verify/verifiers.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// A batch of requests, of which every rank verifies its shards in step.
struct batch {
  std::size_t V, B, gamma;
  std::vector<float> q, p;  // [B][gamma + 1][V]
  std::vector<token_id> tokens;
  sampling how;
  std::size_t rows() const { return B * (gamma + 1); }
  auto verification_of(std::size_t i, const auto& q_rows, const auto& p_rows,
                       std::span<emission> out) const {
    return verification{draft{.tokens = std::span(tokens).subspan(i * gamma, gamma)},
                        q_rows,
                        p_rows,
                        lossless{},
                        random_streams(1, i),
                        out.subspan(i * (gamma + 1), gamma + 1)};
  }
};
batch random_batch(numbers& random, std::size_t V, std::size_t B, std::size_t gamma, sampling how) {
  batch b{V, B, gamma, {}, {}, {}, how};
  for (std::size_t i = 0; i < b.rows() * V; ++i) {
    b.p.push_back(float(4 + 3 * random.bell()));
    b.q.push_back(b.p.back() + float(0.5 * random.bell()));
  }
  std::vector<double> scratch(verify_scratch(V));
  for (std::size_t i = 0; i < B; ++i)
    for (std::size_t j = 0; j < gamma; ++j) {
      random_streams chooser(1, i);
      const processed_row<float> row(std::span(b.q).subspan((i * (gamma + 1) + j) * V, V), how);
      b.tokens.push_back(draw_draft(row, 0, j, chooser, scratch));
    }
  return b;
}
std::vector<token_id> tokens_of(std::span<const verdict> v, std::span<const emission> out,
                                std::size_t each) {
  std::vector<token_id> tokens;
  for (std::size_t i = 0; i < v.size(); ++i) {
    tokens.push_back(-2 - token_id(v[i].accepted));
    for (std::size_t j = 0; j < v[i].emitted; ++j) tokens.push_back(out[i * each + j].token);
  }
  return tokens;
}
std::vector<token_id> whole(const batch& b) {
  std::vector<verdict> verdicts(b.B);
  std::vector<emission> out(b.rows());
  std::vector<double> scratch(b.B * verify_scratch(b.V, b.gamma));
  const auto rows = [&](const std::vector<float>& all, std::size_t i) {
    return rows_of_logits(std::span(all).subspan(i * (b.gamma + 1) * b.V, (b.gamma + 1) * b.V), b.V,
                          b.how);
  };
  verify_batch([&](std::size_t i) { return b.verification_of(i, rows(b.q, i), rows(b.p, i), out); },
               verdicts, scratch);
  return tokens_of(verdicts, out, b.gamma + 1);
}
std::vector<token_id> by_rank(const batch& b, any_exchange& exchange,
                              std::span<const std::size_t> begins, std::size_t rank,
                              std::size_t doubles) {
  std::vector<double> memory(doubles), scratch(verify_scratch(b.V, b.gamma));
  vocabulary_shards together(exchange, begins, rank, memory);
  using row = normalised_row<sharded_row<float>>;
  std::vector<row> rows(2 * b.rows());
  bool ok = together.run(rows.size(), [&](std::size_t i) {
    const std::size_t n = i % b.rows(), j = n % (b.gamma + 1);
    const token_id drafted = j < b.gamma ? b.tokens[n / (b.gamma + 1) * b.gamma + j] : no_token;
    const float* all = i < b.rows() ? b.q.data() : b.p.data();
    rows[i] = normalise(sharded_row<float>(all + n * b.V + begins[rank], together, b.how, drafted));
  });
  const auto of = [&](std::size_t first) {
    return std::span<const row>(rows).subspan(first, b.gamma + 1);
  };
  std::vector<verdict> verdicts(b.B);
  std::vector<emission> out(b.rows());
  ok = ok && together.run(b.B, [&](std::size_t i) {
    const std::size_t first = i * (b.gamma + 1);
    verdicts[i] = verify(b.verification_of(i, of(first), of(b.rows() + first), out),
                         token_verifier{}, scratch);
  });
  return ok ? tokens_of(verdicts, out, b.gamma + 1) : std::vector<token_id>();
}
traffic check(const batch& b, std::size_t ranks, std::size_t doubles) {
  const auto due = whole(b);
  const auto begins = begins_of(b.V, ranks);
  std::vector<std::vector<token_id>> got(ranks);
  const traffic seen = on_threads(ranks, [&](std::size_t r, auto& exchange) {
    got[r] = by_rank(b, exchange, begins, r, doubles);
  });
  CHECK(got == std::vector<std::vector<token_id>>(ranks, due));
  return seen;
}

}  // namespace

TEST_CASE("vocabulary shards: a batch takes as many exchanges as the longest request") {
  numbers random(1);
  const std::size_t V = 3000, R = 3, B = 16;
  const auto begins = begins_of(V, R);
  using shards = vocabulary_shards;
  const batch b = random_batch(random, V, B, 3, {});
  // All rows; what each request's token is drawn from; these tokens.
  CHECK(check(b, R, shards::memory_of(begins, 2 * b.rows())).calls == 3);
  const std::size_t calls_of_less = check(b, R, shards::memory_of(begins, b.rows() / 16)).calls;
  CHECK(calls_of_less > 3);
  CHECK(calls_of_less < b.rows());
  // no memory for a run: one after the other
  CHECK(check(b, R, shards::memory_of(begins, 0)).calls == 2 * b.rows() + 2 * B);
  for (std::size_t tasks = 1; tasks < 40; tasks += 3)
    (void)check(b, R, shards::memory_of(begins, 0) + 7 * tasks);
  // Rows with filters, whose exchanges are not as many.
  const batch filtered = random_batch(random, V, 4, 3, {.top_p = 0.9});
  const std::size_t calls = check(filtered, R, 1 << 20).calls;
  CHECK(calls >= 7 + 2);
  CHECK(calls <= 7 + 4);
}

TEST_CASE("vocabulary shards: with too little memory for all tasks each is still done") {
  const std::vector<std::size_t> begins{0, 100};
  any_exchange exchange = [](std::span<const double> own, std::span<double> all) {
    std::ranges::copy(own, all.begin());
    return true;
  };
  for (std::size_t tasks = 1; tasks < 10; ++tasks)
    for (std::size_t more = 0; more < 60; ++more) {
      std::vector<double> memory(vocabulary_shards::memory_of(begins, 0) + more), found(tasks, -1),
          due(tasks);
      for (std::size_t i = 0; i < tasks; ++i) due[i] = double(i);
      vocabulary_shards together(exchange, begins, 0, memory);
      REQUIRE(together.run(tasks, [&](std::size_t i) {
        found[i] = together.from_owner(7, [&] { return due[i]; });
      }));
      CAPTURE(tasks, more);
      CHECK(found == due);
    }
}

TEST_CASE("vocabulary shards: an exchange that fails ends a run, whichever it is") {
  struct failing {
    std::size_t at, calls = 0;
    bool operator()(std::span<const double> own, std::span<double> all) {
      std::ranges::copy(own, all.begin());
      return calls++ != at;
    }
  };
  numbers random(2);
  const batch b = random_batch(random, 1500, 3, 2, {.top_p = 0.9});
  const std::vector<std::size_t> begins{0, b.V};
  for (std::size_t k = 0;; ++k) {
    failing one_fails{k};
    any_exchange exchange = std::ref(one_fails);
    std::vector<double> memory(vocabulary_shards::memory_of(begins, 100));
    vocabulary_shards together(exchange, begins, 0, memory);
    std::vector<normalised_row<sharded_row<float>>> rows(b.rows());
    const bool ok = together.run(rows.size(), [&](std::size_t i) {
      rows[i] = normalise(sharded_row<float>(b.p.data() + i * b.V, together, b.how));
    });
    CHECK(ok == (one_fails.calls <= k));
    CHECK(together.failed() == !ok);
    CHECK(together.lacks() == !ok);
    CHECK(one_fails.calls <= k + 1);
    if (ok) break;
    REQUIRE(k < 100);
  }
}

namespace {

// One rank, whose exchange number `at` gives back another number `index` than was given.
struct liar {
  std::size_t at, index;
  double value;
  std::size_t calls = 0;
  double given = 0;  // what was there
  bool operator()(std::span<const double> own, std::span<double> all) {
    std::ranges::copy(own, all.begin());
    if (calls++ == at && index < all.size()) given = std::exchange(all[index], value);
    return true;
  }
};
// What a step of whole draft rows and sharded target rows gives, with that exchange.
struct told {
  bool failed, in_range;  // every emitted token
  std::size_t calls;
  double given;
};
template <class Verifier, class Policy>
told with_liar(const batch& b, const Verifier& verifier, const Policy& policy, liar lies) {
  any_exchange exchange = std::ref(lies);
  const std::vector<std::size_t> begins{0, b.V};
  std::vector<double> memory(vocabulary_shards::memory_of(begins, 0)),
      scratch(verify_scratch(b.V, b.gamma));
  vocabulary_shards together(exchange, begins, 0, memory);
  std::vector<emission> out(b.gamma + 1);
  const auto p = rows_of(b.gamma + 1, [&](std::size_t j) {
    return sharded_row<float>(b.p.data() + j * b.V, together, b.how);
  });
  const auto v = verifier.verify({.tokens = b.tokens}, rows_of_logits(b.q, b.V, b.how), p, policy,
                                 random_streams(1, 0), out, scratch);
  told t{together.failed(), true, lies.calls, lies.given};
  for (std::size_t i = 0; i < v.emitted; ++i)
    t.in_range = t.in_range && out[i].token >= 0 && std::size_t(out[i].token) < b.V;
  return t;
}

}  // namespace

TEST_CASE("vocabulary shards: a number that no rank can have given fails, and writes nowhere") {
  numbers random(4);
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::size_t V = 3000;
  const auto run = [&](const batch& b, const auto& verifier, const liar& exchange) {
    using type = std::decay_t<decltype(verifier)>;
    if constexpr (is_coupled<type>) return with_liar(b, verifier, bild{0.1, true}, exchange);
    else if constexpr (type::reads_draft_rows(false))
      return with_liar(b, verifier, token_v3{0.3}, exchange);
    else return with_liar(b, verifier, lossless{}, exchange);
  };
  const auto refuses = [&](const batch& b, const auto& verifier, std::size_t at, std::size_t index,
                           std::initializer_list<double> honest) {
    for (const double x : {1e6, 1e300, inf, nan, -2., -1e9, double(V) + 2100}) {
      const told t = run(b, verifier, {at, index, x});
      CAPTURE(at, index, x, t.given);
      CHECK(t.failed);
      CHECK(t.in_range);
      if (honest.size() > 0) CHECK(t.given == *honest.begin());
    }
  };
  const batch top_k = random_batch(random, V, 1, 1, {.top_k = 50}),
              top_p = random_batch(random, V, 1, 1, {.top_p = 0.3}),
              much = random_batch(random, V, 1, 1, {.top_p = 0.9999}),
              plain = random_batch(random, V, 1, 1, {}),
              greedy = random_batch(random, V, 1, 1, {.temperature = 0});
  const coupled_verifier coupled{coupled_noise(1, 0)};
  refuses(top_k, token_verifier{}, 0, 0, {50});   // how many are listed
  refuses(top_k, token_verifier{}, 0, 51, {});    // an id
  refuses(top_p, token_verifier{}, 1, 0, {256});  // top-p, after the sums: how many are listed
  refuses(top_p, token_verifier{}, 1, 257, {});   // an id
  // Of more tokens, after four exchanges of masses: how many logits equal the last kept one, and
  // the last of these tokens
  refuses(much, token_verifier{}, 6, 0, {1});
  refuses(much, token_verifier{}, 7, 0, {});
  const auto last = [&](const batch& b, const auto& verifier) {
    return run(b, verifier, {99, 0, 0}).calls - 1;
  };
  refuses(plain, match_verifier{}, last(plain, match_verifier{}), 0, {});  // a drawn token
  refuses(plain, coupled, last(plain, coupled), 0, {});
  refuses(greedy, match_verifier{}, 0, 7, {});  // the first largest: after 2 of 3 blocks, and it

  // Any number of any exchange.
  const batch large_k = random_batch(random, V, 1, 1, {.top_k = 1500});
  const double lies[] = {0, -1, -2, 0.5, 7, double(V), 1e6, 1e300, inf, -inf, nan};
  for (int k = 0; k < 3000; ++k) {
    const batch* const b =
        std::array{&top_k, &top_p, &much, &plain, &greedy, &large_k}[random.below(6)];
    const std::size_t index = random.below(3) ? random.below(8) : random.below(4200);
    const liar exchange{random.below(8), index, lies[random.below(std::size(lies))]};
    const auto tell = [&](const auto& verifier) {
      const told t = run(*b, verifier, exchange);
      if (!t.failed && !t.in_range) FAIL("exchange " << exchange.at << ", number " << index);
    };
    if (k % 3 == 0) tell(token_verifier{});
    if (k % 3 == 1) tell(match_verifier{});
    if (k % 3 == 2) tell(coupled);
  }
}

TEST_CASE("vocabulary shards: a run has failed also if a later exchange of other tasks works") {
  numbers random(6);
  const std::vector<std::size_t> begins{0, 3000};
  const batch b = random_batch(random, 3000, 1, 1, {});
  liar lies{0, 2 * 3 + 2,
            -2.};  // behind the sums of the first row: how many tokens the second lists
  any_exchange exchange = std::ref(lies);
  std::vector<double> memory(vocabulary_shards::memory_of(begins, 100));
  vocabulary_shards together(exchange, begins, 0, memory);
  CHECK(!together.run(2, [&](std::size_t i) {
    const sampling how = i == 0 ? sampling{.top_p = 0.3} : sampling{.top_k = 50};
    (void)normalise(sharded_row<float>(b.p.data() + i * 3000, together, how));
  }));
  CHECK(lies.given == 50);
  CHECK(together.failed());
}

TEST_CASE("vocabulary shards: after a task that throws, the next run works") {
  numbers random(5);
  const std::vector<std::size_t> begins{0, 3000};
  liar honest{99, 0, 0};
  any_exchange exchange = std::ref(honest);
  std::vector<double> memory(vocabulary_shards::memory_of(begins, 3));
  vocabulary_shards together(exchange, begins, 0, memory);
  const batch b = random_batch(random, 3000, 1, 2, {});
  using row = normalised_row<sharded_row<float>>;
  std::vector<row> rows(3);
  for (std::size_t at = 0; at < 6; ++at) {  // in the first round, and in the second
    std::size_t tasks = 0;
    const auto task = [&](std::size_t i) {
      if (tasks++ == at) throw std::bad_alloc();
      rows[i] = normalise(sharded_row<float>(b.p.data() + i * 3000, together));
    };
    CHECK_THROWS_AS(together.run(3, task), std::bad_alloc);
    honest.calls = 0;
    CHECK(together.run(3, [&](std::size_t i) {
      rows[i] = normalise(sharded_row<float>(b.p.data() + i * 3000, together));
    }));
    CHECK(honest.calls == 1);
    for (const row& r : rows) CHECK(r.why() == status::ok);
  }
}

TEST_CASE("vocabulary shards: the log gives every task what it has exchanged, in its order") {
  // Three tasks of two ranks with 1, 2 and 3 exchanges, of different lengths.
  std::vector<double> memory(500);
  detail::exchange_log log(3, 2, memory);
  std::vector<std::vector<double>> seen(3);
  const auto twice = [](std::span<const double> own, std::span<double> all) {
    std::ranges::copy(own, all.begin());
    for (std::size_t i = 0; i < own.size(); ++i) all[own.size() + i] = 1000 + own[i];
    return true;
  };
  std::size_t rounds = 0;
  for (;; ++rounds) {
    REQUIRE(log.begin_round());
    for (std::size_t task = 0; task < 3; ++task) {
      if (log.begin_task(task)) {
        seen[task].clear();
        for (std::size_t e = 0; e <= task; ++e) {
          const detail::gathered found = log.replay(e + 1);
          CHECK(!log.lacks());
          if (!found) {
            double* const own = log.record(e + 1);
            REQUIRE(own != nullptr);
            CHECK(log.lacks());
            for (std::size_t i = 0; i <= e; ++i) own[i] = double(100 * task + 10 * e + i);
            break;
          }
          for (const std::size_t r : {0u, 1u})
            for (std::size_t i = 0; i <= e; ++i) seen[task].push_back(found(r, i));
        }
      }
      log.end_task();
    }
    if (log.nothing_recorded()) break;
    REQUIRE(log.send(twice));
  }
  CHECK(rounds == 3);
  CHECK(seen[0] == std::vector<double>{0, 1000});
  CHECK(seen[1] == std::vector<double>{100, 1100, 110, 111, 1110, 1111});
  CHECK(seen[2] ==
        std::vector<double>{200, 1200, 210, 211, 1210, 1211, 220, 221, 222, 1220, 1221, 1222});
  detail::exchange_log small(1, 2, std::span(memory).first(9));
  REQUIRE(small.begin_round());
  REQUIRE(small.begin_task(0));
  CHECK(small.record(2) == nullptr);
  CHECK(small.full());
  CHECK(small.record(1) != nullptr);
  CHECK(!detail::exchange_log(1, 2, std::span(memory).first(3)).begin_round());
}
