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

// A declaration of specagg.hpp that is not its definition's is a second template: no name would say
// which of the two is meant here, and calls would be ambiguous. (draw_draft has two templates.)
namespace {
using row = one_hot_row<float>;
using list = std::vector<row>;
using request = verification<list, list, lossless, random_streams>;
[[maybe_unused]] constexpr auto logits_rows = &rows_of_logits<std::vector<float>&>;
[[maybe_unused]] constexpr auto token = &verify_token<lossless, list&, list&, random_streams&>;
[[maybe_unused]] constexpr auto block = &verify_block<lossless, list&, list&, random_streams&>;
[[maybe_unused]] constexpr auto match = &verify_match<lossless, list&, list&, random_streams&>;
[[maybe_unused]] constexpr auto coupled = &verify_coupled<lossless, list&, list&>;
[[maybe_unused]] constexpr auto tree =
    &verify_tree<lossless, list&, list&, list&, random_streams&, float, one_thread>;
[[maybe_unused]] constexpr auto batch =
    &verify_batch<request (*)(std::size_t), request, token_verifier, this_thread>;
[[maybe_unused]] constexpr auto residual = &sample_residual<row, row, lossless>;
[[maybe_unused]] constexpr auto lossless_residual = &sample_residual<row, row>;

struct step {
  static constexpr std::size_t V = 40, g = 2;
  std::vector<float> logits = std::vector<float>((g + 1) * V);
  std::vector<double> scratch = std::vector<double>(verify_scratch(V, g));
  std::vector<emission> out = std::vector<emission>(g + 1);
  std::vector<draft_acceptance> acceptances = std::vector<draft_acceptance>(g);
  std::vector<token_id> tokens;
  random_streams random{/*seed=*/3, /*request=*/1};

  auto rows() { return rows_of_logits(logits, V, {.temperature = 0.5, .top_k = 0, .top_p = 1}); }
  draft drafted() {
    for (std::size_t j = tokens.size(); j < g; ++j)
      tokens.push_back(draw_draft(rows()[j], 5, j, random, scratch));
    return {.tokens = tokens,
            .start = 5,
            .end_of_text = no_token,
            .bonus = true,
            .acceptances = acceptances};
  }
};
}  // namespace

TEST_CASE("the verifiers that specagg.hpp declares are those that are defined, with its errors") {
  step s;
  const auto rows = s.rows();
  const auto too_few = rows_of_logits(std::span(s.logits).first(s.V), s.V);
  const std::span<emission> out(s.out), short_out = out.first(s.g);
  const std::span<double> scratch(s.scratch), no_scratch;
  CHECK(draw_draft(rows[0], 5, 0, s.random, no_scratch) == no_token);
  const draft drafted = s.drafted(), without_bonus{.tokens = s.tokens, .bonus = false};
  const auto check = [&](auto verify) {
    const verdict v = verify(drafted, rows, out, scratch);
    CHECK(v.why == status::ok);
    CHECK(v.emitted == v.accepted + 1);
    CHECK(v.ended == no_token);
    CHECK(out[0].from == (v.accepted > 0 ? origin::accepted : origin::residual));
    CHECK(verify(without_bonus, rows, short_out, scratch).why == status::ok);
    CHECK(verify(drafted, rows, short_out, scratch).why == status::invalid_parameter);
    CHECK(verify(drafted, rows, out, no_scratch).why == status::invalid_parameter);
    const verdict missing = verify(without_bonus, too_few, short_out, scratch);
    CHECK(missing.emitted == 1);
    CHECK(missing.why == (missing.accepted == 1 ? status::missing_row : status::ok));
    return v.accepted;
  };
  CHECK(check([&](const draft& d, const auto& p, auto into, auto memory) {
          return verify_token(d, rows, p, lossless{}, s.random, into, memory);
        }) == s.g);
  CHECK(check([&](const draft& d, const auto& p, auto into, auto memory) {
          return verify_block(d, rows, p, lossless{}, s.random, into, memory);
        }) == s.g);
  check([&](const draft& d, const auto& p, auto into, auto memory) {
    return verify_match(d, rows, p, lossless{}, s.random, into, memory);
  });

  const coupled_noise noise(/*seed=*/3, /*request=*/1);
  const std::vector<token_id> raced{race(normalise(rows[0]), noise, 0),
                                    race(normalise(rows[1]), noise, 1)};
  CHECK(verify_coupled(coupled_draft{draft{.tokens = raced}}, rows, rows, lossless{}, noise, out)
            .accepted == s.g);
}

TEST_CASE("verify_tree, verify_batch and sample_residual of specagg.hpp are those defined") {
  step s;
  const auto rows = s.rows();
  const draft drafted = s.drafted();
  const std::vector<std::uint32_t> chain{0, 1}, behind{2, 0};
  std::vector<tree_node> nodes(s.g + 1);
  std::vector<float> residual(s.g * s.V);
  const tree_memory<float> work{s.out, nodes, residual, s.scratch};
  const draft_tree tree{
      .tokens = s.tokens, .parents = chain, .start = 5, .end_of_text = no_token, .bonus = false};
  const auto laws = rows_of(s.g + 1, [&](std::size_t i) { return rows[i > 0 ? i - 1 : 0]; });
  const tree_verdict v = verify_tree(tree, laws, rows, rows, lossless{}, s.random, work);
  CHECK(v.accepted == s.g);
  CHECK(v.emitted == s.g);
  CHECK(v.node == s.g);
  const draft_tree no_tree{.tokens = s.tokens, .parents = behind};
  CHECK(verify_tree(no_tree, laws, rows, rows, lossless{}, s.random, work).why ==
        status::invalid_parameter);

  std::vector<verdict> verdicts(1);
  const auto one = [&](std::size_t) {
    return verification{drafted, rows, rows, lossless{}, s.random, std::span(s.out)};
  };
  verify_batch(one, verdicts, s.scratch);
  verify_batch(one, verdicts, s.scratch, block_verifier{});
  verify_batch(one, verdicts, s.scratch, token_verifier{}, this_thread{});
  CHECK(verdicts[0].emitted == s.g + 1);

  const one_hot_row<float> q(7, s.V);
  const emission replaced = sample_residual(q, rows[0], 0.5, s.scratch);
  CHECK(replaced.why == status::ok);
  CHECK(replaced.token != 7);
  CHECK(sample_residual(q, rows[0], lossless{}, 0.5, s.scratch).token == replaced.token);
}
