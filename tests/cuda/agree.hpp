// SPDX-License-Identifier: Apache-2.0
// Random batches, verified by the device (or by its emulator) and by the CPU: every token, status,
// log-probability and overlap must have the same bits. Rows of every kind that goes wrong, ragged
// drafts, masks and parameters of each request's own included.
#pragma once
#if !defined(__CUDACC__)
#define SPECAGG_SCALAR  // the device's vectors are pairs of plain numbers
#endif
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <specagg/backend/cuda/verify.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

// nvcc takes half a minute to two minutes for the two kernels of each policy, verifier and type. So
// it compiles few of them, unless -DEVERY_KERNEL says otherwise (scripts/gpu-check --every-kernel).
#ifndef FEW_KERNELS
#if defined(__CUDACC__) && !defined(EVERY_KERNEL)
#define FEW_KERNELS 1
#else
#define FEW_KERNELS 0
#endif
#endif

// Memory of the device, filled from a vector and read back into one.
template <class T>
class on_device {
 public:
  explicit on_device(const std::vector<T>& x) : size_(x.size()) {
    check(cudaMalloc(&data_, std::max<std::size_t>(size_, 1) * sizeof(T)));
    if (size_) check(cudaMemcpy(data_, x.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  on_device(const on_device&) = delete;
  ~on_device() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> read() const {
    std::vector<T> x(size_);
    if (size_) check(cudaMemcpy(x.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
  }
  static void check(cudaError_t e) {
    if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
  }

 private:
  std::size_t size_;
  void* data_ = nullptr;
};

// A lossless policy for all requests of a batch; with FEW_KERNELS one for each, as agree() has.
class lossless_for_all {
 public:
  explicit lossless_for_all(std::size_t requests)
      : of_each_(std::vector<specagg::lossless>(requests)) {}
  auto operator()() const {
    if constexpr (FEW_KERNELS) return static_cast<const specagg::lossless*>(of_each_.data());
    else return specagg::lossless{};
  }

 private:
  on_device<specagg::lossless> of_each_;
};

// Whether there is a device to test on; says so where there is none.
inline bool have_device() {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess && n > 0) return true;
  WARN("skipped: this test needs a CUDA device");
  return false;
}

// A float as S stores it (cut off, not rounded).
template <class S>
S stored(float x) {
  const auto b = std::bit_cast<std::uint32_t>(x);
  if constexpr (std::is_same_v<S, float>) return x;
  else if constexpr (std::is_same_v<S, specagg::bf16>) return {std::uint16_t(b >> 16)};
  else {
    const std::uint32_t sign = b >> 16 & 0x8000, e = b >> 23 & 0xff, m = b >> 13 & 0x3ff;
    if (e == 0xff) return {std::uint16_t(sign | 0x7c00 | m)};
    if (e >= 143) return {std::uint16_t(sign | 0x7bff)};
    return {std::uint16_t(e <= 112 ? sign : sign | (e - 112) << 10 | m)};
  }
}

// edge: every other row is of this kind (example::fill); or some are of some of the first 14
struct shape {
  std::size_t requests, vocabulary, most;
  std::size_t edge = edges;
  static constexpr std::size_t edges = 17;
};

template <class S>
struct example {
  specagg::cuda::batch<S> size;
  std::vector<S> draft, target;
  std::vector<specagg::token_id> tokens;
  std::vector<std::uint32_t> start, draft_mask, target_mask;
  std::vector<std::uint64_t> seed, request;
  std::vector<double> temperature;
  std::vector<specagg::cuda::row_range> draft_rows, target_rows;
  bool masked;
  // elements before the first row: rows lie at any address
  std::size_t draft_offset, target_offset;

  specagg::draft drafted(std::size_t r) const {
    return {.tokens = std::span(tokens).subspan(r * size.most, size.most),
            .start = start[r],
            .end_of_text = size.end_of_text};
  }
  example(const shape& s, numbers& random, bool coupled)
      : masked(random.below(4) == 0),
        draft_offset(random.below(2) ? random.below(4) : 0),
        target_offset(random.below(2) ? random.below(4) : 0) {
    using namespace specagg;
    size.requests = s.requests;
    size.vocabulary = s.vocabulary;
    size.most = s.most;
    size.draft_stride = s.vocabulary + random.below(4);
    size.target_stride = (s.vocabulary + 3) / 4 * 4;
    size.end_of_text = random.below(2) ? token_id(random.below(s.vocabulary)) : no_token;
    const std::size_t each = s.most + 1, rows = s.requests * each, words = (s.vocabulary + 31) / 32;
    size.draft_count = size.target_count = rows;
    draft.resize(draft_offset + rows * size.draft_stride);
    target.resize(target_offset + rows * size.target_stride);
    draft_mask.resize(rows * words);
    target_mask.resize(rows * words);
    for (auto* mask : {&draft_mask, &target_mask})
      for (auto& word : *mask) word = random.word() | random.word();
    // the rows of request r lie where request `place` would have them
    for (std::size_t r = 0; r < s.requests; ++r) {
      const std::size_t place = s.requests - 1 - r;
      // Some requests lack a row: the draft's of the bonus, or the target's second half.
      draft_rows.push_back({std::uint32_t(place * each), std::uint32_t(each - (r % 7 == 3))});
      target_rows.push_back(
          {std::uint32_t(r * each), std::uint32_t(r % 13 == 6 ? each / 2 : each)});
      start.push_back(std::uint32_t(random.below(1000)));
      seed.push_back(random.word());
      request.push_back(std::uint64_t(random.word()) << 20);
      static constexpr double invalid = std::numeric_limits<double>::quiet_NaN();
      static constexpr double temperatures[] = {1, 1, 1, 0.6, 2, 0, 1e-42, 0.05, 1e-6, -1, invalid};
      temperature.push_back(temperatures[random.below(random.below(4) == 0 ? 11 : 6)]);
      for (std::size_t j = 0; j < each; ++j) fill(random, r, j, s.edge);
    }
    tokens.assign(s.requests * s.most, no_token);
    std::vector<double> scratch(verify_scratch(s.vocabulary));
    for (std::size_t r = 0; r < s.requests; ++r) {
      const std::size_t g = random.below(4) == 0 ? random.below(s.most + 1) : s.most;
      random_streams chooser(seed[r], request[r]);
      for (std::uint32_t j = 0; j < g; ++j) {
        const std::vector<S> logits = draft_copy(r, j);
        const auto q = normalise(row(logits, r));
        token_id y = token_id(random.below(s.vocabulary));
        if (random.below(20) == 0)
          y = random.below(2) ? -5 : token_id(s.vocabulary + random.below(3));
        else if (random.below(10) != 0 && q.why() == status::ok)
          y = coupled ? race(q, coupled_noise(seed[r], request[r]), start[r] + j)
                      : draw(q, {stream::draft, start[r] + j, start[r]}, chooser, scratch);
        tokens[r * s.most + j] = y;
      }
    }
  }

  // What the CPU sees: the row with its mask applied.
  std::vector<S> draft_copy(std::size_t r, std::size_t j) const {
    return copy(draft, draft_offset, size.draft_stride, draft_mask, draft_rows[r].first + j);
  }
  std::vector<S> target_copy(std::size_t r, std::size_t j) const {
    return copy(target, target_offset, size.target_stride, target_mask, target_rows[r].first + j);
  }
  specagg::processed_row<S> row(const std::vector<S>& logits, std::size_t r) const {
    return {std::span<const S>(logits), {.temperature = temperature[r]}};
  }

 private:
  std::vector<S> copy(const std::vector<S>& from, std::size_t offset, std::size_t stride,
                      const std::vector<std::uint32_t>& mask, std::size_t i) const {
    const std::size_t n = size.vocabulary;
    const auto begin = from.begin() + std::ptrdiff_t(offset + i * stride);
    std::vector<S> x(begin, begin + std::ptrdiff_t(n));
    for (std::size_t v = 0; masked && v < n; ++v)
      if (!(mask[i * ((n + 31) / 32) + v / 32] >> v % 32 & 1)) x[v] = stored<S>(-INFINITY);
    return x;
  }
  void fill(numbers& random, std::size_t r, std::size_t j, std::size_t edge) {
    const std::size_t n = size.vocabulary;
    S* q = draft.data() + draft_offset + (draft_rows[r].first + j) * size.draft_stride;
    S* p = target.data() + target_offset + (target_rows[r].first + j) * size.target_stride;
    const double spread = random.below(2) ? 3 : 12, apart = random.below(2) ? 0.3 : 3,
                 offset = 20 * random.bell();
    // the second block so far above the others that the order of a sum of doubles shows
    const bool uneven = n > 2048 && (r + j) % 3 == 0;
    for (std::size_t v = 0; v < n; ++v) {
      const double l = offset + spread * random.bell();
      const float above = uneven && v / 1024 == 1 ? 22 : 0;
      p[v] = stored<S>(float(l) + above);
      q[v] = stored<S>(float(l + apart * random.bell()) + above);
    }
    const std::size_t v = random.below(n), kind = random.below(30);  // mostly nothing
    if (edge == shape::edges && kind < 14) make_edge(kind, q, p, v);
    if (edge < shape::edges && (r + j) % 2) make_edge(edge, q, p, v);
  }
  void make_edge(std::size_t kind, S* q, S* p, std::size_t v) {
    const std::size_t n = size.vocabulary;
    switch (kind) {
      // p = q
      case 0: std::copy_n(p, n, q); break;
      // disjoint
      case 1:
        for (std::size_t i = 0; i < n; ++i) (i % 2 ? p : q)[i] = stored<S>(-INFINITY);
        break;
      // one-hot
      case 2: p[v] = stored<S>(6e4f); break;
      case 3: q[v] = stored<S>(6e4f); break;
      case 4: p[v] = stored<S>(std::nanf("")); break;
      case 5: q[v] = stored<S>(INFINITY); break;
      case 6: std::fill_n(p, n, stored<S>(-INFINITY)); break;
      case 7: std::fill_n(q, v, stored<S>(-INFINITY)); break;
      // uniform
      case 8:
        std::fill_n(p, n, stored<S>(2.5f));
        std::fill_n(q, n, stored<S>(-3.f));
        break;
      // the maximum moves on and on
      case 9:
        for (std::size_t i = 0; i < n; ++i) p[i] = stored<S>(float(i));
        break;
      case 10: q[v] = stored<S>(std::nanf("")); break;
      // Blocks whose sums have other units (at temperature 1 between 77 and 78), near each other
      // and far; and rows beyond all units.
      case 11:
        for (std::size_t i = 0; i < n; ++i) {
          static constexpr float blocks[] = {74, 77, 0};
          p[i] = stored<S>(blocks[i / 1024 % 3] + float(i % 7) / 2);
        }
        break;
      case 12:
        for (std::size_t i = 0; i < n; ++i) p[i] = stored<S>(1e6f + float(i % 9));
        break;
      case 13:
        for (std::size_t i = 0; i < n; ++i) p[i] = stored<S>(-3e38f), q[i] = stored<S>(-1e6f);
        break;
      case 14:
        for (std::size_t i = 0; i < n; ++i) p[i] = stored<S>(i % 7 == 3 ? 3e38f : 1e38f);
        break;
      // one token alone, and the same of the draft
      case 15:
        std::fill_n(p, n, stored<S>(-INFINITY));
        p[v] = stored<S>(-4.f);
        break;
      case 16:
        std::fill_n(q, n, stored<S>(-INFINITY));
        q[v] = stored<S>(5.f);
        break;
      default: break;
    }
  }
};

// Counts what has been compared, so that a test can say that it saw everything.
struct tally {
  std::size_t steps = 0, rejected = 0, bonuses = 0, given = 0;  // given: bonuses by the caller
  std::map<specagg::status, std::size_t> statuses;
};

inline bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

// What a verifier says of a request.
struct round_of_one {
  specagg::verdict said;
  std::span<const specagg::emission> emissions;
  std::span<const specagg::draft_acceptance> acceptances;
};

// Request r on the CPU.
template <class S, class Policy, class CpuVerifier>
specagg::verdict verify_here(const example<S>& e, std::size_t r, const Policy& policy,
                             const CpuVerifier& cpu_verifier, std::span<specagg::emission> out,
                             std::span<specagg::draft_acceptance> acceptances) {
  using namespace specagg;
  std::vector<double> scratch(verify_scratch(e.size.vocabulary, e.size.most));
  std::vector<std::vector<S>> copies;
  copies.reserve(8 * (e.size.most + 1));  // rows are views
  const auto q_rows = rows_of(e.draft_rows[r].count, [&](std::size_t j) {
    return e.row(copies.emplace_back(e.draft_copy(r, j)), r);
  });
  const auto p_rows = rows_of(e.target_rows[r].count, [&](std::size_t j) {
    return e.row(copies.emplace_back(e.target_copy(r, j)), r);
  });
  draft drafted = e.drafted(r);
  drafted.acceptances = acceptances;
  random_streams chooser(e.seed[r], e.request[r]);
  return cpu_verifier(e.seed[r], e.request[r])
      .verify(drafted, q_rows, p_rows, policy, chooser, out, std::span(scratch));
}

inline void check_same(const round_of_one& got, const round_of_one& due, tally& seen) {
  using namespace specagg;
  const verdict& v = due.said;
  CAPTURE(name(v.why), name(got.said.why), v.accepted, v.emitted);
  REQUIRE(got.said.accepted == v.accepted);
  REQUIRE(got.said.emitted == v.emitted);
  REQUIRE(got.said.why == v.why);
  REQUIRE(got.said.ended == v.ended);
  for (std::size_t i = 0; i < v.emitted; ++i) {
    const emission &a = got.emissions[i], &c = due.emissions[i];
    CAPTURE(i, a.token, c.token, a.log_pi, c.log_pi, a.log_p, c.log_p);
    REQUIRE((a.token == c.token && a.from == c.from && a.why == c.why));
    REQUIRE((same_bits(a.log_pi, c.log_pi) && same_bits(a.log_p, c.log_p)));
    ++seen.statuses[c.why];
  }
  for (std::size_t i = 0; i < due.acceptances.size(); ++i) {
    const draft_acceptance &a = got.acceptances[i], &c = due.acceptances[i];
    CAPTURE(i, a.of_row, c.of_row, a.of_token, c.of_token);
    REQUIRE((same_bits(a.of_row, c.of_row) && same_bits(a.of_token, c.of_token)));
  }
  seen.steps += v.emitted + (v.why != status::ok);
  ++seen.statuses[v.why];
  seen.rejected += v.emitted > 0 && due.emissions[v.emitted - 1].from == origin::residual;
  seen.bonuses += v.emitted > 0 && due.emissions[v.emitted - 1].from == origin::bonus;
}

// One batch on both. `cpu_verifier(seed, request)` is the CPU's; policies: of each request its own.
template <class S, class Policy, class Verifier, class CpuVerifier>
void agree(const shape& s, std::uint64_t seed, const std::vector<Policy>& choices,
           const Verifier& verifier, const CpuVerifier& cpu_verifier, tally& seen) {
  using namespace specagg;
  numbers random(seed);
  constexpr bool coupled = is_coupled<Verifier>;
  const example<S> e(s, random, coupled);
  const bool want_acceptances = random.below(2);
  std::vector<Policy> policies;
  for (std::size_t r = 0; r < s.requests; ++r)
    policies.push_back(choices[random.below(choices.size())]);

  const on_device draft(e.draft), target(e.target);
  const on_device tokens(e.tokens);
  const on_device start(e.start), draft_mask(e.draft_mask), target_mask(e.target_mask);
  const on_device seeds(e.seed), request(e.request);
  const on_device temperature(e.temperature);
  const on_device draft_rows(e.draft_rows), target_rows(e.target_rows);
  const on_device device_policies(policies);
  const std::size_t each = s.most + 1;
  const on_device verdicts(std::vector<verdict>(s.requests));
  const on_device emissions(std::vector<emission>(s.requests * each));
  const on_device acceptances(std::vector<draft_acceptance>(s.requests * s.most));
  specagg::cuda::batch<S> b = e.size;
  b.draft = draft.data() + e.draft_offset;
  b.target = target.data() + e.target_offset;
  b.tokens = tokens.data();
  b.start = start.data();
  b.seed = seeds.data();
  b.request = request.data();
  b.temperature = temperature.data();
  b.draft_rows = draft_rows.data();
  b.target_rows = target_rows.data();
  if (e.masked) {
    b.draft_mask = draft_mask.data();
    b.target_mask = target_mask.data();
  }
  // as memory is that nobody has written
  const on_device storage(std::vector<double>(specagg::cuda::verify_storage(b) / 8, NAN));
  REQUIRE(specagg::cuda::verify(
              b, static_cast<const Policy*>(device_policies.data()), verifier,
              {verdicts.data(), emissions.data(), want_acceptances ? acceptances.data() : nullptr},
              storage.data(), specagg::cuda::verify_storage(b), nullptr) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  const auto got = verdicts.read();
  const auto got_emissions = emissions.read();
  const auto got_acceptances = acceptances.read();

  std::vector<emission> out(each);
  std::vector<draft_acceptance> o(want_acceptances ? s.most : 0);
  for (std::size_t r = 0; r < s.requests; ++r) {
    const verdict v = verify_here(e, r, policies[r], cpu_verifier, std::span(out), std::span(o));
    INFO("seed " << seed << ", request " << r << " of " << s.requests << ", V " << s.vocabulary
                 << ", room for " << s.most << ", drafted " << e.drafted(r).size()
                 << ", temperature " << e.temperature[r]);
    check_same({got[r], std::span(got_emissions).subspan(r * each, each),
                std::span(got_acceptances).subspan(r * s.most, s.most)},
               {v, out, o}, seen);
  }
}

// The same for whichever verifier of the device's, by its counterpart.
template <class S, class Policy, class Verifier>
void agree(const shape& s, std::uint64_t seed, const std::vector<Policy>& choices,
           const Verifier& verifier, tally& seen) {
  const auto cpu_verifier = [&](std::uint64_t key, std::uint64_t request) {
    if constexpr (specagg::is_coupled<Verifier>)
      return specagg::coupled_verifier{specagg::coupled_noise(key, request)};
    else return verifier;
  };
  agree<S>(s, seed, choices, verifier, cpu_verifier, seen);
}
