// SPDX-License-Identifier: Apache-2.0
// A batch with gamma + 1 rows of the draft; and one with gamma, whose rows end where the memory
// ends.
#include <cstdio>
#include <vector>

int main() {
  constexpr std::size_t V = 4, gamma = 2, n = 3;
  const any_policy policies[n] = {lossless{}, token_v3{0.4}, ensemble{0.3}};
  const std::vector<token_id> drafted(gamma, 1);
  const std::vector<float> equal((gamma + 1) * V);
  for (const std::size_t rows : {gamma + 1, gamma}) {
    const std::vector<float> q(rows * V);
    std::vector<request> requests;
    for (std::size_t i = 0; i < n; ++i)
      requests.push_back({policies[i], {}, 1, i, 7, drafted, q, equal});
    std::vector<verdict> verdicts(n);
    std::vector<emission> out(n * (gamma + 1));
    std::vector<double> scratch(n * verify_scratch(V, gamma));
    verify_all(requests, V, gamma, verdicts, out, scratch);
    for (std::size_t i = 0; i < n; ++i) {  // q = p: every drafted token is kept
      const bool lacks = rows == gamma && i > 0;
      const verdict& v = verdicts[i];
      std::printf("%zu rows, request %zu: %zu tokens, %s\n", rows, i, v.emitted, name(v.why));
      if (v.emitted != gamma + !lacks || v.why != (lacks ? status::missing_row : status::ok))
        return 1;
    }
  }
}
