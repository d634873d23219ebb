// SPDX-License-Identifier: Apache-2.0
// Decoding that fails and is called again: the text has the law of decoding that did not fail.
#include <specagg/decode/rounds.hpp>

#include <cstdio>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = double;

namespace {

constexpr token_id end_of_text = 1;
struct fault {};

// Fails at one call, also of a tree, with a status, or with an exception where that is ok. Where it
// is `stopped`, also at the next call; where it is model_failed, also three calls later.
struct failing : toy_source<T> {
  std::size_t fail_at = 1000, n = 0, faults = 0;
  status with = status::model_failed;
  using toy_source<T>::toy_source;
  status extend(std::span<const token_id> tokens, std::span<T> logits) {
    return fails() ? with : toy_source<T>::extend(tokens, logits);
  }
  status extend_tree(std::span<const token_id> tokens, std::span<const std::uint32_t> parents,
                     std::span<T> logits) {
    return fails() ? with : toy_source<T>::extend_tree(tokens, parents, logits);
  }
  bool fails() {
    const std::size_t call = n++, again = with == status::stopped        ? 1
                                          : with == status::model_failed ? 3
                                                                         : 0;
    const bool now = call == fail_at || call == fail_at + again;
    faults += now;
    if (now && with == status::ok) throw fault();
    return now;
  }
};

// Stops once, where a row is asked for. Its rows also depend on where the draft began, as those of
// a lookup do.
struct stopping : mixed_drafter {
  std::size_t stop_at = 1000, n = 0;
  template <class P>
  status next(const draft_position& at, P& processor, row_type& row, double& confidence) {
    if (n++ == stop_at) return status::stopped;
    model = toy_source<T>(vocabulary, 1 + (at.tokens.size() - at.drafted) % 2);
    return mixed_drafter::next(at, processor, row, confidence);
  }
};

// What a call of a decoder gets, beside what it decides by itself.
template <std::size_t N, class Work>
struct call_of {
  exhaustive_chooser& chooser;
  std::array<failing, N>& models;
  stopping& drafter;
  text& t;
  std::size_t most;
  Work& work;
  witness& processor;
};

template <class Law>
double largest_difference(Law law, const Law& due) {
  for (const auto& [tokens, probability] : due) law[tokens] -= probability;
  double worst = 0;
  for (const auto& [tokens, difference] : law) worst = std::max(worst, std::fabs(difference));
  return worst;
}

// The largest difference between the law of texts and that without failures, while each call of
// each model fails once, or the drafter stops, and decode(call) is called again. make() gives the
// workspace, and what else it finds again.
template <std::size_t N, class Make, class Decode>
double worst_difference(std::size_t length, Make make, Decode decode) {
  std::size_t wrong = 0, failures = 0, faults = 0;
  const auto law_of = [&](std::size_t which, std::size_t call, status with) {
    return exact_law([&](exhaustive_chooser& chooser) {
      auto models = [&]<std::size_t... K>(std::index_sequence<K...>) {
        return std::array<failing, N>{failing{vocabulary, K + 1}...};
      }(std::make_index_sequence<N>());
      stopping drafter;
      if (which < N) {
        models[which].fail_at = call;
        models[which].with = with;
      } else drafter.stop_at = call;
      std::vector<token_id> buffer(16);
      text t{buffer, 1};
      auto work = make();
      penalty_memory memory;
      witness processor{memory.with({.repetition = 1.3}), {}};
      (void)processor.push(0);
      const auto ended = [&] { return t.size > 1 && buffer[t.size - 1] == end_of_text; };
      for (std::size_t calls = 0; t.size < 1 + length && !ended() && calls < 4; ++calls) {
        status s;
        bool thrown = false;
        try {
          s = decode(call_of<N, decltype(work)>{chooser, models, drafter, t, 1 + length - t.size,
                                                work, processor});
        } catch (const fault&) {
          s = with;
          thrown = true;
        }
        failures += s != status::ok || thrown;
        wrong += (s != status::ok && s != with) || calls > 2;
        wrong += !std::ranges::equal(processor.pushed, std::span(buffer).first(t.size));
      }
      for (const auto& m : models) {
        wrong += m.misuses + (m.position() > t.size);
        faults += m.faults;
      }
      faults += drafter.n > drafter.stop_at;
      return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
    });
  };
  const auto due = law_of(N, 1000, status::ok);
  CHECK(failures == 0);
  double worst = 0;
  const auto compare = [&](std::size_t which, status with) {
    for (std::size_t call = 0;; ++call) {
      const std::size_t before = faults;
      const auto law = law_of(which, call, with);
      if (faults == before) break;  // it is not called so often
      worst = std::max(worst, largest_difference(law, due));
    }
  };
  for (std::size_t which = 0; which < N; ++which)
    for (const status with : {status::model_failed, status::stopped, status::ok})
      compare(which, with);
  compare(N, status::stopped);
  CHECK(wrong == 0);
  CHECK(failures > 0);
  return worst;
}
template <class Models>
auto tie_all(Models& models) {
  return std::apply([](auto&... m) { return std::tie(m...); }, models);
}

template <std::size_t N, class Policy>
void check_turns(const char* name, const Policy& policy, const std::array<std::size_t, N>& gamma,
                 std::size_t proposed = 0) {
  const double worst = worst_difference<N>(
      N == 2 && gamma[0] == 3 ? 4 : 3,
      [&] {
        return collaborative_workspace<T, N, mixed_drafter::row_type>(
            vocabulary, {gamma, {}, end_of_text, proposed});
      },
      [&](const auto& c) {
        return collaborative_decode(
            tie_all(c.models), policy, c.chooser,
            {.text = c.t, .most = c.most, .work = c.work, .processor = c.processor}, c.drafter);
      });
  std::printf("%zu models that take turns, %s, proposed %zu: worst difference %.2e\n", N, name,
              proposed, worst);
  CHECK(worst < 1e-12);
}

}  // namespace

TEST_CASE("models that take turns and fail at any call go on with the same law") {
  for (const auto& gamma :
       std::array<std::array<std::size_t, 2>, 4>{{{1, 4}, {3, 2}, {2, 0}, {5, 1}}}) {
    check_turns<2>("ensemble", ensemble{1.0 / 3}, gamma);
    check_turns<2>("ensemble", ensemble{1.0 / 3}, gamma, 2);
    check_turns<2>("lossless", lossless{}, gamma);
    check_turns<2>("lossless", lossless{}, gamma, 2);
  }
  for (const auto& gamma :
       std::array<std::array<std::size_t, 3>, 3>{{{1, 1, 1}, {1, 2, 3}, {2, 0, 1}}}) {
    check_turns<3>("mixture", mixture<3>{{0.2, 0.5, 0.3}}, gamma);
    check_turns<3>("mixture", mixture<3>{{0.2, 0.5, 0.3}}, gamma, 2);
  }
}

namespace {

// Remembers the confidence of every row, also in rounds that failed.
struct moody_length : fixed_draft_length {
  static constexpr bool reads_confidence = true;
  double mood = 1;
  bool another(std::size_t) const { return mood > 0.35; }
  bool keep(std::size_t, double confidence) {
    mood = 0.5 * mood + (confidence > 0.55 ? 0.5 : 0);
    return true;
  }
  void observe(std::span<const draft_acceptance>, std::size_t emitted,
               std::span<const std::size_t>) {
    if (emitted > 1) mood = 1;
  }
};

template <class Work, class L>
struct with_length {
  Work work;
  L length;
};
using length_of_drafts =
    any_length<fixed_draft_length, moody_length, plan::draft_length_controller>;
template <class Policy, class V>
void check_speculative(const char* name, const Policy& policy, const V& verifier,
                       const length_of_drafts& length) {
  using L = length_of_drafts;
  double worst = 0;
  for (const std::size_t gamma : {1u, 3u}) {
    const decode_options options{.gamma = gamma, .end_of_text = end_of_text};
    worst = std::max(
        worst,
        worst_difference<2>(
            4,
            [&] { return with_length<speculative_workspace<T>, L>{{vocabulary, options}, length}; },
            [&](const auto& c) {
              return speculative_decode(
                  c.models[0], c.models[1], policy, c.chooser,
                  {.text = c.t, .most = c.most, .work = c.work.work, .processor = c.processor},
                  verifier, c.work.length);
            }));
    using row = mixed_drafter::row_type;
    if constexpr (!reads_draft<Policy>)
      worst = std::max(
          worst,
          worst_difference<2>(
              4,
              [&] {
                return with_length<drafting_workspace<T, row>, L>{{vocabulary, options}, length};
              },
              [&](const auto& c) {
                return speculative_decode(
                    c.drafter, c.models[1], policy, c.chooser,
                    {.text = c.t, .most = c.most, .work = c.work.work, .processor = c.processor},
                    verifier, c.work.length);
              }));
  }
  std::printf("speculative, %s: worst difference %.2e\n", name, worst);
  CHECK(worst < 1e-12);
}

}  // namespace

TEST_CASE(
    "speculative decoding that fails at any call goes on with the same law, also where the length "
    "remembers") {
  const auto check = [](const char* name, const auto& policy, const auto& verifier) {
    check_speculative(name, policy, verifier, fixed_draft_length());
    check_speculative(name, policy, verifier, moody_length());
    check_speculative(name, policy, verifier, plan::draft_length_controller({1, 0.2, 0.1}));
  };
  check("ensemble, token", ensemble{1.0 / 3}, any_verifier(token_verifier()));
  check("ensemble, block", ensemble{1.0 / 3}, any_verifier(block_verifier()));
  check("ensemble, coupled", ensemble{1.0 / 3}, enumerated_coupled());
  check("lossless, token", lossless(), any_verifier(token_verifier()));
  check("lossless, block", lossless(), any_verifier(block_verifier()));
  check("lossless, match", lossless(), any_verifier(match_verifier()));
}

namespace {

// If moody, it grows less after rows that were not sure, also in rounds that failed.
struct moody_growth : plan::tree_growth {
  bool moody;
  mutable double mood = 1;
  moody_growth(const plan::draft_costs& costs, bool is_moody)
      : tree_growth(costs), moody(is_moody) {}
  bool worth_level(double reached) const {
    return moody ? mood > 0.35 : tree_growth::worth_level(reached);
  }
  children of_node(double reached, std::span<const double> shares, std::size_t room,
                   bool may_draw) const {
    if (!moody) return tree_growth::of_node(reached, shares, room, may_draw);
    mood = 0.5 * mood + (shares[0] > 0.55 ? 0.5 : 0);
    return {std::min<std::size_t>(room - may_draw, mood > 0.6 ? 1 : 2), may_draw};
  }
  bool worth_node(double reached) const { return moody || tree_growth::worth_node(reached); }
  void observe(const path_record& path, std::size_t emitted, std::size_t steps, std::size_t nodes) {
    if (!moody) tree_growth::observe(path, emitted, steps, nodes);
    else if (emitted > 1) mood = 1;
  }
};

template <class Policy, class V, class G>
void check_tree(const char* name, const Policy& policy, const V& verifier, proposal propose,
                const G& growth) {
  double worst = 0;
  for (const auto& shape : std::vector<std::vector<std::size_t>>{{2}, {1, 2}}) {
    const tree_options options{shape, propose, {}, end_of_text};
    worst = std::max(
        worst,
        worst_difference<2>(
            3, [&] { return with_length<tree_workspace<T>, G>{{vocabulary, options}, growth}; },
            [&](const auto& c) {
              return tree_decode(
                  c.models[0], c.models[1], policy, c.chooser,
                  {.text = c.t, .most = c.most, .work = c.work.work, .processor = c.processor},
                  verifier, c.work.length);
            }));
  }
  std::printf("tree, %s: worst difference %.2e\n", name, worst);
  CHECK(worst < 1e-12);
}

}  // namespace

TEST_CASE(
    "decoding with trees that fails at any call goes on with the same law, also where the growth "
    "remembers") {
  const auto check = [](const char* name, const auto& policy, const auto& verifier) {
    for (const proposal propose : {proposal::greedy, proposal::sampled})
      check_tree(name, policy, verifier, propose, fixed_growth());
    for (const bool moody : {false, true})
      check_tree(name, policy, verifier, proposal::greedy, moody_growth({1, 0.05, 0.02}, moody));
  };
  check("ensemble, traversal", ensemble{1.0 / 3}, traversal());
  check("lossless, traversal", lossless(), any_tree_verifier(traversal()));
  check("lossless, recursive", lossless(), any_tree_verifier(recursive_rejection()));
}

TEST_CASE("cascades that fail at any call go on with the same law") {
  const auto check = [](const char* name, auto decode) {
    for (const std::size_t longest_run : {10u, 2u}) {
      const double worst = worst_difference<2>(
          4,
          [] {
            return cascade_workspace<T>(vocabulary, {.longest_run = 10, .longest_response = 4});
          },
          [&](const auto& c) {
            c.work.options = {.end_of_text = end_of_text, .longest_run = longest_run};
            return decode(c);
          });
      std::printf("%s: worst difference %.2e\n", name, worst);
      CHECK(worst < 1e-12);
    }
  };
  check("oracle", [](const auto& c) {
    return oracle_decode(c.models[0], c.models[1], opt{0.05}, c.chooser,
                         {.text = c.t, .most = c.most, .work = c.work, .processor = c.processor});
  });
  check("sequential", [](const auto& c) {
    return sequential_decode(
        c.models[0], c.models[1], chow{0.4}, c.chooser,
        {.text = c.t, .most = c.most, .work = c.work, .processor = c.processor});
  });
  check("sequence", [](const auto& c) {
    return sequence_decode(c.models[0], c.models[1], 0.8, c.chooser,
                           {.text = c.t, .most = c.most, .work = c.work, .processor = c.processor});
  });
  check("BiLD", [](const auto& c) {
    return bild_decode(c.models[0], c.models[1], bild_thresholds{0.5, 1},
                       {.text = c.t, .most = c.most, .work = c.work, .processor = c.processor});
  });
}
