// SPDX-License-Identifier: Apache-2.0
// specagg law: exact laws against answers computed by an independent program in float64 (law.jsonl:
// each line is a question, and in `expect` its answer), and one clear line, or one status, for what
// it cannot use.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "../tools/cli/policies.hpp"
#include "cli/command.hpp"

using nlohmann::json;

namespace {

const std::string known_answers = std::string(SPECAGG_SOURCE_DIR) + "/tests/cli/law.jsonl";

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
  return all;
}
// The answers to a text of lines.
std::vector<json> batch(const std::string& text) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("specagg-law-" + std::to_string(getpid()) + ".jsonl");
  std::ofstream(path) << text;
  const cli::ran r = cli::run("law --batch", path.string());
  std::filesystem::remove(path);
  CHECK(r.status == 0);
  return lines_of(r.out);
}
double worst(const json& a, const json& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double w = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    w = std::max(w, std::fabs(double(a[i]) - double(b[i])));
  return w;
}
// One more line after it is answered: the batch went on.
const std::string good = R"({"id":"good","policy":"lossless","q":[0.5,0.5],"p":[0.25,0.75]})";
void bad_line(const std::string& line, const json& id, std::initializer_list<const char*> words) {
  INFO(line.substr(0, 200));
  const auto out = batch(line + "\n" + good + "\n");
  REQUIRE(out.size() == 2);
  CHECK(out[0]["id"] == id);
  const std::string why = out[0].at("status");
  INFO(why);
  CHECK(why != "ok");
  CHECK(why.size() < 500);
  for (const char* word : words) CHECK(why.find(word) != std::string::npos);
  CHECK_FALSE(out[0].contains("law"));
  CHECK(out[1]["id"] == "good");
  CHECK(out[1]["status"] == "ok");
  CHECK(double(out[1]["acceptance"]) == 0.75);
}

// Probabilities of `size` tokens, p not far from q.
std::vector<double> long_row(std::size_t size, double shift) {
  std::vector<double> row(size);
  double sum = 0;
  for (std::size_t v = 0; v < size; ++v)
    sum += row[v] = std::exp(3 * std::sin(double(v) * 1.7) + shift * std::cos(double(v)));
  for (double& x : row) x /= sum;
  return row;
}
json long_line(std::size_t size, const std::string& policy, const char* verify) {
  return {
      {"policy", policy}, {"verify", verify}, {"q", long_row(size, 0)}, {"p", long_row(size, 0.5)}};
}

}  // namespace

TEST_CASE("law --batch gives every known answer to 1e-9: targets, laws, acceptances and statuses") {
  std::ifstream in(known_answers);
  std::stringstream text;
  text << in.rdbuf();
  const auto due = lines_of(text.str());
  const cli::ran r = cli::run("law --batch", known_answers);
  REQUIRE(r.status == 0);
  const auto out = lines_of(r.out);
  REQUIRE(due.size() == 240);
  REQUIRE(out.size() == due.size());
  std::set<std::string> policies, verifiers;
  for (std::size_t i = 0; i < due.size(); ++i) {
    const json& e = due[i]["expect"];
    INFO(due[i].dump());
    policies.insert(due[i]["policy"]);
    verifiers.insert(due[i]["verify"]);
    CHECK(out[i]["id"] == e["id"]);
    CHECK(out[i]["status"] == e["status"]);
    if (e["status"] != "ok") continue;
    CHECK(worst(out[i]["pi"], e["target"]) < 1e-9);
    CHECK(worst(out[i]["law"], e["law"]) < 1e-9);
    CHECK(std::fabs(double(out[i]["acceptance"]) - double(e["acceptance"])) < 1e-9);
  }
  CHECK(policies.size() >= 20);  // mentored: tests/policy/mentored.test.cpp
  CHECK(verifiers == std::set<std::string>{"token", "block", "match", "coupled"});
}
TEST_CASE("the emitted law does not depend on the verifier, the acceptance does") {
  std::string text;
  for (const char* v : {"token", "block", "match", "coupled"})
    text += json{{"policy", "token-v3"},
                 {"params", {{"alpha", 0.3}}},
                 {"verify", v},
                 {"q", {0.5, 0.25, 0.25}},
                 {"p", {0.125, 0.25, 0.625}}}
                .dump() +
            "\n";
  const auto out = batch(text);
  REQUIRE(out.size() == 4);
  // eta = 0.75
  for (const json& o : out) CHECK(worst(o["law"], {0.09375, 0.1875, 0.71875}) < 1e-15);
  // sum min(q, pi)
  CHECK(double(out[0]["acceptance"]) == Approx(0.09375 + 0.1875 + 0.25).epsilon(1e-14));
  // gamma = 1
  CHECK(double(out[1]["acceptance"]) == double(out[0]["acceptance"]));
  CHECK(double(out[2]["acceptance"]) ==
        Approx(0.5 * 0.09375 + 0.25 * 0.1875 + 0.25 * 0.71875).epsilon(1e-14));
  CHECK(double(out[3]["acceptance"]) < double(out[0]["acceptance"]));
  CHECK(double(out[3]["acceptance"]) > double(out[2]["acceptance"]));
}
TEST_CASE("a bad line gets a status that names the problem, and the batch goes on") {
  bad_line("nonsense", nullptr, {"not JSON"});
  bad_line("", nullptr, {"empty"});
  bad_line(" \t\r", nullptr, {"empty"});
  bad_line(good.substr(0, good.size() - 1), nullptr, {"not JSON"});
  bad_line(R"({"id":1,"policy":"lossless","q":[NaN,0.5],"p":[1,0]})", nullptr, {"not JSON"});
  bad_line("\xff\xfe{}", nullptr, {"not JSON"});
  bad_line("[1,2]", nullptr, {"not a JSON object"});
  bad_line(std::string(100000, '[') + std::string(100000, ']'), nullptr, {"not a JSON object"});
  bad_line(R"({"id":2,"q":[1],"p":[1]})", 2, {"policy", "missing"});
  bad_line(R"({"id":3,"policy":"magic","q":[1],"p":[1]})", 3, {"magic", "lossless", "token-v3"});
  bad_line(R"({"id":4,"policy":"token-v3","params":{"beta":1},"q":[1],"p":[1]})", 4,
           {"beta", "alpha"});
  bad_line(R"({"id":5,"policy":"ensemble","params":{"lambda":2},"q":[1],"p":[1]})", 5,
           {"lambda", "[0, 1]"});
  bad_line(R"({"id":6,"policy":"chow","params":{"alpha":[]},"q":[1],"p":[1]})", 6, {"alpha"});
  bad_line(R"({"id":7,"policy":"chow","params":7,"q":[1],"p":[1]})", 7, {"params"});
  bad_line(R"({"id":8,"policy":"lossless","verify":"prayer","q":[1],"p":[1]})", 8,
           {"prayer", "coupled"});
  bad_line(R"({"id":9,"policy":"lossless","q":[1]})", 9, {"p", "missing"});
  bad_line(R"({"id":10,"policy":"lossless","q":[],"p":[]})", 10, {"q"});
  bad_line(R"({"id":11,"policy":"lossless","q":[0.5,"nan"],"p":[1,0]})", 11, {"q", "entry 1"});
  bad_line(R"({"id":12,"policy":"lossless","q":[1],"p":[1],"colour":"red"})", 12, {"colour"});
  bad_line(R"({"id":13,"policy":"lossless","q":[0.5,0.5],"p":[1]})", 13, {"vocabulary_mismatch"});
  bad_line(R"({"id":14,"policy":"lossless","q":[0.5,0.4],"p":[1,0]})", 14, {"not_normalised"});
  bad_line(R"({"id":15,"policy":"lossless","q":[-0.5,1.5],"p":[1,0]})", 15, {"invalid_row"});
  bad_line(R"({"id":16,"policy":"lossless","q_logits":["-inf","-inf"],"p":[1,0]})", 16,
           {"invalid_row"});
  bad_line(R"({"id":17,"policy":"minimum","q":[1,0],"p":[0,1]})", 17, {"undefined_target"});
  bad_line(R"({"id":18,"policy":"opt","q":[1,0],"p":[0,1],"q_confidence":[1]})", 18,
           {"vocabulary_mismatch"});
  std::string huge = R"({"id":19,"policy":"lossless","p":[1],"q":[)";
  for (int i = 0; i < 1 << 20; ++i) huge += "0,";
  bad_line(huge + "1]}", 19, {"vocabulary_mismatch"});
  const cli::ran endless = cli::run("law --batch", "/dev/zero");
  CHECK(endless.status == 2);
  CHECK(endless.out.find("standard input: line 1: has more than 67108864 bytes") !=
        std::string::npos);
  CHECK(batch("").empty());
  CHECK(batch(good).size() == 1);  // no newline at the end
}
TEST_CASE("logits, -inf among them, are rows. Confidence decides, probabilities are mixed") {
  const auto out = batch(
      R"({"policy":"lossless","q_logits":[0,0,"-inf"],"p_logits":[1,"-inf",1]})"
      "\n"
      R"({"policy":"chow","params":{"alpha":0.4},"q":[1,0],"p":[0,1],"q_confidence":[0.5,0.5]})"
      "\n"
      R"({"policy":"chow","params":{"alpha":0.4},"q":[1,0],"p":[0,1],"q_confidence":[0.75,0.25]})");
  REQUIRE(out.size() == 3);
  CHECK(worst(out[0]["law"], {0.5, 0, 0.5}) < 1e-15);
  CHECK(double(out[0]["acceptance"]) == Approx(0.5));
  CHECK(out[1]["law"] == json({0.0, 1.0}));
  CHECK(out[2]["law"] == json({1.0, 0.0}));
}
TEST_CASE(
    "bild compares cross-entropies, or greedily -log p of the draft's most likely token, by "
    "rows at temperature 1") {
  const std::string rows =
      R"("q":[1,0,0],"p":[0,1,0],"q_confidence":[0.5,0.3,0.2],"p_confidence":[0.3,0.5,0.2]})";
  const auto target = [&](const std::string& params) {
    return batch(R"({"policy":"bild","params":{"alpha":1.15)" + params + "}," + rows +
                 "\n")[0]["pi"];
  };
  CHECK(target(R"(,"greedy":true)") == json({0.0, 1.0, 0.0}));   // D = -ln .3 = 1.204
  CHECK(target(R"(,"greedy":false)") == json({1.0, 0.0, 0.0}));  // D = 1.132
  CHECK(target("") == json({1.0, 0.0, 0.0}));
  const auto law = [](const std::string& policy, const std::string& q) {
    const cli::ran r = cli::run("law --json --policy " + policy + " --q " + q + " --p 0.3,0.5,0.2");
    CHECK(r.status == 0);
    return json::parse(r.out)["pi"];
  };
  CHECK(law("bild:alpha=1.15,greedy=true", "0.5,0.3,0.2")[0] == 0.3);
  CHECK(law("bild:alpha=1.15", "0.5,0.3,0.2")[0] == 0.5);
  CHECK(law("bild:alpha=1.15,greedy=true", "0.4,0.4,0.2")[0] == 0.3);  // of several the lowest id
  CHECK(law("bild:alpha=1.15,greedy=true", "0.2,0.4,0.4")[0] == 0.2);
  cli::refuses("law --policy bild:d=greedy --q 1 --p 1", {"--policy bild:d=greedy", "d", "greedy"});
  cli::refuses("law --policy bild:greedy=perhaps --q 1 --p 1", {"greedy", "perhaps", "true"});
}
TEST_CASE("law prints a table, or JSON") {
  const cli::ran table =
      cli::run("law --policy token-v3:alpha=0.3 --q 0.5,0.25,0.25 --p 0.125,0.25,0.625");
  CHECK(table.status == 0);
  for (const char* text :
       {"pi          law\n", "0.718750000", "0.093750000", "acceptance 0.531250000", "worst error"})
    CHECK(table.out.find(text) != std::string::npos);
  const cli::ran r =
      cli::run("law --policy ensemble:lambda=0.25 --verify match --q 0.5,0.5 --p 0,1 --json");
  REQUIRE(r.status == 0);
  const json j = json::parse(r.out);
  CHECK(worst(j["law"], {0.125, 0.875}) < 1e-15);
  CHECK(double(j["acceptance"]) == Approx(0.5));
  CHECK(double(j["worst_error"]) < 1e-15);
}
TEST_CASE(
    "rows of a real vocabulary: every policy's target, acceptance and overlap. The law is null, as "
    "nobody walked it") {
  const std::vector<double> q = long_row(151936, 0);
  std::string text;
  for (const cli::known_policy& r : cli::known_policies())
    text += long_line(2000, r.name, "token").dump() + "\n";
  for (const char* v : {"token", "block", "match", "coupled"})
    text += long_line(151936, "token-v3", v).dump() + "\n";
  const auto out = batch(text);
  REQUIRE(out.size() == cli::known_policies().size() + 4);
  for (const json& o : out) {
    REQUIRE(o["status"] == "ok");
    CHECK(o["law"].is_null());
    const auto row = long_row(o["pi"].size(), 0);
    double sum = 0, overlap = 0;
    for (std::size_t v = 0; v < row.size(); ++v) {
      sum += double(o["pi"][v]);
      overlap += std::min(row[v], double(o["pi"][v]));
    }
    CHECK(sum == Approx(1).epsilon(1e-11));
    CHECK(double(o["overlap"]) == Approx(overlap).epsilon(1e-11));
    CHECK(double(o["acceptance"]) <= double(o["overlap"]));
  }
  const auto from_end = [&](std::size_t i) -> const json& { return out[out.size() - i]; };
  double product = 0;
  for (std::size_t v = 0; v < q.size(); ++v) product += q[v] * double(from_end(2)["pi"][v]);
  CHECK(from_end(4)["acceptance"] == from_end(4)["overlap"]);
  CHECK(from_end(3)["acceptance"] == from_end(3)["overlap"]);
  CHECK(double(from_end(2)["acceptance"]) == Approx(product).epsilon(1e-11));
  const double tv = 1 - double(from_end(1)["overlap"]), match = from_end(1)["acceptance"];
  CHECK(match > (1 - tv) / (1 + tv));
  CHECK(match < 1 - tv);
}
TEST_CASE(
    "rows of 64 tokens are enumerated, longer ones with --enumerate, up to a limit that is named") {
  for (const char* v : {"token", "block", "match", "coupled"}) {
    const auto path = std::filesystem::temp_directory_path() /
                      ("specagg-row-" + std::to_string(getpid()) + ".jsonl");
    std::ofstream(path) << long_line(64, "ensemble", v) << "\n"
                        << long_line(65, "ensemble", v) << "\n"
                        << long_line(1025, "ensemble", v) << "\n";
    const auto plain = lines_of(cli::run("law --batch", path.string()).out),
               walked = lines_of(cli::run("law --batch --enumerate", path.string()).out);
    std::filesystem::remove(path);
    REQUIRE((plain.size() == 3 && walked.size() == 3));
    CHECK(plain[0] == walked[0]);
    CHECK_FALSE(plain[0].contains("overlap"));
    CHECK(worst(plain[0]["law"], plain[0]["pi"]) < 1e-12);
    CHECK(plain[1]["law"].is_null());
    CHECK(worst(walked[1]["law"], walked[1]["pi"]) < 1e-12);
    CHECK(double(plain[1]["acceptance"]) == Approx(double(walked[1]["acceptance"])).epsilon(1e-13));
    CHECK(double(plain[1]["overlap"]) == Approx(double(walked[1]["overlap"])).epsilon(1e-13));
    const std::string why = walked[2]["status"];
    for (const char* word : {"--enumerate", "1025", v}) CHECK(why.find(word) != std::string::npos);
    CHECK(why.find(std::string(v) == "coupled" ? "512" : "1024") != std::string::npos);
  }
}
TEST_CASE(
    "law --q and --p take files of numbers. Long rows are printed by their most likely tokens") {
  const auto path =
      std::filesystem::temp_directory_path() / ("specagg-row-" + std::to_string(getpid()) + ".txt");
  const std::string file = path.string();
  std::ofstream(path) << "0.5, 0.25\n0.25\n";
  const cli::ran r =
      cli::run("law --json --policy token-v3:alpha=0.3 --q @" + file + " --p 0.125,0.25,0.625");
  REQUIRE(r.status == 0);
  CHECK(worst(json::parse(r.out)["law"], {0.09375, 0.1875, 0.71875}) < 1e-15);
  CHECK_FALSE(json::parse(r.out).contains("overlap"));
  cli::refuses("law --q @" + file + " --p 0.5,0.5", {"vocabulary_mismatch", "3", "2"});
  std::ofstream(path) << "0.5\n0.x5\n";
  cli::refuses("law --q @" + file + " --p 0.5,0.5", {"--q", file.c_str(), "entry 1", "0.x5"});
  std::ofstream(path) << "";
  cli::refuses("law --q @" + file + " --p 0.5,0.5", {"--q", file.c_str(), "empty"});
  cli::refuses("law --q @/nowhere.txt --p 0.5,0.5", {"--q", "/nowhere.txt", "cannot be read"});
  {
    std::ofstream out(path);
    for (const double x : long_row(151936, 0)) out << x << "\n";
  }
  const cli::ran table = cli::run("law --verify coupled --q @" + file + " --p @" + file);
  std::filesystem::remove(path);
  CHECK(table.status == 0);
  CHECK(std::count(table.out.begin(), table.out.end(), '\n') == 23);
  for (const char* word :
       {"20 most likely of 151936", "acceptance 1.000000000", "overlap", "--enumerate"})
    CHECK(table.out.find(word) != std::string::npos);
}
TEST_CASE("law --grid enumerates the policy and verifier that are given") {
  const cli::ran r = cli::run("law --grid --json --policy token-v3:alpha=0.7 --verify match");
  REQUIRE(r.status == 0);
  const json table = json::parse(r.out);
  REQUIRE(table.size() == 1);
  CHECK(table[0]["policy"] == "token-v3:alpha=0.7");
  CHECK(table[0]["verify"] == "match");
  CHECK(double(table[0]["worst_error"]) < 1e-12);
  const json all = json::parse(cli::run("law --grid --json --policy maximum").out);
  CHECK(all.size() == 4);
  cli::refuses("law --grid --policy magic", {"magic", "token-v3"});
  cli::refuses("law --grid --verify prayer", {"prayer", "coupled"});
}
TEST_CASE("no probability is printed above 1, however many were added up") {
  std::string text;
  for (const std::size_t size : {3u, 7u, 10u, 33u, 49u, 64u, 1000u, 100000u, 128256u})
    for (const char* v : {"token", "block", "match", "coupled"})
      for (const char* policy : {"lossless", "ensemble", "minimum", "geometric"}) {
        if (size > 64 && policy != std::string("lossless")) continue;
        const std::vector<double> row =
            size % 2 ? long_row(size, 0) : std::vector<double>(size, 1 / double(size));
        text += json{{"policy", policy}, {"verify", v}, {"q", row}, {"p", row}}.dump() + "\n";
      }
  for (const json& o : batch(text)) {
    REQUIRE(o["status"] == "ok");
    const double acceptance = o["acceptance"];
    CHECK(acceptance <= 1);
    if (o["law"].is_null() && o["overlap"] == o["acceptance"])
      CHECK(acceptance == Approx(1).epsilon(1e-14));
    for (const json& x : o["law"]) CHECK((double(x) <= 1 && double(x) >= 0));
  }
}
namespace {

// A file that is removed again.
struct temporary_rows {
  std::string path;
  temporary_rows(const char* name, const std::string& text)
      : path(std::filesystem::temp_directory_path() /
             ("specagg-" + std::to_string(getpid()) + name)) {
    std::ofstream(path) << text;
  }
  ~temporary_rows() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("law of a policy with state: of all texts, with state, by each verifier") {
  const temporary_rows q(".q", "0.1,0.8,0.1\n\n0.1 0.8 0.1\n"), p(".p", "0.5,0.3,0.2\n.5,.3,.2");
  const std::string rows = " --q @" + q.path + " --p @" + p.path;
  // Token 0 costs nothing, token 1 ln(5/3) = 0.511, and token 2 is never paid.
  const std::vector<double> first{0.15, 0.83, 0.02}, spent{0.55, 0.27, 0.18};
  std::vector<double> budget, phase;
  double distance = 0;
  for (std::size_t y = 0; y < 3; ++y)
    for (std::size_t z = 0; z < 3; ++z) {
      const std::vector<double> at_p{0.5, 0.3, 0.2}, mixed{0.3, 0.55, 0.15};
      budget.push_back(first[y] * (y == 1 ? spent : first)[z]);
      phase.push_back(at_p[y] * (y == 0 ? mixed : at_p)[z]);  // 0.5 q + 0.5 p after token 0
      distance += std::max(0., budget.back() - at_p[y] * at_p[z]);
    }
  for (const char* verify : {"token", "block", "match", "coupled"}) {
    const auto law = [&](const std::string& policy) {
      const cli::ran r = cli::run("law --json --policy " + policy + rows + " --verify " + verify);
      REQUIRE(r.status == 0);
      return json::parse(r.out);
    };
    const json b = law("regret-budget:budget=0.6,limit=0.55");
    CHECK(worst(b["pi"], budget) < 1e-15);
    CHECK(std::fabs(double(b["distance_to_target"]) - distance) < 1e-15);
    CHECK(b["tokens"] == 2);
    const json f = law("phase:inside=power:lambda=0.5/rho=1,open=0/7,close=1");
    CHECK(worst(f["pi"], phase) < 1e-15);
    if (verify == std::string("coupled")) {
      CHECK(b["law"].is_null());
      continue;
    }
    CHECK(worst(b["law"], budget) < 1e-12);
    CHECK(worst(f["law"], phase) < 1e-12);
  }
  const cli::ran table = cli::run("law --policy entropy-window:threshold=0.9,window=1" + rows);
  CHECK(table.status == 0);
  for (const char* text : {"text ", " 1 1 ", "0.400000000", "TV(pi, p) ", "worst error"})
    CHECK(table.out.find(text) != std::string::npos);

  const temporary_rows one(".one", "0.5,0.5\n"), short_row(".short", "0.5,0.5\n1\n");
  const std::string policy = "law --policy regret-budget:budget=1", twice = " --p @" + one.path;
  cli::refuses(policy + " --tree 2" + rows, {"--tree", "no effect"});
  cli::refuses(policy + " --q @" + q.path + twice, {"2 and 1 rows"});
  cli::refuses(policy + " --q @" + short_row.path + " --p @" + short_row.path,
               {"vocabulary_mismatch", "2", "1"});
  cli::refuses(policy + " --grid", {"--grid", "no effect"});
  cli::refuses("generate --tree 2 --policy regret-budget", {"regret-budget", "has state"});
  cli::refuses("generate --draft lookup --policy regret-budget", {"regret-budget", "lookup"});
  cli::refuses("generate --space raw --policy regret-budget", {"regret-budget", "--space raw"});
  cli::refuses(policy + ",limit=-1" + rows, {"limit", "-1"});
  cli::refuses(policy + ",window=1" + rows, {"window", "budget", "limit=none"});
  cli::refuses("law --policy phase:open=1/x,close=2" + rows, {"open", "1/x"});
  cli::refuses("law --policy phase:open=1" + rows, {"close", "token ids"});
  cli::refuses("law --policy phase:inside=magic,open=1,close=2" + rows, {"magic"});
}
TEST_CASE("law refuses what it cannot use in one line, with status 2") {
  cli::refuses("law", {"--q", "missing"});
  cli::refuses("law --q 0.5,0.5", {"--p", "missing"});
  cli::refuses("law --q 1,x --p 1,0", {"--q", "entry 1", "x"});
  cli::refuses("law --q 1,0 --p 1,,0", {"--p", "entry 1"});
  cli::refuses("law --q 1e999,0 --p 1,0", {"--q", "1e999"});
  cli::refuses("law --q 0.5,0.5 --p 1", {"vocabulary_mismatch"});
  cli::refuses("law --q 0.5,0.4 --p 0.5,0.5", {"not_normalised"});
  cli::refuses("law --q nan,1 --p 1,0", {"invalid_row"});
  cli::refuses("law --q=-1,2 --p 1,0", {"invalid_row"});
  cli::refuses("law --q inf,1 --p 1,0", {"invalid_row"});
  cli::refuses("law --policy minimum --q 1,0 --p 0,1", {"undefined_target"});
  cli::refuses("law --policy magic --q 1 --p 1", {"magic", "token-v3"});
  cli::refuses("law --policy opt:alpha=x --q 1 --p 1", {"alpha", "x"});
  cli::refuses("law --policy opt:alpha --q 1 --p 1", {"key=value"});
  cli::refuses("law --policy minimum:alpha=1 --q 1 --p 1", {"no parameters"});
  cli::refuses("law --policy lossy:alpha=0.5,beta=0.4 --q 1 --p 1",
               {"beta", "0.4", "out of range"});
  cli::refuses("law --policy lossy:beta=0 --q 1 --p 1", {"beta", "0", "out of range"});
  cli::refuses("law --verify prayer --q 1 --p 1", {"prayer", "coupled"});
  cli::refuses("law --colour", {"--colour"});
}
