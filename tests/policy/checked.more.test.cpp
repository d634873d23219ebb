// SPDX-License-Identifier: Apache-2.0
#include <specagg/policy/checked.hpp>

#include <tuple>

#include <specagg/decoders.hpp>
#include <specagg/sites/aggregate.hpp>

#include "decode/toy_text.hpp"
#include "policy/every_verifier.hpp"
#include "policy/plain.hpp"
#include "support/all_policies.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

// a q + b p: a law if both are at least 0 and sum to 1.
struct weighted {
  double a, b;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    return [r = *this](auto at) { return fma(r.a, model<0>(at), r.b * model<1>(at)); };
  }
};
struct weighted_first : weighted {  // of three models
  static constexpr std::size_t models = 3;
};
// b p, and it does not look at q.
struct scaled {
  double b;
  static constexpr bool reads_draft = false, reads_confidence = false;
  template <class Rows>
  auto bind(const Rows&) const {
    return [b = b](auto at) { return at.p * b; };
  }
};

template <class T, class Policy>
void is_reported(const Policy& policy) {
  for (const std::size_t V : {3u, 17u, 2100u})
    for (const seen& s : by_every_verifier<T>(checked{policy}, V, V)) {
      CHECK(s.v.why == status::undefined_target);
      CHECK(s.v.emitted == 0);
    }
}
template <class T, class Policy>
void is_unchanged(const Policy& policy) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const std::size_t V = std::array{2u, 5u, 40u, 1024u, 1500u, 3000u}[seed % 6];
    CHECK(by_every_verifier<T>(checked{policy}, seed, V) == by_every_verifier<T>(policy, seed, V));
  }
}

}  // namespace

TEST_CASE(
    "a policy that is no law emits tokens where it is trusted, and every verifier reports it where "
    "it is checked") {
#ifdef NDEBUG
  for (const seen& s : by_every_verifier<float>(weighted{.5, .4}, 1, 17))
    CHECK(s.v.why == status::ok);
#endif
  is_reported<float>(weighted{.5, .4}), is_reported<double>(weighted{.5, .4});
  is_reported<float>(weighted{.5, .6}), is_reported<double>(weighted{.5, .6});
  // negative here and there; the sum is 1
  is_reported<float>(weighted{-1, 2}), is_reported<double>(weighted{-1, 2});
  is_reported<float>(scaled{.9}), is_reported<double>(scaled{.9});
  is_reported<double>(weighted{infinity, 1});
}
TEST_CASE("a checked policy that is a law emits the same bits as the policy") {
  std::vector<any_policy> all;
  for_each_in_catalogue([&](const auto& line) {
    for (const auto& policy : line.values) all.push_back(policy);
  });
  for (const any_policy& policy : all) is_unchanged<float>(policy), is_unchanged<double>(policy);
  is_unchanged<float>(lossless{}), is_unchanged<double>(lossless{});
  is_unchanged<float>(weighted{.5, .5}), is_unchanged<double>(scaled{1});
}
TEST_CASE("the sum of a checked policy may be a thousandth off") {
  const row q{.5, .3, .2}, p{.2, .3, .5};
  for (const double sum : {0.9991, 1.0009})
    CHECK(target_law(checked{weighted{.5, sum - .5}}, q, p).size() == 3);
  for (const double sum : {0.9989, 1.0011, 0.0, -1.0, inf})
    CHECK(target_law(checked{weighted{.5, sum - .5}}, q, p).empty());
}
TEST_CASE("one negative probability, however small, is no law") {
  const row p{1, 0, 0};
  CHECK(target_law(checked{weighted{-1e-30, 1}}, row{1, 0, 0}, p).size() == 3);
  CHECK(target_law(checked{weighted{-1e-30, 1}}, row{0, 0, 1}, p).empty());
}
TEST_CASE("a policy that is checked declares what the policy declares") {
  STATIC_REQUIRE(!reads_draft<checked<lossless>>);
  STATIC_REQUIRE(reads_draft<checked<ensemble>>);
  STATIC_REQUIRE(!reads_confidence<checked<ensemble>>);
  STATIC_REQUIRE(reads_confidence<checked<opt>>);
  STATIC_REQUIRE(is_unanimous<checked<ensemble>>);
  STATIC_REQUIRE(!may_be_unanimous<checked<opt>>);
  STATIC_REQUIRE(!is_unanimous<checked<geometric>>);
  STATIC_REQUIRE(may_be_unanimous<checked<geometric>>);
  STATIC_REQUIRE(TargetPolicy<checked<opt>, float>);
  STATIC_REQUIRE(TargetPolicy<checked<opt>, double>);
  STATIC_REQUIRE(is_raw_logits<checked<raw_logits<ensemble>>>);
  STATIC_REQUIRE(!is_raw_logits<checked<ensemble>>);
  CHECK(unanimous_here(checked{geometric{0.5}}));
  CHECK(!unanimous_here(checked{geometric{1.5}}));
  CHECK(!valid(checked{lossy{-1}}));
  CHECK(!valid(checked{raw_logits{ensemble{2}}}));
  CHECK(valid(checked{weighted{3, 4}}));
  for (const seen& s : by_every_verifier<float>(checked{lossy{-1}}, 1, 5))
    CHECK(s.v.why == status::invalid_parameter);
}
TEST_CASE("sites that combine by a checked policy agree and exchange as by the policy") {
  const std::array<token_id, 2> same_token{4, 4}, others{4, 5};
  CHECK(unanimous(checked{ensemble{0.3}}, same_token) == 4);
  CHECK(unanimous(checked{ensemble{0.3}}, others) == no_token);
  CHECK(unanimous(checked{geometric{1.5}}, same_token) == no_token);
  const std::array<row, 2> score{row{3, 2, 1}, row{1, 5, 2}};
  const auto winner = [&](const auto& policy) {
    return exchange<2>(
        policy,
        [&](std::size_t site, contender last) {
          contender best;
          for (token_id v = 0; v < 3; ++v) {
            const contender c{v, score[site][std::size_t(v)]};
            if (before(last, c) && (best.token == no_token || before(c, best))) best = c;
          }
          return best;
        },
        [&](std::size_t site, token_id v) { return score[site][std::size_t(v)]; });
  };
  CHECK(winner(checked{ensemble{0.3}}).token == 1);
  CHECK(winner(checked{ensemble{0.3}}).score == winner(ensemble{0.3}).score);
}

namespace {

// The text of 2 or 3 models, and why it ended.
template <std::size_t N, class Policy>
std::pair<status, std::vector<token_id>> written_by(const Policy& policy) {
  std::array<toy_source<float>, N> models = [&]<std::size_t... K>(std::index_sequence<K...>) {
    return std::array<toy_source<float>, N>{toy_source<float>(40, K + 1, 2)...};
  }(std::make_index_sequence<N>());
  std::array<std::size_t, N> gamma;
  gamma.fill(2);
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  collaborative_workspace<float, N> work(40, {gamma, {.temperature = 0.9}});
  random_streams chooser(3);
  const status why = std::apply(
      [&](auto&... m) {
        return collaborative_decode(std::tie(m...), policy, chooser,
                                    {.text = t, .most = 20, .work = work});
      },
      models);
  return {why, std::vector(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size))};
}

}  // namespace

TEST_CASE(
    "CoS decoders report a checked policy that is no law, and write the same text by one that is") {
  CHECK(written_by<2>(checked{ensemble{0.3}}) == written_by<2>(ensemble{0.3}));
  CHECK(written_by<2>(checked{lossless{}}) == written_by<2>(lossless{}));
  CHECK(written_by<3>(checked{mixture<3>{{.2, .3, .5}}}) ==
        written_by<3>(mixture<3>{{.2, .3, .5}}));
  CHECK(written_by<3>(checked{raw_logits{minimum<3>{}}}) ==
        written_by<3>(raw_logits{minimum<3>{}}));
#ifdef NDEBUG
  CHECK(written_by<2>(weighted{.5, .4}).second.size() == 21);
#endif
  const std::pair nothing{status::undefined_target, std::vector<token_id>{0}};
  CHECK(written_by<2>(checked{weighted{.5, .4}}) == nothing);
  CHECK(written_by<2>(checked{scaled{.9}}).first == status::undefined_target);
  CHECK(written_by<3>(checked{weighted_first{{.5, .4}}}) == nothing);
#ifdef NDEBUG
  CHECK(written_by<3>(raw_logits{weighted_first{{.5, .4}}}).first == status::ok);
#endif
  CHECK(written_by<3>(checked{raw_logits{weighted_first{{.5, .4}}}}) == nothing);
  CHECK(written_by<3>(raw_logits{checked{weighted_first{{.5, .4}}}}) == nothing);
}
TEST_CASE("aggregation's law is a law: checked, its tokens are the same") {
  const std::vector<float> l{.5f, .3f, .2f}, r{.1f, .2f, .7f};
  CHECK(target_law(checked{weigh_sites(.3, -.4).law()}, l, r) ==
        target_law(weigh_sites(.3, -.4).law(), l, r));
}
