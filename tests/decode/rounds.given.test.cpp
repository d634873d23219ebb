// SPDX-License-Identifier: Apache-2.0
// What decoders are given: models that hold another text, and workspaces that were made for less.
#include <specagg/decode/rounds.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;

namespace {

// A toy model that says which tokens it holds.
struct telling : toy_source<T> {
  std::vector<token_id> held, nodes;
  using toy_source<T>::toy_source;
  std::span<const token_id> tokens() const { return held; }
  status extend(std::span<const token_id> t, std::span<T> logits) {
    const status s = toy_source<T>::extend(t, logits);
    if (s == status::ok) held.insert(held.end(), t.begin(), t.end());
    return s;
  }
  status extend_tree(std::span<const token_id> t, std::span<const std::uint32_t> parents,
                     std::span<T> logits) {
    const status s = toy_source<T>::extend_tree(t, parents, logits);
    if (s == status::ok) nodes.insert(nodes.end(), t.begin(), t.end());
    return s;
  }
  status keep_path(std::span<const std::uint32_t> path) {
    const status s = toy_source<T>::keep_path(path);
    if (s != status::ok) return s;
    for (const std::uint32_t n : path) held.push_back(nodes[n - 1]);
    nodes.clear();
    return s;
  }
  status rollback(std::size_t n) {
    held.resize(std::min(n, held.size()));
    nodes.clear();
    return toy_source<T>::rollback(n);
  }
};

using tokens = std::vector<token_id>;
// What decode(text, models) writes after a prompt.
template <class Models, class Decode>
tokens written(Models& models, const tokens& prompt, Decode decode) {
  tokens buffer = prompt;
  buffer.resize(32);
  text t{buffer, prompt.size()};
  CHECK(decode(t, models) == status::ok);
  buffer.resize(t.size);
  return buffer;
}
template <class Decode>
void check_other_text(Decode decode) {
  // The same length, a longer and a shorter one, and one that has nothing in common with the text
  // before.
  for (const tokens& prompt :
       {tokens{0, 1, 2, 0}, tokens{0, 1, 1, 0, 2, 2, 1, 0, 1, 2}, tokens{0, 1}, tokens{2, 2, 1}}) {
    std::array<telling, 2> used{telling{vocabulary, 1}, telling{vocabulary, 2}}, fresh = used;
    (void)written(used, {0, 1, 0, 0}, decode);
    CHECK(used[0].position() > 4);
    const std::size_t calls = used[1].calls;
    CHECK(written(used, prompt, decode) == written(fresh, prompt, decode));
    CHECK(used[1].calls > calls);
    CHECK(used[0].misuses + used[1].misuses == 0);
  }
}

}  // namespace

TEST_CASE("a model that says what it holds is rolled back to what it has in common with the text") {
  random_streams chooser(5);
  check_other_text([&](text& t, auto& m) {
    speculative_workspace<T> work(vocabulary, {.gamma = 3});
    return speculative_decode(m[0], m[1], ensemble{0.4}, chooser,
                              {.text = t, .most = 9, .work = work});
  });
  check_other_text([&](text& t, auto& m) {
    collaborative_workspace<T, 2> work(vocabulary, {{2, 1}});
    return collaborative_decode(std::tie(m[0], m[1]), ensemble{0.4}, chooser,
                                {.text = t, .most = 9, .work = work});
  });
  check_other_text([&](text& t, auto& m) {
    const std::array<std::size_t, 2> shape{2, 1};
    tree_workspace<T> work(vocabulary, tree_options{shape});
    return tree_decode(m[0], m[1], ensemble{0.4}, chooser, {.text = t, .most = 9, .work = work});
  });
  check_other_text([&](text& t, auto& m) {
    cascade_workspace<T> work(vocabulary, {});
    return oracle_decode(m[0], m[1], ensemble{0.4}, chooser, {.text = t, .most = 9, .work = work});
  });
  check_other_text([&](text& t, auto& m) {
    const std::vector<token_id> to{0, 1, 2};
    vocabulary_map map;
    REQUIRE(make_vocabulary_map(to, vocabulary, map) == status::ok);
    mapped_drafter<telling> drafter(m[0], map, 3);
    drafting_workspace<T, normal_form<mapped_row<T>>> work(vocabulary, {.gamma = 3});
    return speculative_decode(drafter, m[1], lossless(), chooser,
                              {.text = t, .most = 9, .work = work});
  });
}
TEST_CASE(
    "what two texts have in common ends at the first token that differs, or where one of them "
    "ends") {
  tokens text(1100);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = token_id(i * 7919 % 128256);
  for (const std::size_t size : {0u, 1u, 255u, 256u, 257u, 512u, 1100u}) {
    const auto some = std::span<const token_id>(text).first(size);
    CHECK(common_prefix(some, text) == size);
    CHECK(common_prefix(text, some) == size);
    for (std::size_t i = 0; i < size; ++i) {
      tokens other = text;
      other[i] ^= 1;
      REQUIRE(common_prefix(other, some) == i);
      other.back() ^= 2;
      REQUIRE(common_prefix(some, other) == i);
    }
  }
}
TEST_CASE("a workspace that was made for less is refused, and nothing is written") {
  std::array<telling, 2> m{telling(vocabulary, 1), telling(vocabulary, 2)};
  random_streams chooser(5);
  tokens buffer(32);
  text t{buffer, 1};
  const auto speculative = [&](std::size_t gamma, std::size_t made) {
    speculative_workspace<T> work(vocabulary, {.gamma = made});
    work.options.gamma = gamma;
    return speculative_round(m[0], m[1], ensemble(), chooser, {.text = t, .most = 1, .work = work})
        .why;
  };
  CHECK(speculative(8, 2) == status::invalid_parameter);
  const auto turns = [&](std::array<std::size_t, 2> gamma, std::size_t proposed) {
    collaborative_workspace<T, 2> work(vocabulary, {.gamma = {2, 1}, .proposed = 1});
    work.options = {.gamma = gamma, .proposed = proposed};
    return collaborative_turn(std::tie(m[0], m[1]), ensemble(), chooser,
                              {.text = t, .most = 1, .work = work})
        .why;
  };
  CHECK(turns({3, 1}, 1) == status::invalid_parameter);
  CHECK(turns({1, 1}, 2) == status::invalid_parameter);
  CHECK(turns({std::size_t(-1), 2}, 0) == status::invalid_parameter);
  const auto bild = [&](std::size_t longest_run, std::size_t made) {
    cascade_workspace<T> work(vocabulary, {.longest_run = made});
    work.options.longest_run = longest_run;
    return bild_round(m[0], m[1], {}, {.text = t, .most = 1, .work = work}).why;
  };
  CHECK(bild(8, 2) == status::invalid_parameter);
  const std::array<std::size_t, 2> shape{2, 2};
  const auto tree = [&](std::span<const std::size_t> made, bool by_model) {
    tree_workspace<T> work(vocabulary, {.shape = made}, by_model);
    work.options.shape = shape;
    return tree_round(m[0], m[1], ensemble(), chooser, {.text = t, .most = 1, .work = work}).why;
  };
  CHECK(tree(std::span(shape).first(1), true) == status::invalid_parameter);
  CHECK(tree(shape, false) == status::invalid_parameter);  // made for a tree without a draft model
  CHECK(t.size == 1);
  CHECK(m[0].calls + m[1].calls == 0);
  CHECK(speculative(2, 8) == status::ok);
  CHECK(turns({2, 1}, 1) == status::ok);
  CHECK(bild(2, 8) == status::ok);
  CHECK(tree(shape, true) == status::ok);
}
