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
// What it costs: the verifiers and the decoder look which kind it is once for each position, and
// then run the code of that kind: no loop is slower, and the compiler makes each loop once for each
// kind. compiled_once<any_row<...>>, and whoever calls open(), has one jump for every 16 tokens.
template <Row First, Row... More>
struct any_row {
  static_assert(
      (std::is_same_v<typename First::value_type, typename More::value_type> && ...),
      "specagg: the rows of an any_row must have one value type (all float or all double)");
  using value_type = typename First::value_type;
  std::variant<First, More...> row;
  any_row() = default;
  template <class R>
    requires(std::is_same_v<R, First> || (std::is_same_v<R, More> || ...))
  any_row(const R& one) : row(one) {}

  static constexpr bool compiled_for_each = true;
  template <class F>
  decltype(auto) visit(F&& f) {
    return std::visit(f, row);
  }
  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit(f, row);
  }
  std::size_t size() const {
    return std::visit([](const auto& r) { return r.size(); }, row);
  }
  value_type operator[](std::size_t v) const {
    return std::visit([=](const auto& r) { return value_type(r[v]); }, row);
  }
  status normalise(bool confidence = false) {
    return std::visit([=](auto& r) { return r.normalise(confidence); }, row);
  }

  struct block {
    using kinds = std::variant<decltype(std::declval<const First&>().open(0, 0)),
                               decltype(std::declval<const More&>().open(0, 0))...>;
    kinds kind;
    template <class V>
    V operator()(std::size_t k, int lanes) const {
      return std::visit([=](const auto& b) { return b.template operator()<V>(k, lanes); }, kind);
    }
    template <class V>
    V confidence(std::size_t k, int lanes) const {
      return std::visit([=](const auto& b) { return b.template confidence<V>(k, lanes); }, kind);
    }
  };
  block open(std::size_t begin, std::size_t count) const {
    return open(begin, count, std::make_index_sequence<1 + sizeof...(More)>());
  }

 private:
  template <std::size_t... I>
  block open(std::size_t begin, std::size_t count, std::index_sequence<I...>) const {
    std::optional<block> b;
    const auto opened = [&]<std::size_t K>(std::integral_constant<std::size_t, K>) {
      b.emplace(block{
          typename block::kinds(std::in_place_index<K>, std::get<K>(row).open(begin, count))});
    };
    ((row.index() == I ? opened(std::integral_constant<std::size_t, I>()) : void()), ...);
    return *b;
  }
};
SPECAGG_END
