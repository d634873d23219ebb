// SPDX-License-Identifier: Apache-2.0
// Speculative sampling with two models of one's own: the target's law in fewer calls of the target.
#include <specagg/decoders.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

using namespace specagg;

constexpr std::size_t V = 3, most = 100000;

// A table: the logits of the next token depend on the last one. logits: [last][next].
struct table_model {
  using value_type = float;
  std::vector<std::vector<float>> logits;
  std::size_t size = 0, calls = 0;
  std::size_t vocab_size() const { return V; }
  std::size_t capacity() const { return most + 1; }
  std::size_t position() const { return size; }
  status extend(std::span<const token_id> tokens, std::span<float> rows) {
    const auto last = tokens.last(rows.size() / V);  // a row for each of these
    for (std::size_t i = 0; i < last.size(); ++i)
      std::ranges::copy(logits[std::size_t(last[i])], rows.subspan(i * V).begin());
    size += tokens.size();
    ++calls;
    return status::ok;
  }
  status rollback(std::size_t n) {
    size = n;
    return status::ok;
  }
};

int main() {
  table_model small{{{0, 1, 2}, {1, 0, 0}, {0, 0, 1}}}, large{{{0, 2, 2}, {1, 0, -1}, {1, 0, 2}}};
  std::vector<token_id> memory(most + 1);
  text t{memory, 1};  // the prompt: token 0
  random_streams random(/*seed=*/42);
  speculative_workspace<float> work(V, {.gamma = 4, .acceptances = true});
  double tried = 0, kept = 0, overlap = 0;
  const auto count = [&](const speculative_result& round, const auto& w) {
    const std::size_t n = std::min(round.drafted, round.accepted + 1);  // drafted tokens tried
    tried += double(n);
    kept += double(round.accepted);
    for (std::size_t j = 0; j < n; ++j) overlap += w.acceptances[j].of_row;  // 1 - TV(q, p)
  };
  if (speculative_decode(small, large, lossless{}, random,
                         {.text = t, .most = most, .work = work, .after_round = count}) !=
      status::ok)
    return 1;
  const double a = kept / tried;
  std::printf("accepted %.3f of the drafts; mean 1 - TV(q, p) %.3f\n", a, overlap / tried);
  std::printf("tokens for each call of the target %.2f; (1 - a^5) / (1 - a) = %.2f\n",
              double(t.size) / double(large.calls), plan::expected_tokens(a, work.options.gamma));
}

// Output:
// accepted 0.848 of the drafts; mean 1 - TV(q, p) 0.848
// tokens for each call of the target 3.69; (1 - a^5) / (1 - a) = 3.69
