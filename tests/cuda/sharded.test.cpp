// SPDX-License-Identifier: Apache-2.0
// Each rank has a stream of its own, and its part of every row. All must say what the CPU says of
// the whole rows. Also what tests specagg/backend/cuda/shard_log.hpp.
#include "cuda/agree.hpp"

#include <memory>

#include <specagg/backend/cuda/sharded.hpp>

using namespace specagg;
namespace device = specagg::cuda;

namespace {

// The columns from .. to - 1 of a matrix.
template <class T>
std::vector<T> columns(const std::vector<T>& all, std::size_t offset, std::size_t stride,
                       std::size_t rows, std::size_t from, std::size_t to) {
  std::vector<T> part;
  for (std::size_t i = 0; i < rows; ++i) {
    const auto row = all.begin() + std::ptrdiff_t(offset + i * stride);
    part.insert(part.end(), row + std::ptrdiff_t(from), row + std::ptrdiff_t(to));
  }
  return part;
}

// What a rank has on its device.
template <class S, class Policy>
struct rank_memory {
  device::sharded_batch<S> b;
  std::unique_ptr<on_device<S>> draft, target;
  std::unique_ptr<on_device<std::uint32_t>> draft_mask, target_mask;
  on_device<token_id> tokens;
  on_device<std::uint32_t> start;
  on_device<std::uint64_t> seed, request;
  on_device<double> temperature;
  on_device<device::row_range> draft_rows, target_rows;
  on_device<Policy> policies;
  on_device<verdict> verdicts;
  on_device<emission> emissions;
  on_device<draft_acceptance> acceptances;
  std::unique_ptr<on_device<double>> storage;
  device::shard_step step;
  cudaStream_t stream{};
  cudaEvent_t event{};

  rank_memory(const example<S>& e, const std::vector<Policy>& each, device::vocabulary_part part,
              std::uint32_t exchanges)
      : b{e.size, part, exchanges},
        tokens(e.tokens),
        start(e.start),
        seed(e.seed),
        request(e.request),
        temperature(e.temperature),
        draft_rows(e.draft_rows),
        target_rows(e.target_rows),
        policies(each),
        verdicts(std::vector<verdict>(b.requests)),
        emissions(std::vector<emission>(b.requests * (b.most + 1))),
        acceptances(std::vector<draft_acceptance>(b.requests * b.most)) {
    const std::size_t from = part.rank * part.tokens,
                      to = std::min(from + part.tokens, b.vocabulary), rows = b.draft_count,
                      words = (b.vocabulary + 31) / 32, last = (to + 31) / 32;
    draft = std::make_unique<on_device<S>>(
        columns(e.draft, e.draft_offset, b.draft_stride, rows, from, to));
    target = std::make_unique<on_device<S>>(
        columns(e.target, e.target_offset, b.target_stride, rows, from, to));
    draft_mask = std::make_unique<on_device<std::uint32_t>>(
        columns(e.draft_mask, 0, words, rows, from / 32, last));
    target_mask = std::make_unique<on_device<std::uint32_t>>(
        columns(e.target_mask, 0, words, rows, from / 32, last));
    b.draft = draft->data();
    b.target = target->data();
    b.draft_stride = b.target_stride = to - from;
    b.tokens = tokens.data();
    b.start = start.data();
    b.seed = seed.data();
    b.request = request.data();
    b.temperature = temperature.data();
    b.draft_rows = draft_rows.data();
    b.target_rows = target_rows.data();
    b.draft_mask = e.masked ? draft_mask->data() : nullptr;
    b.target_mask = e.masked ? target_mask->data() : nullptr;
    storage = std::make_unique<on_device<double>>(
        std::vector<double>((device::shard_storage(b) + 7) / 8));
    step.storage = storage->data();
    step.storage_bytes = device::shard_storage(b);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  }
  rank_memory(const rank_memory&) = delete;
  ~rank_memory() {
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
  }
};

// The all-gather that is due after a step, between streams of one device.
template <class Ranks>
void all_gather(Ranks& ranks) {
  for (auto& r : ranks) REQUIRE(cudaEventRecord(r->event, r->stream) == cudaSuccess);
  for (auto& to : ranks)
    for (std::size_t k = 0; k < ranks.size(); ++k) {
      const auto& from = ranks[k];
      REQUIRE(from->step.bytes == to->step.bytes);
      if (from == to) {
        REQUIRE(from->step.own == static_cast<std::byte*>(from->step.all) + k * from->step.bytes);
        continue;
      }
      REQUIRE(cudaStreamWaitEvent(to->stream, from->event) == cudaSuccess);
      REQUIRE(cudaMemcpyAsync(static_cast<std::byte*>(to->step.all) + k * to->step.bytes,
                              from->step.own, from->step.bytes, cudaMemcpyDeviceToDevice,
                              to->stream) == cudaSuccess);
    }
}

// One batch on all ranks, and on the CPU.
template <class S, class Policy, class Verifier>
void agree_in_parts(const shape& s, std::uint32_t parts, std::uint64_t seed,
                    const std::vector<Policy>& choices, const Verifier& verifier,
                    std::uint32_t exchanges, tally& seen, bool plain = false) {
  numbers random(seed);
  example<S> e(s, random, is_coupled<Verifier>);
  if (plain)  // rows as models give them
    for (auto* rows : {&e.draft, &e.target})
      for (S& x : *rows) x = stored<S>(float(3 * random.bell()));
  if (plain) std::ranges::fill(e.temperature, 1.);
  std::vector<Policy> policies;
  for (std::size_t r = 0; r < s.requests; ++r)
    policies.push_back(choices[random.below(choices.size())]);
  const bool want_acceptances = !plain && random.below(2);
  const std::size_t blocks = (s.vocabulary + 1023) / 1024, each = s.most + 1;
  const std::size_t tokens = (blocks + parts - 1) / parts * 1024;
  std::vector<std::unique_ptr<rank_memory<S, Policy>>> ranks;
  for (std::uint32_t k = 0; k < parts; ++k)
    ranks.push_back(std::make_unique<rank_memory<S, Policy>>(
        e, policies, device::vocabulary_part{tokens, parts, k}, exchanges));
  while (!ranks[0]->step.done) {
    for (auto& r : ranks)
      REQUIRE(device::verify_shard(r->b, static_cast<const Policy*>(r->policies.data()), verifier,
                                   {r->verdicts.data(), r->emissions.data(),
                                    want_acceptances ? r->acceptances.data() : nullptr},
                                   r->step, r->stream) == cudaSuccess);
    const auto& step = ranks[0]->step;
    if (plain && !step.done)  // as docs/cuda.md says
      REQUIRE(step.bytes == s.requests * (step.number == 1
                                              ? (2 * s.most + 1) * (tokens / 1024 + 1) * 16
                                              : 8 * std::max<std::size_t>(3 * tokens / 1024, 6)));
    if (!ranks[0]->step.done) all_gather(ranks);
  }
  for (auto& r : ranks) REQUIRE(cudaStreamSynchronize(r->stream) == cudaSuccess);
  const auto cpu_verifier = [&](std::uint64_t key, std::uint64_t request) {
    if constexpr (is_coupled<Verifier>) return coupled_verifier{coupled_noise(key, request)};
    else return verifier;
  };
  std::vector<emission> out(each);
  std::vector<draft_acceptance> o(want_acceptances ? s.most : 0);
  for (std::uint32_t k = 0; k < parts; ++k) {
    const auto got = ranks[k]->verdicts.read();
    const auto emissions = ranks[k]->emissions.read();
    const auto acceptances = ranks[k]->acceptances.read();
    for (std::size_t r = 0; r < s.requests; ++r) {
      const verdict v = verify_here(e, r, policies[r], cpu_verifier, std::span(out), std::span(o));
      INFO("seed " << seed << ", request " << r << ", rank " << k << " of " << parts << ", V "
                   << s.vocabulary << ", drafted " << e.drafted(r).size() << ", temperature "
                   << e.temperature[r]);
      check_same({got[r], std::span(emissions).subspan(r * each, each),
                  std::span(acceptances).subspan(r * s.most, s.most)},
                 {v, out, o}, seen);
    }
  }
}

// Enough for every request of at most two drafted tokens: what each position may ask for, and rows
// beyond all units.
constexpr std::uint32_t enough = 40;

template <class S, class Policy, class Verifier>
void in_two_and_three_parts(const std::vector<Policy>& choices, const Verifier& verifier) {
  static constexpr std::size_t sizes[] = {2049, 2500, 3072, 5000, 5120};
  if (!have_device()) return;
  tally seen;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
#if !defined(__CUDACC__)
    cuda_emulator::set_order(seed % 3 == 0   ? cuda_emulator::order::forward
                             : seed % 3 == 1 ? cuda_emulator::order::backward
                                             : cuda_emulator::order::shuffled,
                             seed);
#endif
    agree_in_parts<S>({3, sizes[seed % 5], 1 + seed % 2}, seed % 2 ? 2 : 3, seed, choices, verifier,
                      enough, seen);
  }
#if !defined(__CUDACC__)
  cuda_emulator::set_order(cuda_emulator::order::forward);
#endif
  CHECK(seen.rejected > 0);
  CHECK(seen.bonuses > 0);
  for (const status s : {status::ok, status::invalid_row, status::token_out_of_range})
    CHECK(seen.statuses[s] > 0);
}

}  // namespace

// The mixture of q and p with weight p(v), or with p(w) where that is more than q(v): it asks for
// logits of tokens that are neither drafted nor drawn.
struct asks_for_logits {
  token_id v, w;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows& rows) const {
    const auto of_v = specagg::at(rows, std::size_t(v)), of_w = specagg::at(rows, std::size_t(w));
    const double weight = double((of_w.p.v > of_v.q.v ? of_w : of_v).p.v);
    return [weight](auto x) { return fma(weight, x.q - x.p, x.p); };
  }
};

namespace {

const std::vector<lossless> exact(1);
[[maybe_unused]] const std::vector<token_v3> lossy_choices{{0.3}, {0.8}};

}  // namespace

TEST_CASE("cuda: a vocabulary in parts gives what whole rows give: token verification") {
  in_two_and_three_parts<float>(exact, token_verifier{});
#if !FEW_KERNELS
  in_two_and_three_parts<bf16>(lossy_choices, token_verifier{});
#endif
}
#if !FEW_KERNELS
TEST_CASE("cuda: a vocabulary in parts gives what whole rows give: block verification") {
  in_two_and_three_parts<bf16>(exact, block_verifier{});
  in_two_and_three_parts<float>(lossy_choices, block_verifier{});
}
TEST_CASE("cuda: a vocabulary in parts gives what whole rows give: match verification") {
  in_two_and_three_parts<float>(exact, match_verifier{});
  in_two_and_three_parts<f16>(lossy_choices, match_verifier{});
}
TEST_CASE("cuda: a vocabulary in parts gives what whole rows give: coupled verification") {
  in_two_and_three_parts<f16>(exact, device::coupled{});
  in_two_and_three_parts<float>(lossy_choices, device::coupled{});
}
#endif

#if !FEW_KERNELS
TEST_CASE("cuda: a policy that asks for single logits gets them from the ranks that have them") {
  if (!have_device()) return;
  tally seen;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const token_id last = token_id(3000 + seed - 1);
    const std::vector<asks_for_logits> choices{{7, last}, {last, 1025}, {1500, 2}};
    agree_in_parts<float>({4, 3000 + seed, 2}, seed % 2 ? 2 : 3, seed, choices, token_verifier{},
                          enough, seen);
  }
  CHECK(seen.rejected > 0);
  CHECK(seen.bonuses > 0);
}
#endif

TEST_CASE("cuda: lossless token verification of parts takes three exchanges, whatever the draft") {
  if (!have_device()) return;
  tally seen;
  for (std::uint64_t seed = 1; seed <= 6; ++seed)
    agree_in_parts<float>({4, 4096, 1 + 3 * (seed % 2)}, 2, seed, exact, token_verifier{}, 3, seen,
                          true);
  CHECK(seen.rejected > 0);
  CHECK(seen.bonuses > 0);
  CHECK(seen.statuses[status::invalid_parameter] == 0);
}

TEST_CASE("cuda: a request of parts that needs more exchanges says so, and has no token") {
  if (!have_device()) return;
  numbers random(3);
  const example<float> e({2, 3000, 2}, random, false);
  const lossless_for_all policy(2);
  rank_memory<float, lossless> rank(e, std::vector<lossless>(2), {3072, 1, 0}, 2);
  const auto run = [&] {
    return device::verify_shard(rank.b, policy(), token_verifier{},
                                {rank.verdicts.data(), rank.emissions.data()}, rank.step,
                                rank.stream);
  };
  while (!rank.step.done) REQUIRE(run() == cudaSuccess);
  CHECK(run() == cudaErrorInvalidValue);  // a step after the last
  REQUIRE(cudaStreamSynchronize(rank.stream) == cudaSuccess);
  for (const verdict& v : rank.verdicts.read()) {
    CHECK(v.emitted == 0);
    CHECK((v.why == status::invalid_parameter || v.why == status::invalid_row ||
           v.why == status::missing_row));
  }
  // parts that are none: of no tokens, between blocks, of a rank without tokens, or too few
  for (const device::vocabulary_part part :
       {device::vocabulary_part{0, 1, 0}, device::vocabulary_part{3000, 1, 0},
        device::vocabulary_part{1024, 4, 0}, device::vocabulary_part{1024, 2, 0},
        device::vocabulary_part{1024, 3, 3}}) {
    rank.b.part = part;
    rank.step.number = 0;
    rank.step.done = false;
    CHECK(run() == cudaErrorInvalidValue);
  }
  rank.b.part = {3072, 1, 0};
  rank.b.exchanges = 0;
  CHECK(run() == cudaErrorInvalidValue);
  rank.b.exchanges = 2;
  --rank.step.storage_bytes;
  CHECK(run() == cudaErrorInvalidValue);
}
