// SPDX-License-Identifier: Apache-2.0
// --decoder speculative and tree.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costs.hpp"
#include "decoder_parts.hpp"
#include "lengths.hpp"

namespace cli {
namespace {

using namespace specagg;

constexpr std::size_t most_automatic = 32;  // tokens drafted by --gamma auto, at most
// levels, and children of a node, of --tree auto
constexpr std::size_t deepest_tree = 8, widest_tree = 4;

// What --synthetic-acceptance-length or -rates ask for; null: nothing.
const synthetic_acceptance* asked_for(const std::optional<synthetic_acceptance>& synthetic) {
  return synthetic ? &*synthetic : nullptr;
}

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
  using any_drafter =
      std::variant<lookup_drafter<float>, counts_drafter<float>, model_draft, head_draft>;
  // at most: of a model and a head there is one
  static constexpr std::size_t drafters = std::variant_size_v<any_drafter> - 1;
  std::vector<any_drafter> all;

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

// The words of --draft for drafters without a model.
struct drafter_word {
  const char* name;
  void (*add)(named_drafters&, const decoding&, std::size_t vocabulary, std::size_t gamma);
};
constexpr drafter_word drafter_words[] = {
    {"lookup",
     [](named_drafters& to, const decoding& j, std::size_t vocabulary, std::size_t) {
       to.all.emplace_back(lookup_drafter<float>(vocabulary, j.text.tokens.size(), &j.documents));
     }},
    {"counts",
     [](named_drafters& to, const decoding& j, std::size_t vocabulary, std::size_t gamma) {
       to.all.emplace_back(
           counts_drafter<float>(vocabulary, j.text.tokens.size(), gamma, j.sample, &j.counted));
     }}};

// What the options ask for; the rates stay theirs.
std::optional<synthetic_acceptance> synthetic_of(const generate_options& o, const decoder& d) {
  const std::vector<double>& rates = o.synthetic_rates;
  if (!o.synthetic_length && rates.empty()) return std::nullopt;
  const std::string given =
      o.synthetic_length ? fmt::format("--synthetic-acceptance-length {:g}", *o.synthetic_length)
                         : fmt::format("--synthetic-acceptance-rates {:g}", fmt::join(rates, ","));
  if (d.automatic) refuse(given, "--gamma auto drafts by what is accepted");
  const auto how = o.synthetic_length ? synthetic_acceptance{*o.synthetic_length}
                                      : synthetic_acceptance::of_rates(rates);
  if (!how.valid()) refuse(given, "has a number above the one before it");
  if (rates.size() > d.drafts)
    refuse(given, fmt::format("has {} numbers, and --gamma is {}", rates.size(), d.drafts));
  if (how.length > double(d.drafts + 1))
    refuse(given, fmt::format("--gamma {} has at most {} tokens a round", d.drafts, d.drafts + 1));
  return how;
}

// Towards p alone, drafted by what --draft names.
void with_drafters(decoder& d, const generate_options& o, bool towards_p) {
  if (!towards_p)
    refuse("--policy " + d.policy, fmt::format("reads the row of a draft model at every token, and "
                                               "{0} often has none (--draft {0}: --policy "
                                               "lossless)",
                                               d.drafters[0]));
  (void)in_raw_space(d, any_policy(), false);
  d.sparse = d.head;
  const bool measure = o.compare;
  d.prepare = [=, names = d.drafters, dense = !d.sparse, verify = d.verify, seed = o.seed,
               synthetic = d.synthetic, g = d.drafts,
               automatic = d.automatic](std::size_t vocabulary, std::size_t) {
    std::vector<float> logits(names.back() == "model" && dense ? (g + 1) * vocabulary : 0);
    return [=, work = drafting_workspace<float, named_drafters::row_type>(
                   vocabulary, {.gamma = g})](const decoding& j) mutable {
      named_drafters drafter;
      for (const std::string& name : names)
        for (const drafter_word& word : drafter_words)
          if (name == word.name) word.add(drafter, j, vocabulary, g);
      if (names.back() == "model") {
        if (dense)
          drafter.all.emplace_back(named_drafters::model_draft(j.models.front(), logits, j.sample));
        else
          drafter.all.emplace_back(
              named_drafters::head_draft(j.models.front(), *j.head_map, g, j.sample));
      }
      work.options = {g, j.sample, j.end_of_text, measure};
      any_length length{.learns = automatic,
                        .controller = plan::draft_length_controller(j.costs, names.size())};
      return with_verifier(verify, seed, [&](const auto& verifier) {
        return speculative_decode(drafter, j.models.back(), lossless(), j.chooser,
                                  {.text = j.text,
                                   .most = j.most,
                                   .work = work,
                                   .processor = j.processor,
                                   .accept = j.accept,
                                   .after_round = report_rounds(j)},
                                  synthetic_verifier(verifier, asked_for(synthetic)), length);
      });
    };
  };
}

// Drafted by a model, or not at all. stateful: what stands in place of `policy`, or null; its state
// begins with what is written.
void with_models(decoder& d, const generate_options& o, const any_policy& policy,
                 const std::shared_ptr<const stateful_policy>& stateful) {
  const std::optional<any_combiner> combiner = as_combiner(policy);
  const bool raw = in_raw_space(d, policy, !stateful && combiner.has_value());
  // acceptances cost a pass over both rows of every drafted position
  const bool measure = o.compare;
  if (d.synthetic && (raw || stateful))
    refuse(o.synthetic_length ? "--synthetic-acceptance-length" : "--synthetic-acceptance-rates",
           "--policy " + d.policy + (stateful ? " has a state" : " combines raw logits"));
  d.prepare = [=, alone = d.draft_model.empty(), verify = d.verify, seed = o.seed, g = d.drafts,
               synthetic = d.synthetic,
               automatic = d.automatic](std::size_t vocabulary, std::size_t) {
    return [=, work = speculative_workspace<float>(vocabulary, {.gamma = g}),
            combined = std::vector<float>(raw ? vocabulary : 0),
            states = std::vector<any_stateful::state>(g + 1)](const decoding& j) mutable {
      work.options = {g, j.sample, j.end_of_text, measure};
      // alone: nothing is drafted
      metered_model& draft = alone ? j.models.back() : j.models.front();
      const auto run = [&](const auto& chosen, const auto& verifier) {
        constexpr bool reads = reads_draft<std::decay_t<decltype(chosen)>>;
        const bool timed = !(reads && is_coupled<std::decay_t<decltype(verifier)>>);
        any_length length{.learns = automatic,
                          .controller = plan::draft_length_controller(j.costs),
                          .timed = timed};
        return speculative_decode(draft, j.models.back(), chosen, j.chooser,
                                  {.text = j.text,
                                   .most = j.most,
                                   .work = work,
                                   .processor = j.processor,
                                   .accept = j.accept,
                                   .after_round = report_rounds(j)},
                                  verifier, length);
      };
      return with_verifier(verify, seed, [&](const auto& verifier) {
        if (raw)
          return run(raw_logits{*combiner},
                     raw_logits_verifier(verifier, std::span(combined), j.sample));
        if (stateful) {
          states[0] = stateful->policy.begin();
          return run(stateful->policy, stateful_verifier(verifier, std::span(states)));
        }
        return with_policy(policy, [&](const auto& chosen) {
          return run(chosen, synthetic_verifier(verifier, asked_for(synthetic)));
        });
      });
    };
  };
}

}  // namespace

std::vector<std::string> drafters_without_model() {
  std::vector<std::string> names;
  for (const drafter_word& word : drafter_words) names.emplace_back(word.name);
  return names;
}

void prepare_by_models(decoder& d, const generate_options& o, const any_policy& policy) {
  with_models(d, o, policy, nullptr);
}
void prepare_speculative(decoder& d, const generate_options& o) {
  d.automatic = d.gamma == "auto";
  const std::vector<std::size_t> gamma =
      d.automatic ? std::vector{most_automatic} : gammas(d.gamma);
  if (gamma.size() != 1)
    refuse("--gamma " + d.gamma, "--decoder speculative takes one number, or auto");
  d.drafts = gamma[0];
  d.synthetic = synthetic_of(o, d);
  const bool only_models = d.drafters.empty();
  if (!d.draft_model.empty()) d.drafters.push_back("model");
  const std::shared_ptr<const stateful_policy> stateful = parse_stateful(d.policy);
  const any_policy policy = stateful ? any_policy() : parse_policy(d.policy, o.sample.temperature);
  const bool towards_p = !stateful && std::holds_alternative<lossless>(policy.chosen);
  if (!only_models || (d.head && towards_p)) with_drafters(d, o, towards_p);
  else with_models(d, o, policy, stateful);
}

namespace {

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
        return tree_decode(lookup, j.models.back(), lossless(), j.chooser,
                           {.text = j.text,
                            .most = j.most,
                            .work = work,
                            .processor = j.processor,
                            .accept = j.accept,
                            .after_round = after_round},
                           verifier);
      };
      return with_tree_verifier(verify, run);
    };
  };
}

}  // namespace

void prepare_tree(decoder& d, const generate_options& o) {
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
            return tree_decode(j.models.front(), j.models.back(), chosen, j.chooser,
                               {.text = j.text,
                                .most = j.most,
                                .work = work,
                                .processor = j.processor,
                                .accept = j.accept,
                                .after_round = after_round},
                               verifier, growth);
          };
          return automatic ? grown(watched_growth(j.costs)) : grown(fixed_growth());
        };
        return with_tree_verifier(verify, run);
      });
    };
  };
}

}  // namespace cli
