// SPDX-License-Identifier: Apache-2.0
// usage: dispatch    prints the instruction set chosen, then what step() answered: the same lines
//                    on every one
#include "dispatch.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace {
const char* const at_start = step_isa();  // a static initialiser may call an entry
}

int main() {
  constexpr std::size_t size = 5000;
  std::vector<float> q(size), p(size);
  for (std::size_t v = 0; v < size; ++v) {
    q[v] = static_cast<float>(v * v % 997) * 0x1p-6F;
    p[v] = static_cast<float>(v * v % 991) * 0x1p-6F;
  }
  const specagg::token_id drafted[] = {3321, 2343, 4};
  std::printf("%s\n", step_isa());
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<answer> out(5);
    out.resize(step({q, p, drafted, seed}, out));
    for (const answer& a : out)
      std::printf("%d %016llx%s", a.token, static_cast<unsigned long long>(a.log_pi),
                  &a == &out.back() ? "\n" : ", ");
  }
  std::vector<double> sorted(q.begin(), q.end());  // the program's own copy of what step() uses too
  std::sort(sorted.begin(), sorted.end());
  return at_start && sorted.front() <= sorted.back() ? 0 : 1;
}
