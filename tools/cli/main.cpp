// SPDX-License-Identifier: Apache-2.0
// The command-line program: options in, one clear line and exit status 2 for what cannot be used.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include <specagg/error.hpp>

#include "audit.hpp"
#include "backends.hpp"
#include "completion.hpp"
#include "decoders.hpp"
#include "effects.hpp"
#include "files.hpp"
#include "generate.hpp"
#include "law.hpp"
#include "lists.hpp"
#include "manual.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "policies.hpp"
#include "score.hpp"
#include "two_sites.hpp"
#include "unknown.hpp"
#include "version.hpp"

namespace {

template <class Lines>
std::string listed(const Lines& lines) {
  std::string all;
  for (const auto& r : lines) all += fmt::format("  {:<11} {:<38} {}\n", r.name, r.keys, r.law);
  return all;
}
std::string policies() {
  return "Policies (q: draft, p: target):\n" + listed(cli::known_policies()) +
         "\nPolicies with state, whose law is that of a text. Inside a value of phase / stands for "
         "a comma:\n" +
         listed(cli::known_stateful_policies());
}

// In --help a list that long is only a name; the footer has the words.
void add_policy(CLI::App& app, CLI::App* c, std::string& policy, const char* what) {
  std::vector<std::string> names;
  for (const cli::known_policy& r : cli::known_policies()) names.push_back(r.name);
  for (const cli::known_stateful& r : cli::known_stateful_policies()) names.push_back(r.name);
  const CLI::Option* option = cli::takes(c->add_option("--policy", policy, what), names);
  app.get_formatter()->label(option->get_type_name(), "NAME[:KEY=VALUE,...]");
}
void add_decoder(CLI::App& app, CLI::App* c, std::string& decoder) {
  CLI::Option* option =
      cli::one_of(c->add_option("--decoder", decoder, "How the models work together (see below)"),
                  cli::decoder_names());
  app.get_formatter()->label(option->capture_default_str()->get_type_name(), "NAME");
}

void add_verify(CLI::App* c, std::string& verify) {
  std::vector<std::string> names = cli::verifiers;
  names.insert(names.end(), cli::tree_verifiers.begin(), cli::tree_verifiers.end());
  cli::takes(c->add_option("--verify", verify,
                           fmt::format("How drafts are verified; of trees: {}",
                                       fmt::join(cli::tree_verifiers, ", "))),
             names);
}
void add_tree(CLI::App* c, std::string& shape, std::string& propose, const char* type) {
  c->add_option("--tree", shape, "Tokens proposed after every node of a tree of drafts, by depth")
      ->type_name(type);
  cli::one_of(c->add_option("--propose", propose,
                            "How: the most likely and one drawn, drawn without replacement, or the "
                            "most likely [greedy]"),
              {"greedy", "sampled", "top"});
}
void add_models(CLI::App* g, cli::generate_options& o) {
  cli::file(g, "--target", o.target, "GGUF file of the target model [the bundled target model]");
  cli::file(g, "--draft", o.draft,
            "What drafts: GGUF file of a model, lookup, counts, or several: lookup,counts,FILE "
            "(see below) [the bundled draft model; with --target: none, the target writes alone]");
  cli::file(g, "--lookup", o.lookups,
            "Text file that --draft lookup and counts know (may be given several times)")
      ->allow_extra_args(false);
  cli::file(g, "--model", o.models,
            "GGUF file of a further model, for --decoder n-model (may be given several times)")
      ->allow_extra_args(false);
}
void add_prompt_or_chat(CLI::App* g, cli::generate_options& o) {
  cli::add_prompt(g, o.prompt, o.prompt_file);
  g->add_flag(
      "--chat", o.chat,
      "A conversation, by the model's chat template: --prompt is its first turn, lines of standard "
      "input the rest");
  g->add_option("--system", o.system, "The system text of a chat [the one in the model's template]")
      ->type_name("TEXT")
      ->needs("--chat");
}
void add_generate(CLI::App& app, cli::generate_options& o) {
  CLI::App* g =
      app.add_subcommand("generate", "Decode a prompt with a target model and a draft model");
  add_models(g, o);
  add_decoder(app, g, o.decoder);
  add_policy(app, g, o.policy, "The law to emit (see below)");
  add_verify(g, o.verify);
  cli::one_of(
      g->add_option("--space", o.space,
                    "What a policy combines: the models' logits, or their rows (see below)"),
      {"raw", "law"});
  g->add_option("--gamma", o.gamma,
                "Tokens drafted a round, or auto; 0: the target alone. CoS: one number for each "
                "model, N,N,... [4]");
  g->add_option("--synthetic-acceptance-length", o.synthetic_length,
                "For benchmarks: tokens a round has on average, at most gamma + 1, whatever the "
                "models say; the text has no law")
      ->type_name("NUMBER")
      ->check(CLI::Range(1.0, double(cli::most_drafted + 1)));
  g->add_option(
       "--synthetic-acceptance-rates", o.synthetic_rates,
       "The same by position: how often at least the first, the first two, ... drafted tokens are "
       "accepted; at most gamma numbers, none above the one before it")
      ->type_name("NUMBER,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.0, 1.0))
      ->excludes("--synthetic-acceptance-length");
  add_tree(g, o.tree, o.propose, "N,N,...|auto");
  g->add_option(
      "--longest-run", o.longest_run,
      "Tokens the draft model writes in a row before the target is called: sequential, bild [10]");
  add_prompt_or_chat(g, o);
  cli::value(g, "--max-tokens", o.max_tokens, "Tokens to emit at most; with --chat in each turn",
             CLI::Range(1, 1 << 20));
  cli::add_sampling(g, o.sample);
  cli::value(g, "--repeat-penalty", o.penalty.repetition,
             "Divides positive, multiplies negative logits of tokens in the text",
             CLI::Range(1e-3, 1e3));
  g->add_option("--stop", o.stops, "End before this text (may be given several times)")
      ->allow_extra_args(false);
  cli::value(g, "--seed", o.seed, "Of all random numbers");
  cli::add_backend(g, o.backend, o.llama_cpp, cli::backend_names);
  cli::add_threads(g, o.threads, "Threads of the models on the CPU");
  g->add_flag("--compare", o.compare,
              "Also decode with the target alone, in turn, five times each or for 20 seconds; "
              "measured and predicted speed-up; with --chat: the first turn");
  cli::one_of(
      g->add_option("--baseline", o.baseline,
                    "What --compare compares with: target, alone; or all-models, the models "
                    "of --decoder alternating or n-model, all called at every token [target]")
          ->needs("--compare"),
      {"target", "all-models"});
  cli::add_color(g);
  g->add_flag("--json", o.json,
              "One JSON object instead of text; with --chat one a line for each turn")
      ->excludes("--color");
  g->footer(cli::decoders_help() +
            "  A model whose vocabulary is not the target's reads the text in its own tokens, and "
            "drafts those that the target has too\n  (docs/vocabularies.md).\n\n" +
            policies() +
            "\nStandard output gets the prompt and its continuation, standard error the counts. At "
            "a terminal colours show where\neach token came from; at one without colours "
            "{residual} and [bonus] tokens are bracketed, and accepted drafts plain.");
  g->callback([g, &o] {
    cli::refuse_without_effect(*g, cli::without_effect(o));
    cli::generate(o);
  });
}

void add_law(CLI::App& app, cli::law_options& o) {
  CLI::App* l = app.add_subcommand(
      "law", "The exact law of the emitted token for one pair of rows, and the acceptance");
  add_policy(app, l, o.policy, "See below [lossless; --grid: every one]");
  cli::takes(
      l->add_option("--verify", o.verify, "How drafts are verified [token; --grid: every one]"),
      cli::verifiers);
  l->add_option(
      "--q", o.q,
      "The draft's probabilities, separated by commas or white space; @FILE: those in a file");
  l->add_option("--p", o.p, "The target's probabilities");
  add_tree(l, o.tree, o.propose, "N,N,...");
  l->add_flag("--enumerate", o.enumerate,
              "Walk every branch for rows of more than 64 tokens, too (at most 1024; coupled 512)");
  l->add_flag("--batch", o.batch,
              "One JSON object a line on stdin, one on stdout; a bad line gets a status and the "
              "batch goes on");
  l->add_flag("--grid", o.grid,
              "The audit: every policy and verifier on every pair of rows of the 1/8 grid over 3 "
              "tokens, gamma 1 to 3");
  cli::add_color(l);
  l->add_flag("--json", o.json, "JSON instead of a table")->excludes("--color");
  l->get_option("--propose")->needs("--tree");
  cli::exclude(*l, "--batch", cli::all_but(*l, {"--batch", "--enumerate"}));
  cli::exclude(*l, "--grid", cli::all_but(*l, {"--grid", "--policy", "--verify", "--json"}));
  cli::exclude(*l, "--tree",
               cli::all_but(*l, {"--tree", "--propose", "--policy", "--q", "--p", "--json"}));
  l->footer(policies() +
            "For these --q and --p have a line for each token of the text (of @FILE, or of the "
            "argument).\n"
            "\n--batch reads "
            "{\"id\":1,\"policy\":\"token-v3\",\"params\":{\"alpha\":0.3},\"verify\":\"token\","
            "\"q\":[...],\"p\":[...]}\n"
            "(or q_logits and p_logits; optionally q_confidence and p_confidence) and writes\n"
            "{\"id\":1,\"pi\":[...],\"law\":[...],\"acceptance\":0.8,\"status\":\"ok\"}.\n"
            "Rows of more than 64 tokens get \"overlap\", sum min(q, pi), too; \"law\" is null "
            "without --enumerate.");
  l->callback([&o] { cli::law(o); });
}

void add_score(CLI::App& app, cli::score_options& o) {
  CLI::App* s = app.add_subcommand(
      "score", "The log-probability of each token of a text; what drafts would give");
  cli::file(s, "--model", o.model, "GGUF file of the model")->required();
  cli::file(s, "--draft", o.draft,
            "GGUF file of a draft model: overlap at each position, "
            "acceptance, expected tokens for gamma 1 to 8, and whether drafting pays here");
  s->add_option("--text", o.text, "The text");
  cli::file(s, "--text-file", o.text_file, "File with the text")->excludes("--text");
  cli::add_backend(s, o.backend, o.llama_cpp, cli::backend_names);
  cli::add_threads(s, o.threads, "Threads of the models on the CPU");
  s->add_flag(
      "--json", o.json,
      "One JSON object: ids, pieces, logprobs (natural; null for the first), nll, perplexity");
  s->callback([s, &o] {
    cli::refuse_without_effect(*s, cli::without_effect_on(o.backend));
    cli::score(o);
  });
}

void add_audit(CLI::App& app, cli::audit_options& o, bool& fits) {
  CLI::App* a = app.add_subcommand("audit", "Do the tokens on standard input have this law?");
  cli::file(a, "--law", o.law,
            "JSON file: a list of probabilities, or an object with one under \"law\", or with "
            "\"logits\" and how they are sampled (below)")
      ->required();
  cli::value(a, "--alpha", o.alpha, "How often a correct sampler is called wrong, at most",
             CLI::Range(1e-12, 0.5));
  a->add_flag("--json", o.json, "One JSON object instead of text");
  a->footer(
      "Each line of standard input is a token id, or a JSON object with one under \"token\".\n"
      "A law of logits: {\"logits\": [...], \"temperature\": 0.7, \"top_k\": 50, \"top_p\": 0.9, "
      "\"min_p\": 0, \"order\": \"vllm\"}; [...] may have \"-inf\".\n"
      "The first token after a context is never a bonus. To test the second too, give pairs: t0 * "
      "V + t1 as the id.\n"
      "Exit status: 0 if the tokens fit the law, 1 if they do not, 2 for what cannot be used.");
  a->callback([&] { fits = cli::audit(o); });
}

// fputs, because fmt::print throws where stderr cannot be written either.
void complain(const std::string& line) {
  std::fputs(("specagg: " + specagg::printable(line, 4000) + "\n").c_str(), stderr);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("specagg " SPECAGG_VERSION
               ": speculative and collaborative decoding with exact laws",
               "specagg");
  app.set_version_flag("--version", cli::version_text());
  app.require_subcommand(1);
  cli::generate_options generate;
  cli::law_options law;
  cli::audit_options audit;
  cli::score_options score;
  bool fits = true;
  add_generate(app, generate);
  add_law(app, law);
  add_score(app, score);
  add_audit(app, audit, fits);
  cli::add_plan(app);
  cli::add_two_sites(app);
  cli::add_completion(app);
  cli::add_manual(app);
  cli::check_values_of_all(app);
  app.footer(
      "Exit status: 0, or 2 with one line on standard error for what cannot be used. audit ends "
      "with 1 where tokens do "
      "not\nfit. NO_COLOR, set in the environment, switches colours off.");
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& e) {
      app.exit(e);  // --help, --version
    }
    cli::flush_output();
    return fits ? 0 : 1;
  } catch (const CLI::ParseError& e) {
    const auto code = CLI::ExitCodes(e.get_exit_code());
    const bool left = code == CLI::ExitCodes::ExtrasError || code == CLI::ExitCodes::RequiredError;
    std::string line = left ? cli::unknown_word(app, argc, argv) : "";
    if (line.empty()) {
      line = e.what();  // printable(): complain() does it
      std::replace(line.begin(), line.end(), '\n', ' ');
    }
    complain(line + " (--help says more)");
  } catch (const std::exception& e) {
    complain(e.what());  // printable(): complain() does it
  }
  return 2;
}
