// SPDX-License-Identifier: Apache-2.0
#include "../tools/cli/site_model.hpp"

#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include <specagg/error.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"
#include "support/renamed.hpp"
#include "support/smollm2.hpp"

using namespace specagg;
namespace fs = std::filesystem;

namespace {

const std::string bundled_model = std::string(SPECAGG_MODELS) + "/draft.gguf";
const std::string texts = std::string(SPECAGG_SOURCE_DIR) + "/research/text";
const cpu::tokenizer& pieces() {
  static const cpu::tokenizer t(cpu::gguf_file::open(bundled_model));
  return t;
}

struct folder {
  std::string path = (fs::temp_directory_path() / "specagg-test-XXXXXX").string();
  folder() { REQUIRE(mkdtemp(path.data())); }
  folder(const folder&) = delete;
  ~folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path + "/" + name).parent_path());
    std::ofstream(path + "/" + name, std::ios::binary) << text;
  }
};
std::string refusal(const std::string& path) {
  try {
    cli::passages(path, pieces());
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

#ifndef SPECAGG_XAPIAN

TEST_CASE("a build without Xapian says so in one line") {
  CHECK(refusal(texts) ==
        "documents in " + texts +
            ": this build has no search (CMake found no Xapian: install libxapian-dev)");
}

#else

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
std::string text_of(const std::vector<token_id>& tokens) {
  std::string text;
  for (const token_id t : tokens) text += pieces().piece(t);
  return text;
}

std::shared_ptr<cli::site_library> library(cli::site_options o) {
  o.model = bundled_model;
  return std::make_shared<cli::site_library>(o);
}
const std::string kjv = texts + "/kjv";
const std::atomic<bool> never = false, always = true;

struct answer {
  status why = status::ok;
  std::vector<float> rows;
  double h = 0;
  bool operator==(const answer& other) const {
    return why == other.why && h == other.h && rows.size() == other.rows.size() &&
           (rows.empty() || std::memcmp(rows.data(), other.rows.data(), 4 * rows.size()) == 0);
  }
};
answer see(cli::site& m, std::span<const token_id> text, std::size_t k = 1) {
  answer a{status::ok, std::vector<float>(k * m.vocab_size())};
  a.why = m.see(text, a.rows, a.h, never);
  return a;
}
double log_sum(std::span<const float> row) {
  double sum = 0;
  for (const float x : row) sum += std::exp(double(x));
  return std::log(sum);
}
std::string query_at(std::span<const token_id> text, std::size_t size) {
  return pieces().decode(text.first(size).last(std::min<std::size_t>(size, 64)));
}

}  // namespace

TEST_CASE(
    "a folder becomes passages of 64 tokens whose pieces are its text, the same ones each time") {
  const cli::passages all(texts, pieces()), again(texts, pieces());
  REQUIRE(all.size() == again.size());
  std::string joined;
  std::size_t shorter = 0;
  for (std::uint32_t id = 1; id <= all.size(); ++id) {
    const auto tokens = all.tokens(id);
    REQUIRE(tokens == again.tokens(id));
    CHECK((!tokens.empty() && tokens.size() <= 64));
    shorter += tokens.size() < 64;
    joined += text_of(tokens);
  }
  CHECK(shorter <= 5);  // the last of each file
  CHECK(joined == " " + read(texts + "/README.md") + " " + read(kjv + "/test.txt") + " " +
                      read(kjv + "/valid.txt") + " " + read(texts + "/shakespeare/test.txt") + " " +
                      read(texts + "/shakespeare/valid.txt"));
}

TEST_CASE(
    "long files are encoded by the MiB, at lines' ends where there are any, and lose nothing") {
  const folder f;
  const std::string line = "And the evening and the morning were the first day.\n";
  std::string lines, one_line;
  while (lines.size() < (std::size_t{5} << 19)) lines += line;
  while (one_line.size() < (std::size_t{5} << 18)) one_line += "\xe2\x82\xac";  // of three bytes
  f.write("a.txt", lines);
  f.write("b.txt", one_line);
  const cli::passages all(f.path, pieces());
  std::string joined;
  for (std::uint32_t id = 1; id <= all.size(); ++id) joined += text_of(all.tokens(id));
  const std::size_t first = (1 << 20) / line.size() * line.size(), character = (1 << 20) / 3 * 3;
  CHECK(joined == " " + lines.substr(0, first) + " " + lines.substr(first, first) + " " +
                      lines.substr(2 * first) + " " + one_line.substr(0, character) + " " +
                      one_line.substr(character));
}

TEST_CASE("a passage's own words find it first. Of equal passages the first one comes first") {
  const cli::passages all(texts, pieces());
  for (std::uint32_t id = 5; id <= all.size(); id += 17) {
    const auto tokens = all.tokens(id);
    if (tokens.size() < 64) continue;
    INFO(text_of(tokens));
    const auto found = all.find(text_of({tokens.begin() + 8, tokens.begin() + 56}), 3);
    REQUIRE(!found.empty());
    CHECK(found[0] == id);
    const auto scores = all.scores(text_of(tokens), found);
    CHECK((found.size() == 3 && scores[0] > scores[1] && scores[2] > 0));
    CHECK(all.scores(text_of(tokens), std::vector{found[2], found[0]}) ==
          std::vector{scores[2], scores[0]});
  }
  CHECK(all.find("xyzzy", 4).empty());
  CHECK(all.find("", 4).empty());
  CHECK(all.find("the", 0).empty());
  CHECK(all.scores("xyzzy", std::vector<std::uint32_t>{1, 2}) == std::vector<double>{0, 0});
  const folder f;
  for (const auto* name : {"c/x.txt", "b.md", "a.txt", "d.txt"})
    f.write(name, "Let there be light");
  f.write("e.txt", "and there was darkness");
  f.write("ignored.cpp", "Let there be light");
  const cli::passages same(f.path, pieces());
  CHECK(same.size() == 5);
  CHECK(same.find("be light", 9) == std::vector<std::uint32_t>{1, 2, 3, 4});
  CHECK(same.find("be light", 2) == std::vector<std::uint32_t>{1, 2});
}

TEST_CASE("a folder or file that cannot be indexed is named") {
  const folder f;
  const auto with = [&](const std::string& name, const std::string& text) {
    f.write(name, text);
    const auto why = refusal(f.path);
    fs::remove(f.path + "/" + name);
    return why;
  };
  CHECK(refusal(f.path + "/none") == f.path + "/none: No such file or directory");
  CHECK(refusal(f.path) == f.path + ": holds no *.txt or *.md file");
  CHECK(with("a.txt", "") == f.path + ": holds no text");
  for (const char* bad : {"caf\xe9", "caf\xc3", "caf\xc0\xaf", "caf\xed\xa0\x80",
                          "caf\xf4\x90\x80\x80", "caf\xe2\x82"})
    CHECK(with("sub/a.txt", bad) == f.path + "/sub/a.txt: byte 3: is not UTF-8");
  CHECK(with("a.txt", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") == "");
  fs::create_symlink("nowhere", f.path + "/b.txt");
  CHECK(with("a.txt", "text") == f.path + "/b.txt: cannot be read");
  CHECK(with("z.txt", "text") == f.path + "/b.txt: cannot be read");
}

TEST_CASE(
    "a site's row is the mixture over the passages its prompt finds, weighted by scale x BM25") {
  const auto shared = library({.folder = kjv, .documents = 3, .scale = 0.3});
  cli::site_model site(shared);
  const auto text = pieces().encode(
      "And Jesus answering said unto them, They that are whole need not a physician");
  const std::size_t prompt = text.size() - 3, V = site.vocab_size();
  site.begin(prompt);
  const auto got = see(site, text, 2);
  REQUIRE(got.why == status::ok);
  const auto found = shared->texts->find(query_at(text, prompt), 3);
  REQUIRE(found.size() == 3);
  CHECK(site.documents() == found);
  const auto scores = shared->texts->scores(query_at(text, prompt), found);
  std::vector<double> p(2 * V);
  double all = 0;
  for (const double s : scores) all += std::exp(0.3 * s);
  for (std::size_t d = 0; d < 3; ++d) {
    std::vector<token_id> read{pieces().bos()};
    for (const token_id t : shared->texts->tokens(found[d])) read.push_back(t);
    read.push_back(pieces().encode("\n").back());
    read.insert(read.end(), text.begin() + 1, text.end());  // after its begin
    cpu::llama m(shared->weights);
    std::vector<float> rows(2 * V);
    REQUIRE(m.extend(read, rows) == status::ok);
    for (std::size_t i = 0; i < 2 * V; ++i) {
      const auto row = std::span(rows).subspan(i / V * V, V);
      p[i] += std::exp(0.3 * scores[d]) / all * std::exp(double(rows[i]) - log_sum(row));
    }
  }
  CHECK(std::abs(got.h - std::log(all)) < 1e-12);
  double worst = 0;  // 1e-6 + 1e-7 |ln p|, see mix_documents
  for (std::size_t i = 0; i < 2 * V; ++i)
    worst = std::max(worst, std::abs(double(got.rows[i]) - std::log(p[i])));
  CHECK(worst < 4e-6);
}

TEST_CASE(
    "a site's rows and h are functions of text and prompt: any order, rows, stops and threads, "
    "same bits") {
  numbers n(1);
  const auto story = pieces().encode(read(kjv + "/test.txt").substr(0, 3000));
  for (const std::size_t rescore : {0u, 3u}) {
    const cli::site_options o{
        .folder = kjv, .documents = 3, .rescore = rescore, .most = 200, .prefixes = 4};
    const auto shared = library(o);
    cli::site_model site(shared, rescore ? 3 : 5);  // documents side by side, or within a document
    std::size_t stopped = 0;
    for (int i = 0; i < 60; ++i) {
      const std::size_t prompt = 20 + 15 * n.below(3), size = 1 + n.below(120),
                        k = n.below(std::min<std::size_t>(size, 12));
      std::vector<token_id> text(story.begin(), story.begin() + std::ptrdiff_t(size));
      if (n.below(3) == 0) text.back() = token_id(n.below(site.vocab_size()));
      site.begin(prompt);
      std::atomic<bool> stop = false;
      std::thread other([&, spins = n.below(20000)] {
        for (std::size_t s = 0; s < spins; ++s) detail::spin_pause();
        stop = i % 2 == 0;
      });
      answer got{status::ok, std::vector<float>(k * site.vocab_size())};
      got.why = site.see(text, got.rows, got.h, stop);
      other.join();
      if (got.why == status::stopped) {
        ++stopped;
        continue;
      }
      cli::site_model fresh(i % 20 ? shared : library(o));
      fresh.begin(prompt);
      REQUIRE(got == see(fresh, text, k));
    }
    CHECK(stopped > 0);
  }
}

TEST_CASE("relevance is scored again every n tokens, for the same passages. Between that h stays") {
  const auto text = pieces().encode(read(kjv + "/test.txt").substr(5000, 1000));
  const std::size_t prompt = 40, every = 8;
  const auto shared = library({.folder = kjv, .rescore = every}), once = library({.folder = kjv});
  cli::site_model site(shared), fixed(once);
  site.begin(prompt);
  fixed.begin(prompt);
  const double h = see(fixed, std::span(text).first(prompt)).h;
  std::size_t changes = 0;
  double before = h;
  for (std::size_t size = prompt - 5; size < prompt + 50; ++size) {
    const auto a = see(site, std::span(text).first(size));
    const std::size_t due =
        size < prompt ? std::min(size, prompt) : prompt + (size - prompt) / every * every;
    if (size < prompt) continue;  // a shorter text is its own prompt
    CHECK(see(fixed, std::span(text).first(size)).h == h);
    CHECK(site.documents() == fixed.documents());
    double sum = 0;
    for (const double s : shared->texts->scores(query_at(text, due), site.documents()))
      sum += std::exp(0.1 * s);
    CHECK(std::abs(a.h - std::log(sum)) < 1e-12);
    if (a.h != before) CHECK(size == due);
    changes += a.h != before;
    before = a.h;
  }
  CHECK(changes == 6);
  const auto many = see(site, std::span(text).first(prompt + 30), 20);
  for (std::size_t row = 0; row < 20; ++row) {
    const auto one = see(site, std::span(text).first(prompt + 11 + row));
    CHECK(std::equal(one.rows.begin(), one.rows.end(),
                     many.rows.begin() + std::ptrdiff_t(row * one.rows.size())));
    if (row == 19) CHECK(one.h == many.h);
  }
  cli::site_model fresh(shared);  // the same words to score, other passages
  see(site, std::span(text).first(prompt + 50));
  site.begin(prompt + 2 * every);
  fresh.begin(prompt + 2 * every);
  CHECK(see(site, std::span(text).first(prompt + 50)) ==
        see(fresh, std::span(text).first(prompt + 50)));
}

TEST_CASE(
    "a passage's keys and values are computed once for all sessions, as long as they are kept") {
  const auto text = pieces().encode("In the beginning was the Word, and the Word was with God");
  const auto shared = library({.folder = kjv, .documents = 4, .prefixes = 5});
  std::vector<answer> answers;
  for (int i = 0; i < 3; ++i) {
    cli::site_model site(shared);
    site.begin(text.size());
    answers.push_back(see(site, text));
    CHECK(shared->prefixes_computed == 4);
  }
  CHECK((answers[0] == answers[1] && answers[1] == answers[2]));
  cli::site_model site(shared);
  const auto other =
      pieces().encode("Blessed are the poor in spirit: for theirs is the kingdom of heaven");
  site.begin(other.size());
  REQUIRE(see(site, other).why == status::ok);
  const std::size_t so_far = shared->prefixes_computed;
  CHECK((so_far > 4 && so_far <= 8));
  for (const auto id : site.documents()) CHECK(shared->prefix(id));
  cli::site_model again(shared);  // the first prompt's have made room
  again.begin(text.size());
  CHECK(see(again, text) == answers[0]);
  CHECK(shared->prefixes_computed > so_far);
}

TEST_CASE("of the passages kept, the one asked for least recently makes room") {
  const auto shared = library({.prefixes = 2});
  const auto session = shared->make(1, nullptr);
  shared->keep(1, session);
  shared->keep(2, session);
  CHECK(shared->prefix(1));
  shared->keep(3, session);
  CHECK((shared->prefix(1) && !shared->prefix(2) && shared->prefix(3)));
}

TEST_CASE("without documents, or where nothing is found, a site is the plain model, h = 0") {
  const auto text = pieces().encode("12345 67890");
  const auto plain = library({}), search = library({.folder = texts + "/shakespeare"});
  REQUIRE(search->texts->find("12345 67890", 1).empty());
  cli::site_model a(plain), b(search);
  a.begin(text.size());
  b.begin(text.size());
  const auto row = see(a, text);
  CHECK(row.h == 0);
  CHECK(row == see(b, text));
  cpu::llama m(plain->weights);
  std::vector<float> logits(m.vocab_size());
  REQUIRE(m.extend(text, logits) == status::ok);
  const double sum = log_sum(logits);
  double worst = 0;
  for (std::size_t v = 0; v < logits.size(); ++v)
    worst = std::max(worst, std::abs(double(row.rows[v]) - (double(logits[v]) - sum)));
  CHECK(worst < 4e-6);
}

namespace {
auto open_renamed(const test::renamed& file, cli::site_options how) {
  how.model = file.path;
  how.vocabulary = bundled_model;
  return cli::make_cpu_site_maker(how);
}
}  // namespace

TEST_CASE("a site whose model has other tokens has the model's row over what is mapped") {
  const test::renamed file;  // without " the" and " lord"
  const auto text = pieces().encode("And he went up into");
  const auto alone = open_renamed(file, {});
  REQUIRE(alone->map());
  CHECK((alone->map()->size() > 4000 && alone->map()->size() < pieces().size()));
  CHECK(alone->vocab_size() == pieces().size());
  CHECK(alone->encode("my lord, the end") == pieces().encode("my lord, the end"));
  const auto plain = library({});
  cli::site_model whole(plain);
  const auto mapped = alone->make(200, 1);
  whole.begin(text.size());
  mapped->begin(text.size());
  const auto p = see(whole, text, 2), got = see(*mapped, text, 2);
  const std::size_t V = pieces().size();
  REQUIRE((p.why == status::ok && got.why == status::ok && got.rows.size() == 2 * V));
  const vocabulary_map& map = *alone->map();
  CHECK(map.from(pieces().encode_inside(" the")[0]) == no_token);
  double worst = 0;
  for (std::size_t row = 0; row < 2; ++row) {
    double z = 0;
    for (const token_id d : map.drafts()) z += std::exp(double(p.rows[row * V + std::size_t(d)]));
    CHECK(z < (row == 1 ? 0.9 : 1));  // the
    for (std::size_t v = 0; v < V; ++v) {
      const double ln = got.rows[row * V + v];
      if (map.from(token_id(v)) == no_token) CHECK(ln == -std::numeric_limits<double>::infinity());
      else worst = std::max(worst, std::abs(ln - (double(p.rows[row * V + v]) - std::log(z))));
    }
  }
  CHECK(worst < 1e-5);

  cli::site_options same{.model = bundled_model, .vocabulary = bundled_model};  // nothing to map
  CHECK_FALSE(cli::make_cpu_site_maker(same)->map());
  same.vocabulary = texts + "/kjv/test.txt";
  CHECK_THROWS_AS(cli::make_cpu_site_maker(same), error);
}

TEST_CASE("a site whose model has other tokens keeps passages, too") {
  const test::renamed file;
  const auto story = pieces().encode(read(kjv + "/test.txt").substr(0, 400));
  const auto kept = open_renamed(file, {.folder = kjv, .documents = 3}),
             unkept = open_renamed(file, {.folder = kjv, .documents = 3, .prefixes = 0});
  std::vector<answer> answers;
  for (const auto& of : {kept, kept, unkept}) {
    const auto site = of->make(200, 1);
    site->begin(40);
    for (const std::size_t size : {60u, 90u, 50u})
      answers.push_back(see(*site, std::span(story).first(size), 3));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(answers[i].why == status::ok);
    CHECK((answers[i] == answers[3 + i] && answers[i] == answers[6 + i]));
  }
  CHECK(dynamic_cast<cli::site_maker_of<cli::mapped_sites<cli::cpu_sites>>&>(*kept)
            .library->prefixes_computed == 3);
}

TEST_CASE(
    "SmolLM2: a passage with more tokens of the site's model than there is room for is left out",
    "[more]") {
  const std::string smol = test::smollm2();
  if (smol.empty()) return;
  const cpu::tokenizer tokens(cpu::gguf_file::open(smol));
  folder wide;
  // SmolLM2 has tokens of many blanks, the bundled models one for each
  std::string blanks = "xyzzy";
  for (int i = 0; i < 60; ++i) blanks += "\n" + std::string(40, ' ') + "x";
  wide.write("a.txt", blanks);
  wide.write("b.txt", "xyzzy is a word of a game");
  const auto open = [&](const std::string& documents) {
    return cli::make_cpu_site_maker(
        {.model = bundled_model, .folder = documents, .vocabulary = smol, .most = 100});
  };
  const auto text = tokens.encode("xyzzy, and what then");
  const auto of = open(wide.path);
  REQUIRE(of->passage_count() > 2);
  const auto site = of->make(100, 1);
  site->begin(text.size());
  const answer got = see(*site, text);
  CHECK(got.why == status::ok);
  std::filesystem::remove(wide.path + "/a.txt");
  const auto alone = open(wide.path)->make(100, 1);
  alone->begin(text.size());
  const answer due = see(*alone, text);
  CHECK(due.why == status::ok);
  // h is of the passages' BM25, which counts those of the whole folder
  CHECK(got.rows == due.rows);
}

TEST_CASE("a session takes texts up to its capacity, stops when told to, and goes on") {
  const auto text = pieces().encode(read(kjv + "/test.txt").substr(0, 1000));
  cli::site_model site(library({.folder = kjv, .most = 100}));
  CHECK(site.capacity() == 100);
  site.begin(30);
  std::vector<float> row(site.vocab_size());
  double h = 0;
  CHECK(site.see(std::span(text).first(101), row, h, never) == status::context_full);
  CHECK(site.see(std::span(text).first(100), row, h, always) == status::stopped);
  const auto whole = see(site, std::span(text).first(100));
  CHECK(whole.why == status::ok);
  CHECK(site.see(std::span(text).first(99), row, h, always) == status::stopped);
  CHECK(see(site, std::span(text).first(100)) == whole);
  // also without a token that begins it
  CHECK(see(site, std::span(text).subspan(1, 100)).why == status::ok);
  CHECK(site.see({}, row, h, never) == status::invalid_parameter);
  CHECK(site.see(std::span(text).first(1), row, h, never) == status::ok);
  CHECK(site.see(text, std::span(row).first(7), h, never) == status::invalid_parameter);
  cli::site_options all{.folder = kjv};
  all.most = 100000;
  CHECK(cli::site_model(library(all)).capacity() == 1024 - 66);
}

#endif
