// SPDX-License-Identifier: Apache-2.0
// Every option of every command, in every mode: it has an effect, or is refused.
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.hpp"

namespace {

using cli::ran, cli::refuses, cli::run;
using words = std::set<std::string>;

// A command in one of its modes, and the options that have no effect in it. The commands are such
// that they fail soon after the check, for want of a file, or end soon.
struct mode {
  std::string command, arguments;
  words without_effect;
};
words operator+(words a, const words& b) {
  a.insert(b.begin(), b.end());
  return a;
}
const words filters = {"--top-k", "--top-p", "--min-p", "--filter-order"};
const words rpc = {"--exact-batches", "--rpc"};
const words chain = {"--propose", "--longest-run", "--model", "--lookup", "--baseline", "--system"};
const words secured = {"--insecure", "--certificate", "--key", "--authority", "--token-file"};
const words link = secured + words{"--connect",   "--give-up",   "--trace",    "--codec",
                                   "--row-top-k", "--row-top-p", "--row-total"};
const words by_turns = {"--profile-device", "--profile-cloud", "--scheduler",
                        "--noise",          "--look-ahead",    "--first"};
const words passages = {"--passages", "--rescore"};

const std::vector<mode> modes = {
    {"generate", "--draft /none", chain + rpc},
    {"generate", "--draft /none --json", chain + rpc + words{"--color"}},
    {"generate", "--draft /none --backend llama.cpp", chain},
    {"generate", "--draft /none --temperature 0", chain + rpc + filters},
    {"generate",
     "--draft lookup,/none --chat",
     {"--propose", "--longest-run", "--model", "--baseline", "--rpc", "--exact-batches"}},
    {"generate",
     "--draft /none --compare",
     {"--propose", "--longest-run", "--model", "--lookup", "--system", "--rpc", "--exact-batches"}},
    {"generate", "--target /none",
     chain + rpc +
         words{"--decoder", "--policy", "--verify", "--space", "--tree", "--gamma", "--compare",
               "--synthetic-acceptance-length", "--synthetic-acceptance-rates"}},
    {"generate",
     "--draft /none --tree 2",
     {"--gamma", "--longest-run", "--model", "--lookup", "--baseline", "--system", "--rpc",
      "--exact-batches", "--synthetic-acceptance-length", "--synthetic-acceptance-rates"}},
    {"generate",
     "--target /none --draft lookup --tree 2",
     {"--propose", "--gamma", "--longest-run", "--model", "--baseline", "--system", "--rpc",
      "--exact-batches", "--synthetic-acceptance-length", "--synthetic-acceptance-rates"}},
    {"generate", "--draft /none --decoder alternating",
     chain + rpc +
         words{"--tree", "--synthetic-acceptance-length", "--synthetic-acceptance-rates"}},
    {"generate",
     "--draft /none --decoder n-model",
     {"--propose", "--longest-run", "--lookup", "--baseline", "--system", "--tree", "--rpc",
      "--exact-batches", "--synthetic-acceptance-length", "--synthetic-acceptance-rates"}},
    {"generate",
     "--draft /none --decoder sequential",
     {"--propose", "--model", "--lookup", "--baseline", "--system", "--tree", "--gamma", "--verify",
      "--space", "--rpc", "--exact-batches", "--synthetic-acceptance-length",
      "--synthetic-acceptance-rates"}},
    {"generate", "--draft /none --decoder oracle",
     chain + rpc +
         words{"--tree", "--gamma", "--verify", "--synthetic-acceptance-length",
               "--synthetic-acceptance-rates"}},
    {"generate", "--draft /none --decoder sequence",
     chain + rpc +
         words{"--tree", "--gamma", "--verify", "--space", "--synthetic-acceptance-length",
               "--synthetic-acceptance-rates"}},
    {"generate",
     "--draft /none --decoder bild",
     {"--propose", "--model", "--lookup", "--baseline", "--system", "--tree", "--gamma", "--verify",
      "--space", "--seed", "--rpc", "--exact-batches", "--synthetic-acceptance-length",
      "--synthetic-acceptance-rates"}},
    {"law", "--q x --p 1", {"--propose", "--batch", "--grid"}},  // --q has none with --batch
    {"law", "--q x --p 1 --json", {"--propose", "--batch", "--grid", "--color"}},
    {"law", "--q x --p 1 --tree 2", {"--verify", "--enumerate", "--color", "--batch", "--grid"}},
    {"law",
     "--batch",
     {"--policy", "--verify", "--q", "--p", "--tree", "--propose", "--grid", "--json", "--color"}},
    {"law",
     "--grid --policy none",
     {"--q", "--p", "--tree", "--propose", "--enumerate", "--batch", "--color"}},
    {"score", "--model /none --text a", rpc + words{"--text-file"}},
    {"score", "--model /none --text a --backend cuda", rpc + words{"--threads", "--text-file"}},
    {"audit", "--law /none", {}},
    {"plan cos", "", {"--lambda"}},
    {"plan cos", "--tv 0.4", {"--acceptance"}},
    {"plan speculative", "", {}},
    {"plan speculative", "--acceptance 0.5,0.4", {"--most"}},
    {"plan dssd", "", {"--rate-up", "--t-slm", "--t-llm", "--v", "--kept", "--counts"}},
    {"plan dssd", "--schemes", {"--json"}},
    {"plan dssd", "--json", {"--schemes"}},
    {"plan dragon", "--tokens 10", {}},
    {"plan acceptance", "", {}},
    {"plan record", "/none", {}},
    {"plan record", "/none --times /none", {"--c", "--v", "--d"}},
    {"plan schedulers", "--repeats 1 --delay 0", {}},
    {"completion", "", {}},
    {"man", "", {}},
#ifdef SPECAGG_CLI_NET
    {"dragon serve", "--model /none", passages + rpc},
    {"dragon serve", "--model /none --documents /none --backend llama.cpp", {}},
    {"dragon device", "--model /none", passages + rpc + words{"--row-total"}},
    // --codec has none
    {"dragon device", "--model /none --codec counts --documents /none", rpc + words{"--alone"}},
    {"dragon device", "--model /none --alone",
     passages + rpc + link + by_turns + words{"--origins"}},
    {"dragon profile", "--model /none", passages + rpc},
    {"dragon profile", "--model /none --temperature 0", passages + rpc + filters},
    {"dssd device", "--model /none --temperature 0", rpc + filters + words{"--row-total"}},
    {"dssd serve", "--model /none", rpc},
    {"dssd device", "--model /none", rpc + words{"--row-total"}},
    {"dssd device", "--model /none --alone", rpc + link + words{"--split", "--gamma"}},
#endif
};

// The options of every command, as completion knows them.
std::map<std::string, words> options_of_all() {
  std::map<std::string, words> all;
  std::istringstream lines(run("completion bash").out);
  for (std::string line; std::getline(lines, line);) {
    const auto name = line.find("'specagg "), end = line.find("') words='");
    if (name == std::string::npos || end == std::string::npos) continue;
    const std::string command = line.substr(name + 9, end - name - 9);
    if (command.find(" --") != std::string::npos) continue;  // the words that an option takes
    std::istringstream list(line.substr(end + 10, line.rfind('\'') - end - 10));
    bool has_commands = false;
    for (std::string word; list >> word;) {
      if (word.starts_with("--") && word != "--help") all[command].insert(word);
      has_commands = has_commands || word == "serve" || word == "cos";
    }
    if (has_commands) all.erase(command);
    else all[command];
  }
  return all;
}

const words flags = {"--json",   "--compare",  "--chat",  "--enumerate", "--batch",
                     "--grid",   "--insecure", "--alone", "--schemes",   "--law-reads-draft",
                     "--origins"};
const words texts = {"--prompt", "--system", "--text"};
std::string with_a_value(const std::string& option) {
  const std::map<std::string, std::string> others = {
      {"--decoder", "speculative"}, {"--color", "auto"},   {"--max-tokens", "5"},
      {"--propose", "top"},         {"--space", "law"},    {"--baseline", "target"},
      {"--backend", "cpu"},         {"--codec", "half"},   {"--split", "dssd"},
      {"--noise", "shared"},        {"--first", "device"}, {"--scheduler", "moving"},
      {"--filter-order", "vllm"}};
  const auto found = others.find(option);
  return option +
         (flags.contains(option) ? "" : " " + (found == others.end() ? "1" : found->second));
}

}  // namespace

TEST_CASE(
    "every option of every command has an effect in each mode, or is refused and says in which it "
    "has none",
    "[more]") {
  const auto all = options_of_all();
  words tested;
  for (const mode& m : modes) {
    tested.insert(m.command);
    REQUIRE(all.contains(m.command));
    for (const std::string& option : m.without_effect) {
      INFO(m.command << " " << m.arguments << ": " << option << " is no option");
      CHECK(all.at(m.command).contains(option));
    }
    for (const std::string& option : all.at(m.command)) {
      const std::string line = m.command + " " + m.arguments + " ";
      if (line.find(" " + option + " ") != std::string::npos) continue;
      const ran r = run(line + with_a_value(option));
      INFO(line << with_a_value(option) << "\n" << r.out);
      const bool refused = std::regex_search(r.out, std::regex("has no effect|excludes|requires"));
      CHECK(refused == m.without_effect.contains(option));
      if (!refused) continue;
      CHECK(r.status == 2);
      CHECK(r.out.starts_with("specagg: --"));
      CHECK(r.out.find(option) != std::string::npos);
      CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
    }
  }
  for (const auto& [command, options] : all) {
    INFO(command << " is in no mode here");
    CHECK(tested.contains(command));
  }
}

TEST_CASE("an empty value is refused, except for a text") {
  words done;
  const auto all = options_of_all();
  for (const mode& m : modes)
    for (const std::string& option : all.at(m.command)) {
      if (flags.contains(option) || texts.contains(option) ||
          m.arguments.find(option) != std::string::npos)
        continue;
      if (!done.insert(m.command + option).second) continue;
      const ran r = run(m.command + " " + m.arguments + " " + option + " ''");
      INFO(m.command << " " << m.arguments << " " << option << " ''\n" << r.out);
      CHECK(r.status == 2);
      CHECK(r.out.find(option) != std::string::npos);
      CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
    }
  refuses("generate --tree ''", {"--tree: is empty"});
  CHECK(run("generate --max-tokens 1 --prompt ''").status == 0);
}

TEST_CASE("numbers are decimal: what other programs read as octal or hexadecimal is refused") {
  for (const char* option :
       {"max-tokens", "top-k", "seed", "longest-run", "threads", "exact-batches"})
    for (const char* number : {"010", "0x10", "08"})
      refuses(std::string("generate --") + option + " " + number, {option, number});
  for (const char* line :
       {"generate --gamma 010", "generate --tree 2,01", "generate --temperature 0x1p-1",
        "generate --top-k=-1", "plan cos --gamma 05,1", "plan cos --c 0x1",
        "plan dragon --seed 010", "plan schedulers --tokens 010",
        "score --model /none --text a --threads 010"})
    refuses(line, {std::string(line).substr(std::string(line).rfind("--"), 5).c_str()});
#ifdef SPECAGG_CLI_NET
  for (const char* line :
       {"dragon serve --sessions 010", "dssd device --gamma 010", "dragon device --look-ahead 010"})
    refuses(line, {"010"});
#endif
  CHECK(run("plan cos --c 00.5 --gamma 5,1").out == run("plan cos --c 0.5 --gamma 5,1").out);
}
