// SPDX-License-Identifier: Apache-2.0
// Stop strings, found byte by byte while a text is written, however many there are (Aho and
// Corasick 1975). What is found is a function of the bytes, not of the pieces in which they come.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

class stop_strings {
 public:
  using state = std::uint32_t;  // of a text: the longest of its ends that begins a stop string

  // Empty strings never match. Memory: 24 bytes for each byte of the strings.
  explicit stop_strings(std::vector<std::string> all) : nodes_(1) {
    std::sort(all.begin(), all.end());  // then the next string follows the last child, or adds one
    for (const std::string& one : all) {
      std::uint32_t at = 0;
      for (const char c : one) {
        const std::uint32_t last = nodes_[at].child;
        if (last != 0 && nodes_[last].byte == c) {
          at = last;
          continue;
        }
        nodes_.push_back({0, last, 0, nodes_[at].depth + 1, 0, c});
        at = nodes_[at].child = std::uint32_t(nodes_.size() - 1);
      }
      nodes_[at].found = nodes_[at].depth;
    }
    link();
  }

  // Reads the next byte. Returns the length of the longest stop string that ends with it, or 0.
  std::size_t read(state& s, char c) const {
    s = follow(s, c);
    return nodes_[s].found;
  }
  // How many of the last bytes may be the beginning of a stop string.
  std::size_t begun(state s) const { return nodes_[s].depth; }

 private:
  struct node {
    std::uint32_t child = 0, sibling = 0;  // the last child; the one before it
    std::uint32_t shorter = 0;             // the longest proper end of it that is a node
    std::uint32_t depth = 0, found = 0;
    char byte = 0;
  };
  std::uint32_t child(std::uint32_t of, char c) const {
    std::uint32_t at = nodes_[of].child;
    while (at != 0 && nodes_[at].byte != c) at = nodes_[at].sibling;
    return at;
  }
  std::uint32_t follow(std::uint32_t at, char c) const {
    for (;;) {
      if (const std::uint32_t next = child(at, c); next != 0 || at == 0) return next;
      at = nodes_[at].shorter;
    }
  }
  void link() {
    std::vector<std::uint32_t> order{0};  // by depth
    for (std::size_t i = 0; i < order.size(); ++i)
      for (std::uint32_t v = nodes_[order[i]].child; v != 0; v = nodes_[v].sibling) {
        order.push_back(v);
        if (order[i] == 0) continue;
        nodes_[v].shorter = follow(nodes_[order[i]].shorter, nodes_[v].byte);
        if (nodes_[v].found == 0) nodes_[v].found = nodes_[nodes_[v].shorter].found;
      }
  }
  std::vector<node> nodes_;  // 0: no byte
};

// The strings that a call asks for, which its texts share. What finds them is made for a text that
// is written, because it takes more memory than those that wait should have. One thread calls it.
class stop_list {
 public:
  explicit stop_list(std::vector<std::string> all) : all_(std::move(all)) {
    for (const std::string& one : all_) bytes_ += one.size();
  }
  std::size_t bytes() const { return bytes_; }
  std::shared_ptr<const stop_strings> find() {
    auto found = found_.lock();
    if (!found) found_ = found = std::make_shared<const stop_strings>(all_);
    return found;
  }

 private:
  std::vector<std::string> all_;
  std::size_t bytes_ = 0;
  std::weak_ptr<const stop_strings> found_;
};
