// SPDX-License-Identifier: Apache-2.0
// Prints lines "name hash" over the raw bits of what the library computes: the same lines for every
// compiler, instruction set and -ffp-contract. The inputs are made of integers and exact
// operations, so that nothing but the library can differ.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <vector>

#include <specagg/audit/toy_source.hpp>
#include <specagg/kernels.hpp>
#include <specagg/sites/dragon_decode.hpp>
#include <specagg/decoders.hpp>

using specagg::token_id;
using specagg::vec;

namespace {

// ---- inputs and hashes --------------------------------------------------------------------------

class numbers {
 public:
  explicit numbers(std::uint64_t seed) : seed_(seed) {}
  std::uint32_t word() {
    if (used_ == 4) {
      block_ = specagg::philox({next_++, 0, 0, 0}, seed_);
      used_ = 0;
    }
    return block_[used_++];
  }
  std::uint32_t below(std::uint32_t n) { return word() % n; }
  // k / 2^bits for a bell-shaped integer |k| <= 2^15: exact in a float.
  int bell() {
    return int(below(1 << 14) + below(1 << 14) + below(1 << 14) + below(1 << 14)) - (1 << 15);
  }
  template <class T>
  T scaled(int bits) {
    return T(bell()) / T(1 << bits);
  }
  double uniform() { return double(word()) * 0x1p-32; }
  template <class T>
  T positive() {  // any exponent
    using L = std::numeric_limits<T>;
    const std::uint64_t fraction = std::uint64_t(word()) << 32 | word();
    const auto exponent =
        std::uint64_t(1 + below(std::uint32_t(L::max_exponent - L::min_exponent)));
    if constexpr (sizeof(T) == 4)
      return specagg::detail::bit_cast<float>(
          std::uint32_t(exponent << 23 | (fraction & 0x7fffff)));
    else return specagg::detail::bit_cast<double>(exponent << 52 | (fraction & 0xfffffffffffff));
  }

 private:
  std::uint64_t seed_;
  std::uint32_t next_ = 0;
  specagg::philox_block block_{};
  std::size_t used_ = 4;
};

class hash {  // 64-bit FNV-1a
 public:
  explicit hash(const char* name) : name_(name) {}
  ~hash() { std::printf("%s %016llx\n", name_, static_cast<unsigned long long>(h_)); }
  hash(const hash&) = delete;
  hash& operator=(const hash&) = delete;
  void add(std::uint64_t x) {
    for (int i = 0; i < 8; ++i) h_ = (h_ ^ (x >> 8 * i & 255)) * 0x100000001b3u;
  }
  void add(float x) {
    add(std::uint64_t(x == x ? specagg::detail::bit_cast<std::uint32_t>(x) : 0x7fc00000u));
  }  // NaN has many bits
  void add(double x) {
    add(x == x ? specagg::detail::bit_cast<std::uint64_t>(x) : 0x7ff8000000000000u);
  }
  template <class T, int N>
  void add(vec<T, N> x) {
    T lane[N];
    x.store(lane);
    for (const T y : lane) add(y);
  }

 private:
  const char* name_;
  std::uint64_t h_ = 0xcbf29ce484222325u;
};

// ---- exp, log, pow ------------------------------------------------------------------------------

template <class T>
void functions(const char* exp_name, const char* scaled_name, const char* log_name,
               const char* pow_name) {
  using V = vec<T, 16>;
  using L = std::numeric_limits<T>;
  hash e(exp_name), s(scaled_name), l(log_name), p(pow_name);
  numbers random(1);
  const T special[] = {0,
                       T(-0.0),
                       1,
                       -1,
                       L::infinity(),
                       -L::infinity(),
                       L::quiet_NaN(),
                       L::max(),
                       L::lowest(),
                       L::min(),
                       L::denorm_min(),
                       T(88.5),
                       T(-87),
                       T(709.5),
                       T(-708.5),
                       T(0.70703125)};
  for (int i = 0; i < 2000; ++i) {
    T x[16], y[16], z[16];
    for (int k = 0; k < 16; ++k) {
      x[k] = i ? random.positive<T>() : special[k];
      y[k] = i ? random.scaled<T>(int(5 + random.below(12))) : special[15 - k];
      z[k] = y[k] < 0 ? y[k] : -y[k];
    }
    e.add(exp(V::load(y)));
    l.add(log(V::load(x)));
    p.add(pow(V::load(x), V::load(y)));
    const double temperatures[] = {1, 0.5, 0.7, 1e-3, 1e3, 3};
    s.add(exp_scaled(V::load(z), specagg::exp_scale<T>::of_temperature(temperatures[i % 6])));
  }
}

// ---- rows ---------------------------------------------------------------------------------------

template <class T>
std::vector<T> logits(numbers& random, std::size_t size, bool masks = true) {
  std::vector<T> l(size);
  for (T& x : l)
    x = masks && random.below(20) == 0 ? -std::numeric_limits<T>::infinity() : random.scaled<T>(12);
  l[random.below(std::uint32_t(size))] = T(6);
  return l;
}
// Probabilities that sum to 1 but for 1e-4: integers over a power of 2.
template <class T>
std::vector<T> probabilities(numbers& random, std::size_t size) {
  constexpr std::uint32_t total = 1 << 23;
  std::vector<T> p(size);
  std::uint32_t left = total;
  for (T& x : p) {
    const std::uint32_t w = std::min(left, random.below(std::uint32_t(total * 2 / size) + 1));
    x = T(w) / T(total);
    left -= w;
  }
  p[random.below(std::uint32_t(size))] += T(left) / T(total) + T(0x1p-14);
  return p;
}

template <class Row>
void add_row(hash& h, const Row& of) {
  using T = typename Row::value_type;
  const auto row = normalise(of, true);
  h.add(std::uint64_t(row.why()));
  for (std::size_t begin = 0; begin < row.size(); begin += specagg::block_size) {
    const std::size_t count = std::min(row.size() - begin, specagg::block_size);
    const auto block = row.open(begin, count);
    for (std::size_t k = 0; k < count; k += 16) {
      const int lanes = int(std::min(count - k, std::size_t(16)));
      h.add(block.template operator()<vec<T, 16>>(k, lanes));
      h.add(block.template confidence<vec<T, 16>>(k, lanes));
    }
  }
  for (std::size_t v = 0; v < row.size(); v += 7) h.add(row[v]);
}

template <class T>
struct table {  // a Distribution that is no array
  std::vector<T> p;
  std::size_t size() const { return p.size(); }
  T operator[](std::size_t v) const { return p[v]; }
};

template <class Pair>
void add_sums(hash& sums, const Pair& r) {
  sums.add(r.sum([](auto at) { return specagg::positive(at.p - at.q); }));
  sums.add(r.sum([](auto at) { return at.p * at.q; }));
  const auto [a, b] = r.sum([](auto at) { return specagg::both(sqrt(at.p), at.q / (at.p + 1)); });
  sums.add(a);
  sums.add(b);
  sums.add(r.max([](auto at) { return at.p - at.q; }));
}

// Rows of logits under temperatures and filters.
template <class T>
void add_filtered(hash& filters, const std::vector<T>& l) {
  for (int i = 0; i < 12; ++i) {
    const double temperatures[] = {0, 0.5, 1, 3}, top_p[] = {1, 0.9, 0.4}, min_p[] = {0, 0.05};
    const auto row = specagg::normalise(specagg::processed_row<T>(
        l, {temperatures[i % 4], i % 5 == 0 ? 0u : 40u, top_p[i % 3], min_p[i % 2]}));
    filters.add(std::uint64_t(row.why()));
    filters.add(row.restriction.logit);
    const std::size_t last = row.restriction.last;  // of 32 bits on some machines
    filters.add(last == std::size_t(-1) ? std::uint64_t(-1) : last);
    for (std::size_t v = 0; v < l.size(); v += 5) filters.add(row[v]);
  }
}

template <class T>
void rows(const char* sums_name, const char* lse_name, const char* rows_name,
          const char* filters_name, const char* draws_name) {
  hash sums(sums_name), lse(lse_name), all_rows(rows_name), filters(filters_name),
      draws(draws_name);
  numbers random(2);
  for (const std::size_t size : {1u, 3u, 16u, 17u, 1000u, 1024u, 1025u, 5000u, 50000u}) {
    const auto l = logits<T>(random, size);
    const auto p = probabilities<T>(random, size), q = probabilities<T>(random, size);
    for (const double temperature : {1., 0.3, 2., 1e-3})
      lse.add(specagg::log_sum_exp(std::span(l).first(size), temperature));

    const auto dense_p = specagg::normalise(specagg::dense_row<T>(p)),
               dense_q = specagg::normalise(specagg::dense_row<T>(q));
    const auto indexed_q = specagg::normalise(specagg::as_row(table<T>{q}));
    using dense = std::remove_const_t<decltype(dense_p)>;
    using indexed = std::remove_const_t<decltype(indexed_q)>;
    const specagg::row_pair<true, dense, dense> pair(dense_q, dense_p);
    const specagg::row_pair<true, indexed, dense> mixed(indexed_q, dense_p);
    add_sums(sums, pair);
    add_sums(sums, mixed);

    add_row(all_rows, dense_p);
    add_row(all_rows, indexed_q);
    std::vector<token_id> ids;
    std::vector<T> few;
    for (std::size_t v = 0; v < size; ++v)
      if (p[v] > 0) {
        ids.push_back(token_id(v));
        few.push_back(p[v]);
      }
    add_row(all_rows, specagg::sparse_row<T>(ids, few, size));
    add_row(all_rows, specagg::one_hot_row<T>(token_id(size / 2), size));
    for (const double temperature : {1., 0.7, 1e3})
      add_row(all_rows, specagg::softmax_row<T>(l, temperature));
    add_row(all_rows, specagg::confident_row(specagg::softmax_row<T>(l, 0.5), dense_q));

    add_filtered(filters, l);
    std::vector<std::uint32_t> counts(size);
    std::vector<token_id> distinct(size), text(64);
    specagg::penalties penalties({1.3, 0.7, 0.11}, counts, distinct, text);
    for (int i = 0; i < 64; ++i) (void)penalties.push(token_id(random.below(std::uint32_t(size))));
    auto penalised = l;
    penalties.apply(std::span<T>(penalised));
    for (std::size_t v = 0; v < size; ++v) filters.add(penalised[v]);

    std::vector<double> blocks(specagg::block_count(size));
    const auto weigh = [&](const auto& of, const auto& f) {
      const auto w = specagg::weigh(of, f, blocks);
      draws.add(w.total);
      for (int i = 0; i < 200; ++i)
        draws.add(std::uint64_t(specagg::inverse_transform(w, random.uniform())));
    };
    weigh(pair, [](auto at) { return at.p; });
    weigh(pair, [](auto at) { return specagg::positive(at.p - at.q); });
    weigh(mixed, [](auto at) { return specagg::positive(at.p - at.q); });
    const auto before = random;
    for (const double temperature : {1., 0.7, 1e-3}) {
      const auto row = normalise(specagg::softmax_row<T>(l, temperature));
      if (row.why() == specagg::status::ok)
        weigh(specagg::detail::terms_of_row<std::remove_cvref_t<decltype(row)>>(row),
              specagg::row_itself());
    }
    random = before;
  }
}

// ---- randomness ---------------------------------------------------------------------------------

void randomness() {
  hash uniforms("uniforms"), coins("coins"), noise("noise");
  const specagg::random_streams random(42, 7, 1);
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const specagg::moment m{specagg::stream(i % 6), i, i / 2};
    uniforms.add(random.uniform(m));
    coins.add(std::uint64_t(random.coin(m, double(i % 7) / 8, double(i % 5) / 4)));
    noise.add(random.noise(i / 100, token_id(i)));
  }
}

// ---- verification -------------------------------------------------------------------------------

void add_verdict(hash& h, const specagg::verdict& v, std::span<const specagg::emission> out,
                 std::span<const specagg::draft_acceptance> acceptances) {
  h.add(std::uint64_t(v.accepted));
  h.add(std::uint64_t(v.emitted));
  h.add(std::uint64_t(v.why));
  for (std::size_t i = 0; i < v.emitted; ++i) {
    h.add(std::uint64_t(out[i].token));
    h.add(std::uint64_t(out[i].from));
    h.add(std::uint64_t(out[i].why));
    h.add(out[i].log_pi);
    h.add(out[i].log_p);
  }
  for (const auto& o : acceptances) {
    h.add(o.of_row);
    h.add(o.of_token);
  }
  h.add(specagg::expected_tokens(acceptances));
}

// Steps of drafting up to 4 tokens from q rows and verifying them, the rows made by make_q(j) and
// make_p(j).
template <class Policy, class MakeQ, class MakeP>
void step(hash& h, numbers& random, const Policy& policy, std::size_t vocabulary,
          std::uint32_t start, const MakeQ& make_q, const MakeP& make_p) {
  const specagg::random_streams chooser(9);
  std::vector<double> scratch(specagg::verify_scratch(vocabulary));
  std::array<token_id, 4> tokens{};
  const std::size_t gamma = random.below(5);
  for (std::size_t j = 0; j < gamma; ++j) {
    const auto q = normalise(make_q[j]);
    if (q.why() != specagg::status::ok) continue;
    const auto w = specagg::weigh(q, [](auto at) { return at; }, scratch);
    tokens[j] = chooser.draw({specagg::stream::draft, std::uint32_t(start + j), start}, w);
    if (random.below(40) == 0)
      tokens[j] = token_id(random.below(std::uint32_t(vocabulary) + 2)) - 1;
  }
  std::array<specagg::emission, 5> out;
  std::array<specagg::draft_acceptance, 4> acceptances;
  const std::span<specagg::draft_acceptance> wanted(acceptances.data(), start % 2 ? gamma : 0);
  const specagg::draft drafted{
      .tokens = std::span(tokens).first(gamma), .start = start, .acceptances = wanted};
  const auto verdict =
      specagg::verify_token(drafted, make_q, make_p, policy, chooser, out, scratch);
  add_verdict(h, verdict, out,
              wanted.first(verdict.why == specagg::status::ok ? wanted.size() : 0));
}

// A policy that reads ids: pi = p scaled to what q has on some tokens, else q.
struct some_from_target {
  static constexpr bool reads_ids = true, reads_confidence = false;
  template <class Rows>
  auto bind(const Rows& rows) const {
    static constexpr std::array<token_id, 6> some{0, 2, 17, 999, 1024, 4999};
    const auto mass = rows.sum([](auto at) {
      const auto is = specagg::is_one_of(at.id, some);
      return specagg::both(select(is, at.q, 0), select(is, at.p, 0));
    });
    const double scale = mass.first / mass.second;
    return [=](auto at) { return select(specagg::is_one_of(at.id, some), at.p * scale, at.q); };
  }
};

// Softmax rows of two models that resemble each other.
template <class Policy>
void verify_softmax(const char* name, const Policy& policy) {
  hash h(name);
  numbers random(3);
  const double temperatures[] = {1, 0.5, 2};
  for (std::uint32_t i = 0; i < 330; ++i) {
    const std::size_t vocabulary = i % 10 == 9 ? 5000 : i % 3 ? 3 : 1000;
    std::array<std::vector<float>, 5> l_q, l_p;
    for (std::size_t j = 0; j < 5; ++j) {
      l_q[j] = logits<float>(random, vocabulary);
      l_p[j] = l_q[j];
      for (float& x : l_p[j]) x += random.scaled<float>(14);
    }
    const double t_q = temperatures[i % 3], t_p = temperatures[i / 3 % 3];
    step(h, random, policy, vocabulary, i * 7,
         specagg::rows_of(5,
                          [&](std::size_t j) { return specagg::softmax_row<float>(l_q[j], t_q); }),
         specagg::rows_of(5,
                          [&](std::size_t j) { return specagg::softmax_row<float>(l_p[j], t_p); }));
  }
}

// Stored rows of doubles, made from probabilities by row_of_q(q, j) and row_of_p(p, j).
template <class Policy, class RowOfQ, class RowOfP>
void verify_stored(const char* name, const Policy& policy, const RowOfQ& row_of_q,
                   const RowOfP& row_of_p) {
  hash h(name);
  numbers random(4);
  for (std::uint32_t i = 0; i < 200; ++i) {
    const std::size_t vocabulary = i % 2 ? 3 : 2000;
    std::array<std::vector<double>, 5> p, q;
    for (std::size_t j = 0; j < 5; ++j) {
      p[j] = probabilities<double>(random, vocabulary);
      q[j] = probabilities<double>(random, vocabulary);
    }
    step(h, random, policy, vocabulary, i * 11,
         specagg::rows_of(5, [&](std::size_t j) { return row_of_q(q[j], j); }),
         specagg::rows_of(5, [&](std::size_t j) { return row_of_p(p[j], j); }));
  }
}

void verification() {
  verify_softmax("verify-lossless", specagg::lossless{});
  verify_softmax("verify-ensemble", specagg::ensemble{0.3});
  verify_softmax("verify-opt", specagg::opt{0.1});
  verify_softmax("verify-token-v3", specagg::token_v3{0.3});
  verify_softmax("verify-lossy-exact", specagg::lossy{0.2});
  verify_softmax("verify-lossy-1", specagg::lossy{0.2, 1});
  verify_softmax("verify-ids", some_from_target{});

  const auto dense = [](const std::vector<double>& x, std::size_t) {
    return specagg::dense_row<double>(x);
  };
  const auto indexed = [](const std::vector<double>& x, std::size_t) {
    return specagg::as_row(table<double>{x});
  };
  const auto hot = [](const std::vector<double>& x, std::size_t j) {
    return specagg::one_hot_row<double>(token_id(j * 401 % x.size()), x.size());
  };
  verify_stored("verify-lossy-dense", specagg::lossy{0.2}, dense, indexed);
  verify_stored("verify-opt-one-hot", specagg::opt{0.1}, hot, indexed);
}

// DRAGON's weights, acceptance and log-probabilities, and the distances of its rows.
void two_sites() {
  using namespace specagg;
  using namespace specagg::sites;
  hash h("two-sites");
  const dragon_options options;
  constexpr std::size_t vocabulary = 50, most = 60;
  dragon_workspace<float> work(vocabulary, options);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    toy_source<float> l(vocabulary, 2 * seed), r(vocabulary, 2 * seed + 1);
    sites::independent_drafts<> drafts{random_streams(seed, 0, 0), random_streams(seed, 0, 1)};
    std::array<token_id, most + 1> tokens{};
    text t{tokens, 1};
    const auto accept = [&](const emission& e) {
      h.add(std::uint64_t(e.token));
      h.add(e.log_pi);
      h.add(e.log_p);
      return true;
    };
    const auto see = [&](const dragon_result& result, const auto& memory) {
      const auto& [p_l, p_r] = memory.rows;
      const agreement a = agreement_of(p_l, p_r, result.weights);
      for (const double x : {a.both, a.only_l, a.only_r, result.weights.l, result.weights.log_r,
                             acceptance_eq5(p_l, p_r, result.weights), kl_divergence(p_l, p_r),
                             total_variation(p_l, p_r), acceptance_rate(p_l, p_r)})
        h.add(x);
    };
    const site_weights weights = weigh_sites(double(seed) / 64, -0.25);
    h.add(std::uint64_t(dragon_decode(
        l, r, weights, drafts,
        {.text = t, .most = most, .work = work, .accept = accept, .after_round = see})));
  }
}

}  // namespace

int main() {
  functions<float>("exp-float", "exp_scaled-float", "log-float", "pow-float");
  functions<double>("exp-double", "exp_scaled-double", "log-double", "pow-double");
  rows<float>("sums-float", "log_sum_exp-float", "rows-float", "filters-float", "draws-float");
  rows<double>("sums-double", "log_sum_exp-double", "rows-double", "filters-double",
               "draws-double");
  randomness();
  verification();
  two_sites();
}
