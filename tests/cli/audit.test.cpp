// SPDX-License-Identifier: Apache-2.0
// specagg audit: right samplers fit, biased ones are found, and what cannot be used gets one line
// with status 2.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include <specagg/audit/goodness_of_fit.hpp>

#include "cli/command.hpp"

using nlohmann::json;
using specagg::usual_false_alarm;

namespace {

// A file that is there as long as this.
struct temporary {
  std::string path;
  temporary(const char* name, const std::string& text)
      : path(
            (std::filesystem::temp_directory_path() / (name + std::to_string(getpid()))).string()) {
    std::ofstream(path, std::ios::binary) << text;
  }
  ~temporary() { std::filesystem::remove(path); }
};
cli::ran audit(const std::string& law, const std::string& tokens, const std::string& options = "") {
  const temporary p("specagg-law-", law), in("specagg-tokens-", tokens);
  return cli::run("audit --law " + p.path + " " + options, in.path);
}
void refuses(const std::string& law, const std::string& tokens,
             std::initializer_list<const char*> words) {
  const cli::ran r = audit(law, tokens);
  INFO(r.out);
  CHECK(r.status == 2);
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  CHECK(specagg::printable(r.out, 100000) == r.out.substr(0, r.out.find('\n')) + "\\n");
  for (const char* word : words) CHECK(r.out.find(word) != std::string::npos);
}

std::string sampled(const std::vector<double>& law, std::size_t samples, unsigned seed,
                    bool objects = false) {
  std::mt19937_64 random(seed);
  std::vector<double> sums;
  for (const double x : law) sums.push_back((sums.empty() ? 0 : sums.back()) + x);
  std::string text;
  for (std::size_t i = 0; i < samples; ++i) {
    const double u = double(random() >> 11) * 0x1p-53 * sums.back();
    const auto token = std::to_string(std::upper_bound(sums.begin(), sums.end(), u) - sums.begin());
    text += objects ? "{\"step\": 1, \"token\": " + token + "}\n" : token + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE(
    "audit: samplers of the law fit, and one further than the detectable total variation is "
    "found") {
  for (const std::size_t vocabulary : {2u, 5u, 300u}) {
    std::vector<double> law;
    double sum = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) sum += law.emplace_back(1 / double(1 + v));
    for (double& x : law) x /= sum;
    for (unsigned seed = 1; seed <= 5; ++seed) {
      const cli::ran right = audit(json(law).dump(), sampled(law, 20000, seed), "--json");
      REQUIRE(right.status == 0);
      const json j = json::parse(right.out);
      CHECK(j["fits"] == true);
      CHECK(j["samples"] == 20000);
      CHECK(j["alpha"] == usual_false_alarm);
      CHECK(double(j["p_value"]) > usual_false_alarm);
      const double tv = j["detectable_tv"];
      CHECK((tv > 0 && tv < 0.2));
      // The bias lies where the law expects most: token 0 gets what the detectable gap takes from
      // the others.
      std::vector<double> biased = law;
      for (double& x : biased) x *= 1 - tv / (1 - law[0]);
      biased[0] = law[0] + tv;
      const cli::ran wrong = audit(json(law).dump(), sampled(biased, 20000, seed), "--json");
      INFO(wrong.out);
      CHECK(wrong.status == 1);
      CHECK(json::parse(wrong.out)["fits"] == false);
      // of two both are off alike
      if (vocabulary > 2) CHECK(json::parse(wrong.out)["worst"][0]["token"] == 0);
    }
  }
}
TEST_CASE(
    "audit takes ids or objects, a list or what specagg law prints, and says the same of them") {
  const std::vector<double> law = {0.5, 0.25, 0.25};
  const std::string tokens = sampled(law, 2000, 7);
  const cli::ran r = audit("[0.5, 0.25, 0.25]", tokens, "--json");
  CHECK(r.status == 0);
  CHECK(audit("{\"law\": [0.5, 0.25, 0.25], \"status\": \"ok\"}", tokens, "--json").out == r.out);
  CHECK(audit("[0.5, 0.25, 0.25]", sampled(law, 2000, 7, true), "--json").out == r.out);
  const cli::ran printed =
      cli::run("law --json --policy maximum --q 0.5,0.25,0.25 --p 0.5,0.25,0.25");
  CHECK(audit(printed.out, tokens, "--json").out == r.out);
  const std::string unended = tokens.substr(0, tokens.size() - 1);
  CHECK(audit("[0.5, 0.25, 0.25]", unended, "--json").out == r.out);
}
TEST_CASE("audit makes the law from logits, temperature and filters, as an engine samples") {
  // temperature 0.5 squares the odds 4 : 2 : 1, and top-p 0.9 leaves 16 : 4
  const std::string logits =
      R"({"logits": [0.6931471805599453, "-inf", 1.3862943611198906, 0], "temperature": 0.5, )";
  const std::string tokens = sampled({0.2, 0, 0.8, 0}, 3000, 1);
  const json given = json::parse(audit("[0.2, 0, 0.8, 0]", tokens, "--json").out);
  for (const char* rest : {R"("top_p": 0.9})", R"("top_k": 2})", R"("min_p": 0.1})"}) {
    const cli::ran made = audit(logits + rest, tokens, "--json");
    INFO(rest << made.out);
    REQUIRE(made.status == 0);
    const json j = json::parse(made.out);
    CHECK(std::fabs(double(j["distance"]) - double(given["distance"])) < 1e-12);
    CHECK(std::fabs(double(j["p_value"]) - double(given["p_value"])) < 1e-9);
  }
  // 4/7 of the two first tokens, or of all tokens
  const cli::ran joint = audit(logits + R"("top_k": 2, "top_p": 0.78, "order": "joint"})", tokens);
  CHECK(joint.status == 0);
  CHECK(audit(logits + R"("top_k": 2, "top_p": 0.78})", tokens).status == 1);
  const cli::ran none = audit(logits + R"("order": "first"})", tokens);
  CHECK(none.status == 2);
  CHECK(none.out.find("order") != std::string::npos);
  for (const char* other : {R"("top_k": 3})", R"("top_k": 1})", R"("top_p": 0.99})"})
    CHECK(audit(logits + other, tokens).status == 1);
}
TEST_CASE("audit counts, and computes the distance and the p-value") {
  const cli::ran r = audit(
      "[0.5, 0.3, 0.2]",
      [] {
        std::string text;
        for (int i = 0; i < 70; ++i) text += "0\n";
        for (int i = 0; i < 20; ++i) text += "1\r\n";
        for (int i = 0; i < 10; ++i) text += " 2 \n";
        return text;
      }(),
      "--json --alpha 0.2");
  const json j = json::parse(r.out);
  CHECK(r.status == 1);
  CHECK(double(j["distance"]) == Approx(0.2));
  // (E |X - 50| + E |Y - 30| + E |Z - 20|) / 200 with binomial X, Y, Z, and 2 * 6 * P(X >= 70), by
  // exact fractions.
  CHECK(double(j["expected_distance"]) == Approx(0.054009955314427));
  CHECK(double(j["p_value"]) == Approx(0.000471008378736));
  CHECK(j["worst"][0] == json{{"token", 0}, {"law", 0.5}, {"expected", 50.0}, {"seen", 70}});
  CHECK(j["worst"][1]["token"] == 2);
  CHECK(j["worst"].size() == 3);
}
TEST_CASE("audit's worst tokens are those that are off by more than chance, not the rarest") {
  // 220 rare tokens are seen twice where 0.4 are due; token 0 is seen 560 times where 600 are.
  std::vector<double> law(1000, 0.4 / 999);
  law[0] = 0.6;
  std::string text;
  for (int i = 0; i < 560; ++i) text += "0\n";
  for (int i = 0; i < 440; ++i) text += std::to_string(1 + i / 2) + "\n";
  const cli::ran r = audit(json(law).dump(), text, "--json");
  INFO(r.out);
  CHECK(json::parse(r.out)["worst"][0]["token"] == 0);
}
TEST_CASE(
    "a token of probability 0 is a misfit, however few were seen. Where no gap can be found, audit "
    "says so") {
  const cli::ran r = audit("[0.5, 0.5, 0]", "0\n1\n2\n");
  INFO(r.out);
  CHECK(r.status == 1);
  for (const char* word : {"does not fit: token 2 has probability 0", "detectable tv       none"})
    CHECK(r.out.find(word) != std::string::npos);
  CHECK(json::parse(audit("[0.5, 0.5]", "0\n", "--json").out)["detectable_tv"].is_null());
}
TEST_CASE("audit: 4,000 times token 0 of 1,000 equal ones does not fit") {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "0\n";
  const cli::ran r = audit(json(std::vector<double>(1000, 0.001)).dump(), text, "--json");
  INFO(r.out);
  CHECK(r.status == 1);
  CHECK(double(json::parse(r.out)["distance"]) == Approx(0.999));
  CHECK(json::parse(r.out)["worst"][0]["token"] == 0);
}
TEST_CASE(
    "audit: a bonus drawn from q fits where first tokens are given, and not where pairs t0 * V + "
    "t1 or the tokens after one first token are") {
  // q = (0.6, 0.2, 0.2), p = (0.5, 0.3, 0.2): a drafted 0 is accepted with probability 5/6, the
  // residual is token 1.
  const std::vector<double> q{0.6, 0.2, 0.2}, p{0.5, 0.3, 0.2};
  std::mt19937_64 random(3);
  const auto uniform = [&] { return double(random() >> 11) * 0x1p-53; };
  const auto pick = [&](const std::vector<double>& row) {
    const double u = uniform();
    return u < row[0] ? 0 : u < row[0] + row[1] ? 1 : 2;
  };
  std::vector<double> law;
  for (int pair = 0; pair < 9; ++pair)
    law.push_back(p[std::size_t(pair / 3)] * p[std::size_t(pair % 3)]);
  for (const bool wrong : {false, true}) {
    std::string first, pairs, after_0;
    for (int i = 0; i < 20000; ++i) {
      int token = pick(q);
      const bool accepted = token != 0 || uniform() < 5. / 6;
      if (!accepted) token = 1;
      first += std::to_string(token) + "\n";
      const int second = pick(accepted && wrong ? q : p);
      pairs += std::to_string(3 * token + second) + "\n";
      if (token == 0) after_0 += std::to_string(second) + "\n";
    }
    CHECK(audit(json(p).dump(), first).status == 0);
    CHECK(audit(json(law).dump(), pairs).status == int(wrong));
    CHECK(audit(json(p).dump(), after_0).status == int(wrong));
  }
}
TEST_CASE("audit prints what it found for people, at most ten tokens") {
  const cli::ran r = audit(json(std::vector<double>(20, 0.05)).dump(),
                           sampled(std::vector<double>(20, 0.05), 5000, 3));
  INFO(r.out);
  CHECK(r.status == 0);
  for (const char* word :
       {"samples             5000", "distance ", "expected distance ", "p-value ", "alpha ",
        "verdict             fits", "detectable tv       0.", "expected", "seen"})
    CHECK(r.out.find(word) != std::string::npos);
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 7 + 3 + 10);
}
TEST_CASE("audit refuses what it cannot use in one line, with status 2") {
  refuses("[0.5, 0.5]", "", {"standard input", "no tokens"});
  refuses("[0.5, 0.5]", "0\n1\n2\n", {"standard input", "line 3", "token 2", "2 tokens"});
  for (const char* line :
       {"x", "", "1.5", "-1", "0x1", "1 2", "{}", "{\"token\": 0.5}", "{\"token\": -1}", "[0]",
        "{\"token\"", "99999999999999999999999", "{\"token\": 18446744073709551615}"})
    refuses("[0.5, 0.5]", "0\n" + std::string(line) + "\n", {"standard input", "line 2"});
  refuses("[0.5, 0.5]", "0\n" + std::string(5000, '1') + "\n",
          {"standard input", "line 2", "more than 4096 bytes"});
  refuses("nonsense", "0\n", {"specagg-law-", "not JSON"});
  refuses("{\"target\": [1]}", "0\n", {"specagg-law-", "law", "missing"});
  refuses("{\"law\": null}", "0\n", {"specagg-law-", "law", "list of probabilities"});
  refuses("[]", "0\n", {"law", "list of probabilities"});
  refuses("[0.5, \"x\"]", "0\n", {"law, entry 1", "not a number"});
  refuses("[0.5, \"-inf\"]", "0\n", {"law, entry 1", "not a number"});
  refuses("{\"logits\": 1}", "0\n", {"logits", "list of logits"});
  refuses("{\"logits\": [1, \"x\"]}", "0\n", {"logits, entry 1", "not a number"});
  refuses("{\"logits\": [1, 2], \"topp\": 0.9}", "0\n", {"topp", "unknown"});
  refuses("{\"logits\": [1, 2], \"top_p\": 1.5}", "0\n", {"logits", "invalid_parameter"});
  refuses("{\"logits\": [1, 2], \"top_k\": 1.5}", "0\n", {"top_k", "not a number"});
  refuses("{\"logits\": [1, 2], \"temperature\": null}", "0\n", {"temperature", "not a number"});
  refuses("[0.5, 0.4]", "0\n", {"law", "not_normalised"});
  refuses("[-0.5, 1.5]", "0\n", {"law", "invalid_row"});
  cli::refuses("audit", {"--law"});
  cli::refuses("audit --law /nowhere.json", {"/nowhere.json", "cannot be read"});
  for (const char* alpha : {"0", "1", "nan", "x"})
    cli::refuses(std::string("audit --law x --alpha ") + alpha, {"--alpha"});
  const temporary p("specagg-law-", "[1]");
  const cli::ran folder = cli::run("audit --law " + p.path, "/");
  CHECK(folder.status == 2);
  CHECK(folder.out == "specagg: standard input: cannot be read\n");
}
TEST_CASE("audit and law --batch show what they have read on one printable line") {
  refuses("[0.5,0.5]",
          "\x1b[2J\xc2\x9b"
          "2J\n",
          {"line 1: \"\\x1b[2J\\u{9b}2J\" is neither a token id"});
  refuses("[0.5,0.5]", "0\rspecagg: fits\n", {"line 1"});
  refuses("[0.5,0.5]",
          "\xe2\x80\xae"
          "1\n",
          {"\\u{202e}1"});
  const temporary in("specagg-lines-",
                     "\xe2\x80\xae\xc2\x9b"
                     "2J\n");
  const cli::ran r = cli::run("law --batch", in.path);
  INFO(r.out);
  CHECK(r.out.find("not JSON") != std::string::npos);
  CHECK(specagg::printable(r.out, 100000) == r.out.substr(0, r.out.find('\n')) + "\\n");
  cli::refuses("law --policy '\x1b[31m\xe2\x80\xae'", {"\\x1b[31m\\u{202e}"});
  cli::refuses("score --text x --model '/none\x1b[2J'", {"/none\\x1b[2J"});
}
