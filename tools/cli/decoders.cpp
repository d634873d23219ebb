// SPDX-License-Identifier: Apache-2.0
#include "decoders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "costs.hpp"
#include "lengths.hpp"
#include "lists.hpp"
#include "options.hpp"
#include "policies.hpp"

namespace cli {
namespace {

using namespace specagg;

constexpr std::size_t most_models = 4;
constexpr std::size_t most_automatic = 32;  // the same for --gamma auto
// levels, and children of a node, of --tree auto
constexpr std::size_t deepest_tree = 8, widest_tree = 4;

[[noreturn]] void refuse(const std::string& option, const std::string& why) {
  throw error(option, "", why);
}

// The law p by its own type: its bonus needs no row of the draft.
template <class F>
status with_policy(const any_policy& policy, F&& f) {
  return std::holds_alternative<lossless>(policy.chosen) ? f(lossless{}) : f(policy);
}
// A decoder that drafts nothing names no verifier: any will do.
template <class F>
status with_verifier(const std::string& given, std::uint64_t seed, F&& f) {
  const std::string name = given.empty() ? token_verifier::name : given;
  status s = status::invalid_parameter;
  for_each_verifier(seed, 0, [&](const auto& verifier) {
    if (name == verifier.name) s = f(verifier);
  });
  return s;
}

// Policies that can combine the models' raw logits; those that choose between rows have nothing to
// combine. The log-linear ones do it unless told otherwise, as their papers do: sampled rows often
// have no token in common.
template <class Policy>
constexpr bool combines = may_be_unanimous<Policy> || combines_logits<Policy>;

template <class... Policies>
any_of<Policies...> any_of_types(const std::tuple<Policies...>&);
template <class... Policies>
auto combiners_of(const any_of<Policies...>&) -> decltype(any_of_types(std::tuple_cat(
    std::conditional_t<combines<Policies>, std::tuple<Policies>, std::tuple<>>()...)));
using any_combiner = compiled_once<decltype(combiners_of(any_catalogued()))>;
std::optional<any_combiner> as_combiner(const any_policy& policy) {
  return std::visit(
      [](const auto& chosen) -> std::optional<any_combiner> {
        if constexpr (combines<std::decay_t<decltype(chosen)>>) return any_combiner{chosen};
        else return std::nullopt;
      },
      policy.chosen);
}
std::string combiner_names() {
  std::string names;
  for_each_in_catalogue([&](const auto& line) {
    if (combines<typename std::decay_t<decltype(line)>::type>)
      names += (names.empty() ? "" : ", ") + std::string(line.name);
  });
  return names;
}

// Whether the raw logits are combined: what --space says, or what the policy does by itself.
template <class... Policies>
bool in_raw_space(decoder& d, const any_of<Policies...>& policy, bool combines) {
  d.combines = combines;
  if (d.space.empty())
    d.space = std::visit([](const auto& r) { return combines_logits<std::decay_t<decltype(r)>>; },
                         policy.chosen)
                  ? "raw"
                  : "law";
  if (d.space == "raw" && !combines)
    refuse("--space raw",
           "--policy " + d.policy + " combines no logits (" + combiner_names() + " do)");
  return d.space == "raw";
}

std::vector<std::size_t> gammas(const std::string& text) {
  return parse_list("--gamma", text, most_drafted, " (--decoder speculative also has auto)");
}

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

// ---- one function for each decoder: the options that it alone understands, and the call ---------

auto report_rounds(const decoding& j) {
  return [&j](const speculative_result& r, const auto& work) {
    j.after_round({r.drafted, r.accepted, r.emitted,
                   expected_tokens(std::span(work.acceptances).first(r.drafted)),
                   std::span(work.drafters).first(r.drafted)});
  };
}

// The drafters that --draft names, in its order: each is asked where those before it have nothing.
struct named_drafters {
  using model_draft = model_drafter<metered_model>;
  using head_draft = mapped_drafter<metered_model>;
  using row_type = any_row<normal_form<one_hot_row<float>>, normal_form<sparse_row<float>>,
                           normal_form<processed_row<float>>, normal_form<mapped_row<float>>>;
  static constexpr std::size_t drafters = 3;  // at most
  std::vector<std::variant<lookup_drafter<float>, counts_drafter<float>, model_draft, head_draft>>
      all;

  std::size_t vocab_size() const {
    return std::visit([](const auto& one) { return one.vocab_size(); }, all.front());
  }
  std::size_t position() const {
    std::size_t most = 0;
    for (const auto& each : all)
      most = std::max(most, std::visit([](const auto& one) { return one.position(); }, each));
    return most;
  }
  status rollback(std::size_t n) {
    status s = status::ok;
    for (auto& each : all)
      if (const status one = std::visit([n](auto& d) { return specagg::rollback(n, d); }, each);
          one != status::ok)
        s = one;
    return s;
  }
  template <class F>
  bool in_turn(F&& f) {
    for (std::size_t k = 0; k < all.size(); ++k)
      if (std::visit([&](auto& one) { return bool(f(one, k)); }, all[k])) return true;
    return false;
  }
  template <class P>
  status next(const draft_position& at, P& processor, row_type& row, double& confidence) {
    status s = status::no_draft;
    in_turn([&](auto& one, std::size_t) {
      typename std::remove_reference_t<decltype(one)>::row_type own;
      s = one.next(at, processor, own, confidence);
      if (s == status::ok) row = own;
      return s == status::ok || s == status::stopped;
    });
    return s;
  }
};

// Towards p alone, drafted by what --draft names.
void with_drafters(decoder& d, const generate_options& o, const any_policy& policy) {
  if (!std::holds_alternative<lossless>(policy.chosen))
    refuse("--policy " + d.policy, fmt::format("reads the row of a draft model at every token, and "
                                               "{0} often has none (--draft {0}: --policy "
                                               "lossless)",
                                               d.drafters[0]));
  (void)in_raw_space(d, policy, false);
  d.sparse = d.head;
  const bool measure = o.compare;
  d.prepare = [=, names = d.drafters, dense = !d.sparse, verify = d.verify, seed = o.seed,
               g = d.drafts, automatic = d.automatic](std::size_t vocabulary, std::size_t) {
    std::vector<float> logits(names.back() == "model" && dense ? (g + 1) * vocabulary : 0);
    return [=, work = drafting_workspace<float, named_drafters::row_type>(
                   vocabulary, {.gamma = g})](const decoding& j) mutable {
      const std::size_t capacity = j.text.tokens.size();
      named_drafters drafter;
      for (const std::string& name : names) {
        if (name == "lookup")
          drafter.all.emplace_back(lookup_drafter<float>(vocabulary, capacity, &j.documents));
        else if (name == "counts")
          drafter.all.emplace_back(
              counts_drafter<float>(vocabulary, capacity, g, j.sample, &j.counted));
        else if (dense)
          drafter.all.emplace_back(named_drafters::model_draft(j.models.front(), logits, j.sample));
        else
          drafter.all.emplace_back(
              named_drafters::head_draft(j.models.front(), *j.head_map, g, j.sample));
      }
      work.options = {g, j.sample, j.end_of_text, measure};
      any_length length{.learns = automatic,
                        .controller = plan::draft_length_controller(j.costs, names.size())};
      return with_verifier(verify, seed, [&](const auto& verifier) {
        return speculative_decode(j.text, j.most, drafter, j.models.back(), lossless(), j.chooser,
                                  work, with::processor{j.processor}, with::accept{j.accept},
                                  with::after_round{report_rounds(j)}, with::verifier{verifier},
                                  with::length{length});
      });
    };
  };
}

void speculative(decoder& d, const generate_options& o, const any_policy& policy) {
  const std::optional<any_combiner> combiner = as_combiner(policy);
  const bool raw = in_raw_space(d, policy, combiner.has_value());
  // acceptances cost a pass over both rows of every drafted position
  const bool measure = o.compare;
  d.prepare = [=, alone = d.draft_model.empty(), verify = d.verify, seed = o.seed, g = d.drafts,
               automatic = d.automatic](std::size_t vocabulary, std::size_t) {
    return [=, work = speculative_workspace<float>(vocabulary, {.gamma = g}),
            combined = std::vector<float>(raw ? vocabulary : 0)](const decoding& j) mutable {
      work.options = {g, j.sample, j.end_of_text, measure};
      // alone: nothing is drafted
      metered_model& draft = alone ? j.models.back() : j.models.front();
      const auto run = [&](const auto& chosen, const auto& verifier) {
        constexpr bool reads = reads_draft<std::decay_t<decltype(chosen)>>;
        const bool timed = !(reads && is_coupled<std::decay_t<decltype(verifier)>>);
        any_length length{.learns = automatic,
                          .controller = plan::draft_length_controller(j.costs),
                          .timed = timed};
        return speculative_decode(j.text, j.most, draft, j.models.back(), chosen, j.chooser, work,
                                  with::processor{j.processor}, with::accept{j.accept},
                                  with::after_round{report_rounds(j)}, with::verifier{verifier},
                                  with::length{length});
      };
      return with_verifier(verify, seed, [&](const auto& verifier) {
        if (raw)
          return run(raw_logits{*combiner},
                     raw_logits_verifier(verifier, std::span(combined), j.sample));
        return with_policy(policy, [&](const auto& chosen) { return run(chosen, verifier); });
      });
    };
  };
}
void speculative(decoder& d, const generate_options& o) {
  d.automatic = d.gamma == "auto";
  const std::vector<std::size_t> gamma =
      d.automatic ? std::vector{most_automatic} : gammas(d.gamma);
  if (gamma.size() != 1)
    refuse("--gamma " + d.gamma, "--decoder speculative takes one number, or auto");
  d.drafts = gamma[0];
  const bool only_models = d.drafters.empty();
  if (!d.draft_model.empty()) d.drafters.push_back("model");
  const any_policy policy = parse_policy(d.policy, o.sample.temperature);
  if (!only_models || (d.head && std::holds_alternative<lossless>(policy.chosen)))
    with_drafters(d, o, policy);
  else speculative(d, o, policy);
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

// every: at every token, instead of in turn.
template <std::size_t N>
void collaborative(decoder& d, const generate_options& o, bool every) {
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
  const auto run = [=](const decoding& j, const auto& chosen,
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
    return collaborative_decode(j.text, j.most, models, chosen, j.chooser, work,
                                with::processor{j.processor}, with::accept{j.accept},
                                with::after_round{after_turn}, with::drafter{lookup});
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

// What followed the same tokens before, as a tree of certain tokens.
void tree_of_lookup(decoder& d, const generate_options& o, const std::vector<std::size_t>& shape) {
  if (!std::holds_alternative<lossless>(parse_policy(d.policy, o.sample.temperature).chosen))
    refuse("--policy " + d.policy,
           "reads the row of a draft model, and a lookup has none (it takes lossless)");
  d.drafts = tree_size(shape);
  d.prepare = [=, verify = d.verify, nodes = d.drafts](std::size_t vocabulary, std::size_t) {
    const std::vector<std::uint8_t> all_of_lookup(nodes, 0);
    return [=, work = tree_workspace<float>(vocabulary, {.shape = shape}, false)](
               const decoding& j) mutable {
      lookup_drafter<float> lookup(vocabulary, j.text.tokens.size(), &j.documents);
      work.options = {.shape = shape, .sample = j.sample, .end_of_text = j.end_of_text};
      const auto after_round = [&](const tree_result& r, const auto&) {
        j.after_round({r.drafted, r.accepted, r.emitted, double(r.emitted),
                       std::span(all_of_lookup).first(r.drafted)});
      };
      const auto run = [&](const auto& verifier) {
        return tree_decode(j.text, j.most, lookup, j.models.back(), lossless(), j.chooser, work,
                           with::processor{j.processor}, with::accept{j.accept},
                           with::after_round{after_round}, with::verifier{verifier});
      };
      return verify == "recursive" ? run(recursive_rejection()) : run(traversal());
    };
  };
}

void tree(decoder& d, const generate_options& o) {
  d.automatic = d.tree == "auto";
  if (d.automatic && !d.drafters.empty())
    refuse("--tree auto", "grows by the rows of a draft model, and a lookup has none");
  if (d.automatic && d.propose != "greedy")
    refuse("--propose " + d.propose, "--tree auto proposes greedily");
  const std::vector<std::size_t> shape =
      d.automatic ? std::vector(deepest_tree, widest_tree) : parse_shape(d.tree);
  if (!d.drafters.empty()) return tree_of_lookup(d, o, shape);
  const any_policy policy = parse_policy(d.policy, o.sample.temperature);
  if (in_raw_space(d, policy, as_combiner(policy).has_value()))
    refuse("--policy " + d.policy, "combines raw logits; --decoder tree has --space law alone");
  d.drafts = d.automatic ? most_drafted : tree_size(shape);
  if (d.automatic) d.drafters = {"model"};
  const proposal propose = proposal_named(d.propose);
  d.prepare = [=, verify = d.verify, nodes = d.drafts, automatic = d.automatic](
                  std::size_t vocabulary, std::size_t) {
    const std::vector<std::uint8_t> all_of_model(automatic ? nodes : 0, 0);
    return [=, work = tree_workspace<float>(vocabulary, {.shape = shape, .most_nodes = nodes})](
               const decoding& j) mutable {
      work.options = {shape, propose, j.sample, j.end_of_text, nodes};
      const auto after_round = [&](const tree_result& r, const auto&) {
        const std::span drafters(all_of_model);
        j.after_round({r.drafted, r.accepted, r.emitted, double(r.emitted),
                       automatic ? drafters.first(r.drafted) : std::span<const std::uint8_t>()});
      };
      return with_policy(policy, [&](const auto& chosen) {
        const auto run = [&](const auto& verifier) {
          const auto grown = [&](auto&& growth) {
            return tree_decode(j.text, j.most, j.models.front(), j.models.back(), chosen, j.chooser,
                               work, with::processor{j.processor}, with::accept{j.accept},
                               with::after_round{after_round}, with::verifier{verifier},
                               with::growth{growth});
          };
          return automatic ? grown(watched_growth(j.costs)) : grown(fixed_growth());
        };
        return verify == "recursive" ? run(recursive_rejection()) : run(traversal());
      });
    };
  };
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
void sequential(decoder& d) {
  const any_policy policy = parse_policy(d.policy);
  const auto decode = [&](const auto& chosen) {
    cascade(d, [=](const decoding& j, auto& work) {
      return sequential_decode(j.text, j.most, j.models.front(), j.models.back(), chosen, j.chooser,
                               work, with::processor{j.processor}, with::accept{j.accept});
    });
  };
  if (const auto* chosen = std::get_if<chow>(&policy.chosen)) decode(*chosen);
  else if (const auto* log_policy = std::get_if<chow_log>(&policy.chosen)) decode(*log_policy);
  else
    refuse("--policy " + d.policy,
           "looks at p; --decoder sequential decides before p is computed (chow and chow-log look "
           "at q alone)");
}
void oracle(decoder& d, const generate_options& o) {
  const any_policy policy = parse_policy(d.policy, o.sample.temperature);
  // without drafts
  if (in_raw_space(d, policy, as_combiner(policy).has_value())) return speculative(d, o, policy);
  cascade(d, [=](const decoding& j, auto& work) {
    return oracle_decode(j.text, j.most, j.models.front(), j.models.back(), policy, j.chooser, work,
                         with::processor{j.processor}, with::accept{j.accept});
  });
}
void sequence(decoder& d) {
  const any_policy policy = parse_policy(d.policy);
  const auto* chosen = std::get_if<chow>(&policy.chosen);
  if (!chosen) refuse("--policy " + d.policy, "--decoder sequence knows one policy: chow");
  const auto decode = [alpha = chosen->alpha](const decoding& j, auto& work) {
    work.options.per_token = true;
    return sequence_decode(j.text, j.most, j.models.front(), j.models.back(), alpha, j.chooser,
                           work, with::processor{j.processor}, with::accept{j.accept});
  };
  cascade(d, decode, true);
}
void bild_original(decoder& d) {
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
    return bild_decode(j.text, j.most, j.models.front(), j.models.back(), thresholds, work,
                       with::processor{j.processor}, with::accept{j.accept},
                       with::after_round{after_round});
  });
}

struct known {
  // gamma, verifiers: "" where there is none; every_verifier
  const char *name, *policy, *gamma, *verifiers, *what;
};
constexpr char every_verifier[] = "*";
constexpr known all_known[] = {
    {"speculative", "lossless", "4", every_verifier, "the draft model drafts, the target verifies"},
    {"tree", "lossless", "", "traversal, recursive",
     "the draft model drafts a tree, scored in one call of the target"},
    {"alternating", "ensemble", "4", "token",
     "CoS: draft and target take turns, each drafts what both verify"},
    {"n-model", "ensemble", "4", "token",
     "CoS of the draft, every --model and the target (at most 4 models)"},
    {"sequential", "chow:alpha=0.5", "", "",
     "the target is called only where the policy defers (chow, chow-log)"},
    {"oracle", "lossless", "", "", "both models at every token, any policy"},
    {"sequence", "chow:alpha=0.5", "", "",
     "the draft writes everything; unsure of its tokens on average (chow), the target starts over"},
    {"bild", "bild:fallback=0.6,rollback=5", "", "",
     "Big Little Decoder, greedy at any temperature"},
};

// Throws specagg::error.
const known& known_decoder(const generate_options& o) {
  const std::string name = o.decoder == "speculative" && !o.tree.empty() ? "tree" : o.decoder;
  std::string names;
  for (const known& one : all_known) {
    if (name == one.name) return one;
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  refuse("--decoder " + o.decoder, "is unknown (" + names + " are known)");
}

// --draft lookup,counts,FILE: the words that it begins with, and then a model's file, or nothing.
void name_drafters(decoder& d, const std::string& draft) {
  std::string_view rest = draft;
  for (;;) {
    const std::string word(rest.substr(0, rest.find(',')));
    if (word != "lookup" && word != "counts") break;
    if (std::find(d.drafters.begin(), d.drafters.end(), word) != d.drafters.end())
      refuse("--draft " + draft, "names " + word + " twice");
    d.drafters.push_back(word);
    if (word.size() == rest.size()) return;
    rest.remove_prefix(word.size() + 1);
  }
  d.draft_model = rest;
  d.head = !rest.empty() && is_draft_head(d.draft_model);
  if (rest.empty() && !draft.empty()) refuse("--draft " + draft, "names no model");
}

std::string chosen(const std::string& given, const std::string& otherwise) {
  return given.empty() ? otherwise : given;
}
std::string chosen_verifier(const known& k, const std::string& given) {
  const std::string verifiers = k.verifiers == std::string(every_verifier)
                                    ? fmt::format("{}", fmt::join(cli::verifiers, ", "))
                                    : k.verifiers;
  if (!given.empty() && (", " + verifiers + ",").find(", " + given + ",") == std::string::npos)
    refuse("--verify " + given,
           std::string("is unknown to --decoder ") + k.name + " (it has " + verifiers + ")");
  return chosen(given, verifiers.substr(0, verifiers.find(',')));
}

// By the decoder's name; models: how many there are.
void prepare(decoder& d, const generate_options& o, std::size_t models, bool every) {
  if (d.name == "speculative") speculative(d, o);
  else if (d.name == "tree") tree(d, o);
  else if (d.name == "sequential") sequential(d);
  else if (d.name == "oracle") oracle(d, o);
  else if (d.name == "sequence") sequence(d);
  else if (d.name == "bild") bild_original(d);
  else if (models == 2) collaborative<2>(d, o, every);
  else if (models == 3) collaborative<3>(d, o, every);
  else collaborative<4>(d, o, every);
}

}  // namespace

std::vector<no_effect> without_effect(const generate_options& o) {
  const known& k = known_decoder(o);
  const std::string name = k.name, with = "with --decoder " + name;
  const bool alone = !o.target.empty() && o.draft.empty(), tree = name == "tree";
  decoder drafts;
  name_drafters(drafts, o.draft);
  const bool lookup = !drafts.drafters.empty(),
             no_rows = name == "sequential" || name == "sequence" || name == "bild";
  std::vector<no_effect> rows = {
      {alone,
       "without --draft: the target writes alone",
       {"--decoder", "--policy", "--verify", "--space", "--tree", "--propose", "--longest-run",
        "--lookup", "--model", "--compare", "--baseline"}},
      {alone && o.gamma != "0", "without --draft: the target writes alone", {"--gamma"}},
      {*k.gamma == '\0', with, {"--gamma"}},
      {*k.verifiers == '\0', with + ": it has no drafts to verify", {"--verify"}},
      {no_rows, with + ": it combines no rows", {"--space"}},
      {!alone && o.gamma == "0" && o.verify != "coupled",
       "with --gamma 0: nothing is drafted",
       {"--verify"}},
      {!tree, with + ": it drafts no trees", {"--tree"}},
      {!tree, "without --tree", {"--propose"}},
      {tree && lookup, "with --draft lookup: it proposes what followed most often", {"--propose"}},
      {name != "sequential" && name != "bild",
       with + ", only with sequential and bild",
       {"--longest-run"}},
      {name != "n-model", with + ", only with n-model", {"--model"}},
      {name == "bild", with + ": it draws nothing", {"--seed"}},
      {!lookup, "without --draft lookup or --draft counts", {"--lookup"}},
      {!o.compare, "without --compare", {"--baseline"}},
      {!o.chat, "without --chat", {"--system"}},
      {o.json, "with --json", {"--color"}},
      without_effect_at(o.sample)};
  for (no_effect& row : without_effect_on(o.backend)) rows.push_back(std::move(row));
  return rows;
}

decoder make_decoder(const generate_options& o, bool every) {
  const known& k = known_decoder(o);
  decoder d;
  d.name = k.name;
  d.policy = chosen(o.policy, k.policy);
  d.gamma = chosen(o.gamma, k.gamma);
  d.verify = chosen_verifier(k, o.verify);
  d.space = o.space;
  if (d.name == "tree") {
    d.tree = chosen(o.tree, "3,2,1,1");
    d.propose = chosen(o.propose, "greedy");
  }
  if (!o.space.empty() && o.space != "raw" && o.space != "law")
    refuse("--space " + o.space, "is unknown (raw, law are known)");
  name_drafters(d, o.draft);
  const bool turns = d.name == "alternating" || d.name == "n-model";
  const bool lookup_alone = d.drafters == std::vector<std::string>{"lookup"};
  const bool in_tree = d.name == "tree" && lookup_alone && d.draft_model.empty();
  if (!d.drafters.empty() && d.name != "speculative" && !in_tree && !(turns && lookup_alone))
    refuse("--draft " + o.draft,
           "--decoder " + d.name +
               " takes a draft model (speculative takes lookup and counts; alternating, n-model "
               "and, in place of a model, tree take a lookup)");
  if (in_tree) d.propose.clear();
  d.lookup_first = turns && !d.drafters.empty();
  if (turns) d.drafters.clear();
  if (o.longest_run) {
    if (*o.longest_run > most_drafted)
      refuse(fmt::format("--longest-run {}", *o.longest_run),
             fmt::format("is no number from 0 to {}", most_drafted));
    d.longest_run = *o.longest_run;
  }
  if (!o.baseline.empty()) {
    if (o.baseline != "target" && o.baseline != "all-models")
      refuse("--baseline " + o.baseline, "is unknown (target, all-models are known)");
    if (o.baseline == "all-models" && !turns)
      refuse(
          "--baseline all-models",
          "--decoder " + d.name + " has no models that take turns (alternating and n-model have)");
  }
  const std::size_t n = (d.draft_model.empty() ? 1 : 2) + o.models.size();
  if (turns && n < 2)
    refuse("--draft " + o.draft,
           "--decoder " + d.name + " takes turns with a draft model, too (--draft lookup,FILE)");
  if (n > most_models)
    refuse("--model " + o.models[most_models - 2],
           fmt::format("is one too many: at most {} models", most_models));
  prepare(d, o, n, every);
  return d;
}

decoder target_alone() {
  generate_options o;
  o.gamma = "0";
  return make_decoder(o);
}
decoder baseline(const generate_options& o) {
  return o.baseline == "all-models" ? make_decoder(o, true) : target_alone();
}

std::vector<std::string> decoder_names() {
  std::vector<std::string> names;
  for (const known& k : all_known) names.emplace_back(k.name);
  return names;
}

std::string decoders_help() {
  std::string all = "Decoders (default policy):\n";
  for (const known& k : all_known)
    all += fmt::format("  {:<12} {:<29} {}\n", k.name, k.policy, k.what);
  return all +
         "  Three or more models: ensemble, geometric, realign, power (w1=..,w2=..: one weight "
         "each), minimum, maximum.\n"
         "  --space raw, the default of contrastive, geometric and realign: the models' logits are "
         "combined, then "
         "temperature\n"
         "  and filters act on the result. law, that of all other policies: they act on each "
         "model's "
         "row first; at "
         "temperature 0\n"
         "  or with filters these may have too little in common. Policies that choose between rows "
         "have law alone.\n"
         "  --gamma auto measures the models first, and stops drafting where a token more costs "
         "more than it brings.\n"
         "  --tree auto does so, too, and drafts the nodes and levels of a tree that bring more "
         "than they cost.\n"
         "  --draft lookup drafts what followed the same tokens before, in the text or in the "
         "files of --lookup. "
         "counts\n"
         "  draws from all that followed the last tokens there, as often as it did. "
         "lookup,counts,FILE asks each, and "
         "the\n"
         "  model FILE, where those before it have nothing; any part may be left out. FILE may be "
         "a draft head of the "
         "target\n"
         "  (tools/train-head makes one). Lookup and counts are for --decoder "
         "speculative,\n"
         "  --policy lossless. In alternating and n-model a lookup goes before the first model "
         "(lookup,FILE) and "
         "drafts as\n"
         "  many tokens; all models verify them. --tree N,N --draft lookup drafts all that "
         "followed, the most frequent "
         "first.\n";
}

}  // namespace cli
