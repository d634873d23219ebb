// SPDX-License-Identifier: Apache-2.0
// specagg dragon and specagg dssd as processes on one machine: killed, started again, several at
// once, listened to.
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/sites/message.hpp>

#include "cli/command.hpp"
#include "support/renamed.hpp"
#include "support/sanitized.hpp"
#include "support/slow_link.hpp"

namespace {

using cli::background, cli::ran, cli::refuses, cli::run;
using json = nlohmann::json;
namespace fs = std::filesystem;

#ifdef SPECAGG_CLI_NET

struct folder {
  std::string path = (fs::temp_directory_path() / "specagg-test-XXXXXX").string();
  folder() { REQUIRE(mkdtemp(path.data())); }
  folder(const folder&) = delete;
  ~folder() { fs::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path + "/" + name).parent_path());
    std::ofstream(path + "/" + name, std::ios::binary) << text;
    return path + "/" + name;
  }
};
std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
bool soon(const std::function<bool()>& what) {
  for (int i = 0; i < 6000 && !what(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return what();
}

// A server and the port it listens on.
struct server {
  std::unique_ptr<background> process;
  int port = 0;
  explicit server(const std::string& arguments, int at = 0, const std::string& before = "",
                  const std::string& security = " --insecure") {
    const std::string where = security + " --json --listen 127.0.0.1:" + std::to_string(at);
    process = std::make_unique<background>(arguments + where, before);
    const std::string said = process->line();
    INFO(said);
    REQUIRE(said.rfind("{\"listening\":\"127.0.0.1:", 0) == 0);
    port = std::stoi(said.substr(said.rfind(':') + 1));
  }
};
std::string to(int port) {
  return " --insecure --json --connect 127.0.0.1:" + std::to_string(port) + " ";
}
json result(const ran& r) {
  INFO(r.out);
  REQUIRE(r.status == 0);
  const json j = json::parse(r.out);
  CHECK(j["finished"] == true);
  return j;
}
std::size_t tokens_in(const std::string& trace) {
  const std::string text = read(trace);
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find("\"event\":\"token\"", at)) != std::string::npos; ++at)
    ++n;
  return n;
}
const std::vector<std::string> both{"dragon", "dssd"};

#endif
}  // namespace

#ifndef SPECAGG_CLI_NET

TEST_CASE("a build without gRPC has no dragon and no dssd, and says how to get them") {
  for (const char* arguments :
       {"dragon", "dragon serve", "dragon device --prompt x", "dssd serve --insecure"})
    refuses(arguments, {"built without gRPC", "libgrpc++-dev", "CMAKE_PREFIX_PATH"});
}

#else

TEST_CASE(
    "serve says where it listens. A device gets its text, and the server hears of the last token") {
  for (const std::string& name : both) {
    server s(name + " serve");
    const json j = result(run(name + " device --max-tokens 40" + to(s.port)));
    CHECK(j["tokens"].size() == 40);
    const ran end = s.process->end(SIGTERM);
    INFO(end.out);
    CHECK(end.status == 0);
    const json there = json::parse(end.out);
    CHECK(there["session"] == j["session"]);
    auto tail = there["tokens"].get<std::vector<int>>();  // it learnt the prompt, too
    REQUIRE(tail.size() > 40);
    tail.erase(tail.begin(), tail.end() - 40);
    CHECK(tail == j["tokens"].get<std::vector<int>>());
  }
}

TEST_CASE("a device whose model has other tokens drafts for the text's, in every protocol") {
  const test::renamed model;
  const std::string own = " device --model " + model.path + " --vocabulary " + SPECAGG_MODELS +
                          "/target.gguf" + " --max-tokens 30 --prompt 'And it came to pass'";
  {
    server s("dssd serve");
    const json alone = json::parse(run("generate --gamma 0 --temperature 0 --max-tokens 30 --json "
                                       "--prompt 'And it came to pass'")
                                       .out);
    for (const std::string split : {"dsd", "dsd-block", "dssd", "shared"}) {
      const json j =
          result(run("dssd" + own + " --temperature 0 --split " + split + to(s.port), "/dev/null"));
      CHECK(j["tokens"] == alone["tokens"]);
      CHECK(j["mapped"]["of"] == 4096);
      CHECK(j["accepted"] > 0);
    }
    CHECK(result(run("dssd" + own + to(s.port), "/dev/null"))["tokens"].size() == 30);
  }
  const std::string read_here =
      " --documents " + std::string(SPECAGG_SOURCE_DIR) + "/research/text/shakespeare";
  server s("dragon serve");
  for (const std::string noise : {"shared", "independent"}) {
    const json j =
        result(run("dragon" + own + read_here + " --noise " + noise + to(s.port), "/dev/null"));
    CHECK(j["tokens"].size() == 30);
    CHECK(int(j["accepted"]["both"]) + int(j["accepted"]["only_device"]) > 0);
  }
  // Without --vocabulary the two ends do not speak of the same tokens.
  refuses("dragon device --insecure --give-up 5 --model " + model.path +
              " --connect 127.0.0.1:" + std::to_string(s.port),
          {"hash of the vocabulary"});
  refuses("dssd device --insecure --vocabulary /none.gguf", {"/none.gguf"});
}

TEST_CASE(
    "terminal: a device prints no control bytes of a text at one. A pipe gets the text's own "
    "bytes") {
  if (!cli::has_terminals()) return;
  // a terminal's title; red, and a control of Latin-1
  const std::string lord = "\x1b]0;xx\x07", the = "\x1b[31m\x9b";
  const test::renamed target("target", lord, the), draft("draft", lord, the);
  server s("dssd serve --model " + target.path);
  const std::string how = " --temperature 0 --max-tokens 30 --prompt 'And '",
                    device = "dssd device --model " + draft.path,
                    there = " --insecure --connect 127.0.0.1:" + std::to_string(s.port);
  for (const std::string& arguments :
       {device + how + there, device + how + " --alone", "generate --target " + target.path + how,
        "generate --compare --target " + target.path + " --draft " + draft.path + how}) {
    const ran piped = run(arguments), shown = cli::run_at_terminal("TERM=dumb", arguments);
    INFO(arguments << "\n"
                   << specagg::printable(piped.out, 2000) << "\n"
                   << specagg::printable(shown.out, 2000));
    CHECK(piped.out.find(the) != std::string::npos);
    CHECK(shown.out.find("\\x1b[31m\\x9b") != std::string::npos);
    CHECK(shown.out.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("one end with TLS and one without find out at once, not after --give-up") {
  if (cli::shell("openssl version").status != 0) {
    WARN("skipped: there is no openssl to make a certificate with");
    return;
  }
  folder f;
  const std::string key = f.path + "/own.key", pem = f.path + "/own.pem";
  REQUIRE(
      cli::shell("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout " +
                 key + " -out " + pem + " 2>&1")
          .status == 0);
  const auto at_once = [](const std::string& arguments, int port, const char* word) {
    const auto began = std::chrono::steady_clock::now();
    refuses(
        "dragon device --prompt x " + arguments + " --connect 127.0.0.1:" + std::to_string(port),
        {"127.0.0.1:", word});
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(15));  // --give-up: 30
  };
  const server plain("dragon serve");
  at_once("", plain.port, "the server does not speak TLS");
  const server tls("dragon serve", 0, "", " --certificate " + pem + " --key " + key);
  at_once("--insecure", tls.port, "the server hangs up: it may want TLS");
  at_once("", tls.port, "has signed the server's certificate");
}

TEST_CASE(
    "dragon profile fits a line to the times that it prints. Both ends begin with what it "
    "measured") {
  folder f;
  const ran r = run("dragon profile --max-tokens 60 --json", "/dev/null", f.path + "/fast");
  REQUIRE(r.status == 0);
  const json j = json::parse(read(f.path + "/fast"));
  REQUIRE(j["points"].size() == 59);  // the first call reads the prompt
  const double k_a = j["k_a"], k_b = j["k_b"], k_c = j["k_c"];
  double least = 1e9, most = 0, first = j["points"][0][0];
  for (std::size_t i = 0; i < 59; ++i) {
    CHECK(double(j["points"][i][0]) == first + double(i));
    const double seconds = j["points"][i][1];
    CHECK(seconds > 0);
    least = std::min(least, seconds);
    most = std::max(most, seconds);
  }
  // a line through points is among them in their middle
  const double middle = k_a / k_b * (first + 29) + k_c;
  CHECK(middle > least);
  CHECK(middle < most);
  CHECK(run("dragon profile --max-tokens 20").out.find("tokens of context") != std::string::npos);

  // A device that is said to take an hour for a token: what is measured brings that down by half
  // each time at most.
  const std::string slow = f.write("slow", R"({"k_a":0,"k_b":1,"k_c":3600})");
  const std::string both_known =
      " --profile-device " + slow + " --profile-cloud " + f.path + "/fast";
  server s("dragon serve --scheduler recursion" + both_known);
  const json text =
      result(run("dragon device --scheduler recursion --max-tokens 6" + both_known + to(s.port)));
  CHECK(double(text["plan"]["c_device"]) > 10);
  CHECK(double(text["plan"]["c_cloud"]) < 10);

  refuses("dragon device --insecure --profile-cloud " + f.path + "/none",
          {"/none", "cannot be read"});
  refuses("dragon serve --insecure --profile-device " + f.write("text", "1.5"),
          {"/text", "k_a", "dragon profile"});
  refuses("dragon serve --insecure --profile-device " +
              f.write("words", R"({"k_a":0,"k_b":"1","k_c":1})"),
          {"k_b"});
  refuses(
      "dragon serve --insecure --profile-device " + f.write("zero", R"({"k_a":0,"k_b":0,"k_c":1})"),
      {"k_b"});
  refuses("dragon profile --max-tokens 2", {"--max-tokens"});
}

#if !SPECAGG_SANITIZED
TEST_CASE(
    "a server that can make no more threads refuses sessions, goes on with those it has, and ends "
    "when told to") {
  // Stacks of 64 MiB and one arena: threads run out while there still is memory.
  server s("dssd serve --threads 8", 0,
           "export MALLOC_ARENA_MAX=1; ulimit -s 65536; ulimit -v 2500000; ");
  std::vector<std::unique_ptr<background>> devices;
  for (int i = 0; i < 12; ++i)
    devices.push_back(
        std::make_unique<background>("dssd device --max-tokens 60 --give-up 5" + to(s.port)));
  std::size_t finished = 0, refused = 0;
  for (auto& d : devices) {
    const ran r = d->end();
    finished += r.status == 0;
    refused += r.out.find("refused by the other end: \"this s") != std::string::npos;
  }
  CHECK(finished > 0);
  CHECK(refused > 0);
  const ran end = s.process->end(SIGINT);
  INFO(end.out);
  CHECK((end.status == 0 ||
         (end.status == 2 && end.out.find("gRPC does not end") != std::string::npos)));
  std::size_t reports = 0;
  for (std::size_t at = 0; (at = end.out.find("{\"session\"", at)) != std::string::npos; ++at)
    ++reports;
  CHECK(reports >= finished);
}
#endif

TEST_CASE("a server killed in the middle of a sentence and started again continues the same text") {
  for (const std::string& name : both) {
    const folder f;
    auto s = std::make_unique<server>(name + " serve");
    const std::string session = " --session 1234abcd --max-tokens 60 ";
    const json calm = result(run(name + " device" + session + to(s->port)));
    s = std::make_unique<server>(name + " serve");
    slow_link link(s->port, slow_link::way{.delay = 0.03});
    background device(name + " device" + session + "--trace " + f.path + "/trace" +
                      to(link.port()));
    REQUIRE(soon([&] { return tokens_in(f.path + "/trace") >= 15; }));
    const int port = s->port;
    s->process->end(SIGKILL);
    s = std::make_unique<server>(name + " serve", port);
    const json j = result(device.end());
    CHECK(j["tokens"] == calm["tokens"]);
    CHECK(j["text"] == calm["text"]);
    CHECK(j["connections"] > 1);
    CHECK(tokens_in(f.path + "/trace") == 60);
  }
}

TEST_CASE("a device killed in the middle of a sentence and started again says the same text") {
  for (const std::string& name : both) {
    const folder f;
    server s(name + " serve");
    const std::string terms = " --max-tokens 60 --session ";
    const json calm = result(run(name + " device --max-tokens 60 --session 77" + to(s.port)));
    server other(name + " serve");
    slow_link link(other.port, slow_link::way{.delay = 0.03});
    const std::string again = name + " device --max-tokens 60 --session 77" + to(link.port());
    background device(again + "--trace " + f.path + "/trace");
    REQUIRE(soon([&] { return tokens_in(f.path + "/trace") >= 15; }));
    device.end(SIGKILL);
    CHECK(tokens_in(f.path + "/trace") < 60);
    const json j = result(run(again));
    CHECK(j["tokens"] == calm["tokens"]);
  }
}

TEST_CASE(
    "a device that is interrupted says how to go on, and the server ends when it is told to") {
  const folder f;
  server s("dragon serve");
  slow_link link(s.port, slow_link::way{.delay = 0.05});
  background device("dragon device --max-tokens 100 --session beef --trace " + f.path + "/trace" +
                    to(link.port()));
  REQUIRE(soon([&] { return tokens_in(f.path + "/trace") >= 3; }));
  const ran r = device.end(SIGINT);
  CHECK(r.status == 2);
  CHECK(r.out.find("interrupted; --session 000000000000beef goes on with it") != std::string::npos);
  const ran end = s.process->end(SIGTERM);
  CHECK(end.status == 0);
  CHECK(end.out.find("\"session\":\"000000000000beef\"") != std::string::npos);
}

TEST_CASE("two devices at once get the tokens that each gets alone") {
  server s("dragon serve");
  const std::string one = "dragon device --max-tokens 40 --session a1" + to(s.port),
                    two = "dragon device --max-tokens 40 --session b2 --noise independent" +
                          to(s.port);
  background first(one), second(two);
  const json a = result(first.end()), b = result(second.end());
  server fresh("dragon serve");
  const std::string there = to(fresh.port);
  CHECK(a["tokens"] == result(run("dragon device --max-tokens 40 --session a1" + there))["tokens"]);
  CHECK(b["tokens"] == result(run("dragon device --max-tokens 40 --session b2 --noise independent" +
                                  there))["tokens"]);
  CHECK(a["tokens"] != b["tokens"]);
}

TEST_CASE(
    "each token of DRAGON's text is said to be the device's, the cloud's, both's or neither's") {
  server s("dragon serve");
  const std::string all = "dragon device --max-tokens 60 --noise independent";
  const json j = result(run(all + to(s.port)));
  REQUIRE(j["origins"].size() == j["tokens"].size());
  std::map<std::string, std::size_t> counted;
  for (const std::string origin : j["origins"]) ++counted[origin];
  CHECK(counted["unknown"] == 0);
  CHECK(counted["both"] == j["accepted"]["both"]);
  CHECK(counted["device"] == j["accepted"]["only_device"]);
  CHECK(counted["cloud"] == j["accepted"]["only_cloud"]);
  CHECK(counted["neither"] == j["accepted"]["neither"]);
  CHECK(counted["device"] * counted["cloud"] > 0);

  const std::string same =
      "dragon device --temperature 0 --max-tokens 30 --model " SPECAGG_MODELS "/target.gguf";
  for (const std::string origin : result(run(same + to(s.port)))["origins"])
    CHECK(origin == "both");  // the same model at both sites

  const ran shown = run("dragon device --max-tokens 20 --origins --insecure --connect 127.0.0.1:" +
                        std::to_string(s.port));
  INFO(shown.out);
  CHECK(shown.status == 0);
  const auto lines = shown.out.find("\nboth    | ");
  CHECK(lines != std::string::npos);
  refuses("dragon device --origins --insecure --json --connect 127.0.0.1:1",
          {"--origins", "--json"});
}

namespace {

// As a message would have them: each a varint of its number + 1.
std::string in_message(std::span<const specagg::token_id> tokens) {
  std::string bytes;
  for (const specagg::token_id t : tokens) {
    auto x = std::uint32_t(t) + 1;
    for (; x >= 0x80; x >>= 7) bytes += char(x | 0x80);
    bytes += char(x);
  }
  return bytes;
}

// What may not be on the wire: documents, but for what is said aloud.
struct secrets {
  const specagg::cpu::tokenizer& pieces;
  std::vector<std::string> documents;
  std::string said = {};
  std::vector<specagg::token_id> emitted = {};

  // "": nothing of them.
  std::string found(const std::string& wire) const {
    std::string as_text, as_tokens;  // the last of each
    for (const std::string& text : documents) {
      for (std::size_t i = 0; i + 24 <= text.size(); ++i) {
        const std::string part = text.substr(i, 24);
        if (said.find(part) == std::string::npos && wire.find(part) != std::string::npos)
          as_text = "text: " + part;
      }
      const auto tokens = pieces.encode(text);
      for (std::size_t i = 0; i + 8 <= tokens.size(); ++i) {
        const auto part = std::span(tokens).subspan(i, 8);
        const bool is_said =
            std::search(emitted.begin(), emitted.end(), part.begin(), part.end()) != emitted.end();
        const std::string numbers(reinterpret_cast<const char*>(part.data()), part.size_bytes());
        if (!is_said && wire.find(in_message(part)) != std::string::npos)
          as_tokens = "tokens: " + pieces.decode(part);
        if (wire.find(numbers) != std::string::npos) as_tokens = "numbers: " + pieces.decode(part);
      }
    }
    return as_text + as_tokens;
  }
};

void send_bytes(slow_link& link, const std::string& bytes) {
  const int port = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(std::uint16_t(link.port()));
  REQUIRE(connect(port, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  const std::size_t before = link.bytes(0);
  REQUIRE(write(port, bytes.data(), bytes.size()) == ssize_t(bytes.size()));
  CHECK(soon([&] { return link.bytes(0) >= before + bytes.size(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  close(port);
}

}  // namespace

TEST_CASE("passages never cross the wire, neither as text nor as tokens") {
  const specagg::cpu::tokenizer pieces(
      specagg::cpu::gguf_file::open(std::string(SPECAGG_MODELS) + "/draft.gguf"));
  const folder f;
  const std::string prompt = "Tell me of the torches in the harbour of Vrondelmoor";
  secrets of{pieces, {}};
  for (const std::string side : {"device", "cloud"}) {
    std::string text;
    for (int i = 0; i < 5; ++i)
      text += "In the harbour of Vrondelmoor the " + side + " keeper number " +
              std::to_string(i * 7919) +
              " lights torches of quexberry wax, and his password is zyx" +
              std::to_string(i * 104729) + side + ".\n";
    f.write(side + "/secret.txt", text);
    of.documents.push_back(text);
  }
  server s("dragon serve --documents " + f.path + "/cloud");
  slow_link link(s.port, slow_link::way{});
  link.record(true);
  const json j =
      result(run("dragon device --max-tokens 60 --codec full --row-top-k 0 --documents " + f.path +
                 "/device --prompt '" + prompt + "'" + to(link.port())));
  REQUIRE(j["tokens"].size() == 60);
  of.said = prompt + j["text"].get<std::string>();
  of.emitted = pieces.encode(prompt);
  for (const auto& t : j["tokens"]) of.emitted.push_back(t);

  const auto wire = link.recorded();
  for (const std::string& way : wire) {
    CHECK(way.size() > 1000);
    CHECK(of.found(way) == "");
  }
  // The recording has what is said, and the search finds what is sent: so it would have found a
  // passage.
  CHECK(wire[0].find(in_message(std::span(of.emitted).first(6))) !=
        std::string::npos);  // the prompt
  const auto send = [&](const std::string& bytes) {
    send_bytes(link, bytes);
    return of.found(link.recorded()[0]);
  };
  const auto passage = pieces.encode(of.documents[0]);
  specagg::sites::hello terms{.most_tokens = 512};
  terms.codec.vocabulary = pieces.size();
  std::vector<std::uint8_t> bytes(4096);
  bytes.resize(encode(specagg::sites::part_of(passage, 0, 64), terms, bytes));
  CHECK(send({bytes.begin(), bytes.end()}).rfind("tokens: ", 0) == 0);
  CHECK(send(of.documents[1].substr(100, 60)).rfind("text: ", 0) == 0);
}

TEST_CASE(
    "where there is no room for another session its device waits for it, as long as --give-up "
    "says") {
  const folder f;
  server s("dragon serve --sessions 1 --keep 0.1");
  slow_link link(s.port, slow_link::way{.delay = 0.1});  // so that the first takes its time
  background first("dragon device --max-tokens 20 --look-ahead 1 --trace " + f.path + "/trace" +
                   to(link.port()));
  CHECK(soon([&] { return tokens_in(f.path + "/trace") > 0; }));
  const ran late = run("dragon device --max-tokens 8 --give-up 0.3" + to(s.port));
  if (!late.status) WARN("the first device has ended already");
  else {
    CHECK(late.status == 2);
    CHECK(late.out.find("no answer for 0.3 s (there are too many sessions)") != std::string::npos);
    CHECK(late.out.find("goes on with it") == std::string::npos);  // it never had a session
  }
  background second("dragon device --max-tokens 8" + to(s.port));
  CHECK(result(first.end())["tokens"].size() > 0);
  CHECK(result(second.end())["tokens"].size() > 0);
}

TEST_CASE("serve listens to an IPv6 address") {
  background s("dragon serve --insecure --json --listen [::1]:0");
  const std::string said = s.line();
  if (said.find("cannot be listened to") != std::string::npos) return;  // a machine without
  REQUIRE(said.rfind("{\"listening\":\"[::1]:", 0) == 0);
  const std::string there = said.substr(14, said.size() - 16);
  CHECK(result(run("dragon device --insecure --json --max-tokens 4 --connect " + there))["tokens"]
            .size() == 4);
}

TEST_CASE("two sites: output and traces that cannot be written are reported") {
  server s("dragon serve");
  const ran traced =
      run("dragon device --max-tokens 4 --trace /dev/full" + to(s.port), "/dev/null", "/dev/null");
  CHECK(traced.status == 2);
  CHECK(traced.out == "specagg: /dev/full: cannot be written\n");
  const ran untold = run("dragon device --max-tokens 4" + to(s.port), "/dev/null", "/dev/full");
  CHECK(untold.status == 2);
  CHECK(untold.out.find("cannot be written") != std::string::npos);
  const ran alone = run("dragon device --alone --max-tokens 4", "/dev/null", "/dev/full");
  CHECK(alone.status == 2);
  const ran deaf = run("dragon serve --insecure --listen 127.0.0.1:0", "/dev/null", "/dev/full");
  CHECK(deaf.status == 2);
  CHECK(deaf.out == "specagg: standard output: cannot be written\n");
  server tracing("dragon serve --trace /dev/full");
  result(run("dragon device --max-tokens 4" + to(tracing.port)));
  const ran end = tracing.process->end(SIGTERM);
  CHECK(end.status == 2);
  CHECK(end.out.find("/dev/full: cannot be written") != std::string::npos);
}

TEST_CASE("two sites: what cannot be used is said in one line, with status 2") {
  server s("dragon serve --seed 3");
  refuses("dragon device --give-up 0.5 --insecure --connect 127.0.0.1:1",
          {"127.0.0.1:1", "no answer for 0.5 s"});
  refuses(
      "dragon device --seed 4 --insecure --give-up 5 --connect 127.0.0.1:" + std::to_string(s.port),
      {"seed: device and server have different ones", "--seed", "refused"});
  refuses(
      "dssd device --seed 3 --insecure --give-up 5 --connect 127.0.0.1:" + std::to_string(s.port),
      {"this is a server of dragon"});
  refuses("dragon device --seed 3 --give-up 1 --connect 127.0.0.1:" + std::to_string(s.port),
          {"the server does not speak TLS"});
  refuses("dragon serve --listen 127.0.0.1:0", {"serve", "--certificate", "--insecure"});
  refuses("dragon serve --insecure --certificate x", {"x", "cannot be read"});
  refuses("dragon serve --insecure --listen 127.0.0.1:" + std::to_string(s.port),
          {"cannot be listened to"});
  refuses("dragon serve --insecure --most-tokens 5000", {"target.gguf", "room", "5000"});
  refuses("dragon device --seed 3 --insecure --max-tokens 700 --connect 127.0.0.1:" +
              std::to_string(s.port),
          {"most tokens: 7", "512 at most here"});
  refuses("dssd serve --insecure --listen nowhere", {"nowhere", "HOST:PORT"});
  for (const std::string port : {"99999", "-1", "abc", ""}) {
    const std::string address = "127.0.0.1:" + port, said = "\"" + port + "\" is no number from ";
    refuses("dragon serve --insecure --listen " + address,
            {address.c_str(), said.c_str(), "0 to 65535"});
    refuses("dssd device --insecure --connect " + address,
            {address.c_str(), said.c_str(), "1 to 65535"});
  }
  refuses("dragon serve --insecure --listen 127.0.0.1", {"127.0.0.1", "HOST:PORT"});
  refuses("dragon device --insecure --prompt-file /dev/zero", {"/dev/zero", "16777216 bytes"});
}

TEST_CASE("two sites: files and options that cannot be used are said in one line") {
  const folder f;
  refuses("dragon serve --insecure --token-file " + f.path, {"cannot be read"});
  const std::string pem = f.write("x.pem", "this is no certificate");
  refuses("dragon serve --listen 127.0.0.1:0 --certificate " + pem + " --key " + pem,
          {"x.pem", "is no PEM text"});
  const std::string swapped =
      f.write("key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
  refuses("dragon device --authority " + swapped,
          {"key.pem", "has a private key and no certificate"});
  refuses("dragon device --certificate " + swapped + " --key " + swapped,
          {"key.pem", "no certificate"});
  const std::string empty =
      f.write("c.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  refuses("dragon device --certificate " + empty + " --key " + swapped,
          {"the certificate and the key", "do not belong together, or one of them is damaged"});
  refuses("dragon serve --listen 127.0.0.1:0 --certificate " + empty + " --key " + empty,
          {"c.pem", "has a certificate and no private key"});
  refuses("dragon serve --listen 127.0.0.1:0 --certificate " + pem, {"--key"});
  refuses("dragon device --insecure --authority " + pem, {"--insecure", "excludes"});
  refuses("dragon serve --insecure --token-file " + f.path + "/none", {"none", "cannot be read"});
  refuses("dragon serve --insecure --token-file " + f.write("blank", "\n"), {"blank", "no token"});
  refuses("dragon serve --insecure --token-file " + f.write("two", "two words\n"),
          {"token", "blanks"});
  refuses("dragon device --insecure --session xyz", {"--session xyz"});
  refuses("dragon device --insecure --session 12345678901234567", {"--session 12345678901234567"});
  refuses("dragon device --insecure --session -1", {"session"});
  refuses("dragon device --insecure --scheduler best", {"best", "recursion"});
  refuses("dragon serve --insecure --scheduler best", {"best", "recursion"});
  refuses("dssd device --insecure --split best", {"best", "dssd"});
  refuses("dragon device --insecure --noise best", {"best", "shared"});
  refuses("dragon device --insecure --codec best", {"best", "half"});
  refuses("dragon device --insecure --max-tokens 100000", {"draft.gguf", "room", "1024"});
  refuses("dragon device --insecure --prompt ''", {"--prompt"});
  refuses("dragon device --insecure --model " + pem, {"x.pem"});
  refuses("dragon device --insecure --documents " + f.path + "/none", {"none"});
  refuses("dragon device --insecure --trace " + f.path + "/none/trace",
          {"none/trace", "cannot be written"});
}

TEST_CASE("two sites whose tokenizers make other tokens of one text do not begin, and say so") {
  const folder f;
  std::string model = read(std::string(SPECAGG_MODELS) + "/draft.gguf");
  // then: array (u32), of floats (u32), how many (u64), the floats
  const std::string key = "tokenizer.ggml.scores";
  const std::size_t at = model.find(key);
  REQUIRE(at != std::string::npos);
  // the same pieces, the other order
  for (std::size_t i = at + key.size() + 16 + 3, n = 0; n < 4096; i += 4, ++n)
    if (n >= 259) model[i] = char(std::uint8_t(model[i]) ^ 0x80u);
  const std::string other = f.write("other.gguf", model);
  server s("dragon serve");
  refuses(
      "dragon device --insecure --give-up 5 --model " + other +
          " --connect 127.0.0.1:" + std::to_string(s.port),
      {"refused by the other end: \"tokenization: the two ends make different tokens of one text"});
}
TEST_CASE("a token is asked for, and a unix socket is listened to") {
  const folder f;
  const std::string token = " --token-file " + f.write("token", "secret\n"),
                    socket = "unix:" + f.path + "/socket";
  background s("dragon serve --insecure --json --listen " + socket + token);
  CHECK(s.line() == "{\"listening\":\"" + socket + "\"}");
  const std::string device =
      "dragon device --max-tokens 8 --insecure --json --give-up 1 --connect " + socket;
  const ran without = run(device);
  CHECK(without.status == 2);
  CHECK(without.out.find("the token is missing or wrong") != std::string::npos);
  CHECK(run(device + " --token-file " + f.write("other", "secre")).status == 2);
  CHECK(result(run(device + token))["tokens"].size() == 8);
}

#endif
