// SPDX-License-Identifier: Apache-2.0
// --decoder NAME with its policy, verifier and gammas: checked to fit together, then ready to
// decode.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <specagg/decoders.hpp>

#include "backends.hpp"
#include "generate.hpp"
#include "no_effect.hpp"

namespace cli {

using metered_model = specagg::metered<session>;

// The penalties of a text, and the tokens that are never drawn.
struct adjustments : specagg::penalties {
  std::span<const specagg::token_id> unused;
  bool none() const { return penalties::none() && unused.empty(); }
  void apply(std::span<float> logits) const {
    penalties::apply(logits);
    mask(logits, unused);
  }
};

// What a round did. drafters: for each drafted token, which of decoder::drafters proposed it; empty
// where all tokens come from models that take turns.
struct round_report {
  std::size_t drafted, accepted, emitted;
  double expected;  // tokens
  std::span<const std::uint8_t> drafters = {};
};

// What one decoding works on. models: in the order in which they draft; the target is the last.
struct decoding {
  specagg::text& text;
  std::size_t most;  // tokens to emit
  specagg::sampling sample;
  specagg::end_tokens end_of_text;
  std::span<metered_model> models;
  specagg::random_streams& chooser;
  adjustments& processor;
  specagg::plan::draft_costs costs;  // for --gamma auto
  std::function<bool(const specagg::emission&)> accept;
  std::function<void(const round_report&)> after_round;
  const specagg::suffix_automaton& documents;         // for a lookup
  const specagg::ngram_counts& counted;               // the same for counts
  const specagg::vocabulary_map* head_map = nullptr;  // of decoder::sparse
};

struct decoder {
  std::string name, policy, verify, gamma;  // as given, or the defaults of this decoder
  std::string space;                        // raw or law; "" where the decoder combines nothing
  std::string tree, propose;                // of --decoder tree
  bool every = false;      // models that would take turns are all called at every token
  bool combines = false;   // the policy could be combined in the other space
  std::size_t drafts = 0;  // tokens that may stand after the text
  std::size_t longest_run = specagg::cascade_options().longest_run;  // of sequential and bild
  bool automatic = false;                                            // needs decoding::costs
  std::string draft_model;                                           // file; empty: none
  bool head = false;                                                 // it is a draft head
  // whose rows are over its own vocabulary; else they are over the target's
  bool sparse = false;
  // of --decoder speculative, in the order in which they are asked: lookup, counts, model; a model
  // is the last
  std::vector<std::string> drafters;
  bool lookup_first = false;                               // before models that take turns
  std::optional<specagg::synthetic_acceptance> synthetic;  // with rates that the options hold
  // All memory of a decoding of at most `most` tokens, allocated; what is returned decodes in it.
  std::function<std::function<specagg::status(const decoding&)>(std::size_t vocabulary,
                                                                std::size_t most)>
      prepare;
};

// The options of specagg generate that have no effect beside the others, but for those of which
// CLI11 knows it. Throws specagg::error: --draft names a drafter twice, or nothing after a comma.
std::vector<no_effect> without_effect(const generate_options& options);
// Throws specagg::error where the options do not fit together, and says what would.
// every: models that would take turns are all called at every token.
decoder make_decoder(const generate_options& options, bool every = false);
// The target, the last of the models, without drafts.
decoder target_alone();
// What --compare compares with, by --baseline: the target alone, or all models at every token, with
// the same law.
decoder baseline(const generate_options& options);

std::vector<std::string> decoder_names();
// --help: the decoders and what each takes.
std::string decoders_help();

}  // namespace cli
