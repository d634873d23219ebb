// SPDX-License-Identifier: Apache-2.0
// What passes between parts that are built for different instruction sets: plain data.
#pragma once
#include <span>

#include <specagg/specagg.hpp>

struct part {
  const char* isa;  // what the translation unit was built for
  const char* ran;  // whose copy of an inline function ran
  specagg::verdict of_chain;
  specagg::tree_verdict of_tree;
};
// A parameter of every part, by which the linker sees whether they mean the same types.
template <class...>
struct of_types {};
using plain_data = of_types<specagg::draft, specagg::draft_tree, specagg::sampling,
                            specagg::emission, specagg::draft_acceptance, specagg::verdict,
                            specagg::tree_verdict, specagg::tree_node>;
// A draft over rows of 5000 logits, sampled in one way, and a tree; and where the results go.
struct task {
  specagg::draft chain;
  specagg::draft_tree tree;
  specagg::sampling how;
  std::span<specagg::emission> emitted, emitted_of_tree;
  std::span<specagg::tree_node> nodes;  // one more than the tree has
};
