// SPDX-License-Identifier: Apache-2.0
// What is known only at run time: which policy of several (policy/any_of.hpp), or which kind of row
// (rows/any_row.hpp). Code that uses it is compiled for each of them, or once.
#pragma once
#include <specagg/config.hpp>

SPECAGG_BEGIN

// Has a member visit(f): f(what was chosen, by its own type).
template <class T>
concept OneOfSeveral = requires { T::compiled_for_each; };
// The same, and its users compile their code for each type that it may hold.
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
};

SPECAGG_END
