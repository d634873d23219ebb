// SPDX-License-Identifier: Apache-2.0
// The rows of a draft or of a target: a list that knows how many rows it has. So a row that was not
// given is a status (missing_row), and never a read beyond the end.
#pragma once
#include <concepts>
#include <span>

#include <specagg/detail/misfit.hpp>
#include <specagg/rows/distribution.hpp>
#include <specagg/rows/process.hpp>

SPECAGG_BEGIN

// size() rows; rows[j] is row j. A vector, a std::array or a span of rows is such a list. rows_of()
// makes a list whose rows are made when they are looked at.
template <class R>
concept RowList = requires(R& rows, std::size_t j) {
  { rows.size() } -> std::convertible_to<std::size_t>;
  { rows[j] } -> Distribution;
};

// The list that rows_of() and lasting_rows_of() return. The list keeps no row: each look at row j
// calls make(j) again. why: the status of a row that is not in the list.
template <class Make, bool Lasts = false>
struct made_rows {
  static constexpr bool lasts = Lasts;
  std::size_t count;
  Make make;
  status why = status::missing_row;
  SPECAGG_FUNCTION std::size_t size() const { return count; }
  SPECAGG_FUNCTION decltype(auto) operator[](std::size_t j) const {
    constexpr bool constant = std::invocable<const Make&, std::size_t>;
    static_assert(constant, "specagg: what rows_of(count, make_row) calls must not be mutable");
    if constexpr (constant) return make(j);
    else return const_cast<Make&>(make)(j);  // no further errors
  }
};
// `count` rows; make(j) makes row j, 0 <= j < count, whenever it is looked at. make may be copied,
// so it must not be mutable. The memory that a row views must not change until the next row is
// made.
template <class Make>
SPECAGG_FUNCTION made_rows<Make> rows_of(std::size_t count, Make make) {
  return {count, make};
}
// rows_of() for rows whose memory does not change until the list ends, also after other rows were
// made. Then block verification normalises no row twice.
template <class Make>
SPECAGG_FUNCTION made_rows<Make, true> lasting_rows_of(std::size_t count, Make make) {
  return {count, make};
}
namespace detail {
// Whether the memory that a row of this list views stays valid while other rows are made. This
// holds for an array, whose rows exist side by side, and for a list that says so. Another list may
// make its rows in one buffer.
template <class Rows>
constexpr bool lasts = [] {
  if constexpr (requires { Rows::lasts; }) return Rows::lasts;
  else return Contiguous<Rows>;
}();

template <class S>
struct check_logit {
  static void say() {
    static_assert(is_logit<S>,
                  "specagg: logits are float, double, specagg::bf16 or specagg::f16 "
                  "(docs/types.md)");
  }
};
}  // namespace detail

// Contract: specagg.hpp.
template <class L>
auto rows_of_logits(L&& logits, std::size_t vocabulary, const sampling& how = {}) {
  constexpr bool are_elements = Contiguous<L>, are_lasting = !detail::short_lived<L>;
  static_assert(are_elements, "specagg: logits are a span, vector or array (docs/engine.md)");
  static_assert(are_lasting, "specagg: logits that the rows view need a name (docs/engine.md)");
  if constexpr (are_elements && are_lasting) {
    using S = typename decltype(std::span(logits))::value_type;
    if constexpr (!is_logit<S>) detail::check_logit<S>::say();
    using R = processed_row<std::conditional_t<is_logit<S>, S, float>>;  // no further errors
    const std::span<const S> all(logits);
    const auto row = [=](std::size_t j) {
      if constexpr (is_logit<S>) return R(all.subspan(j * vocabulary, vocabulary), how);
      else return R();
    };
    auto rows = lasting_rows_of(vocabulary > 0 ? all.size() / vocabulary : 0, row);
    if (vocabulary == 0 || all.size() % vocabulary != 0) {
      rows.count = 0;
      rows.why = status::vocabulary_mismatch;
    }
    return rows;
  } else {
    return lasting_rows_of(0, [](std::size_t) { return processed_row<float>(); });
  }
}

namespace detail {

// The type of rows that are given in braces, {q, p}: check_rows refuses it.
struct in_braces {
  template <class... X>
  in_braces(const X&...);
};
template <class Rows>
struct check_rows {
  static constexpr bool fits = RowList<Rows>;
  SPECAGG_FUNCTION static void say() {
    static_assert(fits,
                  "specagg: rows must know how many they are: pass a span or vector of rows, "
                  "rows_of(count, make_row), "
                  "or rows_of_logits(logits, V, sampling) (docs/types.md)");
  }
};
// The type of a list's rows, and of their probabilities.
template <RowList Rows>
using row_of_list =
    std::remove_cvref_t<decltype(specagg::as_row(std::declval<Rows&>()[std::size_t()]))>;
template <RowList Rows>
using value_of_rows = typename row_of_list<Rows>::value_type;
// f(row j), as a Row of its own kind (rows/any_row.hpp), or missing_row (for made_rows: its `why`).
// Only this function makes the row.
template <class Rows, class F>
SPECAGG_FUNCTION status with_row_at(Rows& rows, std::size_t j, F&& f) {
  if constexpr (RowList<Rows>) {
    if (j >= std::size_t(rows.size())) {
      if constexpr (requires {
                      { rows.why } -> std::convertible_to<status>;
                    })
        return rows.why;
      else return status::missing_row;
    }
    auto&& row = specagg::as_row(rows[j]);
    return specagg::with_chosen(row, f);
  } else {
    check_rows<Rows>::say();
    return status::missing_row;
  }
}

}  // namespace detail

SPECAGG_END
