// SPDX-License-Identifier: Apache-2.0
// bin/specagg-features: what a draft head is trained on.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/kernel/softmax.hpp>

#include "cli/command.hpp"

namespace {

using namespace specagg;
namespace fs = std::filesystem;

const std::string model = SPECAGG_MODELS "/draft.gguf";
const std::vector<std::string> lines{"And it came to pass", "ROMEO:"};

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A folder that is there until the test ends.
struct folder {
  fs::path path = fs::temp_directory_path() / ("specagg-features-" + std::to_string(getpid()));
  folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~folder() { fs::remove_all(path); }
  fs::path prompts(const std::vector<std::string>& of) const {
    std::ofstream to(path / "prompts.txt");
    for (const auto& line : of) to << line << "\n";
    return path / "prompts.txt";
  }
  cli::ran run(const std::string& out, const std::string& options) const {
    return cli::shell((fs::path(SPECAGG_CLI).parent_path() / "specagg-features").string() +
                      " --model " + model + " --prompts " + (path / "prompts.txt").string() +
                      " --out " + (path / out).string() + " " + options + " 2>&1");
  }
};

struct features {
  std::vector<token_id> tokens, most_likely;
  std::vector<float> states, log_sums;
  std::int32_t dim = 0, prompt = 0;
  explicit features(const std::string& bytes) {
    std::size_t at = 0;
    const auto take = [&]<class T>(std::vector<T>& to, std::size_t n) {
      REQUIRE(at + n * sizeof(T) <= bytes.size());
      to.resize(n);
      std::memcpy(to.data(), bytes.data() + at, n * sizeof(T));
      at += n * sizeof(T);
    };
    std::vector<std::int32_t> sizes;
    take(sizes, 3);
    const std::size_t n = std::size_t(sizes[0]);
    dim = sizes[1];
    prompt = sizes[2];
    take(tokens, n);
    take(states, n * std::size_t(dim));
    take(log_sums, n - std::size_t(prompt) + 1);
    take(most_likely, n - std::size_t(prompt) + 1);
    CHECK(at == bytes.size());
  }
};

}  // namespace

TEST_CASE("numbers are decimal, and what cannot be used is said in one line, with status 2") {
  folder f;
  f.prompts(lines);
  for (const std::string wrong :
       {"--texts 010", "--tokens 0x10", "--seed 1e3", "--threads 08", "--texts 0"}) {
    const cli::ran r = f.run("out", wrong);
    INFO(wrong << "\n" << r.out);
    CHECK(r.status == 2);
    CHECK(r.out.starts_with("specagg-features: "));
    CHECK(r.out.find(wrong.substr(0, wrong.find(' '))) != std::string::npos);
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  }
  CHECK(f.run("out", "--help").status == 0);
}

TEST_CASE("the states and rows of texts written together are those of each text alone") {
  folder f;
  f.prompts(lines);
  REQUIRE(f.run("out", "--texts 3 --tokens 12 --seed 5 --threads 2").status == 0);
  const auto weights = std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(model));
  const cpu::tokenizer tokenizer(weights->file);
  std::vector<std::vector<token_id>> texts;
  for (std::size_t i = 0; i < lines.size(); ++i)
    for (std::size_t k = 0; k < 3; ++k) {
      const features x(bytes_of(f.path / "out" / (std::to_string(3 * i + k) + ".bin")));
      const auto prompt = tokenizer.encode(lines[i]);
      REQUIRE(std::size_t(x.prompt) == prompt.size());
      REQUIRE(std::size_t(x.dim) == weights->dim);
      REQUIRE(x.tokens.size() >= prompt.size());
      CHECK(x.tokens.size() <= prompt.size() + 11);
      CHECK(std::equal(prompt.begin(), prompt.end(), x.tokens.begin()));
      cpu::llama alone(weights);
      alone.keep_hidden();
      std::vector<float> rows(x.tokens.size() * weights->vocab);
      REQUIRE(alone.extend(x.tokens, rows) == status::ok);
      for (std::size_t t = 0; t < x.tokens.size(); ++t)
        CHECK(std::memcmp(alone.hidden(t).data(), &x.states[t * weights->dim],
                          weights->dim * sizeof(float)) == 0);
      for (std::size_t r = 0; r < x.log_sums.size(); ++r) {
        const auto row =
            std::span(rows).subspan((prompt.size() - 1 + r) * weights->vocab, weights->vocab);
        CHECK(x.log_sums[r] == float(log_sum_exp(row)));
        CHECK(x.most_likely[r] == std::max_element(row.begin(), row.end()) - row.begin());
      }
      texts.push_back(x.tokens);
    }
  std::sort(texts.begin(), texts.end());
  // each has random numbers of its own
  CHECK(std::unique(texts.begin(), texts.end()) == texts.end());
}
TEST_CASE("a text has the same bytes written alone, and written again after an interruption") {
  folder f;
  f.prompts(lines);
  REQUIRE(f.run("together", "--texts 3 --tokens 12").status == 0);
  REQUIRE(f.run("alone", "--tokens 12").status == 0);
  const std::string first = bytes_of(f.path / "together" / "0.bin"),
                    last = bytes_of(f.path / "together" / "5.bin");
  CHECK(first == bytes_of(f.path / "alone" / "0.bin"));
  CHECK_FALSE(last.empty());
  fs::remove(f.path / "together" / "5.bin");
  const auto again = f.run("together", "--texts 3 --tokens 12");
  CHECK(again.status == 0);
  CHECK(again.out.find("line 2") != std::string::npos);
  CHECK(again.out.find("line 1") == std::string::npos);  // it is there
  CHECK(last == bytes_of(f.path / "together" / "5.bin"));
}
TEST_CASE(
    "texts for which the context has no room together are written one after another, and end with "
    "it") {
  folder f;
  f.prompts({"ROMEO:"});
  // of 1024: two at a time
  REQUIRE(f.run("many", "--texts 3 --tokens 500 --threads 2").status == 0);
  REQUIRE(f.run("long", "--tokens 5000 --threads 2").status == 0);
  const features third(bytes_of(f.path / "many" / "2.bin")),
      whole(bytes_of(f.path / "long" / "0.bin"));
  CHECK(third.tokens.size() > std::size_t(third.prompt));
  CHECK(whole.tokens.size() <= 1023);
  const features first(bytes_of(f.path / "many" / "0.bin"));
  REQUIRE(first.tokens.size() <= whole.tokens.size());
  CHECK(std::equal(first.tokens.begin(), first.tokens.end(), whole.tokens.begin()));
}
TEST_CASE("prompts that cannot be used get one line and status 2") {
  folder f;
  const auto refused = [&](const std::string& options, const char* why) {
    const auto r = f.run("out", options);
    INFO(r.out);
    CHECK(r.status == 2);
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
    CHECK(r.out.find(why) != std::string::npos);
  };
  refused("", "prompts.txt: cannot be read");
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "And it came to pass ";
  f.prompts({"ROMEO:", words});
  refused("--tokens 2", "line 2: is longer than the model's context");
  CHECK(f.run("out", "--texts 0").status != 0);
}
