// SPDX-License-Identifier: Apache-2.0
// The rows of any number of models at one position, for policies that combine them. model<K>(at) is
// the token's probability in row K. A pair (q, p) is the case N = 2: model 0 is q, model 1 is p.
#pragma once
#include <array>
#include <cstddef>
#include <utility>

#include <specagg/policy/detail/law.hpp>

SPECAGG_BEGIN

// N values as nested pairs (compilers keep nested pairs in registers).
template <class V, std::size_t N>
struct model_view {
  V first;
  model_view<V, N - 1> rest;
};
template <class V>
struct model_view<V, 1> {
  V first;
};

// The token's probability under model K.
template <std::size_t K, class V, std::size_t N>
SPECAGG_FUNCTION SPECAGG_INLINE V model(const model_view<V, N>& at) {
  static_assert(K < N);
  if constexpr (K == 0) return at.first;
  else return model<K - 1>(at.rest);
}
template <std::size_t K, class V, bool Confidence>
SPECAGG_FUNCTION SPECAGG_INLINE V model(const token_view<V, Confidence>& at) {
  static_assert(K < 2, "specagg: a pair of rows has two models");
  if constexpr (K == 0) return at.q;
  else return at.p;
}
// Makes a view of N numbers.
template <std::size_t K = 0, std::size_t N>
constexpr auto view_of(const std::array<double, N>& x) {
  using V = vec<double, 1>;
  if constexpr (K + 1 == N) return model_view<V, 1>{V(x[K])};
  else return model_view<V, N - K>{V(x[K]), view_of<K + 1>(x)};
}

// Calls f(k, model k, sum so far) from the last model to the first. The sum starts at 0.
template <std::size_t N, class At, class F>
SPECAGG_FUNCTION SPECAGG_INLINE auto fold_models(const At& at, const F& f) {
  using V = std::remove_cvref_t<decltype(model<0>(at))>;
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    V sum(0);
    ((sum = f(N - 1 - I, model<N - 1 - I>(at), sum)), ...);
    return sum;
  }(std::make_index_sequence<N>());
}

// The normalised rows of N models at one position and the passes over them.
template <class R, std::size_t N>
class model_rows : public reductions<model_rows<R, N>> {
 public:
  using value_type = typename R::value_type;
  explicit model_rows(const std::array<R, N>& rows) : rows_(rows) {}
  std::size_t size() const { return rows_[0].size(); }

  struct block {
    std::array<decltype(std::declval<const R&>().open(0, 0)), N> rows;
    template <class V>
    SPECAGG_INLINE model_view<V, N> operator()(std::size_t k, int lanes) const {
      return view<V, 0>(k, lanes);
    }

   private:
    template <class V, std::size_t K>
    SPECAGG_INLINE model_view<V, N - K> view(std::size_t k, int lanes) const {
      if constexpr (K + 1 == N) return {rows[K].template operator()<V>(k, lanes)};
      else return {rows[K].template operator()<V>(k, lanes), view<V, K + 1>(k, lanes)};
    }
  };
  block open(std::size_t begin, std::size_t count) const {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return block{{rows_[I].open(begin, count)...}};
    }(std::make_index_sequence<N>());
  }

 private:
  const std::array<R, N>& rows_;
};

// Calls f(rows, pi) with the normalised rows of N models at one position and the law bound to them.
// Two rows become a pair (q, p). The policy must combine N models.
template <class Policy, Row R, std::size_t N, class F>
status with_models([[maybe_unused]] const Policy& policy,
                   [[maybe_unused]] const std::array<R, N>& row, F&& f) {
  static_assert(models_of<Policy> == N,
                "specagg: the policy combines another number of models than it is given");
  if constexpr (models_of<Policy> != N) return status::invalid_parameter;  // no further errors
  else
    return specagg::with_chosen(policy, [&](const auto& chosen) {
      using Chosen = std::remove_cvref_t<decltype(chosen)>;
      constexpr bool confidence = N == 2 && reads_confidence<Chosen>;
      using normalised = normal_form<R>;
      std::array<normalised, N> all;
      for (std::size_t k = 0; k < N; ++k) {
        all[k] = specagg::normalise(row[k], confidence);
        if (const status s = detail::readable(all[k], confidence); s != status::ok) return s;
      }
      if constexpr (N == 2) {
        const row_pair<confidence, normalised, normalised> pair(all[0], all[1]);
        return detail::with_pi(chosen, pair, f);
      } else {
        return detail::with_pi(chosen, model_rows<normalised, N>(all), f);
      }
    });
}

SPECAGG_END
