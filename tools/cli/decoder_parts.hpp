// SPDX-License-Identifier: Apache-2.0
// What makes decoders ready (decoders.cpp), kind by kind: the options that it alone understands,
// and the call.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include <specagg/decoders.hpp>

#include "decoders.hpp"
#include "lists.hpp"
#include "policies.hpp"

namespace cli {

constexpr std::size_t most_models = 4;

[[noreturn]] inline void refuse(const std::string& option, const std::string& why) {
  throw specagg::error(option, "", why);
}

// The law p by its own type: its bonus needs no row of the draft.
template <class F>
specagg::status with_policy(const any_policy& policy, F&& f) {
  return std::holds_alternative<specagg::lossless>(policy.chosen) ? f(specagg::lossless{})
                                                                  : f(policy);
}
// A decoder that drafts nothing names no verifier: any will do.
template <class F>
specagg::status with_verifier(const std::string& given, std::uint64_t seed, F&& f) {
  const std::string name = given.empty() ? specagg::token_verifier::name : given;
  specagg::status s = specagg::status::invalid_parameter;
  specagg::with_verifier(specagg::verifier_number(name), seed, 0,
                         [&](const auto& verifier) { s = f(verifier); });
  return s;
}
// Likewise of trees.
template <class F>
specagg::status with_tree_verifier(const std::string& name, F&& f) {
  using all = specagg::all_tree_verifiers;
  specagg::status s = specagg::status::invalid_parameter;
  specagg::with_verifier<all>(specagg::verifier_number<all>(name), 0, 0,
                              [&](const auto& verifier) { s = f(verifier); });
  return s;
}

// Policies that can combine the models' raw logits; those that choose between rows have nothing to
// combine. The log-linear ones do it unless told otherwise, as their papers do: sampled rows often
// have no token in common.
template <class Policy>
constexpr bool combines = specagg::may_be_unanimous<Policy> || specagg::combines_logits<Policy>;

template <class... Policies>
specagg::any_of<Policies...> any_of_types(const std::tuple<Policies...>&);
template <class... Policies>
auto combiners_of(const specagg::any_of<Policies...>&) -> decltype(any_of_types(std::tuple_cat(
    std::conditional_t<combines<Policies>, std::tuple<Policies>, std::tuple<>>()...)));
using any_combiner = specagg::compiled_once<decltype(combiners_of(specagg::any_catalogued()))>;
inline std::optional<any_combiner> as_combiner(const any_policy& policy) {
  return std::visit(
      [](const auto& chosen) -> std::optional<any_combiner> {
        if constexpr (combines<std::decay_t<decltype(chosen)>>) return any_combiner{chosen};
        else return std::nullopt;
      },
      policy.chosen);
}
inline std::string combiner_names() {
  std::string names;
  specagg::for_each_in_catalogue([&](const auto& line) {
    if (combines<typename std::decay_t<decltype(line)>::type>)
      names += (names.empty() ? "" : ", ") + std::string(line.name);
  });
  return names;
}

// Whether the raw logits are combined: what --space says, or what the policy does by itself.
template <class... Policies>
bool in_raw_space(decoder& d, const specagg::any_of<Policies...>& policy, bool combines) {
  d.combines = combines;
  if (d.space.empty())
    d.space = std::visit(
                  [](const auto& r) { return specagg::combines_logits<std::decay_t<decltype(r)>>; },
                  policy.chosen)
                  ? "raw"
                  : "law";
  if (d.space == "raw" && !combines)
    refuse("--space raw",
           "--policy " + d.policy + " combines no logits (" + combiner_names() + " do)");
  return d.space == "raw";
}

inline std::vector<std::size_t> gammas(const std::string& text) {
  return parse_list("--gamma", text, most_drafted, " (--decoder speculative also has auto)");
}

// With the target.
inline std::size_t models_of(const decoder& d, const generate_options& o) {
  return (d.draft_model.empty() ? 1 : 2) + o.models.size();
}

// decoder_drafts.cpp
// The words of --draft that are no file: lookup, counts.
std::vector<std::string> drafters_without_model();
void prepare_speculative(decoder& d, const generate_options& o);
// Drafts of the draft model, or none.
void prepare_by_models(decoder& d, const generate_options& o, const any_policy& policy);
void prepare_tree(decoder& d, const generate_options& o);
// decoder_turns.cpp
void prepare_collaborative(decoder& d, const generate_options& o);
void prepare_sequential(decoder& d, const generate_options& o);
void prepare_oracle(decoder& d, const generate_options& o);
void prepare_sequence(decoder& d, const generate_options& o);
void prepare_bild(decoder& d, const generate_options& o);

}  // namespace cli
