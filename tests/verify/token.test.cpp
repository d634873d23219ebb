// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/token.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

#define SPECAGG_COUNT_ALLOCATIONS
#include "support/allocations.hpp"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

using namespace specagg;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                quiet_nan = std::numeric_limits<float>::quiet_NaN();

struct product {  // norm(q p): undefined for disjoint rows
  template <class R>
  auto bind(const R& both_rows) const {
    const double z = both_rows.sum([](auto at) { return at.q * at.p; });
    return [=](auto at) { return at.q * at.p / z; };
  }
};
// Verification is compiled once for these.
using any_policy =
    compiled_once<any_of<lossless, ensemble, lossy, opt, token_v3, minimum<>, product>>;

// Says yes or no to every coin, draws with a fixed uniform, and remembers what it was asked.
struct scripted {
  bool yes = false, never = false;
  double u = 0;
  std::vector<moment> coins = {}, draws = {};
  std::vector<double> totals = {};
  bool coin(moment m, double w, double t) {
    coins.push_back(m);
    return !never && (yes ? w > 0 : u * t < w);
  }
  template <class W>
  token_id draw(moment m, const W& w) {
    draws.push_back(m);
    totals.push_back(w.total);
    return inverse_transform(w, u);
  }
};

struct outcome {
  verdict v;
  std::vector<emission> out;
};
template <class Policy, class Q, class P, class C>
outcome run(const Policy& policy, std::vector<token_id> y, const Q& q, const P& p, C& chooser,
            draft d = {}) {
  d.tokens = y;
  outcome o{{}, std::vector<emission>(y.size() + 1)};
  std::vector<double> scratch(verify_scratch(p[0].size()) + 1);
  o.v = verify_token(d, q, p, policy, chooser, o.out, scratch);
  return o;
}
template <class C>
outcome run_dense(std::vector<token_id> y, std::vector<std::vector<float>> q,
                  std::vector<std::vector<float>> p, C& chooser, draft d = {}) {
  return run(lossless{}, std::move(y), q, p, chooser, d);
}
using rows = std::vector<std::vector<float>>;

}  // namespace

TEST_CASE("p = q accepts every token, with any coin") {
  const std::vector<float> r{0.1f, 0.2f, 0.3f, 0.4f};
  scripted worst{.u = std::nextafter(1.0, 0.0)};
  const auto o = run_dense({0, 1, 2, 3}, rows(4, r), rows(5, r), worst);
  CHECK(o.v.accepted == 4);
  CHECK(o.v.emitted == 5);
  CHECK(o.out[4].from == origin::bonus);
}
TEST_CASE("disjoint supports never accept, even for the coin 0") {
  scripted lucky{.u = 0};
  const auto o = run_dense({0}, {{0.5f, 0.5f, 0, 0}}, rows(2, {0, 0, 0.25f, 0.75f}), lucky);
  CHECK(o.v.accepted == 0);
  CHECK(o.v.emitted == 1);
  CHECK(o.out[0].token == 2);
  CHECK(o.out[0].from == origin::residual);
}
TEST_CASE(
    "a target row of NaN emits nothing and says invalid_row. The prefix before it stands. One of q "
    "ends the draft") {
  const std::vector<float> good{0.5f, 0.5f}, bad{quiet_nan, 0.5f};
  scripted yes{.yes = true};
  for (const auto& broken : {bad, std::vector<float>{inf, 0}, std::vector<float>{1.5f, -0.5f},
                             std::vector<float>{0, 0}}) {
    const auto p = run_dense({0, 1, 0}, rows(3, good), {good, good, broken, good}, yes);
    CHECK(p.v.why == status::invalid_row);
    CHECK(p.v.accepted == 2);
    CHECK(p.v.emitted == 2);
    const auto q = run_dense({0, 1, 0}, {good, broken, good}, rows(4, good), yes);
    CHECK(q.v.why == status::ok);
    CHECK(q.v.accepted == 1);
    CHECK(q.v.emitted == 2);
    CHECK(q.out[1].from == origin::bonus);
    CHECK(q.out[1].why == status::invalid_row);
    const auto reads_q =
        run(any_policy(ensemble{0.5}), {0, 1, 0}, rows{good, broken, good}, rows(4, good), yes);
    CHECK(reads_q.v.why == status::invalid_row);  // no law there
    CHECK(reads_q.v.emitted == 1);
    const auto bonus = run_dense({0, 1, 0}, rows(3, good), {good, good, good, broken}, yes);
    CHECK(bonus.v.why == status::invalid_row);
    CHECK(bonus.v.emitted == 3);
  }
}
TEST_CASE("a fully masked row of logits, or one with NaN or +inf anywhere, is an invalid_row") {
  for (const std::size_t size : {1u, 16u, 1000u, 5000u})
    for (const float poison : {quiet_nan, inf})
      for (const std::size_t where : {std::size_t(0), size / 2, size - 1}) {
        std::vector<float> logits(size, 0.f), broken = logits, masked(size, -inf);
        broken[where] = poison;
        scripted yes{.yes = true};
        const softmax_row<float> q(logits);
        CHECK(run(lossless{}, {0}, std::vector{q}, std::vector(2, softmax_row<float>(broken)), yes)
                  .v.why == status::invalid_row);
        CHECK(run(lossless{}, {0}, std::vector{q}, std::vector(2, softmax_row<float>(masked)), yes)
                  .v.why == status::invalid_row);
        CHECK(run(lossless{}, {0}, std::vector{softmax_row<float>(broken)}, std::vector(2, q), yes)
                  .out[0]
                  .why == status::invalid_row);
      }
}
TEST_CASE("rows that sum to 1 within 1e-3 are renormalised, others are not_normalised") {
  scripted yes{.yes = true};
  CHECK(run_dense({0}, {{0.5005f, 0.5f}}, rows(2, {0.4997f, 0.5f}), yes).v.why == status::ok);
  CHECK(run_dense({0}, {{0.502f, 0.5f}}, rows(2, {0.5f, 0.5f}), yes).out[0].why ==
        status::not_normalised);
  CHECK(run_dense({0}, {{0.5f, 0.5f}}, rows(2, {0.5f, 0.498f}), yes).v.why ==
        status::not_normalised);
}
TEST_CASE("one-hot q: pi(y) accepts, and the residual is pi without y") {
  const auto law = exact_law([](auto& chooser) {
    const std::vector<double> p{0.2, 0.5, 0.3};
    const std::vector<token_id> y{1};
    std::vector<emission> out(2);
    std::vector<double> scratch(1);
    std::vector<one_hot_row<double>> q{{1, 3}};
    const auto v = verify_token({y}, q, std::vector(2, dense_row<double>(p)), lossless{}, chooser,
                                out, scratch);
    return std::pair(v.accepted, out[0].token);
  });
  CHECK(law.at({1, 1}) == Approx(0.5).epsilon(1e-14));
  CHECK(law.at({0, 0}) == Approx(0.2).epsilon(1e-14));
  CHECK(law.at({0, 2}) == Approx(0.3).epsilon(1e-14));
  CHECK(law.count({0, 1}) == 0);
}
TEST_CASE("a vocabulary of one token") {
  scripted yes{.yes = true};
  const auto o = run_dense({0, 0}, rows(2, {1}), rows(3, {1}), yes);
  CHECK(o.v.emitted == 3);
  CHECK(o.out[2].token == 0);
  CHECK(o.out[0].log_pi == 0);
}
TEST_CASE("a vocabulary of 151,936 tokens, with the mass on its last token") {
  constexpr std::size_t size = 151936;
  std::vector<float> q(size, -20.f), p(size, -20.f);
  q[0] = 20;
  p[size - 1] = 20;
  random_streams chooser(1);
  const auto o = run(lossless{}, {0}, std::vector{softmax_row<float>(q)},
                     std::vector(2, softmax_row<float>(p)), chooser);
  CHECK(o.v.accepted == 0);
  CHECK(o.out[0].token == token_id(size - 1));
}
TEST_CASE("a residual of 1e-9 is real and is sampled") {
  const std::vector<double> q{0.5 + 1e-9, 0.5 - 1e-9}, p{0.5, 0.5};
  const auto law = exact_law([&](auto& chooser) {
    const std::vector<token_id> y{0};
    std::vector<emission> out(2);
    std::vector<double> scratch(1);
    const auto v = verify_token({y, 0, no_token, false}, std::vector(1, q), std::vector(1, p),
                                any_policy(lossless{}), chooser, out, scratch);
    return std::tuple(v.accepted, v.emitted, out[0].token);
  });
  CHECK(law.at({0, 1, 1}) == Approx(1e-9 / (0.5 + 1e-9)).epsilon(1e-6));
  CHECK(law.at({1, 1, 0}) == Approx(1).epsilon(1e-8));
}
TEST_CASE("no positive residual after a rejection draws from pi itself") {
  // Rejected although p = q: only a chooser that breaks its promise can do that, as round-off may.
  scripted chooser{.never = true};
  const std::vector<float> r{0, 0.25f, 0.75f};
  const auto o = run_dense({2}, {r}, {r, r}, chooser);
  CHECK(o.v.emitted == 1);
  CHECK(o.out[0].token == 1);
  REQUIRE(chooser.totals.size() == 1);
  CHECK(chooser.totals[0] == 1);
}
TEST_CASE("a uniform of exactly 0 rejects a token of target probability 0") {
  scripted zero{.u = 0};
  const auto o = run_dense({0}, {{0.5f, 0.5f}}, rows(2, {0, 1}), zero);
  CHECK(o.v.accepted == 0);
  CHECK(o.out[0].token == 1);
}
TEST_CASE(
    "a drafted token of probability 0 under q ends the draft before it: the position is drawn from "
    "pi") {
  outcome o;
  const auto law = exact_law([&](auto& chooser) {
    o = run_dense({1}, {{1, 0, 0}}, rows(2, {0.25f, 0.5f, 0.25f}), chooser);
    CHECK(o.v.why == status::ok);
    CHECK(o.v.accepted == 0);
    CHECK(o.out[0].from == origin::bonus);
    CHECK(o.out[0].why == status::draft_not_in_support);
    return o.out[0].token;
  });
  CHECK(law.at(0) == 0.25);  // pi, not norm((pi - q)+), which would never give 0
  CHECK(law.at(1) == 0.5);   // and never accepted as it is
  CHECK(law.at(2) == 0.25);
}
TEST_CASE(
    "a draft that ended early is a shorter draft, bit for bit. Without a bonus the verdict says "
    "why") {
  const std::vector<float> good{0.25f, 0.5f, 0.25f}, target{0.5f, 0.125f, 0.375f},
      bad(3, quiet_nan), one{1, 0, 0};
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    for (const auto& [y, q1, why] : {std::tuple(token_id(7), good, status::token_out_of_range),
                                     std::tuple(token_id(2), one, status::draft_not_in_support),
                                     std::tuple(token_id(1), bad, status::invalid_row)}) {
      random_streams chooser(seed);
      const auto cut = run_dense({1, y, 0}, {good, q1, good}, rows(4, target), chooser);
      const auto padded = run_dense({1, no_token, 0}, {good, good, good}, rows(4, target), chooser);
      REQUIRE(cut.v.why == status::ok);
      REQUIRE(cut.v.emitted == padded.v.emitted);
      for (std::size_t i = 0; i < cut.v.emitted; ++i) {
        CHECK(cut.out[i].token == padded.out[i].token);
        CHECK(cut.out[i].log_pi == padded.out[i].log_pi);
        CHECK(cut.out[i].from == padded.out[i].from);
        CHECK(cut.out[i].why == (cut.out[i].from == origin::bonus ? why : status::ok));
      }
      draft plain;
      plain.bonus = false;
      const auto silent = run_dense({1, y, 0}, {good, q1, good}, rows(4, target), chooser, plain);
      CHECK(silent.v.emitted == 1);
      CHECK(silent.v.why == (cut.v.accepted == 1 ? why : status::ok));
    }
}
TEST_CASE(
    "after a rejection, a position that has no law has no overlap either, and the round is none "
    "the worse") {
  const std::vector<std::vector<double>> q{{.999, .001, 0}, {1, 0, 0}},
      p{{.001, .999, 0}, {0, 0, 1}, {0, 0, 1}};
  const std::vector<token_id> y{0, 0};
  std::vector<emission> out(3);
  std::vector<double> scratch(verify_scratch(3, 2));
  std::vector<draft_acceptance> acceptances(2);
  random_streams chooser(0);
  const any_policy smaller = minimum<>{};
  for (const auto verify : {0, 1, 2}) {
    const draft d{.tokens = y, .acceptances = acceptances};
    const verdict v = verify == 0   ? verify_token(d, q, p, smaller, chooser, out, scratch)
                      : verify == 1 ? verify_match(d, q, p, smaller, chooser, out, scratch)
                                    : verify_block(d, q, p, smaller, chooser, out, scratch);
    CHECK(v.emitted == 1);
    CHECK(acceptances[0].of_row == Approx(0.5).epsilon(0.01));
    CHECK((acceptances[1].of_row == 0 && acceptances[1].of_token == 0));
  }
}
TEST_CASE("scratch that is too small is reported before anything is decided") {
  const std::vector<std::vector<double>> q(2, std::vector<double>(2000, 1.0 / 2000));
  const std::vector<token_id> y{3};
  std::vector<emission> out(2);
  std::vector<double> little(3);  // claims fit, block sums do not
  const any_policy target = lossless{};
  random_streams chooser(1);
  CHECK(verify_token({.tokens = y}, q, q, target, chooser, out, std::span(little).first(1)).why ==
        status::invalid_parameter);
  const verdict v = verify_block({.tokens = y}, q, q, target, chooser, out, little);
  CHECK(v.why == status::invalid_parameter);
  CHECK(v.emitted == 0);
}
TEST_CASE("drafted ids outside the vocabulary end the draft: the position is drawn from pi") {
  for (const token_id y : {-2, -100, 3, 1 << 30, std::numeric_limits<token_id>::max(),
                           std::numeric_limits<token_id>::min()}) {
    const auto law = exact_law([&](auto& chooser) {
      const auto o =
          run_dense({y, 0}, rows(2, {0, 0.5f, 0.5f}), rows(3, {0.25f, 0.25f, 0.5f}), chooser);
      CHECK(o.v.emitted == 1);
      CHECK(o.out[0].why == status::token_out_of_range);
      return o.out[0].token;
    });
    CHECK(law.at(0) == 0.25);
    CHECK(law.at(2) == 0.5);
  }
}
TEST_CASE("padding with -1 ends the draft: a ragged batch is a shorter draft with its bonus") {
  scripted yes{.yes = true};
  const std::vector<float> r{0.5f, 0.5f};
  for (std::size_t length = 0; length <= 4; ++length) {
    std::vector<token_id> y(4, 0);
    std::fill(y.begin() + std::ptrdiff_t(length), y.end(), no_token);
    if (length + 1 < 4) y[length + 1] = 7;  // anything may stand after it
    const auto o = run_dense(y, rows(4, r), rows(5, r), yes);
    CHECK(o.v.accepted == length);
    CHECK(o.v.emitted == length + 1);
    CHECK(o.out[length].from == origin::bonus);
  }
}
TEST_CASE(
    "an end-of-text token inside an accepted prefix ends it there: no later token, no bonus") {
  scripted yes{.yes = true};
  const std::vector<float> r{0.25f, 0.25f, 0.5f};
  const auto o = run_dense({0, 2, 1, 0}, rows(4, r), rows(5, r), yes, {.end_of_text = 2});
  CHECK(o.v.accepted == 2);
  CHECK(o.v.emitted == 2);
  CHECK(o.out[1].token == 2);
  const std::array<token_id, 2> ends{1, 2};
  CHECK(run_dense({0, 2, 1, 0}, rows(4, r), rows(5, r), yes, {.end_of_text = ends}).v.emitted == 2);
  CHECK(run_dense({0, 0, 1, 0}, rows(4, r), rows(5, r), yes, {.end_of_text = ends}).v.emitted == 3);
}
TEST_CASE("no bonus is drawn where none is wanted") {
  scripted yes{.yes = true};
  const auto o = run_dense({0}, {{1, 0}}, rows(2, {1, 0}), yes, {.bonus = false});
  CHECK(o.v.emitted == 1);
  CHECK(yes.draws.empty());
}
TEST_CASE("an empty draft is the target alone") {
  const auto law = exact_law([](auto& chooser) {
    const auto o = run_dense({}, {}, rows(1, {0.25f, 0.75f}), chooser);
    CHECK(o.out[0].from == origin::bonus);
    return o.out[0].token;
  });
  CHECK(law.at(0) == 0.25);
}
TEST_CASE("rows of different vocabularies are a vocabulary_mismatch, never a silent minimum") {
  scripted yes{.yes = true};
  CHECK(run_dense({0}, {{0.5f, 0.5f}}, rows(2, {0.5f, 0.25f, 0.25f}), yes).v.why ==
        status::vocabulary_mismatch);
  CHECK(run(any_policy(ensemble{}), {}, rows{{0.5f, 0.5f}}, rows(1, {0.5f, 0.25f, 0.25f}), yes)
            .v.why == status::vocabulary_mismatch);
}
TEST_CASE("parameters out of range are an invalid_parameter") {
  scripted yes{.yes = true};
  const rows r(2, {0.5f, 0.5f});
  for (const double a : {-0.1, 1.0, 2.0, double(quiet_nan)})
    CHECK(run(any_policy(lossy{a}), {0}, r, r, yes).v.why == status::invalid_parameter);
  CHECK(run(any_policy(lossy{0.3, 0.6}), {0}, r, r, yes).v.why == status::invalid_parameter);
  for (const double l : {-0.1, 1.1, double(quiet_nan)})
    CHECK(run(any_policy(ensemble{l}), {0}, r, r, yes).v.why == status::invalid_parameter);
}
TEST_CASE("a law that does not exist is an undefined_target, and emits nothing") {
  scripted yes{.yes = true};
  const any_policy both = product{};
  CHECK(run(both, {0}, rows{{1, 0}, {1, 0}}, rows{{0, 1}, {0, 1}}, yes).v.why ==
        status::undefined_target);
  CHECK(run(both, {}, rows{{1, 0}}, rows{{0, 1}}, yes).v.why == status::undefined_target);
  CHECK(run(both, {0}, rows{{1, 0}, {0.5f, 0.5f}}, rows{{0.5f, 0.5f}, {0, 1}}, yes).v.emitted == 2);
}
TEST_CASE("sparse and dense rows of the same law give the same tokens") {
  constexpr std::size_t size = 3000;
  std::vector<token_id> ids{0, 15, 16, 1023, 1024, 2047, 2999};
  std::vector<float> mass{0.125f, 0.125f, 0.25f, 0.125f, 0.125f, 0.125f, 0.125f}, dense(size);
  for (std::size_t i = 0; i < ids.size(); ++i) dense[std::size_t(ids[i])] = mass[i];
  std::vector<float> other(size, 1.f / 4096);
  other[1024] += 1.f - 3000.f / 4096;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    random_streams chooser(seed);
    const std::vector<token_id> y{ids[seed % 7], 1024};
    const auto a = run(ensemble{0.25}, y, std::vector(3, dense_row<float>(dense)),
                       std::vector(3, dense_row<float>(other)), chooser);
    const auto b = run(ensemble{0.25}, y, std::vector(3, sparse_row<float>(ids, mass, size)),
                       std::vector(3, dense_row<float>(other)), chooser);
    REQUIRE(a.v.emitted == b.v.emitted);
    for (std::size_t i = 0; i < a.v.emitted; ++i) CHECK(a.out[i].token == b.out[i].token);
  }
}
TEST_CASE("at temperature 0 a policy of the target alone asks for no row of the draft") {
  numbers random(11);
  const std::size_t V = 3000;
  std::vector<float> l(4 * V);
  for (float& x : l) x = float(random.below(2000)) / 100;
  std::vector<token_id> best;
  for (std::size_t j = 0; j < 4; ++j)
    best.push_back(token_id(std::max_element(&l[j * V], &l[j * V] + V) - &l[j * V]));
  std::size_t asked = 0;
  const std::vector<float> uniform(V, 1 / float(V));
  const auto q = rows_of(4, [&](std::size_t) -> const std::vector<float>& {
    ++asked;
    return uniform;
  });
  const auto check = [&](const auto& policy, bool alone) {
    for (std::size_t wrong = 0; wrong < 4; ++wrong) {
      std::vector<token_id> y(best.begin(), best.begin() + 3);
      if (wrong < 3) y[wrong] = (y[wrong] + 1) % token_id(V);
      const auto p = rows_of_logits(std::span<const float>(l), V, {.temperature = 0});
      std::vector<emission> out(4);
      std::vector<double> scratch(verify_scratch(V, 3));
      const random_streams chooser(wrong);
      asked = 0;
      const auto v = verify_token({y}, q, p, policy, chooser, out, scratch);
      CHECK(v.why == status::ok);
      CHECK(v.accepted == wrong);
      CHECK(v.emitted == wrong + 1);
      bool right = true;
      for (std::size_t j = 0; j < v.emitted; ++j)
        right = right && out[j].token == best[j] && out[j].log_pi == 0 && out[j].log_p == 0;
      CHECK(right);
      CHECK(out[wrong].from == (wrong < 3 ? origin::residual : origin::bonus));
      CHECK((asked == 0) == alone);
      // acceptances of rows need the draft's rows
      std::vector<draft_acceptance> rates(3);
      (void)verify_token({.tokens = y, .acceptances = rates}, q, p, policy, chooser, out, scratch);
      CHECK(asked > 0);
      CHECK(rates[0].of_row == Approx(1 / double(V)));
      // a token that is no token ends the draft, as ever
      y[0] = token_id(V);
      asked = 0;
      const auto none = verify_token({y}, q, p, policy, chooser, out, scratch);
      CHECK((none.emitted == 1 && out[0].token == best[0]));
      CHECK(out[0].why == status::token_out_of_range);
    }
  };
  check(lossless(), true);
  check(typical(), true);
  check(any_of<lossless, lossy>(lossless()), true);
  check(lossy{0}, false);
}
namespace {
// Half of the target's row, and half of token 1.
struct half {
  static constexpr bool reads_draft = false, reads_confidence = false, reads_ids = true;
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return 0.5 * at.p + select(at.id == 1., 0.5, 0.); };
  }
};
}  // namespace
TEST_CASE("where a greedy row's law leaves a choice, the draft's row decides as it always does") {
  const std::vector<float> l{0, 1, 5, 2}, q_row{0.25f, 0.25f, 0.25f, 0.25f};
  const std::vector<processed_row<float>> p{{std::span<const float>(l), {.temperature = 0}}};
  std::map<token_id, int> count;
  int accepted = 0;
  for (std::uint32_t i = 0; i < 20000; ++i) {
    const random_streams chooser(7);
    std::vector<emission> out(1);
    std::vector<double> scratch(2);
    const std::vector<std::vector<float>> q{q_row};
    const token_id y[] = {draw_draft(as_row(q_row), i, 0, chooser, scratch)};
    const auto v = verify_token({.tokens = y, .start = i, .bonus = false}, q, p, half(), chooser,
                                out, scratch);
    REQUIRE(v.emitted == 1);
    ++count[out[0].token];
    accepted += int(v.accepted);
  }
  CHECK(count.size() == 2);
  CHECK(std::abs(count[1] - 10000) < 400);
  CHECK(std::abs(accepted - 10000) < 400);  // 1 - TV(q, pi) = 0.5; pi alone would accept 0.25
}
TEST_CASE("at temperature 0 a row that is cut still says whether its token was kept") {
  const std::vector<float> q{1, 1, 1}, p{0, 5, 0}, kept{1, 0, 1}, all{1, 1, 1};
  const auto row = normalise(softmax_row<float>(std::span<const float>(q)));
  using cut = cut_row<std::remove_const_t<decltype(row)>>;
  using either = any_row<cut, softmax_row<float>>;
  const std::vector<processed_row<float>> p_rows(3,
                                                 {std::span<const float>(p), {.temperature = 0}});
  const token_id y[] = {1, 2};
  std::vector<emission> out(3);
  std::vector<double> scratch(verify_scratch(3, 2));
  const random_streams chooser(3);
  const std::vector<cut> q_rows{{row, kept}, {row, all}};
  CHECK(verify_token({.tokens = y}, q_rows, p_rows, lossless(), chooser, out, scratch).accepted ==
        0);
  const std::vector<either> some{cut(row, kept), cut(row, all)};
  CHECK(verify_token({.tokens = y}, some, p_rows, lossless(), chooser, out, scratch).accepted == 0);
  CHECK(out[0].token == 1);  // drawn from pi all the same
}
TEST_CASE("greedy rows that are compiled once need no row of the draft either") {
  using one = any_row<processed_row<float>, softmax_row<float>>;
  const std::vector<float> l{1, 2, 3, 4};
  const processed_row<float> greedy(std::span<const float>(l), {.temperature = 0});
  const std::vector<compiled_once<one>> p_rows(2, one(greedy));
  const std::vector<processed_row<float>> none;
  const token_id y[] = {3};
  std::vector<emission> out(2);
  std::vector<double> scratch(verify_scratch(4, 1));
  const auto v =
      verify_token({.tokens = y}, none, p_rows, lossless(), random_streams(1), out, scratch);
  CHECK((v.accepted == 1 && v.emitted == 2));
}
TEST_CASE("where a greedy row's law leaves a choice, a bad row of the draft ends it as ever") {
  const std::vector<float> l{0, 1, 5, 2}, masked(4, -std::numeric_limits<float>::infinity());
  const std::vector<processed_row<float>> p(2, {std::span<const float>(l), {.temperature = 0}});
  const token_id y[] = {2};
  std::vector<emission> out(2);
  std::vector<double> scratch(verify_scratch(4, 1));
  const auto v = verify_token({.tokens = y}, rows_of_logits(std::span<const float>(masked), 4), p,
                              half(), random_streams(1), out, scratch);
  CHECK((v.emitted == 1 && out[0].why == status::invalid_row));
}
TEST_CASE(
    "rows are asked for once, in order, and not beyond the first rejection. The draft's bonus row "
    "only when it is "
    "needed") {
  const std::vector<float> r{0.5f, 0.5f}, other{0, 1};
  std::vector<std::size_t> q_asked, p_asked;
  const auto q = rows_of(5, [&](std::size_t j) -> const std::vector<float>& {
    q_asked.push_back(j);
    return r;
  });
  const auto p = rows_of(5, [&](std::size_t j) -> const std::vector<float>& {
    p_asked.push_back(j);
    return j == 2 ? other : r;
  });
  const std::vector<token_id> y{0, 1, 0, 1};
  std::vector<emission> out(5);
  std::vector<double> scratch(1);
  scripted chooser{.u = 0.5};
  CHECK(verify_token({y}, q, p, lossless{}, chooser, out, scratch).emitted == 3);
  using list = std::vector<std::size_t>;
  CHECK(q_asked == list{0, 1, 2});
  CHECK(p_asked == list{0, 1, 2});
  q_asked.clear();
  p_asked.clear();
  CHECK(verify_token({std::span(y).first(2)}, q,
                     rows_of(3, [&](std::size_t) -> const std::vector<float>& { return r; }),
                     lossless{}, chooser, out, scratch)
            .emitted == 3);
  CHECK(q_asked == list{0, 1});  // pi = p: no row of the draft for the bonus
  q_asked.clear();
  CHECK(verify_token({std::span(y).first(2)}, q,
                     rows_of(3, [&](std::size_t) -> const std::vector<float>& { return r; }),
                     ensemble{}, chooser, out, scratch)
            .emitted == 3);
  CHECK(q_asked == list{0, 1, 2});
}
TEST_CASE("log-probabilities are those of the emitted tokens under pi and under p") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.125, 0.25, 0.625};
  scripted chooser{.u = 0.7};
  const auto o =
      run(any_policy(ensemble{0.5}), {1, 0}, std::vector(3, q), std::vector(3, p), chooser);
  REQUIRE(o.v.emitted == 2);
  CHECK(o.out[0].log_pi == Approx(std::log(0.25)).epsilon(1e-15));
  CHECK(o.out[0].log_p == Approx(std::log(0.25)).epsilon(1e-15));
  CHECK(o.out[1].token == 2);
  CHECK(o.out[1].log_pi == Approx(std::log(0.4375)).epsilon(1e-15));
  CHECK(o.out[1].log_p == Approx(std::log(0.625)).epsilon(1e-15));
}
TEST_CASE("acceptances are sum min(q, pi) at every drafted position, reached or not") {
  const std::vector<double> q{0.5, 0.25, 0.25}, p{0.125, 0.25, 0.625};
  const std::vector<token_id> y{0, 0, 2};
  std::vector<emission> out(4);
  std::vector<double> scratch(1);
  std::vector<draft_acceptance> acceptances(3);
  scripted chooser{.u = 0.9};
  const auto v = verify_token({.tokens = y, .acceptances = acceptances}, std::vector(4, q),
                              std::vector(4, p), any_policy(lossless{}), chooser, out, scratch);
  CHECK(v.emitted == 1);
  for (const auto& o : acceptances) CHECK(o.of_row == Approx(0.625).epsilon(1e-15));
  CHECK(acceptances[0].of_token == 0.25);
  CHECK(acceptances[2].of_token == 1);
  CHECK(expected_tokens(acceptances) == Approx(1 + 0.625 + 0.625 * 0.25 + 0.625 * 0.0625));
}
TEST_CASE("acceptances with one-hot and sparse drafts have the bits of the dense draft's") {
  constexpr std::size_t size = 5000;
  std::vector<float> l(size), q(size);
  const random_streams noise(6);
  for (std::size_t v = 0; v < size; ++v)
    l[v] = float(5 * noise.uniform({stream::side, std::uint32_t(v), 0}));
  const std::vector<token_id> ids = {7, 1023, 4999};
  const std::vector<float> few = {0.5f, 0.25f, 0.25f};
  for (std::size_t i = 0; i < ids.size(); ++i) q[std::size_t(ids[i])] = few[i];
  std::vector<float> one(size);
  one[4500] = 1;
  const softmax_row<float> p(l);
  const auto overlap_of = [&](const auto& row, token_id y) {
    emission out[2];
    draft_acceptance o[1];
    std::vector<double> scratch(verify_scratch(size));
    const random_streams chooser(1);
    (void)verify_token(draft{.tokens = std::span(&y, 1), .acceptances = o}, std::vector{row},
                       std::vector{p, p}, lossless{}, chooser, out, scratch);
    return o[0].of_row;
  };
  const double sparse = overlap_of(sparse_row<float>(ids, few, size), 7),
               hot = overlap_of(one_hot_row<float>(4500, size), 4500);
  CHECK(sparse > 0);
  CHECK(hot > 0);
  CHECK(sparse == overlap_of(dense_row<float>(q), 7));
  CHECK(hot == overlap_of(dense_row<float>(one), 4500));
}

TEST_CASE("a token is never emitted that its law gives no mass, over random rows with many zeros") {
  const any_policy policies[] = {lossless{}, opt{0.1}, token_v3{0.5}, lossy{0.3}};
  random_streams source(7);
  auto integer = [&, n = std::uint32_t(0)](std::uint32_t below) mutable {
    return std::uint32_t(source.uniform({stream::side, n++, 0}) * below);
  };
  for (int trial = 0; trial < 20000; ++trial) {
    const std::size_t size = 1 + integer(40);
    rows q(3, std::vector<float>(size)), p = q;
    for (rows* r : {&q, &p})
      for (auto& row : *r) {
        for (int i = 0; i < 16; ++i) row[integer(std::uint32_t(size))] += 1.f / 16;
      }
    std::vector<token_id> y;
    for (int j = 0; j < 2; ++j) y.push_back(token_id(integer(std::uint32_t(size))));
    random_streams chooser(std::uint64_t(trial), 1);
    for (const any_policy& policy : policies) {
      const auto o = run(policy, y, q, p, chooser);
      REQUIRE(o.v.why == status::ok);
      for (std::size_t i = 0; i < o.v.emitted; ++i) {
        const auto law = target_law(policy, q[i], p[i]);
        CHECK(law[std::size_t(o.out[i].token)] > 0);
      }
    }
  }
}
TEST_CASE("verification allocates nothing") {
  const std::vector<float> q(5000, 1.f / 5000), p = q;
  const std::vector<token_id> y{1, 2, 3};
  std::vector<emission> out(4);
  std::vector<double> scratch(verify_scratch(5000));
  std::vector<draft_acceptance> acceptances(3);
  const softmax_row<float> l(q);
  random_streams chooser(1);
  const auto row = rows_of(4, [&](std::size_t) -> const std::vector<float>& { return q; });
  const auto logits = rows_of(4, [&](std::size_t) { return l; });
  const std::size_t before = allocations;
  const draft drafted{.tokens = y, .acceptances = acceptances};
  (void)verify_token(drafted, row, row, any_policy(token_v3{0.2}), chooser, out, scratch);
  (void)verify_token(drafted, logits, logits, lossless{}, chooser, out, scratch);
  CHECK(allocations == before);
}
TEST_CASE("renaming the tokens renames the law. A token of no mass changes nothing") {
  const std::vector<double> q{0.5, 0.125, 0.25, 0.125}, p{0.125, 0.25, 0.125, 0.5};
  const std::vector<std::size_t> order{2, 0, 3, 1};
  const any_policy policies[] = {lossless{},    ensemble{0.3}, opt{0.1},
                                 token_v3{0.3}, lossy{0.2},    lossy{0.2, 1}};
  for (const any_policy& policy : policies) {
    const auto law = target_law(policy, q, p);
    std::vector<double> q2(4), p2(4), q3 = q, p3 = p;
    for (std::size_t v = 0; v < 4; ++v) {
      q2[order[v]] = q[v];
      p2[order[v]] = p[v];
    }
    q3.resize(1100);
    p3.resize(1100);
    const auto renamed = target_law(policy, q2, p2), padded = target_law(policy, q3, p3);
    for (std::size_t v = 0; v < 4; ++v) {
      CHECK(renamed[order[v]] == Approx(law[v]).epsilon(1e-14));
      CHECK(padded[v] == Approx(law[v]).epsilon(1e-14));
    }
    for (std::size_t v = 4; v < 1100; ++v) CHECK(padded[v] == 0);
  }
}

#if defined(__SSE2__)
// Engines often run with denormals flushed to zero; softmax rows must not notice.
namespace {

struct result {
  std::size_t emitted;
  std::vector<token_id> tokens;
  std::vector<double> logs;
  bool operator==(const result&) const = default;
};
// Logits spread so widely that most probabilities are denormal or below.
result run_logits(std::uint64_t seed) {
  constexpr std::size_t size = 3000;
  std::vector<float> q(2 * size), p(3 * size);
  const random_streams noise(seed);
  for (std::size_t i = 0; i < p.size(); ++i) {
    p[i] = float(120 * noise.uniform({stream::side, std::uint32_t(i), 0}));
    if (i < q.size()) q[i] = p[i] - float(noise.uniform({stream::side, std::uint32_t(i), 1}));
  }
  const std::vector<token_id> y{token_id(seed % size), token_id(7 * seed % size)};
  std::vector<emission> out(3);
  std::vector<double> scratch(verify_scratch(size));
  random_streams chooser(seed);
  const auto row = [](const float* l) { return softmax_row<float>(l, size, 0.9); };
  const auto v =
      verify_token({.tokens = y}, std::vector{row(q.data()), row(q.data() + size)},
                   std::vector{row(p.data()), row(p.data() + size), row(p.data() + 2 * size)},
                   lossless{}, chooser, out, scratch);
  result r{v.emitted, {}, {}};
  for (std::size_t i = 0; i < v.emitted; ++i) {
    r.tokens.push_back(out[i].token);
    r.logs.push_back(out[i].log_pi);
  }
  return r;
}

}  // namespace

TEST_CASE("flush-to-zero and denormals-are-zero change no token and no bit of a log-probability") {
  std::vector<result> plain, flushed;
  for (std::uint64_t seed = 0; seed < 200; ++seed) plain.push_back(run_logits(seed));
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);
  volatile float tiny = 1e-40f, one = 1;
  volatile float product = tiny * one;
  const bool flushes = product == 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) flushed.push_back(run_logits(seed));
  _mm_setcsr(mode);
  CHECK(flushes);
  CHECK((plain == flushed));
}
#endif
