// SPDX-License-Identifier: Apache-2.0
// The law of every policy of the catalogue as its equation in docs/mathematics.md, in plain long
// doubles: nothing here calls the library, so a mistake in it cannot hide here.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace equations {

using number = long double;
using row = std::vector<number>;
constexpr number inf = std::numeric_limits<number>::infinity();

// What a policy reads. parameter("alpha"): of this name.
struct given {
  row q, p;
  number least;  // the least normal number of the library's rows: smaller weights count as 0
  std::function<number(std::string)> parameter;
  number operator[](const char* name) const { return parameter(name); }
};

template <class F>
row each(const given& x, F f) {
  row y;
  for (std::size_t v = 0; v < x.p.size(); ++v) y.push_back(f(x.q[v], x.p[v]));
  return y;
}
inline number sum(const row& x) {
  number s = 0;
  for (const number y : x) s += y;
  return s;
}
template <class F>
number sum(const given& x, F f) {
  return sum(each(x, f));
}
inline number largest(const row& x) { return *std::max_element(x.begin(), x.end()); }
inline number positive(number x) { return x > 0 ? x : 0; }
// No law: an empty row.
inline row norm(row w) {
  const number s = sum(w);
  if (!(s > 0 && s < inf)) return {};
  for (number& x : w) x /= s;
  return w;
}
inline row softmax(row l) {
  const number top = largest(l);
  if (!(std::fabs(top) < inf)) return {};
  for (number& x : l) x = std::exp(x - top);
  return norm(l);
}
inline number entropy(const row& x) {
  number h = 0;
  for (const number y : x) h -= y > 0 ? y * std::log(y) : 0;
  return h;
}
inline number kl(const row& a, const row& b) {
  number d = 0;
  for (std::size_t v = 0; v < a.size(); ++v) d += a[v] > 0 ? a[v] * std::log(a[v] / b[v]) : 0;
  return d;
}
inline number distance(const given& x) {
  return sum(x, [](number q, number p) { return positive(p - q); });
}
// The x in [low, high] where an increasing f crosses 0.
template <class F>
number root(number low, number high, F f) {
  for (int i = 0; i < 400; ++i) {
    const number middle = (low + high) / 2;
    (f(middle) <= 0 ? low : high) = middle;
  }
  return low;
}

// q where the target agrees; the rest of q from p.
template <class Stands>
row token_cascade(const given& x, Stands stands) {
  const number eta = sum(x, [&](number q, number p) { return stands(q, p) ? 0 : q; });
  return each(x, [&](number q, number p) { return (stands(q, p) ? q : 0) + eta * p; });
}
// q where p is at least `floor` and among the k largest.
inline row likeliest(const given& x, number k, number floor) {
  return token_cascade(x, [&](number, number p) {
    const auto larger = std::count_if(x.p.begin(), x.p.end(), [p](number y) { return y > p; });
    return p >= floor && number(larger) < k;
  });
}
inline row deferral(const given& x, bool defer) { return defer ? x.p : x.q; }

// left = 1 - alpha; beta = 0: the one with S = R.
inline row lossy(const given& x, number left, number beta) {
  const auto kept = [&](number q, number p) { return std::min(q, p / left); };
  const number r = sum(x, [&](number q, number p) { return positive(q - p / left); });
  const auto s_of = [&](number c) {
    return sum(x, [&](number q, number p) { return positive(c * p - q); });
  };
  const number c = beta == 0 ? root(0, 1, [&](number y) { return s_of(y) - r; }) : 1 / beta;
  const number s = s_of(c);
  return each(x, [&](number q, number p) {
    return kept(q, p) + (s >= x.least ? r / s * positive(c * p - q) : r * p);
  });
}
inline row mentored(const given& x) {
  const number bound = x["kl"];
  if (bound == 0) return x.p;
  if (kl(x.p, x.q) <= bound) return x.q;
  // 1 - alpha = e^-t
  const auto law = [&](number t) { return lossy(x, std::exp(-t), 0); };
  number low = 0, high = 1500;
  for (int i = 0; i < 80; ++i) {
    const number t = (low + high) / 2;
    (kl(x.p, law(t)) <= bound ? low : high) = t;
  }
  return law(low);
}
// The most that kl allows: KL of two coins.
inline number most_within(number p, number bound) {
  const auto term = [](number a, number b) { return a > 0 ? a * std::log(a / b) : 0; };
  if (p == 0 || bound == 0) return p;
  if (p >= 1 || -std::log(p) <= bound) return 1;
  return root(p, 1, [&](number h) { return term(h, p) + term(1 - h, 1 - p) - bound; });
}
inline row kl_bound(const given& x) {
  const auto kept = [&](number q, number p) { return std::min(q, most_within(p, x["kl"])); };
  const number r = sum(x, [&](number q, number p) { return q - kept(q, p); }), s = distance(x);
  return each(
      x, [&](number q, number p) { return kept(q, p) + (s > 0 ? r / s * positive(p - q) : 0); });
}
// The paper's code, one rejected token after another.
inline row cactus(const given& x) {
  const auto allowed = [&](number p) {
    return std::min(number(1), p + std::sqrt(2 * x["delta"] * p * (1 - p)));
  };
  row law = each(x, [&](number q, number p) { return std::min(q, allowed(p)); });
  for (std::size_t n = 0; n < law.size(); ++n) {
    const number h = allowed(x.p[n]), rejected = x.q[n] - h;
    if (rejected <= 0) continue;
    row rest(law.size());
    for (std::size_t v = 0; v < law.size(); ++v)
      rest[v] = positive((v == n ? h : x.p[v] * (1 - h) / (1 - x.p[n])) - x.q[v]);
    const row from = norm(rest);
    for (std::size_t v = 0; v < law.size() && !from.empty(); ++v) law[v] += rejected * from[v];
  }
  return law;
}
// Weights of logits. A lacking token: no mass where the weight is positive, else infinite.
inline row log_linear(const given& x, number a, number b) {
  const auto score = [](number weight, number y) { return weight == 0 ? 0 : weight * std::log(y); };
  return softmax(each(x, [&](number q, number p) {
    const number s = score(a, q), t = score(b, p);
    return s == -inf || t == -inf ? -inf : s + t;
  }));
}
inline row contrastive(const given& x) {
  const number mu = x["mu"], floor = x["plausibility"] * largest(x.p);
  given kept = x;
  for (std::size_t v = 0; v < x.p.size(); ++v)
    if (x.p[v] == 0 || x.p[v] < floor) kept.q[v] = 1, kept.p[v] = 0;
  return log_linear(kept, -mu, x["plus"] != 0 ? 1 + mu : 1);
}
inline row power(const given& x) {
  const number w = x["lambda"], rho = x["rho"];
  if (rho == 0) return log_linear(x, w, 1 - w);
  return norm(each(x, [&](number q, number p) -> number {
    const row terms{q > 0               ? std::log(w) + rho * std::log(q)
                    : rho > 0 || w == 0 ? -inf
                                        : inf,
                    p > 0               ? std::log(1 - w) + rho * std::log(p)
                    : rho > 0 || w == 1 ? -inf
                                        : inf};
    const number top = largest(terms);
    if (top == inf) return 0;
    if (top == -inf) return 0;
    return std::exp((top + std::log(std::exp(terms[0] - top) + std::exp(terms[1] - top))) / rho);
  }));
}

inline row typical(const given& x) {
  const number floor = std::min(x["eps"], x["delta"] * std::exp(-entropy(x.p)));
  return norm(each(x, [&](number, number p) { return p >= floor ? p : 0; }));
}
inline row bild(const given& x) {
  const auto top = std::max_element(x.q.begin(), x.q.end()) - x.q.begin();
  const auto term = [&](number q, number p) { return q < x.least ? 0 : -q * std::log(p); };
  return deferral(
      x, (x["greedy"] != 0 ? -std::log(x.p[std::size_t(top)]) : sum(x, term)) > x["alpha"]);
}
inline row fuzzy(const given& x) {
  const row m = each(x, [](number q, number p) { return (q + p) / 2; });
  return deferral(x, (kl(x.q, m) + kl(x.p, m)) / 2 > x["alpha"]);
}
inline row mixture(const given& x, number w) {
  return each(x, [w](number q, number p) { return w * q + (1 - w) * p; });
}
inline row rate_bound(const given& x) {
  const number tv = distance(x);
  return mixture(x, tv > 0 ? positive(x["rate"] - 1 + tv) / tv : 0);
}
// Whether the target leads by more than this.
inline bool less_sure(const given& x, number lead) { return largest(x.q) < largest(x.p) - lead; }
inline bool less_certain(const given& x, number lead) { return entropy(x.p) < entropy(x.q) - lead; }

// By the names of the catalogue. Rows are those at temperature 1.
inline const std::map<std::string, std::function<row(const given&)>> of{
    {"lossless", [](const given& x) { return x.p; }},
    {"lossy", [](const given& x) { return lossy(x, 1 - x["alpha"], x["beta"]); }},
    {"lenient", [](const given& x) { return lossy(x, 1 - x["alpha"], 1); }},
    {"mentored", mentored},
    {"typical", typical},
    {"kl-bound", kl_bound},
    {"cactus", cactus},
    {"chow", [](const given& x) { return deferral(x, largest(x.q) < 1 - x["alpha"]); }},
    {"chow-log", [](const given& x) { return deferral(x, entropy(x.q) > x["alpha"]); }},
    {"diff", [](const given& x) { return deferral(x, less_sure(x, x["alpha"])); }},
    {"diff-log", [](const given& x) { return deferral(x, less_certain(x, x["alpha"])); }},
    {"opt", [](const given& x) { return deferral(x, less_sure(x, x["alpha"] * distance(x))); }},
    {"opt-log",
     [](const given& x) { return deferral(x, less_certain(x, x["alpha"] * distance(x))); }},
    {"bild", bild},
    {"fuzzy", fuzzy},
    {"token-v1",
     [](const given& x) {
       const number floor = largest(x.p) - x["alpha"];
       return token_cascade(x, [=](number q, number) { return q >= floor; });
     }},
    {"token-v2", [](const given& x) { return likeliest(x, inf, largest(x.p) - x["alpha"]); }},
    {"token-v3", [](const given& x) { return likeliest(x, inf, (1 - x["alpha"]) * largest(x.p)); }},
    {"relaxed", [](const given& x) { return likeliest(x, x["k"], largest(x.p) - x["delta"]); }},
    {"relative",
     [](const given& x) { return likeliest(x, x["k"], (1 - x["alpha"]) * largest(x.p)); }},
    {"margin", [](const given& x) { return likeliest(x, 2, (1 - x["alpha"]) * largest(x.p)); }},
    {"logit-comparison",
     [](const given& x) { return token_cascade(x, [](number q, number p) { return p >= q; }); }},
    {"rate-bound", rate_bound},
    {"ensemble", [](const given& x) { return mixture(x, x["lambda"]); }},
    {"contrastive", contrastive},
    {"geometric", [](const given& x) { return log_linear(x, x["lambda"], 1 - x["lambda"]); }},
    {"realign", [](const given& x) { return log_linear(x, x["lambda"], 1 - x["lambda"]); }},
    {"power", power},
    {"minimum",
     [](const given& x) {
       return norm(each(x, [](number q, number p) { return std::min(q, p); }));
     }},
    {"maximum",
     [](const given& x) {
       return norm(each(x, [](number q, number p) { return std::max(q, p); }));
     }},
};

}  // namespace equations
