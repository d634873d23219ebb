// SPDX-License-Identifier: Apache-2.0
// A policy defines the law pi as a function of the rows q and p.
// It is written as its equation: the sums that it needs over (q, p), then one elementwise
// expression for pi(v).
//
//   struct my_policy {                                   // pi = q where p is confident, else p
//     double alpha;
//     template <class Rows>
//     SPECAGG_FUNCTION auto bind(const Rows& rows) const {
//       const double top = rows.max([](auto at) { return at.confidence_p; });
//       return [top, a = alpha](auto at) { return select(top < a, at.p, at.q); };
//     }
//   };
//
// `at` is the view of one token: q, p, and their values at temperature 1, confidence_q and
// confidence_p. Values that a lambda does not name are not read. The same code runs on vectors of
// floats (fast), on vectors of doubles (audit), and inside a CUDA block. pi must be >= 0 and sum to
// 1; checked{policy} (policy/checked.hpp) checks this. If rows have no law (0/0 in a normaliser),
// pi must be NaN: this is reported as status::undefined_target. Reductions return doubles. Write
// fma(a, b, c) where a product is added to something (kernel/simd.hpp).
#pragma once
#include <span>

#include <specagg/compiled_once.hpp>
#include <specagg/kernel/sample.hpp>
#include <specagg/rows/distribution.hpp>

SPECAGG_BEGIN

// A policy may make these two declarations (and `models`, below). The compiler checks them, because
// the view then lacks the members of the draft or of the confidence:
//   static constexpr bool reads_draft = false;        pi does not depend on q: the bonus needs no
//                                                     row of the draft
//   static constexpr bool reads_confidence = false;   saves a pass over rows that differ from their
//                                                     view at temperature 1
// Two more declarations. sequential_decode needs decides_by_draft; reads_ids adds a member to the
// view:
//   static constexpr bool decides_by_draft = true;    whether pi is p or q is known from q alone
//   static constexpr bool reads_ids = true;           at.id is the token's id, as a number of the
//                                                     rows' type (exact up to 2^24)
template <class P>
constexpr bool reads_draft = !requires { requires !P::reads_draft; };
template <class P>
constexpr bool reads_confidence = !requires { requires !P::reads_confidence; };
template <class P>
constexpr bool decides_by_draft = requires { requires P::decides_by_draft; };
template <class P>
constexpr bool reads_ids = requires { requires P::reads_ids; };
// How many models a policy combines: a pair, q and p, unless it declares another number N, as the
// combiners of N rows do (policy/models.hpp):
//   static constexpr std::size_t models = N;
template <class P>
constexpr std::size_t models_of = [] {
  if constexpr (requires { P::models; }) return std::size_t(P::models);
  else return std::size_t(2);
}();
// One token, or 16 tokens, as a policy sees them.
template <class V, bool Confidence = true>
struct token_view {
  V q, p, confidence_q, confidence_p;
};
template <class V>
struct token_view<V, false> {
  V q, p;
};
template <class V, bool Confidence = true>
struct target_view {  // no draft row
  V p, confidence_p;
};
template <class V>
struct target_view<V, false> {
  V p;
};

// The normalised rows of one position, with the reductions sum, max and argmax of
// kernel/reduce.hpp. at(rows, argmax(f)) is the view of the token that argmax found. Its values
// have type vec<T, 1>; `.v` is the number.
template <bool Confidence, class Q, class P>
class row_pair : public reductions<row_pair<Confidence, Q, P>> {
 public:
  using value_type = typename P::value_type;
  static_assert(
      std::is_same_v<typename Q::value_type, value_type>,
      "specagg: the rows of draft and target must have one value type (both float or both double)");
  static_assert(!Walked<Q> || Walked<P>,
                "specagg: if the draft's rows are sharded, the target's must be, too");
  static constexpr bool draft_is_cut = detail::is_cut<Q>;
  SPECAGG_FUNCTION row_pair(const Q& q, const P& p) : q_(q), p_(p) {}
  SPECAGG_FUNCTION std::size_t size() const { return p_.size(); }
  SPECAGG_FUNCTION const P& read_with() const { return p_; }
  SPECAGG_FUNCTION const P& target() const { return p_; }
  // f(row) for each of the rows.
  SPECAGG_FUNCTION void each_row(const auto& f) const {
    f(q_);
    f(p_);
  }
  // The token that has all of q's probability, where Q is such a row.
  SPECAGG_FUNCTION token_id drafted() const
    requires requires(const Q& q) { q.token(); }
  {
    return q_.token();
  }
  // sum(f) for an f that is 0 wherever q is 0. Blocks where a sparse draft has no mass are not
  // read.
  SPECAGG_FUNCTION double sum_where_drafted(auto f) const {
    return specagg::walker_of(*this).sum_of_filled(
        *this, f,
        [this](std::size_t begin, std::size_t count) { return nothing_drafted(begin, count); });
  }
  // Whether the draft is known to have no mass in this block.
  SPECAGG_FUNCTION bool nothing_drafted(std::size_t begin, std::size_t count) const {
    return detail::known_empty(q_.open(begin, count));
  }

  template <class A, class B>
  struct block {
    A q;
    B p;
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE token_view<V, Confidence> operator()(std::size_t k,
                                                                         int n) const {
      const V x = q.template operator()<V>(k, n), y = p.template operator()<V>(k, n);
      if constexpr (Confidence)
        return {x, y, q.template confidence<V>(k, n), p.template confidence<V>(k, n)};
      else return {x, y};
    }
  };
  SPECAGG_FUNCTION auto open(std::size_t begin, std::size_t count) const {
    return block<decltype(q_.open(0, 0)), decltype(p_.open(0, 0))>{q_.open(begin, count),
                                                                   p_.open(begin, count)};
  }

 private:
  const Q& q_;
  const P& p_;
};

// row_pair rows(q, p): the views have q and p, not the values at temperature 1.
template <class Q, class P>
row_pair(const Q&, const P&) -> row_pair<false, Q, P>;

// A single row as a policy sees it. View names the members of a token's view.
template <template <class, bool> class View, bool Confidence, class R>
class single_row : public reductions<single_row<View, Confidence, R>> {
 public:
  using value_type = typename R::value_type;
  // sums: what the row's pass has left (kernel/softmax.hpp), for a draw.
  SPECAGG_FUNCTION explicit single_row(const R& row, const row_sums& sums = {})
      : row_(row), sums_(sums) {}
  SPECAGG_FUNCTION std::size_t size() const { return row_.size(); }
  SPECAGG_FUNCTION const R& read_with() const { return row_; }
  SPECAGG_FUNCTION const R& target() const { return row_; }
  SPECAGG_FUNCTION const row_sums& sums() const { return sums_; }
  SPECAGG_FUNCTION void each_row(const auto& f) const { f(row_); }

  template <class B>
  struct block {
    B row;
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE View<V, Confidence> operator()(std::size_t k, int n) const {
      if constexpr (Confidence)
        return {row.template operator()<V>(k, n), row.template confidence<V>(k, n)};
      else return {row.template operator()<V>(k, n)};
    }
  };
  SPECAGG_FUNCTION auto open(std::size_t begin, std::size_t count) const {
    return block<decltype(row_.open(0, 0))>{row_.open(begin, count)};
  }

 private:
  const R& row_;
  row_sums sums_;
};
// The rows of a policy that does not read the draft.
template <bool Confidence, class P>
using target_rows = single_row<target_view, Confidence, P>;

// One token, or 16 tokens: the members of At, and the token's id.
template <class At, class V>
struct numbered_view : At {
  V id;
};
// Rows (a row_pair, target_rows or model_rows) whose views also have the token's id.
template <class Rows>
class numbered : public reductions<numbered<Rows>> {
 public:
  using value_type = typename Rows::value_type;
  static constexpr bool draft_is_cut = requires { requires Rows::draft_is_cut; };
  SPECAGG_FUNCTION explicit numbered(const Rows& rows) : rows_(rows) {}
  SPECAGG_FUNCTION std::size_t size() const { return rows_.size(); }
  SPECAGG_FUNCTION const Rows& read_with() const { return rows_; }
  SPECAGG_FUNCTION void each_row(const auto& f) const { f(rows_); }
  SPECAGG_FUNCTION const auto& target() const
    requires requires(const Rows& rows) { rows.target(); }
  {
    return rows_.target();
  }
  SPECAGG_FUNCTION token_id drafted() const
    requires requires(const Rows& rows) { rows.drafted(); }
  {
    return rows_.drafted();
  }
  // As the member of row_pair.
  SPECAGG_FUNCTION double sum_where_drafted(auto f) const {
    return specagg::walker_of(*this).sum_of_filled(*this, f,
                                                   [this](std::size_t begin, std::size_t count) {
                                                     return rows_.nothing_drafted(begin, count);
                                                   });
  }

  template <class B>
  struct block {
    B rows;
    std::size_t begin;
    template <class V>
    SPECAGG_FUNCTION SPECAGG_INLINE auto operator()(std::size_t k, int n) const {
      const auto at = rows.template operator()<V>(k, n);
      return numbered_view<std::remove_cv_t<decltype(at)>, V>{
          at, V::iota(typename V::value_type(begin + k))};
    }
  };
  SPECAGG_FUNCTION auto open(std::size_t begin, std::size_t count) const {
    return block<decltype(rows_.open(0, 0))>{rows_.open(begin, count), begin};
  }

 private:
  Rows rows_;
};

namespace detail {

// The rows as a policy sees them: with ids if it reads them. For other policies they are the rows
// themselves, so that no other policy pays for ids.
template <class Policy, class Rows>
SPECAGG_FUNCTION SPECAGG_LANE auto seen_by(const Rows& rows) {
  if constexpr (reads_ids<Policy>) return numbered<Rows>(rows);
  else return rows;
}
template <class Policy, class Q, class P>
using pair_seen_by =
    decltype(seen_by<Policy>(std::declval<const row_pair<reads_confidence<Policy>, Q, P>&>()));

}  // namespace detail

// ---- functions for equations --------------------------------------------------------------------

// As a double, as all parameters and reductions are.
inline constexpr double infinity = std::numeric_limits<double>::infinity();
// For valid(): whether numbers are neither infinite nor NaN.
constexpr bool is_finite(double x) { return x > -infinity && x < infinity; }
constexpr bool all_finite(const auto& w) {
  for (const double x : w)
    if (!is_finite(x)) return false;
  return true;
}
// For valid(): whether no weight is negative, and their sum is 1 to within 1e-9.
constexpr bool is_convex(const auto& w) {
  double sum = 0;
  for (const double x : w) {
    if (!(x >= 0)) return false;
    sum += x;
  }
  return sum > 1 - 1e-9 && sum < 1 + 1e-9;
}

// pi of a deferral rule: the target's row if it defers, else the draft's.
SPECAGG_FUNCTION inline auto target_if(bool defer) {
  return [=](auto at) { return select(defer, at.p, at.q); };
}
// w log x, with 0 log 0 = 0. A subnormal w counts as 0.
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE V weighted_log(V w, V x) {
  constexpr auto least = std::numeric_limits<typename V::value_type>::min();
  return select(abs(w) < V(least), V(0), w * log(x));
}
// log(a / b), also where b is subnormal and the quotient beyond the numbers.
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE V log_ratio(V a, V b) {
  const V ratio = a / b, y = log(ratio);
  const auto beyond = (ratio == V(infinity)) & (b > 0);
  if (!any(beyond)) return y;
  return select(beyond, log(a) - log(b), y);
}
// The contribution of one token to the entropy: -x log x, for x >= 0.
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE V entropy_term(V x) {
  // 0 at 0; of a subnormal x nearly so
  return -x * log(max(V(std::numeric_limits<typename V::value_type>::min()), x));
}
// Whether the id is one of these tokens, lane by lane. One comparison for each token.
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE typename V::mask_type is_one_of(V id,
                                                                std::span<const token_id> tokens) {
  auto is = id < id;
  for (const token_id t : tokens) is = is | (id == V(typename V::value_type(t)));
  return is;
}
// TV(q, p) = sum (p - q)+, from 0 to 1. One pass; error: see kernels.hpp, which has these three for
// rows that are not bound to a policy.
SPECAGG_FUNCTION double total_variation(const auto& rows) {
  return rows.sum([](auto at) { return positive(at.p - at.q); });
}
// sum min(q, pi), the probability that a token drawn from q is accepted: 1 - TV(q, pi). One pass;
// blocks where a sparse draft has no mass are not read.
SPECAGG_FUNCTION double acceptance_rate(const auto& rows, const auto& pi) {
  return rows.sum_where_drafted([&](auto at) { return min(at.q, pi(at)); });
}
// KL(a || b) = sum a ln(a / b) in nats, of two functions of the view. A token with a = 0 counts as
// 0. Infinite if b is 0 where a is not.
SPECAGG_FUNCTION double kl_divergence(const auto& rows, const auto& a, const auto& b) {
  return rows.sum([&](auto at) {
    const auto w = a(at);
    constexpr auto least = std::numeric_limits<typename decltype(w)::value_type>::min();
    return select(w < least, 0, w * log_ratio(w, b(at)));
  });
}
// e^z - 1 for z <= 0 without cancellation, computed as in log_1_plus (kernel/math.hpp).
template <class V>
SPECAGG_FUNCTION SPECAGG_INLINE V exp_minus_1(V z) {
  const V y = exp(z);
  return select(y == 1, z, select(y > 0, (y - 1) * z / log(y), -1));
}
// pi = g / sum g. NaN, and so undefined, if no token has weight.
SPECAGG_FUNCTION auto normalised(const auto& rows, auto g) {
  const double total = rows.sum(g);
  // 1 / total is beyond the numbers where the total is subnormal
  const double lift = total < 0x1p-126 ? 0x1p64 : 1;
  return [=, scale = 1 / (total * lift)](auto at) { return g(at) * lift * scale; };
}

// The requirements on a policy: bind(rows) returns a function pi(at), which returns a vec for a
// vec.
template <class Policy, class T = float>
concept TargetPolicy =
    requires(const Policy& policy, const detail::pair_seen_by<Policy, normal_form<dense_row<T>>,
                                                              normal_form<dense_row<T>>>& rows) {
      {
        policy.bind(rows)(rows.open(0, 16).template operator()<vec<T, 16>>(0, 16))
      } -> std::convertible_to<vec<T, 16>>;
    };

namespace detail {

// The check of a policy (detail/misfit.hpp). T: the value type of the rows.
template <class Policy, class T>
struct check_policy {
  static constexpr bool confidence = reads_confidence<Policy>;
  using row = normal_form<dense_row<T>>;
  using V = vec<T, 16>;
  using plain_rows = std::conditional_t<reads_draft<Policy>, row_pair<confidence, row, row>,
                                        target_rows<confidence, row>>;
  using plain_view = std::conditional_t<reads_draft<Policy>, token_view<V, confidence>,
                                        target_view<V, confidence>>;
  static constexpr bool ids = reads_ids<Policy>;
  using rows_type = std::conditional_t<ids, numbered<plain_rows>, plain_rows>;
  using view_type = std::conditional_t<ids, numbered_view<plain_view, V>, plain_view>;
  static constexpr bool binds =
      requires(const Policy& policy, const rows_type& rows) { policy.bind(rows); };
  static constexpr bool fits = requires(const Policy& policy, const rows_type& rows, view_type at) {
    { uncontracted(policy.bind(rows)(at)) } -> std::convertible_to<V>;
  };
  SPECAGG_FUNCTION static void say() {
    static_assert(binds,
                  "specagg: a policy is a struct with a member `template <class Rows> auto "
                  "bind(const Rows& rows) const` (docs/write-your-own-policy.md)");
    static_assert(
        !binds || fits,
        "specagg: bind(rows) of a policy returns a function: called with the view `at` of "
        "a token, it returns the token's probability, made of at.q and at.p "
        "(docs/write-your-own-policy.md)");
  }
};

}  // namespace detail

SPECAGG_BEGIN_CALLS

// Whether the parameters of a policy are in range. A policy without a member valid() takes any
// parameters.
SPECAGG_FUNCTION constexpr bool valid(const auto& policy) {
  if constexpr (requires { policy.valid(); }) return policy.valid();
  else return true;
}
namespace detail {

// policy.bind(rows). Under nvcc the returned function is also called, in a branch that never runs,
// so that nvcc sees all code of a policy.
SPECAGG_FUNCTION SPECAGG_LANE auto bind_to(const auto& rows, const auto& policy) {
  auto pi = policy.bind(rows);
#if defined(__CUDACC__)
  using view = decltype(specagg::at(rows, std::size_t()));
  if constexpr (requires(const view& v) { v.p; })
    if (false) (void)pi(*static_cast<const view*>(nullptr));
#endif
  return pi;
}

}  // namespace detail

SPECAGG_END_CALLS

SPECAGG_END
