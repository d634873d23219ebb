// SPDX-License-Identifier: Apache-2.0
// One position, b drafts of it: the probability that one of them is accepted, on 2,000 rows of the
// bundled models at temperature 1, for each way to propose (draft/propose.hpp), and the most that
// any verifier could accept of independent ones.
//
// usage: specagg-several-drafts
#include <cstdio>
#include <fstream>
#include <iterator>

#include <specagg/backend/cpu/llama.hpp>  // first: it puts kernel/simd.hpp before Eigen
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/audit/tree_law.hpp>
#include <specagg/kernels.hpp>

using namespace specagg;

namespace {

using row = std::vector<double>;
constexpr std::size_t positions = 2000, window = 250;  // a text is read in windows

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

// Probabilities of the model after each of the first tokens of the text.
std::vector<row> rows_of_model(const char* file, const std::string& text) {
  const auto weights = std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file));
  const auto tokens = cpu::tokenizer(weights->file).encode(text);
  std::vector<float> logits(window * weights->vocab);
  std::vector<row> rows;
  for (std::size_t at = 0; at < positions; at += window) {
    cpu::llama model(weights, std::make_shared<thread_pool>(2), window);
    if (model.extend(std::span(tokens).subspan(at, window), logits) != status::ok) return {};
    for (std::size_t i = 0; i < window; ++i) {
      const softmax_row<float> made{std::span(logits).subspan(i * weights->vocab, weights->vocab)};
      const auto p = made.normalise();
      row one(weights->vocab);
      for (std::size_t v = 0; v < one.size(); ++v) one[v] = p[v];
      rows.push_back(norm(one));
    }
  }
  return rows;
}

}  // namespace

int main() {
  std::ifstream file(SPECAGG_MODELS "/../research/text/shakespeare/test.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto q = rows_of_model(SPECAGG_MODELS "/draft.gguf", text),
             p = rows_of_model(SPECAGG_MODELS "/target.gguf", text);
  if (q.empty() || p.empty()) return 1;
  const random_streams random(1);
  std::printf("| drafts | independent | at best | `sampled` | `greedy` | `top` |\n");
  std::printf("| ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const std::size_t b : {1, 2, 4, 8}) {
    double by[5] = {};
    for (std::size_t i = 0; i < positions; ++i) {
      by[0] += independent(q[i], p[i], b);
      by[1] += optimum_of_independent(q[i], p[i], b);
      for (std::uint32_t k = 0; k < 4; ++k)
        by[2] += sampled(q[i], p[i], b, random, std::uint32_t(4 * i + k)) / 4;
      by[3] += greedy(q[i], p[i], b);
      by[4] += sum_of(p[i], likeliest(q[i], b));
    }
    std::printf("| %zu", b);
    for (const double x : by) std::printf(" | %.3f", x / positions);
    std::printf(" |\n");
  }
}
