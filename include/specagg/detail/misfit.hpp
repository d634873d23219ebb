// SPDX-License-Identifier: Apache-2.0
// How a call that does not fit becomes one error of the compiler: a sentence that says what was
// expected, and which page explains it.
#pragma once
#include <type_traits>

#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace detail {

// A check of a call's arguments is a struct with two members:
//   static constexpr bool fits   whether the call can be compiled
//   static void say()            if not: a static_assert that fails
// first_misfit<Checks...>::type is the first check that does not fit, or void. Later checks are not
// looked at: they may assume that the earlier checks fit. If a check fails, only its static_assert
// is compiled, not the code that needs the arguments. So the user sees one error, once.
template <class... Checks>
struct first_misfit {
  using type = void;
};
template <class First, class... More>
struct first_misfit<First, More...>
    : std::conditional_t<First::fits, first_misfit<More...>, std::type_identity<First>> {};

template <class Check>
concept Misfit = !std::is_void_v<Check>;

}  // namespace detail
SPECAGG_END
