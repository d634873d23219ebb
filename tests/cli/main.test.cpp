// SPDX-License-Identifier: Apache-2.0
// What every subcommand of specagg does alike.
#include <sys/stat.h>

#include <string>
#include <vector>

#include <specagg/kernel/simd.hpp>

#include "cli/command.hpp"

namespace {

using cli::ran, cli::refuses, cli::run, cli::run_at_terminal;

bool has_escapes(const ran& r) { return r.out.find('\033') != std::string::npos; }

}  // namespace

TEST_CASE("any output that cannot be written is reported") {
  for (const char* arguments :
       {"--help", "--version", "generate --help", "plan cos --help", "generate --max-tokens 3",
        "generate --max-tokens 3 --json", "law --q 0.5,0.5 --p 0.4,0.6",
        "law --q 0.5,0.5 --p 0.4,0.6 --json", "plan cos", "plan cos --json", "plan speculative",
        "plan dssd --json", "plan dragon --tokens 10",
        "plan schedulers --repeats 2 --tokens 5 --json", "completion bash", "man"}) {
    const ran r = run(arguments, "/dev/null", "/dev/full");
    INFO(arguments << "\n" << r.out);
    CHECK(r.status == 2);
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
    CHECK(r.out.find("written") + r.out.find("write") != 2 * std::string::npos);
  }
  CHECK(run("--help").status == 0);
  CHECK(run("--version").status == 0);
}

TEST_CASE("a misspelt subcommand or option is named, with what it may have been meant to be") {
  refuses("generat", {"generat is no subcommand of specagg", "did you mean generate?"});
  refuses("plna cos", {"plna", "did you mean plan?"});
  refuses("plan coss --json", {"coss is no subcommand of plan", "did you mean cos?"});
  refuses("plan spekulative", {"did you mean speculative?"});
  refuses("generate --promt x", {"--promt is no option of generate", "did you mean --prompt?"});
  refuses("generate --max-tokens=3 --sed=3",
          {"--sed is no option of generate", "did you mean --seed?"});
  refuses("plan cos --acceptence 0.5",
          {"--acceptence is no option of plan cos", "did you mean --acceptance?"});
  refuses("--hlep", {"--hlep is no option of specagg", "did you mean --help?"});
  refuses("law --bathc", {"did you mean --batch?"});
  for (const char* far : {"law --nonsense", "generate --nonsense 3", "nonsense", "plan nonsense",
                          "generate nonsense"}) {
    const ran r = run(far);
    INFO(r.out);
    CHECK(r.status == 2);
    CHECK(r.out.find("nonsense") != std::string::npos);
    CHECK(r.out.find("did you mean") == std::string::npos);
  }
  refuses("nonsense", {"generate", "law", "plan"});  // what there is
  refuses("generate --seed -- hello", {"--seed"});
  refuses("", {"A subcommand is required"});
}

TEST_CASE("terminal: colours are for one that has them, unless NO_COLOR is set") {
  if (!cli::has_terminals()) return;
  const std::string arguments = "generate --max-tokens 4";
  const ran coloured = run_at_terminal("-u NO_COLOR TERM=xterm", arguments);
  INFO(coloured.out);
  CHECK(coloured.status == 0);
  CHECK(has_escapes(coloured));
  const char* const legend = "the target's in place of a rejected draft";
  CHECK(coloured.out.find(legend) != std::string::npos);
  CHECK(run(arguments).out.find(legend) == std::string::npos);
  for (const char* plain : {"-u NO_COLOR TERM=dumb", "-u NO_COLOR -u TERM",
                            "-u NO_COLOR TERM=", "NO_COLOR=1 TERM=xterm"}) {
    const ran r = run_at_terminal(plain, arguments);
    INFO(plain << "\n" << r.out);
    CHECK(r.status == 0);
    CHECK(r.out.find("tokens in") != std::string::npos);
    CHECK_FALSE(has_escapes(r));
  }
  CHECK_FALSE(has_escapes(run(arguments)));
}
TEST_CASE(
    "terminal: the option --color is stronger than it and than NO_COLOR. An empty NO_COLOR says "
    "nothing") {
  if (!cli::has_terminals()) return;
  const std::string arguments = "generate --max-tokens 20 --prompt x --color ";
  CHECK(has_escapes(run(arguments + "always")));
  CHECK(has_escapes(run_at_terminal("NO_COLOR=1 TERM=dumb", arguments + "always")));
  CHECK(has_escapes(run_at_terminal("NO_COLOR= TERM=xterm", arguments + "auto")));
  CHECK_FALSE(has_escapes(run(arguments + "auto")));
  for (const char* environment : {"-u NO_COLOR TERM=xterm", "-u NO_COLOR TERM=dumb"}) {
    const ran r = run_at_terminal(environment, arguments + "never");
    INFO(r.out);
    for (const char mark : {'\033', '{', '['}) CHECK(r.out.find(mark) == std::string::npos);
  }
  const std::string law = "law --q 0.5,0.5 --p 0.4,0.6 --color ";
  CHECK(has_escapes(run(law + "always")));
  CHECK_FALSE(has_escapes(run_at_terminal("-u NO_COLOR TERM=xterm", law + "never")));
  refuses("generate --color red", {"--color red", "auto, always, never"});
}
TEST_CASE("the prompt stands dimmed before its continuation") {
  const ran r = run("generate --max-tokens 3 --prompt 'He that' --color always");
  CHECK(r.out.rfind("\033[2mHe that\033[0m", 0) == 0);
}
TEST_CASE("the option --version says what was built, and how") {
  const ran r = run("--version");
  INFO(r.out);
  CHECK(r.status == 0);
  CHECK(r.out.rfind(std::string("specagg ") + SPECAGG_VERSION + "\n", 0) == 0);
  CHECK(r.out.find(std::string("instruction set: ") + specagg::instruction_set + "\n") !=
        std::string::npos);
  for (const char* word : {"\ncompiler: ", "CUDA", "gRPC", "llama.cpp", "Xapian"})
    CHECK(r.out.find(word) != std::string::npos);
#ifdef __clang__
  CHECK(r.out.find("compiler: clang++ " + std::to_string(__clang_major__)) != std::string::npos);
#else
  CHECK(r.out.find("compiler: g++ " + std::to_string(__GNUC__)) != std::string::npos);
#endif
  [[maybe_unused]] const auto with = r.out.find("\nwith: "), without = r.out.find("\nwithout: ");
#ifdef SPECAGG_CLI_CUDA
  CHECK((with < r.out.find("CUDA") && r.out.find("CUDA") < without));
#else
  CHECK(without < r.out.find("CUDA"));
#endif
#ifdef SPECAGG_CLI_LLAMA_CPP
  CHECK((with < r.out.find("llama.cpp") && r.out.find("llama.cpp") < without));
#else
  CHECK(without < r.out.find("llama.cpp"));
#endif
#ifdef SPECAGG_XAPIAN
  CHECK((with < r.out.find("Xapian") && r.out.find("Xapian") < without));
#else
  CHECK(without < r.out.find("Xapian"));
#endif
}
TEST_CASE(
    "what help, completion and the manual print holds no path of the machine that built the "
    "program") {
  for (const char* arguments :
       {"--help", "generate --help", "law --help", "audit --help", "plan --help", "plan cos --help",
        "dragon --help", "dragon serve --help", "dragon device --help", "dragon profile --help",
        "dssd serve --help", "dssd device --help", "completion bash", "completion zsh",
        "completion fish", "man"}) {
    const ran r = run(arguments);
    INFO(arguments << "\n" << r.out);
    CHECK(r.out.find(SPECAGG_SOURCE_DIR) == std::string::npos);
    CHECK(r.out.find(SPECAGG_MODELS) == std::string::npos);
    CHECK(r.out.find(SPECAGG_CLI) == std::string::npos);
  }
  CHECK(run("generate --help").out.find("the bundled target model") != std::string::npos);
}
