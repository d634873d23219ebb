// SPDX-License-Identifier: Apache-2.0
#include "decoders.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "decoder_parts.hpp"

namespace cli {
namespace {

using namespace specagg;

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
  if (d.name == "speculative") prepare_speculative(d, o);
  else if (d.name == "tree") prepare_tree(d, o);
  else if (d.name == "sequential") prepare_sequential(d);
  else if (d.name == "oracle") prepare_oracle(d, o);
  else if (d.name == "sequence") prepare_sequence(d);
  else if (d.name == "bild") prepare_bild(d);
  else prepare_collaborative(d, o, models, every);
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
