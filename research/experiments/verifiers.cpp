// SPDX-License-Identifier: Apache-2.0
// The verifiers: how many drafted tokens each keeps. And the telemetry estimate of tokens a
// round, from the rows, beside counting them.
#include <specagg/audit/coupled_law.hpp>
#include <specagg/error.hpp>
#include <specagg/sites/aggregate.hpp>
#include <specagg/sites/codec.hpp>

#include "decoding.hpp"
#include "exact.hpp"

namespace experiments {

using namespace specagg::sites;

// Of one token, exactly, at held-out positions of both texts: ratio, match and coupled acceptance
// of a draft of q towards p; of a draft in a row of 64 counts on 8 tokens (DSSD); of two sites, l =
// q and r = p (DRAGON).
void acceptance(lab& lab, table& out) {
  const std::size_t every = lab.how.quick ? 8 : 16, n = lab.all_positions() / every;
  const row_codec codec{lab.open({"target"})[0]->vocab_size(), row_codec::values::counts, 8, 1, 64};
  std::size_t done = 0;
  for (const pair& models : {pairs[0], pairs[1]})  // all but the quantised acceptance is symmetric
    for (const double temperature : {1.0, 0.5}) {
      struct sums {
        double ratio = 0, match = 0, coupled = 0, bound = 0, quantised = 0;
        agreement independent, shared;
      };
      std::vector<sums> all(n);
      for (const std::string& m : {models.q, models.p})
        for (const std::string& text : lab.texts()) lab.logits(m, text, 0);
      lab.each(n, [&](std::size_t k) {
        const auto q = probabilities(lab.logits(models.q, k * every), temperature),
                   p = probabilities(lab.logits(models.p, k * every), temperature);
        const std::size_t v = q.size();
        std::vector<double> pi(v), mass(v);
        std::vector<token_id> ids(codec.max_tokens());
        std::vector<std::uint8_t> bytes(codec.max_bytes<double>());
        sums& s = all[k];
        for (std::size_t i = 0; i < v; ++i) {
          s.ratio += std::min(q[i], p[i]);
          s.match += q[i] * p[i];
          pi[i] = 0.5 * (q[i] + p[i]);
        }
        s.coupled = coupled_acceptance(q, p);
        s.bound = plan::least_coupled_acceptance(1 - s.ratio);
        const auto coded = encode(codec, q, bytes, ids, mass);
        for (std::size_t i = 0; i < v && coded.why == status::ok; ++i)
          s.quantised += std::min(coded.row[i], p[i]);
        s.independent = agreement_of(q, p, weigh_sites(0, 0));
        // Both sites stand where both drew the same token: it is then the combined one (unanimity).
        const double l = coupled_acceptance(q, pi), r = coupled_acceptance(p, pi), both = s.coupled;
        s.shared = {both, l - both, r - both};
      });
      const auto mean = [&](auto&& f) {
        return mean_of(0, n, lab.scored() / every, [&](std::size_t i) { return f(all[i]); });
      };
      const auto a = mean([](const sums& s) { return s.ratio; }),
                 m = mean([](const sums& s) { return s.match; }),
                 c = mean([](const sums& s) { return s.coupled; });
      out.add(models.name(), temperature, n, a.mean, a.se, m.mean, m.se, c.mean, c.se,
              mean([](const sums& s) { return s.bound; }).mean,
              mean([](const sums& s) { return s.quantised; }).mean, codec.max_bytes<double>(),
              mean([](const sums& s) { return s.independent.both; }).mean,
              mean([](const sums& s) { return s.independent.only_l; }).mean,
              mean([](const sums& s) { return s.independent.only_r; }).mean,
              mean([](const sums& s) { return s.shared.both; }).mean,
              mean([](const sums& s) { return s.shared.only_l; }).mean,
              mean([](const sums& s) { return s.shared.only_r; }).mean);
      lab.progress(double(++done) / 4);
    }
}

void verifiers(lab& lab, table& out) {
  const auto prompts = lab.prompts(lab.how.quick ? 2 : 16);
  const std::size_t most = lab.how.quick ? 32 : 96;
  std::vector<std::string> names;
  for_each_verifier(0, 0, [&](const auto& verifier) { names.push_back(verifier.name); });
  std::size_t done = 0;
  for (const pair& models : pairs)
    for (const double temperature : {1.0, 0.5, 0.0})
      for (const std::size_t gamma : {std::size_t(4), std::size_t(8)})
        for (const std::string& verifier : names) {
          std::vector<decoded> of_prompt(prompts.size());
          lab.each(prompts.size(), [&](std::size_t i) {
            readers sessions = lab.open({models.q, models.p});
            const auto decode = [&](text& t, std::size_t n, std::vector<meter>& m,
                                    random_streams& chooser, decoded& d) {
              status why = status::ok;
              with_verifier(verifier_number(verifier), lab.how.seed, i, [&](const auto& v) {
                why = speculate(t, n, m, chooser, d, lossless{}, gamma, temperature,
                                verifier == "token", v);
              });
              return why;
            };
            of_prompt[i] = decode_prompt(prompts[i], most, sessions, decode, lab.how.seed, i);
          });
          decoded all;
          for (const decoded& d : of_prompt) all += d;
          const auto accepted = all.over_rounds([](const round& r) { return r.accepted; });
          const auto counted = all.over_rounds([](const round& r) { return r.emitted; });
          const auto rows = all.over_rounds([](const round& r) { return r.expected; });
          const bool telemetry = verifier == "token";
          // Rounds that reach draft k, for every k: what shorter drafts would have emitted follows
          // from it.
          std::string reached;
          for (std::size_t k = 1; k <= gamma; ++k)
            reached +=
                fmt::format("{}{:.6g}", k > 1 ? " " : "",
                            all.over_rounds([k](const round& r) { return r.accepted >= k; }).mean);
          out.add(models.name(), temperature, gamma, verifier, all.tokens, all.rounds.size(),
                  accepted.mean, accepted.se, counted.mean, counted.se, telemetry ? rows.mean : NAN,
                  telemetry ? rows.se : NAN, reached);
          lab.progress(double(++done) / 72);
        }
}

}  // namespace experiments
