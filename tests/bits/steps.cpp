// SPDX-License-Identifier: Apache-2.0
// Prints hashes of more than 10^5 random verification steps: the same lines for every instruction
// set, compiler and
// number of threads.   steps [threads]
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include <specagg/thread_pool.hpp>
#include <specagg/decoders.hpp>

using namespace specagg;

namespace {

constexpr std::size_t batch = 200, gamma = 3;

// Logits k / 2^8 for integers k of a counter-based generator: exact floats on every machine.
void fill(std::span<float> logits, std::uint32_t round, std::uint64_t which) {
  for (std::size_t v = 0; v < logits.size(); v += 4) {
    const philox_block r = philox({std::uint32_t(v), round, 0, 0}, which);
    for (std::size_t i = 0; i < 4 && v + i < logits.size(); ++i)
      logits[v + i] = float(int(r[i] % 2048) + int(r[i] >> 21)) / 256;
  }
}

template <class Policy, class Verifier>
void print_steps(const char* name, std::uint32_t rounds, const Policy& policy,
                 const Verifier& verifier, thread_pool& pool) {
  std::uint64_t h = 0xcbf29ce484222325;
  const auto add = [&](std::uint64_t x) {
    for (int i = 0; i < 8; ++i) h = (h ^ (x >> 8 * i & 0xff)) * 0x100000001b3;
  };
  std::vector<verdict> verdicts(batch);
  std::vector<emission> out(batch * (gamma + 1));
  std::vector<token_id> drafted(batch * gamma);
  std::vector<float> q, p;
  std::size_t accepted = 0;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const std::size_t vocabulary = 1 + round * 37 % 90;
    const auto verifier_of = [&](std::size_t i) {
      if constexpr (requires { verifier(std::uint64_t(0)); }) return verifier(round * batch + i);
      else return verifier;
    };
    std::vector<double> scratch(batch * verify_scratch(vocabulary, gamma));
    q.resize(batch * (gamma + 1) * vocabulary);
    p.resize(q.size());
    fill(q, round, 1);
    fill(p, round, 2);
    const auto row = [&](const std::vector<float>& all, std::size_t i, std::size_t j) {
      const sampling how{.temperature = 0.25 * double(1 + i % 8),
                         .top_k = std::uint32_t(i % 3 * 10)};
      return processed_row<float>(
          std::span(all).subspan((i * (gamma + 1) + j) * vocabulary, vocabulary), how);
    };
    for (std::size_t i = 0; i < batch; ++i)
      for (std::size_t j = 0; j < gamma; ++j) {
        auto q_row = row(q, i, j);
        random_streams chooser(7, round * batch + i);
        drafted[i * gamma + j] = verifier_of(i).propose(q_row, 0, j, chooser, scratch);
      }
    const auto request = [&](std::size_t i) {
      return verification{draft{.tokens = std::span(drafted).subspan(i * gamma, i % (gamma + 1))},
                          rows_of(gamma + 1, [&, i](std::size_t j) { return row(q, i, j); }),
                          rows_of(gamma + 1, [&, i](std::size_t j) { return row(p, i, j); }),
                          policy,
                          random_streams(7, round * batch + i),
                          std::span(out).subspan(i * (gamma + 1), gamma + 1)};
    };
    verify_batch(request, verdicts, scratch, verifier_of, pool);
    for (std::size_t i = 0; i < batch; ++i) {
      add(verdicts[i].accepted);
      add(verdicts[i].emitted);
      add(std::uint64_t(verdicts[i].why));
      accepted += verdicts[i].accepted;
      for (std::size_t k = 0; k < verdicts[i].emitted; ++k) {
        const emission& e = out[i * (gamma + 1) + k];
        add(std::uint64_t(e.token));
        add(std::uint64_t(e.from));
        add(std::bit_cast<std::uint64_t>(e.log_pi));
      }
    }
  }
  std::printf("%s: %zu steps, %zu accepted, %016llx\n", name, batch * rounds, accepted,
              static_cast<unsigned long long>(h));
}

}  // namespace

int main(int count, char** arguments) {
  thread_pool pool(count > 1 ? unsigned(std::atoi(arguments[1])) : 1);
  print_steps("lossless, token", 500, lossless{}, token_verifier{}, pool);
  print_steps("token-v3, block", 50, token_v3{0.3}, block_verifier{}, pool);
  print_steps("opt, match", 50, opt{0.1}, match_verifier{}, pool);
  print_steps(
      "ensemble, coupled", 50, ensemble{0.4},
      [](std::uint64_t r) { return coupled_verifier{coupled_noise(7, r)}; }, pool);
}
