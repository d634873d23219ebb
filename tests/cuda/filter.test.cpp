// SPDX-License-Identifier: Apache-2.0
// Also what tests specagg/backend/cuda/filtered_row.hpp: which tokens the device's filters keep,
// and with which normaliser, against processed_row, bit by bit.
#include "cuda/agree.hpp"

#include <array>

#include <specagg/backend/cuda/filter.hpp>
#include <specagg/backend/cuda/ragged.hpp>

using namespace specagg;
namespace device = specagg::cuda;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

// Rows with few ties, many, and nothing else; of the laws that models have; at the ends of what is
// a number; and invalid ones.
constexpr std::size_t kinds = 22;
template <class S>
void fill(std::span<S> row, std::size_t kind, numbers& random) {
  const std::size_t V = row.size();
  for (std::size_t v = 0; v < V; ++v) {
    double l = 3 * random.bell();
    if (kind == 1) l = std::round(l);               // hundreds of ties at each logit
    if (kind == 2) l = 2.5;                         // uniform
    if (kind == 3) l = random.below(2) ? 1 : 1.25;  // two logits
    if (kind == 4) l = 0.02 * l;                    // nearly uniform
    if (kind == 5) l = l * l * l + 300;             // peaked, far from 0
    if (kind == 6) l = double(v) / 64;              // ascending
    if (kind == 7) l = random.below(20) ? -INFINITY : l;
    if (kind == 8) l = 1e4 * l;
    if (kind == 9) l = random.below(3) ? 0. : -0.;
    if (kind == 16 || kind == 17)  // p ~ rank^-1.3, rank^-2
      l = (kind == 16 ? -1.3 : -2) * std::log(1 + double(random.below(V))) + 0.1 * l;
    if (kind == 18) l = v == V / 3 ? 60 : 0.3 * l;  // one has nearly all mass
    if (kind == 19) l = (random.below(2) ? 3e38 : -3e38) * (random.below(3) ? 1 : 0.5);
    if (kind == 20) l *= 1e-39;
    if (kind == 21) l = random.below(300) ? -1.5 : 4;  // a few equal ones above thousands
    row[v] = stored<S>(float(l));
  }
  if (kind == 10) row[random.below(V)] = stored<S>(NAN);
  if (kind == 11) row[random.below(V)] = stored<S>(INFINITY);
  if (kind == 12) std::fill(row.begin(), row.end(), stored<S>(-INFINITY));
  if (kind == 13) std::fill(row.begin() + 1, row.end(), stored<S>(-INFINITY));
  if ((kind == 14 || kind == 15) && V > 2100) {
    // as many as a list holds, or a few more or fewer; of kind 15 a few more, and all equal
    const std::size_t n = kind == 15 ? 2049 + random.below(16) : 2030 + random.below(20),
                      first = random.below(V - n);
    for (std::size_t v = 0; v < V; ++v)
      row[v] = stored<S>(v - first < n ? float(kind == 15 ? 1 : 0.3 * random.bell()) : -INFINITY);
  }
}

sampling some_sampling(std::size_t V, numbers& random) {
  const auto one_of = [&](auto... x) {
    const double all[] = {double(x)...};
    return all[random.below(sizeof...(x))];
  };
  sampling s;
  s.temperature = one_of(1, 1, 1, 0.7, 0.7, 2, 0, 1e-3, 60, 1e20, 1 + 1e-12);
  if (random.below(2))
    s.top_k = std::uint32_t(
        one_of(1, 2, 5, 16, 40, 63, 64, 65, 200, 1000, 1024, 1025, 2000, 5000, V - 1, V, V + 1));
  if (random.below(3))
    s.top_p = one_of(1, 1e-9, 0.1, 0.3, 0.5, 0.8, 0.9, 0.95, 0.999, 1 - 1e-7, 1 - 1e-16);
  if (random.below(3) == 0) s.min_p = one_of(1e-60, 1e-9, 0.01, 0.1, 0.5, 1);
  if (random.below(40) == 0) s.top_p = one_of(0, 1.5, NAN);
  if (random.below(60) == 0) s.min_p = one_of(-0.1, 1.01, NAN);
  return s;
}

// Every number of it, but for the sign of a largest logit of 0, which no element depends on.
bool same_factors(softmax_factors<float> a, const softmax_factors<float>& b) {
  if (a.max == b.max) a.max = b.max;
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// How often the CPU took its several ways, and how often a row was invalid.
struct ways {
  int valid = 0, filtered = 0, few = 0, invalid = 0, one = 0;
  std::array<int, kinds> of_kind = {};
};

// B rows of V logits, each with filters of its own: requests without drafts.
template <class S>
struct filtered_rows {
  std::size_t V, B, offset, stride, words = (V + 31) / 32;
  bool masked, whole;  // whole: as the device reads fastest (backend/cuda/row.hpp)
  std::vector<S> logits;
  std::vector<std::uint32_t> mask;
  std::vector<sampling> how;
  filter_order order;
  bool confidence;

  std::vector<std::size_t> kind;

  filtered_rows(std::size_t vocabulary, std::size_t rows, bool with_mask, bool in_fours,
                numbers& random)
      : V(vocabulary),
        B(rows),
        offset(in_fours ? 0 : random.below(4)),
        stride(V + (in_fours ? 4 : 1) * random.below(3)),
        masked(with_mask),
        whole(in_fours),
        logits(offset + B * stride),
        mask(B * words),
        order(filter_order(random.below(4))),
        confidence(random.below(2)) {
    for (auto& word : mask) word = random.word() | random.word();
    for (std::size_t r = 0; r < B; ++r) {
      kind.push_back(random.below(kinds));
      fill(std::span(logits).subspan(offset + r * stride, V), kind[r], random);
      how.push_back(some_sampling(V, random));
      how.back().order = order;
    }
  }
  // Row r as the CPU has it.
  std::vector<S> row(std::size_t r) const {
    const auto first = logits.begin() + std::ptrdiff_t(offset + r * stride);
    std::vector<S> x(first, first + std::ptrdiff_t(V));
    for (std::size_t v = 0; masked && v < V; ++v)
      if (!(mask[r * words + v / 32] >> v % 32 & 1)) x[v] = stored<S>(-INFINITY);
    return x;
  }
  // What the device finds.
  std::vector<device::detail::filtered_facts> facts() const {
    std::vector<std::int64_t> top_k, ones(B, 1);
    std::vector<double> top_p, min_p, temperature;
    for (const sampling& s : how) {
      top_k.push_back(s.top_k);
      top_p.push_back(s.top_p);
      min_p.push_back(s.min_p);
      temperature.push_back(s.temperature);
    }
    const on_device there(logits);
    const on_device bits(mask);
    const on_device k(top_k), start(ones);
    const on_device p(top_p), m(min_p), at(temperature);
    device::filtered_batch<S> given;
    given.requests = B, given.vocabulary = V;
    given.target = there.data() + offset, given.target_stride = stride;
    given.start = given.seed = start.data();
    given.temperature = at.data();
    given.top_k = k.data(), given.top_p = p.data(), given.min_p = m.data();
    given.order = order;
    if (masked) given.target_mask = bits.data();
    return whole ? facts_of<true>(given) : facts_of<false>(given);
  }

 private:
  template <bool Whole>
  std::vector<device::detail::filtered_facts> facts_of(
      const device::filtered_batch<S>& given) const {
    using shape = device::detail::ragged<device::filtered_batch<S>>;
    const on_device storage(std::vector<double>(device::verify_storage(given) / 8));
    auto* sums = reinterpret_cast<block_sum<float>*>(storage.data());
    const device::detail::filtered_drafts<shape, Whole> rows{{{{given}, 0, false}}};
    REQUIRE(device::detail::launch_sums(rows, confidence, sums, nullptr) == cudaSuccess);
    REQUIRE(rows.launch_between(confidence, sums, nullptr) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    auto found = storage.read();
    const auto* all = rows.facts_in(reinterpret_cast<block_sum<float>*>(found.data()));
    return {all, all + B};
  }
};

template <class S>
void agree_on_filters(const filtered_rows<S>& rows, ways& seen) {
  const auto facts = rows.facts();
  for (std::size_t r = 0; r < rows.B; ++r) {
    const std::vector<S> row = rows.row(r);
    const sampling& s = rows.how[r];
    const auto due = normalise(processed_row<S>(row, s), rows.confidence);
    const device::detail::filtered_facts& f = facts[r];
    INFO("V " << rows.V << " row " << r << " temperature " << s.temperature << " top_k " << s.top_k
              << " top_p " << s.top_p << " min_p " << s.min_p << " masked " << rows.masked
              << " kind " << rows.kind[r] << " order " << int(rows.order) << " confidence "
              << rows.confidence);
    REQUIRE(name(f.why) == std::string(name(due.why())));
    ++seen.of_kind[rows.kind[r]];
    if (due.why() != status::ok) {
      ++seen.invalid;
      continue;
    }
    std::size_t kept = 0, differ = 0;
    for (std::size_t v = 0; v < rows.V; ++v) {
      const float l = specagg::detail::number(row[v]);
      const bool keeps = l > -inf && due.restriction.keeps(l, v);
      kept += keeps;
      differ += keeps != (l > -inf && f.restriction.keeps(l, v));
    }
    CAPTURE(kept);
    REQUIRE(differ == 0);
    REQUIRE(same_factors(f.sampled, due.sampled));
    if (rows.confidence) REQUIRE(same_factors(f.confidence, due.at_temperature_1));
    ++seen.valid;
    seen.filtered += kept < rows.V;
    seen.few += due.keeps_few();
    seen.one += kept == 1;
  }
}

template <class S>
void every_filter_agrees(std::uint64_t seed) {
  numbers random(seed);
  ways seen;
  for (const std::size_t V : {1u, 5u, 64u, 1000u, 1024u, 2500u, 5001u, 17000u, 40000u})
    for (const int how : {0, 1, 2}) {
      if (how == 2 && V % 4 != 0) continue;
      agree_on_filters(filtered_rows<S>(V, V < 2000 ? 24 : 20, how == 1, how == 2, random), seen);
    }
  CHECK(seen.valid > 200);
  CHECK(seen.filtered > 100);
  CHECK(seen.few > 40);
  CHECK(seen.one > 10);
  CHECK(seen.invalid > 10);
  for (const int n : seen.of_kind) CHECK(n > 5);
}

using device::detail::token_key;
using whole_row = device::detail::raw_row<float, true>;
// After the tokens from `listed` on were listed: the last token of the first `count`, expected not
// to be below `from`, and how many it found; then how many there are from `cut` on.
struct of_filter {
  token_key last;
  mass found, from_cut;
};
__global__ void last_of(whole_row row, const float* maxima, float largest, token_key listed,
                        mass count, token_key from, token_key cut, of_filter* out) {
  alignas(16) __shared__ unsigned char memory[sizeof(device::detail::filter_memory)];
  auto& shared = *reinterpret_cast<device::detail::filter_memory*>(memory);
  device::detail::row_filter<float, true> filter(row, maxima, largest, shared);
  const device::detail::token_masses each{{}, mass_unit<float>(row.size), true};
  (void)filter.list(listed, ~token_key(0));
  mass found = 0;
  const token_key last = filter.prefix(count, from, each, found);
  const mass from_cut = filter.mass_from(cut, each);
  if (threadIdx.x == 0) *out = {last, found, from_cut};
}

}  // namespace

TEST_CASE("cuda: filters keep the CPU's tokens, with the CPU's normaliser") {
  if (!have_device()) return;
  every_filter_agrees<float>(1);
  every_filter_agrees<f16>(2);
  every_filter_agrees<bf16>(3);
}

TEST_CASE("cuda: a filter that expects its last token too high finds it all the same") {
  if (!have_device()) return;
  constexpr std::size_t V = 5000;
  numbers random(4);
  std::vector<float> row(V), maxima(16 * block_count(V), -inf);
  std::vector<token_key> keys(V);
  for (std::size_t v = 0; v < V; ++v) {
    row[v] = float(random.bell());
    float& most = maxima[v / 1024 * 16 + v % 64 / 4];
    most = std::max(most, row[v]);
    keys[v] = token_key(specagg::detail::ordered(row[v])) << 32 | std::uint32_t(~v);
  }
  std::sort(keys.begin(), keys.end(), std::greater<>());
  const on_device logits(row);
  const on_device of_parts(maxima);
  const on_device out(std::vector<of_filter>(1));
  for (const std::size_t count : {1u, 40u, 3000u, 5000u, 5001u})
    for (const std::size_t from : {0u, 10u, 2999u, 4999u}) {
      REQUIRE(device::detail::launch(last_of, 1, nullptr, whole_row{logits.data(), nullptr, V},
                                     of_parts.data(), *std::max_element(row.begin(), row.end()),
                                     keys[99], mass(count), keys[from], keys[9],
                                     out.data()) == cudaSuccess);
      CAPTURE(count, from);
      const of_filter f = out.read()[0];
      if (count <= V) {
        CHECK(f.last == keys[count - 1]);
        CHECK(f.found == mass(count));
      } else {  // there are fewer
        CHECK(f.last < keys[V - 1]);
      }
      CHECK(f.from_cut == 10);
    }
}
