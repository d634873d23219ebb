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

using row_type = normal_form<softmax_row<float>>;
constexpr std::size_t walked_vocabulary = 128256;

// Logits of both models at every node of a tree, and what is drafted there.
struct walked_tree {
  static constexpr std::size_t V = walked_vocabulary;
  std::vector<std::size_t> shape;
  std::size_t n, end = 1;  // nodes at most, and the one after the last
  std::vector<std::vector<float>> q, p;
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents, depths;
  std::vector<proposal_row<softmax_row<float>>> laws;
  std::vector<double> sums;

  explicit walked_tree(const std::vector<std::size_t>& of)
      : shape(of),
        n(tree_size(of)),
        q(n + 1, std::vector<float>(V)),
        p(q),
        tokens(n),
        parents(n),
        depths(n + 1),
        laws(n + 1),
        sums(verify_scratch(V)) {
    const random_streams noise(3);
    for (std::size_t i = 0; i <= n; ++i)
      for (std::size_t v = 0; v < V; ++v) {
        const auto u = [&](std::uint32_t k) {
          return float(noise.uniform({stream::side, std::uint32_t(v), k}));
        };
        p[i][v] = 6 * u(std::uint32_t(2 * i));
        q[i][v] = p[i][v] + 2 * u(std::uint32_t(2 * i + 1));
      }
  }
  draft_tree grow(proposal kind, random_streams& chooser) {
    end = 1;
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
    return {std::span(tokens).first(end - 1), std::span(parents).first(end - 1), 0};
  }
};

// Rows that are computed when a walk asks for them, and what it has asked for.
struct asked_rows {
  walked_tree& of;
  std::vector<row_type> rows = std::vector<row_type>(of.n + 1);
  std::vector<bool> seen = std::vector<bool>(of.n + 1);
  // once when a child is visited, once more when it has failed
  std::vector<int> asked = std::vector<int>(of.n + 1);

  void forget() {
    for (std::size_t i = 0; i <= of.n; ++i) {
      rows[i] = row_type();
      seen[i] = false;
      asked[i] = 0;
    }
  }
  const row_type& row(std::size_t i) {
    if (rows[i].why() == status::missing_row) rows[i] = normalise(softmax_row<float>(of.p[i]));
    seen[i] = true;
    return rows[i];
  }
  const auto& law(std::size_t i) {
    ++asked[i];
    return of.laws[i];
  }
  // The draft's rows that failed children were drawn from.
  std::vector<softmax_row<float>> rows_of_failed() const {
    std::vector<softmax_row<float>> all;
    for (std::size_t i = 1; i < of.end; ++i)
      if (asked[i] > 1 && of.laws[i].row.index() == 0) all.emplace_back(of.q[of.parents[i - 1]]);
    return all;
  }
};

struct walk_times {  // of each round: seconds, and how many
  std::vector<double> walk, floor, floor_of_target, down, visited, drawn;
};
walk_times time_walks(walked_tree& t, proposal kind) {
  walk_times all;
  std::vector<tree_node> nodes(t.n + 1);
  std::vector<float> residual(t.shape.size() * t.V);
  std::vector<emission> out(t.shape.size() + 1);
  for (std::uint64_t round = 0; round < 40; ++round) {
    random_streams chooser(round);
    const draft_tree tree = t.grow(kind, chooser);
    asked_rows by{t};
    const auto p_rows =
        rows_of(t.n + 1, [&](std::size_t i) -> const row_type& { return by.row(i); });
    const auto law_of = rows_of(t.n + 1, [&](std::size_t i) -> const auto& { return by.law(i); });
    const tree_memory<float> work{out, nodes, residual, t.sums};
    by.forget();
    all.down.push_back(seconds_of([&] {
      (void)verify_tree_recursive(tree, law_of, p_rows, p_rows, lossless{}, chooser, work);
    }));
    by.forget();
    all.walk.push_back(seconds_of(
        [&] { (void)verify_tree(tree, law_of, p_rows, p_rows, lossless{}, chooser, work); }));
    const std::vector<bool> which = by.seen;
    const std::vector<softmax_row<float>> of = by.rows_of_failed();
    by.forget();
    all.floor_of_target.push_back(seconds_of([&] {
      for (std::size_t i = 0; i <= t.n; ++i)
        if (which[i]) by.rows[i] = normalise(softmax_row<float>(t.p[i]));
    }));
    all.floor.push_back(all.floor_of_target.back() + seconds_of([&] {
                          for (const softmax_row<float>& row : of) (void)normalise(row);
                        }));
    all.visited.push_back(double(std::count(which.begin(), which.end(), true)));
    all.drawn.push_back(double(of.size()));
  }
  return all;
}

// A walk over a tree of rows of floats that nothing has read yet, beside one read of each row that
// it visits: the target's rows where it goes, and the draft's rows that failed children were drawn
// from.
void walks() {
  fmt::print(
      "\nA walk, V {}, microseconds (median); floor: one pass over each of the target's rows that "
      "was visited, and "
      "over the law of each failed child that was drawn from a row\n\n",
      walked_vocabulary);
  fmt::print(
      "| shape | nodes | proposals | rows visited | laws | floor | traversal | over the floor | "
      "over the target's rows "
      "| recursive |\n| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const auto& shape :
       std::vector<std::vector<std::size_t>>{{4, 2, 1}, {2, 2, 2, 1, 1}, {1, 1, 1, 1}})
    for (const proposal kind : {proposal::greedy, proposal::sampled, proposal::top}) {
      walked_tree tree(shape);
      const walk_times t = time_walks(tree, kind);
      const double walk = median(t.walk), floor = median(t.floor);
      fmt::print(
          "| {} | {} | {} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.2f} | {:.2f} | {:.0f} |\n",
          fmt::join(shape, ","), tree.n, name(kind), median(t.visited), median(t.drawn),
          1e6 * floor, 1e6 * walk, walk / floor, walk / median(t.floor_of_target),
          1e6 * median(t.down));
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
