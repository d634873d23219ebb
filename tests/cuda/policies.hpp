// SPDX-License-Identifier: Apache-2.0
// Every policy, each with a few parameters, for the tests of the device.
#pragma once
#include "cuda/agree.hpp"
#if !defined(__CUDACC__)
#include "../examples/cli/policies.hpp"
#endif

// With -DPART=k (0 to 5) only some of the rules: nvcc takes half a minute for each, and compilers
// can work side by side.
#ifndef PART
#define PART -1
#endif
constexpr bool in_part(int k) { return PART < 0 || PART == k; }

// f(choices) for each policy: a vector of it with different parameters.
template <class F>
void for_each_policy(F&& f) {
  using namespace specagg;
  if constexpr (in_part(0)) {
    f(std::vector{lossless{}});
    f(std::vector{lossy{0.3}, lossy{0.5, 1}, lossy{0}, lossy{-1}});  // the last is invalid
    f(std::vector{mentored{0.1}, mentored{0}, mentored{2}});
  }
  if constexpr (in_part(1)) {
    f(std::vector{chow{0.3}, chow{0.9}, chow{-2}});
    f(std::vector{chow_log{1}, chow_log{4}});
    f(std::vector{diff{0}, diff{0.2}});
  }
  if constexpr (in_part(2)) {
    f(std::vector{diff_log{0}, diff_log{0.5}});
    f(std::vector{opt{0}, opt{0.5}});
    f(std::vector{opt_log{0}, opt_log{1}});
  }
  if constexpr (in_part(3)) {
    f(std::vector{bild{1}, bild{5}, bild{1, true}, bild{3, true}});
    f(std::vector{token_v1{0}, token_v1{0.2}, token_v1{2}});
    f(std::vector{token_v2{0}, token_v2{0.2}});
  }
  if constexpr (in_part(4)) {
    f(std::vector{token_v3{0}, token_v3{0.5}, token_v3{0.9}});
    f(std::vector{ensemble{0.5}, ensemble{0}, ensemble{1}});
    f(std::vector{contrastive{0.1}, contrastive{0.5, 0.1}, contrastive{0.2, 0, true}});
  }
  if constexpr (in_part(5)) {
    f(std::vector{geometric{0.5}, geometric{0.1}});
    f(std::vector{power{0.5, 2}, power{0.3, -1}, power{0.5, 0}, power{0.5, 1}});
    f(std::vector{minimum<>{}});
    f(std::vector{maximum<>{}});
  }
}

// Every policy with this verifier, on rows of every kind; at least `steps` of them. The emulator
// runs one kernel for all, where the rule is chosen at run time; nvcc makes one for each.
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
  std::vector<cli::any_policy> all;
  for_each_policy([&](const auto& choices) {
    for (const auto& policy : choices) all.push_back({policy});
  });
  for (; seed <= 60; ++seed)
    agree<float>({6, sizes[seed % 10], 1 + seed % 5}, seed, all, verifier, seen);
  CHECK(seen.steps > 400);
  // a cluster of two
  for (seed = 101; seed <= 102; ++seed) agree<float>({2, 17000, 2}, seed, all, verifier, seen);
#endif
  using specagg::status;
  for (const status s :
       {status::ok, status::invalid_row, status::draft_not_in_support, status::token_out_of_range})
    CHECK(seen.statuses[s] > 0);
  if (PART < 0)  // few rules have parameters that are invalid, or rows without a law
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
  std::vector<cli::any_policy> all;
  for_each_policy([&](const auto& choices) {
    for (const auto& policy : choices) all.push_back({policy});
  });
  for (std::uint64_t seed = 1; seed <= 48; ++seed) {
    cuda_emulator::set_order(cuda_emulator::order::shuffled, seed);
    agree<float>({3, seed % 4 == 0 ? 40000 : 17000 + seed, 1 + seed % 4}, seed, all, verifier,
                 seen);
  }
  cuda_emulator::set_order(cuda_emulator::order::forward);
  CHECK(seen.steps > 200);
}
#endif
