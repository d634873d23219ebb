// SPDX-License-Identifier: Apache-2.0
#include <specagg/specagg.hpp>

// What no verification needs is not in specagg.hpp: these names can be the program's own.
namespace specagg {
template <class>
class toy_source;
int speculative_decode, text, model_drafter, plan;
}  // namespace specagg

#include <vector>

#include "support/catch.hpp"

#define SPECAGG_COUNT_ALLOCATIONS
#include "support/allocations.hpp"

using namespace specagg;

TEST_CASE(
    "verification by specagg.hpp alone allocates nothing: token, block, match, batches, penalties, "
    "filters") {
  constexpr std::size_t size = 1000, gamma = 3;
  std::vector<float> logits(size), other(size);
  for (std::size_t v = 0; v < size; ++v) {
    logits[v] = float(v * v % 97) * 0.0625f;
    other[v] = float(v * v % 89) * 0.0625f;
  }
  const std::vector<token_id> ids{3, 5, 8}, drafted{3, 5, 3};
  const std::vector<float> masses{0.25f, 0.5f, 0.25f};
  std::vector<double> scratch(2 * verify_scratch(size, gamma));
  std::vector<emission> out(gamma + 1);
  std::vector<draft_acceptance> acceptances(gamma);
  std::vector<std::uint32_t> counts(size);
  std::vector<token_id> distinct(size), text(16);
  std::vector<verdict> verdicts(2);
  random_streams random(7);
  const sampling how{.temperature = 0.7, .top_k = 50, .top_p = 0.9, .min_p = 0.01};
  std::size_t emitted = 0, batch = 0;

  const std::size_t before = allocations;
  penalties penalty({.repetition = 1.1}, counts, distinct, text);
  for (const token_id y : drafted) (void)penalty.push(y);
  penalty.apply(std::span(logits));
  const auto q =
      rows_of(gamma + 1, [&](std::size_t) { return sparse_row<float>(ids, masses, size); });
  const auto p = rows_of(gamma + 1, [&](std::size_t j) {
    return j % 2 ? processed_row<float>(other, how) : processed_row<float>(logits);
  });
  const auto with = [&](const auto& verifier, const auto& policy) {
    emitted += verifier
                   .verify({.tokens = drafted, .acceptances = acceptances}, q, p, policy, random,
                           out, scratch)
                   .emitted;
  };
  const auto with_all = [&](const auto& verifier) {
    with(verifier, lossless{});
    with(verifier, token_v3{0.3});
    with(verifier, any_of<lossless, lossy>(lossy{0.2}));
  };
  with_all(token_verifier{});
  with_all(block_verifier{});
  with_all(match_verifier{});
  const auto one = [&](std::size_t i) {
    return verification{draft{.tokens = drafted, .start = std::uint32_t(i)},
                        q,
                        p,
                        lossless{},
                        random,
                        std::span(out)};
  };
  verify_batch(one, verdicts, scratch);
  for (const verdict& v : verdicts) batch += v.emitted;
  const std::size_t after = allocations;
  CHECK(after == before);
  CHECK(emitted >= 9);
  CHECK(batch >= 2);
  CHECK(verdicts[0].why == status::ok);
}
