// SPDX-License-Identifier: Apache-2.0
// specagg._core.verify_tree: trees of drafts to requests of the engine.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "bindings.hpp"
#include "verified.hpp"

namespace python {
namespace {

// A verified batch, and for each request the accepted nodes, from the first to the last.
struct verified_trees : verified {
  std::vector<std::int32_t> paths;  // [B, columns - 1], -1 after the path
  verified_trees(std::size_t B, std::size_t depth) : verified(B, depth), paths(B * depth, -1) {}
  template <class F>
  void for_each_array(F&& f) {
    verified::for_each_array(f);
    f(paths);
  }
};

struct tree_arguments {
  nb::handle tokens, parents, q, p, policies;
  std::size_t verifier;
  int proposed;
  nb::handle seeds, requests, positions;
  bool q_logits, p_logits;
  const sampling& q_sampling;
  const sampling& p_sampling;
  const std::vector<token_id>& end_of_text;
  nb::handle bonus;
};

// The trees of a call, [nodes] or [B, nodes].
struct trees_of {
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents;
  std::size_t requests = 0, nodes = 0, depth = 0;  // depth: of the deepest
  bool flat = false;

  explicit trees_of(const tree_arguments& a) {
    const array given = array_of(a.tokens, "tokens"),
                given_parents = array_of(a.parents, "parents");
    tokens = ids_of(given);
    const std::vector<token_id> above = ids_of(given_parents);
    if (given.ndim() != given_parents.ndim() || tokens.size() != above.size() ||
        given.shape(0) != given_parents.shape(0))
      refuse("parents: ", given_parents.shape_text(), ", where tokens are ", given.shape_text());
    flat = given.ndim() == 1;
    requests = flat ? 1 : given.shape(0);
    nodes = given.shape(given.ndim() - 1);
    parents.resize(requests * nodes);
    for (std::size_t i = 0; i < requests; ++i) hang(i, std::span(above).subspan(i * nodes, nodes));
  }

 private:
  // Node k + 1 follows a node before it. Padding follows the text, and is left out.
  void hang(std::size_t i, std::span<const token_id> above) {
    std::vector<std::size_t> depths(nodes + 1);
    for (std::size_t k = 0; k < nodes; ++k) {
      const token_id parent = tokens[i * nodes + k] == specagg::no_token ? 0 : above[k];
      if (parent < 0 || std::size_t(parent) > k)
        refuse("parents: node ", text_of(k + 1), " of request ", text_of(i), " follows node ",
               std::to_string(parent), ", where 0 to ", text_of(k), " may stand");
      parents[i * nodes + k] = std::uint32_t(parent);
      depths[k + 1] = depths[std::size_t(parent)] + 1;
      depth = std::max(depth, depths[k + 1]);
    }
  }
};

std::vector<specagg::bonus_choice> bonuses_of_trees(nb::handle given, std::size_t B,
                                                    std::size_t vocabulary) {
  const auto bonuses = bonuses_of(given, B, vocabulary);
  for (const specagg::bonus_choice one : bonuses)
    if (one.is_given()) refuse("bonus: of a tree it is True, False or \"target\", and no token");
  return bonuses;
}

verified_trees verify_trees(const tree_arguments& a) {
  const trees_of trees(a);
  const std::size_t B = trees.requests, n = trees.nodes, depth = trees.depth;
  const both_rows rows_given(a.q, a.p, a.q_logits, a.p_logits, B, trees.flat ? 2 : 3,
                             trees.flat ? "[nodes + 1, V]" : "[B, nodes + 1, V]");
  const placed_rows &q = rows_given.q, &p = rows_given.p;
  const std::size_t V = rows_given.vocabulary;
  if (!a.q.is_none() && q.most < n + 1)
    refuse("q: ", text_of(q.most), " rows, where ", text_of(n + 1), " are needed");
  if (p.most < n + 1)
    refuse("p: ", text_of(p.most), " rows, where ", text_of(n + 1),
           " are needed: one after the text, and one after each node");
  const std::vector<const policy*> policies = policies_of(a.policies, B);
  for (const policy* one : policies)
    if (a.q.is_none() && one->known.reads_draft)
      refuse("q: the policy ", one->known.name, " reads the draft's rows");

  const auto bonuses = bonuses_of_trees(a.bonus, B, V);
  const streams numbers(a.seeds, a.requests, a.positions, B);
  const samplings q_sampling(a.q_sampling, B), p_sampling(a.p_sampling, B);

  verified_trees result(B, depth);
  const std::size_t part = specagg::verify_scratch(V);
  std::vector<double> scratch(B * part);
  std::vector<specagg::emission> out(B * (depth + 1));
  {
    nb::gil_scoped_release released;
    shared_workers().for_each(B, [&](std::size_t i) {
      engine::tree_request r;
      r.tree = {.tokens = std::span(trees.tokens).subspan(i * n, n),
                .parents = std::span(trees.parents).subspan(i * n, n),
                .start = numbers.position[i],
                .end_of_text = std::span(a.end_of_text),
                .bonus = bonuses[i]};
      r.vocabulary = V;
      const auto rows = [&](const placed_rows& from, const specagg::sampling& how) {
        engine::rows mine = from.all;
        mine.sampling = how;
        mine.count = n + 1;
        if (mine.data) mine.data += std::ptrdiff_t(i) * from.request_stride;
        return mine;
      };
      r.q = rows(q, q_sampling[i]);
      r.p = rows(p, p_sampling[i]);
      r.proposed = a.proposed;
      r.verifier = a.verifier;
      r.policy = policies[i]->chosen;
      r.seed = numbers.seed[i];
      r.id = numbers.id(i);
      r.out = std::span(out).subspan(i * (depth + 1), depth + 1);
      r.scratch = std::span(scratch).subspan(i * part, part);
      std::vector<std::uint32_t> path(depth + 1);
      specagg::tree_verdict v;
      specagg_engine_verify_tree(&r, &v, path.data());
      result.keep(i, v, r.out, {});
      std::copy_n(path.begin(), v.accepted, result.paths.begin() + std::ptrdiff_t(i * depth));
    });
  }
  return result;
}

}  // namespace

void bind_tree(nb::module_& m) {
  nb::class_<verified_trees, verified>(m, "VerifiedTrees",
                                       "The result of verify_tree(). Acceptances are not computed "
                                       "(NaN).")
      .def_prop_ro(
          "paths",
          [](nb::handle_t<verified_trees> self) {
            verified_trees& v = nb::cast<verified_trees&>(self);
            return view2<std::int32_t>(v.paths.data(), {v.requests, v.columns - 1}, self);
          },
          "[B, depth]: the accepted nodes, from the first to the last, then -1.")
      .def("__repr__", [](const verified_trees& v) { return "VerifiedTrees(" + text_of(v) + ")"; })
      .def("__getstate__", &state_of<verified_trees>)
      .def("__setstate__", &set_state<verified_trees>);
  m.def(
      "verify_tree",
      [](nb::handle tokens, nb::handle parents, nb::handle q, nb::handle p, nb::handle policies,
         std::size_t verifier, int proposed, nb::handle seeds, nb::handle requests,
         nb::handle positions, bool q_logits, bool p_logits, const sampling& q_sampling,
         const sampling& p_sampling, const std::vector<token_id>& end_of_text, nb::handle bonus) {
        return verify_trees({tokens, parents, q, p, policies, verifier, proposed, seeds, requests,
                             positions, q_logits, p_logits, q_sampling, p_sampling, end_of_text,
                             bonus});
      },
      "tokens"_a.none(), "parents"_a.none(), "q"_a.none(), "p"_a.none(), "policies"_a, "verifier"_a,
      "proposed"_a, "seeds"_a, "requests"_a.none(), "positions"_a, "q_logits"_a, "p_logits"_a,
      "q_sampling"_a, "p_sampling"_a, "end_of_text"_a, "bonus"_a);
}

}  // namespace python
