// SPDX-License-Identifier: Apache-2.0
// DRAGON: documents lie on two sites, l and r, and one law reads them all. Each site drafts from its own documents; one
// of them makes of both drafts a token of exactly that law. Liu et al. 2025 (arXiv:2504.11197).
//
//   h^s = ln sum_d e^R(d)           over the documents d of site s; R is their relevance to the text, in nats
//   p^s = sum_d softmax_d(R) p(.|d)                                    the site's row, from which it drafts
//   pi  = eta^l p^l + eta^r p^r,  ln eta = log_softmax(h^l, h^r)       the law of the text (eq. 4)
//
// Relevances may be scored once (static weights) or again at every token (dynamic): h then travels with each draft.
#pragma once
#include <algorithm>
#include <span>

#include <specagg/policy/combine.hpp>
#include <specagg/site/side.hpp>
#include <specagg/verify/coupled.hpp>

SPECAGG_BEGIN

// The weight of each site; `log_` stays exact where the weight underflows.
struct site_weights {
  double log_l = 0, log_r = 0, l = 1, r = 0;
  constexpr ensemble law() const { return {l}; }  // pi as a policy: q is the row of l, p the row of r
};

namespace detail {
// ln(e^a + e^b); -inf if both are -inf.
inline double log_add(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a;
  return low == -std::numeric_limits<double>::infinity() ? high : high + log(1 + exp(low - high));
}
}  // namespace detail

// eta of h^l and h^r. A site without documents has h = -inf. All four are NaN if both are, or one is NaN or +inf.
inline site_weights weigh_sites(double h_l, double h_r) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  const double lead = h_l - h_r, behind = lead > 0 ? -lead : lead;
  if (!(h_l < infinity && h_r < infinity) || lead != lead) return {none, none, none, none};
  const double e = exp(behind), large = 1 / (1 + e), small = e / (1 + e);
  const double log_large = -log(1 + e), log_small = behind + log_large;
  return lead > 0 ? site_weights{log_large, log_small, large, small} : site_weights{log_small, log_large, small, large};
}

// A site's share of the law: h^s, which goes to the other site with the row.
struct site_share {
  status why = status::ok;
  double h = -std::numeric_limits<double>::infinity();
};

// A site's row in logs: out[v] = ln p^s(v) = ln sum_d e^(R(d) - h^s + ln softmax(documents[d])(v)), -inf where no
// document gives mass (appendix A.1). They are logits like any model's: temperature and filters act on them next.
// Mixtures nest: two sites' rows mixed with relevances h^l, h^r give ln pi.
//   documents   the logits after each document, V each; read twice
//   relevance   R(d), one for each; -inf leaves a document out: it is not read
//   out         V; may be none of the documents
//   scratch     twice as many as documents
// Error of out[v]: 1e-6 + 1e-7 |out[v]| for floats. With no document left in, h = -inf and `out` is not written.
template <class T>
site_share mix_documents(std::span<const std::span<const T>> documents, std::span<const double> relevance,
                         std::span<T> out, std::span<T> scratch) {
  using V = vec<T, 16>;
  constexpr T inf = std::numeric_limits<T>::infinity();
  site_share share;
  if (documents.size() != relevance.size() || scratch.size() < 2 * documents.size()) return {status::invalid_parameter};
  for (const double r : relevance) {
    if (!(r < std::numeric_limits<double>::infinity())) return {status::invalid_parameter};
    share.h = detail::log_add(share.h, r);
  }
  if (share.h == -std::numeric_limits<double>::infinity()) return share;
  const std::span<T> top = scratch.first(documents.size()), weight = scratch.subspan(documents.size());
  for (std::size_t d = 0; d < documents.size(); ++d) {
    weight[d] = -inf;
    if (relevance[d] == -std::numeric_limits<double>::infinity()) continue;
    if (documents[d].size() != out.size()) return {status::vocabulary_mismatch};
    const auto sum = sum_exponentials(documents[d].data(), out.size(), 1);
    if (!(sum.total > 0)) return {status::invalid_row};
    top[d] = sum.max, weight[d] = T(relevance[d] - share.h - log(sum.total));  // ln p(v|d) + ... = (l - top) + weight
  }
  for (std::size_t v = 0; v < out.size(); v += 16) {
    const int lanes = int(std::min<std::size_t>(out.size() - v, 16));
    const auto term = [&](std::size_t d) {
      const T* l = documents[d].data() + v;
      return ((lanes == 16 ? V::load(l) : V::load_partial(l, lanes, -inf)) - V(top[d])) + V(weight[d]);
    };
    V largest(-inf), sum(0);
    for (std::size_t d = 0; d < documents.size(); ++d)
      if (weight[d] > -inf) largest = max(largest, term(d));
    const V shift = select(largest > V(-inf), largest, V(0));
    for (std::size_t d = 0; d < documents.size(); ++d)
      if (weight[d] > -inf) sum = sum + exp(term(d) - shift);
    T lane[16];
    (shift + log(sum)).store(lane);
    std::copy_n(lane, lanes, out.data() + v);
  }
  return share;
}

// ---- aggregation ----------------------------------------------------------------------------------------------------

namespace detail {
// Normalises the rows of both sites.
template <class L, class R>
status have_law(L& l, R& r, const site_weights& eta) {
  if (!(eta.l >= 0 && eta.r >= 0)) return status::undefined_target;
  if (l.size() != r.size()) return status::vocabulary_mismatch;
  const status s = l.normalise();
  return s != status::ok ? s : r.normalise();
}
}  // namespace detail

// One draft made into a token of law pi = (1 - eta) a + eta b: kept with probability min(1, pi(x) / a(x)), else
// replaced by one from norm((pi - a)+) = norm((b - a)+) (section 4.2). `rows` pairs a (as q) with b (as p), both
// normalised; x was drawn from a. An x that was not (a(x) = 0, or no token) is reported, and the token drawn from
// pi.
struct sampled {
  token_id token = no_token;
  status why = status::ok;
};
template <class A, class B, Chooser C>
sampled sample(const row_pair<false, A, B>& rows, token_id x, double eta, std::uint32_t position, C& chooser,
               std::span<double> scratch) {
  const auto pi = ensemble{1 - eta}.bind(rows);
  emission e;
  const status s = detail::keep_or_replace(rows, pi, detail::judge(rows, pi, x), position, 0, chooser, scratch, e);
  if (s != status::ok) return {no_token, s};
  return {e.token, e.why};
}

// The token both sites go on with, and which drafts it confirms: a site whose draft it does not confirm drops what it
// drafted beyond and decodes anew from this token.
// why: ok; draft_not_in_support or token_out_of_range for the chosen side's draft (there is a token all the same); else
// no token.
struct aggregation {
  token_id token = no_token;
  bool accepted_l = false, accepted_r = false;
  status why = status::ok;
};

// xt^s = sample(x^s, p^s, p^other, eta^other) for both sides, one of them chosen by a fair coin (section 4.2); the
// other one is never looked at, so it is not drawn. The token has exactly the law pi, whatever the two drafts have in
// common.
//   x_l, x_r        the drafts, drawn by draw(row, {stream::draft, position, 0}, chooser of the site, ...)
//   p_l, p_r        the rows they were drawn from: decoded rows, on both sites
//   site_l, site_r  choosers that know their site: random_streams(seed, request, 0) and (seed, request, 1). The same
//                   numbers on both make the drafts alike, and the acceptance is not the one below
//   scratch         verify_scratch(V) doubles
// l and r are two fixed sites (say device and cloud), not "here" and "there": then the token does not depend on which
// of them aggregates. Drafts thrown away and drawn again at their position may use the same noise again: no decision
// has looked at it, since a token is never judged before the one in front of it is settled.
template <class L, class R, Chooser SiteL, Chooser SiteR>
aggregation aggregate(std::uint32_t position, token_id x_l, const L& p_l, token_id x_r, const R& p_r,
                      const site_weights& eta, SiteL& site_l, SiteR& site_r, std::span<double> scratch) {
  auto l = as_row(p_l);
  auto r = as_row(p_r);
  if (const status s = detail::have_law(l, r, eta); s != status::ok) return {.why = s};
  using RowL = decltype(l);
  using RowR = decltype(r);
  const sampled x = site_l.coin({stream::side, position, 0}, 1, 2)
                        ? sample(row_pair<false, RowL, RowR>(l, r), x_l, eta.r, position, site_l, scratch)
                        : sample(row_pair<false, RowR, RowL>(r, l), x_r, eta.l, position, site_r, scratch);
  return {x.token, x.token == x_l && x.token != no_token, x.token == x_r && x.token != no_token, x.why};
}

// The same with shared noise: the token is argmin E / pi, drafts are drawn by race(row, noise, position). A token that
// both sites drafted is the answer, whatever the weights: unanimous(eta.law(), std::array{x_l, x_r}) tells, and no
// row need travel. The law is pi, and the text a function of the seed alone; a draft is confirmed with probability
// sum_i 1 / sum_j max(pi_j / pi_i, p^s_j / p^s_i).
template <class L, class R>
aggregation aggregate_shared(std::uint32_t position, token_id x_l, const L& p_l, token_id x_r, const R& p_r,
                             const site_weights& eta, const shared_noise& noise) {
  auto l = as_row(p_l);
  auto r = as_row(p_r);
  if (const status s = detail::have_law(l, r, eta); s != status::ok) return {.why = s};
  const row_pair<false, decltype(l), decltype(r)> rows(l, r);
  const token_id x = race(rows, eta.law().bind(rows), noise, position).token;
  if (x == no_token) return {.why = status::undefined_target};
  return {x, x == x_l, x == x_r, status::ok};
}

// ---- acceptance -----------------------------------------------------------------------------------------------------

// The agreement of two drafts drawn from these rows, in closed form, one pass: alpha^l = 1/2 (1 - eta^r TV) +
// 1/2 sum p^l pi, alpha^r alike. If l is chosen, x^l stays with mass min(p^l, pi)(x) and is replaced by x with (pi -
// p^l)+(x), and x^r is an independent draw of p^r. So, and with l and r exchanged,
//   P(both)    = 1/2 sum min(p^l, pi) p^r + min(p^r, pi) p^l
//   P(l alone) = 1/2 sum min(p^l, pi) (1 - p^r) + (pi - p^r)+ p^l
// NaN if the rows or weights have no law.
template <class L, class R>
agreement agreement_of(const L& p_l, const R& p_r, const site_weights& eta) {
  auto l = as_row(p_l);
  auto r = as_row(p_r);
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  if (detail::have_law(l, r, eta) != status::ok) return {none, none, none};
  const row_pair<false, decltype(l), decltype(r)> rows(l, r);
  const auto pi = eta.law().bind(rows);
  const auto [together, alone] = rows.sum([&](auto at) {
    const auto x = uncontracted(pi(at)), kept_l = min(at.q, x), kept_r = min(at.p, x);
    return both(fma(kept_l, at.p, kept_r * at.q), both(fma(kept_l, 1 - at.p, positive(x - at.p) * at.q),
                                                       fma(kept_r, 1 - at.q, positive(x - at.q) * at.p)));
  });
  return {together / 2, alone.first / 2, alone.second / 2};
}

SPECAGG_END
