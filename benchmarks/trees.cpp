// SPDX-License-Identifier: Apache-2.0
// Trees of drafts: how many tokens the two verifiers accept, and what a walk costs over reading the
// rows it visits.
//
// usage: bench-trees [TREES]   trees for each line of the first table [400]
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include <specagg/audit/tree_law.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

namespace {

// A pair of models whose rows depend on the whole prefix: target logits 2 x Gumbel noise; the
// draft's are the target's with normal noise of deviation `apart`.
struct pair_of_models {
  std::size_t V;
  std::uint64_t seed;
  double apart;
  std::vector<double> row(const std::vector<token_id>& prefix, bool draft) const {
    std::uint64_t key = seed;
    for (const token_id t : prefix)
      key = key * 6364136223846793005u + std::uint64_t(t) + 1442695040888963407u;
    const random_streams noise(key);
    std::vector<double> x(V);
    double sum = 0;
    for (std::size_t v = 0; v < V; ++v) {
      const auto u = [&](std::uint32_t i) {
        return std::max(noise.uniform({stream::side, std::uint32_t(v), i}), 0x1p-53);
      };
      double logit = -2 * std::log(-std::log(u(0)));
      if (draft)
        logit += apart * std::sqrt(-2 * std::log(u(1))) * std::cos(6.283185307179586 * u(2));
      sum += x[v] = std::exp(logit);
    }
    for (double& p : x) p /= sum;
    return x;
  }
};

struct mean {
  double sum = 0, squares = 0, n = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
    ++n;
  }
  double value() const { return sum / n; }
  double error() const { return std::sqrt(std::max(0., squares / n - value() * value()) / n); }
};

void accepted_tokens(std::size_t trees) {
  fmt::print(
      "Accepted tokens a round, V 100, logits 2 x Gumbel noise, the draft's {} nats apart (mean of "
      "{} trees)\n\n",
      "0.7 or 1.5", trees);
  fmt::print(
      "| apart | shape | proposals | recursive | traversal | difference |\n| ---: | --- | --- | "
      "---: | ---: | ---: "
      "|\n");
  const std::vector<std::vector<std::size_t>> shapes{
      {2, 2, 2, 2}, {3, 2, 1, 1, 1}, {4, 2, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}};
  for (const double apart : {0.7, 1.5})
    for (const auto& shape : shapes)
      for (const proposal kind : {proposal::sampled, proposal::greedy, proposal::top}) {
        if (shape[0] == 1 && kind != proposal::sampled) continue;
        mean down, up, difference;
        for (std::size_t i = 0; i < trees; ++i) {
          const pair_of_models m{100, i, apart};
          const random_streams chooser(i);
          const drafted_tree<double> t(
              shape, kind, [&](const auto& x) { return m.row(x, true); },
              [&](const auto& x) { return m.row(x, false); }, chooser);
          std::vector<tree_node> nodes(t.paths.size());
          std::vector<double> residual(shape.size() * m.V), sums(verify_scratch(m.V));
          std::vector<emission> out(shape.size() + 1);
          const tree_memory<double> work{out, nodes, residual, sums};
          const double a =
              double(verify_tree_recursive(t.tree(), t.laws, t.q, t.p, lossless{}, chooser, work)
                         .accepted);
          const double b =
              double(verify_tree(t.tree(), t.laws, t.q, t.p, lossless{}, chooser, work).accepted);
          down.add(a);
          up.add(b);
          difference.add(b - a);
        }
        fmt::print("| {} | {} | {} | {:.3f} | {:.3f} | {:+.3f} ± {:.3f} |\n", apart,
                   fmt::join(shape, ","), name(kind), down.value(), up.value(), difference.value(),
                   difference.error());
        std::fflush(stdout);
      }
}

double seconds_of(auto&& f) {  // of this thread: other work on the machine makes a walk no longer
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  };
  const double start = now();
  f();
  return now() - start;
}
double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// A walk over a tree of rows of floats that nothing has read yet, beside one read of each row that
// it visits: the target's rows where it goes, and the draft's rows that failed children were drawn
// from.
void walks() {
  constexpr std::size_t V = 128256;
  fmt::print(
      "\nA walk, V {}, microseconds (median); floor: one pass over each of the target's rows that "
      "was visited, and "
      "over the law of each failed child that was drawn from a row\n\n",
      V);
  fmt::print(
      "| shape | nodes | proposals | rows visited | laws | floor | traversal | over the floor | "
      "over the target's rows "
      "| recursive |\n| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const auto& shape :
       std::vector<std::vector<std::size_t>>{{4, 2, 1}, {2, 2, 2, 1, 1}, {1, 1, 1, 1}})
    for (const proposal kind : {proposal::greedy, proposal::sampled, proposal::top}) {
      const std::size_t n = tree_size(shape);
      std::vector<std::vector<float>> q(n + 1, std::vector<float>(V)), p = q;
      const random_streams noise(3);
      for (std::size_t i = 0; i <= n; ++i)
        for (std::size_t v = 0; v < V; ++v) {
          const auto u = [&](std::uint32_t k) {
            return float(noise.uniform({stream::side, std::uint32_t(v), k}));
          };
          p[i][v] = 6 * u(std::uint32_t(2 * i));
          q[i][v] = p[i][v] + 2 * u(std::uint32_t(2 * i + 1));
        }
      std::vector<token_id> tokens(n);
      std::vector<std::uint32_t> parents(n), depths(n + 1);
      std::vector<proposal_row<softmax_row<float>>> laws(n + 1);
      std::vector<double> sums(verify_scratch(V)), walk, floor, floor_of_target, down, visited,
          drawn;
      std::vector<tree_node> nodes(n + 1);
      std::vector<float> residual(shape.size() * V);
      std::vector<emission> out(shape.size() + 1);
      for (std::uint64_t round = 0; round < 40; ++round) {
        random_streams chooser(round);
        std::size_t end = 1;
        for (std::size_t i = 0; i < end; ++i) {
          if (depths[i] == shape.size()) continue;
          softmax_row<float> row(q[i]);
          const std::size_t b = shape[depths[i]];
          const std::size_t children = propose_children(kind, row, {end, depths[i] + 1}, chooser,
                                                        std::span(tokens).subspan(end - 1, b),
                                                        std::span(laws).subspan(end, b), sums);
          for (std::size_t c = 0; c < children; ++c, ++end) {
            parents[end - 1] = std::uint32_t(i);
            depths[end] = depths[i] + 1;
          }
        }
        using row_type = normal_form<softmax_row<float>>;
        std::vector<row_type> rows(n + 1);
        std::vector<bool> seen(n + 1);
        const auto p_rows = rows_of(n + 1, [&](std::size_t i) -> const row_type& {
          if (rows[i].why() == status::missing_row) rows[i] = softmax_row<float>(p[i]).normalise();
          seen[i] = true;
          return rows[i];
        });
        // once when a child is visited, once more when it has failed
        std::vector<int> asked(n + 1);
        const auto law_of = rows_of(n + 1, [&](std::size_t i) -> const auto& {
          ++asked[i];
          return laws[i];
        });
        const draft_tree tree{std::span(tokens).first(end - 1), std::span(parents).first(end - 1),
                              0};
        const tree_memory<float> work{out, nodes, residual, sums};
        const auto fresh = [&] {
          for (std::size_t i = 0; i <= n; ++i) {
            rows[i] = row_type();
            seen[i] = false;
            asked[i] = 0;
          }
        };
        fresh();
        down.push_back(seconds_of([&] {
          (void)verify_tree_recursive(tree, law_of, p_rows, p_rows, lossless{}, chooser, work);
        }));
        fresh();
        walk.push_back(seconds_of(
            [&] { (void)verify_tree(tree, law_of, p_rows, p_rows, lossless{}, chooser, work); }));
        const std::vector<bool> which = seen;
        std::vector<softmax_row<float>> of;  // the draft's row that a failed child was drawn from
        for (std::size_t i = 1; i < end; ++i)
          if (asked[i] > 1 && laws[i].row.index() == 0) of.emplace_back(q[parents[i - 1]]);
        fresh();
        floor_of_target.push_back(seconds_of([&] {
          for (std::size_t i = 0; i <= n; ++i)
            if (which[i]) rows[i] = softmax_row<float>(p[i]).normalise();
        }));
        floor.push_back(floor_of_target.back() + seconds_of([&] {
                          for (const softmax_row<float>& row : of) (void)row.normalise();
                        }));
        visited.push_back(double(std::count(which.begin(), which.end(), true)));
        drawn.push_back(double(of.size()));
      }
      fmt::print(
          "| {} | {} | {} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.2f} | {:.2f} | {:.0f} |\n",
          fmt::join(shape, ","), n, name(kind), median(visited), median(drawn), 1e6 * median(floor),
          1e6 * median(walk), median(walk) / median(floor), median(walk) / median(floor_of_target),
          1e6 * median(down));
      std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) {
  const long trees = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 400;
  if (trees < 1 || argc > 2) {
    fmt::print(stderr, "usage: bench-trees [TREES]\n");
    return 2;
  }
  accepted_tokens(std::size_t(trees));
  walks();
}
