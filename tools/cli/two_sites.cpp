// SPDX-License-Identifier: Apache-2.0
// specagg dragon serve|device|profile and specagg dssd serve|device: their options.
#include "two_sites.hpp"

#ifdef SPECAGG_CLI_NET
#include <deque>
#include <string>
#include <vector>

#include "options.hpp"
#include "site_ends.hpp"

namespace cli {
namespace {

void add_model(CLI::App* c, two_sites_options& o, bool serves) {
  file(c, "--model", o.site.model,
       std::string("GGUF file of this site's model [the bundled ") + (serves ? "target" : "draft") +
           " model]");
  file(c, "--vocabulary", o.site.vocabulary,
       "GGUF file with the text's tokens, if they are not this model's: its rows are mapped to "
       "them");
  add_backend(c, o.backend, o.site.llama_cpp, {"cpu", "llama.cpp"});
  add_threads(c, o.threads, "Threads of the model");
  value(c, "--seed", o.seed, "Of all random numbers, the same at both sites");
}
void add_documents(CLI::App* c, two_sites_options& o) {
  c->add_option("--documents", o.site.folder,
                "Folder of text to retrieve from; it stays at this site")
      ->type_name("FOLDER");
  value(c, "--passages", o.site.documents, "Passages read side by side, at most",
        CLI::Range(1, 256))
      ->needs("--documents");
  value(c, "--rescore", o.site.rescore, "Score their relevance again every so many tokens; 0: once")
      ->needs("--documents");
}
std::vector<no_effect> without_effect(const two_sites_options& o) {
  std::vector<no_effect> rows = without_effect_on(o.backend);
  rows.push_back(without_effect_at(o.sample));
  return rows;
}
void add_text(CLI::App* c, two_sites_options& o, const char* max_tokens, std::uint32_t least) {
  add_prompt(c, o.prompt, o.prompt_file);
  value(c, "--max-tokens", o.max_tokens, max_tokens, CLI::Range(least, std::uint32_t(1) << 20));
  add_sampling(c, o.sample);
}
void add_common(CLI::App* c, two_sites_options& o, bool serves) {
  add_model(c, o, serves);
  c->add_flag("--insecure", o.insecure, "Without TLS");
  file(c, "--certificate", o.certificate, "PEM file with this site's certificate");
  file(c, "--key", o.key, "PEM file with its private key");
  file(c, "--authority", o.authority,
       serves
           ? "PEM file: only clients with a certificate signed by this may connect (mutual TLS)"
           : "PEM file: the server's certificate must be signed by this (default: the system's)");
  file(c, "--token-file", o.token, "File with a token that both sites must have");
  file(c, "--trace", o.trace,
       "File to write every event to, as JSON lines (scripts/plot-pipelines draws them)");
  c->add_flag("--json", o.as_json, "JSON instead of text");
  if (!o.dragon) return;
  add_documents(c, o);
  for (std::size_t s = 0; s < 2; ++s) {
    const std::string of = s == 0 ? "device" : "cloud";
    file(c, "--profile-" + of, o.profiles[s],
         "What dragon profile --json printed there: known before it begins");
  }
  value(c, "--scheduler", o.scheduler, "Who aggregates; moving: always where the drafts are",
        names_of(schedulings));
}
void add_serve(CLI::App* c, two_sites_options& o) {
  add_common(c, o, true);
  value(c, "--listen", o.address, "HOST:PORT (port 0: any) or unix:PATH");
  value(c, "--sessions", o.sessions, "At a time, at most", CLI::Range(1, 4096));
  value(c, "--most-tokens", o.site.most,
        "Tokens of a session's text at most, prompt included: memory is kept for them",
        CLI::Range(1, 1 << 20));
  value(c, "--keep", o.keep, "Seconds a session is kept without a connection",
        CLI::Range(0.0, 1e7));
  c->callback([c, &o] {
    refuse_without_effect(*c, without_effect(o));
    serve(o);
  });
}
void add_rows(CLI::App* c, two_sites_options& o) {
  value(c, "--codec", o.codec, "Rows on the wire", names_of(codecs));
  value(c, "--row-top-k", o.row_top_k, "Tokens of a row that are sent; 0: all");
  value(c, "--row-top-p", o.row_top_p, "Mass of a row that is sent", CLI::Range(1e-9, 1.0));
  value(c, "--row-total", o.row_total, "Counts of a row, for --codec counts");
}
void add_dragon_device(CLI::App* c, two_sites_options& o) {
  value(c, "--noise", o.noise, "Of both sites' drafts; shared is fastest", names_of(noises));
  value(c, "--look-ahead", o.look_ahead, "Drafts beyond the last aggregation; 1: synchronous",
        CLI::Range(1, 64));
  value(c, "--first", o.first, "Who aggregates first", names_of(firsts));
  c->add_flag("--origins", o.origins,
              "Also print whose draft each stretch of the text was: the device's, the cloud's, "
              "both's, neither's; --json always has it")
      ->excludes("--json");
}
void add_dssd_device(CLI::App* c, two_sites_options& o) {
  value(c, "--split", o.split, "How drafts are verified over the link", names_of(splits));
  value(c, "--gamma", o.gamma, "Tokens drafted a round", CLI::Range(1, 64));
}
void add_device(CLI::App* c, two_sites_options& o) {
  add_common(c, o, false);
  value(c, "--connect", o.address, "HOST:PORT or unix:PATH of the server");
  add_text(c, o, "Tokens to emit at most", 1);
  add_rows(c, o);
  c->add_option("--session", o.session,
                "Go on with this session (hexadecimal); default: a new one");
  value(c, "--give-up", o.give_up, "Seconds without a connection until it ends",
        CLI::Range(0.1, 1e7));
  c->add_flag("--alone", o.alone, "Decode with this site's model alone, to compare");
  (o.dragon ? add_dragon_device : add_dssd_device)(c, o);
  exclude(
      *c, "--alone",
      all_but(*c, {"--alone",       "--model",       "--vocabulary", "--backend", "--exact-batches",
                   "--rpc",         "--threads",     "--seed",       "--session", "--json",
                   "--documents",   "--passages",    "--rescore",    "--prompt",  "--prompt-file",
                   "--max-tokens",  "--temperature", "--top-k",      "--top-p",   "--min-p",
                   "--filter-order"}));
  c->callback([c, &o] {
    auto rows = without_effect(o);
    rows.push_back({o.codec != "counts", "without --codec counts", {"--row-total"}});
    if (!o.dragon)
      rows.push_back({o.split == "shared",
                      "with --split shared: it sends no rows",
                      {"--codec", "--row-top-k", "--row-top-p", "--row-total"}});
    refuse_without_effect(*c, rows);
    device(o);
  });
}

void add_profile(CLI::App* c, two_sites_options& o) {
  add_model(c, o, false);
  add_documents(c, o);
  add_text(c, o, "Tokens to decode: the line is fitted to their times", 3);
  c->add_flag("--json", o.as_json,
              "JSON instead of text, with every time: for --profile-device, --profile-cloud");
  c->callback([c, &o] {
    refuse_without_effect(*c, without_effect(o));
    profile(o);
  });
}

}  // namespace

void add_two_sites(CLI::App& app) {
  static std::deque<two_sites_options> all;  // the callbacks refer to them
  const auto add = [&](bool dragon, const char* name, const char* what) {
    CLI::App* c = app.add_subcommand(name, what);
    c->require_subcommand(1);
    for (const bool serves : {true, false}) {
      two_sites_options& o = all.emplace_back();
      o.dragon = dragon;
      o.site.model = std::string(SPECAGG_MODELS) + (serves ? "/target.gguf" : "/draft.gguf");
      if (serves)
        add_serve(
            c->add_subcommand("serve", "The server: many devices, one after another or at once"),
            o);
      else
        add_device(
            c->add_subcommand("device", "The device: decodes one prompt together with a server"),
            o);
    }
    if (!dragon) return;
    two_sites_options& o = all.emplace_back();
    o.site.model = std::string(SPECAGG_MODELS) + "/draft.gguf";
    add_profile(c->add_subcommand(
                    "profile", "How long this site decodes, as a function of the context's length"),
                o);
  };
  add(true, "dragon", "Two sites with documents of their own, one text (DRAGON)");
  add(false, "dssd",
      "A device drafts, a server verifies: split speculative decoding (DSD, DSSD; the authors of "
      "DSSD state a patent filing, CN2025108856278)");
}

}  // namespace cli

#else

#include <specagg/error.hpp>

namespace cli {

void add_two_sites(CLI::App& app) {
  for (const char* name : {"dragon", "dssd"})
    app.add_subcommand(
           name, "Two sites over a network: not in this program, which was built without gRPC")
        ->allow_extras()
        ->callback([name] {
          throw specagg::error(
              name, "",
              "is not in this program, which was built without gRPC: install it (Debian, Ubuntu: "
              "libgrpc++-dev; elsewhere: name it in CMAKE_PREFIX_PATH), then run cmake again");
        });
}

}  // namespace cli

#endif
