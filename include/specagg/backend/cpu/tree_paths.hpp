// SPDX-License-Identifier: Apache-2.0
// Which positions the nodes of a tree of tokens see.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {

// The nodes of a tree, numbered from 1, and the path to each: its ancestors and itself, in
// ascending order. Memory and time are the sum of the lengths of the paths.
class tree_paths {
 public:
  std::size_t size() const { return first_.size(); }
  void add(std::uint32_t parent) {  // 0, or a node before this one
    const auto from = parent == 0 ? 0 : first_[parent - 1],
               length = parent == 0 ? 0 : end(parent) - from;
    first_.push_back(paths_.size());
    for (std::size_t i = 0; i < length; ++i) paths_.push_back(paths_[from + i]);
    paths_.push_back(std::uint32_t(first_.size()));
  }
  std::span<const std::uint32_t> path(std::size_t node) const {
    return std::span(paths_).subspan(first_[node - 1], end(node) - first_[node - 1]);
  }
  // Whether these nodes are the path to the last of them. No nodes are a path, too.
  bool is_path(std::span<const std::uint32_t> nodes) const {
    if (nodes.empty()) return true;
    if (nodes.back() == 0 || nodes.back() > size()) return false;
    const auto whole = path(nodes.back());
    return std::equal(whole.begin(), whole.end(), nodes.begin(), nodes.end());
  }
  void cut(std::size_t nodes) {  // keeps the first nodes
    if (nodes < size()) {
      paths_.resize(first_[nodes]);
      first_.resize(nodes);
    }
  }

 private:
  std::size_t end(std::size_t node) const { return node < size() ? first_[node] : paths_.size(); }
  std::vector<std::size_t> first_;  // where the path to a node begins
  std::vector<std::uint32_t> paths_;
};

}  // namespace cpu
SPECAGG_END
