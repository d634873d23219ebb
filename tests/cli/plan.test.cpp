// SPDX-License-Identifier: Apache-2.0
// specagg plan: what it prints, and one clear line with status 2 for what it cannot use.
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"

namespace {

using cli::ran;
ran plan(const std::string& arguments) { return cli::run("plan " + arguments); }
nlohmann::json json(const std::string& arguments) {
  const ran r = plan(arguments + " --json");
  INFO(r.out);
  REQUIRE(r.status == 0);
  return nlohmann::json::parse(r.out);
}
// The texts stand in the output in this order.
void prints(const std::string& arguments, std::initializer_list<const char*> texts) {
  const ran r = plan(arguments);
  INFO(arguments << "\n" << r.out);
  CHECK(r.status == 0);
  std::size_t at = 0;
  for (const char* text : texts) {
    INFO(text);
    at = r.out.find(text, at);
    REQUIRE(at != std::string::npos);
    at += std::string(text).size();
  }
}
void refuses(const std::string& arguments, std::initializer_list<const char*> words) {
  cli::refuses("plan " + arguments, words);
}

}  // namespace

TEST_CASE("plan dssd prints Table 1 of its paper, all 24 cells") {
  prints("dssd", {"a = 0.5", "a = 0.6", "a = 0.7", "a = 0.8", "a = 0.9", "a = 0.99",
                  "2  0.75 (26.00 ms)  0.64 (25.12 ms)  0.51 (24.08 ms)  0.36 (22.88 ms)  0.19 "
                  "(21.52 ms)  0.02 (20.16 ms)\n",
                  "4  0.94 (27.50 ms)  0.87 (26.96 ms)  0.76 (26.08 ms)  0.59 (24.72 ms)  0.34 "
                  "(22.75 ms)  0.04 (20.32 ms)\n",
                  "6  0.98 (27.88 ms)  0.95 (27.63 ms)  0.88 (27.06 ms)  0.74 (25.90 ms)  0.47 "
                  "(23.75 ms)  0.06 (20.47 ms)\n",
                  "8  1.00 (27.97 ms)  0.98 (27.87 ms)  0.94 (27.54 ms)  0.83 (26.66 ms)  0.57 "
                  "(24.56 ms)  0.08 (20.62 ms)\n"});
  const auto j = json("dssd");
  REQUIRE(j["table"].size() == 24);
  for (const auto& cell : j["table"])
    CHECK(double(cell["t_comm_ms"]) ==
          Approx(20 + 8 * (1 - std::pow(double(cell["acceptance"]), double(cell["gamma"]))))
              .epsilon(1e-13));
}
TEST_CASE("plan dssd --schemes counts the bytes of each split") {
  prints("dssd --schemes --gamma 4 --acceptance 0.8",
         {"dsd", "400016", "dssd", "24", "coupled", "16", "quantised"});
  const auto j = json("dssd --vocabulary 32000 --gamma 4 --acceptance 0.8");
  REQUIRE(j["schemes"].size() == 4);
  CHECK(j["schemes"][3]["bytes_up"] == 84);  // 4 x (an id and 134.8 bits)
  CHECK(double(j["schemes"][1]["speedup"]) > double(j["schemes"][0]["speedup"]));
}
TEST_CASE("plan cos prints the three check values, or one setting") {
  prints("cos", {"1,1", "1.774", "1,1", "1.667", "5,1", "2.694"});
  const auto j = json("cos --acceptance 0.8 --gamma 5,1 --c 0.1");
  REQUIRE(j["settings"].size() == 1);
  const auto& s = j["settings"][0];
  CHECK(double(s["speedup"]) == Approx(2.694).margin(5e-4));
  CHECK(double(s["pi_d"]) + double(s["pi_p"]) + double(s["pi_q"]) == Approx(1));
  const auto e = json("cos --tv 0.4 --lambda 0.3")["settings"][0];
  CHECK(double(e["a_q"]) == Approx(0.72));
  CHECK(double(e["a_p"]) == Approx(0.88));
}
TEST_CASE("plan dragon prints the check values") {
  prints("dragon", {"0.50  0.50", "0.4181", "0.4500", "0.90  0.50", "0.3731", "0.4500"});
  const auto j = json("dragon --a-l 0.5 --a-r 0.5");
  const auto& s = j["settings"][0];
  CHECK(double(s["exact_l"]) == Approx(0.4181).margin(6e-5));
  CHECK(double(s["eq7_l"]) == Approx(0.45));
  CHECK(double(s["eq7_l"]) - double(s["eq7_r"]) == Approx(double(s["eq8"])));
  CHECK(double(s["simulated_l"]) == Approx(double(s["exact_l"])).epsilon(0.01));
  CHECK(double(s["moving"]) < double(s["simulated_l"]));
  CHECK(s["side_exact"] == "l");
  // Synchronous: look-ahead 1.
  CHECK(double(json("dragon --look-ahead 1 --a-l 0.5")["settings"][0]["simulated_l"]) ==
        Approx(0.65).epsilon(1e-3));
}
TEST_CASE("plan dragon prints the baselines, and the first token by text and by cache") {
  const auto j = json(
      "dragon --tokens 10 --c-l 0.088 --c-r 0.022 --t-l 0.1 --t-r 0.2 --sequence 20 --row 0.008 "
      "--read 1.5 "
      "--cache 114 --rate 100");
  const auto& b = j["baselines"];
  CHECK(double(b["device_alone"]) == Approx(0.088));
  CHECK(double(b["token_wise"]) == Approx(0.322));  // 0.022 + 0.1 + 0.2
  // 20 of the cloud: 20 (0.022 + 0.008) + 0.2 < 1.76
  CHECK(double(b["sequence_wise"]) == Approx(0.088));
  const auto& f = j["first_token"];
  CHECK(double(f["dragon"]) == Approx(0.222));  // 0.022 + 0.2
  CHECK(double(f["by_text"]) == Approx(0.1 + 0.2 + 1.5 + 0.088));
  CHECK(double(f["by_cache"]) == Approx(0.1 + 0.2 + 114 * 8 / 100. + 0.088));
  CHECK(double(json("dragon --tokens 10 --c-l 0.01 --row 0.05")["baselines"]["sequence_wise"]) ==
        Approx(0.115));
  prints("dragon --tokens 10", {"l alone", "token-wise", "sequence-wise", "by text", "by cache"});
}
TEST_CASE("plan acceptance prints Eq 5 for any gamma_l, as computed by hand") {
  const auto j =
      json("acceptance --l 0.5,0.3,0.2 --r 0.2,0.5,0.3 --eta-l 0.4 --gamma-l 0.2,0.5,0.8");
  // pi = 0.4 l + 0.6 r = (.32, .42, .26); TV = .3; sum l pi = .338, sum r pi = .352
  REQUIRE(j["settings"].size() == 3);
  for (const auto& s : j["settings"]) {
    const double g = s["gamma_l"];
    CHECK(double(s["acceptance_l"]) ==
          Approx(g * (1 - 0.6 * 0.3) + (1 - g) * 0.338).epsilon(1e-12));
    CHECK(double(s["acceptance_r"]) ==
          Approx((1 - g) * (1 - 0.4 * 0.3) + g * 0.352).epsilon(1e-12));
    CHECK(double(s["both"]) + double(s["only_l"]) ==
          Approx(double(s["acceptance_l"])).epsilon(1e-12));
    CHECK(double(s["both"]) + double(s["only_r"]) ==
          Approx(double(s["acceptance_r"])).epsilon(1e-12));
  }
  refuses("acceptance --l 0.5,0.5", {"plan acceptance", "--l and --r"});
  refuses("acceptance --l 0.5,0.1,0.1 --r 0.2,0.5,0.3", {"plan acceptance", "no row"});
  refuses("acceptance --gamma-l 2", {"plan acceptance", "--gamma-l"});
}
TEST_CASE("plan speculative finds the best gamma") {
  const auto j = json("speculative");
  CHECK(j["best_gamma"] == 6);
  CHECK(double(j["best_speedup"]) == Approx((1 - std::pow(0.8, 7)) / 0.2 / 1.6));
  CHECK(j["rows"].size() == 13);
  CHECK(json("speculative --acceptance 0.9,0.8,0.7,0.2 --d 0.05")["best_gamma"] == 3);
  CHECK(json("speculative --d 2")["best_gamma"] == 0);
  CHECK(double(json("speculative --law-reads-draft")["best_speedup"]) < double(j["best_speedup"]));
  prints("speculative", {"gamma", "best"});
}
TEST_CASE(
    "plan schedulers: on the protocol ours are not slower than Eq 8 beyond noise and 0.2 % (Figure "
    "8)",
    "[more]") {
  prints("schedulers --repeats 2 --delay 0.3",
         {"device", "cloud", "random", "Eq 8", "recursion", "moving", "0.300 s"});
  for (const char* setting :
       {"", " --a-l 0.5 --a-r 0.6 --c-l 0.25 --c-r 0.15", " --a-l 0.9 --a-r 0.3 --c-l 0.1"}) {
    const auto j = json(std::string("schedulers") + setting);
    REQUIRE(j["settings"].size() == 5);
    for (const auto& s : j["settings"]) {
      for (const char* method : {"recursion", "moving"})
        CHECK(double(s[method]["over_eq8"]) <=
              double(s[method]["two_standard_errors"]) + 0.002 * double(s["Eq 8"]["seconds"]));
      CHECK(double(s["moving"]["seconds"]) <= 1.001 * double(s["random"]["seconds"]));
    }
  }
}
TEST_CASE("plan schedulers counts from the connection on, plan dragon between connected sites") {
  const double first =
      json("dragon --c-l 0.088 --c-r 0.022 --t-l 0.151 --t-r 0.151")["first_token"]["dragon"];
  CHECK(first == Approx(0.022 + 0.151));
  const auto j = json("schedulers --tokens 1 --c-l 0.088 --c-r 0.022 --base 0.001 --delay 0.3");
  // the first token of the protocol: terms, progress, draft
  CHECK(double(j["settings"][0]["Eq 8"]["seconds"]) == Approx(3 * 0.151).epsilon(0.01));
  prints("schedulers --repeats 2 --delay 0", {"From the connection on", "three ways"});
  prints("dragon", {"of connected sites"});
}
TEST_CASE("plan dssd calls T_NTT what the paper calls it, and counts q(y) in full") {
  CHECK(plan("dssd --help").out.find("Non-transmission time") != std::string::npos);
  const auto j = json("dssd --gamma 8 --acceptance 0.6 --bits 16");
  for (const auto& s : j["schemes"])
    if (s["scheme"] == "dssd") CHECK(s["bytes_up"] == 64);
}
TEST_CASE("plan prints numbers or refuses: never inf, never nan", "[more]") {
  const std::pair<const char*, std::vector<const char*>> commands[] = {
      {"cos", {"--acceptance", "--tv", "--gamma", "--c", "--v"}},
      {"speculative", {"--acceptance", "--c", "--v", "--d", "--most"}},
      {"dssd --schemes",
       {"--acceptance", "--gamma", "--vocabulary", "--bits", "--rate", "--rate-up", "--ntt",
        "--t-slm", "--t-llm", "--v", "--kept", "--counts"}},
      {"dragon --tokens 10",
       {"--a-l", "--a-r", "--correlation", "--c-l", "--c-r", "--t-l", "--t-r", "--look-ahead",
        "--sequence", "--row", "--read", "--cache", "--rate"}},
      {"acceptance", {"--l", "--r", "--eta-l", "--gamma-l"}},
      {"schedulers --tokens 3 --repeats 2",
       {"--delay", "--base", "--c-l", "--c-r", "--a-l", "--a-r", "--correlation"}}};
  const auto finite = [](const std::string& arguments) {
    const ran r = plan(arguments);
    INFO(arguments << "\n" << r.out);
    CHECK((r.status == 0 || (r.status == 2 && std::count(r.out.begin(), r.out.end(), '\n') == 1)));
    if (r.status == 0)
      for (const char* word : {" inf", " -inf", "nan", "null"})
        CHECK(r.out.find(word) == std::string::npos);
    return r.status == 0;
  };
  int printed = 0;
  for (const auto& [command, options] : commands)
    for (const char* option : options)
      for (const char* value : {"0", "1e-308", "1e9", "1e308", "nan", "inf"})
        for (const char* format : {"", " --json"})
          printed += finite(std::string(command) + " " + option + " " + value + format);
  CHECK(printed > 50);
  // the most extreme of eq. 9
  CHECK(finite("dragon --a-r 1 --c-r 1e-9 --c-l 0 --t-l 1e9 --t-r 1e9 --tokens 10"));
}
TEST_CASE("every plan has --help") {
  for (const char* command : {"--help", "cos --help", "speculative --help", "record --help",
                              "dssd --help", "dragon --help", "schedulers --help"}) {
    const ran r = plan(command);
    CHECK(r.status == 0);
    CHECK(r.out.find("--help") != std::string::npos);
  }
  CHECK(plan("dssd --help").out.find("CN2025108856278") != std::string::npos);
}
TEST_CASE("plan refuses what it cannot use in one line, with status 2") {
  refuses("", {"subcommand"});
  refuses("nonsense", {"subcommand"});
  refuses("cos --acceptance 1.5", {"plan cos", "--acceptance", "1.5", "[0, 1]"});
  refuses("cos --acceptance many", {"--acceptance"});
  refuses("cos --gamma 0", {"--gamma", "[1,"});
  refuses("cos --gamma -1", {"--gamma"});
  refuses("cos --c -1", {"--c", "[0, 1e+09]"});
  refuses("cos --v 0", {"--v"});
  refuses("cos --c 1e308", {"plan cos", "--c", "1e+308", "[0, 1e+09]"});
  refuses("cos --lambda 0.3", {"--lambda", "--tv"});
  refuses("cos --tv 2", {"--tv"});
  refuses("speculative --c nan", {"--c", "nan"});
  refuses("speculative --d -1", {"--d"});
  refuses("speculative --most 100000", {"--most"});
  refuses("dssd --acceptance 0.5,nan", {"--acceptance", "nan"});
  refuses("dssd --rate 0", {"--rate"});
  refuses("dssd --vocabulary inf", {"--vocabulary"});
  refuses("dssd --kept 0", {"--kept"});
  refuses("dragon --a-l -0.1", {"plan dragon", "--a-l"});
  refuses("dragon --correlation -2", {"--correlation", "[-1, 1]"});
  refuses("dragon --look-ahead 65", {"--look-ahead", "64"});
  refuses("dragon --c-l 0 --c-r 0", {"--c-l"});
  refuses("dragon --t-l inf", {"--t-l"});
  refuses("dssd --rate-up nan", {"--rate-up", "nan"});
  refuses("dssd --schemes --vocabulary 1e9 --kept 1000000000", {"--kept", "1e+06"});
  refuses("dragon --seed -1", {"--seed", "-1"});
  refuses("schedulers --delay 0,-1", {"plan schedulers", "--delay", "[0, 1000]"});
  refuses("schedulers --look-ahead 0", {"--look-ahead", "[1, 64]"});
  refuses("schedulers --tokens 0", {"--tokens"});
}
