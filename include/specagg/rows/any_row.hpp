// SPDX-License-Identifier: Apache-2.0
// A row of one of several kinds, known at run time: the rows of one draft may be of different
// kinds.
#pragma once
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <specagg/compiled_once.hpp>
#include <specagg/rows/distribution.hpp>

SPECAGG_BEGIN

// any_row<one_hot_row<float>, processed_row<float>> row = one_hot_row<float>(7, V). The kinds have
// one value type. A row that was not assigned is a default-constructed row of the first kind.
//
// Cost: the verifiers and the decoder look up the kind once for each position, and then run the
// code of that kind. No loop is slower, and the compiler makes each loop once for each kind.
// compiled_once<any_row<...>>, and code that calls open(), has one jump for every 16 tokens.
template <Row First, Row... More>
struct any_row {
  static_assert(
      (std::is_same_v<typename First::value_type, typename More::value_type> && ...),
      "specagg: the rows of an any_row must have one value type (all float or all double)");
  static constexpr bool compiled_for_each = true;
  static constexpr bool may_be_cut = (detail::may_be_cut<First> || ... || detail::may_be_cut<More>);
  static constexpr bool all_normalised = (NormalisedRow<First> && ... && NormalisedRow<More>);
  using value_type = typename First::value_type;
  std::variant<First, More...> row;
  any_row() = default;
  template <class R>
    requires(std::is_same_v<R, First> || (std::is_same_v<R, More> || ...))
  any_row(const R& one) : row(one) {}

  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit(f, row);
  }
  std::size_t size() const {
    return visit([](const auto& r) { return r.size(); });
  }
  // As the member of a processed_row.
  bool greedy() const {
    return visit([](const auto& r) {
      if constexpr (requires { r.greedy(); }) return r.greedy();
      else return false;
    });
  }
  // An any_row of normalised rows.
  auto normalise(bool confidence = false) const
    requires(!all_normalised)
  {
    return visit([=](const auto& r) {
      return any_row<normal_form<First>, normal_form<More>...>(specagg::normalise(r, confidence));
    });
  }

  // The members of a normalised row, if all kinds are normalised.
  status why() const
    requires all_normalised
  {
    return visit([](const auto& r) { return r.why(); });
  }
  bool confident() const
    requires all_normalised
  {
    return visit([](const auto& r) { return detail::readable(r, true) == r.why(); });
  }
  value_type operator[](std::size_t v) const
    requires all_normalised
  {
    return visit([=](const auto& r) { return value_type(r[v]); });
  }
  auto open(std::size_t begin, std::size_t count) const
    requires all_normalised
  {
    return open_kind(begin, count, std::make_index_sequence<1 + sizeof...(More)>());
  }

 private:
  template <class... Blocks>
  struct block {
    std::variant<Blocks...> kind;
    template <class V>
    V operator()(std::size_t k, int lanes) const {
      return std::visit([=](const auto& b) { return b.template operator()<V>(k, lanes); }, kind);
    }
    template <class V>
    V confidence(std::size_t k, int lanes) const {
      return std::visit([=](const auto& b) { return b.template confidence<V>(k, lanes); }, kind);
    }
  };
  template <std::size_t... I>
  auto open_kind(std::size_t begin, std::size_t count, std::index_sequence<I...>) const {
    using opened = block<decltype(std::get<I>(row).open(0, 0))...>;
    std::optional<opened> b;
    ((row.index() == I ? (void)b.emplace(opened{decltype(opened::kind)(
                             std::in_place_index<I>, std::get<I>(row).open(begin, count))})
                       : void()),
     ...);
    return *b;
  }
};

SPECAGG_END
