// SPDX-License-Identifier: Apache-2.0
// Two sites: the four splits of DSSD (Ning et al. 2025) over a grid of links, DSD and DSSD in the
// same rounds, DRAGON's acceptance and its time a token (Liu et al. 2025) over added delay. Decode
// times are given, not measured: the models of this project decode in fractions of a millisecond,
// so on any link everything would be delay.
#include <cstdlib>
#include <sstream>

#include <specagg/plan/dragon.hpp>
#include <specagg/plan/link.hpp>
#include <specagg/sites/aggregate.hpp>

#include "../../tools/cli/scheduled.hpp"
#include "decoding.hpp"
#include "exact.hpp"

using namespace specagg::sites;

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
  // ms of a step. c = 0.1 is the paper's; its Table 2 implies 132 to 181 ms of the target model
  // ("Table 2 of the DSSD paper is not of its equation 13").
  constexpr double llm = 150, slm = 0.1 * llm;
  for (const pair& models : {pairs[0], pairs[1]})
    for (const double temperature : {1.0, 0.5}) {
      const auto here = [&](const auto& r) {
        return r.at("pair") == models.name() && number(r, "temperature") == temperature;
      };
      // Tokens of a round of gamma drafts: 1 + Pr[draft 1 is kept] + ..., counted in rounds of 8.
      const auto tokens_of = [&](const char* verifier) {
        const auto r = find(verified, [&](const auto& x) {
          return here(x) && x.at("verifier") == verifier && x.at("gamma") == "8";
        });
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
        for (const double mbit : {1, 10, 50, 100, 1000})
          for (const double delay : {0, 20, 50, 100})
            for (std::size_t gamma = 1; gamma <= most; ++gamma) {
              const plan::link link{1e3 * mbit, 1e3 * mbit, delay};  // bits a millisecond
              const plan::split split{gamma, vocabulary};
              // Chance that a whole draft is kept, as the plan's a^gamma.
              const double all_kept =
                  std::pow(std::max(0.0, exact[gamma] - exact[gamma - 1]), 1 / double(gamma));
              const double bits_k = vocabulary == 4096
                                        ? double(row_bits)
                                        : plan::quantised_row_bits(std::size_t(vocabulary), 8, 64);
              const auto add = [&](const char* protocol, double tokens, const plan::traffic& t) {
                const double ms = plan::communication(t, link);
                out.add(models.name(), temperature, vocabulary, mbit, delay, gamma, protocol,
                        tokens, t.up / 8, t.down / 8, ms, slm, llm,
                        plan::split_speedup(tokens, gamma, slm, llm, ms));
              };
              add("dsd", exact[gamma], plan::dsd_traffic(split));
              add("dssd", exact[gamma], plan::dssd_traffic(split, all_kept));
              add("shared", shared[gamma], plan::coupled_traffic(split));
              // Drafts from rounded rows are kept a little less often, each by the same factor.
              double tokens = 1;
              for (std::size_t k = 1; k <= gamma; ++k)
                tokens += (exact[k] - exact[k - 1]) * std::pow(kept, double(k));
              add("quantised", tokens, plan::quantised_traffic(split, bits_k));
            }
    }
}

// The communication of DSD and DSSD in the same rounds: the same seed gives both the same text, and
// a round is the same in both but for what travels. Rows of V = 50,000 probabilities of 16 bits, as
// in the paper, though these models have fewer.
void dssd_paired(lab& lab, table& out) {
  const auto prompts = lab.prompts(lab.how.quick ? 2 : 6);
  const std::size_t most = lab.how.quick ? 48 : 96;
  constexpr plan::split sent{.vocabulary = 50000};
  constexpr double id = sent.id_bits, row = sent.vocabulary * sent.bits;
  std::size_t done = 0;
  for (const pair& models : {pairs[0], pairs[1]})
    for (const std::size_t gamma : std::vector<std::size_t>{1, 2, 4, 8}) {
      std::vector<decoded> of_prompt(prompts.size());
      lab.each(prompts.size(), [&](std::size_t i) {
        readers sessions = lab.open({models.q, models.p});
        of_prompt[i] = decode_prompt(
            prompts[i], most, sessions,
            [&](text& t, std::size_t n, std::vector<meter>& m, random_streams& chooser,
                decoded& d) { return speculate(t, n, m, chooser, d, lossless{}, gamma, 1, false); },
            lab.how.seed, i);
      });
      decoded all;
      for (const decoded& d : of_prompt) all += d;
      const double rejected =
          all.over_rounds([](const round& r) { return r.accepted < r.drafted; }).mean;
      for (const double up : {10., 100.})  // Mbit/s
        for (const double share : {1., 0.5, 0.25, 0.125}) {
          const auto ms = [&](const plan::traffic& t) {
            return plan::communication(t, {1e3 * up, 1e3 * up * share, 0});
          };
          const auto dsd = [&](const round& r) {
            return ms({double(r.drafted) * (id + row), 2 * id});
          };
          const auto dssd = [&](const round& r) {
            const bool replaced = r.accepted < r.drafted;
            return ms({double(r.drafted) * (id + sent.q_bits), id + (replaced ? row : id)});
          };
          const auto gain = all.over_rounds([&](const round& r) { return dsd(r) - dssd(r); });
          out.add(models.name(), gamma, up, up * share, all.rounds.size(), rejected,
                  all.over_rounds(dsd).mean, all.over_rounds(dssd).mean, gain.mean, gain.se,
                  all.over_rounds([&](const round& r) { return dssd(r) > dsd(r); }).mean);
        }
      lab.progress(double(++done) / 8);
    }
}

// DRAGON's Eq 5 for several gamma_l, beside the acceptance of the aggregation itself, at held-out
// positions: l = bard, r = bible. gain: of alpha^l from gamma_l = 0 to 1 (Theorem 4.2).
void dragon_acceptance(lab& lab, table& out) {
  const std::size_t every = lab.how.quick ? 8 : 16, n = lab.all_positions() / every;
  for (const char* m : {"bard", "bible"})
    for (const std::string& text : lab.texts()) lab.logits(m, text, 0);
  std::size_t done = 0;
  for (const double eta_l : {0.2, 0.5, 0.8})
    for (const double gamma_l : {0.2, 0.5, 0.8}) {
      struct one {
        double eq5 = 0, counted = 0, r = 0, gain = 0;
      };
      std::vector<one> all(n);
      lab.each(n, [&](std::size_t k) {
        const auto l = probabilities(lab.logits("bard", k * every), 1),
                   r = probabilities(lab.logits("bible", k * every), 1);
        const auto eta = weigh_sites(std::log(eta_l), std::log(1 - eta_l));
        const agreement both = agreement_of(l, r, eta, gamma_l);
        all[k] = {acceptance_eq5(l, r, eta, gamma_l), both.l(), both.r(),
                  acceptance_eq5(l, r, eta, 1) - acceptance_eq5(l, r, eta, 0)};
      });
      double distance = 0, least = 1;
      for (const one& x : all) {
        distance = std::max(distance, std::fabs(x.eq5 - x.counted));
        least = std::min(least, x.gain);
      }
      const auto mean = [&](double one::* what) {
        return mean_of(0, n, 1, [&](std::size_t i) { return all[i].*what; }).mean;
      };
      out.add(eta_l, gamma_l, n, mean(&one::eq5), mean(&one::counted), mean(&one::r), distance,
              least, mean(&one::gain));
      lab.progress(double(++done) / 9);
    }
}

// Every strategy in one setting: a row for each, add(aggregation, strategy, ...).
template <class Add>
void add_simulated(lab& lab, const cli::scheduled_setting& how, std::uint32_t repeats,
                   const char* aggregation, const Add& add) {
  const double way = how.base + how.delay / 2;
  const plan::dragon d{how.c_l, how.c_r, way, way, how.accept};
  const std::size_t strategies = how.look_ahead == 1 ? 1 : scheduling_names.size();
  std::vector<std::vector<cli::scheduled_times>> of(strategies,
                                                    std::vector<cli::scheduled_times>(repeats));
  lab.each(strategies * repeats, [&](std::size_t i) {
    of[i / repeats][i % repeats] =
        cli::scheduled_run(how, scheduling(i / repeats), lab.how.seed + i % repeats);
  });
  const std::size_t eq8 = std::min(std::size_t(scheduling::eq8), strategies - 1);
  for (std::size_t s = 0; s < strategies; ++s) {
    const auto ms = [&](std::size_t which, std::size_t k) {
      return 1e3 * of[which][k].all / double(how.tokens);
    };
    const auto fixed = scheduling(s) == scheduling::l   ? plan::latency(d)
                       : scheduling(s) == scheduling::r ? plan::latency(plan::exchanged(d))
                                                        : NAN;
    add(aggregation, scheduling_names[s], how.accept,
        mean_of(0, repeats, 1, [&](std::size_t k) { return ms(s, k); }),
        mean_of(0, repeats, 1, [&](std::size_t k) { return ms(s, k) - ms(eq8, k); }),
        1e3 * mean_of(0, repeats, 1, [&](std::size_t k) { return of[s][k].first; }).mean,
        1e3 * (how.look_ahead == 1 ? plan::token_wise_latency(d) : fixed),
        scheduling(s) == scheduling::l && how.look_ahead > 1 ? plan::speedup_eq9(d) : NAN);
  }
}

// What needs no simulation. way: seconds of a message.
template <class Add>
void add_closed_forms(double device, double cloud, double way, const Add& add) {
  constexpr double row = 50272 * 16 / 100e6;  // s; V probabilities at 100 Mbit/s
  // Baselines without a simulation: the device alone, and the rows of 20 tokens sent at once.
  const double apart = plan::sequence_wise_latency({device, cloud, way, way}, 20, row);
  add("device alone", "device", {}, {1e3 * device, 0}, {NAN, NAN}, 1e3 * device, NAN, NAN);
  add("sequence-wise", "device", {}, {1e3 * apart, 0}, {NAN, NAN}, 1e3 * 20 * apart, NAN, NAN);
  // Corollary 6.5: the exact time with aggregation at the device, alpha^r = 1/2, alpha^l =
  // 0.5 and 0.9.
  for (const double a_l : {0.5, 0.9}) {
    const agreement known = plan::agreement_of(a_l, 0.5);
    const double exact = 1e3 * plan::latency({device, cloud, way, way, known});
    add("exact", fmt::format("device {:g}", a_l), known, {exact, 0}, {NAN, NAN}, NAN, exact, NAN);
  }
  // Corollary 6.4: with alpha^l = 1/2, alpha^r = 0.1 and 0.9.
  for (const double a_r : {0.1, 0.9}) {
    const agreement known = plan::agreement_of(0.5, a_r);
    const plan::dragon d{device, cloud, way, way, known};
    const double exact = 1e3 * plan::latency(d);
    add("exact", fmt::format("cloud {:g}", a_r), known, {exact, 0}, {NAN, NAN}, NAN, exact,
        plan::speedup_eq9(d));
  }
}

// The protocol itself is simulated, by what `specagg plan schedulers` runs: the schedulers learn
// the acceptances by counting, drafts run at most 16 tokens ahead. Times are given, not measured: a
// cloud of 22 ms a token, and a device of 22 or, without a graphics card as in the paper, 88 ms.
// All strategies meet the same sequences of acceptances.
void dragon_latency(lab& lab, table& out) {
  const records accepted = lab.read("acceptance");
  const std::uint32_t tokens = 100, repeats = lab.how.quick ? 4 : 50;
  constexpr double cloud = 0.022, base = 0.001;  // s
  const std::vector<double> delays{0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5};
  std::size_t done = 0;
  for (const double temperature : {1.0, 0.5})
    for (const double device : {0.022, 0.088}) {
      const auto a = find(accepted, [&](const auto& r) {
        return r.at("pair") == "bard-bible" && number(r, "temperature") == temperature;
      });
      const auto law = [&](const std::string& kind) {
        const double both = number(a, (kind + "_both").c_str()),
                     l = number(a, (kind + "_only_l").c_str()),
                     r = number(a, (kind + "_only_r").c_str());
        return agreement{both, l, r};
      };
      for (const double delay : delays) {
        const auto add = [&](const std::string& aggregation, std::string_view strategy,
                             const agreement& accept, const estimate& ms, const estimate& over,
                             double first, double predicted, double eq9) {
          out.add(temperature, 1e3 * device, 1e3 * cloud, 1e3 * delay, aggregation, strategy,
                  accept.l(), accept.r(), ms.mean, ms.se, over.mean, over.se, first, predicted,
                  eq9);
        };
        const auto all = [&](const char* aggregation, const agreement& accept,
                             std::uint32_t look_ahead) {
          add_simulated(lab, {device, cloud, base, delay, accept, tokens, look_ahead}, repeats,
                        aggregation, add);
        };
        all("synchronous", {}, 1);
        all("independent", law("independent"), 16);
        all("shared noise", law("shared"), 16);
        add_closed_forms(device, cloud, base + delay / 2, add);
        lab.progress(double(++done) / double(4 * delays.size()));
      }
    }
}

// Where the paper gives no decode time or few sequences are not enough: the first token of two
// connected sites in closed form; what Eq 8 saves over synchronous aggregation with devices of
// several speeds; and over a fixed and a random side, with many sequences.
void dragon_devices(lab& lab, table& out) {
  const auto a = find(lab.read("acceptance"), [](const auto& r) {
    return r.at("pair") == "bard-bible" && number(r, "temperature") == 1;
  });
  const agreement law{number(a, "independent_both"), number(a, "independent_only_l"),
                      number(a, "independent_only_r")};
  constexpr double cloud = 0.022, base = 0.001;
  constexpr std::uint32_t tokens = 100;
  const auto times = [&](double device, double delay, const agreement& accept,
                         std::uint32_t look_ahead, scheduling how, std::size_t repeats) {
    const cli::scheduled_setting setting{device, cloud, base, delay, accept, tokens, look_ahead};
    std::vector<double> ms(repeats);
    lab.each(repeats, [&](std::size_t i) {
      ms[i] = 1e3 * cli::scheduled_run(setting, how, lab.how.seed + i).all / double(tokens);
    });
    return ms;
  };
  const auto add = [&](const char* what, double device, double delay, std::string_view side,
                       std::size_t repeats, auto&& ms) {
    const auto of = mean_of(0, repeats, 1, ms);
    out.add(what, 1e3 * device, 1e3 * delay, side, repeats, of.mean, of.se);
  };
  for (const double delay : {0., 0.05, 0.1, 0.15, 0.2, 0.25, 0.3}) {
    const double way = base + delay / 2;
    add("first", 0.088, delay, "", 1,
        [&](std::size_t) { return 1e3 * plan::first_token_latency({0.088, cloud, way, way}); });
  }
  const std::size_t repeats = lab.how.quick ? 4 : 50, many = lab.how.quick ? 8 : 2000;
  for (const double device : {0.022, 0.033, 0.044, 0.066, 0.088}) {
    const auto synchronous = times(device, 0.3, {}, 1, scheduling::l, repeats),
               eq8 = times(device, 0.3, law, 16, scheduling::eq8, repeats);
    add("share saved", device, 0.3, "Eq 8", repeats,
        [&](std::size_t i) { return 1 - eq8[i] / synchronous[i]; });
  }
  for (const double delay : {0.1, 0.3}) {
    const auto eq8 = times(0.088, delay, law, 16, scheduling::eq8, many);
    for (const auto how : {scheduling::l, scheduling::r, scheduling::random}) {
      const auto other = times(0.088, delay, law, 16, how, many);
      add("ms saved", 0.088, delay, scheduling_names[std::size_t(how)], many,
          [&](std::size_t i) { return other[i] - eq8[i]; });
    }
    lab.progress(delay / 0.3);
  }
}

}  // namespace experiments
