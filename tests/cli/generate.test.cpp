// SPDX-License-Identifier: Apache-2.0
// The command-line program as a user meets it: what it prints, and one clear line with status 2 for
// what it cannot use.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "../tools/cli/policies.hpp"
#include "cli/command.hpp"
#include "cli/generated.hpp"
#include "support/sanitized.hpp"

namespace {

using cli::generated, cli::ran, cli::refuses, cli::run;

const std::string models = SPECAGG_MODELS;

}  // namespace

TEST_CASE(
    "generate --compare says which gamma is best by the costs and the acceptance that it "
    "measured") {
  const auto j = generated("--max-tokens 60 --compare --gamma 3");
  const double c = j["c"], v = j["v"], expected = j["expected_tokens_per_round"];
  const double d = std::max(0., v - 1) * double(j["rounds"]) / double(j["drafted"]);
  const auto tokens = [](double a, int gamma) {
    double sum = 1, reached = 1;
    for (int i = 0; i < gamma; ++i) sum += reached *= a;
    return sum;
  };
  double a = 0;
  while (tokens(a, 3) < expected) a += 1e-6;
  double best = 1;
  int gamma = 0;
  for (int g = 1; g <= 62; ++g)
    if (const double rate = tokens(a, g) / (1 + (c + d) * g); rate > best) {
      best = rate;
      gamma = g;
    }
  CHECK(j["best_gamma"] == gamma);
  CHECK(double(j["best_speedup"]) == Approx(best).epsilon(1e-4));

  const ran text = run("generate --max-tokens 40 --compare --gamma 3");
  const std::string last = text.out.substr(text.out.rfind("\na drafted token costs "));
  INFO(text.out);
  CHECK(last.find(" target steps: drafting c ") != std::string::npos);
  CHECK((last.find("no gamma pays\n") != std::string::npos) !=
        (last.find("the best gamma is ") != std::string::npos));
  const ran lookup =
      run("generate --max-tokens 40 --compare --draft lookup --prompt 'a b c a b c a b c a b c'");
  INFO(lookup.out);
  CHECK(lookup.out.find("\na drafted token costs ") != std::string::npos);
  CHECK(lookup.out.find(" of them were accepted") != std::string::npos);
  CHECK_FALSE(generated("--max-tokens 20 --compare --gamma auto").contains("best_gamma"));
}

TEST_CASE("generate --json holds every number, and they agree with each other") {
  const auto j = generated("--max-tokens 60 --compare --gamma 3");
  for (const char* key : {"text",
                          "tokens",
                          "origin",
                          "logprob",
                          "logprob_target",
                          "drafted",
                          "accepted",
                          "target_calls",
                          "draft_calls",
                          "acceptance",
                          "seconds",
                          "tokens_per_second",
                          "speedup_measured",
                          "speedup_predicted",
                          "c",
                          "v",
                          "expected_tokens_per_round",
                          "tokens_per_target_call",
                          "mean_logprob_target",
                          "target_alone",
                          "ended_by",
                          "rounds",
                          "prompt",
                          "policy",
                          "gamma",
                          "temperature",
                          "seed"})
    CHECK(j.contains(key));
  CHECK(j["tokens"].size() == 60);
  CHECK(j["origin"].size() == 60);
  CHECK(j["logprob"].size() == 60);
  std::size_t accepted = 0;
  for (const auto& o : j["origin"]) accepted += o == "accepted";
  CHECK(accepted == j["accepted"]);
  CHECK(j["target_calls"] == j["rounds"]);
  CHECK(double(j["acceptance"]) == Approx(double(j["accepted"]) / double(j["drafted"])));
  for (const auto& l : j["logprob"]) CHECK(double(l) <= 0);
  CHECK(double(j["seconds"]["total"]) >=
        double(j["seconds"]["draft"]) + double(j["seconds"]["target"]));
  CHECK(double(j["v"]) > 0);
  CHECK(j["target_alone"]["tokens"].size() == 60);
}
TEST_CASE("the same seed gives the same text, another seed another. Threads change nothing") {
  const auto a = generated("--max-tokens 50 --seed 7"),
             b = generated("--max-tokens 50 --seed 7 --threads 2"),
             c = generated("--max-tokens 50 --seed 8");
  CHECK(a["tokens"] == b["tokens"]);
  CHECK(a["logprob"] == b["logprob"]);
  CHECK(a["tokens"] != c["tokens"]);
}
TEST_CASE("at temperature 0, lossless prints the text of the target alone, for 20 prompts") {
  const std::string text_file = models + "/../research/prompts.txt";
  std::ifstream file(text_file);
  std::string prompt;
  int prompts = 0;
  while (std::getline(file, prompt)) {
    ++prompts;
    const std::size_t most = prompts == 1 ? 200 : 80;  // one text with several ranges of attention
    const auto j =
        generated("--temperature 0 --compare --max-tokens " + std::to_string(most) +
                  " --prompt \"" + prompt + "\" --gamma " + std::to_string(1 + prompts % 8));
    CHECK(j["text"] == j["target_alone"]["text"]);
    CHECK(j["tokens"].size() == most);
    CHECK(j["identical_to_target_alone"] == true);
  }
  CHECK(prompts == 20);
}
TEST_CASE("every policy generates under every verifier and decoder") {
  const auto generates = [](const std::string& options) {
    const auto j = generated("--max-tokens 8 --prompt 'He that ' " + options);
    INFO(options);
    CHECK(j["tokens"].size() == 8);
    CHECK(j["logprob"].size() == 8);
    CHECK(j["ended_by"] == "length");
  };
  for (const cli::known_policy& chosen : cli::known_policies()) {
    const std::string policy = "--policy " + chosen.name;
    for (const char* verify : {"token", "block", "match", "coupled"})
      generates(policy + " --verify " + verify);
    generates(policy + " --gamma auto");
    generates(policy + " --decoder alternating --gamma 3,2");
    generates(policy + " --decoder n-model --gamma 2");
    generates(policy + " --decoder oracle");
  }
  for (const char* policy : {"chow:alpha=0.5", "chow-log:alpha=2"})
    generates(std::string("--decoder sequential --policy ") + policy);
  for (const char* alpha : {"0", "1"})
    generates(std::string("--decoder sequence --policy chow:alpha=") + alpha);
  generates("--decoder bild --policy bild:fallback=0.4,rollback=2");
  for (const char* policy : {"ensemble", "geometric:w1=1,w2=1,w3=-1", "realign", "power:rho=2",
                             "power:w1=1,w2=0,w3=0", "minimum", "maximum"}) {
    generates(std::string("--decoder n-model --gamma 3,2,1 --policy ") + policy + " --model " +
              models + "/bard.gguf");
  }
  generates("--decoder n-model --model " + models + "/bard.gguf --model " + models + "/bible.gguf");
}
TEST_CASE("generate carries the state of a policy from token to token, over rounds") {
  const auto how = [](const std::string& policy, const std::string& more) {
    return generated("--max-tokens 80 --policy " + policy + " " + more);
  };
  std::string open = "0", close = "1";  // a token with an even id opens, the others close
  for (int id = 2; id < 4096; ++id) (id % 2 ? close : open) += "/" + std::to_string(id);
  const std::string phase =
      "phase:inside=ensemble:lambda=0.9,outside=lossless,open=" + open + ",close=" + close;
  for (const char* verify : {"token", "block", "match", "coupled"}) {
    const auto j = how(phase, std::string("--gamma 2 --verify ") + verify);
    std::size_t inside = 0, other = 0;
    for (std::size_t i = 0; i < 80; ++i) {
      const bool is_inside = i > 0 && int(j["tokens"][i - 1]) % 2 == 0;
      const bool has_p = j["logprob"][i] == j["logprob_target"][i];
      if (!is_inside) CHECK(has_p);
      inside += is_inside;
      other += !has_p;
    }
    CHECK((inside > 15 && inside < 65 && other > inside * 9 / 10));
  }
  // The gate is always open: after a token that is not the most likely, two have the law p.
  const auto window = how("entropy-window:threshold=-1,window=2", "--gamma 3");
  std::vector<std::size_t> runs{0};
  for (std::size_t i = 0; i < 80; ++i)
    if (window["logprob"][i] == window["logprob_target"][i]) ++runs.back();
    else if (runs.back() > 0) runs.push_back(0);
  runs.pop_back();  // the last may have been cut
  CHECK(runs.size() > 5);
  for (const std::size_t run : runs) CHECK(run == 2);

  const std::string cold = "--temperature 0 --gamma 3";
  const auto text = [&](const std::string& policy) { return how(policy, cold)["tokens"]; };
  const auto target = text("lossless"), spent = text("regret-budget:budget=0"),
             some = text("regret-budget:budget=4"), all = text("regret-budget:budget=1e6");
  CHECK(spent == target);
  CHECK(all ==
        generated("--max-tokens 80 --temperature 0 --target " + models + "/draft.gguf")["tokens"]);
  CHECK((some != target && some != all));
}
TEST_CASE(
    "drafts are made under --gamma auto and --tree auto where the policy asks for the draft's row "
    "in every round") {
  for (const char* how : {"--gamma auto", "--tree auto"})
    for (const char* policy : {"lossless", "ensemble:lambda=0.4", "token-v3:alpha=0.3"}) {
      const auto j = generated(std::string("--max-tokens 100 --policy ") + policy + " " + how);
      INFO(how << " " << policy << ", c " << double(j["c"]) << ", d " << double(j["d"]));
      // where a draft may pay on this machine
      if (double(j["c"]) + double(j["d"]) < .4) CHECK(j["drafted"] > 0);
    }
}
TEST_CASE("gamma 0 is the target alone. Every decoder counts the calls of its models") {
  const auto none = generated("--max-tokens 20 --gamma 0");
  CHECK(none["draft_calls"] == 0);
  CHECK(none["target_calls"] == 20);
  for (const char* gamma : {"0", "1", "5"})
    CHECK(
        generated(std::string("--max-tokens 20 --policy opt:alpha=0.1 --gamma ") + gamma)["tokens"]
            .size() == 20);
  const auto oracle = generated("--max-tokens 20 --decoder oracle");
  CHECK(oracle["models"].size() == 2);
  CHECK(oracle["draft_calls"] == 20);
  CHECK(oracle["target_calls"] == 20);
  const auto sequential = generated("--max-tokens 60 --decoder sequential");
  CHECK(sequential["target_calls"] < 60);
  CHECK(sequential["target_calls"] > 0);
  const auto three =
      generated("--max-tokens 60 --decoder n-model --model " + models + "/bard.gguf --gamma 3,1,1");
  CHECK(three["models"].size() == 3);
  for (const auto& m : three["models"]) CHECK(m["calls"] > 0);
  const auto costs = generated("--max-tokens 60 --gamma auto");
  CHECK(costs["c"] > 0);
  CHECK(costs["d"] >= 0);
}
TEST_CASE("coupled texts are the same for every gamma, auto too") {
  const auto alone = generated("--max-tokens 100 --verify coupled --gamma 0");
  for (const char* gamma : {"1", "4", "8", "auto"})
    CHECK(generated(std::string("--max-tokens 100 --verify coupled --gamma ") + gamma)["tokens"] ==
          alone["tokens"]);
}
TEST_CASE(
    "sure of everything, the sequence-level cascade and the sequential one print the draft model's "
    "text") {
  const auto j = generated("--max-tokens 30 --decoder sequence --policy chow:alpha=1");
  CHECK(j["target_calls"] == 0);
  const auto never = generated("--max-tokens 30 --decoder sequence --policy chow:alpha=-1");
  CHECK(never["target_calls"] == 30);
}
TEST_CASE(
    "the sequence-level cascade compares the tokens' mean probability: it keeps long responses at "
    "alphas below 1") {
  const auto kept =
      generated("--max-tokens 24 --temperature 0 --decoder sequence --policy chow:alpha=1");
  REQUIRE(kept["target_calls"] == 0);
  std::size_t called = 0;
  for (const char* alpha : {"0.1", "0.5", "0.7", "0.8", "0.9"})
    called +=
        generated(
            std::string("--max-tokens 24 --temperature 0 --decoder sequence --policy chow:alpha=") +
            alpha)["target_calls"] != 0;
  CHECK(called > 0);
  CHECK(called < 5);
}
TEST_CASE(
    "option --baseline all-models: calls every model at every token, and has the law of the models "
    "that take turns") {
  for (const std::string& decoder :
       {std::string("alternating --gamma 3,2"),
        std::string("alternating --policy contrastive --gamma 2"),
        "n-model --gamma 2 --model " + models + "/bard.gguf",
        "n-model --model " + models + "/bard.gguf --model " + models + "/bible.gguf"}) {
    CAPTURE(decoder);
    const auto j = generated(
        "--max-tokens 40 --temperature 0 --space raw --compare --baseline all-models --decoder " +
        decoder);
    CHECK(j["tokens"] == j["all_models"]["tokens"]);  // greedy
    CHECK(j.count("target_alone") == 0);
    for (const auto& m : j["all_models"]["models"]) CHECK(m["calls"] == 40);
    CHECK(j["models"].size() == j["all_models"]["models"].size());
    CHECK(j["speedup_measured"] > 0.1);
    CHECK(j["speedup_predicted"] > 0.1);
  }
  refuses("generate --decoder alternating --baseline all-models", {"--baseline", "--compare"});
  refuses("generate --compare --baseline all-models", {"--baseline", "alternating", "n-model"});
  refuses("generate --decoder alternating --compare --baseline none",
          {"--baseline none", "target, all-models"});
}
TEST_CASE("bild at temperature 0 is greedy, elsewhere not, unless d says otherwise") {
  const auto tokens = [](const std::string& options) {
    return generated("--max-tokens 60 --prompt 'He that ' " + options)["tokens"];
  };
  for (const char* decoder : {"speculative", "oracle", "alternating"}) {
    const std::string cold = std::string("--temperature 0 --decoder ") + decoder +
                             " --policy bild:alpha=3",
                      warm = std::string("--decoder ") + decoder + " --policy bild:alpha=3";
    CHECK(tokens(cold) == tokens(cold + ",greedy=true"));
    CHECK(tokens(cold) != tokens(cold + ",greedy=false"));
    CHECK(tokens(warm) == tokens(warm + ",greedy=false"));
    CHECK(tokens(warm) != tokens(warm + ",greedy=true"));
  }
}
TEST_CASE(
    "the draft model writes at most --longest-run tokens before the target is called: sequential "
    "and bild") {
  const std::string
      sure =
          "--max-tokens 60 --prompt 'He that ' --decoder bild --policy "
          "bild:fallback=0,rollback=1e9",
      chow = "--max-tokens 60 --prompt 'He that ' --decoder sequential --policy chow:alpha=1";
  CHECK(generated(sure)["longest_run"] == 10);
  CHECK(generated(sure)["target_calls"] == 6);  // 10 tokens and one more
  CHECK(generated(sure + " --longest-run 10")["tokens"] == generated(sure)["tokens"]);
  CHECK(generated(sure + " --longest-run 4")["target_calls"] == 12);
  CHECK(generated(sure + " --longest-run 0")["draft_calls"] == 0);
  CHECK(generated(sure + " --longest-run 62")["target_calls"] == 1);
  CHECK(generated(chow)["target_calls"] == 5);  // every 11th token is the target's
  CHECK(generated(chow + " --longest-run 4")["target_calls"] == 12);
  CHECK(generated(chow + " --longest-run 0")["draft_calls"] == 0);
  refuses("generate --longest-run 5", {"--longest-run", "speculative", "bild"});
  refuses("generate --decoder oracle --longest-run 5", {"--longest-run", "oracle"});
  refuses("generate --decoder bild --longest-run 63", {"--longest-run 63", "62"});
  refuses("generate --decoder bild --longest-run -1", {"--longest-run"});
}
TEST_CASE("decoders that do not go together with an option say what does") {
  refuses("generate --decoder nonsense", {"nonsense", "unknown", "alternating", "bild"});
  refuses("generate --verify nonsense", {"nonsense", "token, block, match, coupled"});
  refuses("generate --decoder alternating --verify block", {"block", "alternating", "token"});
  for (const char* d : {"sequential", "oracle", "sequence", "bild"}) {
    refuses(std::string("generate --decoder ") + d + " --verify token",
            {"--verify", d, "no drafts to verify"});
    refuses(std::string("generate --decoder ") + d + " --gamma 3", {"--gamma", d});
  }
  refuses("generate --decoder sequential --policy opt", {"opt", "chow"});
  refuses("generate --decoder sequence --policy opt", {"opt", "chow"});
  refuses("generate --decoder bild --policy chow", {"chow", "bild:fallback"});
  refuses("generate --decoder bild --policy bild:alpha=1", {"alpha", "fallback, rollback"});
  refuses("generate --gamma 3,2", {"3,2", "one number"});
  refuses("generate --gamma 63", {"63", "62"});
  refuses("generate --gamma 3,", {"3,"});
  refuses("generate --decoder alternating --gamma 1,2,3", {"1,2,3", "2 numbers"});
  refuses("generate --decoder alternating --gamma 0,2", {"0,2", "at least 1"});
  refuses("generate --decoder alternating --gamma auto", {"auto"});
  const std::string bard = " --model " + models + "/bard.gguf";
  refuses("generate" + bard, {"bard.gguf", "n-model"});
  refuses("generate --decoder n-model" + bard + bard + bard, {"bard.gguf", "at most 4"});
  refuses("generate --decoder n-model --policy opt" + bard, {"opt", "3 models", "ensemble"});
  refuses("generate --decoder n-model --policy contrastive" + bard,
          {"contrastive", "3 models", "ensemble"});
  refuses("generate --decoder n-model --policy ensemble:lambda=0.4" + bard, {"lambda", "w1..w3"});
  refuses("generate --decoder n-model --policy ensemble:w1=0.5,w2=0.4" + bard, {"sum to 1"});
  refuses("generate --decoder n-model --policy minimum:w1=1" + bard, {"w1"});
  refuses("generate --decoder n-model --model /nowhere.gguf", {"/nowhere.gguf"});
  for (const char* seed : {"-1", "010", "18446744073709551616"})
    refuses(std::string("generate --seed=") + seed, {"--seed", "is no number from 0"});
  refuses("generate --seed=1e3", {"--seed", "1e3"});
}
TEST_CASE(
    "log-linear policies are combined as raw logits: every decoder gives one greedy text, and "
    "filters "
    "leave one") {
  const std::string greedy = "--temperature 0 --max-tokens 40 ",
                    bard = " --model " + models + "/bard.gguf";
  for (const char* policy : {"contrastive", "realign:lambda=1.5", "geometric"}) {
    INFO(policy);
    const std::string chosen = std::string("--policy ") + policy + " ";
    const auto text = generated(greedy + chosen);
    CHECK(text["space"] == "raw");
    for (const char* decoder :
         {"--decoder alternating", "--decoder n-model --gamma 2,3", "--decoder oracle",
          "--verify block", "--verify match", "--verify coupled", "--gamma auto", "--gamma 0"})
      CHECK(generated(greedy + chosen + decoder)["tokens"] == text["tokens"]);
    for (const char* decoder : {"speculative", "alternating", "oracle"})
      for (const char* filter : {"--top-k 40", "--top-p 0.5", "--min-p 0.5"})
        CHECK(generated("--max-tokens 20 " + chosen + filter + " --decoder " + decoder)["tokens"]
                  .size() == 20);
  }
  for (const char* policy : {"geometric", "geometric:w1=-1,w2=1,w3=1", "minimum --space raw"})
    CHECK(generated(greedy + "--decoder n-model --policy " + policy + bard)["space"] == "raw");
  for (const char* policy : {"ensemble", "minimum", "maximum", "power:rho=-1", "power:rho=0"}) {
    const std::string chosen = std::string("--space raw --policy ") + policy + " " + greedy;
    CHECK(generated(chosen)["tokens"] == generated(chosen + "--decoder oracle")["tokens"]);
  }
  // no filter: one law, one text
  const std::string both = "--policy geometric --temperature 1 --max-tokens 30 ";
  CHECK(generated(both)["tokens"] == generated(both + "--space law")["tokens"]);
  CHECK(generated("--policy minimum --max-tokens 2")["space"] == "law");
}
TEST_CASE(
    "a space that a policy or decoder does not have is refused. Rows without a law say why, and "
    "the "
    "way out") {
  refuses("generate --space prayer", {"--space prayer", "raw, law"});
  for (const char* d : {"speculative", "alternating", "oracle"})
    refuses(std::string("generate --space raw --policy opt --decoder ") + d,
            {"--space raw", "opt", "combines no logits", "contrastive, geometric"});
  for (const char* d : {"sequential", "sequence", "bild"})
    refuses(std::string("generate --space raw --decoder ") + d,
            {"--space raw", d, "combines no rows"});
  for (const char* options :
       {"--policy minimum", "--policy contrastive --space law", "--policy geometric --space law",
        "--policy minimum --decoder alternating", "--policy minimum --decoder oracle"})
    refuses(std::string("generate --json --temperature 0 ") + options,
            {"token", "undefined_target", "temperature and filters", "--space raw"});
  refuses("generate --json --temperature 0 --decoder n-model --policy minimum --model " + models +
              "/bard.gguf",
          {"undefined_target", "--space raw"});
}
TEST_CASE(
    "the backend cuda gives the reference continuation, or says in one line what is missing") {
  CHECK(generated("--max-tokens 2")["backend"] == "cpu");
  refuses("generate --backend nonsense", {"--backend nonsense", "unknown", "cpu, cuda, llama.cpp"});
#ifdef SPECAGG_CLI_CUDA
  const ran r = run("generate --backend cuda --max-tokens 2");
  if (r.status != 0)
    return refuses("generate --backend cuda", {"--backend cuda", "device 0", "CUDA"});
  for (const std::string gamma : {"0", "1", "4", "8"}) {
    const std::string options =
        "--temperature 0 --max-tokens 100 --prompt 'He that ' --gamma " + gamma;
    CHECK(generated(options + " --backend cuda")["tokens"] == generated(options)["tokens"]);
  }
  const auto j = generated("--backend cuda --temperature 0 --max-tokens 100 --compare");
  CHECK(j["backend"] == "cuda");
  CHECK(j["identical_to_target_alone"] == true);
  CHECK(j["speedup_measured"] > 0);
  CHECK(j["speedup_predicted"] > 0);
#else
  refuses("generate --backend cuda", {"--backend cuda", "this build has no CUDA backend"});
#endif
}
#if !SPECAGG_SANITIZED
TEST_CASE(
    "where the system makes fewer threads than asked for, the text is the same, and one line says "
    "how many") {
  const std::string arguments = "generate --json --prompt x --max-tokens 5 --threads 256";
  const ran r = run(arguments, "/dev/null", "", "ulimit -v 900000; ");
  INFO(r.out);
  REQUIRE(r.status == 0);
  REQUIRE(r.out.rfind("specagg: --threads 256: the system lets it have ", 0) == 0);
  const auto j = nlohmann::json::parse(r.out.substr(r.out.find('\n')));
  CHECK(j["threads"] < 256);
  CHECK(j["text"] == generated("--prompt x --max-tokens 5")["text"]);
}
#endif

TEST_CASE("output that cannot be written is an error") {
  for (const char* options : {"--json", "", "--compare"}) {
    const ran r = run(std::string("generate --max-tokens 5 ") + options + " >/dev/full");
    CHECK(r.status == 2);
  }
}
TEST_CASE("a stop string ends the text before it, also where it spans tokens") {
  const std::string whole = generated("--max-tokens 100 --seed 3")["text"];
  const std::string stop = whole.substr(whole.size() / 2, 7);
  std::ofstream("stop.tmp") << stop;
  const auto j =
      generated("--max-tokens 100 --seed 3 --stop \"$(cat stop.tmp)\" --stop 'never seen'");
  std::filesystem::remove("stop.tmp");
  CHECK(j["text"] == whole.substr(0, whole.find(stop)));
  CHECK(j["ended_by"] == "stop");
}
TEST_CASE("what a text counts is what it shows, also where a stop string cuts a round") {
  std::size_t cut = 0;
  for (const std::string& drafts :
       {std::string("--gamma 6"), "--gamma 6 --draft lookup,counts," + models + "/draft.gguf",
        std::string("--tree 2,2,1,1"), std::string("--decoder alternating --gamma 6")})
    for (const char* stop : {" to", "he", "a", " the"}) {
      const auto j = generated("--temperature 0 --max-tokens 60 --prompt 'And it came' " + drafts +
                               " --stop '" + stop + "'");
      INFO(drafts << " --stop " << stop << "\n" << j.dump());
      const std::size_t accepted = std::size_t(
          std::count(j["origin"].begin(), j["origin"].end(), nlohmann::json("accepted")));
      CHECK(j["ended_by"] == "stop");
      CHECK(j["accepted"] == accepted);
      cut += j["origin"].back() == "accepted";
      if (!j.contains("drafters")) continue;
      std::size_t of_drafters = 0;
      for (const auto& one : j["drafters"]) of_drafters += std::size_t(one["accepted"]);
      CHECK(of_drafters == accepted);
    }
  CHECK(cut > 2);
}
// docs/guarantees.md, "What the text of a seed depends on"
TEST_CASE(
    "with drafts the text of a seed depends on the limit of tokens, without them it does not") {
  const auto differ = [](const std::string& options) {
    std::size_t n = 0;
    for (int seed = 1; seed <= 20; ++seed) {
      const std::string how = options + " --prompt The --seed " + std::to_string(seed);
      const std::string one = generated("--max-tokens 1 " + how)["text"],
                        all = generated("--max-tokens 6 " + how)["text"];
      n += !all.starts_with(one);
    }
    return n;
  };
  CHECK(differ("--gamma 0") == 0);
  CHECK(differ("--gamma 4 --verify coupled") == 0);
  CHECK(differ("--gamma 4") > 0);
}
TEST_CASE("tokens that the file calls unused are never drawn") {
  // 128 pieces that are often drawn
  const auto drawn = [](const nlohmann::json& j) {
    return std::count_if(j["tokens"].begin(), j["tokens"].end(),
                         [](int token) { return token >= 270 && token < 398; });
  };
  for (const char* name : {"target", "draft"}) {
    std::ifstream in(models + "/" + name + ".gguf", std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const std::string key = "tokenizer.ggml.token_type";
    const auto types = bytes.find(key) + key.size() + 16;  // 32 bits each
    for (std::size_t t = 270; t < 398; ++t) bytes[types + 4 * t] = 5;
    std::ofstream(std::string(name) + ".unused.tmp", std::ios::binary) << bytes;
  }
  const std::string common = "--max-tokens 60 --prompt A --temperature ";
  for (const std::string how :
       {"0 --gamma 3", "3", "1 --draft lookup,counts,draft.unused.tmp", "1 --tree 2,2,1",
        "1 --decoder alternating", "1 --decoder oracle --policy contrastive",
        "1 --policy geometric --repeat-penalty 1.1", "1 --decoder sequential"}) {
    INFO(how);
    const auto j = generated("--target target.unused.tmp " + common + how +
                             (how.find("--draft") < how.size() ? "" : " --draft draft.unused.tmp"));
    CHECK(j["tokens"].size() > 30);
    CHECK(drawn(j) == 0);
  }
  CHECK(drawn(generated(common + "3")) > 0);
#ifdef SPECAGG_CLI_NET
  const ran alone = run("dssd device --alone --json --model draft.unused.tmp " + common + "3");
  REQUIRE(alone.status == 0);
  CHECK(drawn(nlohmann::json::parse(alone.out)) == 0);
#endif
  for (const char* name : {"target", "draft"})
    std::filesystem::remove(std::string(name) + ".unused.tmp");
}
TEST_CASE("a prompt comes from a pipe, too. One that nobody writes to is not waited for") {
  std::filesystem::remove("pipe.tmp");
  REQUIRE(mkfifo("pipe.tmp", 0600) == 0);
  const ran nobody = run("generate --prompt-file pipe.tmp");
  CHECK(nobody.status == 2);
  CHECK(nobody.out == "specagg: pipe.tmp: is a pipe that nobody writes to\n");
  const int reader = open("pipe.tmp", O_RDONLY | O_NONBLOCK | O_CLOEXEC),
            writer = open("pipe.tmp", O_WRONLY | O_CLOEXEC);
  REQUIRE(write(writer, "ROMEO:\n", 7) == 7);
  close(writer);  // what it wrote is kept while there is a reader
  CHECK(generated("--max-tokens 5 --prompt-file pipe.tmp")["prompt"] == "ROMEO:\n");
  close(reader);
  std::filesystem::remove("pipe.tmp");
}
TEST_CASE("empty, one-byte, non-UTF-8 and binary prompts work") {
  CHECK(generated("--prompt '' --max-tokens 5")["tokens"].size() == 5);
  CHECK(generated("--prompt a --max-tokens 5")["tokens"].size() == 5);
  std::ofstream("prompt.tmp", std::ios::binary) << "\xff\xfe broken \xc3 utf-8 \x01\x80";
  CHECK(generated("--prompt-file prompt.tmp --max-tokens 20")["tokens"].size() == 20);
  std::filesystem::remove("prompt.tmp");
}
TEST_CASE("penalties and filters are applied") {
  const auto greedy = generated("--temperature 0 --max-tokens 100"),
             penalised = generated("--temperature 0 --max-tokens 100 --repeat-penalty 1.5");
  CHECK(greedy["tokens"] != penalised["tokens"]);
  CHECK(generated("--top-k 1 --max-tokens 50 --temperature 1")["tokens"] ==
        generated("--temperature 0 --max-tokens 50")["tokens"]);
  CHECK(generated("--top-p 1e-9 --max-tokens 50 --temperature 1")["tokens"] ==
        generated("--temperature 0 --max-tokens 50")["tokens"]);
  CHECK(generated("--min-p 1 --max-tokens 50 --temperature 1")["tokens"] ==
        generated("--temperature 0 --max-tokens 50")["tokens"]);
}
TEST_CASE(
    "standard output gets the prompt and its continuation and nothing else. The counts are told "
    "beside it") {
  for (const std::string options : {"--max-tokens 60", "--max-tokens 100 --seed 3 --stop the",
                                    "--max-tokens 9 --verify coupled --gamma auto"}) {
    for (const std::string prompt : {"ROMEO:\n", "He that", "\xff{x} \033 [y]"}) {
      std::ofstream("bare-prompt.tmp", std::ios::binary) << prompt;
      const std::string arguments = "generate --prompt-file bare-prompt.tmp " + options;
      const ran told = run(arguments, "/dev/null", "bare-text.tmp");
      std::ifstream file("bare-text.tmp", std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      INFO(arguments << "\n" << told.out);
      CHECK(told.status == 0);
      CHECK(told.out.find("tokens in") != std::string::npos);
      const std::string continuation =
          generated("--prompt-file bare-prompt.tmp " + options)["text"];
      CHECK(text == prompt + continuation + "\n");
    }
  }
  std::filesystem::remove("bare-prompt.tmp");
  std::filesystem::remove("bare-text.tmp");
}
TEST_CASE(
    "terminal: one without colours gets brackets that show where each token came from. A pipe gets "
    "none") {
  if (!cli::has_terminals()) return;
  const std::string arguments = "generate --compare --max-tokens 60";
  const ran dumb = cli::run_at_terminal("-u NO_COLOR TERM=dumb", arguments), piped = run(arguments);
  for (const auto& [r, marks] : {std::pair(dumb, true), std::pair(piped, false)}) {
    INFO(r.out);
    CHECK(r.status == 0);
    for (const char* word :
         {"target alone", "acceptance", "tokens per target call", "measured", "predicted"})
      CHECK(r.out.find(word) != std::string::npos);
    for (const char* mark : {"accepted draft", "{residual}", "[bonus]"})
      CHECK((r.out.find(mark) != std::string::npos) == marks);
  }
}
TEST_CASE("generate --compare prints a text once where both are the same") {
  const std::string options = "--temperature 0 --max-tokens 30", text = generated(options)["text"];
  const ran r = run("generate --compare " + options);
  INFO(r.out);
  const auto first = r.out.find(text);
  CHECK(first != std::string::npos);
  CHECK(r.out.find(text, first + 1) == std::string::npos);
}
TEST_CASE("every subcommand has --help") {
  for (const char* command : {"--help", "generate --help"}) CHECK(run(command).status == 0);
  CHECK(run("generate --help").out.find("token-v3") != std::string::npos);
}
TEST_CASE("what cannot be used gets one line that names it, and exit status 2") {
  refuses("", {"subcommand"});
  refuses("generate --policy nonsense", {"--policy nonsense", "unknown", "lossless"});
  refuses("generate --policy opt:alhpa=1", {"alhpa", "no parameter", "alpha"});
  refuses("generate --policy lossless:alpha=1", {"alpha", "no parameters"});
  refuses("generate --policy opt:alpha", {"key=value"});
  refuses("generate --policy opt:alpha=1,alpha=2", {"alpha", "twice"});
  refuses("generate --policy opt:alpha=x", {"alpha", "not a number"});
  refuses("generate --policy opt:alpha=nan", {"alpha", "not a number"});
  refuses("generate --policy lossy:alpha=1", {"alpha", "[0, 1)"});
  refuses("generate --policy lossy:alpha=-0.1", {"alpha"});
  refuses("generate --policy lossy:alpha=0.5,beta=0.4", {"beta", "0.4", "out of range"});
  refuses("generate --policy ensemble:lambda=1.5", {"lambda", "[0, 1]"});
  refuses("generate --gamma=-1", {"--gamma"});
  refuses("generate --gamma many", {"--gamma", "auto"});
  refuses("generate --temperature -1", {"--temperature"});
  refuses("generate --temperature nan", {"--temperature"});
  for (const char* option : {"--top-p", "--min-p", "--repeat-penalty"})
    refuses(std::string("generate ") + option + " nan", {option, "range"});
  refuses("generate --top-p 0", {"--top-p"});
  refuses("generate --nonsense", {"nonsense"});
  refuses("generate --target /nowhere.gguf", {"/nowhere.gguf"});
  refuses("generate --target " + models, {models.c_str()});
  refuses("generate --target " + models + "/README.md", {"README.md"});
  refuses("generate --prompt-file /nowhere.txt", {"/nowhere.txt", "cannot be read"});
  refuses("generate --prompt-file /dev/zero", {"/dev/zero", "16777216 bytes"});
  refuses("generate --prompt-file /tmp", {"/tmp", "cannot be read"});
  refuses("generate --prompt \"$(head -c 20000 /dev/zero | tr '\\0' 'x')\"", {"prompt", "context"});
}
TEST_CASE("a truncated or damaged model file is named, with the place") {
  namespace fs = std::filesystem;
  std::ifstream in(models + "/draft.gguf", std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const auto with = [&](std::string bytes, const char* word) {
    std::ofstream("broken.gguf", std::ios::binary) << bytes;
    refuses("generate --draft broken.gguf", {"broken.gguf", word});
    fs::remove("broken.gguf");
  };
  with("", "");
  with(whole.substr(0, 3), "");
  with(whole.substr(0, 1000), "");
  with(whole.substr(0, whole.size() / 2), "");
  with(whole.substr(0, whole.size() - 1), "");
  with("GGML" + whole.substr(4), "");
}
