// SPDX-License-Identifier: Apache-2.0
// specagg plan record: records as engines write them, what it makes of them, and what it refuses.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.hpp"

namespace {

using cli::ran;

// Files of one test, in a folder that goes with it.
struct folder {
  std::filesystem::path at =
      std::filesystem::temp_directory_path() / ("specagg-record-" + std::to_string(getpid()));
  folder() { std::filesystem::create_directories(at); }
  ~folder() { std::filesystem::remove_all(at); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(at / name) << text;
    return (at / name).string();
  }
};
nlohmann::json json(const std::string& arguments) {
  const ran r = cli::run("plan record " + arguments + " --json");
  INFO(r.out);
  REQUIRE(r.status == 0);
  return nlohmann::json::parse(r.out);
}

const std::string vllm =
    R"({"mean_acceptance_length": 1.2325581395348837, "acceptance_histogram": [39, 1, 0, 3],)"
    R"( "num_spec_steps": 43, "num_accepted_draft_tokens": 10, "num_draft_tokens": 129,)"
    R"( "num_spec_tokens": 3})";
const std::string aiperf =
    R"({"engine": "vllm", "acceptance_histogram": {"0": 39, "1": 1, "3": 3}, "num_spec_steps": 43,)"
    R"( "num_accepted_draft_tokens": 10, "num_draft_tokens": 129, "num_spec_tokens": 3})";
// of two engines
std::string counters() {
  const std::string start = "vllm:spec_decode_num_";
  std::string all = "# HELP " + start + "drafts_total Drafts.\n";
  const auto add = [&](const std::string& name, const std::string& more, int one, int other) {
    all += start + name + "_total{engine=\"0\",model_name=\"a b\"" + more + "} " +
           std::to_string(one) + ".0\n" + start + name + "_total{engine=\"1\"" + more + "} " +
           std::to_string(other) + "\n";
  };
  add("drafts", "", 40, 3);
  add("draft_tokens", "", 120, 9);
  add("accepted_tokens", "", 7, 3);
  add("accepted_tokens_per_pos", ",position=\"0\"", 3, 1);
  add("accepted_tokens_per_pos", ",position=\"1\"", 2, 1);
  add("accepted_tokens_per_pos", ",position=\"2\"", 2, 1);
  return all;
}

}  // namespace

TEST_CASE("plan record reads the records of vLLM, AIPerf and Prometheus alike") {
  const folder f;
  const std::string answer =
      R"({"choices": [], "metrics": {"speculative_decoding": )" + vllm + "}}";
  for (const std::string& path :
       {f.write("a.json", answer), f.write("b.jsonl", "{}\n\n" + answer + "\n"),
        f.write("c.json", aiperf), f.write("d.json", R"({"records": [{"spec": )" + aiperf + "}]}"),
        f.write("e.txt", counters())}) {
    INFO(path);
    const auto r = json(path)["records"][0];
    CHECK(r["steps"] == 43);
    CHECK(double(r["acceptance_length"]) == 1.2325581395348837);
    CHECK(double(r["acceptance_rate"]) == 0.07751937984496124);
    REQUIRE(r["acceptances"].size() == 3);
    CHECK(double(r["acceptances"][0]) == 4. / 43);
    CHECK(double(r["acceptances"][1]) == 0.75);
    CHECK(r["missing_draft_tokens"] == 0);
  }
}
TEST_CASE("plan record prints the pooled acceptance length and, beside it, the mean of requests") {
  const folder f;
  const std::string path =
      f.write("two.jsonl", R"({"acceptance_histogram": [0, 0, 9], "num_draft_tokens": 18})"
                           "\n"
                           R"({"acceptance_histogram": [1, 0, 0], "num_draft_tokens": 2})"
                           "\n");
  const auto r = json(path)["records"][0];
  CHECK(double(r["acceptance_length"]) == 2.8);
  CHECK(double(r["mean_of_requests"]) == 2);
  // off = 18 - 1.8 x 9 and 0 - 1.8: sqrt(2 (1.8^2 + 1.8^2)) / 10
  CHECK(double(r["standard_error"]) == Approx(0.36).epsilon(1e-12));
  const ran text = cli::run("plan record " + path);
  CHECK(text.out.find("acceptance length 2.800 ± 0.360 in 10 steps") != std::string::npos);
  CHECK(text.out.find("the mean of 2 requests' own lengths is 2.000") != std::string::npos);
}
TEST_CASE("plan record takes short drafts for what they are where each step is known") {
  const folder f;
  const std::string known =
      R"({"acceptance_histogram": [1, 2, 1], "num_draft_tokens": 6, "num_spec_tokens": 2,)"
      R"( "per_step_accepted": [0, 1, 1, 2], "per_step_drafted": [2, 1, 1, 2]})";
  const std::string blind =
      R"({"acceptance_histogram": [1, 2, 1], "num_draft_tokens": 6, "num_spec_tokens": 2})";
  const auto sure = json(f.write("known.json", known))["records"][0];
  CHECK(double(sure["acceptances"][0]) == 0.75);
  CHECK(double(sure["acceptances"][1]) == 1);  // of the one that had a second token
  CHECK(sure["missing_draft_tokens"] == 0);
  const auto less = json(f.write("blind.json", blind))["records"][0];
  CHECK(double(less["acceptances"][1]) == Approx(1. / 3).epsilon(1e-14));
  CHECK(less["missing_draft_tokens"] == 2);
  CHECK(cli::run("plan record " + (f.at / "blind.json").string()).out.find("unknown which") !=
        std::string::npos);
}
TEST_CASE("plan record reads rows: each draft's, or the overlaps of a text") {
  const folder f;
  const auto drafts =
      json(f.write("rows.jsonl", "{\"acceptances\": [0.5, 0.25]}\n{\"acceptances\": [1, 0.75]}\n"));
  CHECK(double(drafts["records"][0]["acceptances"][0]) == 0.75);
  CHECK(double(drafts["records"][0]["acceptances"][1]) == Approx(0.875 / 1.5).epsilon(1e-14));
  const auto text = json(f.write("text.json", R"({"overlap": [0.5, 0.5, 1, 0.5]})") + " --most 2");
  // drafts of two tokens begin at three places: (0.5, 0.5), (0.5, 1), (1, 0.5)
  CHECK(double(text["records"][0]["acceptances"][0]) == Approx(2. / 3).epsilon(1e-14));
  CHECK(double(text["records"][0]["acceptances"][1]) == Approx(1.25 / 2).epsilon(1e-14));
}
TEST_CASE("plan record chooses gamma and drafter by load, from measured times of steps") {
  const folder f;
  const std::string good = f.write("good.json", R"({"acceptance_histogram": [10, 9, 81]})"),
                    cheap = f.write("cheap.json", R"({"acceptance_histogram": [50, 25, 25]})");
  const std::string times = f.write("times.jsonl",
                                    R"({"requests": 1, "gamma": 0, "ms": 10}
{"requests": 1, "gamma": 2, "ms": 14, "record": "good"}
{"requests": 1, "gamma": 0, "ms": 10, "record": "good"}
{"requests": 1, "gamma": 2, "ms": 12}
{"requests": 8, "gamma": 0, "ms": 20}
{"requests": 8, "gamma": 2, "ms": 60}
)");
  const auto j = json(good + " little=" + cheap + " --times " + times);
  REQUIRE(j["loads"].size() == 2);
  const auto &one = j["loads"][0], &eight = j["loads"][1];
  CHECK(one["requests"] == 1);
  REQUIRE(one["rows"].size() == 6);
  CHECK(one["best"]["record"] == "good");
  CHECK(one["best"]["gamma"] == 2);
  // 0.9 and 0.9: 2.71 tokens in 14 ms; gamma 1: 1.9 tokens in 12 ms
  CHECK(double(one["best"]["tokens_per_second"]) == Approx(2710 / 14.).epsilon(1e-12));
  CHECK(double(one["rows"][1]["tokens_per_second"]) == Approx(1900 / 12.).epsilon(1e-12));
  CHECK(double(one["rows"][4]["tokens_per_second"]) == Approx(1500 / 11.).epsilon(1e-12));
  CHECK(eight["best"]["gamma"] == 0);
  CHECK(double(eight["best"]["tokens_per_second"]) == Approx(400).epsilon(1e-12));
  const ran text = cli::run("plan record " + good + " --times " + times);
  CHECK(text.out.find("8 requests at once") != std::string::npos);
  CHECK(text.out.find("193.6  best") != std::string::npos);
  // without times: as plan speculative
  const auto costs = json(good + " --c 0.1 --v 1.05")["loads"][0];
  CHECK(costs["best"]["gamma"] == 2);
  CHECK(double(costs["best"]["speedup"]) == Approx(2.71 / 1.25).epsilon(1e-12));
}
TEST_CASE("plan record refuses what contradicts itself, in one line") {
  const folder f;
  const auto refuses = [&](const std::string& text, const char* why) {
    cli::refuses("plan record " + f.write("bad.json", text), {"bad.json", why});
  };
  refuses("", "empty");
  refuses("{}", "no step");
  refuses("{\"a\": 1}\n{", "line 2");
  refuses("hello", "no counters");
  refuses(R"({"acceptance_histogram": [-1, 2]})", "no count");
  refuses(R"({"acceptance_histogram": [0.5, 2]})", "no count");
  refuses(R"({"acceptance_histogram": {"x": 2}})", "no number");
  refuses(R"({"acceptance_histogram": 3})", "no list");
  refuses(R"({"acceptance_histogram": [1, 2], "num_spec_steps": 4})", "not what the counts say");
  refuses(R"({"acceptance_histogram": [1, 2], "num_draft_tokens": 1})", "not what the counts say");
  refuses(R"({"acceptance_histogram": [1, 1], "per_step_accepted": [0], "per_step_drafted": [1]})",
          "per_step_accepted");
  refuses(R"({"acceptance_histogram": [1, 1], "per_step_accepted": [2], "per_step_drafted": [1]})",
          "per_step_accepted");
  refuses(R"({"overlap": [0.5, 1.5]})", "[0, 1]");
  refuses("vllm:spec_decode_num_drafts_total 3\n", "no counters");
  const std::string good = f.write("good.json", R"({"acceptance_histogram": [1, 2]})");
  const auto refuses_times = [&](const std::string& text, const char* why) {
    cli::refuses("plan record " + good + " --times " + f.write("t.jsonl", text), {"t.jsonl", why});
  };
  refuses_times("x", "line 1");
  refuses_times(R"({"requests": 0, "gamma": 1, "ms": 1})", "requests");
  refuses_times(R"({"requests": 1, "gamma": 1, "ms": 0})", "ms");
  refuses_times(R"({"requests": 1, "gamma": 1, "ms": 1, "record": "x"})", "called x");
  refuses_times(R"({"requests": 1, "gamma": 7, "ms": 1})", "no time of a gamma");
  cli::refuses("plan record " + good + " --times /dev/null", {"/dev/null", "has no times"});
  cli::refuses("plan record /nowhere.json", {"/nowhere.json", "cannot be read"});
  cli::refuses("plan record", {"files"});
  cli::refuses("plan record " + good + " --c 0.2 --times " + good, {"--c", "--times"});
}
