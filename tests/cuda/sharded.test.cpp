// SPDX-License-Identifier: Apache-2.0
// Each rank has a stream of its own, and its part of every row. All must say what the CPU says of
// the whole rows. Also what tests specagg/backend/cuda/shard_log.hpp.
#include "cuda/sharded.hpp"

using namespace specagg;
namespace device = specagg::cuda;

// The mixture of q and p with the confidence in v as weight, or in w where p(w) is more than q(v):
// it asks for logits of tokens that are neither drafted nor drawn, and its law has the bits of
// confidences.
struct asks_for_logits {
  token_id v, w;
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto of_v = specagg::at(rows, std::size_t(v)), of_w = specagg::at(rows, std::size_t(w));
    const double weight = double((of_w.p.v > of_v.q.v ? of_w : of_v).confidence_p.v);
    return [weight](auto x) { return fma(weight, x.q - x.p, x.p); };
  }
};

namespace {

const std::vector<lossless> exact(1);
[[maybe_unused]] const std::vector<token_v3> lossy_choices{{0.3}, {0.8}};
#if !defined(__CUDACC__)
// One of each kind: what it sums, masks or looks for.
using any_kind =
    compiled_once<any_of<lossy, typical, relaxed, diff_log, bild, contrastive, minimum<>>>;
const std::vector<any_kind> some_of_each_kind{
    {lossy{0.3}},    {lossy{0.3, 5}},   {typical{0.3, 1}},       {relaxed{3, 0.9}},
    {diff_log{0.1}}, {bild{1.2, true}}, {contrastive{0.3, 0.2}}, {minimum<>{}}};
#endif

}  // namespace

TEST_CASE("cuda: a vocabulary in parts gives what whole rows give: token verification") {
  in_two_and_three_parts<float>(exact, token_verifier{});
#if !defined(__CUDACC__)
  in_two_and_three_parts<bf16>(some_of_each_kind, token_verifier{});
#elif !FEW_KERNELS
  in_two_and_three_parts<bf16>(lossy_choices, token_verifier{});
#endif
}
#if !FEW_KERNELS
TEST_CASE("cuda: a vocabulary in parts gives what whole rows give: block verification") {
  in_two_and_three_parts<bf16>(exact, block_verifier{});
  in_two_and_three_parts<float>(lossy_choices, block_verifier{});
}
TEST_CASE("cuda: a vocabulary in parts gives what whole rows give: match verification") {
  in_two_and_three_parts<float>(exact, match_verifier{});
  in_two_and_three_parts<f16>(lossy_choices, match_verifier{});
}
TEST_CASE("cuda: a vocabulary in parts gives what whole rows give: coupled verification") {
  in_two_and_three_parts<f16>(exact, device::coupled{});
  in_two_and_three_parts<float>(lossy_choices, device::coupled{});
}
#endif

#if !FEW_KERNELS
TEST_CASE("cuda: a policy that asks for single logits gets them from the ranks that have them") {
  if (!have_device()) return;
  tally seen;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const token_id last = token_id(3000 + seed - 1);
    const std::vector<asks_for_logits> choices{{7, last}, {last, 1025}, {1500, 2}, {last, 7}};
    agree_in_parts<float>({4, 3000 + seed, 2}, seed % 2 ? 2 : 3, seed, choices, token_verifier{},
                          enough, seen);
  }
  CHECK(seen.rejected > 0);
  CHECK(seen.bonuses > 0);
}
#endif

TEST_CASE("cuda: lossless token verification of parts takes three exchanges, whatever the draft") {
  if (!have_device()) return;
  tally seen;
  for (std::uint64_t seed = 1; seed <= 6; ++seed)
    agree_in_parts<float>({4, 4096, 1 + 3 * (seed % 2)}, 2, seed, std::vector<lossless>(4),
                          token_verifier{}, 3, seen, true);
  CHECK(seen.rejected > 0);
  CHECK(seen.bonuses > 0);
  CHECK(seen.statuses[status::invalid_parameter] == 0);
}

TEST_CASE("cuda: a request of parts that needs more exchanges says so, and has no token") {
  if (!have_device()) return;
  numbers random(3);
  const example<float> e({2, 3000, 2}, random, false);
  const lossless_for_all policy(2);
  rank_memory<float, lossless> rank(e, std::vector<lossless>(2), {3072, 1, 0}, 2);
  const auto run = [&] {
    return device::verify_shard(rank.b, policy(), token_verifier{},
                                {rank.verdicts.data(), rank.emissions.data()}, rank.step,
                                rank.stream);
  };
  while (!rank.step.done) REQUIRE(run() == cudaSuccess);
  CHECK(run() == cudaErrorInvalidValue);  // a step after the last
  REQUIRE(cudaStreamSynchronize(rank.stream) == cudaSuccess);
  for (const verdict& v : rank.verdicts.read()) {
    CHECK(v.emitted == 0);
    CHECK((v.why == status::invalid_parameter || v.why == status::invalid_row ||
           v.why == status::missing_row));
  }
  // parts that are none: of no tokens, between blocks, of a rank without tokens, or too few
  for (const device::vocabulary_part part :
       {device::vocabulary_part{0, 1, 0}, device::vocabulary_part{3000, 1, 0},
        device::vocabulary_part{1024, 4, 0}, device::vocabulary_part{1024, 2, 0},
        device::vocabulary_part{1024, 3, 3}}) {
    rank.b.part = part;
    rank.step.number = 0;
    rank.step.done = false;
    CHECK(run() == cudaErrorInvalidValue);
  }
  rank.b.part = {3072, 1, 0};
  rank.b.exchanges = 0;
  CHECK(run() == cudaErrorInvalidValue);
  rank.b.exchanges = 2;
  --rank.step.storage_bytes;
  CHECK(run() == cudaErrorInvalidValue);
}

TEST_CASE("cuda: a drawn token that is outside the vocabulary is not emitted") {
  if (!have_device()) return;
  numbers random(5);
  example<float> e({2, 3000, 2}, random, false);
  for (auto* rows : {&e.draft, &e.target})
    for (float& x : *rows) x = float(3 * random.bell());
  std::ranges::fill(e.temperature, 1.);
  const lossless_for_all policy(2);
  rank_memory<float, lossless> rank(e, std::vector<lossless>(2), {3072, 1, 0}, 3);
  const double told[] = {1e300, 3000};
  while (!rank.step.done) {
    REQUIRE(device::verify_shard(rank.b, policy(), token_verifier{},
                                 {rank.verdicts.data(), rank.emissions.data()}, rank.step,
                                 rank.stream) == cudaSuccess);
    for (std::size_t r = 0; r < 2 && rank.step.number == 3; ++r)  // the drawn tokens
      REQUIRE(cudaMemcpyAsync(static_cast<std::byte*>(rank.step.all) + r * rank.step.bytes / 2,
                              &told[r], sizeof told[r], cudaMemcpyHostToDevice,
                              rank.stream) == cudaSuccess);
  }
  REQUIRE(cudaStreamSynchronize(rank.stream) == cudaSuccess);
  for (const verdict& v : rank.verdicts.read()) {
    CHECK(v.emitted == v.accepted);
    CHECK(v.why == status::undefined_target);
  }
}
