// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/any_of.hpp>

#include <limits>
#include <tuple>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/decoders.hpp>

#include "decode/toy_text.hpp"
#include "policy/every_verifier.hpp"

using namespace specagg;

namespace {

using any_policy = any_of<lossless, lossy, bild, token_v3, ensemble, contrastive, power>;

struct cannot_be_copied {
  cannot_be_copied() = default;
  cannot_be_copied(const cannot_be_copied&) { throw 1; }
  auto bind(const auto&) const {
    return [](auto at) { return at.p; };
  }
};

template <class F>
void for_each_policy(F f) {
  f(lossless{});
  f(lossy{0.2});
  f(bild{1});
  f(token_v3{0.3});
  f(ensemble{0.4});
  f(contrastive{0.2});
  f(power{0.4, 2});
}

}  // namespace

TEST_CASE(
    "a policy in any_of emits the bits of the policy itself, under every verifier, however it is "
    "handed over") {
  for_each_policy([](const auto& policy) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      const std::size_t V = std::array<std::size_t, 6>{2, 5, 40, 1024, 1500, 3000}[seed % 6];
      const auto due = by_every_verifier<float>(policy, seed, V);
      CHECK(by_every_verifier<float>(any_policy{policy}, seed, V) == due);
      CHECK(by_every_verifier<float>(checked{any_policy{policy}}, seed, V) == due);
      with_chosen(any_policy{policy}, [&](const auto& chosen) {
        CHECK(std::is_same_v<std::decay_t<decltype(chosen)>, std::decay_t<decltype(policy)>>);
        CHECK(by_every_verifier<float>(chosen, seed, V) == due);
      });
    }
    const std::vector<double> q{.5, .25, .25}, p{.125, .375, .5};
    CHECK(target_law(any_policy{policy}, q, p) == target_law(policy, q, p));
    CHECK(target_law(any_policy{policy}, q, p).size() == 3);
  });
  CHECK(by_every_verifier<double>(any_policy{token_v3{0.3}}, 3, 1500) ==
        by_every_verifier<double>(token_v3{0.3}, 3, 1500));
  const any_of<checked<ensemble>, checked<opt>> both{checked{ensemble{0.4}}};
  CHECK(by_every_verifier<float>(both, 3, 40) == by_every_verifier<float>(ensemble{0.4}, 3, 40));
}
TEST_CASE(
    "any_of declares what holds for all of its policies, and has the parameters of the chosen "
    "one") {
  STATIC_REQUIRE(!reads_draft<any_of<lossless>>);
  STATIC_REQUIRE(reads_draft<any_of<lossless, ensemble>>);
  STATIC_REQUIRE(!reads_confidence<any_of<lossless, ensemble>>);
  STATIC_REQUIRE(reads_confidence<any_of<lossless, opt>>);
  STATIC_REQUIRE(TargetPolicy<any_policy, float>);
  STATIC_REQUIRE(TargetPolicy<any_policy, double>);
  CHECK(valid(any_policy{lossless{}}));
  CHECK(valid(any_policy{lossy{0.5}}));
  CHECK(!valid(any_policy{lossy{1.5}}));
  CHECK(!valid(any_policy{ensemble{-1}}));
  for (const seen& s : by_every_verifier<float>(any_policy{ensemble{-1}}, 1, 5))
    CHECK(s.v.why == status::invalid_parameter);
}
TEST_CASE(
    "any_of that holds no policy, because copying one threw, is an invalid parameter and throws "
    "nothing") {
  any_of<lossless, cannot_be_copied> policy;
  CHECK_THROWS(policy.chosen.emplace<cannot_be_copied>(cannot_be_copied{}));
  REQUIRE(policy.chosen.valueless_by_exception());
  CHECK(!valid(policy));
  for (const seen& s : by_every_verifier<float>(policy, 1, 5))
    CHECK(s.v.why == status::invalid_parameter);
  status why = status::ok;
  CHECK(target_law(policy, std::vector{.5, .5}, std::vector{.5, .5}, &why).empty());
  CHECK(why == status::invalid_parameter);
  toy_source<float> d(40, 1, 2), m(40, 2, 2);
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  speculative_workspace<float> work(40, {.gamma = 3});
  random_streams chooser(3);
  CHECK(speculative_decode(d, m, policy, chooser, {.text = t, .most = 20, .work = work}) ==
        status::invalid_parameter);
  CHECK(t.size == 1);
}
TEST_CASE(
    "where the chosen policy does not read the draft, no row of the draft is asked for the bonus") {
  const std::vector<float> row{0, 1, 2};
  const auto asked = [&](const auto& policy) {
    std::size_t most = 0;
    random_streams chooser(1);
    emission out[2];
    std::vector<double> scratch(verify_scratch(3));
    const token_id y[] = {2};
    const verdict v = verify_token({.tokens = y},
                                   rows_of(2,
                                           [&](std::size_t j) {
                                             most = std::max(most, j);
                                             return softmax_row<float>(row);
                                           }),
                                   rows_of(2, [&](std::size_t) { return softmax_row<float>(row); }),
                                   policy, chooser, out, scratch);
    CHECK(v.emitted == 2);
    return most;
  };
  CHECK(asked(any_policy{lossless{}}) == 0);
  CHECK(asked(any_policy{ensemble{0.3}}) == 1);
}
TEST_CASE("a batch verifies each request by a policy of its own") {
  constexpr std::size_t V = 50, n = 7;
  std::vector<any_policy> policies;
  for_each_policy([&](const auto& policy) { policies.push_back({policy}); });
  REQUIRE(policies.size() == n);
  numbers random(3);
  std::vector<float> q(n * V), p(2 * n * V);
  for (auto* all : {&q, &p})
    for (float& x : *all) x = float(random.between(-2, 2));
  std::vector<token_id> drafted(n);
  std::vector<emission> out(2 * n), alone(2);
  std::vector<verdict> verdicts(n);
  std::vector<double> scratch(n * verify_scratch(V, 1));
  const auto row = [&](const std::vector<float>& all, std::size_t k) {
    return softmax_row<float>(std::span(all).subspan(k * V, V));
  };
  const auto request = [&](std::size_t i, const auto& policy, std::span<emission> to) {
    return verification{draft{std::span(drafted).subspan(i, 1)},
                        rows_of(2, [&, i](std::size_t) { return row(q, i); }),
                        rows_of(2, [&, i](std::size_t j) { return row(p, 2 * i + j); }),
                        policy,
                        random_streams(9, i),
                        to};
  };
  for (std::size_t i = 0; i < n; ++i) {
    random_streams chooser(9, i);
    drafted[i] = draw_draft(row(q, i), 0, 0, chooser, scratch);
  }
  verify_batch(
      [&](std::size_t i) { return request(i, policies[i], std::span(out).subspan(2 * i, 2)); },
      verdicts, scratch, block_verifier());
  std::size_t i = 0;
  for_each_policy([&](const auto& policy) {
    const verdict v = verify(request(i, policy, alone), block_verifier(), scratch);
    CHECK(v.why == status::ok);
    CHECK(v.emitted == verdicts[i].emitted);
    for (std::size_t k = 0; k < v.emitted; ++k) {
      CHECK(alone[k].token == out[2 * i + k].token);
      CHECK(alone[k].log_pi == out[2 * i + k].log_pi);
    }
    ++i;
  });
}

namespace {

std::vector<token_id> text_by(const auto& policy) {
  toy_source<float> d(40, 1, 2), m(40, 2, 2);
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  speculative_workspace<float> work(40, {.gamma = 3});
  random_streams chooser(3);
  const status why =
      speculative_decode(d, m, policy, chooser, {.text = t, .most = 20, .work = work});
  CHECK(why == status::ok);
  buffer.resize(t.size);
  return buffer;
}
// Of 2 or 3 models that take turns.
template <std::size_t N>
std::vector<token_id> collaborative_text_by(const auto& policy) {
  toy_source<float> a(40, 1, 2), b(40, 2, 2), c(40, 3, 2);
  std::array<std::size_t, N> gamma;
  gamma.fill(2);
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  collaborative_workspace<float, N> work(40, {gamma, {.temperature = 0.9}});
  random_streams chooser(3);
  const auto decode = [&](const auto& models) {
    return collaborative_decode(models, policy, chooser, {.text = t, .most = 20, .work = work});
  };
  status why;
  if constexpr (N == 2) why = decode(std::tie(a, b));
  else why = decode(std::tie(a, b, c));
  CHECK(why == status::ok);
  buffer.resize(t.size);
  return buffer;
}

}  // namespace

TEST_CASE("decoders write the text of the chosen policy. Raw logits are combined by it") {
  for_each_policy(
      [](const auto& policy) { CHECK(text_by(any_policy{policy}) == text_by(policy)); });
  using pair = any_of<ensemble, geometric>;
  CHECK(collaborative_text_by<2>(pair{geometric{0.3}}) == collaborative_text_by<2>(geometric{0.3}));
  CHECK(collaborative_text_by<2>(raw_logits{pair{geometric{0.3}}}) ==
        collaborative_text_by<2>(raw_logits{geometric{0.3}}));
  CHECK(collaborative_text_by<2>(raw_logits{pair{ensemble{0.3}}}) ==
        collaborative_text_by<2>(raw_logits{ensemble{0.3}}));
  using triple = any_of<minimum<3>, mixture<3>>;
  const mixture<3> mix{{.2, .3, .5}};
  CHECK(collaborative_text_by<3>(triple{mix}) == collaborative_text_by<3>(mix));
  CHECK(collaborative_text_by<3>(raw_logits{triple{mix}}) ==
        collaborative_text_by<3>(raw_logits{mix}));
  CHECK(collaborative_text_by<3>(triple{minimum<3>{}}) == collaborative_text_by<3>(minimum<3>{}));
}
TEST_CASE("sites that combine by any_of agree where the chosen combiner is unanimous") {
  using pair = any_of<ensemble, geometric>;
  STATIC_REQUIRE(may_be_unanimous<pair>);
  STATIC_REQUIRE(!may_be_unanimous<any_of<ensemble, opt>>);
  const std::array<token_id, 2> same_token{4, 4}, others{4, 5};
  CHECK(unanimous(pair{ensemble{0.3}}, same_token) == 4);
  CHECK(unanimous(pair{ensemble{0.3}}, others) == no_token);
  CHECK(unanimous(pair{geometric{0.5}}, same_token) == 4);
  CHECK(unanimous(pair{geometric{1.5}}, same_token) == no_token);
  const std::array<double, 2> x{.25, .5};
  CHECK(as_double(pair{geometric{0.3}}.unnormalised(view_of(x))) ==
        as_double(geometric{0.3}.unnormalised(view_of(x))));
}
