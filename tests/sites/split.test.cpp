// SPDX-License-Identifier: Apache-2.0
#include <specagg/sites/split.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <vector>

#include <specagg/audit/coupled_law.hpp>
#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/audit/grid.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/plan/link.hpp>
#include <specagg/sites/aggregate.hpp>
#include <specagg/verify/block.hpp>

#include "support/catch.hpp"

#define SPECAGG_COUNT_ALLOCATIONS
#include "support/allocations.hpp"

using namespace specagg;
using namespace specagg::sites;
using values = row_codec::values;

namespace {

using tokens = std::vector<token_id>;
template <class T>
using row_model = std::function<std::vector<T>(const tokens&)>;  // the row after a text

// Three probabilities, of which g++ does not know that they are three: it warns of loads that are
// never made.
template <class T>
[[gnu::noinline]] std::vector<T> row_of(T a, T b, T c) {
  return {a, b, c};
}

enum class protocol { dsd, dssd };

// The two ends. Neither looks at the other's text: all they know of each other is what travelled.
template <class T, class DeviceChooser, class ServerChooser>
struct two_ends {
  row_codec codec;
  std::size_t gamma;
  row_model<T> q, p;
  DeviceChooser& device_chooser;
  ServerChooser& server_chooser;
  protocol kind;
  tokens device_text = {0}, server_text = {0};
  token_id end_of_text = no_token, correction = no_token;
  split_workspace<T> device{codec, gamma}, server{codec, gamma};
  std::size_t up_bytes = 0, down_bytes = 0;
  std::function<downlink(const uplink<T>&, const std::function<std::vector<T>(std::size_t)>&)>
      mutant = {};
  std::function<void(uplink<T>&)> tamper = {};

  static tokens with(tokens text, std::span<const token_id> more) {
    text.insert(text.end(), more.begin(), more.end());
    return text;
  }
  template <class Verifier = token_verifier>
  status round(const Verifier& verifier = {}) {
    begin_draft(device, std::uint32_t(device_text.size()), end_of_text, correction);
    std::vector<std::vector<T>> q_rows;
    for (std::size_t j = 0; j < gamma && can_draft(device); ++j) {
      q_rows.push_back(q(with(device_text, device.up.drafted.tokens)));
      const status s = kind == protocol::dsd ? draft_coded(device, codec, q_rows[j], device_chooser)
                                             : draft_split(device, q_rows[j], device_chooser);
      if (s == status::invalid_row) break;  // a dead end: what was drafted before is sent
      if (s != status::ok) return s;
    }
    uplink<T> up = device.up;
    if (tamper) tamper(up);
    up_bytes += up.bytes();

    if (up.correction != no_token) server_text.push_back(up.correction);
    if (server_text.size() != up.drafted.start) return status::invalid_parameter;
    const std::function p_row = [&](std::size_t j) {
      return p(with(server_text, up.drafted.tokens.first(j)));
    };
    const auto p_rows = rows_of(up.drafted.tokens.size() + 1, p_row);
    const downlink down = mutant ? mutant(up, p_row)
                          : kind == protocol::dsd
                              ? verify_coded(up, codec, p_rows, server_chooser, server, verifier)
                              : verify_split(up, codec, p_rows, server_chooser, server);
    server_text = with(server_text, up.drafted.tokens.first(down.accepted));
    if (down.token != no_token) server_text.push_back(down.token);
    down_bytes += down.bytes();

    const finished f = finish_round(down, device.up.drafted, codec, q_rows, device_chooser, device);
    device_text = with(device_text, device.up.drafted.tokens.first(down.accepted));
    if (f.token != no_token) device_text.push_back(f.token);
    correction = f.correction;
    return f.why;
  }
};

// The worst |P(text) - due| over all texts of `length` tokens, whole rounds enumerated; 1 if a
// status was not ok.
template <class Setup, class Round>
double worst_error(const row_codec& codec, std::size_t gamma, const row_model<double>& q,
                   const row_model<double>& p, const row_model<double>& law, protocol kind,
                   std::size_t length, Setup setup, Round one_round,
                   std::size_t* reused = nullptr) {
  const auto texts = exact_law(
      [&](exhaustive_chooser& tree) {
        two_ends<double, exhaustive_chooser, exhaustive_chooser> ends{codec, gamma, q,   p,
                                                                      tree,  tree,  kind};
        setup(ends);
        while (ends.device_text.size() <= length)
          if (one_round(ends) != status::ok) return tokens{};
        ends.device_text.resize(length + 1);
        return ends.device_text;
      },
      reused);
  if (texts.count({})) return 1;
  double worst = 0, seen = 0;
  for (const auto& [text, probability] : texts) {
    double due = 1;
    for (std::size_t i = 1; i <= length; ++i)
      due *= law(tokens(text.begin(), text.begin() + std::ptrdiff_t(i)))[std::size_t(text[i])];
    worst = std::max(worst, std::fabs(probability - due));
    seen += due;
  }
  return std::max(worst, 1 - seen);  // texts never emitted
}
const auto plain_round = [](auto& ends) { return ends.round(); };
const auto block_round = [](auto& ends) { return ends.round(block_verifier{}); };
const auto nothing = [](auto&) {};

row_model<double> toy(std::uint64_t seed, std::size_t vocabulary = 3) {
  return [m = toy_source<double>(vocabulary, seed, 2, 2)](const tokens& text) {
    std::vector<double> logits(m.vocab_size()), p(m.vocab_size());
    m.row(text, logits);
    const auto row = normalise(softmax_row<double>(logits));
    if (row.why() == status::ok)
      for (std::size_t v = 0; v < p.size(); ++v) p[v] = row[v];
    return p;
  };
}
// The row as the other end sees it.
row_model<double> decoded(row_model<double> exact, row_codec codec) {
  return [=](const tokens& text) {
    split_workspace<double> work(codec, 1);
    const auto row = encode(codec, exact(text), work.bytes, work.ids, work.mass);
    std::vector<double> p;
    for (std::size_t v = 0; row.why == status::ok && v < codec.vocabulary; ++v)
      p.push_back(row.row[v]);
    return p;
  };
}

struct setting {
  const char* name;
  protocol kind;
  row_codec codec;
  bool target_coded;  // the law is the decoded target row
};
const setting settings[] = {
    {"DSD, full rows", protocol::dsd, {.vocabulary = 3}, false},
    {"DSD, rows of halves", protocol::dsd, {.vocabulary = 3, .format = values::half}, false},
    {"DSD, top-p 0.8", protocol::dsd, {.vocabulary = 3, .top_p = 0.8}, false},
    {"quantised drafts, K 2, l 5",
     protocol::dsd,
     {.vocabulary = 3, .format = values::counts, .top_k = 2, .total = 5},
     false},
    {"DSSD, full rows", protocol::dssd, {.vocabulary = 3}, false},
    {"DSSD, rows of halves", protocol::dssd, {.vocabulary = 3, .format = values::half}, true},
    {"DSSD, top-p 0.8", protocol::dssd, {.vocabulary = 3, .top_p = 0.8}, true},
};

}  // namespace

TEST_CASE("DSD, DSSD and quantised drafts emit exactly p on the 1/8 grid") {
  const auto grid = eighths<double>();
  const std::size_t n = grid.size();
  for (const setting& s : settings)
    for (const std::size_t gamma : {1u, 2u}) {
      double worst = 0;
      std::size_t reused = 0;
      for (std::size_t i = 0; i < n * n; i += gamma == 1 ? 1 : 3) {
        const auto row = [&](bool target) -> row_model<double> {
          return [&grid, i, n, target](const tokens& text) {
            std::size_t k = i;
            for (std::size_t t = 1; t < text.size(); ++t)
              k = (k * 31 + std::size_t(text[t]) * 577 + 101) % (n * n);
            const auto& r = grid[target ? k % n : k / n];
            return std::vector<double>(r.begin(), r.end());
          };
        };
        const auto p = row(true);
        worst = std::max(worst, worst_error(s.codec, gamma, row(false), p,
                                            s.target_coded ? decoded(p, s.codec) : p, s.kind, gamma,
                                            nothing, plain_round, &reused));
      }
      std::printf("%-28s gamma %zu  worst error %.1e\n", s.name, gamma, worst);
      CHECK(worst < 1e-12);
      CHECK(reused == 0);
    }
}
TEST_CASE(
    "whole texts over many rounds have exactly the joint law. The corrected token rides on the "
    "next uplink") {
  const auto q = toy(5), p = toy(6);
  for (const setting& s : settings)
    for (const std::size_t gamma : {0u, 1u, 2u}) {
      std::size_t reused = 0;
      const double worst =
          worst_error(s.codec, gamma, q, p, s.target_coded ? decoded(p, s.codec) : p, s.kind, 3,
                      nothing, plain_round, &reused);
      CHECK(worst < 1e-12);
      CHECK(reused == 0);
    }
}
TEST_CASE("quantised drafts emit exactly p under block verification too") {
  for (const std::size_t gamma : {1u, 2u, 3u})
    CHECK(worst_error(settings[3].codec, gamma, toy(5), toy(6), toy(6), protocol::dsd, 3, nothing,
                      block_round) < 1e-12);
}

// ---- tokens outside the support and dead ends ---------------------------------------------------

TEST_CASE(
    "a token outside the support on the uplink, and a row that the device cannot draw from, leave "
    "the law "
    "exactly p") {
  tokens sent;
  std::vector<double> claimed;
  for (const protocol kind : {protocol::dsd, protocol::dssd})
    for (const bool block : {false, true})
      for (std::size_t gamma = 1; gamma <= 2; ++gamma)
        for (std::size_t place = 0; place < gamma; ++place)
          for (const int how : {0, 1, 2}) {  // no token of the vocabulary; no mass; a dead end
            if (block && kind == protocol::dssd) continue;
            if (how == 1 && kind == protocol::dsd) continue;  // the toy rows have mass everywhere
            const auto tamper = [&](auto& ends) {
              if (how < 2)
                ends.tamper = [&](uplink<double>& up) {
                  sent.assign(up.drafted.tokens.begin(), up.drafted.tokens.end());
                  claimed.assign(up.probabilities.begin(), up.probabilities.end());
                  if (place >= sent.size()) return;
                  if (how == 0) sent[place] = place % 2 ? 3 : -5;
                  else claimed[place] = 0;
                  up.drafted.tokens = sent;
                  up.probabilities = claimed;
                };
            };
            const row_model<double> q = [&, whole = toy(5)](const tokens& text) {
              const bool hole = how == 2 && text.size() % 2 == place % 2;
              return hole ? std::vector<double>(3, std::nan("")) : whole(text);
            };
            const row_codec codec{.vocabulary = 3};
            const double worst =
                block ? worst_error(codec, gamma, q, toy(6), toy(6), kind, 3, tamper, block_round)
                      : worst_error(codec, gamma, q, toy(6), toy(6), kind, 3, tamper, plain_round);
            CHECK(worst < 1e-12);
          }
}

// ---- mutants ------------------------------------------------------------------------------------

TEST_CASE("mutant: accepting with q / p, as the DSSD paper prints, is found") {
  const auto inverted = [](auto& ends) {
    ends.mutant = [&ends](const uplink<double>& up, const auto& p_rows) {
      downlink down;
      const draft& d = up.drafted;
      for (;; ++down.accepted) {
        const std::size_t j = down.accepted;
        const auto row = p_rows(j);
        const auto p =
            encode(ends.codec, row, ends.server.bytes, ends.server.ids, ends.server.mass);
        const moment m{stream::coin, std::uint32_t(d.start + j), d.start};
        if (j == d.size()) {
          down.token = draw(p.row, {stream::bonus, m.position, m.start}, ends.server_chooser,
                            ends.server.scratch);
          return down;
        }
        if (!ends.server_chooser.coin(m, up.probabilities[j], p.row[std::size_t(d.tokens[j])])) {
          down.row = std::span(ends.server.bytes).first(p.bytes);
          return down;
        }
      }
    };
  };
  const double worst = worst_error(settings[4].codec, 1, toy(5), toy(6), toy(6), protocol::dssd, 2,
                                   inverted, plain_round);
  std::printf("q / p instead of p / q: worst error %.3f\n", worst);
  CHECK(worst > 0.02);
}
TEST_CASE("the plan counts the bytes that an uplink of DSSD has") {
  const std::array<token_id, 8> tokens{};
  const std::array<float, 8> q{};
  const uplink<float> up{draft{tokens}, no_token, q};
  CHECK(double(up.bytes()) == plan::bytes(plan::dssd_traffic({.gamma = 8}, 0.6).up));
  CHECK(up.bytes() == 64);
}
TEST_CASE("mutant: a rounded q_j(y_j) on the uplink is another q, and is found") {
  std::vector<double> rounded;
  const auto tamper = [&](auto& ends) {
    ends.tamper = [&](uplink<double>& up) {
      rounded.assign(up.probabilities.begin(), up.probabilities.end());
      for (double& x : rounded)
        x = double(specagg::detail::float_of_f16(sites::detail::half_of(x)));
      up.probabilities = rounded;
    };
  };
  const double worst = worst_error(settings[4].codec, 1, toy(5), toy(6), toy(6), protocol::dssd, 2,
                                   tamper, plain_round);
  std::printf("q_j(y_j) rounded to a half: worst error %.1e\n", worst);
  CHECK(worst > 1e-6);
}
TEST_CASE("mutant: accepting against the full p_j and sending a truncated one is found") {
  const auto full_target = [](auto& ends) {
    ends.mutant = [&ends](const uplink<double>& up, const auto& p_rows) {
      const row_codec full{.vocabulary = 3};
      downlink down = verify_split(up, full, rows_of(up.drafted.tokens.size() + 1, p_rows),
                                   ends.server_chooser, ends.server);
      if (down.row.empty()) return down;
      const auto p = encode(ends.codec, p_rows(down.accepted), ends.server.bytes, ends.server.ids,
                            ends.server.mass);
      down.row = std::span(ends.server.bytes).first(p.bytes);
      return down;
    };
  };
  const setting& s = settings[6];
  CHECK(worst_error(s.codec, 1, toy(5), toy(6), toy(6), s.kind, 2, full_target, plain_round) >
        0.01);
  CHECK(worst_error(s.codec, 1, toy(5), toy(6), decoded(toy(6), s.codec), s.kind, 2, full_target,
                    plain_round) > 0.01);
}

// ---- the production streams ---------------------------------------------------------------------

TEST_CASE(
    "with one seed the two halves emit the tokens that verify_token emits from the same rows") {
  constexpr std::size_t vocabulary = 1100, gamma = 4;
  const auto row = [](std::uint32_t seed, const tokens& text) {
    const random_streams noise(seed,
                               std::uint64_t(text.size()) * 4096 + std::uint64_t(text.back()));
    std::vector<float> logits(vocabulary), p(vocabulary);
    for (std::size_t v = 0; v < vocabulary; ++v)
      logits[v] = float(random_streams(1).noise(std::uint32_t(text.size()), token_id(v)) * 2 +
                        noise.noise(0, token_id(v)));
    const auto soft = normalise(softmax_row<float>(logits));
    if (soft.why() == status::ok)
      for (std::size_t v = 0; v < vocabulary; ++v) p[v] = soft[v];
    return p;
  };
  for (const protocol kind : {protocol::dsd, protocol::dssd})
    for (const row_codec& codec :
         {row_codec{.vocabulary = vocabulary},
          row_codec{.vocabulary = vocabulary, .format = values::half, .top_p = 0.9}}) {
      const auto coded = [&](const std::vector<float>& exact) {
        split_workspace<float> work(codec, 1);
        const auto r = encode(codec, exact, work.bytes, work.ids, work.mass);
        std::vector<float> p(vocabulary);
        for (std::size_t v = 0; v < vocabulary; ++v) p[v] = r.row[v];
        return p;
      };
      const row_model<float> q = [&](const tokens& text) { return row(1, text); },
                             p = [&](const tokens& text) { return row(2, text); };
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        random_streams device(seed), server(seed), local(seed);
        two_ends<float, random_streams, random_streams> ends{codec,  gamma,  q,   p,
                                                             device, server, kind};
        tokens text{0};
        std::vector<double> scratch(verify_scratch(vocabulary, gamma));
        for (int round = 0; round < 3; ++round) {
          REQUIRE(ends.round() == status::ok);
          std::vector<std::vector<float>> qs, ps;
          tokens y;
          const auto start = std::uint32_t(text.size());
          for (std::size_t j = 0; j <= gamma; ++j) {
            auto longer = text;
            longer.insert(longer.end(), y.begin(), y.end());
            qs.push_back(kind == protocol::dsd ? coded(q(longer)) : q(longer));
            ps.push_back(kind == protocol::dssd ? coded(p(longer)) : p(longer));
            const auto r = normalise(as_row(qs[j]));
            REQUIRE(r.why() == status::ok);
            if (j < gamma)
              y.push_back(
                  draw(r, {stream::draft, std::uint32_t(start + j), start}, local, scratch));
          }
          std::vector<emission> out(gamma + 1);
          const verdict v = verify_token(draft{y, start}, qs, ps, lossless{}, local, out, scratch);
          for (std::size_t i = 0; i < v.emitted; ++i) text.push_back(out[i].token);
          REQUIRE(ends.device_text == text);
        }
      }
    }
}
TEST_CASE("device and server with seeds of their own emit the joint law over many rounds") {
  const auto q = toy(5), p = toy(6);
  std::vector<double> counts(27), law(27);
  for (std::uint64_t request = 0; request < 20000; ++request) {
    random_streams device(1, request), server(2, request);
    two_ends<double, random_streams, random_streams> ends{
        settings[4].codec, 2, q, p, device, server, protocol::dssd};
    while (ends.device_text.size() < 4) REQUIRE(ends.round() == status::ok);
    counts[std::size_t(ends.device_text[1] * 9 + ends.device_text[2] * 3 + ends.device_text[3])] +=
        1;
  }
  for (std::size_t i = 0; i < 27; ++i) {
    tokens text{0};
    law[i] = 1;
    for (const std::size_t digit : {i / 9, i / 3 % 3, i % 3}) {
      law[i] *= p(text)[digit];
      text.push_back(token_id(digit));
    }
  }
  const fit f = goodness_of_fit(counts, law, 1e-8);
  std::printf("DSSD, two seeds: distance %.4f, expected %.4f, p %.3g, finds TV >= %.4f\n",
              f.distance, f.expected_distance, f.p_value, f.detectable);
  CHECK(f.passed);
}

// ---- Gumbel-max coupling ------------------------------------------------------------------------

TEST_CASE(
    "with the Gumbel-max coupling the text is argmin E / p, for any draft model, gamma 0, 1, 4 and "
    "8, and any "
    "length of draft") {
  constexpr std::size_t vocabulary = 40, length = 60;
  const row_codec codec{.vocabulary = vocabulary};
  const auto p = toy(6, vocabulary);
  const coupled_noise noise(99, 3);
  tokens due{0};
  while (due.size() <= length) {
    const auto row = p(due);
    token_id best = 0;
    for (token_id v = 1; v < token_id(vocabulary); ++v)
      if (noise(std::uint32_t(due.size()), v) / row[std::size_t(v)] <
          noise(std::uint32_t(due.size()), best) / row[std::size_t(best)])
        best = v;
    due.push_back(best);
  }
  for (const std::size_t gamma : {0u, 1u, 4u, 8u})
    for (const auto& q :
         {toy(5, vocabulary), toy(6, vocabulary), row_model<double>([](const tokens&) {
            return std::vector<double>(vocabulary, 1.0 / vocabulary);
          })}) {
      split_workspace<double> device(codec, gamma), server(codec, gamma);
      tokens text{0};
      std::size_t rounds = 0, up_bytes = 0;
      for (; text.size() <= length; ++rounds) {
        begin_draft(device, std::uint32_t(text.size()));
        tokens longer = text;
        for (std::size_t j = 0; j < gamma; ++j) {
          REQUIRE(draft_shared(device, q(longer), noise) == status::ok);
          longer.push_back(device.up.drafted.tokens.back());
        }
        const auto up = shared_uplink{coupled_draft{device.up.drafted}};
        up_bytes += up.bytes();
        const auto rows = rows_of(gamma + 1, [&](std::size_t j) {
          return p(tokens(longer.begin(), longer.begin() + std::ptrdiff_t(text.size() + j)));
        });
        const downlink down = verify_shared(up, rows, noise, server);
        REQUIRE(down.why == status::ok);
        REQUIRE(down.bytes() == 5);
        text.assign(longer.begin(), longer.begin() + std::ptrdiff_t(text.size() + down.accepted));
        text.push_back(down.token);
      }
      CHECK(up_bytes == rounds * gamma * 4);
      text.resize(length + 1);
      CHECK(text == due);
    }
}
TEST_CASE(
    "the Gumbel-max coupling accepts with probability sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), "
    "and emits "
    "p") {
  const auto q = row_of(0.5, 0.2, 0.3), p = row_of(0.2, 0.5, 0.3);
  const row_codec codec{.vocabulary = 3};
  split_workspace<double> device(codec, 1), server(codec, 1);
  const std::uint32_t n = 40000;
  double accepted = 0;
  std::vector<double> counts(3);
  for (std::uint32_t t = 1; t <= n; ++t) {
    const coupled_noise noise(5, t);
    begin_draft(device, 1);
    REQUIRE(draft_shared(device, q, noise) == status::ok);
    const downlink down = verify_shared(
        shared_uplink{coupled_draft{device.up.drafted}},
        rows_of(2, [&](std::size_t) -> const std::vector<double>& { return p; }), noise, server);
    accepted += double(down.accepted);
    counts[std::size_t(down.accepted ? device.up.drafted.tokens[0] : down.token)] += 1;
  }
  const double due = coupled_acceptance(q, p);
  CHECK(
      goodness_of_fit(std::vector{accepted, n - accepted}, std::vector{due, 1 - due}, 1e-8).passed);
  CHECK(goodness_of_fit(counts, p, 1e-8).passed);
}

// ---- bytes and statuses -------------------------------------------------------------------------

TEST_CASE("bytes of a round at V = 32000, gamma 4: what each protocol carries") {
  constexpr std::size_t vocabulary = 32000, gamma = 4;
  std::vector<float> q(vocabulary), p(vocabulary);
  double zq = 0, zp = 0;
  const auto weight = [](std::size_t rank) { return std::pow(double(rank + 1), -1.5); };
  for (std::size_t v = 0; v < vocabulary; ++v) {
    zq += weight(v);
    zp += weight(v ^ 3);
  }
  for (std::size_t v = 0; v < vocabulary; ++v) {
    q[v] = float(weight(v) / zq);
    p[v] = float(weight(v ^ 3) / zp);
  }
  const auto run = [&](protocol kind, const row_codec& codec) {
    random_streams device(4), server(4);
    two_ends<float, random_streams, random_streams> ends{
        codec,  gamma, [&](const tokens&) { return q; }, [&](const tokens&) { return p; }, device,
        server, kind};
    std::vector<std::pair<std::size_t, std::size_t>> seen;
    for (int i = 0; i < 20; ++i) {
      REQUIRE(ends.round() == status::ok);
      seen.push_back({ends.up_bytes, ends.down_bytes});
      ends.up_bytes = ends.down_bytes = 0;
    }
    return seen;
  };
  for (const auto& [up, down] : run(protocol::dsd, {.vocabulary = vocabulary})) {
    CHECK(up == gamma * (4 + 4 * vocabulary));
    CHECK(down == 5);
  }
  for (const auto& [up, down] :
       run(protocol::dsd, {.vocabulary = vocabulary, .format = values::half}))
    CHECK(up == gamma * (4 + 2 * vocabulary));
  for (const auto& [up, down] :
       run(protocol::dsd,
           {.vocabulary = vocabulary, .format = values::counts, .top_k = 8, .total = 64})) {
    CHECK(up == gamma * (4 + 17));
    CHECK(down == 5);
  }
  std::size_t before = 5, rejected = 0;  // a correction travels exactly after a row came down
  for (const auto& [up, down] :
       run(protocol::dssd, {.vocabulary = vocabulary, .format = values::half})) {
    CHECK(up == gamma * 8 + (before == 5 ? 0 : 4));
    CHECK((down == 5 || down == 1 + 2 * vocabulary));
    before = down;
    rejected += down != 5;
  }
  CHECK(rejected > 2);
  CHECK(rejected < 20);
}
TEST_CASE("the end of the text ends the round in every protocol: no bonus after it") {
  const auto sure = row_of<double>(0, 0, 1);
  const row_model<double> always = [&](const tokens&) { return sure; };
  for (const protocol kind : {protocol::dsd, protocol::dssd}) {
    random_streams chooser(1);
    two_ends<double, random_streams, random_streams> ends{
        {.vocabulary = 3}, 3, always, always, chooser, chooser, kind};
    ends.end_of_text = 2;
    CHECK(ends.round() == status::ok);
    CHECK(ends.device_text == tokens{0, 2});
    CHECK(ends.down_bytes == 1);
  }
}
TEST_CASE("a coded uplink that is no draft is refused with a status, and decides nothing") {
  const row_codec codec{.vocabulary = 3};
  const auto q = row_of(0.5, 0.25, 0.25), p = row_of(0.2, 0.5, 0.3);
  random_streams chooser(1);
  split_workspace<double> device(codec, 2), server(codec, 2);
  const auto p_rows = rows_of(3, [&](std::size_t) -> const std::vector<double>& { return p; });
  begin_draft(device, 1);
  REQUIRE(draft_coded(device, codec, q, chooser) == status::ok);
  REQUIRE(draft_coded(device, codec, q, chooser) == status::ok);
  CHECK(draft_coded(device, codec, q, chooser) == status::invalid_parameter);  // longer than agreed
  const uplink<double> good = device.up;
  const auto coded = [&](auto change) {
    uplink<double> up = good;
    change(up);
    const downlink down = verify_coded(up, codec, p_rows, chooser, server);
    if (down.why != status::ok) CHECK((down.accepted == 0 && down.token == no_token));
    return down.why;
  };
  CHECK(coded([](auto&) {}) == status::ok);
  CHECK(coded([](auto& up) { up.rows = up.rows.first(up.rows.size() - 1); }) ==
        status::invalid_row);
  // one row for two tokens
  CHECK(coded([](auto& up) { up.rows = up.rows.first(24); }) == status::invalid_row);
  // two for one
  CHECK(coded([](auto& up) { up.drafted.tokens = up.drafted.tokens.first(1); }) ==
        status::invalid_row);
  const tokens many(3, 0);
  CHECK(coded([&](auto& up) { up.drafted.tokens = many; }) == status::invalid_parameter);
}
TEST_CASE("an uplink of tokens and probabilities that is no draft is refused with a status") {
  const row_codec codec{.vocabulary = 3};
  const auto q = row_of(0.5, 0.25, 0.25), p = row_of(0.2, 0.5, 0.3);
  random_streams chooser(1);
  split_workspace<double> device(codec, 2), server(codec, 2);
  const auto p_rows = rows_of(3, [&](std::size_t) -> const std::vector<double>& { return p; });
  const tokens many(3, 0);
  begin_draft(device, 1);
  REQUIRE(draft_split(device, q, chooser) == status::ok);
  const uplink<double> split_good = device.up;
  const auto split = [&](auto change) {
    uplink<double> up = split_good;
    change(up);
    return verify_split(up, codec, p_rows, chooser, server);
  };
  CHECK(split([](auto&) {}).why == status::ok);
  CHECK(split([](auto& up) { up.probabilities = {}; }).why == status::invalid_parameter);
  const std::vector<double> ones(3, 1);
  CHECK(split([&](auto& up) {
          up.drafted.tokens = many;
          up.probabilities = ones;
        }).why == status::invalid_parameter);
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -0.1, 1.5,
                           std::numeric_limits<double>::infinity()}) {
    const std::vector<double> x{bad};
    CHECK(split([&](auto& up) { up.probabilities = x; }).why == status::invalid_row);
  }
  for (const token_id bad :
       {-7, 3, std::numeric_limits<token_id>::max(), std::numeric_limits<token_id>::min()}) {
    const tokens y{bad};
    // the draft ends before it; from p
    const downlink down = split([&](auto& up) { up.drafted.tokens = y; });
    CHECK(down.why == status::ok);
    CHECK(down.accepted == 0);
    CHECK(down.row.empty());
    CHECK(down.token >= 0);
    CHECK(finish_round(down, {y, 1}, codec, std::vector(1, q), chooser, device).token ==
          down.token);
  }
  const auto nan_row = row_of<double>(NAN, 0.5, 0.5);
  CHECK(draft_coded(device, codec, nan_row, chooser) == status::invalid_row);
  CHECK(draft_split(device, nan_row, chooser) == status::invalid_row);
  CHECK(verify_split(split_good, codec,
                     rows_of(2, [&](std::size_t) -> const std::vector<double>& { return nan_row; }),
                     chooser, server)
            .why == status::invalid_row);
  const std::vector<double> two{0.5, 0.5};
  CHECK(draft_coded(device, codec, two, chooser) == status::vocabulary_mismatch);
}
TEST_CASE("an answer that is none to this draft is refused with a status") {
  const row_codec codec{.vocabulary = 3};
  const std::vector<std::vector<double>> q(1, {0.5, 0.25, 0.25});
  random_streams chooser(1);
  split_workspace<double> work(codec, 1), server(codec, 1);
  const tokens y{0};
  const draft drafted{y, 1};
  const auto row = encode(codec, row_of(0.2, 0.5, 0.3), server.bytes, server.ids, server.mass);
  const std::span<const std::uint8_t> bytes = std::span(server.bytes).first(row.bytes);
  const auto why = [&](const downlink& down) {
    return finish_round(down, drafted, codec, q, chooser, work).why;
  };
  CHECK(why({0, no_token, bytes}) == status::ok);
  CHECK(why({1, 2}) == status::ok);
  CHECK(why({2, 2}) == status::invalid_parameter);  // more accepted than drafted
  // a row after a draft that was kept whole
  CHECK(why({1, no_token, bytes}) == status::invalid_parameter);
  CHECK(why({0, 1, bytes}) == status::invalid_parameter);
  CHECK(why({0, 3}) == status::token_out_of_range);
  CHECK(why({0, -2}) == status::token_out_of_range);
  CHECK(why({0, no_token, bytes.first(bytes.size() - 1)}) == status::invalid_row);
  CHECK(why({0, no_token, {}, status::context_full}) == status::context_full);
}
TEST_CASE("no half and no aggregation allocates") {
  const auto q = row_of(0.5f, 0.25f, 0.25f), p = row_of(0.25f, 0.5f, 0.25f);
  const auto p_rows = rows_of(3, [&](std::size_t) -> const std::vector<float>& { return p; });
  random_streams chooser(1), other(1, 0, 1);
  const coupled_noise noise(1);
  for (const row_codec& codec :
       {row_codec{.vocabulary = 3},
        row_codec{.vocabulary = 3, .format = values::half, .top_p = 0.9},
        row_codec{.vocabulary = 3, .format = values::counts, .top_k = 2, .total = 9}}) {
    split_workspace<float> device(codec, 2), server(codec, 2);
    const std::size_t before = allocations;
    begin_draft(device, 1);
    while (can_draft(device) && draft_coded(device, codec, q, chooser) == status::ok) continue;
    const downlink a = verify_coded(device.up, codec, p_rows, chooser, server);
    begin_draft(device, 1);
    while (can_draft(device) && draft_split(device, q, chooser) == status::ok) continue;
    const downlink b = verify_split(device.up, codec, p_rows, chooser, server);
    const finished f =
        finish_round(b, device.up.drafted, codec,
                     rows_of(2, [&](std::size_t) -> const auto& { return q; }), chooser, device);
    begin_draft(device, 1);
    while (can_draft(device) && draft_shared(device, q, noise) == status::ok) continue;
    const downlink c =
        verify_shared(shared_uplink{coupled_draft{device.up.drafted}}, p_rows, noise, server);
    const aggregation g = aggregate(1, site_draft{0, q, chooser}, site_draft{1, p, other},
                                    weigh_sites(0, 0.5), server.scratch);
    const bool made = allocations != before;
    CHECK_FALSE(made);
    CHECK(a.why == status::ok);
    CHECK((f.why == status::ok && c.why == status::ok && g.why == status::ok));
  }
}
