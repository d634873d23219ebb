// SPDX-License-Identifier: Apache-2.0
// With one seed at both ends DSSD emits what token verification emits; the bytes are fewer than
// those of a row.
#include <cstdio>

#include <specagg/audit/toy_source.hpp>

int main() {
  constexpr std::size_t V = 50, gamma = 4;
  const auto rows_of_model = [](std::uint64_t seed) {
    return [model = toy_source<float>(V, seed)](const std::vector<token_id>& text) {
      std::vector<float> logits(V), p(V);
      model.row(text, logits);
      const auto row = softmax_row<float>(logits).normalise();
      if (row.why() == status::ok)
        for (std::size_t v = 0; v < V; ++v) p[v] = row[v];
      return p;
    };
  };
  const auto q = rows_of_model(1), p = rows_of_model(1001);
  std::vector<token_id> split{0}, whole{0};
  random_streams at_device(7), at_server(7), alone(7);
  std::vector<double> scratch(verify_scratch(V, gamma));
  std::vector<emission> out(gamma + 1);
  std::size_t rounds = 0;
  for (; split.size() < 100; ++rounds) {
    if (dssd_round(split, q, p, V, gamma, at_device, at_server) != status::ok) return 1;

    std::vector<std::vector<float>> q_rows, p_rows{p(whole)};
    draft drafted{{}, std::uint32_t(whole.size())};
    std::vector<token_id> y = whole;
    for (std::size_t j = 0; j < gamma; ++j) {
      q_rows.push_back(q(y));
      const moment m{stream::draft, std::uint32_t(y.size()), drafted.start};
      y.push_back(draw(dense_row<float>(q_rows.back()).normalise(), m, alone, scratch));
      p_rows.push_back(p(y));
    }
    drafted.tokens = std::span<const token_id>(y).subspan(whole.size());
    const verdict v = verify_token(drafted, q_rows, p_rows, lossless{}, alone, out, scratch);
    for (std::size_t i = 0; i < v.emitted; ++i) whole.push_back(out[i].token);
    if (split != whole) return 1;
  }
  std::printf("%zu tokens in %zu rounds\n", split.size() - 1, rounds);
  return rounds < 100 ? 0 : 1;
}
