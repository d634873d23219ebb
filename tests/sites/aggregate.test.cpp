// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/aggregate.hpp>
#include <specagg/plan/side.hpp>

#include <cmath>
#include <cstdio>
#include <limits>
#include <tuple>
#include <vector>

#include <specagg/audit/coupled_law.hpp>
#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/audit/grid.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/rows/process.hpp>

#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity(),
                 quiet_nan = std::numeric_limits<double>::quiet_NaN();
const double etas[] = {0, 1e-3, 0.25, 0.3, 0.5, 0.77, 1};

site_weights weights_of(double l) { return {std::log(l), std::log1p(-l), l, 1 - l}; }

// One site's decisions in the tree of all; `start`, 0 in this protocol, tells the sites apart so
// that reuse is counted.
struct at_site {
  exhaustive_chooser& tree;
  std::uint32_t site;
  bool coin(moment m, double w, double t) { return tree.coin({m.use, m.position, site}, w, t); }
  template <class W>
  token_id draw(moment m, const W& w) {
    return tree.draw({m.use, m.position, site}, w);
  }
};

using outcome = std::tuple<token_id, bool, bool>;  // token, accepted_l, accepted_r
using grid_row = std::array<double, 3>;

// The law of one aggregation with independent drafts. how(position, x_l, p_l, x_r, p_r, eta,
// site_l, site_r, scratch).
template <class How>
std::map<outcome, double> law_of(const grid_row& p_l, const grid_row& p_r, const site_weights& eta,
                                 How how, std::size_t* reused = nullptr, std::uint32_t second = 1) {
  return exact_law(
      [&](exhaustive_chooser& tree) {
        at_site l{tree, 0}, r{tree, second};
        std::vector<double> scratch(1);
        const auto row_l = normalise(as_row(p_l)), row_r = normalise(as_row(p_r));
        const moment m{stream::draft, 5, 0};
        const token_id x_l = draw(row_l, m, l, scratch), x_r = draw(row_r, m, r, scratch);
        const aggregation a = how(5u, x_l, p_l, x_r, p_r, eta, l, r, scratch);
        if (a.why != status::ok) return outcome(no_token, false, false);
        return outcome(a.token, a.accepted_l, a.accepted_r);
      },
      reused);
}
const auto with_gamma = [](double gamma_l) {
  return [=](std::uint32_t t, token_id x_l, const auto& p_l, token_id x_r, const auto& p_r,
             const site_weights& eta, auto& site_l, auto& site_r, std::span<double> scratch) {
    return aggregate(t, site_draft{x_l, p_l, site_l}, site_draft{x_r, p_r, site_r}, eta, scratch,
                     gamma_l);
  };
};
const auto library = with_gamma(0.5);

struct errors {
  double law = 0, acceptance = 0;
};
template <class How>
errors worst_on_grid(How how, std::size_t* reused = nullptr, std::uint32_t second = 1) {
  errors worst;
  for (const double eta : etas)
    for (const auto& p_l : eighths<double>())
      for (const auto& p_r : eighths<double>()) {
        const auto w = weights_of(eta);
        const auto pi = target_law(w.law(), p_l, p_r);
        const agreement due = agreement_of(p_l, p_r, w);
        double x[3] = {}, together = 0, only_l = 0, only_r = 0;
        for (const auto& [o, probability] : law_of(p_l, p_r, w, how, reused, second)) {
          const auto [token, l, r] = o;
          if (token < 0) return {1, 1};
          x[token] += probability;
          (l && r ? together : l ? only_l : only_r) += l || r ? probability : 0;
        }
        for (int v = 0; v < 3; ++v)
          worst.law = std::max(worst.law, std::fabs(x[v] - pi[std::size_t(v)]));
        for (const double e : {together - due.both, only_l - due.only_l, only_r - due.only_r})
          worst.acceptance = std::max(worst.acceptance, std::fabs(e));
      }
  return worst;
}

TEST_CASE(
    "for any gamma_l, aggregation emits exactly pi, with the acceptances of agreement_of and of "
    "Eq 5") {
  double law = 0, agreed = 0, eq5 = 0, moved = 0;
  for (const double gamma_l : {0.2, 0.5, 0.8})
    for (const double eta : etas)
      for (const auto& p_l : eighths<double>())
        for (const auto& p_r : eighths<double>()) {
          const auto w = weights_of(eta);
          const auto pi = target_law(w.law(), p_l, p_r);
          double x[3] = {}, kept_l = 0, kept_r = 0, together = 0;
          for (const auto& [o, probability] : law_of(p_l, p_r, w, with_gamma(gamma_l))) {
            const auto [token, l, r] = o;
            REQUIRE(token >= 0);
            x[token] += probability;
            kept_l += l * probability;
            kept_r += r * probability;
            together += (l && r) * probability;
          }
          for (int v = 0; v < 3; ++v) law = std::max(law, std::fabs(x[v] - pi[std::size_t(v)]));
          const agreement a = agreement_of(p_l, p_r, w, gamma_l);
          for (const double e : {a.both - together, a.l() - kept_l, a.r() - kept_r})
            agreed = std::max(agreed, std::fabs(e));
          // Eq 5 by hand: gamma_l (1 - eta^r TV) + gamma_r sum p^l pi.
          double tv = 0, product = 0;
          for (std::size_t v = 0; v < 3; ++v) {
            tv += 0.5 * std::fabs(p_l[v] - p_r[v]);
            product += p_l[v] * pi[v];
          }
          const double due = gamma_l * (1 - w.r * tv) + (1 - gamma_l) * product;
          const double back =
              acceptance_eq5(p_r, p_l, site_weights{w.log_r, w.log_l, w.r, w.l}, 1 - gamma_l);
          for (const double e :
               {acceptance_eq5(p_l, p_r, w, gamma_l) - due, due - kept_l, back - kept_r})
            eq5 = std::max(eq5, std::fabs(e));
          moved = std::max(moved, std::fabs(a.l() - agreement_of(p_l, p_r, w).l()));
        }
  CHECK(law < 1e-12);
  CHECK(agreed < 1e-12);
  CHECK(eq5 < 1e-12);
  CHECK(moved > 0.1);  // gamma_l is read
}

// aggregate() written out for mutation: rejection weight of (a, b, eta), residual of (b, a, pi),
// the coin of the side.
template <class Reject, class Residual>
auto mutant(Reject reject, Residual residual, double side = 0.5, bool same_site = false) {
  return [=](std::uint32_t t, token_id x_l, const grid_row& p_l, token_id x_r, const grid_row& p_r,
             const site_weights& eta, auto& site_l, auto& site_r, std::vector<double>& scratch) {
    const auto one = [&](token_id x, const grid_row& a, const grid_row& b, double other,
                         auto& site) {
      const auto q = normalise(as_row(a)), p = normalise(as_row(b));
      const row_pair rows(q, p);
      const double ax = a[std::size_t(x)], bx = b[std::size_t(x)];
      if (!(ax > bx && site.coin({stream::coin, t, 0}, reject(ax, bx, other), ax))) return x;
      return site.draw(
          {stream::residual, t, 0},
          weigh(
              rows,
              [&](auto at) { return residual(at.p, at.q, fma(other, at.p, (1 - other) * at.q)); },
              scratch));
    };
    const bool l = site_l.coin({stream::side, t, 0}, side, 1);
    const token_id x = l ? one(x_l, p_l, p_r, eta.r, site_l)
                         : one(x_r, p_r, p_l, eta.l, same_site ? site_l : site_r);
    return aggregation{x, x == x_l, x == x_r,
                       x == no_token ? status::undefined_target : status::ok};
  };
}
const auto right_reject = [](double a, double b, double eta) { return eta * (a - b); };
const auto right_residual = [](auto b, auto a, auto) { return positive(b - a); };

}  // namespace

TEST_CASE(
    "aggregation emits exactly eta^l p^l + eta^r p^r on the 1/8 grid, and confirms drafts as often "
    "as the closed form "
    "says") {
  std::size_t reused = 0;
  const errors worst = worst_on_grid(library, &reused);
  std::printf(
      "aggregate, 2025 pairs x 7 weights: worst error of the law %.1e, of the joint acceptance "
      "%.1e\n",
      worst.law, worst.acceptance);
  CHECK(worst.law < 1e-12);
  CHECK(worst.acceptance < 1e-12);
  CHECK(reused == 0);
}
TEST_CASE("alpha^l = 1/2 (1 - eta^r TV) + 1/2 sum p^l pi, and the same for r") {
  for (const double eta : etas)
    for (const auto& p_l : eighths<double>())
      for (const auto& p_r : eighths<double>()) {
        const auto w = weights_of(eta);
        double tv = 0, cross_l = 0, cross_r = 0;
        const auto pi = target_law(w.law(), p_l, p_r);
        for (std::size_t v = 0; v < 3; ++v) {
          tv += std::fabs(p_l[v] - p_r[v]) / 2;
          cross_l += p_l[v] * pi[v];
          cross_r += p_r[v] * pi[v];
        }
        const agreement a = agreement_of(p_l, p_r, w);
        CHECK(a.l() == Approx((1 - w.r * tv + cross_l) / 2).epsilon(1e-13));
        CHECK(a.r() == Approx((1 - w.l * tv + cross_r) / 2).epsilon(1e-13));
        CHECK(a.neither() > -1e-15);
      }
}
TEST_CASE("the unmutated statement of aggregation passes the audit") {
  const errors worst = worst_on_grid(mutant(right_reject, right_residual));
  CHECK(worst.law < 1e-12);
  CHECK(worst.acceptance < 1e-12);
}
TEST_CASE("mutants of aggregation are found") {
  // residual p^other
  CHECK(worst_on_grid(mutant(right_reject, [](auto b, auto, auto) { return b; })).law > 0.05);
  // residual pi
  CHECK(worst_on_grid(mutant(right_reject, [](auto, auto, auto pi) { return pi; })).law > 0.05);
  CHECK(worst_on_grid(mutant(right_reject, [](auto b, auto a, auto) {
          return positive(a - b);
        })).law > 0.05);
  CHECK(worst_on_grid(mutant([](double a, double b, double eta) { return (1 - eta) * (a - b); },
                             right_residual))
            .law > 0.05);
  CHECK(
      worst_on_grid(mutant([](double a, double b, double) { return a - b; }, right_residual)).law >
      0.05);  // towards the other row
  CHECK(worst_on_grid(mutant([](double, double b, double eta) { return eta * b; }, right_residual))
            .law > 0.05);
  const errors one_sided =
      // the law stands, the acceptance does not
      worst_on_grid(mutant(right_reject, right_residual, 1));
  CHECK(one_sided.law < 1e-12);
  CHECK(one_sided.acceptance > 0.05);
}
TEST_CASE(
    "mutant: the same streams on both sites are counted as reuse, and accept more often than the "
    "closed form") {
  std::size_t reused = 0;
  worst_on_grid(library, &reused, 0);
  CHECK(reused > 0);
  const std::vector<double> p_l{0.5, 0.3, 0.2}, p_r{0.3, 0.3, 0.4};
  const auto measured = [&](std::uint32_t second) {
    const random_streams l(9, 0, 0), r(9, 0, second);
    random_streams site_l = l, site_r = r;
    std::vector<double> scratch(1);
    const int n = 20000;
    double kept = 0;
    for (std::uint32_t t = 0; t < n; ++t) {
      const moment m{stream::draft, t, 0};
      const token_id x_l = draw(normalise(dense_row<double>(p_l)), m, site_l, scratch),
                     x_r = draw(normalise(dense_row<double>(p_r)), m, site_r, scratch);
      kept += library(t, x_l, p_l, x_r, p_r, weights_of(0.5), site_l, site_r, scratch).accepted_l;
    }
    return std::vector{kept, n - kept};
  };
  const double due = agreement_of(p_l, p_r, weights_of(0.5)).l();
  const auto own = measured(1), shared = measured(0);
  std::printf("acceptance of l: due %.3f, measured %.3f, with one stream for both sites %.3f\n",
              due, own[0] / (own[0] + own[1]), shared[0] / (shared[0] + shared[1]));
  CHECK(goodness_of_fit(own, std::vector{due, 1 - due}, 1e-8).passed);
  CHECK_FALSE(goodness_of_fit(shared, std::vector{due, 1 - due}, 1e-8).passed);
  CHECK(shared[0] > own[0]);
}
namespace {
std::vector<double> row(const toy_source<double>& model, const std::vector<token_id>& text) {
  std::vector<double> logits(model.vocab_size()), p(model.vocab_size());
  model.row(text, logits);
  const auto soft = normalise(softmax_row<double>(logits));
  if (soft.why() != status::ok) return p;
  for (std::size_t v = 0; v < p.size(); ++v) p[v] = soft[v];
  return p;
}
}  // namespace
TEST_CASE(
    "many tokens through the production streams follow the joint law, drafts ahead, rejections and "
    "redrawn drafts "
    "included") {
  // Two sites that draft up to 3 tokens beyond the last aggregation, and again, with the same
  // noise, after a rejection.
  constexpr std::size_t vocabulary = 3, length = 4, ahead = 3;
  const toy_source<double> model_l(vocabulary, 21, 2, 2), model_r(vocabulary, 22, 2, 2);
  const auto dynamic = [](const std::vector<token_id>& text) {  // relevance that follows the text
    return weigh_sites(0.3 * double(text.back()) - 0.2, 0.1 * double(text.size()));
  };
  const auto static_weights = [](const std::vector<token_id>&) { return weigh_sites(0.4, 0.1); };
  const auto fit_of = [&](auto weights, std::size_t n) {
    std::vector<double> counts(81), law(81);
    std::vector<double> scratch(1);
    for (std::size_t request = 0; request < n; ++request) {
      random_streams site_l(77, request, 0), site_r(77, request, 1);
      std::vector<token_id> text{0}, of_l, of_r;  // and the drafts beyond
      while (text.size() <= length) {
        const auto fill = [&](const auto& model, std::vector<token_id>& drafts,
                              random_streams& site) {
          while (drafts.size() < ahead) {
            auto prefix = text;
            prefix.insert(prefix.end(), drafts.begin(), drafts.end());
            const auto probabilities = row(model, prefix);
            drafts.push_back(draw(normalise(dense_row<double>(probabilities)),
                                  {stream::draft, std::uint32_t(prefix.size()), 0}, site, scratch));
          }
        };
        fill(model_l, of_l, site_l);
        fill(model_r, of_r, site_r);
        const auto a = library(std::uint32_t(text.size()), of_l[0], row(model_l, text), of_r[0],
                               row(model_r, text), weights(text), site_l, site_r, scratch);
        REQUIRE(a.why == status::ok);
        text.push_back(a.token);
        a.accepted_l ? void(of_l.erase(of_l.begin())) : of_l.clear();
        a.accepted_r ? void(of_r.erase(of_r.begin())) : of_r.clear();
      }
      counts[std::size_t(text[1] * 27 + text[2] * 9 + text[3] * 3 + text[4])] += 1;
    }
    for (std::size_t i = 0; i < 81; ++i) {
      std::vector<token_id> text{0};
      law[i] = 1;
      for (const std::size_t digit : {i / 27, i / 9 % 3, i / 3 % 3, i % 3}) {
        law[i] *= target_law(weights(text).law(), row(model_l, text), row(model_r, text))[digit];
        text.push_back(token_id(digit));
      }
    }
    return goodness_of_fit(counts, law, 1e-8);
  };
  for (const fit& f : {fit_of(dynamic, 60000), fit_of(static_weights, 60000)}) {
    std::printf(
        "aggregation with look-ahead: distance %.4f, expected %.4f, p %.3g, finds TV >= %.4f\n",
        f.distance, f.expected_distance, f.p_value, f.detectable);
    CHECK(f.passed);
    CHECK(f.detectable < 0.04);
  }
}
TEST_CASE("real acceptances of the two sites are negatively correlated") {
  double least = 1, most = -1;
  for (const auto& p_l : eighths<double>())
    for (const auto& p_r : eighths<double>()) {
      const agreement a = agreement_of(p_l, p_r, weights_of(0.5));
      const double variance = a.l() * (1 - a.l()) * a.r() * (1 - a.r());
      if (variance < 1e-6) continue;
      const double correlation = (a.both - a.l() * a.r()) / std::sqrt(variance);
      least = std::min(least, correlation);
      most = std::max(most, correlation);
    }
  std::printf("correlation of the two acceptances on the 1/8 grid, eta 1/2: %.3f to %.3f\n", least,
              most);
  CHECK(least < -0.5);
  CHECK(least >= -1 - 1e-9);
}

TEST_CASE(
    "with the Gumbel-max coupling the token is argmin E / pi, and drafts are confirmed as often as "
    "the closed "
    "form says") {
  const std::vector<double> p_l{0.5, 0.3, 0.2}, p_r{0.1, 0.3, 0.6};
  const auto w = weights_of(0.4);
  const auto pi = target_law(w.law(), p_l, p_r);
  const coupled_noise noise(8);
  const auto l = normalise(as_row(p_l)), r = normalise(as_row(p_r));
  std::vector<double> counts(3);
  double kept_l = 0, kept_r = 0, agreed = 0;
  const std::uint32_t n = 40000;
  for (std::uint32_t t = 0; t < n; ++t) {
    token_id best = 0;
    for (token_id v = 1; v < 3; ++v)
      if (noise(t, v) / pi[std::size_t(v)] < noise(t, best) / pi[std::size_t(best)]) best = v;
    const token_id x_l = race(l, noise, t), x_r = race(r, noise, t);
    const auto a = aggregate_shared(t, x_l, p_l, x_r, p_r, w, noise);
    REQUIRE(a.why == status::ok);
    CHECK(a.token == best);
    if (x_l == x_r) CHECK(a.token == x_l);
    counts[std::size_t(a.token)] += 1;
    kept_l += a.accepted_l;
    kept_r += a.accepted_r;
    agreed += x_l == x_r;
  }
  const auto match = [&](const std::vector<double>& p) { return coupled_acceptance(p, pi); };
  std::printf(
      "coupled: l %.3f (due %.3f), r %.3f (due %.3f), unanimous %.3f; independent drafts "
      "%.3f, %.3f\n",
      kept_l / n, match(p_l), kept_r / n, match(p_r), agreed / n, agreement_of(p_l, p_r, w).l(),
      agreement_of(p_l, p_r, w).r());
  CHECK(goodness_of_fit(counts, pi, 1e-8).passed);
  CHECK(goodness_of_fit(std::vector{kept_l, n - kept_l}, std::vector{match(p_l), 1 - match(p_l)},
                        1e-8)
            .passed);
  CHECK(goodness_of_fit(std::vector{kept_r, n - kept_r}, std::vector{match(p_r), 1 - match(p_r)},
                        1e-8)
            .passed);
  CHECK(match(p_l) > agreement_of(p_l, p_r, w).l());
  CHECK(aggregate_shared(0, 0, p_l, 0, std::vector<double>{1}, w, noise).why ==
        status::vocabulary_mismatch);
  CHECK(aggregate_shared(0, 0, p_l, 0, p_r, weigh_sites(-inf, -inf), noise).why ==
        status::undefined_target);
}

// ---- weights and rows ---------------------------------------------------------------------------

TEST_CASE(
    "weights are the softmax of h^l and h^r, at any scale, and 0 and 1 for a site without "
    "documents") {
  for (const double offset : {0.0, 1e3, -1e5})
    for (const double d : {0.0, 1e-9, 0.7, 30.0, 800.0})
      for (const double sign : {1.0, -1.0}) {
        const double h_r = offset - sign * d, lead = offset - h_r;
        const auto w = weigh_sites(offset, h_r);
        CHECK(w.l == Approx(1 / (1 + std::exp(-lead))).epsilon(1e-14));
        CHECK(w.r == Approx(1 / (1 + std::exp(lead))).epsilon(1e-14).margin(1e-307));
        CHECK(w.log_l == Approx(-std::log1p(std::exp(-std::fabs(lead))) - (lead < 0 ? -lead : 0))
                             .epsilon(1e-14)
                             .margin(1e-15));
        CHECK(w.l + w.r == Approx(1).epsilon(1e-15));
      }
  CHECK(weigh_sites(0, -inf).l == 1);
  CHECK(weigh_sites(-inf, -5).r == 1);
  CHECK(weigh_sites(-inf, -5).log_l == -inf);
  for (const auto& w : {weigh_sites(-inf, -inf), weigh_sites(quiet_nan, 0), weigh_sites(0, inf),
                        weigh_sites(inf, inf)})
    CHECK(std::isnan(w.l));
}
TEMPLATE_TEST_CASE(
    "a site's row is ln sum_d softmax_d(R) p(.|d), for any scale of relevances and logits", "",
    float, double) {
  using T = TestType;
  const random_streams noise(3);
  for (const std::size_t size : {1u, 15u, 40u, 1100u})
    for (const double scale : {1.0, 1000.0}) {
      std::vector<std::vector<T>> logits(4, std::vector<T>(size));
      std::vector<std::span<const T>> documents;
      for (std::uint32_t d = 0; d < 4; ++d) {
        for (std::size_t v = 0; v < size; ++v)
          logits[d][v] = T(10 * noise.noise(d, token_id(v)) + 100 * d);
        if (size > 20) logits[d][7] = logits[d][8] = -std::numeric_limits<T>::infinity();
        if (size > 20 && d == 2) logits[d][8] = 0;
        documents.push_back(logits[d]);
      }
      const std::vector<double> relevance{scale + 0.5, scale, scale - 1, -inf};
      std::vector<T> out(size), scratch(8);
      const auto share = mix_documents<T>(documents, relevance, out, scratch);
      REQUIRE(share.why == status::ok);
      const double expected_h = scale + std::log(std::exp(0.5) + 1 + std::exp(-1.0));
      CHECK(share.h == Approx(expected_h).epsilon(1e-14));
      for (std::size_t v = 0; v < size; ++v) {
        long double sum = 0;
        for (std::size_t d = 0; d < 3; ++d) {
          long double z = 0;
          for (const T l : logits[d]) z += std::exp((long double)(l)-100.L * (long double)(d)-100);
          sum += std::exp((long double)(logits[d][v]) - 100.L * (long double)(d)-100) / z *
                 std::exp((long double)(relevance[d]) - expected_h);
        }
        const double due = double(std::log(sum));
        if (std::isinf(due)) CHECK(double(out[v]) == due);
        else
          CHECK(double(out[v]) == Approx(due)
                                      .epsilon(sizeof(T) == 4 ? 2e-6 : 1e-13)
                                      .margin(sizeof(T) == 4 ? 2e-6 : 1e-13));
      }
    }
}
TEST_CASE(
    "two sites' rows mixed by their h are the row of all documents: the law of total probability") {
  constexpr std::size_t size = 33;
  const random_streams noise(4);
  std::vector<std::vector<double>> logits(5, std::vector<double>(size));
  std::vector<std::span<const double>> documents;
  std::vector<double> relevance{0.3, -2, 1.5, 0.1, 0.7}, scratch(10);
  for (std::uint32_t d = 0; d < 5; ++d) {
    for (std::size_t v = 0; v < size; ++v) logits[d][v] = 3 * noise.noise(d, token_id(v));
    documents.push_back(logits[d]);
  }
  std::vector<double> all(size), l(size), r(size), both_sites(size);
  const std::span<const std::span<const double>> d = documents;
  const std::span<const double> relevances = relevance;
  const auto h = mix_documents<double>(d, relevances, all, scratch).h;
  const auto h_l = mix_documents<double>(d.first(2), relevances.first(2), l, scratch).h;
  const auto h_r = mix_documents<double>(d.subspan(2), relevances.subspan(2), r, scratch).h;
  const std::vector<std::span<const double>> sites{l, r};
  const std::vector<double> shares{h_l, h_r};
  const auto h_both = mix_documents<double>(sites, shares, both_sites, scratch).h;
  CHECK(h_both == Approx(h).epsilon(1e-14));
  const auto pi =
      target_law(weigh_sites(h_l, h_r).law(), softmax_row<double>(l), softmax_row<double>(r));
  for (std::size_t v = 0; v < size; ++v) {
    CHECK(both_sites[v] == Approx(all[v]).epsilon(1e-13));
    CHECK(std::log(pi[v]) == Approx(all[v]).epsilon(1e-13));
  }
}
TEST_CASE("temperature and filters act on a site's row as on any logits") {
  const std::vector<double> a{2, 1, 0, -1}, b{0, 3, 1, 0}, relevance{0.2, 0.1};
  const std::vector<std::span<const double>> documents{a, b};
  std::vector<double> out(4), scratch(4);
  REQUIRE(mix_documents<double>(documents, relevance, out, scratch).why == status::ok);
  const auto cold = normalise(processed_row<double>(out, {.temperature = 0.5, .top_k = 2}));
  REQUIRE(cold.why() == status::ok);
  const double x = std::exp(2 * out[0]), y = std::exp(2 * out[1]);
  CHECK(cold[0] == Approx(x / (x + y)).epsilon(1e-13));
  CHECK(cold[2] == 0);
}
TEST_CASE("documents that are no rows get their status. A site without documents has h = -inf") {
  const std::vector<double> good{0, 1}, bad{quiet_nan, 1}, masked{-inf, -inf}, longer{0, 1, 2};
  std::vector<double> out(2), scratch(4);
  const auto why = [&](std::vector<std::span<const double>> d, std::vector<double> r) {
    return mix_documents<double>(d, r, out, scratch).why;
  };
  CHECK(why({good, good}, {0, 1}) == status::ok);
  CHECK(why({good, bad}, {0, 1}) == status::invalid_row);
  CHECK(why({good, masked}, {0, 1}) == status::invalid_row);
  CHECK(why({good, longer}, {0, 1}) == status::vocabulary_mismatch);
  CHECK(why({good, good}, {0, quiet_nan}) == status::invalid_parameter);
  CHECK(why({good, good}, {0, inf}) == status::invalid_parameter);
  CHECK(why({good, good}, {0}) == status::invalid_parameter);
  CHECK(why({good, good, good}, {0, 0, 0}) == status::invalid_parameter);  // scratch
  CHECK(mix_documents<double>({}, {}, out, scratch).h == -inf);
  CHECK(mix_documents<double>(std::vector<std::span<const double>>{good}, std::vector{-inf}, out,
                              scratch)
            .h == -inf);
}

TEST_CASE("a document that is left out is not read, with any logits") {
  const std::vector<float> good{0.5f, -1, 2, -float(inf)}, bad(4, float(quiet_nan)),
      masked(4, -float(inf));
  std::vector<float> out(4), due(4), scratch(6);
  const auto row = [](const std::vector<float>& l) { return std::span<const float>(l); };
  REQUIRE(mix_documents<float>(std::vector{row(good)}, std::vector{0.3}, due, scratch).why ==
          status::ok);
  for (const auto& left_out : {row(bad), row(masked), std::span<const float>()})
    for (const bool first : {true, false}) {
      const auto documents =
          first ? std::vector{left_out, row(good)} : std::vector{row(good), left_out};
      const auto relevance = first ? std::vector{-inf, 0.3} : std::vector{0.3, -inf};
      const auto share = mix_documents<float>(documents, relevance, out, scratch);
      CHECK(share.why == status::ok);
      CHECK(share.h == 0.3);
      CHECK(out == due);
    }
}

// ---- edge cases ---------------------------------------------------------------------------------

TEST_CASE(
    "bad rows, weights and drafts get their status, and no token has probability 0 under pi") {
  const std::vector<double> a{0.5, 0.5, 0}, b{0, 0.25, 0.75}, bad{quiet_nan, 1, 0}, two{0.5, 0.5};
  std::vector<double> scratch(1);
  const auto run = [&](token_id x_l, const auto& l, token_id x_r, const auto& r, site_weights w) {
    return exact_law([&](exhaustive_chooser& tree) {
      at_site site_l{tree, 0}, site_r{tree, 1};
      const auto g = library(1, x_l, l, x_r, r, w, site_l, site_r, scratch);
      return std::tuple(g.why, g.token, g.accepted_l, g.accepted_r);
    });
  };
  const auto half = weights_of(0.5);
  CHECK(run(0, bad, 1, b, half).begin()->first ==
        std::tuple(status::invalid_row, no_token, false, false));
  CHECK(run(0, a, 1, two, half).begin()->first ==
        std::tuple(status::vocabulary_mismatch, no_token, false, false));
  CHECK(run(0, a, 1, b, weigh_sites(-inf, -inf)).begin()->first ==
        std::tuple(status::undefined_target, no_token, false, false));
  std::array<double, 3> law{};
  for (const auto& [o, p] : run(2, a, -7, b, half)) {  // neither was drawn from its row
    CHECK(std::get<0>(o) != status::ok);
    REQUIRE(std::get<1>(o) >= 0);
    CHECK(std::get<3>(o) == false);
    law[std::size_t(std::get<1>(o))] += p;
  }
  // pi, for any tokens
  for (std::size_t v = 0; v < 3; ++v) CHECK(law[v] == Approx((a[v] + b[v]) / 2).epsilon(1e-15));
  for (const auto& [o, p] : run(2, a, 2, b, weights_of(1)))  // pi = a, which never says 2
    CHECK(std::get<1>(o) != 2);
  for (const auto& [o, p] : run(no_token, a, no_token, b, half)) {
    CHECK(std::get<1>(o) >= 0);
    CHECK_FALSE(std::get<2>(o));
  }
}
TEST_CASE(
    "equal rows confirm what the chosen side drafted, disjoint rows only one side at a time") {
  const std::vector<double> a{0.5, 0.5, 0}, b{0, 0, 1};
  const agreement same = agreement_of(a, a, weights_of(0.3)),
                  apart = agreement_of(a, b, weights_of(0.3));
  CHECK(same.both == 0.5);
  CHECK(same.neither() == Approx(0).margin(1e-15));
  CHECK(apart.both == 0);
}
