// SPDX-License-Identifier: Apache-2.0
// One call verifies three requests: each has its own policy, sampling, seed and length of draft.
#include <specagg/decoders.hpp>

#include <cstdio>
#include <vector>

#include <specagg/audit/toy_source.hpp>

using namespace specagg;

constexpr std::size_t V = 200, longest = 4;  // vocabulary; tokens of the longest draft
const toy_source<float> small(V, 1, 2, /*spread=*/5), large(V, 1, 2, /*spread=*/9);

struct request {
  any_of<lossless, token_v3, ensemble> policy;  // the policies that a request may ask for
  sampling how;
  random_streams random;
  std::vector<token_id> text, drafted;
  std::vector<float> q = std::vector<float>((longest + 1) * V), p = q;  // logits, [row][V]
  std::vector<emission> out = std::vector<emission>(longest + 1);
  auto rows(const std::vector<float>& logits) const { return rows_of_logits(logits, V, how); }
};

// What an engine does with its models: drafts, and the rows of both.
void draft_and_score(request& r, std::span<double> scratch) {
  std::vector<token_id> context = r.text;
  const auto start = std::uint32_t(r.text.size());
  for (std::size_t j = 0; j <= r.drafted.size(); ++j) {
    small.row(context, std::span(r.q).subspan(j * V, V));
    large.row(context, std::span(r.p).subspan(j * V, V));
    if (j == r.drafted.size()) return;  // the bonus of a policy that reads the draft needs this row
    r.drafted[j] = draw_draft(r.rows(r.q)[j], start, j, r.random, scratch);
    context.push_back(r.drafted[j]);
  }
}

int main() {
  const auto draft_of = [](std::size_t gamma) { return std::vector<token_id>(gamma); };
  request requests[] = {
      {lossless{}, {.temperature = 0.7}, random_streams(11), {5, 9}, draft_of(4)},
      {token_v3{0.4}, {.top_p = 0.9}, random_streams(12), {3}, draft_of(2)},
      {ensemble{0.3}, {.temperature = 0.5}, random_streams(13), {1, 2, 1}, draft_of(3)}};
  verdict verdicts[std::size(requests)];
  std::vector<double> scratch(std::size(requests) * verify_scratch(V, longest));
  for (request& r : requests) draft_and_score(r, scratch);
  const auto to_verify = [&](std::size_t i) {
    request& r = requests[i];
    const draft drafted{r.drafted, std::uint32_t(r.text.size())};
    return verification{drafted, r.rows(r.q), r.rows(r.p), r.policy, r.random, std::span(r.out)};
  };
  verify_batch(to_verify, verdicts, scratch, block_verifier{});
  for (const verdict& v : verdicts)
    std::printf("%zu drafted tokens kept, %zu tokens emitted\n", v.accepted, v.emitted);
}

// Output:
// 4 drafted tokens kept, 5 tokens emitted
// 0 drafted tokens kept, 1 tokens emitted
// 3 drafted tokens kept, 4 tokens emitted
