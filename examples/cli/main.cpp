// SPDX-License-Identifier: Apache-2.0
// The command-line program: options in, one clear line and exit status 2 for what cannot be used.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include <specagg/error.hpp>

#include "decoders.hpp"
#include "files.hpp"
#include "generate.hpp"
#include "law.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "policies.hpp"
#include "two_sites.hpp"
#include "unknown.hpp"

namespace {

std::string policies() {
  std::string all = "Policies (q: draft, p: target):\n";
  for (const cli::rule& r : cli::rules()) all += fmt::format("  {:<11} {:<38} {}\n", r.name, r.keys, r.law);
  return all;
}

void add_generate(CLI::App& app, cli::generate_options& o) {
  CLI::App* g = app.add_subcommand("generate", "Decode a prompt with a target model and a draft model");
  g->add_option("--target", o.target, "GGUF file of the target model")->capture_default_str();
  g->add_option("--draft", o.draft, "GGUF file of the draft model")->capture_default_str();
  g->add_option("--model", o.models, "GGUF file of a further model, for --decoder n-model (may be given several times)")
      ->allow_extra_args(false);
  g->add_option("--decoder", o.decoder, "How the models work together (see below)")->capture_default_str();
  g->add_option("--policy", o.policy, "The law to emit: NAME or NAME:key=value,... (see below)");
  g->add_option("--verify", o.verify, "How drafts are judged: token, block, match or coupled");
  g->add_option("--space", o.space, "What a policy combines: raw (the models' logits) or law (their rows; see below)");
  g->add_option("--gamma", o.gamma,
                "Tokens drafted a round, or auto; 0: the target alone. CoS: one number for each model, N,N,... [4]");
  g->add_option("--longest-run", o.longest_run,
                "Tokens the draft model writes in a row before the target is called: sequential, bild [10]")
      ->check(cli::natural);
  g->add_option("--prompt", o.prompt, "Text to continue");
  g->add_option("--prompt-file", o.prompt_file, "File with the text to continue")->excludes("--prompt");
  g->add_option("--max-tokens", o.max_tokens, "Tokens to emit at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  cli::add_sampling(g, o.sample);
  g->add_option("--repeat-penalty", o.penalty.repetition,
                "Divides positive, multiplies negative logits of tokens in the text")
      ->check(CLI::Range(1e-3, 1e3))
      ->capture_default_str();
  g->add_option("--stop", o.stops, "End before this text (may be given several times)")->allow_extra_args(false);
  g->add_option("--seed", o.seed, "Of all random numbers")->check(cli::natural)->capture_default_str();
  g->add_option("--backend", o.backend, "Where the models run: cpu or cuda")->capture_default_str();
  g->add_option("--threads", o.threads, "Threads of the models on the CPU")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  g->add_flag("--compare", o.compare,
              "Also decode with the target alone, five times each in turn; measured and predicted speed-up");
  g->add_flag("--json", o.json, "One JSON object instead of text");
  g->footer(cli::decoders_help() + "\n" + policies() +
            "\nWithout colour, {residual} and [bonus] tokens are bracketed, accepted drafts are plain.");
  g->callback([&o] { cli::generate(o); });
}

void add_law(CLI::App& app, cli::law_options& o) {
  CLI::App* l =
      app.add_subcommand("law", "The exact law of the emitted token for one pair of rows, and the acceptance");
  l->add_option("--policy", o.policy, "NAME or NAME:key=value,... (see below) [lossless; --grid: every one]");
  l->add_option("--verify", o.verify, "token, block, coupled or match [token; --grid: every one]");
  l->add_option("--q", o.q, "The draft's probabilities, separated by commas or white space; @FILE: those in a file");
  l->add_option("--p", o.p, "The target's probabilities");
  l->add_flag("--enumerate", o.enumerate,
              "Walk every branch for rows of more than 64 tokens, too (at most 1024; coupled 512)");
  l->add_flag("--batch", o.batch,
              "One JSON object a line on stdin, one on stdout; a bad line gets a status and the batch goes on");
  l->add_flag("--grid", o.grid,
              "The audit: every rule and verifier on every pair of rows of the 1/8 grid over 3 tokens, gamma 1 to 3");
  l->add_flag("--json", o.json, "JSON instead of a table");
  l->footer(
      policies() +
      "\n--batch reads "
      "{\"id\":1,\"policy\":\"token-v3\",\"params\":{\"alpha\":0.3},\"verify\":\"token\",\"q\":[...],\"p\":[...]}\n"
      "(or q_logits and p_logits; optionally q_confidence and p_confidence) and writes\n"
      "{\"id\":1,\"target\":[...],\"law\":[...],\"acceptance\":0.8,\"status\":\"ok\"}.\n"
      "Rows of more than 64 tokens get \"overlap\", sum min(q, target), too; \"law\" is null without --enumerate.");
  l->callback([&o] { cli::law(o); });
}

// fputs, because fmt::print throws where stderr cannot be written either.
void complain(const std::string& line) { std::fputs(("specagg: " + line + "\n").c_str(), stderr); }

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("specagg " SPECAGG_VERSION ": speculative and collaborative decoding with exact laws", "specagg");
  app.set_version_flag("--version", SPECAGG_VERSION);
  app.require_subcommand(1);
  cli::generate_options generate;
  cli::law_options law;
  add_generate(app, generate);
  add_law(app, law);
  cli::add_plan(app);
  cli::add_two_sites(app);
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& e) {
      app.exit(e);  // --help, --version
    }
    cli::flush_output();
    return 0;
  } catch (const CLI::ParseError& e) {
    const auto code = CLI::ExitCodes(e.get_exit_code());
    const bool left = code == CLI::ExitCodes::ExtrasError || code == CLI::ExitCodes::RequiredError;
    std::string line = left ? cli::unknown_word(app, argc, argv) : "";
    if (line.empty()) line = e.what();
    for (char& c : line)
      if (c == '\n') c = ' ';
    complain(line + " (--help says more)");
  } catch (const std::exception& e) {
    complain(e.what());
  }
  return 2;
}
