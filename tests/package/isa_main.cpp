// SPDX-License-Identifier: Apache-2.0
// Parts built for different instruction sets, in one program: each has a name of its own and runs
// its own code, and all give the same bits.
#include <cstdio>
#include <string_view>

#include "isa.hpp"

#define PART(f) part f();
PARTS
#undef PART

int main() {
#define PART(f) f(),
  const part parts[] = {PARTS};
  bool right = parts[0].bits[0] != 0;
  for (const part& p : parts) {
    bool own = std::string_view(p.isa) == p.ran;
    for (const part& other : parts)
      own = own && (&other == &p || std::string_view(other.isa) != p.isa);
    const bool same = p.bits == parts[0].bits;
    std::printf("built for %s, ran %s:", p.isa, p.ran);
    for (const auto bits : p.bits) std::printf(" %llx", static_cast<unsigned long long>(bits));
    std::printf("%s%s\n", own ? "" : " (another part's code)", same ? "" : " (another answer)");
    right = right && own && same;
  }
  return right ? 0 : 1;
}
