// SPDX-License-Identifier: Apache-2.0
// Two sites, from measured times and exact acceptance: the four splits of DSSD (Ning et al. 2025) over a grid of links,
// and DRAGON's time a token (Liu et al. 2025) over added delay. The models of this project decode in fractions of a
// millisecond; as on links that take a hundred times as long everything would be delay, `slowdown` multiplies all
// decode times.
#include <cstdlib>
#include <sstream>

#include <specagg/plan/dragon.hpp>
#include <specagg/plan/link.hpp>

#include "lab.hpp"

namespace experiments {
namespace {

double number(const std::map<std::string, std::string>& r, const char* column) {
  return std::strtod(r.at(column).c_str(), nullptr);
}

template <class F>
std::map<std::string, std::string> find(const records& all, F&& is) {
  for (const auto& r : all)
    if (is(r)) return r;
  return {};
}

}  // namespace

void dssd(lab& lab, table& out) {
  const records verified = lab.read("verifiers"), accepted = lab.read("acceptance");
  constexpr std::size_t most = 8;
  for (const pair& models : {pairs[0], pairs[1]})
    for (const double temperature : {1.0, 0.5}) {
      const auto here = [&](const auto& r) {
        return r.at("pair") == models.name() && number(r, "temperature") == temperature;
      };
      // Tokens of a round of gamma drafts: 1 + Pr[draft 1 is kept] + ..., counted in rounds of 8.
      const auto tokens_of = [&](const char* verifier) {
        const auto r = find(
            verified, [&](const auto& x) { return here(x) && x.at("verifier") == verifier && x.at("gamma") == "8"; });
        std::istringstream reached(r.at("reached"));
        std::vector<double> tokens{1};
        for (double x; reached >> x;) tokens.push_back(tokens.back() + x);
        return tokens;
      };
      const auto exact = tokens_of("token"), shared = tokens_of("coupled");
      const auto a = find(accepted, here);
      const double kept = number(a, "quantised") / number(a, "ratio");
      const std::size_t row_bits = 8 * std::size_t(number(a, "quantised_bytes"));
      for (const double vocabulary : {4096.0, 50000.0})
        for (const double slowdown : {1.0, 100.0, 400.0})
          for (const double mbit : {1, 10, 50, 100, 1000})
            for (const double delay : {0, 20, 50, 100})
              for (std::size_t gamma = 1; gamma <= most; ++gamma) {
                const double slm = 1e3 * slowdown * lab.seconds(models.q, 1),
                             llm = 1e3 * slowdown * lab.seconds(models.p, 1);
                const double v = lab.seconds(models.p, double(gamma) + 1) / lab.seconds(models.p, 1);
                const plan::link link{1e3 * mbit, 1e3 * mbit, delay};  // bits a millisecond
                const plan::split split{gamma, vocabulary};
                // Chance that a whole draft is kept, as the plan's a^gamma.
                const double all_kept = std::pow(std::max(0.0, exact[gamma] - exact[gamma - 1]), 1 / double(gamma));
                const double bits_k =
                    vocabulary == 4096 ? double(row_bits) : plan::quantised_row_bits(std::size_t(vocabulary), 8, 64);
                const auto add = [&](const char* protocol, double tokens, const plan::traffic& t) {
                  const double ms = plan::communication(t, link);
                  out.add(models.name(), temperature, vocabulary, slowdown, mbit, delay, gamma, protocol, tokens,
                          t.up / 8, t.down / 8, ms, slm, llm, v, plan::split_speedup(tokens, gamma, slm, llm, ms, v),
                          plan::split_speedup(tokens, gamma, slm, llm, ms));
                };
                add("dsd", exact[gamma], plan::dsd_traffic(split));
                add("dssd", exact[gamma], plan::dssd_traffic(split, all_kept));
                add("shared", shared[gamma], plan::shared_noise_traffic(split));
                // Drafts from rounded rows are kept a little less often, each by the same factor.
                double tokens = 1;
                for (std::size_t k = 1; k <= gamma; ++k)
                  tokens += (exact[k] - exact[k - 1]) * std::pow(kept, double(k));
                add("quantised", tokens, plan::quantised_traffic(split, bits_k));
              }
    }
}

namespace {

enum class strategy { device, cloud, random, eq8, recursion, moving };
constexpr std::array strategies{"device", "cloud", "random", "Eq 8", "recursion", "moving"};

// Seconds a token over `tokens`, the round trip swinging by a fifth in 20 pi seconds as in the paper, from a phase.
double simulate(plan::dragon d, strategy how, std::size_t tokens, std::uint64_t seed, double phase) {
  const double t_l = d.t_l, t_r = d.t_r;
  const random_streams noise(seed), sides(seed, 1);
  plan::timeline line(d, 0);
  for (std::size_t t = 0; t < tokens; ++t) {
    const double swing = 1 + 0.2 * std::sin(line.aggregated / 10 + phase);
    d.t_l = t_l * swing, d.t_r = t_r * swing;
    side at = side::l;
    if (how == strategy::cloud) at = side::r;
    else if (how == strategy::random) at = side(sides.coin({stream::side, std::uint32_t(t), 0}, 1, 2));
    else if (how == strategy::eq8) at = plan::side_by_eq8(d);
    else if (how == strategy::recursion) at = plan::side_by_recursion(d);
    else if (how == strategy::moving) at = plan::next_side(d, line, plan::side_by_recursion(d), seed + 1000);
    const auto [l, r] = plan::accepted_at(d.accept, noise, t);
    line.aggregate(d, at, l, r);
  }
  return line.aggregated / double(tokens);
}

}  // namespace

void dragon_latency(lab& lab, table& out) {
  const records accepted = lab.read("acceptance");
  const std::size_t tokens = 100, repeats = lab.how.quick ? 5 : 50;
  constexpr double slowdown = 100, device = 4;  // the device's model takes four times as long as the cloud's
  const double step = slowdown * lab.seconds("target", 1);
  const std::vector<double> delays{0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5};
  std::size_t done = 0;
  for (const double temperature : {1.0, 0.5})
    for (const double c_l : {device * step, step}) {
      const auto a = find(accepted, [&](const auto& r) {
        return r.at("pair") == "bard-bible" && number(r, "temperature") == temperature;
      });
      const auto law = [&](const std::string& kind) {
        const double both = number(a, (kind + "_both").c_str()), l = number(a, (kind + "_only_l").c_str()),
                     r = number(a, (kind + "_only_r").c_str());
        return agreement{both, l, r};
      };
      for (const double delay : delays) {
        const auto run = [&](const char* aggregation, const agreement& accept, strategy how) {
          const plan::dragon d{c_l, step, delay / 2, delay / 2, accept};
          std::vector<double> seconds;
          for (std::size_t k = 0; k < repeats; ++k)
            seconds.push_back(
                simulate(d, how, tokens, lab.how.seed + k, 6.283185307179586 * double(k) / double(repeats)));
          const auto mean = mean_of(0, repeats, 1, [&](std::size_t k) { return seconds[k]; });
          const double predicted = how == strategy::device  ? plan::latency(d)
                                   : how == strategy::cloud ? plan::latency(plan::exchanged(d))
                                                            : NAN;
          out.add(temperature, 1e3 * c_l, 1e3 * step, 1e3 * delay, aggregation, strategies[std::size_t(how)],
                  accept.l(), accept.r(), 1e3 * mean.mean, 1e3 * mean.se, 1e3 * predicted);
        };
        run("synchronous", {}, strategy::device);
        for (std::size_t s = 0; s < strategies.size(); ++s) run("independent", law("independent"), strategy(s));
        for (std::size_t s = 0; s < strategies.size(); ++s) run("shared noise", law("shared"), strategy(s));
        lab.progress(double(++done) / double(4 * delays.size()));
      }
    }
}

}  // namespace experiments
