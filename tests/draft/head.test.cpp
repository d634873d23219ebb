// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/head.hpp>

#include <array>
#include <random>

#include "decode/toy_text.hpp"
#include "draft/any_source.hpp"

using namespace specagg;

namespace {

using tokens = std::vector<token_id>;
constexpr std::size_t V = 4, width = 2;

// A state is a number that stands for the whole text before it, and the last token.
double next_state(double state, token_id token) {
  return double(philox({std::uint32_t(state), std::uint32_t(token)}, 17)[0]);
}

// A toy model with hidden states. last_call_alone: only those of the rows of its last call, as in
// llama.cpp.
struct toy_with_states : toy_source<double> {
  bool last_call_alone = false;
  tokens read;                            // the context
  std::vector<double> states;             // width each
  std::size_t begin = 0, tree_nodes = 0;  // the first position that has one
  std::vector<std::pair<token_id, std::uint32_t>> tree;
  using toy_source<double>::toy_source;

  std::size_t hidden_size() const { return width; }
  std::span<const double> hidden(std::size_t i) const {
    if (i < begin || i >= read.size()) return {};
    return std::span(states).subspan(i * width, width);
  }
  void know(token_id t) {
    states.push_back(next_state(read.empty() ? 0 : states[states.size() - width], t));
    states.push_back(t);
    read.push_back(t);
  }
  void forget(std::size_t n) {
    read.resize(std::min(n, read.size()));
    states.resize(read.size() * width);
  }
  status extend(std::span<const token_id> t, std::span<double> logits) {
    const status s = toy_source<double>::extend(t, logits);
    if (s != status::ok) return s;
    for (const token_id one : t) know(one);
    if (last_call_alone) begin = read.size() - logits.size() / V;
    return s;
  }
  status rollback(std::size_t n) {
    tree.clear();
    forget(n);
    return toy_source<double>::rollback(n);
  }
  status extend_tree(std::span<const token_id> t, std::span<const std::uint32_t> parents,
                     std::span<double> logits) {
    for (std::size_t i = 0; i < t.size(); ++i) tree.emplace_back(t[i], parents[i]);
    return toy_source<double>::extend_tree(t, parents, logits);
  }
  status keep_path(std::span<const std::uint32_t> nodes) {
    const status s = toy_source<double>::keep_path(nodes);
    if (s == status::ok)
      for (const std::uint32_t n : nodes) know(tree[n - 1].first);
    tree.clear();
    return s;
  }
};
static_assert(HiddenSource<toy_with_states> && TreeSource<toy_with_states>);
static_assert(!HiddenSource<toy_source<double>>);

// Three tokens of the target's four. A row depends on all states and tokens that the head has read,
// so every pair that was read with another state, or not at all, shows.
struct toy_head {
  using value_type = double;
  double error = 0;  // of its own states
  std::size_t most = 1000;
  std::vector<std::uint64_t> keys = {};
  std::vector<double> own = {};
  int misuses = 0, pairs_read = 0;

  std::size_t vocab_size() const { return 3; }
  std::size_t hidden_size() const { return width; }
  std::size_t capacity() const { return most; }
  std::size_t position() const { return keys.size(); }
  std::span<const double> hidden(std::size_t i) const {
    return i < keys.size() ? std::span(own).subspan(i * width, width) : std::span<const double>();
  }
  status rollback(std::size_t n) {
    misuses += n > keys.size();
    keys.resize(std::min(n, keys.size()));
    own.resize(keys.size() * width);
    return status::ok;
  }
  status extend(std::span<const token_id> t, std::span<const double> states,
                std::span<double> logits) {
    const std::size_t rows = logits.size() / 3;
    if (states.size() != t.size() * width || rows > t.size() || logits.size() % 3 != 0) {
      ++misuses;
      return status::ok;
    }
    for (std::size_t i = 0; i < t.size(); ++i, ++pairs_read) {
      const double state = states[i * width];
      keys.push_back(key_after(keys.empty() ? 3 : keys.back(), state, t[i]));
      own.push_back(next_state(state, t[i]) + error);
      own.push_back(t[i]);
      if (const std::size_t after = t.size() - i; after <= rows)
        write_row(keys.back(), logits.subspan((rows - after) * 3, 3));
    }
    return status::ok;
  }
  static std::uint64_t key_after(std::uint64_t before, double state, token_id token) {
    const auto r = philox(
        {std::uint32_t(state), std::uint32_t(std::fmod(state, 1) * 0x1p20), std::uint32_t(token)},
        before);
    return std::uint64_t(r[1]) << 32 | r[0];
  }
  static void write_row(std::uint64_t key, std::span<double> row) {
    for (std::size_t d = 0; d < 3; ++d)
      row[d] = 3 * double(philox({std::uint32_t(d)}, key)[0]) * 0x1p-32;
  }
};
static_assert(DraftHead<toy_head> && !TreeDraftHead<toy_head>);
static_assert(LogitSource<head_source<toy_head, toy_with_states>>);
static_assert(!TreeSource<head_source<toy_head, toy_with_states>>);

// The same with trees.
struct toy_tree_head : toy_head {
  struct node {
    std::uint64_t key;
    std::array<double, width> own;
    std::uint32_t parent;
  };
  std::vector<node> tree = {};
  int calls = 0;

  std::size_t position() const { return keys.size() + tree.size(); }
  std::span<const double> node_hidden(std::uint32_t n) const {
    return n > 0 && n <= tree.size() ? std::span<const double>(tree[n - 1].own)
                                     : std::span<const double>();
  }
  status rollback(std::size_t n) {
    misuses += n > position();
    tree.clear();
    return toy_head::rollback(std::min(n, keys.size()));
  }
  status extend(std::span<const token_id> t, std::span<const double> states,
                std::span<double> logits) {
    misuses += !tree.empty();
    return toy_head::extend(t, states, logits);
  }
  status extend_tree(std::span<const token_id> t, std::span<const std::uint32_t> parents,
                     std::span<const double> states, std::span<double> logits) {
    const std::size_t rows = logits.size() / 3;
    if (states.size() != t.size() * width || rows > t.size() || parents.size() != t.size())
      ++misuses;
    ++calls;
    for (std::size_t i = 0; i < t.size(); ++i, ++pairs_read) {
      const double state = states[i * width];
      misuses += parents[i] > tree.size();
      const std::uint64_t before = parents[i] > 0 ? tree[parents[i] - 1].key
                                   : keys.empty() ? 3
                                                  : keys.back();
      tree.push_back({key_after(before, state, t[i]),
                      {next_state(state, t[i]) + error, double(t[i])},
                      parents[i]});
      if (const std::size_t after = t.size() - i; after <= rows)
        write_row(tree.back().key, logits.subspan((rows - after) * 3, 3));
    }
    return status::ok;
  }
  void cut_tree(std::size_t n) {
    if (n < tree.size()) tree.resize(n);
  }
  status keep_path(std::span<const std::uint32_t> nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i] == 0 || nodes[i] > tree.size() ||
          tree[nodes[i] - 1].parent != (i > 0 ? nodes[i - 1] : 0))
        return status::invalid_parameter;
    for (const std::uint32_t n : nodes) {
      keys.push_back(tree[n - 1].key);
      own.insert(own.end(), tree[n - 1].own.begin(), tree[n - 1].own.end());
    }
    tree.clear();
    return status::ok;
  }
};
static_assert(TreeDraftHead<toy_tree_head>);
static_assert(TreeSource<head_source<toy_tree_head, toy_with_states>>);

// By definition: the head's logits after a text of which the target knows the states of the first
// `known` tokens.
std::vector<double> by_hand(const toy_head& like, const tokens& text, std::size_t known) {
  toy_head head{like.error};
  std::vector<double> logits(3);
  double state = 0;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (i < known) {
      state = 0;
      for (std::size_t k = 0; k <= i; ++k) state = next_state(state, text[k]);
    } else {
      state = head.hidden(i - 1)[0];
    }
    const double both[] = {state, 0};
    REQUIRE(head.extend(std::span(text).subspan(i + 1, 1), both, logits) == status::ok);
  }
  return logits;
}

vocabulary_map reduced() {
  vocabulary_map map;
  (void)make_vocabulary_map(tokens{0, 2, 3}, V, map);
  return map;
}
const vocabulary_map d2t = reduced();

// The draft's probabilities, over the target's tokens.
std::vector<double> q_by_hand(const toy_head& like, const tokens& text, std::size_t known) {
  const auto logits = by_hand(like, text, known);
  std::vector<double> q(V);
  double sum = 0;
  for (const double l : logits) sum += std::exp(l);
  for (std::size_t d = 0; d < 3; ++d)
    q[std::size_t(d2t.to(token_id(d)))] = std::exp(logits[d]) / sum;
  return q;
}
std::vector<double> law_by_hand(const auto& policy, const toy_head& like, const tokens& text,
                                std::size_t known) {
  return target_law(policy, as_row(q_by_hand(like, text, known)),
                    as_row(probabilities(toy_source<double>(V, 2), text)));
}

struct setting {
  double error = 0;
  bool last_call_alone = false, prefill = true;
};
// The joint law of texts of three tokens after the tokens 0, 1, against the law of q by hand with
// all states known.
template <class Head = toy_head, class Policy, class Run>
double worst_error(const Policy& policy, const setting& s, std::size_t& accepted, Run run) {
  const auto law = exact_law([&](exhaustive_chooser& every) {
    either chooser(every);
    toy_with_states target(V, 2);
    target.last_call_alone = s.last_call_alone;
    Head own;
    own.error = s.error;
    head_source head(own, target);
    tokens buffer(16);
    buffer[1] = 1;
    text t{buffer, 2};
    std::vector<double> row(V);
    if (s.prefill) REQUIRE(target.extend(t.tokens.first(1), row) == status::ok);
    const auto watch = [&](const auto& r, const auto&) { accepted += r.accepted; };
    tree_source_of<toy_with_states> any_target(target);
    if constexpr (TreeSource<decltype(head)>) {
      tree_source_of<decltype(head)> any_head(head);
      REQUIRE(run(static_cast<any_tree_source&>(any_head), any_target, t, chooser, watch) ==
              status::ok);
    } else {
      source_of<any_source, decltype(head)> any_head(head);
      REQUIRE(run(static_cast<any_source&>(any_head), any_target, t, chooser, watch) == status::ok);
    }
    CHECK(target.misuses + std::size_t(own.misuses) == 0);
    return tokens(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
  });
  // Token 1 of the prompt comes first, and is certain.
  const toy_head like{s.error};
  return worst_joint_error(law, 4, no_token, [&](const tokens& c) {
    return c.size() == 1 ? std::vector<double>{0, 1, 0, 0} : law_by_hand(policy, like, c, c.size());
  });
}

template <class Policy>
auto sparse(std::size_t gamma, const Policy& policy, const any_verifier& verifier = {}) {
  return [=](any_source& head, any_source& target, text& t, either& chooser, const auto& watch) {
    mapped_drafter drafter(head, d2t, gamma);
    drafting_workspace<double, normal_form<mapped_row<double>>> work(V, {.gamma = gamma});
    return speculative_decode(drafter, target, policy, chooser,
                              {.text = t, .most = 3, .work = work, .after_round = watch}, verifier);
  };
}
template <class Policy>
auto dense(std::size_t gamma, const Policy& policy, const any_verifier& verifier = {}) {
  return [=](any_source& head, any_source& target, text& t, either& chooser, const auto& watch) {
    mapped_source mapped(head, d2t);
    speculative_workspace<double> work(V, {.gamma = gamma});
    return speculative_decode(mapped, target, policy, chooser,
                              {.text = t, .most = 3, .work = work, .after_round = watch}, verifier);
  };
}

}  // namespace

TEST_CASE(
    "a head's rows are those of the target's states as far as it knows them, and of its own after "
    "them") {
  std::mt19937 random(3);
  for (const double error : {0., 0.5}) {
    toy_with_states target(V, 2);
    toy_head own{error};
    head_source head(own, target);
    const auto some = [&](std::size_t n) {
      tokens t(n);
      for (token_id& one : t) one = token_id(random() % V);
      return t;
    };
    tokens text = some(2);
    std::size_t rows_seen = 0;
    for (int step = 0; step < 600; ++step) {
      // The target reads a part of the text, as a decoder would let it.
      if (random() % 2 && target.position() < text.size()) {
        const std::size_t n = 1 + random() % (text.size() - target.position());
        REQUIRE(target.extend(std::span(text).subspan(target.position(), n), {}) == status::ok);
      }
      const std::size_t n = text.size() - head.position(),
                        wanted = std::min<std::size_t>(n, random() % 4);
      std::vector<double> logits(wanted * 3);
      const status s = head.extend(std::span(text).subspan(head.position()), logits);
      if (wanted == 0) CHECK(s == status::ok);
      else if (target.position() == 0 || text.size() < wanted + 1) CHECK(s == status::no_draft);
      else REQUIRE(s == status::ok);
      if (s == status::ok) {
        CHECK(head.position() == text.size());
        for (std::size_t j = 0; j < wanted; ++j, ++rows_seen) {
          const tokens before(text.begin(), text.end() - std::ptrdiff_t(wanted - 1 - j));
          const auto row = std::span(logits).subspan(3 * j, 3);
          CHECK(by_hand(own, before, target.position()) ==
                std::vector<double>(row.begin(), row.end()));
        }
      } else {
        CHECK(head.position() == text.size() - n);
      }
      if (random() % 3 == 0) {  // a rejection
        const std::size_t kept = random() % text.size();
        text.resize(kept);
        if (target.position() > kept) REQUIRE(target.rollback(kept) == status::ok);
        if (head.position() > kept) REQUIRE(head.rollback(kept) == status::ok);
      }
      const tokens more = some(1 + random() % (random() % 20 == 0 ? 70 : 4));
      text.insert(text.end(), more.begin(), more.end());
      if (text.size() > 200) {
        text.resize(2);
        (void)target.rollback(0);
        (void)head.rollback(0);
      }
    }
    CHECK(rows_seen > 200);
    CHECK(own.misuses == 0);
  }
}
TEST_CASE("a pair is read once with the head's own state and once with the target's") {
  toy_with_states target(V, 2);
  toy_head own{0.5};
  head_source head(own, target);
  const tokens text{0, 1, 2, 3, 0, 1};
  std::vector<double> row(3), other(3);
  REQUIRE(target.extend(std::span(text).first(2), {}) == status::ok);
  REQUIRE(head.extend(std::span(text).first(3), row) == status::ok);  // pairs 0, 1: the target's
  CHECK(own.pairs_read == 2);
  REQUIRE(head.extend(std::span(text).subspan(3, 1), row) == status::ok);
  REQUIRE(head.extend(std::span(text).subspan(4, 1), row) == status::ok);  // pairs 2, 3: its own
  CHECK(own.pairs_read == 4);
  REQUIRE(target.extend(std::span(text).subspan(2, 3), {}) == status::ok);
  REQUIRE(head.extend(std::span(text).subspan(5), other) == status::ok);  // 2, 3 again, and 4
  CHECK(own.pairs_read == 7);
  CHECK(other == by_hand(own, text, 5));
}
TEST_CASE("a prompt is read when it is given, as far as the target has read it") {
  toy_with_states target(V, 2);
  toy_head own{0.5};
  head_source head(own, target);
  const tokens text{0, 1, 2, 3, 0, 1};
  const auto part = [&](std::size_t from, std::size_t n) {
    return std::span(text).subspan(from, n);
  };
  std::vector<double> row(3);
  REQUIRE(head.extend(part(0, 2), {}) == status::ok);
  CHECK(own.pairs_read == 0);
  REQUIRE(target.extend(part(0, 5), {}) == status::ok);
  REQUIRE(head.extend(part(2, 3), {}) == status::ok);
  CHECK(own.pairs_read == 4);
  REQUIRE(head.extend(part(5, 1), row) == status::ok);
  CHECK(own.pairs_read == 5);  // each once
  CHECK(std::vector(row) == by_hand(own, text, 5));
  // Pairs with the head's own states stay until the target has read more.
  REQUIRE(head.extend(part(0, 1), row) == status::ok);
  REQUIRE(head.extend(part(1, 1), {}) == status::ok);
  CHECK(own.position() == 6);
  CHECK(own.pairs_read == 6);
  CHECK(own.misuses == 0);
}
TEST_CASE(
    "texts drafted by a head have exactly the target's joint law, with any states of the head's "
    "own") {
  for (const double error : {0., 0.5}) {
    std::size_t accepted = 0;
    const setting s{.error = error};
    CHECK(worst_error(lossless{}, s, accepted, sparse(1, lossless{})) < 1e-12);
    CHECK(worst_error(lossless{}, s, accepted, sparse(2, lossless{})) < 1e-12);
    CHECK(worst_error(lossless{}, s, accepted,
                      sparse(2, lossless{}, any_verifier(block_verifier{}))) < 1e-12);
    CHECK(worst_error(lossless{}, s, accepted, dense(2, lossless{})) < 1e-12);
    CHECK(accepted > 100);
  }
}
TEST_CASE(
    "texts of a cascade and of an ensemble with a head have exactly the law of its rows and the "
    "target's") {
  std::size_t accepted = 0;
  // Drafts of one token are drawn with the target's states alone, and so is q where a draft ends.
  CHECK(worst_error(policies(token_v3{0.3}), {.error = 0.5}, accepted,
                    sparse(1, policies(token_v3{0.3}))) < 1e-12);
  CHECK(worst_error(policies(ensemble{0.4}), {.error = 0.5}, accepted,
                    dense(1, policies(ensemble{0.4}))) < 1e-12);
  // A head whose own states are the target's has one row for a text.
  CHECK(worst_error(policies(token_v3{0.3}), {}, accepted, sparse(2, policies(token_v3{0.3}))) <
        1e-12);
  CHECK(worst_error(policies(token_v3{0.3}), {}, accepted,
                    dense(2, policies(token_v3{0.3}), any_verifier(block_verifier{}))) < 1e-12);
  CHECK(worst_error(policies(opt{0.05}), {}, accepted, sparse(2, policies(opt{0.05}))) < 1e-12);
  CHECK(accepted > 100);
}
TEST_CASE(
    "a round of a cascade has exactly the law of the head's rows at the beginning of the round") {
  const policies policy = token_v3{0.3};
  const toy_head like{0.5};
  const auto law = exact_law([&](exhaustive_chooser& every) {
    either chooser(every);
    const any_verifier verifier;
    toy_with_states target(V, 2);
    toy_head own{0.5};
    head_source head(own, target);
    tokens buffer{0, 1, 3, 2, 0, 0, 0, 0};
    text t{buffer, 4};
    REQUIRE(target.extend(t.tokens.first(3), {}) == status::ok);
    source_of<any_source, decltype(head)> any_head(head);
    source_of<any_source, toy_with_states> any_target(target);
    mapped_drafter drafter(static_cast<any_source&>(any_head), d2t, 2);
    drafting_workspace<double, normal_form<mapped_row<double>>> work(V, {.gamma = 2});
    const auto r = speculative_round(drafter, static_cast<any_source&>(any_target), policy, chooser,
                                     {.text = t, .most = 3, .work = work}, verifier);
    REQUIRE(r.why == status::ok);
    return tokens(buffer.begin() + 4, buffer.begin() + std::ptrdiff_t(t.size));
  });
  // after what was emitted, where the round emitted more
  std::map<tokens, std::vector<double>> next;
  for (const auto& [emitted, probability] : law)
    for (std::size_t n = 0; n < emitted.size(); ++n) {
      auto& after = next[tokens(emitted.begin(), emitted.begin() + std::ptrdiff_t(n))];
      after.resize(V);
      after[std::size_t(emitted[n])] += probability;
    }
  double worst = 0;
  bool own_states_matter = false;
  for (const auto& [emitted, mass] : next) {
    tokens all{0, 1, 3, 2};
    all.insert(all.end(), emitted.begin(), emitted.end());
    // The row after both drafted tokens is asked for when the target has read them.
    const std::size_t known = emitted.size() == 2 ? all.size() : 3;
    const auto due = law_by_hand(policy, like, all, known);
    own_states_matter = own_states_matter ||
                        (emitted.size() == 1 && due != law_by_hand(policy, like, all, all.size()));
    double sum = 0;
    for (const double m : mass) sum += m;
    for (std::size_t v = 0; v < V; ++v) worst = std::max(worst, std::fabs(mass[v] / sum - due[v]));
  }
  CHECK(next.size() > 4);
  CHECK(own_states_matter);
  CHECK(worst < 1e-12);
}
TEST_CASE(
    "a head drafts trees, takes turns, and follows a target that has the states of its last call "
    "alone") {
  std::size_t accepted = 0;
  const auto tree = [](const auto& policy) {
    return [=](auto& head, any_tree_source& target, text& t, either& chooser, const auto& watch) {
      mapped_source mapped(head, d2t);
      const std::vector<std::size_t> shape{2, 1};
      tree_workspace<double> work(V, tree_options{shape});
      return tree_decode(mapped, target, policy, chooser,
                         {.text = t, .most = 3, .work = work, .after_round = watch});
    };
  };
  const policies target_alone = lossless{};
  CHECK(worst_error(target_alone, {.error = 0.5}, accepted, tree(target_alone)) < 1e-12);
  CHECK(worst_error(policies(token_v3{0.3}), {}, accepted, tree(policies(token_v3{0.3}))) < 1e-12);
  CHECK(worst_error<toy_tree_head>(lossless{}, {.error = 0.5}, accepted, tree(lossless{})) < 1e-12);
  CHECK(worst_error<toy_tree_head>(policies(token_v3{0.3}), {}, accepted,
                                   tree(policies(token_v3{0.3}))) < 1e-12);
  const auto turns = [](any_source& head, any_source& target, text& t, either& chooser,
                        const auto&) {
    mapped_source mapped(head, d2t);
    collaborative_workspace<double, 2> work(V, collaborative_options<2>{{2, 1}});
    return collaborative_decode(std::tie(mapped, target), policies(ensemble{0.4}), chooser,
                                {.text = t, .most = 3, .work = work});
  };
  CHECK(worst_error(policies(ensemble{0.4}), {}, accepted, turns) < 1e-12);
  accepted = 0;
  const setting llama_cpp{.error = 0.5, .last_call_alone = true, .prefill = false};
  CHECK(worst_error(lossless{}, llama_cpp, accepted, sparse(2, lossless{})) < 1e-12);
  CHECK(worst_error<toy_tree_head>(lossless{}, llama_cpp, accepted, tree(lossless{})) < 1e-12);
  CHECK(accepted > 20);
}
namespace {
template <class Source>
void read_to(Source& source, const tokens& text, std::size_t end) {
  const auto part = std::span(text).subspan(source.position(), end - source.position());
  REQUIRE(source.extend(part, {}) == status::ok);
}
// The head's context may end before the text does: then the tree begins with the rest of it.
template <class Head>
void read_some(std::mt19937& random, Head& head, const tokens& text) {
  if (head.position() > text.size() - 1) REQUIRE(head.rollback(text.size() - 1) == status::ok);
  const std::size_t context = head.position() + random() % (text.size() - head.position());
  if (context > head.position()) read_to(head, text, context);
  if (head.position() == 0) read_to(head, text, 1);
}
// A tree that begins with what the head has not read of a text, a chain.
struct random_tree {
  std::size_t chain;
  std::vector<tokens> paths;  // of the nodes
  std::vector<std::uint32_t> parents;
  tokens text;
  random_tree(const tokens& of, std::size_t begin)
      : chain(of.size() - begin),
        paths{tokens(of.begin(), of.begin() + std::ptrdiff_t(begin))},
        text(of) {}
  // The tokens of n more nodes. together: counts those whose parent is among them.
  tokens grow(std::mt19937& random, std::size_t n, std::size_t& together) {
    tokens t;
    const std::size_t first = paths.size(), begin = text.size() - chain;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t node = paths.size();
      const bool of_text = node <= chain;
      parents.push_back(std::uint32_t(of_text ? node - 1 : chain + random() % (node - chain)));
      t.push_back(of_text ? text[begin + node - 1] : token_id(random() % V));
      paths.push_back(paths[parents.back()]);
      paths.back().push_back(t.back());
      together += parents.back() >= first && !of_text;
    }
    return t;
  }
  std::vector<std::uint32_t> path_to(std::size_t node) const {
    std::vector<std::uint32_t> path;
    for (; node > 0; node = parents[node - 1]) path.insert(path.begin(), std::uint32_t(node));
    return path;
  }
};
}  // namespace
TEST_CASE(
    "the rows of a tree's nodes are those of their paths, before the path is kept and after") {
  std::mt19937 random(5);
  std::size_t rows_seen = 0, kept_nodes = 0, in_one_call = 0;
  for (int repeat = 0; repeat < 300; ++repeat) {
    toy_with_states target(V, 2);
    toy_tree_head own;
    own.error = random() % 2 ? 0.5 : 0;
    head_source head(own, target);
    tokens text(2 + random() % 6);
    for (token_id& t : text) t = token_id(random() % V);
    for (int round = 0; round < 3; ++round) {
      // The target has read a part of the text; a decoder lets it read all but the last token.
      const std::size_t reads = std::max(
          target.position(), random() % 2 ? text.size() - 1 : 1 + random() % (text.size() - 1));
      read_to(target, text, reads);
      read_some(random, head, text);
      const std::size_t begin = head.position();
      random_tree tree(text, begin);
      for (int call = 0; call < 4; ++call) {
        const std::size_t n = call == 0 ? tree.chain + random() % 2 : 1 + random() % 4;
        const tokens t = tree.grow(random, n, in_one_call);
        const std::size_t wanted = random() % (n + 1);
        std::vector<double> logits(wanted * 3);
        REQUIRE(head.extend_tree(t, std::span(tree.parents).last(n), logits) == status::ok);
        CHECK(head.position() == begin + tree.parents.size());
        for (std::size_t j = 0; j < wanted; ++j, ++rows_seen) {
          const auto row = std::span(logits).subspan(3 * j, 3);
          CHECK(by_hand(own, tree.paths[tree.paths.size() - wanted + j], target.position()) ==
                std::vector<double>(row.begin(), row.end()));
        }
      }
      if (random() % 4 == 0) {
        REQUIRE(head.rollback(begin) == status::ok);
        CHECK(head.position() == begin);
      } else {
        const std::vector<std::uint32_t> path =
            tree.path_to(tree.chain + random() % (tree.paths.size() - tree.chain));
        CHECK(head.keep_path(std::vector<std::uint32_t>{9999}) == status::invalid_parameter);
        REQUIRE(head.keep_path(path) == status::ok);
        const tokens& kept = tree.paths[path.empty() ? 0 : path.back()];
        CHECK(head.position() == kept.size());
        kept_nodes += kept.size() - begin;
        if (kept.size() > text.size()) text = kept;
      }
      // What is kept is read again as soon as the target knows it.
      text.push_back(token_id(random() % V));
      std::vector<double> row(3);
      const std::size_t known = target.position() + random() % (text.size() - target.position());
      read_to(target, text, known);
      REQUIRE(head.extend(std::span(text).subspan(head.position()), row) == status::ok);
      CHECK(row == by_hand(own, text, target.position()));
    }
    CHECK(own.misuses == 0);
  }
  CHECK(rows_seen > 1000);
  CHECK(kept_nodes > 1000);
  CHECK(in_one_call > 100);
}
TEST_CASE("a tree of a head refuses what does not fit, and appends nothing") {
  toy_with_states target(V, 2);
  toy_tree_head own;
  own.most = 5;
  head_source head(own, target);
  const tokens text{0, 1, 2};
  const std::vector<std::uint32_t> none, wrong{1}, roots{0, 0, 0, 0}, deep{0, 1, 2, 3};
  const tokens four{0, 1, 2, 3};
  std::vector<double> row(3), rows(6);
  const auto some = [](const auto& of, std::size_t n) { return std::span(of).first(n); };
  // there is no context
  CHECK(head.extend_tree(some(four, 1), some(roots, 1), row) == status::no_draft);
  REQUIRE(head.extend(some(text, 1), {}) == status::ok);
  // the target has read nothing
  CHECK(head.extend_tree(some(four, 1), some(roots, 1), row) == status::no_draft);
  CHECK(head.position() == 1);
  REQUIRE(target.extend(some(text, 2), {}) == status::ok);
  REQUIRE(head.extend(std::span(text).subspan(1), {}) == status::ok);
  CHECK(head.extend_tree(some(four, 1), none, row) == status::invalid_parameter);
  CHECK(head.extend_tree(some(four, 1), wrong, row) == status::invalid_parameter);
  CHECK(head.extend_tree(some(four, 1), some(roots, 1), rows) == status::invalid_parameter);
  CHECK(head.extend_tree(four, roots, row) == status::context_full);
  CHECK(head.position() == 3);
  REQUIRE(head.extend_tree(some(four, 2), some(deep, 2), rows) == status::ok);
  CHECK(own.calls == 2);  // the second node's state is the first one's
  CHECK(head.extend(some(four, 1), row) == status::invalid_parameter);
  CHECK(head.position() == 5);
  REQUIRE(head.keep_path(none) == status::ok);
  CHECK(head.position() == 3);
  REQUIRE(head.extend(some(four, 1), row) == status::ok);
}
TEST_CASE(
    "without states, without room and with wrong sizes there is a status, and nothing is "
    "appended") {
  toy_with_states target(V, 2);
  toy_head own{0, 3};
  head_source head(own, target);
  std::vector<double> row(3), rows(6);
  const tokens text{0, 1, 2, 3, 0};
  const auto first = [&](std::size_t n) { return std::span(text).first(n); };
  CHECK(head.extend(first(2), row) == status::no_draft);  // the target has read nothing
  CHECK(head.position() == 0);
  REQUIRE(target.extend(text, {}) == status::ok);
  CHECK(head.extend(first(1), row) == status::no_draft);  // no pair
  CHECK(head.extend(first(2), rows) == status::no_draft);
  CHECK(head.extend(first(1), rows) == status::invalid_parameter);
  CHECK(head.extend(first(2), std::span(row).first(2)) == status::invalid_parameter);
  CHECK(head.capacity() == 4);
  CHECK(head.extend(first(5), row) == status::context_full);
  CHECK(head.position() == 0);
  REQUIRE(head.extend(first(4), row) == status::ok);
  CHECK(row == by_hand(own, tokens(text.begin(), text.begin() + 4), 4));
  struct wider : toy_with_states {
    using toy_with_states::toy_with_states;
    std::size_t hidden_size() const { return 3; }
  } other(V, 2);
  head_source mismatched(own, other);
  CHECK(mismatched.extend(first(2), row) == status::vocabulary_mismatch);
}
TEST_CASE(
    "after any rollback, a row is a function of the tokens and of how many the target has "
    "read") {
  std::mt19937 random(8);
  std::size_t rows_seen = 0, target_alone = 0;
  for (int repeat = 0; repeat < 2000; ++repeat) {
    toy_with_states target(V, 2);
    toy_head own{0.5};
    head_source head(own, target);
    tokens text(12);
    for (token_id& t : text) t = token_id(random() % V);
    for (int step = 0; step < 12; ++step) {
      const auto back = [&](auto& model) {
        if (model.position() > 0)
          REQUIRE(model.rollback(random() % model.position()) == status::ok);
      };
      switch (random() % 4) {
        case 0:  // the target reads on
          if (const std::size_t left = text.size() - target.position(); left > 0) {
            const auto next = std::span(text).subspan(target.position(), 1 + random() % left);
            REQUIRE(target.extend(next, {}) == status::ok);
          }
          break;
        case 1:
          back(target);
          ++target_alone;
          break;
        case 2: back(head); break;
        default:
          if (const std::size_t left = text.size() - head.position(); left > 0) {
            const std::size_t n = 1 + random() % left, end = head.position() + n;
            const bool wanted = end > 1 && target.position() > 0;
            std::vector<double> row(wanted ? 3 : 0);
            REQUIRE(head.extend(std::span(text).subspan(head.position(), n), row) == status::ok);
            if (!wanted) break;
            ++rows_seen;
            CHECK(row == by_hand(own, tokens(text.begin(), text.begin() + std::ptrdiff_t(end)),
                                 target.position()));
          }
      }
    }
    CHECK(own.misuses == 0);
  }
  CHECK(rows_seen > 2000);
  CHECK(target_alone > 2000);
}
TEST_CASE("where the states have a gap the head begins again after it") {
  toy_with_states target(V, 2);
  target.last_call_alone = true;
  toy_head own{0.5};
  head_source head(own, target);
  const tokens text{0, 1, 2, 3, 0, 1, 2};
  std::vector<double> row(3), target_rows(2 * V);
  // state 3 alone
  REQUIRE(target.extend(std::span(text).first(4), std::span(target_rows).first(V)) == status::ok);
  REQUIRE(head.extend(std::span(text).first(5), row) == status::ok);
  CHECK(own.position() == 1);
  REQUIRE(target.extend(std::span(text).subspan(4, 1), {}) == status::ok);  // no state of 4
  // of 5
  REQUIRE(target.extend(std::span(text).subspan(5, 1), std::span(target_rows).first(V)) ==
          status::ok);
  REQUIRE(head.extend(std::span(text).subspan(5), row) == status::ok);
  CHECK(own.position() == 1);
  toy_head alone;
  std::vector<double> due(3);
  REQUIRE(alone.extend(std::span(text).subspan(6), target.hidden(5), due) == status::ok);
  CHECK(row == due);
  REQUIRE(head.rollback(3) == status::ok);  // before where it begins
  CHECK(own.position() == 0);
  REQUIRE(target.rollback(0) == status::ok);
  target.last_call_alone = false;
  target.begin = 0;
  REQUIRE(target.extend(std::span(text).first(5), {}) == status::ok);  // all states
  REQUIRE(head.extend(std::span(text).subspan(3, 2), row) == status::ok);
  CHECK(row == by_hand(own, tokens(text.begin(), text.begin() + 5), 5));
  CHECK(own.misuses == 0);
}
