// SPDX-License-Identifier: Apache-2.0
// The shortest call of every decoder: what is left out is no processor, every token is accepted,
// and nobody looks at the rounds.
#include <specagg/decode/rounds.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = float;

namespace {

constexpr std::size_t V = 40, most = 64, prompt = 3;
using tokens = std::vector<token_id>;

// What `decode` appends: the tokens, and that its status is ok.
template <class Decode>
tokens appended(Decode&& decode) {
  std::array<toy_source<T>, 2> m{toy_source<T>(V, 1), toy_source<T>(V, 2)};
  random_streams chooser(11);
  tokens buffer(prompt + most, 7);
  text t{buffer, prompt};
  REQUIRE(decode(t, m, chooser) == status::ok);
  return {buffer.begin() + prompt, buffer.begin() + std::ptrdiff_t(t.size)};
}

// The optional members of a request. Counts the calls of each.
struct written_out {
  std::size_t pushed = 0, accepted = 0, rounds = 0;
  struct counting {
    written_out* to;
    void push(token_id) { ++to->pushed; }
    void pop() { --to->pushed; }
    void apply(std::span<T>) {}
  } processor{this};
  auto accept() {
    return [this](const emission&) { return ++accepted > 0; };
  }
  auto after_round() {
    return [this](const auto&, const auto&) { ++rounds; };
  }
};

// The shortest call writes what the whole one writes.
template <class Shortest, class Whole>
void check_same(const char* name, Shortest&& shortest, Whole&& whole) {
  INFO(name);
  written_out calls;
  const tokens all =
      appended([&](text& t, auto& m, auto& chooser) { return whole(t, m, chooser, calls); });
  CHECK(all.size() == most);
  CHECK(calls.pushed == most);
  CHECK(calls.accepted == most);
  CHECK(calls.rounds > 0);
  CHECK(appended(shortest) == all);
}

}  // namespace

TEST_CASE(
    "the shortest call of a decoder with drafts writes the same tokens as the one with all "
    "arguments") {
  const decode_options options;
  speculative_workspace<T> work(V, options);
  check_same(
      "speculative_decode",
      [&](text& t, auto& m, auto& chooser) {
        return speculative_decode(m[0], m[1], lossless{}, chooser,
                                  {.text = t, .most = most, .work = work});
      },
      [&](text& t, auto& m, auto& chooser, auto& calls) {
        return speculative_decode(m[0], m[1], lossless{}, chooser,
                                  {.text = t,
                                   .most = most,
                                   .work = work,
                                   .processor = calls.processor,
                                   .accept = calls.accept(),
                                   .after_round = calls.after_round()});
      });

  const std::array<std::size_t, 3> shape{3, 2, 1};
  const tree_options tree{shape};
  tree_workspace<T> tree_work(V, tree);
  check_same(
      "tree_decode",
      [&](text& t, auto& m, auto& chooser) {
        return tree_decode(m[0], m[1], lossless{}, chooser,
                           {.text = t, .most = most, .work = tree_work});
      },
      [&](text& t, auto& m, auto& chooser, auto& calls) {
        return tree_decode(m[0], m[1], lossless{}, chooser,
                           {.text = t,
                            .most = most,
                            .work = tree_work,
                            .processor = calls.processor,
                            .accept = calls.accept(),
                            .after_round = calls.after_round()});
      });

  const collaborative_options<2> turns{{5, 1}};
  collaborative_workspace<T, 2> turns_work(V, turns);
  check_same(
      "collaborative_decode",
      [&](text& t, auto& m, auto& chooser) {
        return collaborative_decode(std::tie(m[0], m[1]), ensemble{0.3}, chooser,
                                    {.text = t, .most = most, .work = turns_work});
      },
      [&](text& t, auto& m, auto& chooser, auto& calls) {
        return collaborative_decode(std::tie(m[0], m[1]), ensemble{0.3}, chooser,
                                    {.text = t,
                                     .most = most,
                                     .work = turns_work,
                                     .processor = calls.processor,
                                     .accept = calls.accept(),
                                     .after_round = calls.after_round()});
      });
}
TEST_CASE("the shortest call of a cascade writes the same tokens as the one with all arguments") {
  const cascade_options cascade;
  cascade_workspace<T> cascade_work(V, cascade);
  check_same(
      "sequential_decode",
      [&](text& t, auto& m, auto& chooser) {
        return sequential_decode(m[0], m[1], chow{0.3}, chooser,
                                 {.text = t, .most = most, .work = cascade_work});
      },
      [&](text& t, auto& m, auto& chooser, auto& calls) {
        return sequential_decode(m[0], m[1], chow{0.3}, chooser,
                                 {.text = t,
                                  .most = most,
                                  .work = cascade_work,
                                  .processor = calls.processor,
                                  .accept = calls.accept(),
                                  .after_round = calls.after_round()});
      });
  check_same(
      "oracle_decode",
      [&](text& t, auto& m, auto& chooser) {
        return oracle_decode(m[0], m[1], opt{0.3}, chooser,
                             {.text = t, .most = most, .work = cascade_work});
      },
      [&](text& t, auto& m, auto& chooser, auto& calls) {
        return oracle_decode(m[0], m[1], opt{0.3}, chooser,
                             {.text = t,
                              .most = most,
                              .work = cascade_work,
                              .processor = calls.processor,
                              .accept = calls.accept(),
                              .after_round = calls.after_round()});
      });
}
TEST_CASE("the shortest call of a cascade of responses or runs writes the same tokens, too") {
  const cascade_options cascade;
  cascade_workspace<T> cascade_work(V, cascade);
  check_same(
      "sequence_decode",
      [&](text& t, auto& m, auto& chooser) {
        return sequence_decode(m[0], m[1], 0.3, chooser,
                               {.text = t, .most = most, .work = cascade_work});
      },
      [&](text& t, auto& m, auto& chooser, auto& calls) {
        return sequence_decode(m[0], m[1], 0.3, chooser,
                               {.text = t,
                                .most = most,
                                .work = cascade_work,
                                .processor = calls.processor,
                                .accept = calls.accept(),
                                .after_round = calls.after_round()});
      });
  check_same(
      "bild_decode",
      [&](text& t, auto& m, auto&) {
        return bild_decode(m[0], m[1], bild_thresholds{},
                           {.text = t, .most = most, .work = cascade_work});
      },
      [&](text& t, auto& m, auto&, auto& calls) {
        return bild_decode(m[0], m[1], bild_thresholds{},
                           {.text = t,
                            .most = most,
                            .work = cascade_work,
                            .processor = calls.processor,
                            .accept = calls.accept(),
                            .after_round = calls.after_round()});
      });
}
TEST_CASE("the shortest round of each decoder needs three members of its request") {
  toy_source<T> q(V, 1), p(V, 2);
  random_streams chooser(11);
  tokens buffer(prompt + most, 7);
  text t{buffer, prompt};
  const decode_options options;
  speculative_workspace<T> work(V, options);
  CHECK(speculative_round(q, p, lossless{}, chooser, {.text = t, .most = most, .work = work})
            .emitted > 0);
  const std::array<std::size_t, 2> shape{2, 2};
  const tree_options tree{shape};
  tree_workspace<T> tree_work(V, tree);
  CHECK(
      tree_round(q, p, lossless{}, chooser, {.text = t, .most = most, .work = tree_work}).emitted >
      0);
  const cascade_options cascade;
  cascade_workspace<T> cascade_work(V, cascade);
  CHECK(bild_round(q, p, {}, {.text = t, .most = most, .work = cascade_work}).emitted > 0);
  const collaborative_options<2> turns{{3, 1}};
  collaborative_workspace<T, 2> turns_work(V, turns);
  CHECK(collaborative_turn(std::tie(q, p), ensemble{0.3}, chooser,
                           {.text = t, .most = most, .work = turns_work})
            .drafted == 3);
}
TEST_CASE("models without a vocabulary are refused by every decoder") {
  toy_source<T> q(0, 1), p(0, 2);
  random_streams chooser(11);
  tokens buffer(prompt + most, 0);
  text t{buffer, prompt};
  std::vector<status> seen;
  const decode_options options;
  speculative_workspace<T> work(0, options);
  seen.push_back(
      speculative_decode(q, p, lossless{}, chooser, {.text = t, .most = most, .work = work}));
  const std::array<std::size_t, 2> shape{2, 2};
  const tree_options tree{shape};
  tree_workspace<T> tree_work(0, tree);
  seen.push_back(
      tree_decode(q, p, lossless{}, chooser, {.text = t, .most = most, .work = tree_work}));
  const collaborative_options<2> turns{{3, 1}};
  collaborative_workspace<T, 2> turns_work(0, turns);
  seen.push_back(collaborative_decode(std::tie(q, p), ensemble{}, chooser,
                                      {.text = t, .most = most, .work = turns_work}));
  const cascade_options cascade;
  cascade_workspace<T> cascade_work(0, cascade);
  seen.push_back(
      sequential_decode(q, p, chow{}, chooser, {.text = t, .most = most, .work = cascade_work}));
  seen.push_back(
      oracle_decode(q, p, opt{}, chooser, {.text = t, .most = most, .work = cascade_work}));
  seen.push_back(
      sequence_decode(q, p, 0.3, chooser, {.text = t, .most = most, .work = cascade_work}));
  seen.push_back(bild_decode(q, p, {}, {.text = t, .most = most, .work = cascade_work}));
  CHECK(seen == std::vector<status>(7, status::invalid_parameter));
  CHECK(t.size == prompt);
}
TEST_CASE("a small model may write any number of tokens in a row") {
  constexpr std::size_t unbounded = std::size_t(-1);
  const cascade_options cascade{.longest_run = unbounded}, bounded{.longest_run = most};
  cascade_workspace<T> work(V, cascade), long_enough(V, bounded);
  const auto by = [&](const auto& decode) {
    CHECK(appended([&](auto&... args) { return decode(work, args...); }) ==
          appended([&](auto&... args) { return decode(long_enough, args...); }));
  };
  by([&](auto& memory, text& t, auto& m, auto& chooser) {
    return sequential_decode(m[0], m[1], chow{0.3}, chooser,
                             {.text = t, .most = most, .work = memory});
  });
  by([&](auto& memory, text& t, auto& m, auto& chooser) {
    return oracle_decode(m[0], m[1], opt{0.3}, chooser, {.text = t, .most = most, .work = memory});
  });
  by([&](auto& memory, text& t, auto& m, auto& chooser) {
    return sequence_decode(m[0], m[1], 0.3, chooser, {.text = t, .most = most, .work = memory});
  });
  // BiLD scores a whole run at once: it needs memory for it
  toy_source<T> q(V, 1), p(V, 2);
  tokens buffer(prompt + most, 7);
  text t{buffer, prompt};
  CHECK(bild_decode(q, p, {}, {.text = t, .most = most, .work = work}) ==
        status::invalid_parameter);
}
TEST_CASE("a tree has at most as many nodes as its options say, whether it grows or not") {
  toy_source<T> q(V, 1), p(V, 2);
  random_streams chooser(11);
  tokens buffer(prompt + most, 7);
  text t{buffer, prompt};
  const std::array<std::size_t, 3> shape{3, 2, 1};
  CHECK(tree_options{shape}.nodes() == 15);
  const tree_options five{.shape = shape, .most_nodes = 5};
  CHECK(five.nodes() == 5);
  tree_workspace<T> work(V, five);
  CHECK(tree_round(q, p, lossless{}, chooser, {.text = t, .most = most, .work = work}).drafted ==
        5);
  work.options.most_nodes = 15;
  CHECK(tree_round(q, p, lossless{}, chooser, {.text = t, .most = most, .work = work}).why ==
        status::invalid_parameter);
  work.options = five;
  plan::tree_growth growth(plan::draft_costs{.draft = 0, .verify = 0});
  CHECK(tree_round(q, p, lossless{}, chooser, {.text = t, .most = most, .work = work}, traversal{},
                   growth)
            .drafted == 5);
  work.options.most_nodes = 15;
  CHECK(tree_round(q, p, lossless{}, chooser, {.text = t, .most = most, .work = work}, traversal{},
                   growth)
            .why == status::invalid_parameter);
}
