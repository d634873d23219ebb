// SPDX-License-Identifier: Apache-2.0
// Also what tests specagg/backend/cuda/batch.hpp, specagg/backend/cuda/collective.hpp,
// specagg/backend/cuda/row.hpp and specagg/backend/cuda/warp.hpp: verification is made of them.
#include "cuda/agree.hpp"
#include "policy/ids.hpp"

using namespace specagg;
namespace device = specagg::cuda;

#if FEW_KERNELS
#define TYPES_OF_LOGITS float
#else
#define TYPES_OF_LOGITS float, f16, bf16
#endif
TEMPLATE_TEST_CASE("cuda: logits of every type, and vocabularies that are split over a cluster", "",
                   TYPES_OF_LOGITS) {
  if (!have_device()) return;
  tally seen;
  const std::vector policies{lossless{}};
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const std::size_t vocabulary = seed % 4 == 0 ? 40000 : 3000 + seed;
    agree<TestType>({2, vocabulary, 3}, seed, policies, token_verifier{}, seen);
    agree<TestType>({1, vocabulary, 2}, seed, policies, device::coupled{}, seen);
  }
  for (std::uint64_t seed = 1; seed <= 2 * shape::edges; ++seed)
    agree<TestType>({4, 2501, 1, seed % shape::edges}, seed, policies, token_verifier{}, seen);
  CHECK(seen.statuses[status::ok] > 50);
}

#if FEW_KERNELS  // otherwise verify.*.test.cpp have every policy with every verifier
TEST_CASE("cuda: match verification, a policy that reads confidences, and a lossy one agree") {
  if (!have_device()) return;
  tally seen;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const shape s{4, seed % 4 == 0 ? 20000 : 900 * seed, 3};
    agree<float>(s, seed, std::vector{lossless{}}, match_verifier{}, seen);
    agree<float>(s, seed, std::vector{token_v3{0.3}, token_v3{0.8}}, token_verifier{}, seen);
    agree<float>(s, seed, std::vector{lossy{0.3}, lossy{0.1, 0.9}}, token_verifier{}, seen);
  }
  CHECK(seen.rejected > 20);
  CHECK(seen.bonuses > 10);
}
#else
namespace {

// a q + b p, law or not.
struct weighted {
  double a, b;
  static constexpr bool reads_confidence = false;
  template <class Rows>
  SPECAGG_FUNCTION auto bind(const Rows&) const {
    return [r = *this](auto at) { return fma(r.a, at.q, r.b * at.p); };
  }
};

}  // namespace

TEST_CASE(
    "cuda: policies that read the token's id agree with the CPU, in every block and cluster") {
  if (!have_device()) return;
  tally seen;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const std::size_t V = seed % 3 == 0 ? 17000 : 3 + 400 * seed;
    const std::vector policies{from_target<2>{{0, 1500}}, from_target<2>{{2, token_id(V - 1)}}};
    agree<float>({3, V, 3}, seed, policies, token_verifier{}, seen);
    agree<float>({3, V, 3}, seed, policies, block_verifier{}, seen);
    agree<float>({3, V, 3}, seed, policies, device::coupled{}, seen);
    agree<float>({3, V, 3}, seed, std::vector{without_token{2}}, match_verifier{}, seen);
  }
  CHECK(seen.statuses[status::ok] > 50);
}

TEST_CASE("cuda: a checked policy is reported where it is no law, as on the CPU") {
  if (!have_device()) return;
  const auto all = [](const weighted& policy) {
    tally seen;
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      agree<float>({4, 700 * seed, 2}, seed, std::vector{checked{policy}}, token_verifier{}, seen);
      agree<float>({4, 700 * seed, 2}, seed, std::vector{checked{policy}}, device::coupled{}, seen);
    }
    return seen;
  };
  CHECK(all({.5, .5}).statuses[status::undefined_target] == 0);
  tally short_of_1 = all({.5, .4}), negative = all({-1, 2});  // where p = q, the latter is a law
  CHECK(short_of_1.statuses[status::undefined_target] > 20);
  CHECK(short_of_1.rejected + short_of_1.bonuses == 0);
  CHECK(negative.statuses[status::undefined_target] > 20);
}
#endif

TEST_CASE("cuda: every verifier agrees with the CPU on rows of 128256 tokens", "[slow]") {
  if (!have_device()) return;
  tally seen;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    agree<float>({3, 128256, 4}, seed, std::vector{lossless{}}, token_verifier{}, seen);
    agree<float>({2, 128256, 4}, seed, std::vector{lossless{}}, block_verifier{}, seen);
#if !FEW_KERNELS
    agree<bf16>({2, 128256, 4}, seed, std::vector{lossless{}}, token_verifier{}, seen);
#endif
    agree<float>({1, 128256, 4}, seed, std::vector{lossless{}}, device::coupled{}, seen);
    agree<float>({1, 128256, 4}, seed, std::vector{lossless{}}, match_verifier{}, seen);
  }
  CHECK(seen.steps > (FEW_KERNELS ? 20 : 30));
}

TEST_CASE("cuda: the largest sizes") {
  if (!have_device()) return;
  tally seen;
  agree<float>({1, device::most_vocabulary, device::most_drafted}, 1, std::vector{lossless{}},
               token_verifier{}, seen);
  agree<float>({40, 3, device::most_drafted}, 2, std::vector{lossless{}}, block_verifier{}, seen);
  CHECK(seen.steps > 40);
}

namespace {

// A batch of one whose memory is all there.
struct small {
  static constexpr std::size_t vocabulary = 3000, most = 2;
  std::vector<float> logits = std::vector<float>(3 * vocabulary, 0);
  on_device<float> rows{logits};
  on_device<token_id> tokens{{7, 8}};
  on_device<std::uint32_t> start{{5}};
  on_device<std::uint64_t> seed{{3}};
  on_device<verdict> verdicts{std::vector<verdict>(1)};
  on_device<emission> emissions{std::vector<emission>(3)};
  lossless_for_all policy{1};
  device::batch<float> batch() const {
    device::batch<float> b;
    b.requests = 1;
    b.vocabulary = vocabulary;
    b.most = most;
    b.draft = b.target = rows.data();
    b.draft_stride = b.target_stride = vocabulary;
    b.draft_count = b.target_count = 3;
    b.tokens = tokens.data();
    b.start = start.data();
    b.seed = seed.data();
    return b;
  }
  device::outcome out() const { return {verdicts.data(), emissions.data()}; }
};

}  // namespace

TEST_CASE("cuda: sizes that are out of range are refused before anything is launched") {
  if (!have_device()) return;
  const small s;
  const auto good = s.batch();
  const on_device storage(std::vector<double>(device::verify_storage(good) / 8));
  const auto result = [&](device::batch<float> b, device::outcome out, std::size_t bytes) {
    return device::verify(b, s.policy(), token_verifier{}, out, storage.data(), bytes, nullptr);
  };
  const std::size_t bytes = device::verify_storage(good);
  CHECK(result(good, s.out(), bytes) == cudaSuccess);
  CHECK(result(good, s.out(), bytes - 1) == cudaErrorInvalidValue);
  CHECK(result(good, {nullptr, s.emissions.data()}, bytes) == cudaErrorInvalidValue);
  CHECK(result(good, {s.verdicts.data(), nullptr}, bytes) == cudaErrorInvalidValue);
  auto b = good;
  b.requests = 0;
  CHECK(result(b, s.out(), 0) == cudaSuccess);
  const auto refused = [&](auto&& change) {
    auto bad = good;
    change(bad);
    CHECK(result(bad, s.out(), std::size_t(-1)) == cudaErrorInvalidValue);
  };
  refused([](auto& x) { x.most = device::most_drafted + 1; });
  refused([](auto& x) {
    x.vocabulary = device::most_vocabulary + 1;
    x.draft_stride = x.target_stride = x.vocabulary;
  });
  refused([](auto& x) { x.vocabulary = 0; });
  refused([](auto& x) { x.target_stride = small::vocabulary - 1; });
  refused([](auto& x) { x.draft_stride = small::vocabulary - 1; });
  refused([](auto& x) { x.requests = std::size_t(1) << 32; });
  refused([](auto& x) { x.draft = nullptr; });
  refused([](auto& x) { x.draft_count = 0; });
  refused([](auto& x) { x.target_count = 0; });
  refused([](auto& x) { x.requests = 2; });  // three rows are not as many for each of two requests
  refused([](auto& x) { x.target = nullptr; });
  refused([](auto& x) { x.tokens = nullptr; });
  refused([](auto& x) { x.start = nullptr; });
  refused([](auto& x) { x.seed = nullptr; });
  CHECK(device::verify(good, static_cast<const lossless*>(nullptr), token_verifier{}, s.out(),
                       storage.data(), bytes, nullptr) == cudaErrorInvalidValue);
  b = good;
  b.most = 0;
  b.tokens = nullptr;
  b.draft = nullptr;  // nothing drafted: one token from the target
  CHECK(result(b, s.out(), bytes) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
}

TEST_CASE("cuda: rows after the end of a matrix are missing, whatever a range says") {
  if (!have_device()) return;
  const small s;
  // of a target's matrix of `count` rows (in memory there are 3)
  const auto result = [&](std::size_t count, device::row_range range) {
    auto b = s.batch();
    const on_device ranges(std::vector{range});
    const on_device storage(std::vector<double>(device::verify_storage(b) / 8));
    b.target_count = count;
    b.target_rows = ranges.data();
    REQUIRE(device::verify(b, s.policy(), token_verifier{}, s.out(), storage.data(),
                           device::verify_storage(b), nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    return s.verdicts.read()[0];
  };
  CHECK(result(3, {0, 3}).emitted == 3);
  const std::pair<std::size_t, device::row_range> ends[] = {
      {2, {0, 3}}, {1, {0, 3}}, {2, {1, 3}}, {1, {1, 2}}, {3, {0xffffffff, 0xffffffff}}};
  const std::size_t there[] = {2, 1, 1, 0, 0};
  for (std::size_t i = 0; i < std::size(there); ++i) {
    CAPTURE(i);
    const verdict v = result(ends[i].first, ends[i].second);
    CHECK(v.accepted == there[i]);
    CHECK(v.emitted == there[i]);
    CHECK(v.why == status::missing_row);
  }
}

TEST_CASE("cuda: of two rows that cannot be read, the status is the CPU's") {
  if (!have_device()) return;
  // One drafted token. The target has no second row, or no row that can be read; nor has the draft.
  const auto both = [](double temperature, std::size_t target_rows, bool valid,
                       const auto& policy) {
    constexpr std::size_t V = 8;
    const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
    std::vector<float> q(2 * V, 0.f), p(target_rows * V, valid ? 0.f : -inf);
    q[valid ? V : 0] = nan;
    const on_device draft_logits(q), target_logits(p), temperatures(std::vector{temperature});
    const on_device tokens(std::vector<token_id>{1});
    const on_device start(std::vector<std::uint32_t>{0});
    const on_device seed(std::vector<std::uint64_t>{1});
    const on_device verdicts(std::vector<verdict>(1));
    const on_device emissions(std::vector<emission>(2));
    device::batch<float> b;
    b.requests = 1, b.vocabulary = V, b.most = 1;
    b.draft = draft_logits.data(), b.target = target_logits.data();
    b.draft_count = 2, b.target_count = target_rows, b.draft_stride = b.target_stride = V;
    b.tokens = tokens.data(), b.start = start.data(), b.seed = seed.data();
    b.temperature = temperatures.data();
    const std::size_t bytes = device::verify_storage(b);
    const on_device storage(std::vector<double>(bytes / 8));
    REQUIRE(device::verify(b, policy, token_verifier{}, {verdicts.data(), emissions.data()},
                           storage.data(), bytes, nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    const auto rows = [&](const std::vector<float>& x) {
      return rows_of(x.size() / V, [&](std::size_t j) {
        return processed_row<float>(std::span(x).subspan(j * V, V), {.temperature = temperature});
      });
    };
    std::vector<emission> out(2);
    std::vector<double> scratch(verify_scratch(V, 1));
    random_streams chooser(1, 0);
    const token_id drafted[] = {1};
    const verdict due = token_verifier{}.verify(draft{.tokens = drafted}, rows(q), rows(p), policy,
                                                chooser, std::span(out), std::span(scratch));
    CHECK(name(verdicts.read()[0].why) == std::string(name(due.why)));
    return due.why;
  };
  CHECK(both(1, 1, true, token_v3{0.3}) == status::missing_row);
  CHECK(both(1, 2, false, token_v3{0.3}) == status::invalid_row);
  CHECK(both(-1, 2, false, lossless{}) == status::invalid_parameter);
}

TEST_CASE("cuda: an accepted token that ends the text is in the verdict") {
  if (!have_device()) return;
  const small s;  // both drafted tokens are accepted: q = p
  for (const token_id end : {7, 8, 9}) {
    auto b = s.batch();
    b.end_of_text = end_tokens(end);
    const on_device storage(std::vector<double>(device::verify_storage(b) / 8));
    REQUIRE(device::verify(b, s.policy(), token_verifier{}, s.out(), storage.data(),
                           device::verify_storage(b), nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    const verdict v = s.verdicts.read()[0];
    CAPTURE(end);
    CHECK(v.ended == (end == 9 ? no_token : end));
    CHECK(v.accepted == (end == 7 ? 1 : 2));
    CHECK(v.emitted == (end == 7 ? 1 : end == 8 ? 2 : 3));
  }
}

TEST_CASE("cuda: verification is captured in a graph, and replayed with what then lies in memory") {
  if (!have_device()) return;
  const small s;
  const auto b = s.batch();
  const on_device storage(std::vector<double>(device::verify_storage(b) / 8));
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  REQUIRE(device::verify(b, s.policy(), token_verifier{}, s.out(), storage.data(),
                         device::verify_storage(b), stream) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
  CHECK(s.verdicts.read()[0].emitted == 0);  // nothing has run

  const auto run = [&] {
    REQUIRE(cudaGraphLaunch(replay, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    return s.verdicts.read()[0];
  };
  CHECK(run().accepted == 2);  // p = q
  auto logits = s.logits;
  logits[small::vocabulary + 8] = -INFINITY;  // the second drafted token is forbidden to both
  REQUIRE(cudaMemcpy(s.rows.data(), logits.data(), logits.size() * sizeof(float),
                     cudaMemcpyHostToDevice) == cudaSuccess);
  const verdict v = run();
  CHECK(v.accepted == 1);
  CHECK(v.emitted == 2);
  CHECK(s.emissions.read()[1].why == status::draft_not_in_support);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

namespace {

template <bool Whole>
using rows_in_order = device::detail::drafts<device::detail::padded<device::batch<float>>, Whole>;
static_assert(device::detail::Batch<rows_in_order<true>>);
static_assert(device::detail::Batch<rows_in_order<false>>);
struct without_tokens : device::detail::padded<device::batch<float>> {
  token_id token_of(std::size_t, std::size_t) const = delete;
};
static_assert(!device::detail::Shape<without_tokens>);
static_assert(!device::detail::Batch<device::detail::drafts<without_tokens, true>>);

// Copies what the second kernel knows of a row.
template <bool Whole>
__global__ void facts_of_rows(rows_in_order<Whole> rows, specagg::block_sum<float>* sums,
                              device::detail::row_facts* out) {
  alignas(16) __shared__ unsigned char memory[sizeof(device::detail::shared_memory)];
  alignas(16) __shared__ unsigned char fact_memory[sizeof(device::detail::row_facts)];
  device::detail::collective<Whole> together(
      *reinterpret_cast<device::detail::shared_memory*>(memory));
  auto* facts = reinterpret_cast<device::detail::row_facts*>(fact_memory);
  rows.find_facts(blockIdx.x, false, sums, facts, together);
  if (together.leads()) out[blockIdx.x] = *facts;
}

// Rows whose largest logit is at the edges of what a thread, a warp or a block reads, or twice
// there.
std::vector<float> rows_with_ties(std::size_t V, std::size_t& rows, numbers& random) {
  std::vector<float> all;
  const auto add = [&](auto&& logit) {
    for (std::size_t v = 0; v < V; ++v) all.push_back(float(logit(v)));
  };
  add([](std::size_t) { return 2; });
  add([](std::size_t) { return -INFINITY; });
  add([](std::size_t) { return NAN; });
  add([](std::size_t v) { return v; });
  add([](std::size_t v) { return -double(v); });
  add([&](std::size_t v) { return v + 1 == V ? -3 : -INFINITY; });
  add([&](std::size_t v) { return v % 5 == 3 ? NAN : double(random.below(2)); });
  for (const std::size_t edge : {1u, 3u, 4u, 127u, 128u, 1023u, 1024u, 2000u, 2048u, 16384u})
    for (const std::size_t second : {edge + 1, edge + 127, edge + 1024, edge + 32 * 1024, V - 1})
      if (edge < second && second < V)
        add([&](std::size_t v) { return v == edge || v == second ? 9 : random.below(9); });
  rows = all.size() / V;
  return all;
}

template <bool Whole>
void check_greedy_tokens(std::size_t V, numbers& random) {
  std::size_t rows;
  const auto logits = rows_with_ties(V, rows, random);
  const on_device row(logits);
  const on_device zero(std::vector<double>(rows, 0));
  const on_device start(std::vector<std::uint32_t>(rows, 1));
  const on_device facts(std::vector<device::detail::row_facts>(rows, device::detail::row_facts{}));
  device::batch<float> b;
  b.requests = b.target_count = rows;
  b.vocabulary = b.target_stride = V;
  b.most = 0;
  b.target = row.data();
  b.temperature = zero.data();
  b.start = start.data();
  const rows_in_order<Whole> all{{{b}, 0, false}};
  const on_device sums(std::vector<double>(device::verify_storage(b) / 8));
  auto* of_blocks = reinterpret_cast<specagg::block_sum<float>*>(sums.data());
  REQUIRE(device::detail::launch_sums(all, false, of_blocks, nullptr) == cudaSuccess);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(rows));
  config.blockDim = dim3(device::threads);
  REQUIRE(cudaLaunchKernelEx(&config, facts_of_rows<Whole>, all, of_blocks, facts.data()) ==
          cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  const auto got = facts.read();
  for (std::size_t r = 0; r < rows; ++r) {
    CAPTURE(V, r, Whole);
    const auto due = specagg::find_largest(logits.data() + r * V, V);
    CHECK((got[r].why == status::ok) == due.valid);
    if (due.valid) CHECK(got[r].token == due.id);
  }
}

}  // namespace

TEST_CASE("cuda: at temperature 0 a row's token is the first of the largest logits") {
  if (!have_device()) return;
  numbers random(11);
  for (const std::size_t V : {1u, 3u, 4u, 130u, 1000u, 1024u, 1025u, 2048u, 3001u, 40000u}) {
    check_greedy_tokens<false>(V, random);
    if (V % 4 == 0) check_greedy_tokens<true>(V, random);
  }
}

TEST_CASE("cuda: a token wins by the second word of its noise") {
  if (!have_device()) return;
  // where the first word of that token is the largest there is
  constexpr std::uint32_t position = 30589;
  constexpr token_id rare = 102386;
  const coupled_noise noise(1);
  const lossless_for_all policy(1);
  std::vector<float> row(102400, -INFINITY);
  row[5] = 0;
  for (const double factor : {0.999, 1.001}) {
    row[rare] = float(std::log(factor * noise(position, rare) / noise(position, 5)));
    const on_device logits(row);
    const on_device start(std::vector{position});
    const on_device seed(std::vector<std::uint64_t>{1});
    const on_device verdicts(std::vector<verdict>(1));
    const on_device emissions(std::vector<emission>(1));
    device::batch<float> b;
    b.requests = 1;
    b.vocabulary = b.draft_stride = b.target_stride = row.size();
    b.most = 0;
    b.target = logits.data();
    b.target_count = 1;
    b.start = start.data();
    b.seed = seed.data();
    const on_device storage(std::vector<double>(device::verify_storage(b) / 8));
    REQUIRE(device::verify(b, policy(), device::coupled{}, {verdicts.data(), emissions.data()},
                           storage.data(), device::verify_storage(b), nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(emissions.read()[0].token == (factor > 1 ? rare : 5));
  }
}

TEST_CASE("cuda: a batch gives the same in any order and split in any way") {
  if (!have_device()) return;
  // All requests at once are one thread block each; one alone is a cluster.
  numbers random(5);
  const example<float> e({140, 17000, 1}, random, false);
  const on_device draft(e.draft), target(e.target);
  const on_device tokens(e.tokens);
  const on_device start(e.start);
  const on_device seeds(e.seed), request(e.request);
  const on_device draft_rows(e.draft_rows), target_rows(e.target_rows);
  const on_device verdicts(std::vector<verdict>(140)), alone(std::vector<verdict>(1));
  const on_device emissions(std::vector<emission>(280)), emissions_alone(std::vector<emission>(2));
  auto b = e.size;
  b.draft = draft.data() + e.draft_offset;
  b.target = target.data() + e.target_offset;
  b.tokens = tokens.data();
  b.start = start.data();
  b.seed = seeds.data();
  b.request = request.data();
  b.draft_rows = draft_rows.data();
  b.target_rows = target_rows.data();
  const on_device storage(std::vector<double>(device::verify_storage(b) / 8));
  const lossless_for_all policy(140);
  const auto run = [&](const auto& batch, device::outcome out) {
    REQUIRE(device::verify(batch, policy(), block_verifier{}, out, storage.data(),
                           device::verify_storage(b), nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  };
  run(b, {verdicts.data(), emissions.data()});
  const auto all = verdicts.read();
  const auto all_emissions = emissions.read();
  for (std::size_t r = 0; r < 140; r += 37) {
    auto one = b;
    one.requests = 1;
    one.tokens += r;
    one.start += r;
    one.seed += r;
    one.request += r;
    one.draft_rows += r;
    one.target_rows += r;
    run(one, {alone.data(), emissions_alone.data()});
    const auto v = alone.read()[0];
    const auto x = emissions_alone.read();
    CHECK((v.accepted == all[r].accepted && v.emitted == all[r].emitted && v.why == all[r].why));
    for (std::size_t i = 0; i < v.emitted; ++i)
      CHECK((x[i].token == all_emissions[2 * r + i].token &&
             same_bits(x[i].log_pi, all_emissions[2 * r + i].log_pi)));
  }
}
