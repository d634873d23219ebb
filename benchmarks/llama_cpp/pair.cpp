// SPDX-License-Identifier: Apache-2.0
// Two models of different families: how often the target's policy keeps a token that the draft
// model draws over the mapped vocabulary, at each position of a text.
//   pair TEXT TARGET DRAFT [POSITIONS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <specagg/backend/llama_cpp/model.hpp>
#include <specagg/backend/llama_cpp/source.hpp>
#include <specagg/backend/llama_cpp/tokenizer.hpp>
#include <specagg/draft/mapped.hpp>
#include <specagg/draft/retokenised.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

namespace {

// in a call; tokens before the first of which the rest is forgotten
constexpr std::size_t rows = 16, context = 256;

struct opened {
  std::shared_ptr<llama_model> model;
  std::shared_ptr<llama_context> in;
  llama_cpp::tokenizer tokens;
  llama_cpp::source source;
  explicit opened(const std::string& file)
      : model(llama_cpp::load_model(file)), in(make(file)), tokens(model), source(in.get()) {}
  std::shared_ptr<llama_context> make(const std::string& file) const {
    auto how = llama_context_default_params();
    how.n_ctx = 4 * context;
    how.n_batch = how.n_ubatch = 128;
    how.n_threads = how.n_threads_batch = 1;
    how.swa_full = true;
    return llama_cpp::make_context(model, how, file);
  }
};
struct inside {
  const llama_cpp::tokenizer* own;
  std::vector<token_id> operator()(std::string_view text) const {
    try {
      return own->encode_inside(text);
    } catch (const error&) {
      return {};
    }
  }
};

struct result {
  const char* policy;
  double kept = 0, overlap = 0;  // tokens kept; sum of 1 - TV(q, pi)
};

void check(status s, const char* what) {
  if (s != status::ok) throw error(what, "", std::string(name(s)));
}

// One drafted token, verified.
template <class Policy>
void measure(result& to, const Policy& policy, std::span<const float> q, std::span<const float> p,
             std::size_t position, std::span<double> scratch) {
  random_streams random(1);
  const auto row = [](std::span<const float> logits) {
    return processed_row<float>(logits, sampling{});
  };
  const auto start = std::uint32_t(position);
  const std::vector<token_id> drafted{draw_draft(row(q), start, 0, random, scratch)};
  std::vector<emission> out(2);
  std::vector<draft_acceptance> acceptance(1);
  const auto v = verify_token(
      draft{.tokens = drafted, .start = start, .bonus = false, .acceptances = acceptance},
      rows_of(1, [&](std::size_t) { return row(q); }),
      rows_of(1, [&](std::size_t) { return row(p); }), policy, random, out, scratch);
  check(v.why, to.policy);
  to.kept += double(v.accepted);
  to.overlap += acceptance[0].of_row;
}

void run(const std::string& text, const std::string& target_file, const std::string& draft_file,
         std::size_t most) {
  opened target(target_file), drafter(draft_file);
  const auto theirs = target.tokens.texts(), own = drafter.tokens.texts();
  const auto map = map_of_equal_tokens(own, theirs);
  auto begin = drafter.tokens.beginning();
  if (begin.empty() && drafter.tokens.bos() != no_token) begin.push_back(drafter.tokens.bos());
  retokenising_source<llama_cpp::source, inside> reader(
      drafter.source, {theirs, own, map, {&drafter.tokens}, begin});
  mapped_source<decltype(reader)> mapped(reader, map);
  const auto tokens = target.tokens.encode(text);
  const std::size_t V = target.source.vocab_size();
  std::vector<float> p(rows * V), q(rows * V);
  std::vector<double> scratch(verify_scratch(V, 1));
  result results[] = {{"lossless"}, {"ensemble, lambda 0.5"}, {"token-v3, alpha 0.3"}};
  std::size_t positions = 0;
  for (std::size_t at = 0; at + rows < tokens.size() && positions < most; at += rows) {
    if (at % context == 0) {
      check(target.source.rollback(0), "target");
      check(mapped.rollback(0), "draft");
    }
    const auto part = std::span(tokens).subspan(at, rows);
    check(target.source.extend(part, p), "target");
    // The draft model reads the same text from where it was emptied.
    check(mapped.extend(part, q), "draft");
    for (std::size_t k = at % context == 0; k < rows && positions < most; ++k, ++positions) {
      const auto row = [&](const std::vector<float>& of) {
        return std::span(of).subspan(k * V, V);
      };
      measure(results[0], lossless{}, row(q), row(p), at + k, scratch);
      measure(results[1], ensemble{0.5}, row(q), row(p), at + k, scratch);
      measure(results[2], token_v3{0.3}, row(q), row(p), at + k, scratch);
    }
  }
  if (positions == 0) throw error("text", "", "is too short");
  std::printf(
      "%zu of the draft's %zu tokens are mapped, with %.4f of its probability; %zu positions\n\n",
      map.size(), map.draft_size(), mapped.mass(), positions);
  std::printf("| policy | drafted tokens kept | 1 - TV(q, pi) |\n| --- | ---: | ---: |\n");
  for (const result& r : results)
    std::printf("| %s | %.3f | %.3f |\n", r.policy, r.kept / double(positions),
                r.overlap / double(positions));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: pair TEXT TARGET DRAFT [POSITIONS]\n");
    return 2;
  }
  try {
    std::ifstream in(argv[1]);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    run(text, argv[2], argv[3], argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 2000);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "pair: %s\n", e.what());
    return 2;
  }
}
