// SPDX-License-Identifier: Apache-2.0
// What each policy costs at equal acceptance. Its parameter is solved for an acceptance rate on
// rows of held-out text; then the distance of pi from p, how often pi has the target's most
// likely token, the text's own token and right answers, and the accepted tokens of a round of four.
// All from whole rows; only the drafts of rounds are drawn. scripts/frontier sets the environment:
// SPECAGG_SMOLLM2 is a model file, SPECAGG_TEXTS the folder that real/texts.py writes.
#include <cstdlib>
#include <array>
#include <functional>
#include <optional>
#include <utility>

#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen
#include <specagg/backend/cpu/draft_head.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/draft/head.hpp>
#include <specagg/draft/mapped.hpp>
#include <specagg/decoders.hpp>

#include "../../../tools/cli/files.hpp"
#include "../parts.hpp"
#include "settings.hpp"

namespace experiments::frontier {
namespace {

using namespace specagg;

constexpr std::size_t context = 128, gamma = 4;

std::vector<float> probabilities(std::span<const float> logits) {
  const auto row = normalise(processed_row<float>(logits));
  if (row.why() != status::ok) throw error("row", "", name(row.why()));
  std::vector<float> x(logits.size());
  for (std::size_t v = 0; v < x.size(); ++v) x[v] = row[v];
  return x;
}
void must(status s, const char* what) {
  if (s != status::ok) throw error(what, "", name(s));
}

// Reads tokens with both models, and keeps the rows before each of the last `scored`. A round
// begins before every (scored / rounds)-th of these.
template <class Q, class P>
observed read_window(Q& q, P& p, std::span<const token_id> tokens, std::size_t scored,
                     std::size_t rounds, std::uint64_t seed) {
  const std::size_t V = p.vocab_size(), first = tokens.size() - 1 - scored;
  const random_streams noise(seed);
  std::vector<float> row(V), rows(gamma * V);
  std::vector<double> scratch(verify_scratch(V));
  observed all;
  must(p.rollback(0), "target");
  must(q.rollback(0), "draft");
  must(p.extend(tokens.first(first), {}), "target");
  must(q.extend(tokens.first(first), {}), "draft");
  for (std::size_t i = first; i + 1 < tokens.size(); ++i) {
    position here;
    here.next = tokens[i + 1];
    must(q.extend(tokens.subspan(i, 1), row), "draft");
    here.q = probabilities(row);
    if (rounds > 0 && (i - first) % (scored / rounds) == 0) {
      std::vector<position> round(gamma);
      std::array<token_id, gamma> read{tokens[i]};
      round[0].q = here.q;
      for (std::size_t j = 0; j < gamma; ++j) {
        round[j].next =
            draw_draft(dense_row<float>(round[j].q), std::uint32_t(i), j, noise, scratch);
        if (j + 1 == gamma) break;
        read[j + 1] = round[j].next;
        must(q.extend(std::span(&read[j + 1], 1), row), "draft");
        round[j + 1].q = probabilities(row);
      }
      must(p.extend(read, rows), "target");
      for (std::size_t j = 0; j < gamma; ++j)
        round[j].p = probabilities(std::span(rows).subspan(j * V, V));
      must(p.rollback(i), "target");
      must(q.rollback(i + 1), "draft");
      all.rounds.push_back(std::move(round));
    }
    must(p.extend(tokens.subspan(i, 1), row), "target");
    here.p = probabilities(row);
    all.positions.push_back(std::move(here));
  }
  return all;
}

// ---- the models ---------------------------------------------------------------------------------

std::vector<std::vector<token_id>> windows_of(std::span<const token_id> tokens, std::size_t n) {
  std::vector<std::vector<token_id>> all;
  if (tokens.size() < n * (context + 1)) throw error("text", "", "is too short");
  for (std::size_t w = 0; w < n; ++w) {
    const auto from = tokens.subspan(w * (tokens.size() - context - 1) / (n - 1), context + 1);
    all.emplace_back(from.begin(), from.end());
  }
  return all;
}
template <class Q, class P>
void read_texts(laboratory& l, data& d, Q& q, P& p, const std::vector<std::string>& names,
                std::size_t windows, std::size_t scored,
                const std::function<std::vector<token_id>(const std::string&)>& tokens) {
  for (const std::string& text : names) {
    const auto all = tokens(text);
    const auto of = windows_of(all, windows);
    for (std::size_t w = 0; w < windows; ++w) {
      d.windows.push_back(
          read_window(q, p, of[w], scored, 3, l.how.seed + 1000 * d.windows.size()));
      d.windows.back().set = text;
      d.windows.back().number = w;
      l.progress(0.25 * double(d.windows.size()) / double(windows * names.size()));
    }
  }
}
// The questions of texts.py, every `every`-th.
template <class Q, class P>
void read_questions(data& d, Q& q, P& p, const cpu::tokenizer& of, const std::string& path,
                    std::size_t most) {
  std::vector<std::array<std::string, 3>> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    if (second == std::string::npos) throw error(path, line, "has no answer");
    std::string text = line.substr(first + 1, second - first - 1);
    for (std::size_t at; (at = text.find("\\n")) != std::string::npos;) text.replace(at, 2, "\n");
    all.push_back({line.substr(0, first), text, line.substr(second + 1)});
  }
  if (all.empty()) throw error(path, "", "has no questions");
  const std::size_t every = std::max<std::size_t>(1, all.size() / most);
  for (std::size_t i = 0; i < all.size(); i += every) {
    auto tokens = of.encode_inside(all[i][1]);
    const auto answer = of.encode_inside(all[i][2]);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    auto one = read_window(q, p, tokens, answer.size(), 0, 0);
    one.set = all[i][0];
    one.number = i;
    one.answer = answer.size();
    d.questions.push_back(std::move(one));
  }
}

std::string variable(const char* name) {
  const char* const found = std::getenv(name);
  if (!found) throw error(name, "", "is not set");
  return found;
}
void smollm2(laboratory& l, table& out) {
  const std::string texts = variable("SPECAGG_TEXTS");
  const auto weights =
      std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(variable("SPECAGG_SMOLLM2")));
  cpu::llama p(weights, l.pool, 1024);
  cpu::draft_head head(std::make_shared<const cpu::head_weights>(
                           cpu::gguf_file::open(SPECAGG_MODELS "/smollm2-head.gguf")),
                       weights, l.pool, p.capacity());
  p.keep_hidden();
  head_source source(head, p);
  mapped_source q(source, head.weights().map);
  const cpu::tokenizer tokenizer(weights->file);
  data d;
  read_texts(l, d, q, p, {"manual", "handbook", "jargon"}, l.how.quick ? 2 : 16,
             l.how.quick ? 6 : 42, [&](const std::string& text) {
               return tokenizer.encode_inside(cli::read_text(texts + "/" + text + ".txt"));
             });
  read_questions(d, q, p, tokenizer, texts + "/questions.tsv", l.how.quick ? 8 : 100);
  all_policies(l, d, out);
}
void bundled(laboratory& l, table& out) {
  const auto of = [&](const char* model) {
    return std::make_shared<const cpu::llama_weights>(
        cpu::gguf_file::open(fmt::format("{}/{}.gguf", SPECAGG_MODELS, model)));
  };
  const auto large = of("target");
  cpu::llama p(large, l.pool, 1024), q(of("draft"), l.pool, 1024);
  const cpu::tokenizer tokenizer(large->file);
  data d;
  read_texts(l, d, q, p, {"shakespeare", "kjv"}, l.how.quick ? 2 : 24, l.how.quick ? 6 : 42,
             [&](const std::string& text) {
               return tokenizer.encode(
                   cli::read_text(SPECAGG_MODELS "/../research/text/" + text + "/test.txt"));
             });
  all_policies(l, d, out);
}

constexpr const char* header =
    "rule,policy,goal,set,number,acceptance,tv,kl,likeliest,right,accepted";
const std::vector<part<laboratory>> parts{{"frontier-bundled", false, 120, 5, header, bundled},
                                          {"frontier-smollm2", false, 600, 20, header, smollm2}};

}  // namespace
}  // namespace experiments::frontier

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> inputs;
  for (const char* model : {"draft", "target", "smollm2-head"})
    inputs.push_back(fmt::format("{}/{}.gguf", SPECAGG_MODELS, model));
  return experiments::program(
      argc, argv, "specagg-experiments-frontier",
      "What each policy costs at equal acceptance: a CSV file for each part",
      experiments::frontier::parts, inputs);
}
