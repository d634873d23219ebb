// SPDX-License-Identifier: Apache-2.0
#include <vector>

int main() {
  const std::vector<float> q{0, 1, 2}, p{2, 1, 0};
  std::vector<float> memory(3);
  specagg::processed_row<float> row;
  return mixed_row(q, p, memory, row) == specagg::status::ok &&
                 normalise(row).why() == specagg::status::ok
             ? 0
             : 1;
}
