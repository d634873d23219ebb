// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/verifiers.hpp>

#include <string>
#include <vector>

#include <specagg/policy/lossless.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

constexpr std::size_t drafted = 3, V = 7;

// A random instance; its draft is proposed by the verifier.
struct instance {
  std::vector<std::vector<double>> q = std::vector(drafted + 1, std::vector<double>(V)), p = q;
  std::vector<double> scratch = std::vector<double>(verify_scratch(V, drafted));
  std::vector<token_id> y;
  std::uint64_t seed;
  template <class Verifier>
  instance(const Verifier& verifier, std::uint64_t s) : seed(s) {
    numbers n(s);
    for (auto* rows : {&q, &p})
      for (auto& row : *rows) {
        double sum = 0;
        for (double& x : row) sum += x = n.uniform() * n.uniform();
        for (double& x : row) x /= sum;
      }
    random_streams chooser(seed);
    for (std::uint32_t j = 0; j < drafted; ++j) {
      const auto row = normalise(dense_row<double>(q[j]));
      REQUIRE(row.why() == status::ok);
      y.push_back(verifier.propose(row, 0, j, chooser, scratch));
    }
  }
};
struct outcome {
  std::vector<token_id> tokens;
  std::vector<double> acceptances;
  bool operator==(const outcome&) const = default;
};
template <class Verify>
outcome outcome_of(instance& x, Verify&& verify) {
  std::vector<emission> out(drafted + 1);
  std::vector<draft_acceptance> acceptances(drafted);
  random_streams chooser(x.seed);
  const verdict v = verify(draft{.tokens = x.y, .acceptances = acceptances}, x.q, x.p, lossless{},
                           chooser, std::span(out), std::span(x.scratch));
  REQUIRE(v.why == status::ok);
  outcome o;
  for (std::size_t i = 0; i < v.emitted; ++i) o.tokens.push_back(out[i].token);
  for (const draft_acceptance& a : acceptances) {
    o.acceptances.push_back(a.of_row);
    o.acceptances.push_back(a.of_token);
  }
  return o;
}
template <class Verifier, class Function>
void is_the_function(const Verifier& verifier, Function&& function) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    instance x(verifier, seed);
    CHECK(outcome_of(x, [&](auto&&... a) { return verifier.verify(a...); }) ==
          outcome_of(x, function));
  }
}

}  // namespace

TEST_CASE("the list has every verifier once, each with its own name") {
  std::vector<std::string> names;
  for_each_verifier(1, 2, [&](const auto& verifier) {
    using type = std::decay_t<decltype(verifier)>;
    names.push_back(verifier.name);
    if constexpr (is_coupled<type>) CHECK(verifier.noise(3, 4) == coupled_noise(1, 2)(3, 4));
  });
  CHECK(names == std::vector<std::string>{"token", "block", "match", "coupled"});
  for_each_verifier<all_tree_verifiers>(
      0, 0, [&](const auto& verifier) { names.push_back(verifier.name); });
  CHECK(names.size() == 6);
  CHECK((names[4] == "traversal" && names[5] == "recursive"));
}
TEST_CASE("a verifier is found by its name and its number") {
  STATIC_REQUIRE((verifier_number("token") == 0 && verifier_number("coupled") == 3));
  STATIC_REQUIRE((verifier_number("") == 4 && verifier_number("recursive") == 4));
  STATIC_REQUIRE(verifier_number<all_tree_verifiers>("recursive") == 1);
  for (std::size_t number = 0; number < 6; ++number) {
    std::string name;
    const bool found = with_verifier(number, 1, 2, [&]<class V>(const V& verifier) {
      CHECK(name.empty());
      name = verifier.name;
      if constexpr (is_coupled<V>) CHECK(verifier.noise(3, 4) == coupled_noise(1, 2)(3, 4));
    });
    CHECK(found == (number < 4));
    CHECK((number < 4 ? verifier_number(name) == number : name.empty()));
  }
}
TEST_CASE("a verifier that says that it reads no rows of the draft gets by without any") {
  std::size_t without = 0;
  for_each_verifier(1, 0, [&](const auto& verifier) {
    using type = std::decay_t<decltype(verifier)>;
    instance x(verifier, 5);
    const auto run = [&](bool acceptances) {
      std::vector<emission> out(drafted + 1);
      std::vector<draft_acceptance> o(acceptances ? drafted : 0);
      random_streams chooser(5);
      std::vector<std::vector<double>> none;
      return verifier.verify(draft{.tokens = x.y, .acceptances = o}, none, x.p, lossless{}, chooser,
                             std::span(out), std::span(x.scratch));
    };
    for (const bool acceptances : {false, true})
      if (!type::reads_draft_rows(acceptances)) {
        CHECK(run(acceptances).why == status::ok);
        ++without;
      }
    if (type::reads_draft_rows(false)) CHECK(run(false).why == status::missing_row);
  });
  CHECK(without == 3);
}
TEST_CASE("token, block and match verifiers are their functions") {
  is_the_function(token_verifier{}, [](auto&&... a) { return verify_token(a...); });
  is_the_function(block_verifier{}, [](auto&&... a) { return verify_block(a...); });
  is_the_function(match_verifier{}, [](auto&&... a) { return verify_match(a...); });
}
TEST_CASE(
    "a coupled verifier proposes the winners of its noise, and says of each token whether it was "
    "accepted") {
  std::size_t kept = 0, rejected = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const coupled_verifier verifier{coupled_noise(seed)};
    instance x(verifier, seed);
    for (std::uint32_t j = 0; j < drafted; ++j) {
      const auto row = normalise(dense_row<double>(x.q[j]));
      REQUIRE(row.why() == status::ok);
      CHECK(x.y[j] == race(row, verifier.noise, j));
    }
    const outcome o = outcome_of(x, [&](auto&&... a) { return verifier.verify(a...); });
    std::size_t accepted = 0;
    while (accepted < drafted && o.tokens[accepted] == x.y[accepted]) ++accepted;
    kept += accepted;
    rejected += accepted < drafted;
    for (std::size_t j = 0; j < drafted; ++j) {
      CHECK(o.acceptances[2 * j] == double(j < accepted));
      CHECK(o.acceptances[2 * j + 1] == double(j < accepted));
    }
  }
  CHECK((kept > 10 && rejected > 10));
}
