// SPDX-License-Identifier: Apache-2.0
// Policies and rows whose kind is known at run time, from the plain data of engine.hpp.
#pragma once
#include <span>
#include <type_traits>
#include <variant>

#include <specagg/rows/any_row.hpp>
#include <specagg/policy/catalogue.hpp>

#include "engine.hpp"

using namespace specagg;

namespace {

// Any policy, and rows of any kind with one value type.
using any_policy = compiled_once<any_catalogued>;
using float_row = compiled_once<any_row<processed_row<float>, processed_row<f16>,
                                        processed_row<bf16>, dense_row<float>, one_hot_row<float>>>;
using double_row =
    compiled_once<any_row<processed_row<double>, dense_row<double>, one_hot_row<double>>>;

// ---- policies -----------------------------------------------------------------------------------

// f(line) for the line of the catalogue with this number.
template <class F>
void with_line(int number, F&& f) {
  int i = 0;
  const auto each = [&](const auto&... lines) { ((i++ == number ? f(lines) : void()), ...); };
  std::apply(each, catalogue);
  std::apply(each, presets);
}

template <class Line>
auto policy_of(const Line& line, const engine::policy& chosen) {
  auto policy = line.values[0];
  std::size_t k = 0;
  for (const double x : chosen.parameters) {
    const auto& one = line.parameters[k++];
    if (one.flag) policy.*one.flag = x != 0;
    else policy.*one.number = x;
  }
  return policy;
}

// One without state.
any_policy make(const engine::policy& chosen) {
  any_policy made;
  with_line(chosen.line, [&]<class Line>(const Line& line) {
    if constexpr (!Line::has_state) made.chosen = policy_of(line, chosen);
  });
  return made;
}

// f(the policy) if it is one that does not read the draft; and whether it is. They are compiled by
// themselves: any_policy would ask for the draft's rows, which need not be there.
template <class F>
bool with_target_policy(const any_policy& any, F&& f) {
  static_assert(any_policy::reads_draft && !reads_draft<lossless> && !reads_draft<typical>);
  if (const auto* exact = std::get_if<lossless>(&any.chosen)) f(*exact);
  else if (const auto* policy = std::get_if<typical>(&any.chosen)) f(*policy);
  else return false;
  return true;
}
// The verdict f(the policy).
template <class F>
auto with_policy(const engine::policy& chosen, F&& f) {
  const any_policy any = make(chosen);
  decltype(f(any)) found;
  if (!with_target_policy(any, [&](const auto& policy) { found = f(policy); })) found = f(any);
  return found;
}

// ---- rows ---------------------------------------------------------------------------------------

template <class S>
std::span<const S> numbers(const engine::rows& all, std::size_t j, std::size_t vocabulary) {
  return {reinterpret_cast<const S*>(all.data + std::ptrdiff_t(j) * all.stride), vocabulary};
}

template <class Any>
Any row_at(const engine::rows& all, std::size_t j, std::size_t vocabulary, token_id drafted) {
  using T = typename Any::value_type;
  using enum engine::row_kind;
  if constexpr (std::is_same_v<T, float>) {
    if (all.kind == logits_f32)
      return processed_row<float>(numbers<float>(all, j, vocabulary), all.sampling);
    if (all.kind == logits_f16)
      return processed_row<f16>(numbers<f16>(all, j, vocabulary), all.sampling);
    if (all.kind == logits_bf16)
      return processed_row<bf16>(numbers<bf16>(all, j, vocabulary), all.sampling);
    if (all.kind == probabilities_f32) return dense_row<float>(numbers<float>(all, j, vocabulary));
  } else {
    if (all.kind == logits_f64)
      return processed_row<double>(numbers<double>(all, j, vocabulary), all.sampling);
    if (all.kind == probabilities_f64)
      return dense_row<double>(numbers<double>(all, j, vocabulary));
  }
  return one_hot_row<T>(drafted, vocabulary);
}

}  // namespace
