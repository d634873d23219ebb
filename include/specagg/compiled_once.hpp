// SPDX-License-Identifier: Apache-2.0
// Run-time choice of a policy (policy/any_of.hpp) or of a kind of row (rows/any_row.hpp). Code that
// uses it is compiled once for each alternative (any_of, any_row), or a single time, with a
// dispatch (compiled_once).
#pragma once

#include <specagg/config.hpp>

SPECAGG_BEGIN

// A choice has a member visit(f), which calls f with the chosen object, in its own type.
template <class T>
concept OneOfSeveral = requires { T::compiled_for_each; };
// A choice whose users compile their code for each alternative.
template <class T>
concept CompiledForEach = OneOfSeveral<T> && T::compiled_for_each;

// any_of or any_row, for which the verifiers and decoders are compiled once, whatever was chosen:
// compiled_once<any_of<lossless, token_v3>>. One jump for every 16 tokens of a row; for programs in
// which compiling takes too long. Tokens, statuses and log-probabilities are the same.
template <OneOfSeveral T>
struct compiled_once : T {
  static constexpr bool compiled_for_each = false;
  using T::T;
  constexpr compiled_once() = default;
  constexpr compiled_once(const T& one) : T(one) {}
  // For a row (rows/row.hpp): code for its normalised row is compiled once, too.
  auto normalise(bool confidence = false) const
    requires requires(const T& row) { row.normalise(true); }
  {
    return compiled_once<decltype(T::normalise(confidence))>(T::normalise(confidence));
  }
};

// f(what was chosen, by its own type), and f is compiled for each alternative; f(x) for an x that
// is no such choice, or is compiled once.
template <class T, class F>
SPECAGG_FUNCTION decltype(auto) with_chosen(const T& x, F&& f) {
  if constexpr (CompiledForEach<T>) return x.visit(f);
  else return f(x);
}

SPECAGG_END
