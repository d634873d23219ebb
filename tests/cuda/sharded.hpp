// SPDX-License-Identifier: Apache-2.0
// Rows in parts, each on a rank with a stream of its own. All ranks must say what the CPU says of
// the whole rows.
#pragma once
#include "cuda/agree.hpp"

#include <memory>

#include <specagg/backend/cuda/sharded.hpp>

// The columns from .. to - 1 of a matrix, and after each row `apart` elements that are none.
template <class T>
std::vector<T> columns(const std::vector<T>& all, std::size_t offset, std::size_t stride,
                       std::size_t rows, std::size_t from, std::size_t to, std::size_t apart = 0) {
  std::vector<T> part;
  for (std::size_t i = 0; i < rows; ++i) {
    const auto row = all.begin() + std::ptrdiff_t(offset + i * stride);
    part.insert(part.end(), row + std::ptrdiff_t(from), row + std::ptrdiff_t(to));
    part.insert(part.end(), apart, T{});
  }
  return part;
}

// What a rank has on its device.
template <class S, class Policy>
struct rank_memory {
  specagg::cuda::sharded_batch<S> b;
  std::unique_ptr<on_device<S>> draft, target;
  std::unique_ptr<on_device<std::uint32_t>> draft_mask, target_mask;
  on_device<specagg::token_id> tokens;
  on_device<std::uint32_t> start;
  on_device<std::uint64_t> seed, request;
  on_device<double> temperature;
  on_device<specagg::cuda::row_range> draft_rows, target_rows;
  on_device<Policy> policies;
  on_device<specagg::verdict> verdicts;
  on_device<specagg::emission> emissions;
  on_device<specagg::draft_acceptance> acceptances;
  std::unique_ptr<on_device<double>> storage;
  specagg::cuda::shard_step step;
  cudaStream_t stream{};
  cudaEvent_t event{};

  rank_memory(const example<S>& e, const std::vector<Policy>& each,
              specagg::cuda::vocabulary_part part, std::uint32_t exchanges)
      : b{e.size, part, exchanges},
        tokens(e.tokens),
        start(e.start),
        seed(e.seed),
        request(e.request),
        temperature(e.temperature),
        draft_rows(e.draft_rows),
        target_rows(e.target_rows),
        policies(each),
        verdicts(std::vector<specagg::verdict>(b.requests)),
        emissions(std::vector<specagg::emission>(b.requests * (b.most + 1))),
        acceptances(std::vector<specagg::draft_acceptance>(b.requests * b.most)) {
    const std::size_t from = part.rank * part.tokens,
                      to = std::min(from + part.tokens, b.vocabulary), rows = b.draft_count,
                      words = (b.vocabulary + 31) / 32, last = (to + 31) / 32,
                      apart = part.rank % 3 == 2 ? 1 : 4 * part.rank;
    draft = std::make_unique<on_device<S>>(
        columns(e.draft, e.draft_offset, b.draft_stride, rows, from, to, apart));
    target = std::make_unique<on_device<S>>(
        columns(e.target, e.target_offset, b.target_stride, rows, from, to, apart));
    draft_mask = std::make_unique<on_device<std::uint32_t>>(
        columns(e.draft_mask, 0, words, rows, from / 32, last));
    target_mask = std::make_unique<on_device<std::uint32_t>>(
        columns(e.target_mask, 0, words, rows, from / 32, last));
    b.draft = draft->data();
    b.target = target->data();
    b.draft_stride = b.target_stride = to - from + apart;
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
        std::vector<double>((specagg::cuda::shard_storage(b) + 7) / 8, NAN));
    step.storage = storage->data();
    step.storage_bytes = specagg::cuda::shard_storage(b);
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

// One batch on all ranks, and on the CPU. policies: of each request.
template <class S, class Policy, class Verifier>
void agree_in_parts(const shape& s, std::uint32_t parts, std::uint64_t seed,
                    const std::vector<Policy>& policies, const Verifier& verifier,
                    std::uint32_t exchanges, tally& seen, bool plain = false) {
  using namespace specagg;
  numbers random(seed);
  example<S> e(s, random, is_coupled<Verifier>);
  if (plain)  // rows as models give them
    for (auto* rows : {&e.draft, &e.target})
      for (S& x : *rows) x = stored<S>(float(3 * random.bell()));
  if (plain) std::ranges::fill(e.temperature, 1.);
  const bool want_acceptances = !plain && random.below(2);
  const std::size_t blocks = (s.vocabulary + 1023) / 1024, each = s.most + 1;
  const std::size_t tokens = (blocks + parts - 1) / parts * 1024;
  std::vector<std::unique_ptr<rank_memory<S, Policy>>> ranks;
  for (std::uint32_t k = 0; k < parts; ++k)
    ranks.push_back(std::make_unique<rank_memory<S, Policy>>(
        e, policies, specagg::cuda::vocabulary_part{tokens, parts, k}, exchanges));
  while (!ranks[0]->step.done) {
    for (auto& r : ranks)
      REQUIRE(specagg::cuda::verify_shard(r->b, static_cast<const Policy*>(r->policies.data()),
                                          verifier,
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
// beyond all units. But mentored{} asks for a hundred sums a position.
inline constexpr std::uint32_t enough = 40;

// Batches in two and three parts, some of which have one block or one token: one for each kind of
// row. Each has three requests with the next of the choices; `same` batches have the same.
template <class S, class Policy, class Verifier>
void in_two_and_three_parts(const std::vector<Policy>& choices, const Verifier& verifier,
                            std::size_t same = 1, std::uint32_t exchanges = enough) {
  using namespace specagg;
  static constexpr std::size_t sizes[] = {2049, 2501, 3072, 5000, 5120};
  if (!have_device()) return;
  tally seen;
  const std::size_t batches = std::max<std::size_t>(20, (choices.size() + 2) / 3 * same);
  for (std::size_t seed = 1; seed <= batches; ++seed) {
#if !defined(__CUDACC__)
    cuda_emulator::set_order(seed % 3 == 0   ? cuda_emulator::order::forward
                             : seed % 3 == 1 ? cuda_emulator::order::backward
                                             : cuda_emulator::order::shuffled,
                             seed);
#endif
    const shape s{3, sizes[seed % 5], 1 + seed / 2 % 2, seed % shape::edges};
    std::vector<Policy> policies;
    for (std::size_t r = 0; r < s.requests; ++r)
      policies.push_back(choices[((seed - 1) / same * s.requests + r) % choices.size()]);
    agree_in_parts<S>(s, seed % 2 ? 2 : 3, seed, policies, verifier, exchanges, seen);
  }
#if !defined(__CUDACC__)
  cuda_emulator::set_order(cuda_emulator::order::forward);
#endif
  CHECK(seen.rejected > 0);
  CHECK(seen.bonuses > 0);
  for (const status s : {status::ok, status::invalid_row, status::token_out_of_range})
    CHECK(seen.statuses[s] > 0);
}
