// SPDX-License-Identifier: Apache-2.0
#include "decoders.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <vector>

#include "decoder_parts.hpp"

namespace cli {
namespace {

using namespace specagg;

using words = std::vector<std::string>;
bool has(const words& all, const std::string& word) {
  return std::find(all.begin(), all.end(), word) != all.end();
}

enum class drafts { none, chains, chains_by_token, trees };
struct known {
  const char *name, *policy, *gamma = "";
  drafts verified = drafts::none;
  words drafters = {};  // of --draft, beside a model or in place of one
  words takes;          // options that not every decoder takes
  void (*prepare)(decoder&, const generate_options&);
  const char* what;
};
const known all_known[] = {
    {.name = "speculative",
     .policy = "lossless",
     .gamma = "4",
     .verified = drafts::chains,
     .drafters = {"lookup", "counts"},
     .takes = {"--gamma", "--verify", "--space", "--seed", "--synthetic-acceptance-length",
               "--synthetic-acceptance-rates"},
     .prepare = prepare_speculative,
     .what = "the draft model drafts, the target verifies"},
    {.name = "tree",
     .policy = "lossless",
     .verified = drafts::trees,
     .drafters = {"lookup"},
     .takes = {"--verify", "--space", "--tree", "--propose", "--seed"},
     .prepare = prepare_tree,
     .what = "the draft model drafts a tree, scored in one call of the target"},
    {.name = "alternating",
     .policy = "ensemble",
     .gamma = "4",
     .verified = drafts::chains_by_token,
     .drafters = {"lookup"},
     .takes = {"--gamma", "--verify", "--space", "--seed"},
     .prepare = prepare_collaborative,
     .what = "CoS: draft and target take turns, each drafts what both verify"},
    {.name = "n-model",
     .policy = "ensemble",
     .gamma = "4",
     .verified = drafts::chains_by_token,
     .drafters = {"lookup"},
     .takes = {"--gamma", "--verify", "--space", "--model", "--seed"},
     .prepare = prepare_collaborative,
     .what = "CoS of the draft, every --model and the target (at most 4 models)"},
    {.name = "sequential",
     .policy = "chow:alpha=0.5",
     .takes = {"--longest-run", "--seed"},
     .prepare = prepare_sequential,
     .what = "the target is called only where the policy defers (chow, chow-log)"},
    {.name = "oracle",
     .policy = "lossless",
     .takes = {"--space", "--seed"},
     .prepare = prepare_oracle,
     .what = "both models at every token, any policy"},
    {.name = "sequence",
     .policy = "chow:alpha=0.5",
     .takes = {"--seed"},
     .prepare = prepare_sequence,
     .what = "the draft writes everything; unsure of its tokens on average (chow), the target "
             "starts over"},
    {.name = "bild",
     .policy = "bild:fallback=0.6,rollback=5",
     .takes = {"--longest-run"},
     .prepare = prepare_bild,
     .what = "Big Little Decoder, greedy at any temperature"},
};

// --decoder, which takes one of decoder_names().
const known& known_decoder(const generate_options& o) {
  const std::string name = o.decoder == "speculative" && !o.tree.empty() ? "tree" : o.decoder;
  return *std::find_if(std::begin(all_known), std::end(all_known),
                       [&](const known& k) { return name == k.name; });
}

// The options that only other decoders take, and why: a reason, or the names of those decoders.
std::vector<no_effect> not_taken_by(const known& decoder) {
  const std::map<std::string, std::string> reasons = {{"--verify", ": it has no drafts to verify"},
                                                      {"--space", ": it combines no rows"},
                                                      {"--tree", ": it drafts no trees"},
                                                      {"--seed", ": it draws nothing"}};
  std::map<std::string, words> takers;
  for (const known& k : all_known)
    for (const std::string& option : k.takes) takers[option].push_back(k.name);
  std::vector<no_effect> rows;
  for (const auto& [option, names] : takers) {
    const auto reason = reasons.find(option);
    const std::string why = reason != reasons.end()
                                ? reason->second
                                : fmt::format(", only with {}", fmt::join(names, ", "));
    rows.push_back({!has(names, decoder.name),
                    fmt::format("with --decoder {}{}", decoder.name, why),
                    {option}});
  }
  return rows;
}

// --draft lookup,counts,FILE: the words that it begins with, and then a model's file, or nothing.
void name_drafters(decoder& d, const std::string& draft) {
  std::string_view rest = draft;
  for (;;) {
    const std::string word(rest.substr(0, rest.find(',')));
    if (!has(drafters_without_model(), word)) break;
    if (has(d.drafters, word)) refuse("--draft " + draft, "names " + word + " twice");
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
  std::vector<std::string> known;
  if (k.verified == drafts::chains) known = cli::verifiers;
  if (k.verified == drafts::chains_by_token) known = {cli::verifiers[0]};
  if (k.verified == drafts::trees) known = cli::tree_verifiers;
  if (!given.empty() && std::find(known.begin(), known.end(), given) == known.end())
    refuse("--verify " + given,
           fmt::format("is unknown to --decoder {} (it has {})", k.name, fmt::join(known, ", ")));
  return given.empty() && !known.empty() ? known[0] : given;
}

}  // namespace

std::vector<no_effect> without_effect(const generate_options& o) {
  const known& k = known_decoder(o);
  const bool alone = !o.target.empty() && o.draft.empty();
  decoder drafts;
  name_drafters(drafts, o.draft);
  const bool lookup = !drafts.drafters.empty();
  std::vector<no_effect> rows = {
      {alone,
       "without --draft: the target writes alone",
       {"--decoder", "--policy", "--verify", "--space", "--tree", "--propose", "--longest-run",
        "--lookup", "--model", "--compare", "--baseline", "--synthetic-acceptance-length",
        "--synthetic-acceptance-rates"}},
      {alone && o.gamma != "0", "without --draft: the target writes alone", {"--gamma"}},
      {!alone && o.gamma == "0" && o.verify != "coupled",
       "with --gamma 0: nothing is drafted",
       {"--verify", "--synthetic-acceptance-length", "--synthetic-acceptance-rates"}},
      {lookup, "with --draft lookup: it proposes what followed most often", {"--propose"}},
      {!lookup, "without --draft lookup or --draft counts", {"--lookup"}},
      without_effect_at(o.sample)};
  for (const auto& more : {not_taken_by(k), without_effect_on(o.backend)})
    rows.insert(rows.end(), more.begin(), more.end());
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
  name_drafters(d, o.draft);
  const bool turns = d.name == "alternating" || d.name == "n-model";
  const bool in_tree = d.name == "tree" && !d.drafters.empty();
  for (const std::string& word : d.drafters)
    if (!has(k.drafters, word) || (in_tree && !d.draft_model.empty()))
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
  if (o.baseline == "all-models" && !turns)
    refuse("--baseline all-models", "--decoder " + d.name +
                                        " has no models that take turns (alternating and n-model "
                                        "have)");
  const std::size_t n = models_of(d, o);
  if (turns && n < 2)
    refuse("--draft " + o.draft,
           "--decoder " + d.name + " takes turns with a draft model, too (--draft lookup,FILE)");
  if (n > most_models)
    refuse("--model " + o.models[most_models - 2],
           fmt::format("is one too many: at most {} models", most_models));
  d.every = every;
  k.prepare(d, o);
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
         "  Policies with state are for speculative with a draft model.\n"
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
