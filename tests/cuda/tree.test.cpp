// SPDX-License-Identifier: Apache-2.0
// Random batches of trees, walked by the device (or by its emulator) and by the CPU: every token,
// status, claim and log-probability must have the same bits. Trees of every shape and kind of
// proposal; rows that are invalid, tokens that are outside the support or equal, and nodes that are
// not there included.
#include "cuda/agree.hpp"

#include <specagg/backend/cuda/tree.hpp>

using namespace specagg;
namespace device = specagg::cuda;

namespace {

template <class S>
struct forest {
  std::size_t requests, V, most, levels;
  proposal propose;
  double temperature;
  std::size_t offset;            // elements before the first row
  std::vector<S> draft, target;  // [requests][most + 1][V], after `offset` elements
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents, start;
  std::vector<std::uint64_t> seed;

  forest(numbers& random, std::size_t vocabulary, proposal kind)
      : requests(3 + random.below(3)),
        V(vocabulary),
        most(1 + random.below(random.below(3) == 0 ? device::most_in_tree : 12)),
        levels(1 + random.below(5)),
        propose(kind),
        temperature(random.below(5) == 0 ? 0
                    : random.below(2)    ? 1
                                         : 0.7),
        offset(random.below(2) ? random.below(4) : 0),
        tokens(requests * most, no_token),
        parents(requests * most, 0) {
    draft.resize(offset + requests * (most + 1) * V);
    target.resize(draft.size());
    for (std::size_t r = 0; r < requests; ++r) {
      start.push_back(std::uint32_t(random.below(1000)));
      seed.push_back(random.word());
      for (std::size_t n = 0; n <= most; ++n) fill(random, r, n);
      grow(random, r);
      for (std::size_t i = 0; i < most; ++i)  // then some of it goes wrong
        if (tokens[r * most + i] != no_token && random.below(12) == 0)
          tokens[r * most + i] = random.below(3) == 0   ? no_token
                                 : random.below(2) == 0 ? token_id(random.below(V))
                                                        : token_id(V) + 1;
      if (random.below(25) == 0 && most > 2)
        parents[r * most + 1 + random.below(most - 1)] = std::uint32_t(most);
    }
  }

  // But for where the numbers are.
  device::tree_batch<S> batch() const {
    device::tree_batch<S> b;
    b.requests = requests;
    b.vocabulary = b.draft_stride = b.target_stride = V;
    b.most = most;
    b.levels = levels;
    b.propose = propose;
    b.end_of_text = token_id(1);
    b.draft_count = b.target_count = requests * (most + 1);
    return b;
  }
  processed_row<S> row(const std::vector<S>& from, std::size_t r, std::size_t n) const {
    return {std::span(from).subspan(offset + (r * (most + 1) + n) * V, V),
            {.temperature = temperature}};
  }
  draft_tree tree(std::size_t r) const {
    std::size_t n = most;
    while (n > 0 && tokens[r * most + n - 1] == no_token) --n;
    return {std::span(tokens).subspan(r * most, n), std::span(parents).subspan(r * most, n),
            start[r], token_id(1)};
  }
  // The law of node i, from the way its siblings stand.
  proposal_row<processed_row<S>> law(std::size_t r, std::size_t i) const {
    const draft_tree t = tree(r);
    const std::uint32_t parent = t.parents[i - 1];
    const auto first =
        std::size_t(std::find(t.parents.begin(), t.parents.end(), parent) - t.parents.begin()) + 1;
    const auto siblings = std::size_t(std::count(t.parents.begin(), t.parents.end(), parent));
    const auto alone = normalise(one_hot_row<float>(t.tokens[i - 1], V));
    const auto q = normalise(row(draft, r, parent));
    if (propose == proposal::top || (propose == proposal::greedy && i != first)) return alone;
    const auto without = propose == proposal::sampled  ? t.tokens.subspan(first - 1, i - first)
                         : propose == proposal::greedy ? t.tokens.subspan(i, siblings - 1)
                                                       : std::span<const token_id>();
    const auto rest = normalise(row_without(q, without));
    if (propose == proposal::greedy && q.why() == status::ok && rest.why() != status::ok)
      return alone;
    return rest;
  }

 private:
  void fill(numbers& random, std::size_t r, std::size_t n) {
    S* q = draft.data() + offset + (r * (most + 1) + n) * V;
    S* p = target.data() + offset + (r * (most + 1) + n) * V;
    const double spread = random.below(2) ? 3 : 12, apart = random.below(2) ? 0.3 : 3;
    for (std::size_t v = 0; v < V; ++v) {
      const double l = spread * random.bell();
      p[v] = stored<S>(float(l));
      q[v] = stored<S>(float(l + apart * random.bell()));
    }
    const std::size_t v = random.below(V);
    switch (random.below(60)) {  // mostly nothing
      case 0: p[v] = stored<S>(std::nanf("")); break;
      case 1: q[v] = stored<S>(INFINITY); break;
      case 2: std::fill_n(p, V, stored<S>(-INFINITY)); break;
      case 3: std::fill_n(q, V, stored<S>(-INFINITY)); break;
      case 4: std::copy_n(p, V, q); break;
      case 5: q[v] = stored<S>(6e4f); break;
      default: break;
    }
  }
  // Proposes up to three children of each node, level by level.
  void grow(numbers& random, std::size_t r) {
    std::vector<std::uint32_t> depth{0};
    std::vector<double> scratch(verify_scratch(V));
    random_streams chooser(seed[r], r);
    const std::size_t wanted = random.below(8) == 0 ? random.below(most + 1) : most;
    for (std::size_t n = 0; n < depth.size() && depth.size() <= wanted; ++n) {
      if (depth[n] == levels) break;
      const std::size_t end = depth.size(), b = std::min(random.below(4), wanted + 1 - end);
      auto q = row(draft, r, n);
      std::vector<proposal_row<processed_row<S>>> laws(b);
      const std::size_t children = propose_children(
          propose, q, {end, depth[n] + 1, start[r]}, chooser,
          std::span(tokens).subspan(r * most + end - 1, b), std::span(laws), scratch);
      for (std::size_t c = 0; c < children; ++c) {
        parents[r * most + end - 1 + c] = std::uint32_t(n);
        depth.push_back(depth[n] + 1);
      }
      for (std::size_t c = children; c < b; ++c) tokens[r * most + end - 1 + c] = no_token;
    }
  }
};

struct counted {
  std::size_t trees = 0, deep = 0, residuals = 0, claims = 0, left_out = 0;
  std::map<status, std::size_t> statuses;
};

// What the CPU says of a tree.
struct one_tree {
  tree_verdict said;
  std::vector<emission> emissions;
  std::vector<tree_node> nodes;
};
// Tree r, with so many rows of each model.
template <class S, class Policy, class Verifier>
one_tree verify_here(const forest<S>& f, std::size_t r, std::size_t q_rows, std::size_t p_rows,
                     const Policy& policy, const Verifier& verifier) {
  const draft_tree tree = f.tree(r);
  std::vector<float> residual(f.levels * f.V);
  std::vector<double> sums(verify_scratch(f.V));
  random_streams chooser(f.seed[r], r);
  one_tree due{{}, std::vector<emission>(f.levels + 1), std::vector<tree_node>(f.most + 1)};
  due.said.why = status::invalid_parameter;
  if (std::is_sorted(tree.parents.begin(), tree.parents.end()))
    due.said = verifier.verify(
        tree, rows_of(tree.size() + 1, [&](std::size_t i) { return f.law(r, i); }),
        rows_of(q_rows, [&](std::size_t n) { return f.row(f.draft, r, n); }),
        rows_of(p_rows, [&](std::size_t n) { return f.row(f.target, r, n); }), policy, chooser,
        tree_memory<float>{due.emissions, due.nodes, residual, sums});
  return due;
}

void check_same(const tree_verdict& got, std::span<const emission> emissions,
                std::span<const double> claims, const one_tree& due, counted& seen) {
  const tree_verdict& v = due.said;
  CAPTURE(name(v.why), name(got.why), v.node, got.node);
  REQUIRE((got.why == v.why && got.node == v.node));
  REQUIRE((got.accepted == v.accepted && got.emitted == v.emitted));
  for (std::size_t i = 0; i < v.emitted; ++i) {
    const emission &a = emissions[i], &c = due.emissions[i];
    CAPTURE(i, a.token, c.token, a.log_pi, c.log_pi);
    REQUIRE((a.token == c.token && a.from == c.from && a.why == c.why));
    REQUIRE((same_bits(a.log_pi, c.log_pi) && same_bits(a.log_p, c.log_p)));
    seen.residuals += c.from == origin::residual;
    seen.left_out += c.why != status::ok;
  }
  for (std::size_t i = 0; i < claims.size(); ++i) {
    CAPTURE(i, claims[i], due.nodes[i].claim);
    REQUIRE(same_bits(claims[i], due.nodes[i].claim));
    seen.claims += due.nodes[i].claim > 0;
  }
  ++seen.trees;
  ++seen.statuses[v.why];
  seen.deep += v.accepted > 1;
}

template <class S, class Policy, class Verifier>
void trees_agree(std::uint64_t seed, std::size_t V, proposal kind,
                 const std::vector<Policy>& choices, const Verifier& verifier, counted& seen) {
  numbers random(seed);
  const forest<S> f(random, V, kind);
  const on_device draft(f.draft), target(f.target);
  const on_device tokens(f.tokens);
  const on_device parents(f.parents), start(f.start);
  const on_device seeds(f.seed);
  const on_device temperature(std::vector<double>(f.requests, f.temperature));
  std::vector<Policy> policies;
  for (std::size_t r = 0; r < f.requests; ++r)
    policies.push_back(choices[random.below(choices.size())]);
  const on_device device_policies(policies);
  const on_device verdicts(std::vector<tree_verdict>(f.requests));
  const on_device emissions(std::vector<emission>(f.requests * (f.levels + 1)));
  const on_device claims(std::vector<double>(f.requests * (f.most + 1)));
  device::tree_batch<S> b = f.batch();
  b.draft = draft.data() + f.offset;
  b.target = target.data() + f.offset;
  b.tokens = tokens.data();
  b.parents = parents.data();
  b.start = start.data();
  b.seed = seeds.data();
  b.temperature = temperature.data();
  // Some requests lack a row after their last node.
  std::vector<device::row_range> draft_range, target_range;
  for (std::size_t r = 0; r < f.requests; ++r) {
    const auto first = std::uint32_t(r * (f.most + 1)), nodes = std::uint32_t(f.tree(r).size());
    draft_range.push_back({first, nodes + (r % 3 != 1)});
    target_range.push_back({first, nodes + (r % 4 != 2)});
  }
  const on_device draft_rows(draft_range), target_rows(target_range);
  b.draft_rows = draft_rows.data();
  b.target_rows = target_rows.data();
  const std::size_t bytes = device::verify_trees_storage(b);
  const on_device storage(std::vector<double>(bytes / 8 + 1, NAN));
  REQUIRE(device::verify_trees(b, static_cast<const Policy*>(device_policies.data()), verifier,
                               {verdicts.data(), emissions.data(), claims.data()}, storage.data(),
                               bytes, nullptr) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  const auto got = verdicts.read();
  const auto got_emissions = emissions.read();
  const auto got_claims = claims.read();

  for (std::size_t r = 0; r < f.requests; ++r) {
    const draft_tree tree = f.tree(r);
    const one_tree due =
        verify_here(f, r, draft_range[r].count, target_range[r].count, policies[r], verifier);
    INFO("seed " << seed << ", request " << r << ", V " << V << ", " << name(kind) << ", "
                 << tree.size() << " of " << f.most << " nodes, " << f.levels
                 << " levels, temperature " << f.temperature);
    check_same(got[r], std::span(got_emissions).subspan(r * (f.levels + 1), f.levels + 1),
               std::span(got_claims).subspan(r * (f.most + 1), f.most + 1), due, seen);
  }
}

template <class Verifier>
void every_tree_agrees(const Verifier& verifier) {
  if (!have_device()) return;
  static constexpr std::size_t sizes[] = {3, 17, 1000, 1025, 2500, 4096};
  counted seen;
  for (std::uint64_t seed = 1; seed <= 96; ++seed) {
    const auto kind = proposal(seed % 4);
    const std::size_t V = sizes[seed / 4 % 6];
    trees_agree<float>(seed, V, kind, std::vector{lossless{}}, verifier, seen);
#if !FEW_KERNELS
    if (seed % 3 == 0)
      trees_agree<float>(seed, V, kind, std::vector{token_v3{0.3}, token_v3{2}}, verifier, seen);
    if (seed % 8 == 0) trees_agree<bf16>(seed, V, kind, std::vector{lossless{}}, verifier, seen);
#endif
  }
  constexpr std::size_t fewer = FEW_KERNELS ? 2 : 1;
  CHECK(seen.trees > 300 / fewer);
  CHECK(seen.deep > 50 / fewer);
  CHECK(seen.residuals > 50 / fewer);
  CHECK(seen.claims > 400 / fewer);
  CHECK(seen.left_out > 5 / fewer);
  for (const status s : {status::ok, status::invalid_parameter, status::invalid_row})
    CHECK(seen.statuses[s] > 2);
}

}  // namespace

TEST_CASE("cuda: recursive rejection in a tree agrees with the CPU bit by bit") {
  every_tree_agrees(recursive_rejection{});
}
TEST_CASE("cuda: a traversal of a tree agrees with the CPU bit by bit") {
  every_tree_agrees(traversal{});
}
TEST_CASE("cuda: a tree whose walk is split over a cluster") {
  if (!have_device()) return;
  counted seen;
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    trees_agree<float>(seed, 40000, proposal(seed % 2), std::vector{lossless{}}, traversal{}, seen);
  CHECK(seen.statuses[status::ok] > 3);
}
#if !defined(__CUDACC__)  // there the order of threads is not chosen
TEST_CASE("cuda: trees of all ways to propose agree in clusters, in dozens of orders", "[slow]") {
  counted seen;
  for (std::uint64_t seed = 1; seed <= 40; ++seed)
    for (int kind = 0; kind < 4; ++kind) {
      cuda_emulator::set_order(cuda_emulator::order::shuffled, seed);
      trees_agree<float>(seed, 17000, proposal(kind), std::vector{lossless{}}, traversal{}, seen);
      trees_agree<float>(seed, 17000, proposal(kind), std::vector{token_v3{0.3}},
                         recursive_rejection{}, seen);
    }
  cuda_emulator::set_order(cuda_emulator::order::forward);
  CHECK(seen.deep > 50);
}
#endif

using trees_of_floats = device::detail::trees<device::detail::nodes<float>, true>;
static_assert(device::detail::RowBatch<trees_of_floats>);
static_assert(!device::detail::Batch<trees_of_floats>);  // not for the kernel of drafts

TEST_CASE("cuda: trees whose sizes are out of range are refused before anything is launched") {
  if (!have_device()) return;
  const on_device rows(std::vector<float>(8 * 4));
  const on_device tokens(std::vector<token_id>{1, 2});
  const on_device parents(std::vector<std::uint32_t>{0, 0});
  const on_device start(std::vector<std::uint32_t>{5});
  const on_device seed(std::vector<std::uint64_t>{3});
  const on_device verdicts(std::vector<tree_verdict>(1));
  const on_device emissions(std::vector<emission>(3));
  device::tree_batch<float> good;
  good.requests = 1;
  good.vocabulary = good.draft_stride = good.target_stride = 8;
  good.most = 2;
  good.levels = 2;
  good.draft_count = good.target_count = 4;
  good.draft = good.target = rows.data();
  good.tokens = tokens.data();
  good.parents = parents.data();
  good.start = start.data();
  good.seed = seed.data();
  const std::size_t bytes = device::verify_trees_storage(good);
  const on_device storage(std::vector<double>(bytes / 8));
  const lossless_for_all policy(1);
  const auto result = [&](device::tree_batch<float> b, std::size_t n) {
    return device::verify_trees(b, policy(), traversal{}, {verdicts.data(), emissions.data()},
                                storage.data(), n, nullptr);
  };
  CHECK(result(good, bytes) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(verdicts.read()[0].why == status::ok);
  CHECK(result(good, bytes - 1) == cudaErrorInvalidValue);
  const auto refused = [&](auto&& change) {
    auto bad = good;
    change(bad);
    CHECK(result(bad, std::size_t(-1)) == cudaErrorInvalidValue);
  };
  refused([](auto& x) { x.most = device::most_in_tree + 1; });
  refused([](auto& x) { x.levels = device::most_drafted + 1; });
  refused([](auto& x) { x.vocabulary = 0; });
  refused([](auto& x) { x.draft = nullptr; });
  refused([](auto& x) { x.draft_count = 0; });
  refused([](auto& x) { x.target_count = 0; });
  refused([](auto& x) { x.target = nullptr; });
  refused([](auto& x) { x.tokens = nullptr; });
  refused([](auto& x) { x.parents = nullptr; });
  refused([](auto& x) { x.start = nullptr; });
  refused([](auto& x) { x.seed = nullptr; });
  auto b = good;
  // certain tokens, and a policy that reads no draft: no row of it
  b.propose = proposal::top;
  b.draft = nullptr;
  CHECK(result(b, bytes) == cudaSuccess);
  b.levels = 0;  // the tree is deeper
  CHECK(result(b, bytes) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(verdicts.read()[0].why == status::invalid_parameter);
}
