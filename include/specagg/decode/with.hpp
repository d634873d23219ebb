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

// The names. X: the type of what is given, a reference if that is an object with a name.
namespace with {
// What edits rows of logits and follows the text (rows/process.hpp). Default: no_processor.
template <class X>
struct processor {
  X value;
};
template <class X>
processor(X&&) -> processor<X>;
// accept(emission), called for every token that is emitted: false if the text is to end after it.
// Default: accept_all.
template <class X>
struct accept {
  X value;
};
template <class X>
accept(X&&) -> accept<X>;
// after_round(result, workspace), called after each round, and before accept. Default:
// ignore_round.
template <class X>
struct after_round {
  X value;
};
template <class X>
after_round(X&&) -> after_round<X>;
// How drafts are verified (verify/verifiers.hpp). Default: token_verifier; of trees, traversal.
template <class X>
struct verifier {
  X value;
};
template <class X>
verifier(X&&) -> verifier<X>;
// How long drafts are. Default: fixed_draft_length (decode/speculative.hpp).
template <class X>
struct length {
  X value;
};
template <class X>
length(X&&) -> length<X>;
// How trees grow. Default: fixed_growth (decode/tree.hpp).
template <class X>
struct growth {
  X value;
};
template <class X>
growth(X&&) -> growth<X>;
// What proposes tokens before the models do. Default: nothing (decode/collaborative.hpp).
template <class X>
struct drafter {
  X value;
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

// Its type, to keep it: a reference if an object with a name was given.
template <template <class> class Name, class Default, class... Given>
struct kept_by_name : std::type_identity<Default> {};
template <template <class> class Name, class Default, class X, class... More>
struct kept_by_name<Name, Default, Name<X>, More...> : std::type_identity<X> {};
template <template <class> class Name, class Default, class First, class... More>
struct kept_by_name<Name, Default, First, More...> : kept_by_name<Name, Default, More...> {};
template <template <class> class Name, class Default, class... Given>
using kept_by_name_t = typename kept_by_name<Name, Default, std::remove_cvref_t<Given>...>::type;
template <template <class> class Name, class Default, class... Given>
using by_name_t = std::remove_reference_t<kept_by_name_t<Name, Default, Given...>>;

// The names that a decoder takes, each once.
template <template <class> class... Name>
struct names {
  template <template <class> class One, class... X>
  static constexpr std::size_t count = (0 + ... + std::size_t(is_named<One, X>));
  template <class... X>
  static constexpr bool take =
      ((count<Name, X...> <= 1) && ...) && (0 + ... + count<Name, X...>) == sizeof...(X);
};

}  // namespace detail
SPECAGG_END
