// SPDX-License-Identifier: Apache-2.0
// Bytes to trees of drafts: for any nodes and rows, verification ends, stays in bounds,
// emits a path of the tree and at most one token more, and emits only tokens that their law gives
// mass.
#include <specagg/decoders.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "support/bounded_memory.hpp"

using namespace specagg;

namespace {

struct bytes {
  const std::uint8_t* data;
  std::size_t size;
  template <class T>
  T take() {
    T x{};
    const std::size_t n = size < sizeof x ? size : sizeof x;
    std::memcpy(&x, data, n);
    data += n;
    size -= n;
    return x;
  }
};
void require(bool what) {
  if (!what) std::abort();
}

// Numbers that are almost always rows, sometimes not.
std::vector<std::vector<float>> take_rows(bytes& in, std::size_t n, std::size_t V) {
  std::vector<std::vector<float>> rows(n);
  for (auto& row : rows) {
    const auto how = in.take<std::uint8_t>();
    double sum = 0;
    for (std::size_t v = 0; v < V + (how == 77); ++v) {
      row.push_back(how == 78 ? in.take<float>() : float(in.take<std::uint8_t>() % 8));
      sum += double(row.back());
    }
    if (how < 250 && sum > 0)
      for (float& x : row) x = float(double(x) / sum);
  }
  return rows;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::bounded_memory bounded((1 << 20) + 64 * size);
  bytes in{data, size};
  const std::size_t n = in.take<std::uint8_t>() % 9, V = 1 + in.take<std::uint8_t>() % 6;
  const auto kind = in.take<std::uint8_t>(), memory = in.take<std::uint8_t>();
  const auto seed = in.take<std::uint64_t>();
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents;
  for (std::size_t i = 0; i < n; ++i) {
    tokens.push_back(kind & 1 ? in.take<token_id>()
                              : token_id(in.take<std::uint8_t>() % (V + 2)) - 1);
    const auto p = in.take<std::uint8_t>();
    parents.push_back(kind & 2 ? p : std::uint32_t(p % (i + 1)));
  }
  if (memory == 9) parents.push_back(0);
  const auto laws = take_rows(in, n + 1, V), q = take_rows(in, n + 1, V),
             p = take_rows(in, n + 1, V);
  std::vector<any_row<dense_row<float>, one_hot_row<float>>> mixed(n + 1);
  for (std::size_t i = 0; i <= n; ++i) {
    mixed[i] = dense_row<float>(laws[i]);
    if (i > 0 && (memory >> (i % 8) & 1)) mixed[i] = one_hot_row<float>(tokens[i - 1], V);
  }
  const draft_tree tree{tokens, parents, 3, kind & 4 ? token_id(0) : no_token, (kind & 8) == 0};
  const std::size_t less = memory % 16 == 5;
  std::vector<tree_node> nodes(n + 1 - (memory % 16 == 6));
  std::vector<float> residual(n * V - (n > 0 ? less : 0));
  std::vector<double> sums(verify_scratch(V + 1) - (memory % 16 == 7 ? 2 : 0));
  std::vector<emission> out(n + 1 - (memory % 16 == 8));
  const tree_memory<float> work{out, nodes, residual, sums};
  const auto check = [&](const auto& policy, bool only_p) {
    random_streams chooser(seed);
    const tree_verdict v = kind & 16
                               ? verify_tree(tree, mixed, q, p, policy, chooser, work)
                               : verify_tree_recursive(tree, mixed, q, p, policy, chooser, work);
    require(v.node <= n && v.accepted <= v.emitted && v.emitted <= v.accepted + 1 &&
            v.emitted <= out.size());
    require(v.why != status::ok || v.emitted > v.accepted || !tree.bonus ||
            (v.node > 0 && tree.end_of_text.contains(tokens[v.node - 1])));
    std::size_t node = v.node, depth = v.accepted;
    if (v.emitted > v.accepted) {  // drawn after the last node
      require(out[depth].token >= 0 && std::size_t(out[depth].token) < p[node].size());
      if (only_p) require(p[node][std::size_t(out[depth].token)] > 0);
    }
    while (depth-- > 0) {
      require(node > 0 && out[depth].token == tokens[node - 1]);
      node = parents[node - 1];
      if (only_p) require(p[node][std::size_t(out[depth].token)] > 0);
      require(!std::isnan(out[depth].log_pi) && !std::isnan(out[depth].log_p));
    }
    require(node == 0);
  };
  check(lossless{}, true);
  check(ensemble{0.3}, false);
  check(token_v3{0.5}, false);
  return 0;
}
