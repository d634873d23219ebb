// SPDX-License-Identifier: Apache-2.0
#include <vector>

int main() {
  const std::vector<float> q(2 * 4), p(3 * 4);
  const specagg::token_id drafted[] = {1, 2};
  specagg::token_id out[3];
  std::vector<double> scratch(specagg::verify_scratch(4));
  specagg::status why{};
  return step({q.data(), p.data(), drafted, 4, 2, 1, 1, 7, 0.8, scratch.data(), out}, why) == 3
             ? int(why)
             : 1;
}
