// SPDX-License-Identifier: Apache-2.0
// Seconds: of the models' calls, of cascades in their three executions, of drafts of several
// lengths. What is compared is timed in turn with the target alone, on one thread, and its speed-up
// stands beside what the formulas predict from the part `times` and the acceptance that the rows
// tell.
#include <specagg/error.hpp>

#include "decoding.hpp"
#include "policies.hpp"

namespace experiments {

void times(lab& lab, const std::vector<std::string>& models, table& out) {
  const auto prompt = lab.prompts(1, 128)[0];
  const std::size_t longest = 9, repeats = lab.how.quick ? 11 : 101;
  const readers opened = lab.open(models);
  for (std::size_t m = 0; m < models.size(); ++m) {
    cli::session& one = *opened[m];
    std::vector<float> logits(longest * one.vocab_size());
    std::vector<std::vector<double>> seconds(longest);
    for (std::size_t r = 0; r < repeats; ++r)
      // in turn, so that a busy moment of the machine spoils none alone
      for (std::size_t n = 1; n <= longest; ++n) {
        if (one.position() == 0 && one.extend(prompt, {}) != status::ok)
          throw error("times", "", "the prompt is too long");
        const auto start = std::chrono::steady_clock::now();
        const status s =
            one.extend(std::span(prompt).first(n), std::span(logits).first(n * one.vocab_size()));
        seconds[n - 1].push_back(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        if (s != status::ok) throw error("times", "", std::string(name(s)));
        (void)one.rollback(prompt.size());
      }
    for (std::size_t n = 1; n <= longest; ++n) {
      auto sorted = seconds[n - 1];
      std::sort(sorted.begin(), sorted.end());
      out.add(models[m], n, median(sorted), sorted[sorted.size() / 4],
              sorted[3 * sorted.size() / 4], median(sorted) / median(seconds[0]));
    }
    lab.progress(double(m + 1) / double(models.size()));
  }
}

namespace {

continuation target_alone(double temperature) {
  return
      [=](text& t, std::size_t most, std::vector<meter>& m, random_streams& chooser, decoded& d) {
        return speculate(t, most, m, chooser, d, lossless{}, 0, temperature, false);
      };
}

struct timed {
  double seconds_a_token = 0, target_seconds_a_token = 0, speedup = 0;
  std::vector<double> speedups;  // of each repeat
  decoded last;
};
// A repeat: the target alone, each way, each time another one first, and the target alone again. A
// speed-up is over the mean of the two. Medians.
std::vector<timed> against_target(lab& lab, const pair& models,
                                  const std::vector<std::vector<token_id>>& prompts,
                                  std::size_t most, std::size_t repeats, double temperature,
                                  const std::vector<continuation>& ways) {
  std::vector<timed> all(ways.size());
  std::vector<std::vector<double>> own(ways.size());
  std::vector<double> alone;
  const auto seconds_a_token = [&](const continuation& way, decoded& d) {
    d = decode_all(lab, {models.q, models.p}, prompts, most, way);
    return d.seconds / double(d.tokens);
  };
  const continuation base = target_alone(temperature);
  for (std::size_t r = 0; r < repeats; ++r) {
    decoded ignored;
    const double before = seconds_a_token(base, ignored);
    for (std::size_t k = 0; k < ways.size(); ++k) {
      const std::size_t w = (k + r) % ways.size();
      own[w].push_back(seconds_a_token(ways[w], all[w].last));
    }
    alone.push_back((before + seconds_a_token(base, ignored)) / 2);
    for (std::size_t w = 0; w < ways.size(); ++w)
      all[w].speedups.push_back(alone.back() / own[w].back());
  }
  for (std::size_t w = 0; w < ways.size(); ++w) {
    all[w].seconds_a_token = median(own[w]);
    all[w].target_seconds_a_token = median(alone);
    all[w].speedup = median(all[w].speedups);
  }
  return all;
}

// Of speculative decoding, by what was counted in it: tokens by the rows, draft steps, and the
// times of calls.
double predicted_speedup(const lab& lab, const pair& models, const decoded& d,
                         bool free_scoring = false) {
  const double step = lab.seconds(models.p, 1), rounds = double(d.rounds.size());
  double v = 0;
  for (const round& r : d.rounds) v += lab.seconds(models.p, double(r.drafted) + 1) / step / rounds;
  const double tokens = d.over_rounds([](const round& r) { return r.expected; }).mean;
  return plan::round_speedup(tokens, double(d.calls(0)) / rounds, lab.seconds(models.q, 1) / step,
                             free_scoring ? 1 : v);
}

template <class Policy>
constexpr bool is_timed =
    std::is_same_v<Policy, lossless> || std::is_same_v<Policy, ensemble> ||
    std::is_same_v<Policy, lossy> || std::is_same_v<Policy, chow> || std::is_same_v<Policy, diff> ||
    std::is_same_v<Policy, opt> || std::is_same_v<Policy, bild> ||
    std::is_same_v<Policy, token_v2> || std::is_same_v<Policy, token_v3>;

// A policy in every decoder that has it: add(execution, gamma, times, predicted, free scoring).
template <class Policy, class Add>
void time_policy(lab& lab, const latency_plan& of,
                 const std::vector<std::vector<token_id>>& prompts, const Policy& policy,
                 const Add& add) {
  const pair& models = of.models;
  const double c = lab.seconds(models.q, 1) / lab.seconds(models.p, 1);
  const auto speculative = [&](std::size_t gamma, bool acceptances) -> continuation {
    return [&policy, gamma, acceptances](text& t, std::size_t n, std::vector<meter>& m,
                                         random_streams& r, decoded& d) {
      return speculate(t, n, m, r, d, policy, gamma, 1, acceptances);
    };
  };
  const std::vector<std::size_t>& gammas = of.gammas;
  std::vector<continuation> ways;
  for (const std::size_t gamma : gammas) ways.push_back(speculative(gamma, false));
  ways.push_back([&](text& t, std::size_t n, std::vector<meter>& m, random_streams& r, decoded&) {
    const cascade_options options;
    cascade_workspace<float> work(m[0].vocab_size(), options);
    return oracle_decode(m[0], m[1], policy, r, {.text = t, .most = n, .work = work});
  });
  if constexpr (std::is_same_v<Policy, chow>)
    ways.push_back([&](text& t, std::size_t n, std::vector<meter>& m, random_streams& r, decoded&) {
      const cascade_options options;
      cascade_workspace<float> work(m[0].vocab_size(), options);
      return sequential_decode(m[0], m[1], policy, r, {.text = t, .most = n, .work = work});
    });
  const auto timed = against_target(lab, models, prompts, of.tokens, of.repeats, 1, ways);
  for (std::size_t i = 0; i < gammas.size(); ++i) {
    // Once more with acceptances, which take time, for the prediction.
    const decoded by_rows =
        decode_all(lab, {models.q, models.p}, prompts, of.tokens, speculative(gammas[i], true));
    add("speculative", gammas[i], timed[i], predicted_speedup(lab, models, by_rows),
        predicted_speedup(lab, models, by_rows, true));
  }
  add("oracle", 0, timed[gammas.size()], 1 / (1 + c), 1 / (1 + c));
  if constexpr (std::is_same_v<Policy, chow>) {
    // A call of the target reads the draft's tokens since its last one. The draft is asked
    // at every token, but where the target is asked because it was not for ten tokens.
    const auto& t = timed.back();
    const double calls = double(t.last.calls(1)) / double(t.last.tokens),
                 drafts = double(t.last.calls(0)) / double(t.last.tokens);
    const double each = calls > 0 ? lab.seconds(models.p, 1 / calls) / lab.seconds(models.p, 1) : 0;
    add("sequential", 0, t, 1 / (c * drafts + calls * each), 1 / (c * drafts + calls));
  }
}

}  // namespace

void latency(lab& lab, const latency_plan& of, table& out) {
  const pair& models = of.models;
  const auto prompts = lab.prompts(of.prompts);
  std::vector<sweep> rules = of.rules;
  if (lab.how.quick)
    for (sweep& s : rules) s.values = {s.values[s.values.size() / 2]};
  std::size_t count = 0, done = 0;
  for (const sweep& s : rules) count += s.values.size();

  for (const sweep& s : rules)
    for (const double x : s.values) {
      const auto add = [&](const char* execution, std::size_t gamma, const timed& t,
                           double predicted, double free) {
        const double drafted =
            std::max<double>(1, t.last.over_rounds([](const round& r) { return r.drafted; }).mean);
        out.add(models.name(), execution, gamma, s.rule, x, policy_text(s.rule, x),
                t.seconds_a_token, t.target_seconds_a_token, 1 / t.speedup, t.speedup, predicted,
                t.speedup / predicted - 1, free,
                t.last.over_rounds([](const round& r) { return r.accepted; }).mean / drafted,
                double(t.last.calls(1)) / double(t.last.tokens), listed(t.speedups));
      };
      with_policy(s.rule, x, [&]<class Policy>(const Policy& policy) {
        if constexpr (is_timed<Policy>) time_policy(lab, of, prompts, policy, add);
      });
      lab.progress(double(++done) / double(count));
    }
}

// ---- how long a draft should be -----------------------------------------------------------------

namespace {

struct prices {
  std::string name;
  plan::draft_costs cost;
};
// In steps of the target: a large model on an accelerator, these models on a processor, a slow
// draft.
const std::vector<prices> fixed_prices{{"accelerator", {1, 0.05, 0.01}},
                                       {"processor", {1, 0.1, 0.22}},
                                       {"slow draft", {1, 0.3, 0.05}}};

continuation fixed(std::size_t gamma, double temperature, bool acceptances) {
  return [=](text& t, std::size_t n, std::vector<meter>& m, random_streams& r, decoded& d) {
    return speculate(t, n, m, r, d, lossless{}, gamma, temperature, acceptances);
  };
}
continuation marginal(plan::draft_length_controller& controller, double temperature) {
  return [&controller, temperature](text& t, std::size_t n, std::vector<meter>& m,
                                    random_streams& r, decoded& d) {
    return speculate(t, n, m, r, d, lossless{}, 16, temperature, false, token_verifier{},
                     controller);
  };
}
double rate(const decoded& d, const plan::draft_costs& c) {
  double spent = 0;
  for (const round& r : d.rounds) spent += c.round(0, r.drafted);
  return double(d.tokens) / (spent + c.draft * double(d.calls(0)));
}

}  // namespace

// Tokens for the cost of a step of the target, counted, under fixed prices: the same in every run.
void draft_length(lab& lab, table& out) {
  const auto prompts = lab.prompts(lab.how.quick ? 2 : 12);
  const std::size_t most = lab.how.quick ? 64 : 128;
  std::size_t done = 0;
  for (const pair& models : {pairs[0], pairs[1]})
    for (const double temperature : {1.0, 0.5}) {
      std::vector<decoded> of_gamma;
      for (std::size_t gamma = 0; gamma <= 8; ++gamma)
        of_gamma.push_back(decode_all(lab, {models.q, models.p}, prompts, most,
                                      fixed(gamma, temperature, gamma == 8)));
      // The acceptance that a planner would know: the mean overlap of a drafted token.
      const double tokens8 =
          of_gamma[8].over_rounds([](const round& r) { return r.expected; }).mean;
      double low = 0, high = 1;
      for (int i = 0; i < 60; ++i) {
        const double a = 0.5 * (low + high);
        (plan::expected_tokens(a, 8) < tokens8 ? low : high) = a;
      }
      for (const prices& of_whom : fixed_prices) {
        const plan::draft_costs& cost = of_whom.cost;
        const std::string& name = of_whom.name;
        const auto of = [&](std::size_t g) { return cost.round(g, g); };
        const std::size_t planned = plan::best_fixed_draft(low, of, 8).gamma;
        for (std::size_t gamma = 0; gamma <= 8; ++gamma)
          out.add(models.name(), temperature, name, gamma == planned ? "planned" : "fixed", gamma,
                  rate(of_gamma[gamma], cost), low, of_gamma[gamma].tokens);
        plan::draft_length_controller controller(cost);
        const decoded d =
            decode_all(lab, {models.q, models.p}, prompts, most, marginal(controller, temperature));
        out.add(models.name(), temperature, name, "marginal",
                d.over_rounds([](const round& r) { return r.drafted; }).mean, rate(d, cost), low,
                d.tokens);
      }
      lab.progress(double(++done) / 4);
    }
}

// The same on this machine's clock, the prices being those of the part `times`.
void draft_length_speed(lab& lab, table& out) {
  const auto prompts = lab.prompts(lab.how.quick ? 1 : 4);
  const std::size_t most = lab.how.quick ? 32 : 96, repeats = lab.how.quick ? 1 : 5;
  std::size_t done = 0;
  for (const pair& models : {pairs[0], pairs[1]})
    for (const double temperature : {1.0, 0.5}) {
      const double step = lab.seconds(models.p, 1);
      const plan::draft_costs cost{1, lab.seconds(models.q, 1) / step,
                                   (lab.seconds(models.p, 5) / step - 1) / 4};
      plan::draft_length_controller controller(cost);
      std::vector<continuation> ways;
      for (std::size_t gamma = 1; gamma <= 8; ++gamma)
        ways.push_back(fixed(gamma, temperature, false));
      ways.push_back(marginal(controller, temperature));
      const auto timed = against_target(lab, models, prompts, most, repeats, temperature, ways);
      for (std::size_t gamma = 1; gamma <= 8; ++gamma) {
        const auto& t = timed[gamma - 1];
        const decoded by_rows =
            decode_all(lab, {models.q, models.p}, prompts, most, fixed(gamma, temperature, true));
        const double predicted = predicted_speedup(lab, models, by_rows);
        out.add(models.name(), temperature, "fixed", gamma, t.speedup, predicted,
                t.speedup / predicted - 1, listed(t.speedups));
      }
      const auto& t = timed.back();
      const double predicted = rate(t.last, cost);
      out.add(models.name(), temperature, "marginal",
              t.last.over_rounds([](const round& r) { return r.drafted; }).mean, t.speedup,
              predicted, t.speedup / predicted - 1, listed(t.speedups));
      lab.progress(double(++done) / 4);
    }
}

}  // namespace experiments
