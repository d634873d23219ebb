// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/drafter.hpp>

#include <array>
#include <vector>

#include <specagg/audit/grid.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;

namespace {

using tokens = std::vector<token_id>;
using policies = compiled_once<any_of<lossless, ensemble, opt, token_v3, lossy, chow, power>>;

// Gives a row until `rows` were given in a draft, then the status.
struct ending_drafter : mixed_drafter {
  std::size_t rows;
  status why;
  explicit ending_drafter(std::size_t n = 1000, status s = status::no_draft) : rows(n), why(s) {}
  template <class P>
  status next(const draft_position& at, P& processor, row_type& row, double& confidence) {
    const status s = mixed_drafter::next(at, processor, row, confidence);
    return at.drafted < rows ? s : why;
  }
};

template <class Policy>
double worst_error(const Policy& policy, std::size_t gamma, std::size_t length,
                   const any_verifier& verifier) {
  std::size_t reused = 0;
  const auto law = exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        toy_source<double> m(vocabulary, 2);
        ending_drafter drafter;
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        drafting_workspace<double, mixed_drafter::row_type> work(vocabulary, {.gamma = gamma});
        const status why = speculative_decode(drafter, m, policy, chooser,
                                              {.text = t, .most = length, .work = work}, verifier);
        REQUIRE(why == status::ok);
        CHECK(drafter.known <= t.size);
        return tokens(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(reused == 0);
  const toy_source<double> m(vocabulary, 2);
  return worst_joint_error(law, length, no_token, [&](const tokens& context) {
    ending_drafter drafter;
    no_processor none;
    mixed_drafter::row_type q;
    double confidence;
    REQUIRE(drafter.next({context, 0}, none, q, confidence) == status::ok);
    std::vector<double> p(vocabulary);
    m.row(context, p);
    return target_law(policy, q, processed_row<double>(p));
  });
}

}  // namespace

TEST_CASE(
    "drafts of one-hot, sparse and dense rows have the joint law of every policy, whose q is the "
    "drafter's row") {
  static_assert(Drafter<mixed_drafter>);
  const auto check = [](const auto& policy) {
    for (std::size_t gamma = 1; gamma <= 3; ++gamma) {
      CHECK(worst_error(policy, gamma, 4, token_verifier{}) < 1e-12);
      CHECK(worst_error(policy, gamma, 4, block_verifier{}) < 1e-12);
      CHECK(worst_error(policy, gamma, 3, match_verifier{}) < 1e-12);
    }
  };
  check(lossless{});
  for (const policies& policy :
       {policies(ensemble{0.3}), policies(opt{0.05}), policies(token_v3{0.3})})
    check(policy);
}

TEST_CASE(
    "one-hot drafts, as a lookup's, have the law of every policy at every prefix of a round, on "
    "the "
    "1/8 grid") {
  using kinds = any_row<one_hot_row<double>, dense_row<double>>;
  std::size_t walked = 0;
  const auto check = [&](const policies& policy, const any_verifier& verifier) {
    double worst = 0;
    std::size_t reused = 0;
    for (std::size_t gamma = 1; gamma <= 3; ++gamma)
      for (std::size_t i = 0; i < grid_round<double>::rounds(); i += gamma) {
        const grid_round<double> r{i};
        const auto token = [=](const tokens& prefix) {
          return token_id((i + 2 * prefix.size()) % 3);
        };
        const auto q = [=](const tokens& prefix) {
          return kinds(one_hot_row<double>(token(prefix), 3));
        };
        const auto p = [=](const tokens& prefix) { return r.p(prefix); };
        const auto pi = [=](const tokens& prefix) {
          return target_law(policy, one_hot_row<double>(token(prefix), 3), r.p(prefix));
        };
        const auto verify = [&](const draft& drafted, auto&&... a) {
          ++walked;
          return verifier.verify(drafted, a...);
        };
        const round_error e = worst_error_of_round(policy, gamma, q, p, verify, pi);
        worst = std::max(worst, e.error);
        reused += e.reused;
      }
    CHECK(worst < 1e-12);
    CHECK(reused == 0);
  };
  const auto every_verifier = [&](const policies& policy) {
    check(policy, token_verifier{});
    check(policy, block_verifier{});
    check(policy, match_verifier{});
  };
  every_verifier(lossless{});
  every_verifier(lossy{0.2});
  every_verifier(chow{0.4});
  every_verifier(opt{0.2});
  every_verifier(token_v3{0.3});
  every_verifier(ensemble{0.4});
  every_verifier(power{0.4, 2});
  CHECK(walked > 10000);
}

TEST_CASE(
    "a drafter that has no row ends the draft. That is an error only if the policy reads it, or it "
    "says stopped") {
  for (std::size_t rows = 0; rows <= 3; ++rows)
    for (const status why : {status::no_draft, status::context_full, status::stopped}) {
      toy_source<double> m(vocabulary, 2);
      ending_drafter drafter(rows, why);
      std::vector<token_id> buffer(40);
      text t{buffer, 1};
      drafting_workspace<double, mixed_drafter::row_type> work(vocabulary, {.gamma = 3});
      either chooser = random_streams(rows);
      const any_verifier verifier;
      const auto r = speculative_round(drafter, m, lossless{}, chooser,
                                       {.text = t, .most = 10, .work = work}, verifier);
      CHECK(r.draft_why == (rows == 3 ? status::ok : why));
      if (why == status::stopped && rows < 3) {
        CHECK((r.why == status::stopped && r.emitted == 0 && t.size == 1));
        continue;
      }
      CHECK((r.why == status::ok && r.drafted == rows && r.emitted >= 1));
      std::size_t emitted = 0;
      status end = status::ok;
      for (int round = 0; round < 5 && end == status::ok; ++round) {
        drafter.asked = 0;
        const auto s = speculative_round(drafter, m, policies(ensemble{0.3}), chooser,
                                         {.text = t, .most = 10, .work = work}, verifier);
        end = s.why;
        emitted += s.emitted;
        CHECK(drafter.asked <= s.drafted + 1);  // never twice for a row
        if (end != status::ok) CHECK((end == why && s.emitted == s.drafted));
      }
      if (rows == 0) CHECK((end == why && emitted == 0));
    }
}
TEST_CASE("a law that reads the draft's row never reads one of an earlier round") {
  toy_source<double> m(vocabulary, 2);
  ending_drafter drafter(4, status::no_draft);
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  drafting_workspace<double, mixed_drafter::row_type> work(vocabulary, {.gamma = 3});
  either chooser = random_streams(1);
  const any_verifier verifier;
  const auto round = [&] {
    return speculative_round(drafter, m, policies(ensemble{0.3}), chooser,
                             {.text = t, .most = 10, .work = work}, verifier);
  };
  REQUIRE(round().why == status::ok);
  drafter.rows = 0;
  const auto r = round();
  CHECK((r.why == status::no_draft && r.emitted == 0));
}
TEST_CASE("the rows of a drafter and of the target must be of one vocabulary") {
  toy_source<double> m(vocabulary + 1, 2);
  ending_drafter drafter;
  std::vector<token_id> buffer(40);
  text t{buffer, 1};
  drafting_workspace<double, mixed_drafter::row_type> work(vocabulary + 1, {});
  either chooser = random_streams(1);
  const any_verifier verifier;
  CHECK(speculative_round(drafter, m, lossless{}, chooser, {.text = t, .most = 10, .work = work},
                          verifier)
            .why == status::vocabulary_mismatch);
}
