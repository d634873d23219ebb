// SPDX-License-Identifier: Apache-2.0
// What a decoder can be given besides what it needs: each stands after the workspace, by its name,
// in any order. What is left out has a default.
//   speculative_decode(text, 64, draft, target, lossless{}, random, work,
//                      with::accept{until_a_newline}, with::verifier{block_verifier{}})
// Of an object with a name a reference is kept; of a temporary, its value.
#pragma once
#include <type_traits>
#include <utility>

#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// What a decoder calls where it is given no accept: every token is accepted.
struct accept_all {
  bool operator()(const emission&) const { return true; }
};
// The same for after_round(result, workspace).
struct ignore_round {
  template <class Result, class Work>
  void operator()(const Result&, const Work&) const {}
};

namespace detail {
template <class X>
struct given {
  X value;
  constexpr given(X&& x) : value(std::forward<X>(x)) {}
};
}  // namespace detail

// The names. X: the type of what is given, a reference if that is an object with a name.
namespace with {
// What edits rows of logits and follows the text (rows/process.hpp). Default: no_processor.
template <class X>
struct processor : detail::given<X> {
  using detail::given<X>::given;
};
template <class X>
processor(X&&) -> processor<X>;
// accept(emission), called for every token that is emitted: false if the text is to end after it.
// Default: accept_all.
template <class X>
struct accept : detail::given<X> {
  using detail::given<X>::given;
};
template <class X>
accept(X&&) -> accept<X>;
// after_round(result, workspace), called after each round, and before accept. Default:
// ignore_round.
template <class X>
struct after_round : detail::given<X> {
  using detail::given<X>::given;
};
template <class X>
after_round(X&&) -> after_round<X>;
// How drafts are verified (verify/verifiers.hpp). Default: token_verifier; of trees, traversal.
template <class X>
struct verifier : detail::given<X> {
  using detail::given<X>::given;
};
template <class X>
verifier(X&&) -> verifier<X>;
// How long drafts are. Default: fixed_draft_length (decode/speculative.hpp).
template <class X>
struct length : detail::given<X> {
  using detail::given<X>::given;
};
template <class X>
length(X&&) -> length<X>;
// How trees grow. Default: fixed_growth (decode/tree.hpp).
template <class X>
struct growth : detail::given<X> {
  using detail::given<X>::given;
};
template <class X>
growth(X&&) -> growth<X>;
// What proposes tokens before the models do. Default: nothing (decode/collaborative.hpp).
template <class X>
struct drafter : detail::given<X> {
  using detail::given<X>::given;
};
template <class X>
drafter(X&&) -> drafter<X>;
}  // namespace with

namespace detail {

template <template <class> class Name, class X>
constexpr bool is_named = false;
template <template <class> class Name, class X>
constexpr bool is_named<Name, Name<X>> = true;

// What was given by this name, or a Default.
template <template <class> class Name, class Default>
Default by_name() {
  return {};
}
template <template <class> class Name, class Default, class First, class... More>
decltype(auto) by_name(First& first, More&... more) {
  if constexpr (is_named<Name, std::remove_const_t<First>>) return (first.value);
  else return detail::by_name<Name, Default>(more...);
}
template <template <class> class Name, class Default, class... Given>
using type_by_name = std::remove_reference_t<decltype(detail::by_name<Name, Default>(
    std::declval<std::remove_reference_t<Given>&>()...))>;

// The type of what was given by this name, to be stored; and its value, taken out.
template <template <class> class Name, class Default, class... Given>
struct kept_by_name {
  using type = Default;
};
template <template <class> class Name, class Default, class X, class... More>
struct kept_by_name<Name, Default, Name<X>, More...> {
  using type = X;
};
template <template <class> class Name, class Default, class First, class... More>
struct kept_by_name<Name, Default, First, More...> : kept_by_name<Name, Default, More...> {};
template <template <class> class Name, class Default, class... Given>
using stored_by_name = typename kept_by_name<Name, Default, Given...>::type;
template <template <class> class Name, class Default, class... Given>
stored_by_name<Name, Default, Given...> take_by_name(Given&... given) {
  return static_cast<stored_by_name<Name, Default, Given...>&&>(
      detail::by_name<Name, Default>(given...));
}

// The names that a decoder takes.
template <template <class> class... Name>
struct names {
  template <class X>
  static constexpr bool take = (is_named<Name, X> || ...);
  template <template <class> class One, class... X>
  static constexpr bool at_most_one = (0 + ... + std::size_t(is_named<One, X>)) <= 1;
  template <class... X>
  static constexpr bool no_two = (at_most_one<Name, X...> && ...);
};

}  // namespace detail
SPECAGG_END
