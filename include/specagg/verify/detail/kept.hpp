// SPDX-License-Identifier: Apache-2.0
// The positions that a verifier comes back to: their normalised rows and pi, in its scratch memory.
#pragma once
#include <new>
#include <span>
#include <type_traits>

#include <specagg/verify/detail/decision.hpp>

SPECAGG_BEGIN
namespace detail {

// Two normalised rows and the law bound to them.
template <class Policy, class Q, class P>
struct position {
  const Q q;
  const P p;
  const decltype(detail::pair_for<Policy>(q, p)) rows;
  const decltype(detail::bind_law(rows, std::declval<const Policy&>())) pi;
  position(const position&) = delete;  // rows and pi refer to q and p of this object
  position(const Q& q_row, const P& p_row, const Policy& policy)
      : q(q_row),
        p(p_row),
        rows(detail::pair_for<Policy>(q, p)),
        pi(detail::bind_law(rows, policy)) {}
};

// The type of all positions as a type_identity. It is void if there is no such type, if the scratch
// memory cannot hold it, or if the rows' memory may change between calls. Then each visit
// normalises the rows again.
template <class Policy, class QRows, class PRows>
auto kept_position() {
  if constexpr (!PolicyList<Policy> && !Misfit<misfit_of_law<Policy, QRows, PRows>>) {
    using Q = row_of_list<QRows>;
    using P = row_of_list<PRows>;
    if constexpr (!CompiledForEach<Q> && !CompiledForEach<P> && !holds_elements<Q> &&
                  !holds_elements<P> && !Walked<P> && lasts<std::remove_const_t<QRows>> &&
                  lasts<std::remove_const_t<PRows>>) {
      using one = position<Policy, normal_form<Q>, normal_form<P>>;
      constexpr bool fits = std::is_trivially_destructible_v<one> &&
                            alignof(one) <= alignof(double) &&
                            sizeof(one) <= scratch_of_position * sizeof(double);
      if constexpr (fits) return std::type_identity<one>();
    }
  }
}

// with(j, f) is with_law, but normalises no row and binds no policy twice. The first visits of the
// positions are in ascending order, from 0.
template <class Policy, class QRows, class PRows>
class kept_positions {
  using kept = decltype(kept_position<Policy, QRows, PRows>());
  static constexpr bool keeps = !std::is_void_v<kept>;

 public:
  // Doubles of memory for so many positions.
  SPECAGG_FUNCTION static constexpr std::size_t memory_of(std::size_t positions) {
    return keeps ? positions * scratch_of_position : 0;
  }
  SPECAGG_FUNCTION kept_positions(const law_source<Policy, QRows, PRows>& of,
                                  std::span<double> memory)
      : of_(of), memory_(memory) {}

  template <class F>
  SPECAGG_FUNCTION status with(std::size_t j, F&& f) {
    if constexpr (keeps) {
      using one = typename kept::type;
      double* const place = memory_.data() + j * scratch_of_position;
      if (j == count_) {
        const status s =
            detail::with_rows<Policy>(of_.q_rows, of_.p_rows, j, [&](const auto& q, const auto& p) {
              ::new (static_cast<void*>(place)) one(q, p, of_.policy);
              return status::ok;
            });
        if (s != status::ok) return s;
        ++count_;
      }
      const one& here = *std::launder(reinterpret_cast<const one*>(place));
      return f(here.rows, here.pi);
    } else {
      return of_.template with_law<draft_row::always>(j, f);
    }
  }

 private:
  law_source<Policy, QRows, PRows> of_;
  std::span<double> memory_;
  std::size_t count_ = 0;
};

}  // namespace detail
SPECAGG_END
