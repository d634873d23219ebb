// SPDX-License-Identifier: Apache-2.0
#include "decoders.hpp"

const lossless policy;

int main() {
  using source = toy_source<float>;
  struct one {
    source d = toy(1), m = toy(2);
    std::vector<token_id> buffer = std::vector<token_id>(40, 1);
    text t{buffer, 2};
    random_streams random;
    speculative_workspace<float> work{30, {.gamma = 3}};
    model_drafter<source> drafter{d, work.draft_logits};
    together_text<model_drafter<source>, source, lossless, random_streams> shared{
        t, 20, drafter, m, policy, random, work};
  };
  one a{.random = random_streams(1)}, b{.random = random_streams(2)};
  write_all(std::vector{&a.shared, &b.shared});
  return a.t.size == 22 && b.t.size == 22 && a.buffer != b.buffer && a.m.misuses == 0 ? 0 : 1;
}
