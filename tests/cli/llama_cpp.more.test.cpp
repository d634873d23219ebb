// SPDX-License-Identifier: Apache-2.0
// generate and score with --backend llama.cpp.
#include <nlohmann/json.hpp>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "backend/llama_cpp/model_files.hpp"
#include "cli/command.hpp"
#include "cli/generated.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using cli::background, cli::generated, cli::ran, cli::refuses, cli::run;

TEST_CASE("the option --exact-batches is for llama.cpp") {
  refuses("generate --exact-batches 1", {"--exact-batches", "--backend llama.cpp"});
  refuses("score --model " SPECAGG_MODELS "/draft.gguf --text x --exact-batches 1",
          {"--exact-batches", "--backend llama.cpp"});
  refuses("generate --backend llama.cpp --exact-batches 0", {"--exact-batches", "0"});
  refuses("generate --rpc 127.0.0.1:1", {"--rpc", "--backend llama.cpp"});
}

#ifdef SPECAGG_CLI_LLAMA_CPP

TEST_CASE("llama.cpp: greedy texts are those of the CPU backend, with every decoder") {
  const std::string greedy = "--temperature 0 --max-tokens 60 --prompt 'And it came to pass' ";
  for (const std::string options :
       {"--gamma 0", "--gamma 4", "--decoder tree --tree 3,2", "--draft lookup"}) {
    INFO(options);
    const auto there = generated(greedy + options + " --backend llama.cpp");
    CHECK(there["tokens"] == generated(greedy + options)["tokens"]);
    CHECK(there["backend"] == "llama.cpp");
  }
  CHECK(generated(greedy + "--backend llama.cpp")["accepted"] > 5);
}

TEST_CASE(
    "llama.cpp: with --exact-batches a text with drafts is the target's own, log-probabilities "
    "too") {
  for (const std::string exact : {"1", "4"}) {
    const auto j = generated(
        "--compare --max-tokens 80 --temperature 0 --backend llama.cpp --exact-batches " + exact);
    CHECK(j["identical_to_target_alone"] == true);
    CHECK(j["tokens"] == j["target_alone"]["tokens"]);
    CHECK(j["logprob_target"] == j["target_alone"]["logprob_target"]);
    CHECK(j["accepted"] > 10);
  }
  refuses("generate --decoder tree --backend llama.cpp --exact-batches 1",
          {"scores no trees", "--exact-batches"});
}

TEST_CASE("llama.cpp: score gives the CPU backend's likelihoods within 0.02 a token") {
  const std::string what =
      "score --json --model " SPECAGG_MODELS "/target.gguf --text 'It was a fair day in Verona.' ";
  const auto of = [&](const std::string& options) {
    return nlohmann::json::parse(run(what + options).out);
  };
  const auto here = of(""), there = of("--backend llama.cpp");
  REQUIRE(here["ids"] == there["ids"]);
  for (std::size_t i = 1; i < here["ids"].size(); ++i)
    CHECK(there["logprobs"][i].get<double>() ==
          Approx(here["logprobs"][i].get<double>()).margin(0.02));
}

TEST_CASE("llama.cpp: what it cannot load is refused in one line") {
  refuses("generate --backend llama.cpp --target /nonexistent.gguf",
          {"/nonexistent.gguf", "libllama cannot load it"});
  refuses("generate --backend llama.cpp --chat",
          {"target.gguf", "tokenizer.chat_template", "is missing"});
}

TEST_CASE(
    "SmolLM2: llama.cpp answers in a conversation, and drafts of another vocabulary are mapped") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const ran r =
      run("generate --json --chat --backend llama.cpp --temperature 0 --max-tokens 12 --target " +
          file + " --prompt 'What is the capital of Germany?'");
  INFO(r.out);
  REQUIRE(r.status == 0);
  const auto j = nlohmann::json::parse(r.out);
  CHECK(j["text"].get<std::string>().find("Berlin") != std::string::npos);
  const auto mapped = generated("--max-tokens 8 --backend llama.cpp --target " + file +
                                " --draft " SPECAGG_MODELS "/draft.gguf");
  CHECK(mapped["mapped"][0]["tokens"] == 3336);
}

#ifdef SPECAGG_RPC_SERVER

namespace {

sockaddr_in loopback(int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(std::uint16_t(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}
int free_port() {
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a = loopback(0);
  socklen_t size = sizeof a;
  REQUIRE(bind(s, reinterpret_cast<sockaddr*>(&a), size) == 0);
  REQUIRE(getsockname(s, reinterpret_cast<sockaddr*>(&a), &size) == 0);
  close(s);
  return ntohs(a.sin_port);
}
// llama.cpp's server, with one thread.
struct rpc_server {
  const int port = free_port();
  background process{"", "exec " SPECAGG_RPC_SERVER " --host 127.0.0.1 --threads 1 --port " +
                             std::to_string(port) + "; "};
  rpc_server() {
    for (int i = 0; i < 2000; ++i) {
      const int s = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in a = loopback(port);
      const bool there = connect(s, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0;
      close(s);
      if (there) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL("ggml-rpc-server does not listen");
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
};

}  // namespace

TEST_CASE("llama.cpp: two RPC servers that share a model give the texts that one process gives") {
  rpc_server a, b;
  for (const std::string options :
       {"--temperature 0 --gamma 0 ", "--temperature 0.8 --seed 3 --gamma 3 "}) {
    INFO(options);
    const std::string what =
        options + "--max-tokens 40 --prompt 'And it came to pass' --backend llama.cpp ";
    const auto here = generated(what),
               there = generated(what + "--rpc " + a.address() + "," + b.address());
    CHECK(there["tokens"] == here["tokens"]);
    CHECK(there["origin"] == here["origin"]);
    CHECK(there["logprob_target"] == here["logprob_target"]);
  }
}

TEST_CASE("llama.cpp: an RPC server that is not there is one line, status 2") {
  const std::string nobody = "127.0.0.1:" + std::to_string(free_port());
  refuses("generate --backend llama.cpp --rpc " + nobody, {"--rpc", nobody.c_str()});
  refuses("generate --backend llama.cpp --rpc localhost", {"localhost", "is not HOST:PORT"});
}

#endif

#ifdef SPECAGG_CLI_NET

namespace {

nlohmann::json two_sites(const std::string& name, const std::string& server,
                         const std::string& device) {
  background there(name + " serve --insecure --json --listen 127.0.0.1:0 " + server);
  const std::string said = there.line();
  INFO(said);
  REQUIRE(said.rfind("{\"listening\":\"127.0.0.1:", 0) == 0);
  const int port = std::stoi(said.substr(said.rfind(':') + 1));
  const ran r =
      run(name + " device --insecure --json --temperature 0 --max-tokens 30 --session 1234abcd " +
          "--connect 127.0.0.1:" + std::to_string(port) + " " + device);
  INFO(r.out);
  REQUIRE(r.status == 0);
  return nlohmann::json::parse(r.out);
}

}  // namespace

TEST_CASE("llama.cpp: at one end or at both, two sites write the greedy text of the CPU backend") {
  const std::string llama = "--backend llama.cpp ";
  for (const std::string name : {"dragon", "dssd"}) {
    const auto expected = two_sites(name, "", "")["tokens"];
    REQUIRE(expected.size() == 30);
    INFO(name);
    CHECK(two_sites(name, llama, "")["tokens"] == expected);
    CHECK(two_sites(name, "", llama)["tokens"] == expected);
    CHECK(two_sites(name, llama + "--exact-batches 1 ", llama + "--exact-batches 4 ")["tokens"] ==
          expected);
  }
}

#ifdef SPECAGG_XAPIAN
TEST_CASE(
    "llama.cpp: a site reads its passages as the CPU backend does, and keeps them for the next "
    "session") {
  const std::string documents =
      "--documents " SPECAGG_SOURCE_DIR "/research/text/kjv --passages 3 ";
  const auto expected = two_sites("dragon", documents, "");
  const auto there =
      two_sites("dragon", documents + "--backend llama.cpp --threads 2 ", "--backend llama.cpp ");
  CHECK(there["tokens"] == expected["tokens"]);
  CHECK(two_sites("dragon", "", "")["tokens"] != expected["tokens"]);
}
#endif

TEST_CASE(
    "llama.cpp: two sites of an architecture that the CPU backend does not know write the target's "
    "text") {
  const test::temporary_file window(test::window_model(16)), recurrent(test::recurrent_model());
  for (const std::string& file : {window.path(), recurrent.path()}) {
    INFO(file);
    const std::string prompt = "--prompt 'ab ba ab' ";
    const auto alone = generated(
        "--gamma 0 --temperature 0 --max-tokens 30 --backend llama.cpp --exact-batches 1 " +
        prompt + "--target " + file);
    const std::string model = "--backend llama.cpp --exact-batches 1 --model " + file + " ";
    for (const std::string name : {"dragon", "dssd"})
      CHECK(two_sites(name, model + "--most-tokens 60 ", model + prompt)["tokens"] ==
            alone["tokens"]);
  }
}

TEST_CASE("two sites: --backend takes what there is") {
  refuses("dssd serve --insecure --backend cuda", {"--backend cuda", "cpu, llama.cpp"});
  refuses("dragon device --insecure --exact-batches 1", {"--exact-batches", "--backend llama.cpp"});
  refuses("dragon device --insecure --backend llama.cpp --model /nonexistent.gguf",
          {"/nonexistent.gguf"});
}

#endif

#else

TEST_CASE("a build without libllama says how to get it") {
  refuses("generate --backend llama.cpp",
          {"--backend llama.cpp", "no libllama", "scripts/get-llama-cpp"});
}

#endif
