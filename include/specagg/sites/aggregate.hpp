// SPDX-License-Identifier: Apache-2.0
// DRAGON: documents are stored at two sites, l and r, and one law depends on all of them. Each site
// drafts from its own documents. One site makes a token of exactly this law from both drafts. Liu
// et al. 2025 (arXiv:2504.11197).
//
//   h^s = ln sum_d e^R(d)            over the documents d of site s; R: relevance to the text, nats
//   p^s = sum_d softmax_d(R) p(.|d)  the site's row, from which it drafts
//   pi  = eta^l p^l + eta^r p^r      the law of the text (eq. 4);  ln eta = log_softmax(h^l, h^r)
//
// Relevances may be computed once (static weights) or again at every token (dynamic). If dynamic, h
// is sent with each draft.
#pragma once
#include <algorithm>
#include <array>
#include <span>

#include <specagg/policy/combine.hpp>
#include <specagg/plan/side.hpp>
#include <specagg/verify/coupled.hpp>

SPECAGG_BEGIN
namespace sites {

// The weight of each site. The logarithms stay exact where a weight underflows.
struct site_weights {
  double log_l = 0, log_r = 0, l = 1, r = 0;
  // pi as a policy: q is the row of l, p the row of r
  constexpr ensemble law() const { return {l}; }
};

// ln(e^a + e^b); -inf if both are -inf.
inline double log_add(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a;
  return low == -std::numeric_limits<double>::infinity() ? high : high + log(1 + exp(low - high));
}

// The weights eta from h^l and h^r. A site without documents has h = -inf. All four numbers are NaN
// if both h are -inf, or if an h is NaN or +inf.
inline site_weights weigh_sites(double h_l, double h_r) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  const double lead = h_l - h_r, less = lead > 0 ? -lead : lead;
  if (!(h_l < infinity && h_r < infinity) || lead != lead) return {none, none, none, none};
  const double e = exp(less), large = 1 / (1 + e), small = e / (1 + e);
  const double log_large = -log(1 + e), log_small = less + log_large;
  return lead > 0 ? site_weights{log_large, log_small, large, small}
                  : site_weights{log_small, log_large, small, large};
}

// A site's share of the law: its h^s, which is sent to the other site with the row.
struct [[nodiscard]] site_share {
  status why = status::ok;
  double h = -std::numeric_limits<double>::infinity();
};

// The logarithm of a site's row: out[v] = ln p^s(v) = ln sum_d e^(R(d) - h^s + ln
// softmax(documents[d])(v)), -inf where no document has mass (appendix A.1). These are logits like
// those of any model; apply temperature and filters to them. Mixtures can be nested: mixing the
// rows of two sites with relevances h^l, h^r gives ln pi.
//   documents   the logits after each document, V each; read twice
//   relevance   R(d) of each document; a document with -inf is left out and not read
//   out         V elements; must not be the logits of a document
//   scratch     twice as many elements as documents
// Error of out[v]: 1e-6 + 1e-7 |out[v]| for floats. If all documents are left out, h = -inf and
// `out` is not written.
template <class T>
site_share mix_documents(std::span<const std::span<const T>> documents,
                         std::span<const double> relevance, std::span<T> out,
                         std::span<T> scratch) {
  using V = vec<T, 16>;
  constexpr T inf = std::numeric_limits<T>::infinity();
  site_share share;
  if (documents.size() != relevance.size() || scratch.size() < 2 * documents.size())
    return {status::invalid_parameter};
  for (const double r : relevance) {
    if (!(r < std::numeric_limits<double>::infinity())) return {status::invalid_parameter};
    share.h = log_add(share.h, r);
  }
  if (share.h == -std::numeric_limits<double>::infinity()) return share;
  const std::span<T> top = scratch.first(documents.size()),
                     weight = scratch.subspan(documents.size());
  for (std::size_t d = 0; d < documents.size(); ++d) {
    weight[d] = -inf;
    if (relevance[d] == -std::numeric_limits<double>::infinity()) continue;
    if (documents[d].size() != out.size()) return {status::vocabulary_mismatch};
    const auto sum = sum_exponentials(documents[d].data(), out.size(), 1);
    if (!(sum.total > 0)) return {status::invalid_row};
    // ln p(v|d) + ... = (l - top) + weight
    top[d] = sum.max;
    weight[d] = T(relevance[d] - share.h - log(sum.total));
  }
  for (std::size_t v = 0; v < out.size(); v += 16) {
    const int lanes = int(std::min<std::size_t>(out.size() - v, 16));
    const auto store = [&](V x) {
      if (lanes == 16) return x.store(out.data() + v);
      T lane[16];
      x.store(lane);
      std::copy_n(lane, lanes, out.data() + v);
    };
    const auto term = [&](std::size_t d) {
      const T* l = documents[d].data() + v;
      return ((lanes == 16 ? V::load(l) : V::load_partial(l, lanes, -inf)) - V(top[d])) +
             V(weight[d]);
    };
    if (documents.size() == 1) {  // then the sum below has this value
      store(term(0));
      continue;
    }
    V largest(-inf), sum(0);
    for (std::size_t d = 0; d < documents.size(); ++d)
      if (weight[d] > -inf) largest = max(largest, term(d));
    const V shift = select(largest > V(-inf), largest, V(0));
    for (std::size_t d = 0; d < documents.size(); ++d)
      if (weight[d] > -inf) sum = sum + exp(term(d) - shift);
    store(shift + log(sum));
  }
  return share;
}

// ---- aggregation --------------------------------------------------------------------------------

namespace detail {
// Whether pi exists: no weight is negative or NaN, and their sum is 1.
inline bool is_law(const site_weights& eta) { return is_convex(std::array{eta.l, eta.r}); }
// ok, or why pi does not exist for the normalised rows of both sites and these weights.
status have_law(const auto& l, const auto& r, const site_weights& eta) {
  if (!is_law(eta)) return status::undefined_target;
  if (l.size() != r.size()) return status::vocabulary_mismatch;
  return l.why() != status::ok ? l.why() : r.why();
}
}  // namespace detail

// Turns one draft into a token of law pi = (1 - eta) a + eta b. The draft x is accepted with
// probability min(1, pi(x) / a(x)), else replaced by a token from the residual norm((pi - a)+) =
// norm((b - a)+) (section 4.2). `rows` is the pair of a (as q) and b (as p), both normalised; x was
// drawn from a. If x was not drawn from a (a(x) = 0, or x is not a token), this is reported, and
// the token is drawn from pi.
struct [[nodiscard]] sampled {
  token_id token = no_token;
  status why = status::ok;
};
// scratch: verify_scratch(V) doubles.
template <class A, class B, Chooser C>
sampled sample(const row_pair<false, A, B>& rows, token_id x, double eta, std::uint32_t position,
               C&& chooser, std::span<double> scratch) {
  const auto pi = ensemble{1 - eta}.bind(rows);
  emission e;
  const specagg::detail::drawing by{0, chooser, scratch};
  const status s = by.keep_or_replace(rows, pi, specagg::detail::examine(rows, pi, x), position, e);
  if (s != status::ok) return {no_token, s};
  return {e.token, e.why};
}

// The token that both sites continue with, and which drafts it confirms. A site whose draft is not
// confirmed drops its later drafts and decodes again from this token. why: ok; draft_not_in_support
// or token_out_of_range for the chosen side's draft (there is a token nevertheless); otherwise
// there is no token.
struct [[nodiscard]] aggregation {
  token_id token = no_token;
  bool accepted_l = false, accepted_r = false;
  status why = status::ok;
};

// The part of one site: its draft, the row that the draft was drawn from, and the site's chooser.
template <class Row, class C>
struct site_draft {
  token_id token;
  const Row& row;
  C& chooser;
};
template <class Row, class C>
site_draft(token_id, const Row&, C&) -> site_draft<Row, C>;

// xt^s = sample(x^s, p^s, p^other, eta^other) for both sides, and a coin chooses a side, l with
// probability gamma_l (section 4.2: one half). The sample of the other side is not used, so it is
// not drawn. The token has exactly the law pi, for any dependence between the two drafts.
//   l, r     token: drawn by draw(row, {stream::draft, position, 0}, chooser, ...). row: a decoded
//            row, on both sites. chooser: random_streams(seed, request, 0) of l and (seed, request,
//            1) of r. With the same numbers on both, the drafts become alike, and the acceptance is
//            not as below
//   scratch  verify_scratch(V) doubles
// l and r are two fixed sites (for example device and cloud), not "here" and "there". So the token
// does not depend on which site aggregates. If a draft is thrown away and its position is drafted
// again, it may use the same noise again: no decision has used that noise, because a token is
// verified only after the token before it is settled.
template <class L, class R, Chooser SiteL, Chooser SiteR>
aggregation aggregate(std::uint32_t position, const site_draft<L, SiteL>& l,
                      const site_draft<R, SiteR>& r, const site_weights& eta,
                      std::span<double> scratch, double gamma_l = 0.5) {
  const auto p_l = specagg::normalise(l.row);
  const auto p_r = specagg::normalise(r.row);
  if (const status s = detail::have_law(p_l, p_r, eta); s != status::ok) return {.why = s};
  const sampled x =
      l.chooser.coin({stream::side, position, 0}, gamma_l, 1)
          ? specagg::sites::sample(row_pair(p_l, p_r), l.token, eta.r, position, l.chooser, scratch)
          : specagg::sites::sample(row_pair(p_r, p_l), r.token, eta.l, position, r.chooser,
                                   scratch);
  const bool drawn = x.token != no_token;
  return {x.token, drawn && x.token == l.token, drawn && x.token == r.token, x.why};
}

// Aggregation with the Gumbel-max coupling: the token is argmin E / pi, and drafts are drawn by
// race(row, noise, position). If both sites drafted the same token, it is the result, for any
// weights; unanimous(eta.law(), std::array{x_l, x_r}) says whether they did, and then no row must
// be sent. The law is pi, and the text is a function of the seed alone. A draft is confirmed with
// probability sum_i 1 / sum_j max(pi_j / pi_i, p^s_j / p^s_i).
aggregation aggregate_shared(std::uint32_t position, token_id x_l, const auto& p_l, token_id x_r,
                             const auto& p_r, const site_weights& eta, const coupled_noise& noise) {
  const auto l = specagg::normalise(p_l);
  const auto r = specagg::normalise(p_r);
  if (const status s = detail::have_law(l, r, eta); s != status::ok) return {.why = s};
  const row_pair rows(l, r);
  const token_id x = specagg::race(rows, eta.law().bind(rows), noise, position).token;
  if (x == no_token) return {.why = status::undefined_target};
  return {x, x == x_l, x == x_r, status::ok};
}

// ---- acceptance ---------------------------------------------------------------------------------

// The agreement of two drafts drawn from these rows, in closed form. One pass. gamma_l: the
// probability that l's sample is chosen; gamma_r = 1 - gamma_l. If l is chosen, x^l = x is accepted
// with mass min(p^l, pi)(x), and replaced by x with mass (pi - p^l)+(x); x^r is an independent draw
// from p^r. If r is chosen, l and r change places. Therefore
//   P(both)    = sum gamma_l min(p^l, pi) p^r + gamma_r min(p^r, pi) p^l
//   P(l alone) = sum gamma_l min(p^l, pi) (1 - p^r) + gamma_r (pi - p^r)+ p^l
// and alpha^l is as in Eq 5 (acceptance_eq5). gamma_l is rounded to the rows' type. NaN if the rows
// or weights have no law.
agreement agreement_of(const auto& p_l, const auto& p_r, const site_weights& eta,
                       double gamma_l = 0.5) {
  const auto l = specagg::normalise(p_l);
  const auto r = specagg::normalise(p_r);
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  if (detail::have_law(l, r, eta) != status::ok) return {none, none, none};
  const row_pair rows(l, r);
  const auto pi = eta.law().bind(rows);
  const auto [together, alone] = rows.sum([&](auto at) {
    const auto x = uncontracted(pi(at));
    using V = std::remove_const_t<decltype(x)>;
    const V if_l(gamma_l), if_r(1 - gamma_l);
    const V kept_l = if_l * min(at.q, x), kept_r = if_r * min(at.p, x);
    const V new_l = if_r * positive(x - at.p), new_r = if_l * positive(x - at.q);
    return both(fma(kept_l, at.p, kept_r * at.q),
                both(fma(kept_l, 1 - at.p, new_l * at.q), fma(kept_r, 1 - at.q, new_r * at.p)));
  });
  return {together, alone.first, alone.second};
}

// Eq 5: alpha^l = gamma_l (1 - eta^r TV) + gamma_r sum p^l pi. alpha^r: the same with both rows and
// both weights exchanged. NaN as above.
double acceptance_eq5(const auto& p_l, const auto& p_r, const site_weights& eta,
                      double gamma_l = 0.5) {
  const auto l = specagg::normalise(p_l);
  const auto r = specagg::normalise(p_r);
  if (detail::have_law(l, r, eta) != status::ok) return std::numeric_limits<double>::quiet_NaN();
  const row_pair rows(l, r);
  const auto pi = eta.law().bind(rows);
  const auto [tv, product] =
      rows.sum([&](auto at) { return both(positive(at.q - at.p), at.q * pi(at)); });
  return fma(gamma_l, fma(-eta.r, tv, 1.0), (1 - gamma_l) * product);
}

}  // namespace sites
SPECAGG_END
