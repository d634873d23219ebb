// SPDX-License-Identifier: Apache-2.0
// Rows and trouble for tests of the protocols.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/sites/simulation.hpp>

#include "support/numbers.hpp"

// The probabilities a toy model gives after a text.
inline std::vector<double> toy_row(const specagg::toy_source<double>& model,
                                   std::span<const specagg::token_id> text) {
  std::vector<double> logits(model.vocab_size()), p(model.vocab_size());
  model.row(text, logits);
  const auto row = specagg::normalise(specagg::softmax_row<double>(logits));
  if (row.why() == specagg::status::ok)
    for (std::size_t v = 0; v < p.size(); ++v) p[v] = row[v];
  return p;
}
// A row as the other end sees it.
inline std::vector<double> decoded_row(const specagg::sites::row_codec& codec,
                                       const std::vector<double>& exact) {
  std::vector<std::uint8_t> bytes(codec.max_bytes<double>());
  std::vector<specagg::token_id> ids(codec.max_tokens());
  std::vector<double> mass(codec.vocabulary), p;
  const auto row = specagg::sites::encode(codec, exact, bytes, ids, mass);
  for (std::size_t v = 0; row.why == specagg::status::ok && v < codec.vocabulary; ++v)
    p.push_back(row.row[v]);
  return p;
}
inline specagg::sites::row_codec any_codec(numbers& n, std::size_t vocabulary) {
  using values = specagg::sites::row_codec::values;
  specagg::sites::row_codec codec{
      .vocabulary = vocabulary, .format = values(n.below(3)), .top_p = n.below(2) ? 0.9 : 1};
  if (codec.format == values::counts) {
    codec.top_k = 3;
    codec.total = 20;
  }
  return codec;
}

// Links and models at random; faults of every kind before `calm`, none of them if `calm` is 0.
template <class World>
void trouble(World& world, numbers& n, double calm) {
  using specagg::side;
  const bool even = n.below(2) == 0;
  for (auto& k : world.link) {
    k = {.delay = n.between(0, 0.5), .jitter = n.below(2) ? n.between(0, 1) : 0};
    if (n.below(3) == 0) k.bytes_per_second = n.between(50, 5000);
    if (calm > 0 && n.below(4) > 0) {
      k.lost = n.between(0, 0.5);
      k.repeated = n.between(0, 0.5);
      k.reordered = n.uniform();
    }
  }
  const double base = n.between(0.01, 0.3);
  const std::array<double, 2> each{base, even ? base : n.between(0.01, 0.3)};
  world.seconds = [each](side s, std::size_t t) {
    return each[std::size_t(s)] * (1 + 0.01 * double(t));
  };
  world.timer = n.between(0.5, 3);
  if (calm == 0) return;
  for (std::size_t i = n.below(4); i > 0; --i) world.cut(n.between(0, calm), n.between(0, 4));
  for (std::size_t i = n.below(4); i > 0; --i)
    world.stop(n.below(2) ? side::l : side::r, n.between(0, calm), n.between(0, 4));
  world.calm_from(calm + 4);
}

// Decisions as functions: asked again, about the same weights, the same answer; the tree of all of
// them is walked.
struct decisions {
  specagg::exhaustive_chooser& tree;
  std::map<
      std::tuple<std::uint32_t, specagg::stream, std::uint32_t, std::uint32_t, std::vector<double>>,
      specagg::token_id>
      made = {};
  template <class Make>
  specagg::token_id once(std::uint32_t site, specagg::moment m, std::vector<double> about,
                         Make make) {
    const auto [at, is_new] =
        made.try_emplace({site, m.use, m.position, m.start, std::move(about)});
    if (is_new) at->second = make(specagg::moment{m.use, m.position, std::uint32_t(made.size())});
    return at->second;
  }
};
struct walked {
  decisions* all;
  std::uint32_t site;
  bool coin(specagg::moment m, double w, double t) {
    return all->once(site, m, {w, t}, [&](specagg::moment own) {
      return specagg::token_id(all->tree.coin(own, w, t));
    }) == 1;
  }
  template <class W>
  specagg::token_id draw(specagg::moment m, const W& w) {
    std::vector<double> weights(w.size());
    for (std::size_t v = 0; v < w.size(); ++v) weights[v] = w[v];
    return all->once(site, m, weights, [&](specagg::moment own) { return all->tree.draw(own, w); });
  }
};
static_assert(specagg::Chooser<walked>);
