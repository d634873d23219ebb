// SPDX-License-Identifier: Apache-2.0
// Runs each hot kernel once on fixed rows, for scripts/count-instructions to count its
// instructions.
// usage: counts         131,072 tokens (verification: 32,000); under callgrind, which counts
//        counts step    a 64th of that (a 16th); counts by single-stepping itself, a signal for
//                       each instruction, and prints "kernel instructions" (for AVX-512, which
//                       valgrind does not know; x86-64 Linux)
// A kernel is a function count_<name>: callgrind finds it by that name.
#include <specagg/decoders.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#if defined(__x86_64__) && defined(__linux__)
#include <csignal>
#include <ucontext.h>
#endif

using namespace specagg;

namespace {

constexpr std::uint32_t drafts = 4;
struct rows {
  std::vector<float> q, p;
  rows(std::size_t size, std::uint64_t seed) : q(size), p(size) {
    const auto noise = [&] {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      return float(seed >> 40) * 0x1p-24f;
    };
    for (std::size_t v = 0; v < size; ++v) {
      p[v] = 8 * (noise() + noise() - noise());
      q[v] = p[v] + noise();
    }
  }
};
std::vector<rows> wide, narrow;  // of one position; of each drafted position and the one after
std::vector<float> q, p;         // probabilities of wide[0]
std::vector<token_id> drafted;
std::vector<double> scratch;
volatile double sink;

std::vector<float> probabilities(const std::vector<float>& logits) {
  const auto row = normalise(softmax_row<float>(logits));
  if (row.why() != status::ok) std::abort();
  std::vector<float> x(logits.size());
  for (std::size_t v = 0; v < x.size(); ++v) x[v] = row[v];
  return x;
}

template <class Policy>
void verify(const Policy& policy) {
  random_streams chooser(3);
  emission out[drafts + 1];
  const auto verdict = verify_token(
      {.tokens = drafted},
      rows_of(drafts + 1, [](std::size_t j) { return softmax_row<float>(narrow[j].q); }),
      rows_of(drafts + 1, [](std::size_t j) { return softmax_row<float>(narrow[j].p); }), policy,
      chooser, out, scratch);
  if (verdict.accepted != drafts) std::abort();  // or another draft would be another amount of work
  sink = out[drafts].log_pi;
}
void filter(const sampling& how) {
  const auto row = normalise(processed_row<float>(wide[0].p, how));
  if (row.why() != status::ok) std::abort();
  sink = row[0];
}

}  // namespace

#define KERNEL(name)                                \
  extern "C" [[gnu::noinline]] void count_##name(); \
  extern "C" [[gnu::noinline]] void count_##name()

KERNEL(log_sum_exp) {
#if defined(SPECAGG_BROKEN)  // what the comparison must find: a 25th of the row is read twice
  sink = log_sum_exp(std::span(wide[0].p).first(wide[0].p.size() / 25));
#endif
  sink = log_sum_exp(wide[0].p);
}
KERNEL(total_variation) {
  const auto rq = normalise(dense_row<float>(q)), rp = normalise(dense_row<float>(p));
  if (rq.why() != status::ok || rp.why() != status::ok) std::abort();
  sink = total_variation(row_pair(rq, rp));
}
KERNEL(residual) {
  const auto rq = normalise(softmax_row<float>(wide[0].q)),
             rp = normalise(softmax_row<float>(wide[0].p));
  if (rq.why() != status::ok || rp.why() != status::ok) std::abort();
  const row_pair pair(rq, rp);
  sink =
      inverse_transform(weigh(pair, [](auto at) { return positive(at.p - at.q); }, scratch), 0.5);
}
KERNEL(verify_lossless) { verify(lossless{}); }
KERNEL(verify_token_v3) { verify(token_v3{0.3}); }
KERNEL(top_k) { filter({.temperature = 0.8, .top_k = 50}); }
KERNEL(top_p) { filter({.temperature = 0.8, .top_p = 0.9}); }
KERNEL(greedy) { filter({.temperature = 0}); }
KERNEL(race) {
  const auto row = normalise(softmax_row<float>(wide[0].p));
  if (row.why() != status::ok) std::abort();
  sink = race(row, coupled_noise(5), 0);
}

#if defined(__x86_64__) && defined(__linux__)
namespace {
volatile std::size_t steps;
greg_t last;
// after each instruction; after each turn of a repeated one
void trapped(int, siginfo_t*, void* context) {
  const greg_t at = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  steps = steps + (at != last);
  last = at;
}
std::size_t count_steps(void (*kernel)()) {
  struct sigaction action{};
  action.sa_sigaction = trapped;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
  steps = 0;
  asm volatile(
      "lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
          : "memory", "cc");
  kernel();
  asm volatile(
      "lea -128(%%rsp), %%rsp; pushfq; andq $-257, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
          : "memory", "cc");
  return steps;
}
}  // namespace
#else
static std::size_t count_steps(void (*)()) { std::abort(); }
#endif

int main(int argc, char** argv) {
  const bool step = argc > 1 && std::strcmp(argv[1], "step") == 0;
  wide.emplace_back(step ? 131072 / 64 : 131072, 1);
  for (std::uint32_t j = 0; j <= drafts; ++j) narrow.emplace_back(step ? 32000 / 16 : 32000, j + 2);
  q = probabilities(wide[0].q);
  p = probabilities(wide[0].p);
  for (std::uint32_t j = 0; j < drafts; ++j) {  // tokens that are accepted for certain: q(y) < p(y)
    const auto best =
        std::max_element(narrow[j].p.begin(), narrow[j].p.end()) - narrow[j].p.begin();
    narrow[j].q[std::size_t(best)] = narrow[j].p[std::size_t(best)];
    drafted.push_back(token_id(best));
  }
  scratch.resize(verify_scratch(131072));

#define RUN(name)                                                      \
  if (step) std::printf("%s %zu\n", #name, count_steps(count_##name)); \
  else count_##name();
  RUN(log_sum_exp)
  RUN(total_variation)
  RUN(residual)
  RUN(verify_lossless) RUN(verify_token_v3) RUN(top_k) RUN(top_p) RUN(greedy) RUN(race)
}
