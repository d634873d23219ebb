// SPDX-License-Identifier: Apache-2.0
// Every policy, each with a few parameters, for the tests of the device.
#pragma once
#include <array>

#include "cuda/agree.hpp"
#if !defined(__CUDACC__)
#include "../tools/cli/policies.hpp"
#endif

// With -DPART=k (0 to 5) only some of the policies: nvcc takes half a minute for each, and
// compilers can work side by side.
#ifndef PART
#define PART -1
#endif
constexpr bool in_part(int k) { return PART < 0 || PART == k; }

// A policy with its parameters as in the catalogue, and at and below the bounds of their ranges.
template <class Line>
auto choices_of(const Line& line) {
  std::vector all(line.values.begin(), line.values.end());
  for (const auto& one : line.parameters) {
    if (!one.number || one.low == -specagg::infinity) continue;
    for (const double x : std::array{one.low, one.low - 1}) {  // nvcc 13 loses {...} here
      all.push_back(line.values[0]);
      all.back().*one.number = x;
    }
  }
  return all;
}

// f(choices) for each policy of this part.
template <class F>
void for_each_policy(F&& f) {
  constexpr std::size_t policies = std::tuple_size_v<decltype(specagg::catalogue)>;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto one = [&]<std::size_t K>() {
      using line = std::tuple_element_t<K, std::remove_const_t<decltype(specagg::catalogue)>>;
      if constexpr (in_part(int(K * 6 / policies)) && !line::has_state)
        f(choices_of(std::get<K>(specagg::catalogue)));
    };
    (one.template operator()<I>(), ...);
  }(std::make_index_sequence<policies>());
}

#if !defined(__CUDACC__)
inline std::vector<cli::any_policy> all_policies() {
  std::vector<cli::any_policy> all;
  for_each_policy([&](const auto& choices) {
    for (const auto& policy : choices) all.push_back({policy});
  });
  return all;
}
#endif

// Every policy with this verifier, on rows of every kind; at least `steps` of them. The emulator
// runs one kernel for all, where the policy is chosen at run time; nvcc makes one for each.
template <class Verifier>
void every_policy_agrees(const Verifier& verifier) {
  if (!have_device()) return;
  tally seen;
  static constexpr std::size_t sizes[] = {1, 5, 16, 17, 250, 1000, 1024, 1025, 2500, 5000};
  std::uint64_t seed = 1;
#if defined(__CUDACC__)
  constexpr std::size_t batches = 14;
  for_each_policy([&](const auto& choices) {
    for (std::size_t i = 0; i < batches; ++i, ++seed)
      agree<float>({128, sizes[seed % 10], 1 + seed % specagg::cuda::most_drafted}, seed, choices,
                   verifier, seen);
  });
  CHECK(seen.steps > 25000 / (PART < 0 ? 1 : 6));
#else
  const std::vector<cli::any_policy> all = all_policies();
  for (; seed <= 72; ++seed)
    agree<float>({6, sizes[seed % 10], 1 + seed % 5}, seed, all, verifier, seen);
  CHECK(seen.steps > 400);
  // a cluster of two
  for (seed = 101; seed <= 102; ++seed) agree<float>({2, 17000, 2}, seed, all, verifier, seen);
#endif
  using specagg::status;
  for (const status s :
       {status::ok, status::invalid_row, status::draft_not_in_support, status::token_out_of_range})
    CHECK(seen.statuses[s] > 0);
  if (PART < 0)  // few policies have parameters that are invalid, or rows without a law
    for (const status s : {status::undefined_target, status::invalid_parameter})
      CHECK(seen.statuses[s] > 0);
  CHECK(seen.rejected > 0);
  CHECK(seen.bonuses > 0);
  std::string counted;
  for (const auto& [s, n] : seen.statuses)
    counted += " " + std::string(name(s)) + " " + std::to_string(n);
  WARN(seen.steps << " steps agree:" << counted);
}

// The same in clusters of two and of four, where threads run in another order for each seed.
#if !defined(__CUDACC__)
template <class Verifier>
void every_policy_agrees_in_clusters(const Verifier& verifier) {
  tally seen;
  const std::vector<cli::any_policy> all = all_policies();
  for (std::uint64_t seed = 1; seed <= 48; ++seed) {
    cuda_emulator::set_order(cuda_emulator::order::shuffled, seed);
    agree<float>({3, seed % 4 == 0 ? 40000 : 17000 + seed, 1 + seed % 4}, seed, all, verifier,
                 seen);
  }
  cuda_emulator::set_order(cuda_emulator::order::forward);
  CHECK(seen.steps > 140);  // 144 requests
}
#endif
