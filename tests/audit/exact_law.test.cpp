// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/exact_law.hpp>

#include <cstdio>

#include <specagg/audit/grid.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// The audits are compiled once for these.
using any_policy = compiled_once<any_of<lossless, ensemble, opt, token_v3, lossy>>;

const auto by_token = [](const draft& d, const auto& q, const auto& p, const auto& policy,
                         auto& chooser, auto out, auto scratch) {
  return verify_token(d, q, p, policy, chooser, out, scratch);
};

// Every round of the grid.
template <class T, class Verify>
double worst_on_grid(const any_policy& policy, std::size_t gamma, Verify verify,
                     std::size_t* pairs = nullptr, std::size_t* reused = nullptr) {
  double worst = 0;
  for (std::size_t i = 0; i < grid_round<T>::rounds(); ++i) {
    const auto q = [=](const std::vector<token_id>& prefix) { return grid_round<T>{i}.q(prefix); };
    const auto p = [=](const std::vector<token_id>& prefix) { return grid_round<T>{i}.p(prefix); };
    const auto law = [&](const std::vector<token_id>& prefix) {  // in double, for any rows
      const grid_round<double> exact{i};
      return target_law(policy, exact.q(prefix), exact.p(prefix));
    };
    const round_error e = worst_error_of_round(policy, gamma, q, p, verify, law);
    worst = std::max(worst, e.error);
    if (reused) *reused += e.reused;
  }
  if (pairs) *pairs += grid_round<T>::rounds();
  return worst;
}

template <class T>
void emits_its_law(const char* name, const any_policy& policy, double bound) {
  double worst = 0;
  std::size_t pairs = 0, reused = 0;
  for (std::size_t gamma = 1; gamma <= 3; ++gamma)
    worst = std::max(worst, worst_on_grid<T>(policy, gamma, by_token, &pairs, &reused));
  std::printf("%-28s token   %s  %5zu pairs x gamma  worst error %.2e\n", name,
              sizeof(T) == 8 ? "double" : "float ", pairs, worst);
  CHECK(worst < bound);
  CHECK(worst >= 0);
  CHECK(reused == 0);  // no number decides twice
}

}  // namespace

TEST_CASE("lossless emits exactly p on the 1/8 grid") {
  emits_its_law<double>("lossless", lossless{}, 1e-12);
}
TEST_CASE("ensemble emits exactly lambda q + (1-lambda) p on the 1/8 grid") {
  for (const double l : {0.0, 0.3, 1.0}) emits_its_law<double>("ensemble", ensemble{l}, 1e-12);
}
TEST_CASE("opt emits exactly q or p on the 1/8 grid") {
  for (const double a : {-0.5, 0.0, 0.4}) emits_its_law<double>("opt", opt{a}, 1e-12);
}
TEST_CASE("token-v3 emits exactly q (1-r) + eta p on the 1/8 grid") {
  for (const double a : {-0.2, 0.0, 0.3, 1.0})
    emits_its_law<double>("token-v3", token_v3{a}, 1e-12);
}
TEST_CASE("lossy with exact beta emits exactly its target on the 1/8 grid") {
  for (const double a : {0.0, 0.25, 0.6})
    emits_its_law<double>("lossy, exact beta", lossy{a}, 1e-12);
}
TEST_CASE("lossy with a given beta emits exactly its target on the 1/8 grid") {
  for (const double b : {0.7, 1.0, 5.0})
    emits_its_law<double>("lossy, given beta", lossy{0.3, b}, 1e-12);
}
TEST_CASE("rows of floats emit every law to 1e-6 on the 1/8 grid") {
  emits_its_law<float>("lossless", lossless{}, 1e-6);
  emits_its_law<float>("ensemble", ensemble{0.3}, 1e-6);
  emits_its_law<float>("opt", opt{0.4}, 1e-6);
  emits_its_law<float>("token-v3", token_v3{0.3}, 1e-6);
  emits_its_law<float>("lossy, exact beta", lossy{0.25}, 1e-6);
}

// ---- mutants: the audit must find each of these well-known mistakes -----------------------------

namespace {

// A verifier written out for mutation: what it accepts with, and what its residual subtracts.
template <class Accept, class Residual>
auto mutant(Accept accept, Residual residual) {
  return [=](const draft& d, const auto& q, const auto& p, const auto& policy, auto& chooser,
             std::span<emission> out, std::span<double> scratch) {
    verdict v;
    for (std::size_t j = 0; j <= d.size(); ++j) {
      const auto qj = normalise(as_row(q[j]), true);
      const auto pj = normalise(as_row(p[j]), true);
      if (qj.why() != status::ok || pj.why() != status::ok) return v;
      using Policy = std::remove_cvref_t<decltype(policy)>;
      const auto rows = detail::pair_for<Policy>(qj, pj);
      const auto pi = policy.bind(rows);
      const bool bonus = j == d.size();
      if (!bonus) {
        const auto seen = at(rows, std::size_t(d.tokens[j]));
        const auto [w, t] = accept(double(pi(seen).v), double(seen.q.v));
        if (chooser.coin({stream::coin, std::uint32_t(j), 0}, w, t)) {
          out[v.emitted++].token = d.tokens[j];
          ++v.accepted;
          continue;
        }
      }
      auto draw = [&](auto f) { return weigh(rows, f, scratch); };
      const moment m{bonus ? stream::bonus : stream::residual, std::uint32_t(j), 0};
      const auto left = draw([&](auto at) { return residual(pi(at), at.q, at.p); });
      out[v.emitted++].token =
          !bonus && left.total > 0 ? chooser.draw(m, left) : chooser.draw(m, draw(pi));
      return v;
    }
    return v;
  };
}
// Draws residual and bonus with the noise that drew the draft.
template <class C>
struct draft_stream_everywhere {
  C& inner;
  bool coin(moment m, double w, double t) { return inner.coin(m, w, t); }
  template <class W>
  token_id draw(moment m, const W& w) {
    return inner.draw({stream::draft, m.position, m.start}, w);
  }
};
template <class C>
draft_stream_everywhere(C&) -> draft_stream_everywhere<C>;

const auto ratio = [](double w, double t) { return std::pair(w, t); };
const auto rest = [](auto pi, auto q, auto) { return positive(pi - q); };

}  // namespace

TEST_CASE("the unmutated statement of token verification passes the audit") {
  CHECK(worst_on_grid<double>(token_v3{0.3}, 2, mutant(ratio, rest)) < 1e-12);
  CHECK(worst_on_grid<double>(lossless{}, 2, mutant(ratio, rest)) < 1e-12);
}
TEST_CASE("mutant: accepting with q/p instead of p/q is found") {
  const auto inverted = [](double w, double t) { return std::pair(t, w); };
  CHECK(worst_on_grid<double>(lossless{}, 1, mutant(inverted, rest)) > 0.1);
}
TEST_CASE("mutant: q and p swapped throughout is found") {
  const auto swapped = [](const draft& d, const auto& q, const auto& p, const auto& policy,
                          auto& chooser, auto out, auto scratch) {
    return verify_token(d, p, q, policy, chooser, out, scratch);
  };
  CHECK(worst_on_grid<double>(lossless{}, 1, swapped) > 0.1);
  CHECK(worst_on_grid<double>(opt{0.4}, 1, swapped) > 0.1);
}
TEST_CASE("mutant: a residual drawn from p, or from pi, is found") {
  CHECK(worst_on_grid<double>(token_v3{0.3}, 1,
                              mutant(ratio, [](auto, auto, auto p) { return p; })) > 0.05);
  CHECK(worst_on_grid<double>(lossless{}, 1,
                              mutant(ratio, [](auto pi, auto, auto) { return pi; })) > 0.05);
}
TEST_CASE("mutant: the residual of p where pi is due is found") {
  CHECK(worst_on_grid<double>(token_v3{0.3}, 1, mutant(ratio, [](auto, auto q, auto p) {
                                return positive(p - q);
                              })) > 0.05);
}
TEST_CASE("mutant: the bonus drawn from p where pi reads the draft is found") {
  const auto bonus_from_p = [](const draft& d, const auto& q, const auto& p, const auto& policy,
                               auto& chooser, auto out, auto scratch) {
    draft short_draft = d;
    short_draft.bonus = false;
    verdict v = verify_token(short_draft, q, p, policy, chooser, out, scratch);
    if (v.accepted < d.size()) return v;
    const auto row = normalise(as_row(p[d.size()]));
    if (row.why() != status::ok) return v;
    out[v.emitted++].token = chooser.draw({stream::bonus, std::uint32_t(d.size()), 0},
                                          weigh(row, [](auto x) { return x; }, scratch));
    return v;
  };
  CHECK(worst_on_grid<double>(ensemble{0.5}, 1, bonus_from_p) > 0.1);
  CHECK(worst_on_grid<double>(lossless{}, 1, bonus_from_p) < 1e-12);
}
TEST_CASE("mutant: a moment used for two decisions is counted") {
  std::size_t reused = 0;
  const auto coupled_noise = [](const draft& d, const auto& q, const auto& p, const auto& policy,
                                auto& chooser, auto out, auto scratch) {
    draft_stream_everywhere same{chooser};
    return verify_token(d, q, p, policy, same, out, scratch);
  };
  worst_on_grid<double>(lossless{}, 1, coupled_noise, nullptr, &reused);
  CHECK(reused > 0);
}
TEST_CASE("mutant: sparse rows merged by index instead of by id are found") {
  // The target's probabilities paired with the draft's ids, as an engine does that zips two top-k
  // lists.
  const std::array<double, 3> q{0.5, 0, 0.5}, p{0, 0.25, 0.75};
  const std::array<token_id, 2> q_ids{0, 2}, p_ids{1, 2};
  const std::array<double, 2> q_mass{0.5, 0.5}, p_mass{0.25, 0.75};
  const auto by = [&](const std::array<token_id, 2>& ids) {
    const auto rows = [&](std::span<const token_id> i, std::span<const double> m) {
      return std::vector(2, sparse_row<double>(i, m, 3));
    };
    return [=](const draft& d, const auto&, const auto&, const auto& policy, auto& chooser,
               auto out, auto scratch) {
      return verify_token(d, rows(q_ids, q_mass), rows(ids, p_mass), policy, chooser, out, scratch);
    };
  };
  const auto q_model = [&](const std::vector<token_id>&) { return q; };
  const auto p_model = [&](const std::vector<token_id>&) { return p; };
  const auto law = [&](const std::vector<token_id>&) {
    return std::vector<double>(p.begin(), p.end());
  };
  CHECK(worst_error_of_round(any_policy(), 1, q_model, p_model, by(p_ids), law).error < 1e-15);
  CHECK(worst_error_of_round(any_policy(), 1, q_model, p_model, by(q_ids), law).error > 0.2);
}

// ---- policies that are no law -------------------------------------------------------------------

namespace {

// .5 q + share p.
struct careless {
  double share;
  template <class Rows>
  auto bind(const Rows&) const {
    return [s = share](auto at) { return 0.5 * at.q + s * at.p; };
  }
};
const std::array<double, 3> some_q{.5, .25, .25}, some_p{.125, .375, .5};
template <class Policy>
round_error audit_of(const Policy& policy) {
  const auto q = [](const std::vector<token_id>&) { return some_q; };
  const auto p = [](const std::vector<token_id>&) { return some_p; };
  return worst_error_of_round(policy, 2, q, p, by_token, [&](const std::vector<token_id>&) {
    return target_law(policy, some_q, some_p);
  });
}

}  // namespace

TEST_CASE("the law of a policy that is none is empty: undefined_target") {
  status why = status::ok;
  CHECK(target_law(careless{.4}, some_q, some_p, &why).empty());
  CHECK(why == status::undefined_target);
  CHECK(target_law(careless{.5}, some_q, some_p, &why).size() == 3);
  CHECK(why == status::ok);
}
TEST_CASE(
    "the audit of a policy that is no law says where, checked or not. A policy that is undefined "
    "passes") {
  for (const round_error& e : {audit_of(careless{.4}), audit_of(checked{careless{.4}})}) {
    CHECK(e.error == 1);
    CHECK(e.prefix.empty());
    CHECK(e.token == no_token);
    CHECK(e.why == status::undefined_target);
  }
  CHECK(audit_of(careless{.5}).error < 1e-15);
  CHECK(audit_of(checked{careless{.5}}).error < 1e-15);
  const auto left = [](const std::vector<token_id>&) { return std::array<double, 2>{1, 0}; };
  const auto right = [](const std::vector<token_id>&) { return std::array<double, 2>{0, 1}; };
  const auto none = [](const std::vector<token_id>&) { return std::vector<double>(); };
  CHECK(worst_error_of_round(minimum<>{}, 1, left, right, by_token, none).error == 0);
}
TEST_CASE("the audit says after which text which token's probability is wrong") {
  const std::array<double, 3> due{.25, .25, .5}, wrong{.5, .125, .375};
  const auto q = [&](const std::vector<token_id>&) { return due; };
  const auto p = [&](const std::vector<token_id>& s) {
    return s == std::vector<token_id>{2} ? wrong : due;
  };
  const auto law = [&](const std::vector<token_id>&) {
    return std::vector<double>(due.begin(), due.end());
  };
  const round_error e = worst_error_of_round(any_policy(), 1, q, p, by_token, law);
  CHECK(e.error == 0.25);
  CHECK(e.prefix == std::vector<token_id>{2});
  CHECK(e.token == 0);
  CHECK(e.why == status::ok);
  const auto bad = [&](const std::vector<token_id>& s) {
    return s == std::vector<token_id>{2} ? std::array<double, 3>{.5, .25, .125} : due;
  };
  const round_error refused = worst_error_of_round(any_policy(), 1, q, bad, by_token, law);
  CHECK(refused.error == 1);
  CHECK(refused.prefix == std::vector<token_id>{2});
  CHECK(refused.why == status::not_normalised);
}
TEST_CASE("a coin of a weight that is none is false, and the branches sum to 1") {
  for (const double w : {-0.5, 0.0, std::nan("")})
    for (const double t : {0.0, 1.0})
      CHECK(exact_law([=](auto& chooser) { return chooser.coin({stream::coin, 0, 0}, w, t); }) ==
            std::map<bool, double>{{false, 1.0}});
  CHECK(exact_law([](auto& chooser) { return chooser.coin({stream::coin, 0, 0}, 1, 4); }) ==
        std::map<bool, double>{{false, 0.75}, {true, 0.25}});
}
TEST_CASE("a moment has one number, however often it decides") {
  std::size_t reused = 0;
  const std::array<double, 2> even{0.5, 0.5}, odd{0.3, 0.7};
  const auto law = exact_law(
      [&](auto& chooser) {
        const moment m{stream::draft, 1, 1};
        const token_id first = chooser.draw(m, even), again = chooser.draw(m, even),
                       other = chooser.draw(m, odd);
        CHECK(again == first);
        return std::pair(first, other);
      },
      &reused);
  REQUIRE(law.size() == 3);  // u in [0, .3), [.3, .5), [.5, 1)
  CHECK(law.at({0, 0}) == Approx(0.3).epsilon(1e-15));
  CHECK(law.at({0, 1}) == Approx(0.2).epsilon(1e-15));
  CHECK(law.at({1, 1}) == Approx(0.5).epsilon(1e-15));
  CHECK(reused == 6);  // two in each of three branches
}
