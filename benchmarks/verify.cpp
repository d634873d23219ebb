// SPDX-License-Identifier: Apache-2.0
// The whole lossless verification step, from f32 logits or from probabilities, beside our
// statements of how others take it (rivals.hpp). Each rival is checked for the same answer before
// it is timed. One thread.
//
// known: the draft's normalisers (specagg) or probabilities (the others) are at hand from drafting.
// cold: every step works on rows that no cache holds.
#include "rivals.hpp"
#include "rows.hpp"

#include <benchmark/benchmark.h>

#include "caches.hpp"
#include <fmt/format.h>

#include <bit>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <set>

namespace {

using namespace bench;

struct setting {
  std::size_t vocabulary = 128256, gamma = 4, batch = 1;
  int acceptance = 80;  // per cent
  bool cold = false;
  auto operator<=>(const setting&) const = default;
  std::string name() const {
    return fmt::format("V={}/gamma={}/B={}/acceptance={}%/{}", vocabulary, gamma, batch, acceptance,
                       cold ? "cold" : "warm");
  }
};

// One set of rows at a time is kept: benchmarks run in the order of their registration, grouped by
// setting.
const requests& rows_of(const setting& s) {
  static setting of{0, 0, 0, 0, false};
  static std::unique_ptr<requests> rows;
  if (of != s) {
    const std::size_t bytes = s.batch * (2 * s.gamma + 1) * s.vocabulary * sizeof(float);
    const std::size_t sets = s.cold ? 1 + beyond_caches() / bytes : 1;
    rows.reset();
    rows = std::make_unique<requests>(s.batch * sets, s.gamma, s.vocabulary, s.acceptance / 100.);
    of = s;
  }
  return *rows;
}

// Those that give another result than specagg: they are not timed, and the others are.
std::set<std::string> others_that_differ;

// specagg, from logits stored as S. The draft's rows are normalised once (known) or in every step.
template <class S>
class ours {
 public:
  ours(const requests& r, bool known)
      : all_(r),
        known_(known),
        stored_q_(stored(r.q)),
        stored_p_(stored(r.p)),
        q_(r.count * r.gamma),
        out_(r.gamma + 1),
        scratch_(verify_scratch(r.vocabulary, r.gamma)) {
    for (std::size_t i = 0; i < q_.size(); ++i) {
      if (!known) continue;
      q_[i] = normalise(row(r.q, stored_q_, i));
      if (q_[i].why() != status::ok) std::abort();
    }
  }
  step operator()(std::size_t r, std::span<const token_id> drafted, std::uint64_t seed) {
    random_streams chooser(seed, r);
    const auto verified = [&](const auto& q_rows) {
      const auto p_row = [&](std::size_t j) {
        return row(all_.p, stored_p_, r * (all_.gamma + 1) + j);
      };
      return verify_token({.tokens = drafted}, q_rows, specagg::rows_of(all_.gamma + 1, p_row),
                          lossless{}, chooser, out_, scratch_);
    };
    const auto anew = [&](std::size_t j) { return row(all_.q, stored_q_, r * all_.gamma + j); };
    const auto v = known_ ? verified(std::span(q_).subspan(r * all_.gamma, all_.gamma))
                          : verified(specagg::rows_of(all_.gamma, anew));
    return {v.accepted, out_[v.accepted].token};
  }

 private:
  static std::vector<S> stored(const std::vector<float>& logits) {
    std::vector<S> all;
    if constexpr (!std::is_same_v<S, float>)
      // bf16
      for (const float l : logits)
        all.push_back({std::uint16_t(std::bit_cast<std::uint32_t>(l) >> 16)});
    return all;
  }
  softmax_row<S> row(const std::vector<float>& logits, const std::vector<S>& others,
                     std::size_t i) const {
    const std::size_t n = all_.vocabulary;
    if constexpr (std::is_same_v<S, float>) return softmax_row<S>(logits.data() + i * n, n);
    else return softmax_row<S>(others.data() + i * n, n);
  }
  const requests& all_;
  bool known_;
  std::vector<S> stored_q_, stored_p_;  // empty for floats, which are where they are
  std::vector<normal_form<softmax_row<S>>> q_;
  std::vector<emission> out_;
  std::vector<double> scratch_;
};
// specagg, from rows of probabilities in memory.
class ours_from_probabilities {
 public:
  explicit ours_from_probabilities(const requests& r)
      : all_(r),
        q_(r.q.size()),
        p_(r.p.size()),
        out_(r.gamma + 1),
        scratch_(verify_scratch(r.vocabulary, r.gamma)) {
    const std::size_t n = r.vocabulary;
    for (std::size_t i = 0; i < r.count; ++i)
      for (std::size_t j = 0; j <= r.gamma; ++j) {
        if (j < r.gamma)
          scalar_softmax::apply(r.draft_logits(i, j),
                                std::span(q_).subspan((i * r.gamma + j) * n, n));
        scalar_softmax::apply(r.target(i, j),
                              std::span(p_).subspan((i * (r.gamma + 1) + j) * n, n));
      }
  }
  step operator()(std::size_t r, std::span<const token_id> drafted, std::uint64_t seed) {
    const std::size_t n = all_.vocabulary, g = all_.gamma;
    random_streams chooser(seed, r);
    const auto v = verify_token(
        {.tokens = drafted},
        specagg::rows_of(
            g, [&](std::size_t j) { return dense_row<float>(q_.data() + (r * g + j) * n, n); }),
        specagg::rows_of(
            g + 1,
            [&](std::size_t j) { return dense_row<float>(p_.data() + (r * (g + 1) + j) * n, n); }),
        lossless{}, chooser, out_, scratch_);
    return {v.accepted, out_[v.accepted].token};
  }

 private:
  const requests& all_;
  std::vector<float> q_, p_;
  std::vector<emission> out_;
  std::vector<double> scratch_;
};

// specagg by an engine's calls, rows_of_logits with filters or verify_block: drafts are drawn from
// the filtered rows.
class ours_by_calls {
 public:
  ours_by_calls(const requests& r, const sampling& how, bool block)
      : all_(r),
        how_(how),
        block_(block),
        out_(r.gamma + 1),
        scratch_(verify_scratch(r.vocabulary, r.gamma)) {
    for (std::uint64_t d = 0; d < requests::drafts; ++d)
      for (std::size_t i = 0; i < r.count; ++i) {
        random_streams chooser(d, i);
        for (std::size_t j = 0; j < r.gamma; ++j) {
          const auto row = normalise(processed_row<float>(r.draft_logits(i, j), how));
          tokens_.push_back(draw_draft(row, 0, j, chooser, scratch_));
        }
      }
  }
  step operator()(std::size_t r, std::span<const token_id>, std::uint64_t seed) {
    const std::size_t n = all_.vocabulary, g = all_.gamma;
    random_streams chooser(seed, r);
    const auto rows = [&](const std::vector<float>& logits, std::size_t count) {
      return rows_of_logits(std::span(logits).subspan(r * count * n, count * n), n, how_);
    };
    const draft drafted{.tokens = std::span(tokens_).subspan((seed * all_.count + r) * g, g)};
    const auto q = rows(all_.q, g), p = rows(all_.p, g + 1);
    const auto v = block_ ? verify_block(drafted, q, p, lossless{}, chooser, out_, scratch_)
                          : verify_token(drafted, q, p, lossless{}, chooser, out_, scratch_);
    if (v.why != status::ok) std::abort();
    return {v.accepted, out_[v.accepted].token};
  }

 private:
  const requests& all_;
  sampling how_;
  bool block_;
  std::vector<token_id> tokens_;
  std::vector<emission> out_;
  std::vector<double> scratch_;
};

// Times steps of s.batch requests; `make(rows)` makes the verifier.
template <class Make>
void time_steps(benchmark::State& state, const setting& s, Make make) {
  const requests& r = rows_of(s);
  auto verify = make(r);
  std::size_t first = 0, accepted = 0, steps = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < s.batch; ++i) {
      const step one = verify(first + i, r.drafted(steps, first + i), steps % requests::drafts);
      accepted += one.accepted;
      benchmark::DoNotOptimize(one.token);
    }
    first = (first + s.batch) % r.count;
    ++steps;
  }
  state.counters["accepted"] = double(accepted) / double(steps * s.batch);
}
template <class Make>
void add(const std::string& who, const setting& s, Make make) {
  const bool differs = others_that_differ.contains(who);
  const auto run = [=](benchmark::State& state) {
    if (differs) state.SkipWithError("another result than specagg's: not timed");
    else time_steps(state, s, make);
  };
  benchmark::RegisterBenchmark(("step/" + who + "/" + s.name()).c_str(), run)
      ->Unit(benchmark::kMicrosecond);
}

// The same drafts accepted, the same token in place of the rejected one (a rival's rounding may
// move one step in 10^4). who: the benchmarks that time it.
template <class Rival>
void check(std::initializer_list<const char*> who, const requests& r, Rival&& rival,
           bool same_token) {
  ours<float> reference(r, false);
  std::size_t others = 0, steps = 0;
  for (std::uint64_t d = 0; d < requests::drafts; ++d)
    for (std::size_t i = 0; i < r.count; ++i, ++steps) {
      const step a = reference(i, r.drafted(d, i), d), b = rival(i, r.drafted(d, i), d);
      others += a.accepted != b.accepted || (same_token && a.token != b.token);
    }
  if (others > 1 + steps / 1000) others_that_differ.insert(who.begin(), who.end());
}
void check_all() {
  for (const double acceptance : {0., 0.8, 1.}) {
    const requests r(2, 4, 32000, acceptance);
    check({"specagg, known"}, r, ours<float>(r, true), true);
    check({"specagg, block", "specagg, top-p 0.9"}, r, ours_by_calls(r, {}, false), true);
    check({"specagg, from probabilities"}, r, ours_from_probabilities(r), true);
    check({"scalar expf, written out", "scalar expf, known"}, r,
          written_out<scalar_softmax>(r, false), true);
    check({"Eigen, written out"}, r, written_out<eigen_softmax>(r, false), true);
    check({"vLLM V1 steps, known"}, r, draws_everywhere(r), false);
    sorted_structs sorted(r);
    const auto row = normalise(softmax_row<float>(r.target(1, 2)));
    if (row.why() != status::ok) std::abort();
    const double sum = sorted.weigh(1, 2);
    for (const auto& d : sorted.data())
      if (!(std::fabs(d.p / sum - double(row[std::size_t(d.id)])) <= 1e-5 * d.p / sum + 1e-9))
        others_that_differ.insert("llama.cpp steps");
  }
}

// The rows of the standard setting for torch_steps.py, with what its answers are checked against:
// gamma, V and the number of drafts; logits of draft and target; drafts; the acceptance of each
// position; its residual law.
void export_rows(const char* path) {
  const setting s;
  const requests r(1, s.gamma, s.vocabulary, s.acceptance / 100.);
  std::vector<double> acceptance;
  std::vector<float> residual;
  for (std::size_t j = 0; j < s.gamma; ++j) {
    const auto q = normalise(softmax_row<float>(r.draft_logits(0, j))),
               p = normalise(softmax_row<float>(r.target(0, j)));
    if (q.why() != status::ok || p.why() != status::ok) std::abort();
    const double overlap = acceptance_rate(q, p);
    acceptance.push_back(overlap);
    for (std::size_t v = 0; v < s.vocabulary; ++v) {
      const double left = double(p[v]) - double(q[v]);
      residual.push_back(float(std::max(0., left) / (1 - overlap)));
    }
  }
  std::ofstream file(path, std::ios::binary);
  const auto write = [&](const auto& x) {
    file.write(reinterpret_cast<const char*>(x.data()), std::streamsize(x.size() * sizeof(x[0])));
  };
  write(std::vector<std::uint64_t>{s.gamma, s.vocabulary, requests::drafts});
  write(r.q);
  write(r.p);
  write(r.tokens);
  write(acceptance);
  write(residual);
  if (!file.flush()) {
    std::fprintf(stderr, "bench-verify: %s cannot be written\n", path);
    std::exit(2);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "--export") {
    export_rows(arguments[2]);
    return 0;
  }
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  check_all();
  std::vector<setting> settings;
  for (const std::size_t v : {32000u, 128256u, 151936u})
    for (const std::size_t g : {1u, 4u, 8u})
      for (const std::size_t b : {1u, 8u})
        for (const int a : {0, 50, 80, 100})
          for (const bool cold : {false, true})
            if (!cold || (b == 1 && g == 4 && beyond_caches() > 0))
              settings.push_back({v, g, b, a, cold});
  for (const setting& s : settings) {
    add("specagg", s, [](const requests& r) { return ours<float>(r, false); });
    add("specagg, known", s, [](const requests& r) { return ours<float>(r, true); });
    // Rivals: the standard setting, and one change at a time.
    const setting standard;
    const int changes = (s.vocabulary != standard.vocabulary) + (s.gamma != standard.gamma) +
                        (s.acceptance != standard.acceptance) + (s.cold != standard.cold);
    if (s.batch != 1 || changes > 1) continue;
    add("specagg, bf16", s, [](const requests& r) { return ours<bf16>(r, false); });
    add("specagg, bf16, known", s, [](const requests& r) { return ours<bf16>(r, true); });
    if (!s.cold) {
      add("specagg, block", s, [](const requests& r) { return ours_by_calls(r, {}, true); });
      add("specagg, top-p 0.9", s,
          [](const requests& r) { return ours_by_calls(r, {.top_p = 0.9}, false); });
    }
    add("specagg, from probabilities", s,
        [](const requests& r) { return ours_from_probabilities(r); });
    add("scalar expf, written out", s,
        [](const requests& r) { return written_out<scalar_softmax>(r, false); });
    add("scalar expf, known", s,
        [](const requests& r) { return written_out<scalar_softmax>(r, true); });
    add("Eigen, written out", s,
        [](const requests& r) { return written_out<eigen_softmax>(r, false); });
    add("vLLM V1 steps, known", s, [](const requests& r) { return draws_everywhere(r); });
    add("llama.cpp steps", s, [](const requests& r) { return sorted_structs(r); });
  }
  benchmark::RunSpecifiedBenchmarks();
}
