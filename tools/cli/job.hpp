// SPDX-License-Identifier: Apache-2.0
// What specagg generate was asked, with what it needs, opened; and one decoding of its prompt.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "decoders.hpp"
#include "mapped_model.hpp"

namespace cli {

// One model file, and one text in it.
struct model {
  std::string path;
  std::unique_ptr<cli::session> session;
  std::unique_ptr<const tokenizer> tokens;
  const mapped_session* mapped = nullptr;  // the session, where the vocabulary is not the target's
  // of a head's session with rows over its own vocabulary
  const specagg::vocabulary_map* head_map = nullptr;
  model(const std::string& file, backend& on);
  // A draft head of the target. sparse: as decoder::sparse.
  model(const std::string& file, backend& on, const model& target, bool sparse);
};

// What one decoding gave. Of the models, the last is the target.
struct decoded {
  std::vector<specagg::emission> emissions;
  std::string text, ended_by;
  std::size_t rounds = 0, drafted = 0, accepted = 0;
  double expected = 0;  // sum over rounds of expected_tokens
  std::vector<metered_model> models;
  std::size_t prompt_known = 0;  // tokens of the prompt that the target had seen before
  double total_seconds = 0, prompt_seconds = 0, output_seconds = 0;  // total: without the prompt
  specagg::plan::draft_costs costs;                                  // measured for --gamma auto
  // which drafter each emitted token came from; -1: none
  std::vector<int> drafters;
  std::vector<std::size_t> drafted_by, accepted_by;  // tokens of each drafter

  // A round begins; its i-th token, and then the next, is one of the text.
  void count(const round_report& round);
  void count(const round_report& round, std::size_t i);
  std::size_t target_calls() const { return models.back().calls; }
  double target_seconds() const { return models.back().seconds; }
  std::size_t draft_calls() const;
  double draft_seconds() const;
  double other_seconds() const {
    return total_seconds - target_seconds() - draft_seconds() - output_seconds;
  }
  double per_target_call() const {
    return double(emissions.size()) / double(std::max<std::size_t>(target_calls(), 1));
  }
  double acceptance() const { return drafted ? double(accepted) / double(drafted) : 0; }
  double tokens_per_second() const { return double(emissions.size()) / total_seconds; }
};

// What does not change between the decodings of one command.
struct job {
  generate_options options;
  decoder how;
  std::unique_ptr<backend> on;
  std::vector<std::unique_ptr<model>> models;  // the target is the last
  double load_seconds = 0;
  std::size_t context = 0;                // tokens that all models hold
  std::vector<specagg::token_id> ends;    // the tokens that end a text
  std::vector<specagg::token_id> unused;  // those that are never drawn
  specagg::suffix_automaton documents;    // of --lookup, for lookups
  specagg::ngram_counts counted;          // the same for counts
  // changed from turn to turn of a conversation
  std::vector<specagg::token_id> prompt;
  std::size_t most = 0;  // tokens to emit
  std::size_t known =
      0;  // tokens of the prompt that the models may have seen before, in this order
  specagg::plan::draft_costs costs = {};  // of --gamma auto, measured when the prompt had
  std::size_t measured_at = 0;            // so many tokens; again when it has twice as many

  const tokenizer& tokens() const { return *models.back()->tokens; }
  // Decodes the prompt once. watch(emission, text so far) sees each token.
  decoded run(const decoder& d,
              const std::function<void(const specagg::emission&, const decoded&)>& watch);
};

// Opens what is asked. Throws specagg::error for anything that cannot be used.
job prepare(const generate_options& options);

// The baseline (the target alone, or all models at every token) and the decoder, timed in turn:
// five times, or as often as `seconds` allow.
struct comparison {
  static constexpr int most_repeats = 5;
  static constexpr double seconds = 20;
  int repeats = 0;
  decoded alone, chosen;  // the last of each
  double measured = 0, predicted = 0;
  std::string formula;  // of the prediction, with its numbers
  double c = 0, v = 0;  // a draft step, and a scoring, in single-token steps of the target
  double d = 0;         // scoring each drafted token
  // Where a model alone drafts: its acceptance, the same at every position, and the gamma that is
  // best by these costs.
  std::optional<double> acceptance = {};
  specagg::plan::fixed_draft best = {};
};
comparison compare(job& j);

// ---- what is printed: text, or with --json one object -------------------------------------------

// Decodes the prompt once, and prints the text as it comes. explain: its marks.
decoded run_and_print(job& j, bool explain);
// A turn of a conversation.
void print_turn(const job& j, const decoded& answer, std::size_t turn, const std::string& asked);
// asked: the turn's text cannot be tokens.
void print_refused(const job& j, const specagg::error& why, std::size_t turn,
                   const std::string& asked);
void print_once(const job& j, const decoded& once, const std::string& prompt);
void print_comparison(const job& j, const comparison& r, const std::string& prompt);

}  // namespace cli
