// SPDX-License-Identifier: Apache-2.0
// One position, b drafts of it: the probability that one of them is accepted, on 2,000 rows at
// temperature 1, for each way to propose (draft/propose.hpp), and the most that any verifier could
// accept of independent ones. For one level traversal and recursive rejection accept as much.
//
// usage: specagg-several-drafts [SMOLLM2.gguf]
//        of the bundled models; or of SmolLM2 (scripts/get-model) and its head, in models/
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>

#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen
#include <specagg/backend/cpu/draft_head.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/audit/tree_law.hpp>
#include <specagg/draft/head.hpp>
#include <specagg/draft/mapped.hpp>
#include <specagg/error.hpp>
#include <specagg/kernels.hpp>

using namespace specagg;

namespace {

using row = std::vector<double>;
constexpr std::size_t positions = 2000, window = 250;  // a text is read in windows
constexpr std::size_t block = 50;  // positions that are one observation of a standard error

row norm(row w) {
  double sum = 0;
  for (const double x : w) sum += x;
  for (double& x : w) x /= sum;
  return w;
}
// What is left of p after a draft from `law` was rejected.
row residual(row p, const row& law) {
  for (std::size_t v = 0; v < p.size(); ++v) p[v] = std::max(0.0, p[v] - law[v]);
  return norm(p);
}
std::vector<std::size_t> likeliest(row q, std::size_t b) {
  std::vector<std::size_t> top;
  for (; top.size() < b; q[top.back()] = 0)
    top.push_back(std::size_t(std::ranges::max_element(q) - q.begin()));
  return top;
}
double sum_of(const row& p, const std::vector<std::size_t>& tokens) {
  double sum = 0;
  for (const std::size_t v : tokens) sum += p[v];
  return sum;
}

double independent(const row& q, row p, std::size_t b) {
  double missed = 1;
  for (; b > 0; --b, p = residual(p, q)) missed *= total_variation(p, q);
  return 1 - missed;
}
double greedy(const row& q, const row& p, std::size_t b) {
  const auto top = likeliest(q, b - 1);
  row rest = q;
  for (const std::size_t v : top) rest[v] = 0;
  rest = norm(rest);
  return 1 - total_variation(p, rest) * (1 - sum_of(residual(p, rest), top));
}
// Of one set of drafts: the probability over the verifier's coins alone.
double sampled(row q, row p, std::size_t b, const random_streams& random, std::uint32_t position) {
  double missed = 1;
  for (std::uint32_t i = 0; i < b; ++i) {
    double u = random.uniform({stream::draft, position, i});
    std::size_t y = 0;
    for (; y + 1 < q.size() && u >= q[y]; ++y) u -= q[y];
    if (q[y] == 0) return 1 - missed;  // rounding
    missed *= 1 - std::min(1.0, p[y] / q[y]);
    if (missed == 0) return 1;
    p = residual(p, q);
    q[y] = 0;
    q = norm(q);
  }
  return 1 - missed;
}

std::vector<float> memory;  // logits of a window

// The probabilities of the last `window` rows of a model that reads these tokens.
template <class Model>
std::vector<row> read(Model& model, std::span<const token_id> tokens) {
  std::vector<row> rows;
  const std::size_t V = model.vocab_size();
  memory.resize(window * V);
  if (const status s = model.extend(tokens, memory); s != status::ok)
    throw error("model", "", name(s));
  for (std::size_t i = 0; i < window; ++i) {
    const softmax_row<float> made{std::span(memory).subspan(i * V, V)};
    const auto p = normalise(made);
    row one(V);
    for (std::size_t v = 0; v < V; ++v) one[v] = p[v];
    rows.push_back(norm(one));
  }
  return rows;
}
auto weights_of(const std::string& file) {
  return std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file));
}
const auto threads = std::make_shared<thread_pool>(2);

// f(q, p) of each window, rows after its tokens.
template <class F>
void for_each_window_of_bundled(const std::string& text, F&& f) {
  const auto small = weights_of(SPECAGG_MODELS "/draft.gguf"),
             large = weights_of(SPECAGG_MODELS "/target.gguf");
  const auto tokens = cpu::tokenizer(large->file).encode(text);
  for (std::size_t at = 0; at < positions; at += window) {
    cpu::llama q(small, threads, window), p(large, threads, window);
    const auto here = std::span(tokens).subspan(at, window);
    f(read(q, here), read(p, here));
  }
}
// A head has its first row after two tokens, of which the target has read the first.
template <class F>
void for_each_window_of_smollm2(const std::string& file, const std::string& text, F&& f) {
  const auto weights = weights_of(file);
  const auto head_weights = std::make_shared<const cpu::head_weights>(
      cpu::gguf_file::open(SPECAGG_MODELS "/smollm2-head.gguf"));
  const auto tokens = cpu::tokenizer(weights->file).encode_inside(text);
  for (std::size_t at = 0; at < positions; at += window) {
    cpu::llama p(weights, threads, window + 1);
    cpu::draft_head head(head_weights, weights, threads, p.capacity());
    p.keep_hidden();
    head_source source(head, p);
    mapped_source q(source, head.weights().map);
    const auto here = std::span(tokens).subspan(at, window + 1);
    const auto of_target = read(p, here);
    f(read(q, here), of_target);
  }
}

using five = std::array<double, 5>;
five accepted(const row& q, const row& p, std::size_t b, std::uint32_t position) {
  static const random_streams random(1);
  double drawn = 0;
  for (std::uint32_t k = 0; k < 4; ++k) drawn += sampled(q, p, b, random, 4 * position + k) / 4;
  return {independent(q, p, b), optimum_of_independent(q, p, b), drawn, greedy(q, p, b),
          sum_of(p, likeliest(q, b))};
}

void run(const char* model) {
  std::ifstream file(SPECAGG_MODELS "/../research/text/shakespeare/test.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  constexpr std::size_t drafts[] = {1, 2, 4, 8};
  five sum[4] = {}, squares[4] = {};
  std::uint32_t position = 0;
  const auto add = [&](const std::vector<row>& q, const std::vector<row>& p) {
    for (std::size_t begin = 0; begin < window; begin += block) {
      five mean[4] = {};
      for (std::size_t i = begin; i < begin + block; ++i, ++position)
        for (std::size_t j = 0; j < 4; ++j) {
          const five each = accepted(q[i], p[i], drafts[j], position);
          for (std::size_t k = 0; k < 5; ++k) mean[j][k] += each[k] / block;
        }
      for (std::size_t j = 0; j < 4; ++j)
        for (std::size_t k = 0; k < 5; ++k)
          sum[j][k] += mean[j][k], squares[j][k] += mean[j][k] * mean[j][k];
    }
  };
  if (model) for_each_window_of_smollm2(model, text, add);
  else for_each_window_of_bundled(text, add);
  std::printf("| b | independent | at best | `sampled` | `greedy` | `top` |\n");
  std::printf("| ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (std::size_t j = 0; j < 4; ++j) {
    constexpr double n = positions / block;
    std::printf("| %zu", drafts[j]);
    for (std::size_t k = 0; k < 5; ++k) {
      const double mean = sum[j][k] / n;
      std::printf(" | %.3f±%.3f", mean, std::sqrt((squares[j][k] / n - mean * mean) / (n - 1)));
    }
    std::printf(" |\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : nullptr);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "specagg-several-drafts: %s\n", specagg::printable(e.what()).c_str());
    return 2;
  }
}
