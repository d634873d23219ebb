// SPDX-License-Identifier: Apache-2.0
// Parts built for different instruction sets, in one program: each has a name of its own, takes and
// gives the same types, runs its own code, and all give the same bits.
#include <array>
#include <bit>
#include <cstdio>
#include <string_view>

#include "isa.hpp"

using namespace specagg;

#define PART(f) part f(const task&, plain_data);
PARTS
#undef PART

int main() {
#define PART(f) f,
  part (*const all[])(const task&, plain_data) = {PARTS};
  const token_id drafted[] = {3321, 2343, 4}, nodes[] = {3321, 4, 2343};
  const std::uint32_t parents[] = {0, 0, 1};
  bool right = true;
  std::array<std::uint64_t, 40> first = {};
  std::string_view seen[std::size(all)];
  std::size_t parts = 0;
  for (const auto run : all) {
    std::array<emission, 4> out, out_of_tree;
    std::array<draft_acceptance, 3> acceptances;
    std::array<tree_node, 4> visited;
    const part p = run({.chain = {.tokens = drafted, .start = 5, .acceptances = acceptances},
                        .tree = {.tokens = nodes, .parents = parents, .start = 5},
                        .how = {.temperature = 4, .top_p = 0.999},
                        .emitted = out,
                        .emitted_of_tree = out_of_tree,
                        .nodes = visited},
                       {});
    std::array<std::uint64_t, 40> bits = {};
    std::size_t n = 0;
    bits[n++] = p.of_chain.accepted;
    bits[n++] = p.of_chain.emitted;
    bits[n++] = p.of_tree.node;
    for (const emission& e : std::span(out).first(p.of_chain.emitted)) {
      bits[n++] = std::uint64_t(e.token);
      bits[n++] = std::bit_cast<std::uint64_t>(e.log_pi);
    }
    for (const emission& e : std::span(out_of_tree).first(p.of_tree.emitted))
      bits[n++] = std::bit_cast<std::uint64_t>(e.log_pi);
    for (const draft_acceptance& a : acceptances)
      bits[n++] = std::bit_cast<std::uint64_t>(a.of_row);
    for (const tree_node& node : visited) bits[n++] = std::bit_cast<std::uint64_t>(node.claim);
    if (parts == 0) first = bits;

    bool own = std::string_view(p.isa) == p.ran;
    for (const std::string_view other : std::span(seen).first(parts)) own = own && other != p.isa;
    seen[parts++] = p.isa;
    const bool ok = p.of_chain.why == status::ok && p.of_tree.why == status::ok &&
                    p.of_chain.emitted > 0 && p.of_tree.emitted > 0;
    std::printf("built for %s, ran %s:", p.isa, p.ran);
    for (const auto b : std::span(bits).first(n)) std::printf(" %llx", (unsigned long long)b);
    std::printf("%s%s%s\n", own ? "" : " (another part's code)",
                bits == first ? "" : " (another answer)", ok ? "" : " (no answer)");
    right = right && own && ok && bits == first;
  }
  return right ? 0 : 1;
}
