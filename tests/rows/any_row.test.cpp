// SPDX-License-Identifier: Apache-2.0
#include <specagg/rows/any_row.hpp>

#include <vector>

#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {
using mixed = any_row<one_hot_row<float>, sparse_row<float>, dense_row<float>, softmax_row<float>,
                      processed_row<float>>;
using two_kinds = any_row<one_hot_row<float>, processed_row<float>>;

// Of one token drafted from q, towards the logits p.
template <class Q, class Policy, class Verifier>
auto verdict_of(const Q& q, const std::vector<float>& p, token_id drawn, const Policy& policy,
                const Verifier& verifier, std::vector<emission>& out) {
  out.assign(2, {});
  std::vector<double> scratch(verify_scratch(p.size(), 1));
  random_streams chooser(3);
  std::array<draft_acceptance, 1> acceptances;
  const auto q_rows = rows_of(2, [&](std::size_t) { return q; });
  const auto p_rows =
      rows_of(2, [&](std::size_t) { return processed_row<float>(p, {.temperature = 0.8}); });
  const verdict v =
      verifier.verify(draft{.tokens = std::span(&drawn, 1), .start = 4, .acceptances = acceptances},
                      q_rows, p_rows, policy, chooser, std::span(out), std::span(scratch));
  return std::tuple(v.accepted, v.emitted, v.why, acceptances[0].of_row, acceptances[0].of_token);
}
}  // namespace

TEST_CASE(
    "an any_row has the elements, the confidence and the verdicts of the row in it, bit by bit") {
  static_assert(Row<mixed>);
  constexpr std::size_t V = 3000;  // three blocks
  std::vector<float> logits(V), p(V), dense(V, 1.0f / V);
  for (std::size_t v = 0; v < V; ++v) {
    logits[v] = float(v * 7919 % 101) / 20;
    p[v] = float(v * 104729 % 97) / 20;
  }
  const std::vector<token_id> ids{5, 1500, 2999};
  const std::vector<float> three{0.2f, 0.5f, 0.3f};
  const auto check = [&](const auto& own, token_id drawn) {
    const auto any = normalise(mixed(own), true);
    const auto one = normalise(own, true);
    REQUIRE(any.why() == status::ok);
    REQUIRE(one.why() == status::ok);
    REQUIRE(any.size() == one.size());
    using V16 = vec<float, 16>;
    for (std::size_t v = 0; v < V; ++v) CHECK(any[v] == one[v]);
    for (const std::size_t begin : {std::size_t(0), block_size}) {
      const auto a = any.open(begin, block_size);
      const auto b = one.open(begin, block_size);
      for (std::size_t k = 0; k < block_size; k += 16) {
        float x[16], y[16];
        a.template confidence<V16>(k, 16).store(x), b.template confidence<V16>(k, 16).store(y);
        CHECK(std::equal(x, x + 16, y));
      }
    }
    const auto same = [&](const auto& either, const auto& policy, const auto& verifier) {
      std::vector<emission> a, b;
      CHECK(verdict_of(either, p, drawn, policy, verifier, a) ==
            verdict_of(own, p, drawn, policy, verifier, b));
      for (std::size_t i = 0; i < 2; ++i)
        CHECK((a[i].token == b[i].token && a[i].from == b[i].from && a[i].why == b[i].why &&
               (a[i].log_pi == b[i].log_pi || a[i].log_pi != a[i].log_pi) &&
               a[i].log_p == b[i].log_p));
    };
    // every kind by one verifier, and two kinds by all: the kinds are told apart in one place
    for (const any_of<lossless, ensemble>& policy :
         {any_of<lossless, ensemble>(lossless{}), any_of<lossless, ensemble>(ensemble{0.3})})
      same(mixed(own), policy, token_verifier{});
    if constexpr (requires { two_kinds(own); }) {
      same(two_kinds(own), opt{0.1}, block_verifier{});
      same(two_kinds(own), ensemble{0.3}, match_verifier{});
      same(two_kinds(own), ensemble{0.3}, coupled_verifier{coupled_noise(2)});
    }
  };
  check(one_hot_row<float>(1500, V), 1500);
  check(sparse_row<float>(ids, three, V), 2999);
  check(dense_row<float>(std::span<const float>(dense)), 7);
  check(softmax_row<float>(logits, 0.7), 100);
  check(processed_row<float>(logits, {.temperature = 0.7, .top_k = 50}),
        token_id(std::ranges::max_element(logits) - logits.begin()));
}
TEST_CASE("with_chosen gives the row by its own kind. A default any_row is invalid") {
  mixed row;
  CHECK(normalise(row).why() == status::invalid_row);
  row = one_hot_row<float>(2, 10);
  CHECK(with_chosen(row, [](auto& r) {
    return std::is_same_v<std::remove_cvref_t<decltype(r)>, one_hot_row<float>>;
  }));
  one_hot_row<float> plain(2, 10);
  CHECK(&with_chosen(plain, [](auto& r) -> auto& { return r; }) == &plain);
}
TEST_CASE(
    "a one-hot row has its token without a draw, also in a race. Out of the vocabulary it is "
    "invalid") {
  random_streams chooser(1);
  std::vector<double> scratch(verify_scratch(10, 1));
  CHECK(draw_draft(one_hot_row<float>(7, 10), 3, 0, chooser, scratch) == 7);
  CHECK(draw_draft(one_hot_row<float>(10, 10), 3, 0, chooser, scratch) == no_token);
  CHECK(draw_draft(one_hot_row<float>(no_token, 10), 3, 0, chooser, scratch) == no_token);
  CHECK(race(normalise(one_hot_row<float>(7, 10)), coupled_noise(1), 4) == 7);
  std::vector<double> same(10);
  same[7] = 1;
  const auto dense = normalise(dense_row<double>{std::span<const double>(same)});
  REQUIRE(dense.why() == status::ok);
  CHECK(race(dense, coupled_noise(1), 4) == 7);
  CHECK(draw_draft(dense, 3, 0, chooser, scratch) == 7);
}
