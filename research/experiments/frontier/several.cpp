// SPDX-License-Identifier: Apache-2.0
// What other verifiers and several drafts add to a round: the same positions, temperature and
// top-p, lossless. A tree of one token at each depth is a chain: traversal is then block
// verification, and recursive rejection is token verification.
#include <array>

#include <specagg/audit/tree_law.hpp>

#include "remembering.hpp"

namespace experiments::frontier {
namespace {

struct shape_of_drafts {
  const char* name;
  std::vector<std::size_t> shape;
  proposal kind;
};
const std::vector<shape_of_drafts>& shapes() {
  static const std::vector<shape_of_drafts> all{{"1,1,1,1", {1, 1, 1, 1}, proposal::sampled},
                                                {"2,1,1,1", {2, 1, 1, 1}, proposal::greedy},
                                                {"2,1,1,1", {2, 1, 1, 1}, proposal::sampled},
                                                {"2,2,1,1", {2, 2, 1, 1}, proposal::greedy}};
  return all;
}
constexpr std::size_t coins = 32;

// The expected number of accepted tokens of one tree, by each verifier.
std::array<double, 2> accepted(const drafted_tree<float>& drafts, std::size_t depth,
                               std::uint64_t seed) {
  const std::size_t V = drafts.p[0].size();
  std::vector<emission> out(depth + 1);
  std::vector<tree_node> nodes(drafts.paths.size());
  std::vector<float> residual(V * (depth + 1));
  std::vector<double> scratch(verify_scratch(V));
  const tree_memory<float> work{out, nodes, residual, scratch};
  std::array<double, 2> sum{};
  for (std::size_t k = 0; k < coins; ++k) {
    const random_streams noise(seed, k + 1);
    const tree_verdict recursive = verify_tree_recursive(drafts.tree(), drafts.laws, drafts.q,
                                                         drafts.p, lossless{}, noise, work),
                       traversal = verify_tree(drafts.tree(), drafts.laws, drafts.q, drafts.p,
                                               lossless{}, noise, work);
    must(recursive.why, "recursive rejection");
    must(traversal.why, "traversal");
    sum[0] += double(recursive.accepted) / double(coins);
    sum[1] += double(traversal.accepted) / double(coins);
  }
  return sum;
}

}  // namespace

void several(laboratory& l, const char* draft, double temperature, table& out) {
  cpu::llama p_model(target(), l.pool, 1024), q_model(draft_named(draft), l.pool, 1024);
  remembering q(q_model), p(p_model);
  const sampling by{.temperature = temperature, .top_p = top_p};
  const auto& texts = texts_at(l, temperature);
  const std::size_t starts = 2, trees = l.how.quick ? 1 : 2;
  for (std::size_t i = 0; i < texts.size(); i += l.how.quick ? 2 : 1) {
    const written& t = texts[i];
    for (const shape_of_drafts& of : shapes()) {
      std::array<double, 2> mean{};
      double nodes = 0;
      for (std::size_t r = 0; r < starts; ++r)
        for (std::size_t k = 0; k < trees; ++k) {
          const std::size_t from = t.prompt + r * (t.tokens.size() - t.prompt) / starts;
          const auto text_after = [&](const std::vector<token_id>& path) {
            std::vector<token_id> all(t.tokens.begin(), t.tokens.begin() + std::ptrdiff_t(from));
            all.insert(all.end(), path.begin(), path.end());
            return all;
          };
          const auto after = [&](remembering& model, const std::vector<token_id>& path) {
            return probabilities(model.row_after(text_after(path)), by);
          };
          const std::uint64_t seed = 100000 * l.how.seed + 100 * t.place + 10 * r + k;
          const auto drafted = [&](auto&& target_row) {
            return drafted_tree<float>(
                of.shape, of.kind, [&](const auto& path) { return after(q, path); }, target_row,
                random_streams(seed));
          };
          // The target's rows do not change what is drafted: each path in one call.
          const auto first = drafted([](const auto&) { return std::vector<float>(); });
          for (const auto& path : first.paths)
            if (path.size() == of.shape.size()) p.read(text_after(path), path.size() + 1);
          const auto drafts = drafted([&](const auto& path) { return after(p, path); });
          const auto one = accepted(drafts, of.shape.size(), seed);
          for (std::size_t j = 0; j < 2; ++j) mean[j] += one[j] / double(starts * trees);
          nodes += double(drafts.tokens.size()) / double(starts * trees);
        }
      out.add(fmt::format("\"{}\"", of.name), name(of.kind), t.set, t.number, nodes, mean[0],
              mean[1]);
    }
    q.forget();
    p.forget();
    l.progress(double(i + 1) / double(texts.size()));
  }
}

}  // namespace experiments::frontier
