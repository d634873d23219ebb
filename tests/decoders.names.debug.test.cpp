// SPDX-License-Identifier: Apache-2.0
// An engine has functions of its own whose names the library uses, too. The library calls its own,
// also with the engine's types as arguments, and also where laws are checked.
#undef NDEBUG
#include <specagg/decoders.hpp>

#include <array>
#include <vector>

#include <specagg/audit/toy_source.hpp>

#include "support/catch.hpp"

namespace engine {

using specagg::status;
using specagg::token_id;

template <class... A>
struct found_by_the_library {
  static_assert(sizeof...(A) > 999, "the library's unqualified call finds the engine's function");
};
#define ENGINE_OWN(function)                                              \
  template <class... A, std::size_t = sizeof(found_by_the_library<A...>)> \
  void function(A&&...);
ENGINE_OWN(abandon)
ENGINE_OWN(any_in_turn)
ENGINE_OWN(append)
ENGINE_OWN(as_row)
ENGINE_OWN(at)
ENGINE_OWN(bild_round)
ENGINE_OWN(bind_law)
ENGINE_OWN(bind_to)
ENGINE_OWN(can_draft)
ENGINE_OWN(can_weigh)
ENGINE_OWN(collaborative_turn)
ENGINE_OWN(combine_logits)
ENGINE_OWN(common_prefix)
ENGINE_OWN(decode_rounds)
ENGINE_OWN(draw)
ENGINE_OWN(draw_draft)
ENGINE_OWN(draw_node)
ENGINE_OWN(draw_residual)
ENGINE_OWN(draw_token)
ENGINE_OWN(find_largest)
ENGINE_OWN(fold_models)
ENGINE_OWN(outside_support)
ENGINE_OWN(inverse_transform)
ENGINE_OWN(is_convex)
ENGINE_OWN(is_masked)
ENGINE_OWN(examine)
ENGINE_OWN(rollback)
ENGINE_OWN(keep_or_replace)
ENGINE_OWN(keep_prefix)
ENGINE_OWN(kept)
ENGINE_OWN(link_tree)
ENGINE_OWN(map_logits)
ENGINE_OWN(mass_kept)
ENGINE_OWN(measure)
ENGINE_OWN(measure_tree)
ENGINE_OWN(needs_draft)
ENGINE_OWN(normalise)
ENGINE_OWN(normalised)
ENGINE_OWN(propose_children)
ENGINE_OWN(race)
ENGINE_OWN(ready)
ENGINE_OWN(reduce_block)
ENGINE_OWN(reduce_block_of)
ENGINE_OWN(reduce_blocks)
ENGINE_OWN(room)
ENGINE_OWN(rows_of)
ENGINE_OWN(score)
ENGINE_OWN(shortest_prefix)
ENGINE_OWN(speculative_round)
ENGINE_OWN(sum_exponentials)
ENGINE_OWN(target_if)
ENGINE_OWN(tree_round)
ENGINE_OWN(truncate)
ENGINE_OWN(unanimous_here)
ENGINE_OWN(valid)
ENGINE_OWN(verify)
ENGINE_OWN(verify_block)
ENGINE_OWN(verify_coupled)
ENGINE_OWN(verify_match)
ENGINE_OWN(verify_token)
ENGINE_OWN(verify_tree)
ENGINE_OWN(verify_tree_recursive)
ENGINE_OWN(view_of)
ENGINE_OWN(walker_of)
ENGINE_OWN(weigh)
ENGINE_OWN(where_law)
ENGINE_OWN(with_law)
ENGINE_OWN(with_law_of)
ENGINE_OWN(with_models)
ENGINE_OWN(with_row_at)
ENGINE_OWN(with_chosen)
ENGINE_OWN(with_target_law)
ENGINE_OWN(without_token)
#undef ENGINE_OWN

// What a model holds, as the engine keeps it.
struct token_list {
  std::span<const token_id> held;
  operator std::span<const token_id>() const { return held; }
};
// A model, a processor, a policy, a chooser of random numbers and two callbacks, all the engine's.
class model {
 public:
  using value_type = double;
  explicit model(std::uint64_t seed) : inner_(4, seed) {}
  std::size_t vocab_size() const { return inner_.vocab_size(); }
  std::size_t capacity() const { return inner_.capacity(); }
  std::size_t position() const { return inner_.position(); }
  token_list tokens() const { return {held_}; }
  status rollback(std::size_t n) {
    held_.resize(std::min(n, held_.size()));
    return inner_.rollback(n);
  }
  status extend(std::span<const token_id> t, std::span<double> logits) {
    held_.insert(held_.end(), t.begin(), t.end());
    return inner_.extend(t, logits);
  }
  status extend_tree(std::span<const token_id> t, std::span<const std::uint32_t> parents,
                     std::span<double> logits) {
    nodes_.insert(nodes_.end(), t.begin(), t.end());
    return inner_.extend_tree(t, parents, logits);
  }
  status keep_path(std::span<const std::uint32_t> path) {
    for (const std::uint32_t n : path) held_.push_back(nodes_[n - 1]);
    nodes_.clear();
    return inner_.keep_path(path);
  }

 private:
  specagg::toy_source<double> inner_;
  std::vector<token_id> held_, nodes_;
};
// A row of probabilities, read by operator[].
struct table {
  std::array<double, 4> p;
  double operator[](std::size_t v) const { return p[v]; }
  std::size_t size() const { return p.size(); }
};
struct processor {
  std::size_t tokens = 0;
  void push(token_id) { ++tokens; }
  void pop() { --tokens; }
  template <class T>
  void apply(std::span<T> logits) const {
    logits[0] -= T(tokens % 2);
  }
};
struct policy {
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return (at.q + at.p) * 0.5; };
  }
};
struct combiner : policy {
  static constexpr bool unanimous = true;
};
struct streams {
  specagg::random_streams inner{7};
  bool coin(specagg::moment m, double w, double t) { return inner.coin(m, w, t); }
  template <class W>
  token_id draw(specagg::moment m, const W& weighted) {
    return inner.draw(m, weighted);
  }
};
struct accept_all {
  bool operator()(const specagg::emission&) const { return true; }
};
struct no_watch {
  void operator()(const auto&...) const {}
};

}  // namespace engine

namespace {

constexpr std::size_t V = 4, most = 12;
struct decoding {
  engine::streams chooser;
  std::array<engine::model, 2> m{engine::model(1), engine::model(2)};
  engine::accept_all accept;
  engine::no_watch watch;
};
template <class Decode>
void check_text(Decode&& decode) {
  std::vector<specagg::token_id> buffer(32);
  engine::processor processor;
  specagg::text t{buffer, 0};
  specagg::append(t, 1, processor);
  CHECK(decode(t, processor) == specagg::status::ok);
  CHECK(t.size == 1 + most);
  CHECK(processor.tokens == t.size);
}

}  // namespace

TEST_CASE("decoders of drafts call their own functions, not an engine's of the same names") {
  decoding d;
  check_text([&](specagg::text& t, engine::processor& processor) {
    specagg::speculative_workspace<double> work(V, {.gamma = 3});
    return specagg::speculative_decode(d.m[0], d.m[1], engine::policy{}, d.chooser,
                                       {.text = t,
                                        .most = most,
                                        .work = work,
                                        .processor = processor,
                                        .accept = d.accept,
                                        .after_round = d.watch});
  });
  check_text([&](specagg::text& t, engine::processor& processor) {
    specagg::speculative_workspace<double> work(V, {.gamma = 3});
    return specagg::speculative_decode(d.m[0], d.m[1], engine::policy{}, d.chooser,
                                       {.text = t,
                                        .most = most,
                                        .work = work,
                                        .processor = processor,
                                        .accept = d.accept,
                                        .after_round = d.watch},
                                       specagg::block_verifier{});
  });
  check_text([&](specagg::text& t, engine::processor& processor) {
    const std::vector<specagg::token_id> to{0, 1, 2, 3};
    specagg::vocabulary_map map;
    REQUIRE(specagg::make_vocabulary_map(to, V, map) == specagg::status::ok);
    specagg::mapped_drafter<engine::model> drafter(d.m[0], map, 3);
    specagg::drafting_workspace<double, specagg::normal_form<specagg::mapped_row<double>>> work(
        V, {.gamma = 3});
    return specagg::speculative_decode(drafter, d.m[1], specagg::lossless{}, d.chooser,
                                       {.text = t,
                                        .most = most,
                                        .work = work,
                                        .processor = processor,
                                        .accept = d.accept,
                                        .after_round = d.watch});
  });
}
TEST_CASE("turns, trees and cascades call their own functions, not an engine's of the same names") {
  decoding d;
  check_text([&](specagg::text& t, engine::processor& processor) {
    specagg::collaborative_workspace<double, 2> work(V, {{2, 1}});
    return specagg::collaborative_decode(std::tie(d.m[0], d.m[1]), engine::policy{}, d.chooser,
                                         {.text = t,
                                          .most = most,
                                          .work = work,
                                          .processor = processor,
                                          .accept = d.accept,
                                          .after_round = d.watch});
  });
  check_text([&](specagg::text& t, engine::processor& processor) {
    specagg::collaborative_workspace<double, 2> work(V, {{2, 1}});
    return specagg::collaborative_decode(std::tie(d.m[0], d.m[1]),
                                         specagg::raw_logits<engine::combiner>{}, d.chooser,
                                         {.text = t,
                                          .most = most,
                                          .work = work,
                                          .processor = processor,
                                          .accept = d.accept,
                                          .after_round = d.watch});
  });
  check_text([&](specagg::text& t, engine::processor& processor) {
    const std::array<std::size_t, 2> shape{2, 1};
    specagg::tree_workspace<double> work(V, specagg::tree_options{shape});
    return specagg::tree_decode(d.m[0], d.m[1], engine::policy{}, d.chooser,
                                {.text = t,
                                 .most = most,
                                 .work = work,
                                 .processor = processor,
                                 .accept = d.accept,
                                 .after_round = d.watch});
  });
  check_text([&](specagg::text& t, engine::processor& processor) {
    specagg::cascade_workspace<double> work(V, {});
    return specagg::oracle_decode(
        d.m[0], d.m[1], engine::policy{}, d.chooser,
        {.text = t, .most = most, .work = work, .processor = processor, .accept = d.accept});
  });
  check_text([&](specagg::text& t, engine::processor& processor) {
    specagg::cascade_workspace<double> work(V, {});
    return specagg::sequence_decode(
        d.m[0], d.m[1], 0.5, d.chooser,
        {.text = t, .most = most, .work = work, .processor = processor, .accept = d.accept});
  });
}
TEST_CASE("verifiers call their own functions, with any rows of an engine") {
  using row = specagg::indexed_row<engine::table>;
  constexpr std::size_t V = 4;
  const engine::table q{{0.5, 0.25, 0.125, 0.125}}, p{{0.25, 0.25, 0.25, 0.25}};
  std::array<row, 3> q_rows{row(q), row(q), row(q)}, p_rows{row(p), row(p), row(p)};
  engine::streams chooser;
  std::vector<double> scratch(specagg::verify_scratch(V, 1));
  std::array<specagg::emission, 2> out;
  specagg::for_each_verifier(7, 0, [&](const auto& verifier) {
    const specagg::token_id y = verifier.propose(q_rows[0], 3, 0, chooser, scratch);
    REQUIRE(y != specagg::no_token);
    std::array<specagg::draft_acceptance, 1> acceptances;
    const auto v = verifier.verify(
        specagg::draft{.tokens = {&y, 1}, .start = 3, .acceptances = acceptances}, q_rows, p_rows,
        engine::policy{}, chooser, std::span<specagg::emission>(out), std::span<double>(scratch));
    CHECK(v.why == specagg::status::ok);
    CHECK(v.emitted > 0);
  });
  const auto none = specagg::normalise(specagg::one_hot_row<double>(0, V));
  std::array<specagg::proposal_row<row>, 3> laws{none, none, none};
  std::array<specagg::token_id, 2> tokens;
  const std::array<std::uint32_t, 2> parents{0, 0};
  REQUIRE(specagg::propose_children(specagg::proposal::greedy, q_rows[0], {1, 1, 3}, chooser,
                                    std::span(tokens), std::span(laws).subspan(1), scratch) == 2);
  std::array<specagg::tree_node, 3> nodes;
  std::array<double, V> residual;
  const auto v = specagg::verify_tree(specagg::draft_tree{tokens, parents, 3}, laws, q_rows, p_rows,
                                      engine::policy{}, chooser,
                                      specagg::tree_memory<double>{out, nodes, residual, scratch});
  CHECK(v.why == specagg::status::ok);
  CHECK(v.emitted > 0);
}
