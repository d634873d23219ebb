// SPDX-License-Identifier: Apache-2.0
// DRAGON as a decoder: both sites are models of one process, and every token is aggregated at once.
// Liu et al. 2025 (arXiv:2504.11197), algorithm 1 in a loop.
//
// Use it for questions about the law alone: experiments with documents and weights, perplexity,
// acceptance. It has no messages, no look-ahead and no clock. Use dragon_site (dragon.hpp) if the
// sites are two machines, or to study times (simulation.hpp). With the same seed, rows and weights
// dragon_decode and dragon_site emit the same tokens.
#pragma once
#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include <specagg/decode/cascade.hpp>
#include <specagg/sites/dragon.hpp>

SPECAGG_BEGIN
namespace sites {

// The options of a dragon_workspace.
struct dragon_options {
  sampling sample = {};  // of both sites' rows
  end_tokens end_of_text = {};
};

// The result of one round: the drafts of both sites, the weights, and whose draft the token
// confirmed. emitted: 1, or 0 if `why` is not ok. Then the text is as it was.
struct [[nodiscard]] dragon_result {
  std::array<token_id, 2> drafted = {no_token, no_token};  // by side
  site_weights weights = {};
  bool accepted_l = false, accepted_r = false;
  std::size_t emitted = 0;
  status why = status::ok;
};

// All memory that a round needs, allocated once; and the options, which may be changed between
// calls. T: the type of the models' logits.
template <class T>
struct dragon_workspace {
  using value_type = T;
  using result_type = dragon_result;
  dragon_options options;
  std::size_t vocabulary;
  std::array<std::vector<T>, 2> logits;                    // by side, V each
  std::array<normal_form<processed_row<T>>, 2> rows = {};  // by side: p^l and p^r of the last round
  std::array<emission, 1> emissions = {};                  // of the last round
  std::vector<double> scratch;

  explicit dragon_workspace(std::size_t vocab_size, const dragon_options& of = {})
      : options(of),
        vocabulary(vocab_size),
        logits{std::vector<T>(vocab_size), std::vector<T>(vocab_size)},
        scratch(verify_scratch(vocab_size)) {}
};

namespace detail {

// The weights for the token after this text.
template <class Weights>
site_weights weights_after(const Weights& weights, std::span<const token_id> text) {
  if constexpr (std::convertible_to<const Weights&, site_weights>) return weights;
  else return weights(text);
}

// A row as a coupling asks for it (dragon.hpp).
template <class R>
struct site_row {
  const R& row;
  status why = status::ok;
};
template <class R>
site_row(const R&) -> site_row<R>;

dragon_result dragon_round(auto& both, const auto& weights, auto& drafts) {
  dragon_result result;
  text& t = both.t;
  auto& work = both.work;
  auto& [p_l, p_r] = work.rows;
  const sampling& sample = work.options.sample;
  status s = both.ready();
  if (s == status::ok) s = both.next_row(both.small, sample, work.logits[0], p_l);
  if (s == status::ok) s = both.next_row(both.large, sample, work.logits[1], p_r);
  result.why = s;
  if (s != status::ok) return result;

  const site_weights eta = detail::weights_after(weights, t.tokens.first(t.size));
  result.weights = eta;
  result.why = status::undefined_target;
  if (!is_law(eta)) return result;
  const auto step = std::uint32_t(t.size);
  const token_id x_l = drafts.draw(side::l, p_l, step, work.scratch);
  const token_id x_r = drafts.draw(side::r, p_r, step, work.scratch);
  const auto rows = [&](side at) { return site_row{work.rows[std::size_t(at)]}; };
  const aggregation a = drafts.aggregate(step, x_l, x_r, eta, rows, work.scratch);
  result.drafted = {x_l, x_r};
  result.why = a.why;
  if (a.token == no_token) return result;

  const std::size_t x = std::size_t(a.token);
  const double p = double(p_r[x]);
  const bool accepted = a.accepted_l || a.accepted_r;
  work.emissions[0] = {a.token, accepted ? origin::accepted : origin::residual, a.why,
                       log(fma(eta.l, double(p_l[x]), eta.r * p)), log(p)};
  specagg::append(t, a.token, both.processor);
  result.accepted_l = a.accepted_l;
  result.accepted_r = a.accepted_r;
  result.emitted = 1;
  result.why = status::ok;
  return result;
}

}  // namespace detail

// The weights of the two sites: site_weights, or a function that gives them for a text.
template <class W>
concept SiteWeights = std::convertible_to<const W&, site_weights> ||
                      std::is_invocable_r_v<site_weights, const W&, std::span<const token_id>>;
// How drafts are drawn, and how two become one token: independent_drafts, shared_drafts. T: of the
// logits.
template <class D, class T>
concept SiteDrafts = requires(D& drafts, const processed_row<T>& row, std::span<double> scratch) {
  { drafts.draw(side::l, row, std::uint32_t(), scratch) } -> std::same_as<token_id>;
};

// Emits tokens of the law pi = eta^l p^l + eta^r p^r. Runs rounds as decode_rounds does, one token
// in each.
//   dragon_workspace<float> work(vocab_size, dragon_options{});
//   dragon_decode(device, cloud, weigh_sites(h_l, h_r), drafts,
//                 {.text = text, .most = 64, .work = work})
//   l, r     the models of the two sites; they may have seen any prefix of the text. A site with
//            documents is a site_source (documents.hpp)
//   weights  site_weights, or a function that gives them for the text so far. It is called after
//            both rows were computed: [&](auto&&) { return weigh_sites(l.h(), r.h()); }
//   drafts   sites::independent_drafts or sites::shared_drafts: how drafts are drawn, and how two
//            become one token
// After a round the workspace has both rows. In the emissions, origin::accepted marks a token that
// a site drafted; log_p is ln p^r of the token. If a model fails (a status or an exception), or the
// weights are no law (NaN, negative, of another sum than 1: undefined_target), the text has the
// tokens before, and the next call draws the same drafts and goes on.
template <class L, class R, SiteWeights Weights, class Drafts>
  requires Cascades<L, R> && SiteDrafts<std::remove_reference_t<Drafts>,
                                        typename std::remove_reference_t<R>::value_type>
status dragon_decode(
    L&& l, R&& r, const Weights& weights, Drafts&& drafts,
    const decode_request<dragon_workspace<typename std::remove_reference_t<R>::value_type>>& how) {
  specagg::detail::model_pair both(l, r, how);
  return both.decode([&](std::size_t) { return detail::dragon_round(both, weights, drafts); });
}

}  // namespace sites
SPECAGG_END
