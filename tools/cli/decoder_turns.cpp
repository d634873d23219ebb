// SPDX-License-Identifier: Apache-2.0
// --decoder alternating, n-model, and the cascades.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "decoder_parts.hpp"

namespace cli {
namespace {

using namespace specagg;

// Policies over the rows of n > 2 models.
template <std::size_t N>
using models_policy =
    compiled_once<any_of<minimum<N>, maximum<N>, mixture<N>, power_mean<N>, log_linear<N>>>;
template <std::size_t N>
models_policy<N> parse_models_policy(const std::string& text) {
  auto [name, p] = parse_parameters(text);
  std::array<double, N> weight{};
  const bool powers = name == "geometric" || name == "realign",
             extreme = name == "minimum" || name == "maximum";
  for (std::size_t k = 0; !extreme && k < N; ++k)
    weight[k] =
        p.number(fmt::format("w{}", k + 1), 1 / double(N), powers ? -unbounded : 0, unbounded);
  const auto convex = [&] {
    if (!is_convex(weight)) refuse("--policy " + text, fmt::format("w1..w{} must sum to 1", N));
    return weight;
  };
  models_policy<N> policy;
  if (name == "ensemble") policy.chosen = mixture<N>{convex()};
  else if (name == "power")
    policy.chosen = power_mean<N>{convex(), p.number("rho", 1, -unbounded, unbounded)};
  else if (powers) policy.chosen = log_linear<N>{weight};
  else if (name == "minimum") policy.chosen = minimum<N>{};
  else if (name == "maximum") policy.chosen = maximum<N>{};
  else
    refuse(
        "--policy " + text,
        fmt::format(
            "does not combine {} models (ensemble, geometric, realign, power, minimum, maximum do)",
            N));
  p.none_left(extreme ? "" : fmt::format("w1..w{}{}", N, name == "power" ? ", rho" : ""));
  return policy;
}

// Every model at every token, and the token from their law: what collaboration is compared with.
template <std::size_t N, class Policy>
status every_model(const decoding& j, const Policy& chosen, std::size_t vocabulary) {
  std::vector<float> logits(N * vocabulary), combined(vocabulary);
  std::vector<double> scratch(block_count(vocabulary));
  std::array<processed_row<float>, N> rows;
  std::array<emission, 1> one;
  const auto models = [&](auto&& f) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return f(j.models[I]...);
    }(std::make_index_sequence<N>());
  };
  const auto cut = [&](std::size_t n) {
    return models([&](auto&... m) { return truncate(j.text, n, j.processor, m...); });
  };
  const auto round = [&](std::size_t) -> cascade_result {
    for (std::size_t k = 0; k < N; ++k) {
      const auto own = std::span(logits).subspan(k * vocabulary, vocabulary);
      if (const status s = score(j.text.tokens.first(j.text.size), j.models[k], j.processor, own);
          s != status::ok)
        return {.why = s};
      rows[k] = processed_row<float>(own, j.sample);
    }
    const auto draw_token = [&](const auto& all, const auto& pi) {
      const token_id y =
          j.chooser.draw({stream::bonus, std::uint32_t(j.text.size), 0}, weigh(all, pi, scratch));
      if (y == no_token) return status::undefined_target;
      const double log_pi = std::log(as_double(pi(at(all, std::size_t(y)))) / all.sum(pi));
      one[0] = {y, origin::bonus, status::ok, log_pi,
                std::log(as_double(model<N - 1>(at(all, std::size_t(y)))))};
      append(j.text, y, j.processor);
      return status::ok;
    };
    const status s = with_law_of(chosen, rows, j.sample, std::span(combined), draw_token);
    return {.emitted = s == status::ok, .why = s};
  };
  return decode_rounds(j.text, j.most, j.end_of_text, one, round, cut, j.accept);
}

template <std::size_t N>
void collaborative(decoder& d, const generate_options& o) {
  std::vector<std::size_t> list = gammas(d.gamma);
  if (list.size() == 1) list.resize(N, 1);
  if (list.size() != N || list[0] == 0)
    refuse("--gamma " + d.gamma,
           fmt::format("--decoder {} of {} models takes {} numbers, or one for the first model "
                       "(the others then draft 1); the first at least 1",
                       d.name, N, N));
  std::array<std::size_t, N> gamma;
  std::copy(list.begin(), list.end(), gamma.begin());
  const std::size_t proposed = d.lookup_first ? gamma[0] : 0;  // without a lookup it is never asked
  d.drafts = collaborative_options<N>{.gamma = gamma, .proposed = proposed}.most_drafted();
  const auto run = [=, every = d.every](const decoding& j, const auto& chosen,
                                        collaborative_workspace<float, N>& work) {
    if (every) return every_model<N>(j, chosen, work.vocabulary);
    lookup_drafter<float> lookup(work.vocabulary, proposed > 0 ? j.text.tokens.size() : 0,
                                 &j.documents);
    const auto models = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::tie(j.models[I]...);
    }(std::make_index_sequence<N>());
    const auto after_turn = [&](const collaborative_result& r, const auto&) {
      j.after_round({r.drafted, r.accepted, r.emitted, double(r.emitted)});
    };
    work.options = {gamma, j.sample, j.end_of_text, proposed};
    return collaborative_decode(models, chosen, j.chooser,
                                {.text = j.text,
                                 .most = j.most,
                                 .work = work,
                                 .processor = j.processor,
                                 .accept = j.accept,
                                 .after_round = after_turn},
                                lookup);
  };
  const auto prepare = [&](const auto& decode) {
    d.prepare = [=](std::size_t vocabulary, std::size_t) {
      return [=, work = collaborative_workspace<float, N>(vocabulary,
                                                          {.gamma = gamma, .proposed = proposed})](
                 const decoding& j) mutable { return decode(j, work); };
    };
  };
  if constexpr (N == 2) {
    const any_policy policy = parse_policy(d.policy, o.sample.temperature);
    const std::optional<any_combiner> combiner = as_combiner(policy);
    const bool raw = in_raw_space(d, policy, combiner.has_value());
    prepare([=](const decoding& j, auto& work) {
      if (raw) return run(j, raw_logits{*combiner}, work);
      return with_policy(policy, [&](const auto& chosen) { return run(j, chosen, work); });
    });
  } else {
    const models_policy<N> policy = parse_models_policy<N>(d.policy);
    const bool raw = in_raw_space(d, policy, true);
    prepare([=](const decoding& j, auto& work) {
      return raw ? run(j, raw_logits{policy}, work) : run(j, policy, work);
    });
  }
}

// The cascades share a workspace, and draft nothing that could be rejected in a round, BiLD apart.
template <class Decode>
void cascade(decoder& d, Decode decode, bool whole_response = false) {
  d.prepare = [=, run = d.longest_run](std::size_t vocabulary, std::size_t most) {
    const std::size_t response = whole_response ? most : 0;
    return [=, work = cascade_workspace<float>(vocabulary,
                                               {.longest_run = run, .longest_response = response})](
               const decoding& j) mutable {
      work.options = {j.sample, j.end_of_text, run, response};
      return decode(j, work);
    };
  };
}
}  // namespace

void prepare_collaborative(decoder& d, const generate_options& o) {
  const std::size_t models = models_of(d, o);
  if (models == 2) collaborative<2>(d, o);
  else if (models == 3) collaborative<3>(d, o);
  else collaborative<4>(d, o);
}
void prepare_sequential(decoder& d, const generate_options&) {
  const any_policy policy = parse_policy(d.policy);
  const auto decode = [&](const auto& chosen) {
    cascade(d, [=](const decoding& j, auto& work) {
      return sequential_decode(j.models.front(), j.models.back(), chosen, j.chooser,
                               {.text = j.text,
                                .most = j.most,
                                .work = work,
                                .processor = j.processor,
                                .accept = j.accept});
    });
  };
  if (const auto* chosen = std::get_if<chow>(&policy.chosen)) decode(*chosen);
  else if (const auto* log_policy = std::get_if<chow_log>(&policy.chosen)) decode(*log_policy);
  else
    refuse("--policy " + d.policy,
           "looks at p; --decoder sequential decides before p is computed (chow and chow-log look "
           "at q alone)");
}
void prepare_oracle(decoder& d, const generate_options& o) {
  const any_policy policy = parse_policy(d.policy, o.sample.temperature);
  // without drafts
  if (in_raw_space(d, policy, as_combiner(policy).has_value()))
    return prepare_by_models(d, o, policy);
  cascade(d, [=](const decoding& j, auto& work) {
    return oracle_decode(j.models.front(), j.models.back(), policy, j.chooser,
                         {.text = j.text,
                          .most = j.most,
                          .work = work,
                          .processor = j.processor,
                          .accept = j.accept});
  });
}
void prepare_sequence(decoder& d, const generate_options&) {
  const any_policy policy = parse_policy(d.policy);
  const auto* chosen = std::get_if<chow>(&policy.chosen);
  if (!chosen) refuse("--policy " + d.policy, "--decoder sequence knows one policy: chow");
  const auto decode = [alpha = chosen->alpha](const decoding& j, auto& work) {
    work.options.per_token = true;
    return sequence_decode(j.models.front(), j.models.back(), alpha, j.chooser,
                           {.text = j.text,
                            .most = j.most,
                            .work = work,
                            .processor = j.processor,
                            .accept = j.accept});
  };
  cascade(d, decode, true);
}
void prepare_bild(decoder& d, const generate_options&) {
  auto [name, p] = parse_parameters(d.policy);
  if (name != "bild")
    refuse("--policy " + d.policy,
           "--decoder bild has its own policy: bild:fallback=0.6,rollback=5");
  const bild_thresholds thresholds{p.number("fallback", 0.6, 0, 1),
                                   p.number("rollback", 5, 0, unbounded)};
  p.none_left("fallback, rollback");
  d.drafts = d.longest_run;
  cascade(d, [thresholds](const decoding& j, auto& work) {
    const auto after_round = [&](const cascade_result& r, const auto&) {
      j.after_round({r.drafted, r.accepted, r.emitted, double(r.emitted)});
    };
    return bild_decode(j.models.front(), j.models.back(), thresholds,
                       {.text = j.text,
                        .most = j.most,
                        .work = work,
                        .processor = j.processor,
                        .accept = j.accept,
                        .after_round = after_round});
  });
}

}  // namespace cli
