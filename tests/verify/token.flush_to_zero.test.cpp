// SPDX-License-Identifier: Apache-2.0
// Engines often run with denormals flushed to zero; softmax rows must not notice.
#include <specagg/policy/lossless.hpp>
#include <specagg/verify/token.hpp>

#include <vector>

#include "support/catch.hpp"
#if defined(__SSE2__)
#include <xmmintrin.h>

using namespace specagg;

namespace {

struct result {
  std::size_t emitted;
  std::vector<token_id> tokens;
  std::vector<double> logs;
  bool operator==(const result&) const = default;
};
// Logits spread so widely that most probabilities are denormal or below.
result run(std::uint64_t seed) {
  constexpr std::size_t size = 3000;
  std::vector<float> q(2 * size), p(3 * size);
  const random_streams noise(seed);
  for (std::size_t i = 0; i < p.size(); ++i) {
    p[i] = float(120 * noise.uniform({stream::side, std::uint32_t(i), 0}));
    if (i < q.size()) q[i] = p[i] - float(noise.uniform({stream::side, std::uint32_t(i), 1}));
  }
  const std::vector<token_id> y{token_id(seed % size), token_id(7 * seed % size)};
  std::vector<emission> out(3);
  std::vector<double> scratch(verify_scratch(size));
  random_streams chooser(seed);
  const auto v = verify_token(
      {.tokens = y},
      rows_of(y.size() + 1,
              [&](std::size_t j) { return softmax_row<float>(q.data() + j * size, size, 0.9); }),
      rows_of(y.size() + 1,
              [&](std::size_t j) { return softmax_row<float>(p.data() + j * size, size, 0.9); }),
      lossless{}, chooser, out, scratch);
  result r{v.emitted, {}, {}};
  for (std::size_t i = 0; i < v.emitted; ++i) {
    r.tokens.push_back(out[i].token);
    r.logs.push_back(out[i].log_pi);
  }
  return r;
}

}  // namespace

TEST_CASE("flush-to-zero and denormals-are-zero change no token and no bit of a log-probability") {
  std::vector<result> plain, flushed;
  for (std::uint64_t seed = 0; seed < 200; ++seed) plain.push_back(run(seed));
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);
  volatile float tiny = 1e-40f, one = 1;
  volatile float product = tiny * one;
  const bool flushes = product == 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) flushed.push_back(run(seed));
  _mm_setcsr(mode);
  CHECK(flushes);
  CHECK((plain == flushed));
}
#endif
