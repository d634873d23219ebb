// SPDX-License-Identifier: Apache-2.0
// Also what tests specagg/backend/cuda/given_row.hpp: rows of probabilities, and drafts without
// rows.
#include "cuda/agree.hpp"

#include <specagg/backend/cuda/ragged.hpp>

using namespace specagg;
namespace device = specagg::cuda;

namespace {

template <class R>
constexpr bool is_probability = std::is_same_v<R, device::probability>;
// The type in memory of a row's elements.
template <class R>
using element = std::conditional_t<is_probability<R>, float, R>;

// One matrix of rows, every few of them wrong in some way.
template <class R>
std::vector<element<R>> some_rows(std::size_t rows, std::size_t V, std::size_t stride,
                                  numbers& random) {
  std::vector<element<R>> all(rows * stride);
  for (std::size_t i = 0; i < rows; ++i) {
    element<R>* x = all.data() + i * stride;
    std::vector<double> l(V);
    double sum = 0;
    for (double& y : l) sum += std::exp(y = 3 * random.bell());
    const std::size_t kind = random.below(24), v = random.below(V);
    for (std::size_t k = 0; k < V; ++k) {
      if constexpr (!is_probability<R>) x[k] = stored<R>(float(l[k]));
      else x[k] = float(std::exp(l[k]) / sum) * (kind == 0 ? 1.002f : kind == 1 ? 0.9995f : 1);
    }
    if constexpr (is_probability<R>) {
      if (kind == 2) x[v] = -1e-9f;
      if (kind == 3) x[v] = NAN;
      if (kind == 4) std::fill_n(x, V, 0.f), x[v] = 1;
      if (kind == 5) std::fill_n(x, V, 0.f);
      if (kind == 6) x[v] = INFINITY;
    } else {
      if (kind == 2) x[v] = stored<R>(6e4f);
      if (kind == 3) x[v] = stored<R>(NAN);
      if (kind == 4) std::fill_n(x, V, stored<R>(-INFINITY));
    }
  }
  return all;
}

// Filters for each request, of which some are off, and few out of range.
struct some_filters {
  std::vector<std::int32_t> top_k;
  std::vector<float> top_p;
  std::vector<double> min_p;
  void add(std::size_t V, numbers& random) {
    const std::int32_t tokens = std::int32_t(V), counts[] = {0, 1, 3, 20, 300, 2000, tokens, -1};
    static constexpr float masses[] = {1, 1, 0.9f, 0.5f, 0.999f, 1e-6f, 0};
    static constexpr double fractions[] = {0, 0, 0.02, 0.3, 1, 2};
    top_k.push_back(counts[random.below(random.below(9) == 0 ? 8 : 7)]);
    top_p.push_back(masses[random.below(random.below(9) == 0 ? 7 : 6)]);
    min_p.push_back(fractions[random.below(random.below(9) == 0 ? 6 : 5)]);
  }
  sampling at(std::size_t r, double temperature, filter_order order) const {
    return {top_k[r] < 0 ? -1 : temperature, std::uint32_t(std::max(top_k[r], 0)), top_p[r],
            min_p[r], order};
  }
};

// A batch as engines have it. S, Draft: as ragged_batch's. Id: what ids are stored as.
template <class S, class Draft, class Id>
struct ragged_example {
  static constexpr bool wide = sizeof(Id) == 8;
  static constexpr bool no_rows = std::is_same_v<Draft, device::one_hot>;
  using Row = std::conditional_t<no_rows, S, Draft>;
  std::size_t B, V, most, stride;
  bool bonus_rows, masked, filtered, draft_filtered;  // the last: apart from the target
  some_filters filters, draft_filters;
  filter_order order;
  bool slotted = false;             // the draft's rows lie where slots say
  std::vector<std::int32_t> slots;  // of each row
  std::vector<std::int32_t> cu, start;
  std::vector<std::int64_t> tokens, seed, request, bonus;
  std::vector<float> temperature, draft_temperature;
  std::vector<element<S>> target;
  std::vector<element<Row>> draft;
  std::vector<std::uint32_t> target_mask, draft_mask;

  ragged_example(const shape& s, bool even, numbers& random, bool with_filters = false)
      : B(s.requests),
        V(s.vocabulary),
        most(s.most),
        stride(V + random.below(3)),
        bonus_rows(!no_rows && random.below(2)),
        masked(random.below(3) == 0 && !is_probability<S> && !is_probability<Draft>),
        filtered(with_filters),
        draft_filtered(with_filters && random.below(2)),
        order(filter_order(with_filters ? random.below(4) : 0)) {
    for (std::size_t r = 0; filtered && r < B; ++r) {
      filters.add(V, random);
      draft_filters.add(V, random);
    }
    std::size_t N = 0;
    for (std::size_t r = 0; r < B; ++r) {
      static constexpr float temperatures[] = {1, 1, 0.7f, 0, 2, -1};
      N += even ? most : random.below(most + 1);
      cu.push_back(std::int32_t(N));
      start.push_back(std::int32_t(random.below(1000)) - (r == 1 ? 2000 : 0));
      seed.push_back(std::int64_t(random.bits<std::uint64_t>()));
      request.push_back(std::int64_t(random.word()) << 20);
      bonus.push_back(std::int64_t(random.below(V + 2)) - 1);
      temperature.push_back(temperatures[random.below(random.below(5) == 0 ? 6 : 4)]);
      draft_temperature.push_back(temperatures[random.below(5)]);
    }
    target = some_rows<S>(N + B, V, stride, random);
    draft = some_rows<Row>(N + B, V, stride, random);
    slotted = !no_rows && random.below(3) == 0;
    for (std::size_t i = 0; i < N + B; ++i) slots.push_back(std::int32_t(i));
    for (std::size_t i = N + B; i > 1; --i) std::swap(slots[i - 1], slots[random.below(i)]);
    target_mask.resize((N + B) * ((V + 31) / 32));
    draft_mask.resize(target_mask.size());
    for (auto* mask : {&target_mask, &draft_mask})
      for (auto& word : *mask) word = random.word() | random.word() | random.word();
    target_seen = seen<S>(target, target_mask);
    draft_seen = seen<Row>(draft, draft_mask);
    for (std::size_t r = 0; r < B; ++r)
      for (std::size_t j = 0; j < size(r); ++j) tokens.push_back(token(r, j, random));
  }
  std::size_t first(std::size_t r) const { return r == 0 ? 0 : std::size_t(cu[r - 1]); }
  std::size_t size(std::size_t r) const { return std::size_t(cu[r]) - first(r); }
  std::size_t draft_at(std::size_t r, std::size_t j) const {
    return first(r) + j + (bonus_rows ? r : 0);
  }

  std::vector<element<Row>> draft_by_slot() const {
    auto x = draft;
    for (std::size_t i = 0; i < slots.size(); ++i)
      std::copy_n(draft.begin() + std::ptrdiff_t(i * stride), stride,
                  x.begin() + std::ptrdiff_t(std::size_t(slots[i]) * stride));
    return x;
  }

  // Row j of request r as the CPU has it.
  auto draft_row(std::size_t r, std::size_t j) const {
    if constexpr (no_rows) {
      const std::size_t i = first(r) + j;
      const std::int64_t t = i < tokens.size() ? tokens[i] : -1;
      const bool known = t >= 0 && t < std::int64_t(V);
      return one_hot_row<float>(known && allowed(draft_mask, i, std::size_t(t)) ? token_id(t) : -1,
                                V);
    } else {
      return row<Row>(draft_seen, draft_at(r, j),
                      how(draft_filtered ? draft_filters : filters, r, draft_temperature[r]));
    }
  }
  auto target_row(std::size_t r, std::size_t j) const {
    return row<S>(target_seen, first(r) + r + j, how(filters, r, temperature[r]));
  }

 private:
  sampling how(const some_filters& f, std::size_t r, double at_temperature) const {
    return filtered ? f.at(r, at_temperature, order) : sampling{.temperature = at_temperature};
  }
  std::vector<element<S>> target_seen;  // the rows with their masks
  std::vector<element<Row>> draft_seen;
  bool allowed(const std::vector<std::uint32_t>& mask, std::size_t i, std::size_t v) const {
    return !masked || (mask[i * ((V + 31) / 32) + v / 32] >> v % 32 & 1);
  }
  template <class R>
  std::vector<element<R>> seen(const std::vector<element<R>>& all,
                               const std::vector<std::uint32_t>& mask) const {
    auto x = all;
    if constexpr (!is_probability<R>)
      for (std::size_t i = 0; i < x.size() / stride; ++i)
        for (std::size_t v = 0; v < V; ++v)
          if (!allowed(mask, i, v)) x[i * stride + v] = stored<R>(-INFINITY);
    return x;
  }
  template <class R>
  auto row(const std::vector<element<R>>& all, std::size_t i, const sampling& sampled) const {
    const auto x = std::span(all).subspan(i * stride, V);
    if constexpr (is_probability<R>) return dense_row<float>(x);
    else return processed_row<R>(x, sampled);
  }
  std::int64_t token(std::size_t r, std::size_t j, numbers& random) const {
    const std::size_t kind = random.below(40);
    if (kind == 0) return -1;
    if (kind == 1) return random.below(2) ? -7 : std::int64_t(V + random.below(2));
    if (kind == 2 && wide)
      return random.below(2) ? std::int64_t(1) << 32 : -(std::int64_t(1) << 40);
    if (kind < 8) return std::int64_t(random.below(V));
    std::vector<double> scratch(verify_scratch(V));
    random_streams chooser{std::uint64_t(seed[r]), std::uint64_t(request[r])};
    const auto drawn = [&](const auto& row) {
      const token_id y =
          draw_draft(row, std::uint32_t(start[r]), j, chooser, std::span<double>(scratch));
      return y < 0 ? std::int64_t(random.below(V)) : y;
    };
    if constexpr (no_rows) return drawn(target_row(r, j));
    else return drawn(draft_row(r, j));
  }
};

// The batch in device memory, and what is written there.
template <class S, class Draft, class Id>
struct ragged_on_device {
  const ragged_example<S, Draft, Id>& e;
  on_device<element<S>> target{e.target};
  on_device<typename decltype(e.draft)::value_type> draft{e.draft}, by_slot{e.draft_by_slot()};
  on_device<std::int32_t> slots{e.slots};
  on_device<std::int32_t> cu{e.cu}, start{e.start};
  on_device<std::int64_t> seed{e.seed}, request{e.request};
  on_device<std::int64_t> bonus{e.bonus};
  on_device<Id> tokens{std::vector<Id>(e.tokens.begin(), e.tokens.end())};
  on_device<float> temperature{e.temperature};
  on_device<double> draft_temperature{
      std::vector<double>(e.draft_temperature.begin(), e.draft_temperature.end())};
  on_device<std::uint32_t> target_mask{e.target_mask}, draft_mask{e.draft_mask};
  on_device<std::int32_t> top_k{e.filters.top_k}, draft_top_k{e.draft_filters.top_k};
  on_device<float> top_p{e.filters.top_p}, draft_top_p{e.draft_filters.top_p};
  on_device<double> min_p{e.filters.min_p}, draft_min_p{e.draft_filters.min_p};
  std::size_t each = e.most + 1;
  on_device<Id> ids{std::vector<Id>(e.B * each, 77)};
  on_device<std::int32_t> accepted{std::vector<std::int32_t>(e.B, 77)}, emitted{accepted.read()},
      statuses{accepted.read()};
  on_device<float> log_pi{std::vector<float>(e.B * each, 77)}, log_p{log_pi.read()};
  on_device<draft_acceptance> acceptances{std::vector<draft_acceptance>(e.B * e.most)};

  device::ragged_batch<S, Draft> batch() const {
    device::ragged_batch<S, Draft> b{
        .requests = e.B,
        .vocabulary = e.V,
        .most = e.most,
        .drafted = e.tokens.size(),
        .tokens = tokens.data(),
        .cu_num_draft_tokens = cu.data(),
        .target = reinterpret_cast<const S*>(target.data()),
        .draft_bonus = e.bonus_rows,
        .target_stride = e.stride,
        .draft_stride = e.stride,
        .start = start.data(),
        .seed = seed.data(),
        .request = request.data(),
        .temperature = temperature.data(),
        .draft_temperature = draft_temperature.data(),
    };
    if constexpr (!ragged_example<S, Draft, Id>::no_rows)
      b.draft = reinterpret_cast<const Draft*>((e.slotted ? by_slot : draft).data());
    if (e.slotted) b.draft_row_numbers = slots.data();
    if (e.masked) b.target_mask = target_mask.data(), b.draft_mask = draft_mask.data();
    return b;
  }
  device::filtered_batch<S, Draft> filtered(const device::ragged_batch<S, Draft>& b) const {
    device::filtered_batch<S, Draft> f{b, {}};
    f.top_k = top_k.data(), f.top_p = top_p.data(), f.min_p = min_p.data();
    f.order = e.order;
    if (!e.draft_filtered) return f;
    f.draft_top_k = draft_top_k.data();
    f.draft_top_p = draft_top_p.data();
    f.draft_min_p = draft_min_p.data();
    return f;
  }
  device::ragged_outcome out(bool want_acceptances) const {
    return {ids.data(),
            accepted.data(),
            emitted.data(),
            statuses.data(),
            log_pi.data(),
            log_p.data(),
            want_acceptances ? acceptances.data() : nullptr};
  }
};

// Request r on the CPU.
template <class S, class Draft, class Id, class Policy, class Verifier>
verdict verify_here(const ragged_example<S, Draft, Id>& e, std::size_t r, const Policy& policy,
                    const Verifier& verifier, draft drafted, std::span<emission> out) {
  std::vector<token_id> tokens;
  for (std::size_t j = 0; j < e.size(r); ++j) {
    const std::int64_t t = e.tokens[e.first(r) + j];
    tokens.push_back(t < -1 ? -2 : token_id(std::min<std::int64_t>(t, 0x7fffffff)));
  }
  drafted.tokens = tokens;
  drafted.start = std::uint32_t(e.start[r]);
  const auto key = std::uint64_t(e.seed[r]), request = std::uint64_t(e.request[r]);
  const auto by = [&] {
    if constexpr (is_coupled<Verifier>) return coupled_verifier{coupled_noise(key, request)};
    else return verifier;
  }();
  random_streams chooser(key, request);
  std::vector<double> scratch(verify_scratch(e.V, e.most));
  const auto q_rows =
      rows_of(e.size(r) + e.bonus_rows, [&](std::size_t j) { return e.draft_row(r, j); });
  const auto p_rows = rows_of(e.size(r) + 1, [&](std::size_t j) { return e.target_row(r, j); });
  return by.verify(drafted, q_rows, p_rows, policy, chooser, out, std::span<double>(scratch));
}

// The bonus token that request r is given.
template <class Example>
bonus_choice given_to(const Example& e, std::size_t r) {
  const std::int64_t x = e.bonus[r];
  return bonus_choice::given(x >= std::int64_t(e.V) ? -2 : token_id(std::max<std::int64_t>(x, -1)));
}

// What the device has written, on the CPU.
template <class Id>
struct ragged_results {
  std::size_t most;
  std::vector<Id> ids;
  std::vector<std::int32_t> accepted, emitted, statuses;
  std::vector<float> log_pi, log_p;
  std::vector<draft_acceptance> acceptances;

  void check(std::size_t r, const verdict& v, std::span<const emission> out,
             std::span<const draft_acceptance> o, tally& seen) const {
    CAPTURE(name(v.why), v.accepted, v.emitted);
    REQUIRE(statuses[r] == std::int32_t(v.why));
    REQUIRE(accepted[r] == std::int32_t(v.accepted));
    REQUIRE(emitted[r] == std::int32_t(v.emitted));
    for (std::size_t i = 0; i <= most; ++i) {
      const std::size_t at = r * (most + 1) + i;
      const bool is = i < v.emitted;
      CAPTURE(i);
      REQUIRE(ids[at] == (is ? out[i].token : no_token));
      REQUIRE(same_bits(log_pi[at], is ? float(out[i].log_pi) : NAN));
      REQUIRE(same_bits(log_p[at], is ? float(out[i].log_p) : NAN));
      if (is) ++seen.statuses[out[i].why];
    }
    for (std::size_t i = 0; i < o.size(); ++i) {
      const draft_acceptance& a = acceptances[r * most + i];
      REQUIRE((same_bits(a.of_row, o[i].of_row) && same_bits(a.of_token, o[i].of_token)));
    }
    ++seen.statuses[v.why];
    seen.steps += v.emitted;
    seen.rejected += v.emitted > 0 && out[v.emitted - 1].from == origin::residual;
    seen.bonuses += v.emitted > 0 && out[v.emitted - 1].from == origin::bonus;
  }
};

// One batch on both, with or without filters.
template <class S, class Draft, class Id, bool Filtered = false, class Policy, class Verifier>
void agree_ragged(const shape& s, std::uint64_t seed, const Policy& policy,
                  const Verifier& verifier, tally& seen) {
  numbers random(seed);
  const ragged_example<S, Draft, Id> e(s, random.below(3) == 0, random, Filtered);
  const bool want = random.below(2);
  const ragged_on_device<S, Draft, Id> there{e};
  auto b = there.batch();
  if (e.tokens.size() == e.B * e.most && random.below(2)) b.cu_num_draft_tokens = {};
  const std::size_t N = e.tokens.size();
  const bool end_is_drafted = N > 0 && random.below(2);
  const auto end =
      end_is_drafted ? token_id(e.tokens[random.below(N)]) : token_id(random.below(e.V));
  b.end_of_text = random.below(2) ? end : no_token;
  const bool given = random.below(3) == 0;
  if (given) b.bonus = there.bonus.data();
  else if (const std::size_t other = random.below(4); other < 2)
    b.bonus_from = other == 0 ? bonus_choice(false) : bonus_choice::target();
  const auto run = [&](const auto& batch) {
    const std::size_t bytes = device::verify_storage(batch);
    const on_device storage(std::vector<double>(bytes / 8, NAN));
    REQUIRE(device::verify(batch, policy, verifier, there.out(want), storage.data(), bytes - 1,
                           nullptr) == cudaErrorInvalidValue);
    REQUIRE(device::verify(batch, policy, verifier, there.out(want), storage.data(), bytes,
                           nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  };
  if constexpr (Filtered) run(there.filtered(b));
  else run(b);
  const ragged_results<Id> got{e.most,
                               there.ids.read(),
                               there.accepted.read(),
                               there.emitted.read(),
                               there.statuses.read(),
                               there.log_pi.read(),
                               there.log_p.read(),
                               there.acceptances.read()};
  for (std::size_t r = 0; r < e.B; ++r) {
    INFO("seed " << seed << ", request " << r << " of " << e.B << ", V " << e.V << ", drafted "
                 << e.size(r) << ", temperature " << e.temperature[r] << ", masked " << e.masked);
    std::vector<emission> out(e.most + 1);
    std::vector<draft_acceptance> o(want ? e.most : 0);
    const draft drafted{.end_of_text = b.end_of_text,
                        .bonus = given ? given_to(e, r) : b.bonus_from,
                        .acceptances = o};
    const verdict v = verify_here(e, r, policy, verifier, drafted, out);
    seen.given += given && v.emitted > 0 && out[v.emitted - 1].from == origin::bonus;
    got.check(r, v, out, o, seen);
  }
}

// Every verifier and a few policies on rows of these kinds; or two of them, which compile sooner;
// or lossless token verification alone.
enum class how_many { all, two, one };
template <class S, class Draft, class Id, how_many Most = how_many::all>
tally every_verifier_agrees() {
  constexpr how_many many = FEW_KERNELS ? how_many::one : Most;
  constexpr bool all = many == how_many::all;
  tally seen;
  static constexpr std::size_t sizes[] = {5, 64, 1000, 1024, 2500, 17000};
  for (std::uint64_t seed = 1; seed <= 18; ++seed) {
    const shape s{seed % 6 == 5 ? 2 : std::size_t{5}, sizes[seed % 6], 1 + seed % 4};
    agree_ragged<S, Draft, Id>(s, seed, lossless{}, token_verifier{}, seen);
    if constexpr (many != how_many::one)
      agree_ragged<S, Draft, Id>(s, seed + 100, lossy{0.3}, block_verifier{}, seen);
    if constexpr (all) {
      agree_ragged<S, Draft, Id>(s, seed + 200, lossless{}, match_verifier{}, seen);
      agree_ragged<S, Draft, Id>(s, seed + 300, token_v3{0.3}, token_verifier{}, seen);
      agree_ragged<S, Draft, Id>(s, seed + 400, lossless{}, device::coupled{}, seen);
    }
  }
  CHECK(seen.steps > 60);
  CHECK(seen.rejected > 10);
  CHECK(seen.bonuses > 10);
  CHECK(seen.given > (FEW_KERNELS ? 0 : 3));
  CHECK(seen.statuses[status::ok] > 0);
  CHECK((!all || seen.statuses[status::invalid_row] > 0));
  CHECK((!all || seen.statuses[status::token_out_of_range] > 0));
  return seen;
}

// More tokens than one request has, and fewer than all may have.
ragged_example<float, float, std::int32_t> some_tokens() {
  for (std::uint64_t seed = 1;; ++seed) {
    numbers random(seed);
    const ragged_example<float, float, std::int32_t> e({4, 1000, 3}, false, random);
    if (e.tokens.size() > e.most && e.tokens.size() < e.B * e.most) return e;
  }
}

}  // namespace

TEST_CASE("cuda: ragged batches of logits agree with the CPU") {
  if (!have_device()) return;
  auto seen = every_verifier_agrees<float, float, std::int64_t>();
#if !FEW_KERNELS
  CHECK(seen.statuses[status::missing_row] > 0);  // no bonus row of the draft
  CHECK(seen.statuses[status::invalid_parameter] > 0);
#endif
}

TEST_CASE("cuda: drafts with probabilities agree with the CPU, and rows that are none") {
  if (!have_device()) return;
  constexpr auto two = how_many::two;
  auto seen = every_verifier_agrees<bf16, device::probability, std::int32_t, two>();
  CHECK(seen.statuses[status::not_normalised] > 0);
#if !FEW_KERNELS
  seen = every_verifier_agrees<device::probability, device::probability, std::int64_t, two>();
  CHECK(seen.statuses[status::not_normalised] > 0);
#endif
}

TEST_CASE("cuda: drafts without rows agree with the CPU") {
  if (!have_device()) return;
  (void)every_verifier_agrees<f16, device::one_hot, std::int32_t>();
#if !FEW_KERNELS
  (void)every_verifier_agrees<float, device::one_hot, std::int64_t, how_many::two>();
#endif
}

TEST_CASE("cuda: ragged batches with filters agree with the CPU") {
  if (!have_device()) return;
  tally seen;
  static constexpr std::size_t sizes[] = {5, 64, 1000, 1024, 2500, 17000};
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    const shape s{seed % 6 == 5 ? 2 : std::size_t{5}, sizes[seed % 6], 1 + seed % 4};
#if FEW_KERNELS
    agree_ragged<float, float, std::int64_t, true>(s, seed, lossless{}, token_verifier{}, seen);
#else
    agree_ragged<float, float, std::int64_t, true>(s, seed, token_v3{0.3}, token_verifier{}, seen);
    agree_ragged<bf16, device::probability, std::int32_t, true>(s, seed + 100, lossless{},
                                                                block_verifier{}, seen);
    agree_ragged<f16, device::one_hot, std::int32_t, true>(s, seed + 200, lossless{},
                                                           device::coupled{}, seen);
#endif
  }
  CHECK(seen.steps > 60);
  CHECK(seen.rejected > 10);
  CHECK(seen.bonuses > 10);
  CHECK(seen.statuses[status::ok] > 0);
  CHECK(seen.statuses[status::invalid_row] > 0);
  CHECK((FEW_KERNELS || seen.statuses[status::invalid_parameter] > 0));
  CHECK(seen.statuses[status::draft_not_in_support] > 0);
}

TEST_CASE("cuda: at temperature 0 a target's row that cannot be read is read alone") {
  if (!have_device()) return;
  constexpr std::size_t V = 8;
  const on_device q(std::vector<float>(V, 0)),
      p(std::vector<float>(2 * V, -std::numeric_limits<float>::infinity())),
      temperature(std::vector<float>{0}), of_draft(std::vector<float>{-1});
  const on_device tokens(std::vector<std::int32_t>{1}), start(std::vector<std::int32_t>{0}),
      ids(std::vector<std::int32_t>(2)), accepted(std::vector<std::int32_t>(1)),
      statuses(std::vector<std::int32_t>(1));
  const on_device seed(std::vector<std::int64_t>{1});
  device::ragged_batch<float> b{.requests = 1, .vocabulary = V, .most = 1, .drafted = 1};
  b.tokens = tokens.data(), b.start = start.data(), b.seed = seed.data();
  b.draft = q.data(), b.target = p.data(), b.draft_stride = b.target_stride = V;
  b.temperature = temperature.data(), b.draft_temperature = of_draft.data();
  b.bonus_from = false;
  const std::size_t bytes = device::verify_storage(b);
  const on_device storage(std::vector<double>(bytes / 8));
  device::ragged_outcome out{ids.data(), accepted.data()};
  out.statuses = statuses.data();
  REQUIRE(device::verify(b, lossless{}, token_verifier{}, out, storage.data(), bytes, nullptr) ==
          cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  // the draft's row has an invalid temperature
  CHECK(status(statuses.read()[0]) == status::invalid_row);
}

TEST_CASE("cuda: no bonus follows a drafted token that ends the text, whoever chooses the bonus") {
  if (!have_device()) return;
  numbers random(1);
  ragged_example<float, float, std::int32_t> e({3, 1000, 3}, true, random);
  e.masked = e.slotted = false;
  std::ranges::fill(e.target, 0.f);  // p = q: all is accepted
  std::ranges::fill(e.draft, 0.f);
  std::ranges::fill(e.temperature, 1.f);
  std::ranges::fill(e.draft_temperature, 1.f);
  e.tokens = {5, 9, 7, 5, 7, 9, 5, 7, 8};  // 9 ends a text
  e.bonus = {11, 11, 11};
  const ragged_on_device<float, float, std::int32_t> there{e};
  for (const int from : {0, 1, 2, 3}) {  // none, of pi, of the target, given
    auto b = there.batch();
    b.end_of_text = token_id(9);
    b.bonus_from = from == 2 ? bonus_choice::target() : bonus_choice(from == 1);
    if (from == 3) b.bonus = there.bonus.data();
    const std::size_t bytes = device::verify_storage(b);
    const on_device storage(std::vector<double>(bytes / 8));
    REQUIRE(device::verify(b, lossless{}, token_verifier{}, there.out(false), storage.data(), bytes,
                           nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CAPTURE(from);
    CHECK(there.accepted.read() == std::vector<std::int32_t>{2, 3, 3});
    CHECK(there.emitted.read() == std::vector<std::int32_t>{2, 3, 3 + (from > 0)});
    auto ids = there.ids.read();
    if (from == 3) CHECK(ids[11] == 11);
    CHECK((ids[11] == no_token) == (from == 0));
    ids.pop_back();
    CHECK(ids == std::vector<std::int32_t>{5, 9, -1, -1, 5, 7, 9, -1, 5, 7, 8});
  }
}

TEST_CASE(
    "cuda: a ragged batch that does not fit is refused, and a count that is none is no read") {
  if (!have_device()) return;
  const auto e = some_tokens();
  const ragged_on_device<float, float, std::int32_t> there{e};
  const auto good = there.batch();
  const std::size_t bytes = device::verify_storage(good);
  const on_device storage(std::vector<double>(bytes / 8));
  const auto result = [&](const device::ragged_batch<float>& b, const device::ragged_outcome& out,
                          std::size_t size) {
    return device::verify(b, lossless{}, token_verifier{}, out, storage.data(), size, nullptr);
  };
  const auto refused = [&](auto&& change) {
    auto b = good;
    auto out = there.out(false);
    change(b, out);
    CHECK(result(b, out, std::size_t(-1)) == cudaErrorInvalidValue);
  };
  REQUIRE(e.tokens.size() < e.B * e.most);
  CHECK(result(good, there.out(false), bytes) == cudaSuccess);
  CHECK(result(good, there.out(false), bytes - 1) == cudaErrorInvalidValue);
  refused([](auto& b, auto&) { b.most = device::most_drafted + 1; });
  refused([](auto& b, auto&) { b.drafted = b.requests * b.most + 1; });
  refused([](auto& b, auto&) { b.cu_num_draft_tokens = {}; });  // not as many for each
  refused([](auto& b, auto&) { b.vocabulary = 0; });
  refused([](auto& b, auto&) { b.target = nullptr; });
  refused([](auto& b, auto&) { b.target_stride = b.vocabulary - 1; });
  refused([](auto& b, auto&) { b.draft = nullptr; });
  refused([](auto& b, auto&) { b.draft_stride = b.vocabulary - 1; });
  refused([](auto& b, auto&) { b.tokens = {}; });
  refused([](auto& b, auto&) { b.start = {}; });
  refused([](auto& b, auto&) { b.seed = {}; });
  refused([](auto&, auto& out) { out.tokens = {}; });
  refused([](auto&, auto& out) { out.accepted = nullptr; });
  device::ragged_batch<float, device::probability> masked{.requests = 1, .vocabulary = 8};
  const auto refuse_mask = [&] {
    return device::detail::ragged<decltype(masked)>{masked}.can_launch(there.out(false), false);
  };
  masked.target = there.target.data(), masked.target_stride = 8;
  masked.start = there.start.data(), masked.seed = there.seed.data();
  CHECK(refuse_mask());
  masked.draft_mask = there.draft_mask.data();
  CHECK(!refuse_mask());

  // Counts that fall, are negative or beyond N, or give one request too many tokens.
  const on_device cu(std::vector<std::int32_t>{-3, 1 << 30, 2, 2});
  auto b = good;
  b.cu_num_draft_tokens = cu.data();
  REQUIRE(result(b, there.out(false), bytes) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  const auto statuses = there.statuses.read();
  REQUIRE(e.tokens.size() > e.most);
  CHECK(statuses[1] == std::int32_t(status::invalid_parameter));
  CHECK(there.ids.read()[there.each] == -1);
  b.bonus_from = false;  // no bonus, whose room the token too many could take
  REQUIRE(result(b, there.out(false), bytes) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(there.statuses.read()[1] == std::int32_t(status::invalid_parameter));
}
