// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/toy_source.hpp>

int main() {
  const std::vector<table_drafter::followers> after{{{1, 2}, {0.5f, 0.5f}}, {{0}, {1}}, {}};
  table_drafter drafter{after};
  std::vector<token_id> buffer(40, 1);
  text t{buffer, 2};
  toy_source<float> target(3, 7);
  const decode_options options{.gamma = 4};
  drafting_workspace<float, normal_form<sparse_row<float>>> work(3, options);
  random_streams random(1);
  const status why = speculative_decode(drafter, target, lossless{}, random,
                                        {.text = t, .most = 20, .work = work});
  return why == status::ok && t.size == 22 ? 0 : 1;
}
