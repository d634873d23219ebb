// SPDX-License-Identifier: Apache-2.0
// Fu et al. 2025 (CoS): calls and seconds of collaboration, beside the formulas.
//   standard     every model is called for every token
//   parallel     the same, each model on a thread of its own
//   sd           the paper's baseline: "speculative decoding (SD), using the smallest model as the
//                proposal and the combined distribution as the target". So there is a bonus token
//                of the combined law; it costs one more call of the first model. Its rows of the
//                draft are used again, so that no call is made twice
//   speculative  Naive-CoS, the paper's "w/o APF": neither a bonus token nor turns
//   alternating  CoS
#include <atomic>
#include <thread>

#include <specagg/error.hpp>

#include "decoding.hpp"
#include "exact.hpp"

namespace experiments {
namespace {

struct collaboration {
  std::vector<std::string> models;  // the first drafts
  std::string rule;
  double value;
  double temperature;
  // of the paper's Tables 2, 3, 7, 8 and its Figure 6, in which all ways are compared
  bool of_a_table = false;
  // of its Figure 8: a smaller model's weight as a trade of quality for speed
  bool of_the_trade = false;
  std::string policy() const {
    return rule == "contrastive" ? fmt::format("contrastive:mu={}", value)
           : models.size() == 2  ? fmt::format("ensemble:lambda={}", value)
                                 : std::string("ensemble");
  }
};
std::vector<collaboration> collaborations(const cos_plan& of) {
  const auto& [experts, amateur, expert, both_ways] = of.models;
  std::vector<collaboration> all;
  for (const double lambda : of.lambdas) {
    const collaboration even{{experts[0], experts[1]}, "ensemble", lambda, 1, lambda == 0.5};
    all.push_back(even);
    if (both_ways) all.push_back({{experts[1], experts[0]}, "ensemble", lambda, 1});
    if (!of.trade) continue;
    all.push_back({{amateur, expert}, "ensemble", lambda, 1, false, true});
  }
  for (const double t : {1.0, 0.0})
    for (const double mu : of.mus)
      all.push_back({{amateur, expert}, "contrastive", mu, t, mu == 0.1});
  if (experts.size() == 3) all.push_back({experts, "ensemble", 1. / 3, 1, true});
  return all;
}

// f(policy), for two models or three. Contrastive decoding combines logits; the temperature acts on
// the result.
template <std::size_t N, class F>
auto with_policy(const collaboration& c, F&& f) {
  if constexpr (N == 3) return f(mixture<3>{{1. / 3, 1. / 3, 1. / 3}});
  else if (c.rule == "contrastive") return f(raw_logits{contrastive{c.value}});
  else return f(ensemble{c.value});
}
struct third_row {  // the law is a row of its own, after those of two models
  static constexpr std::size_t models = 3;
  template <class Rows>
  auto bind(const Rows&) const {
    return [](auto at) { return model<2>(at); };
  }
};
// f(rows, pi) at one position: the rows of N models, and the combined law. combined: V floats.
template <std::size_t N, class F>
status with_law(const collaboration& c, const std::array<std::span<const float>, N>& logits,
                std::span<float> combined, F&& f) {
  const auto row = [&](std::span<const float> l) {
    return processed_row<float>(l, {c.temperature});
  };
  return with_policy<N>(c, [&](const auto& policy) {
    if constexpr (is_raw_logits<std::remove_cvref_t<decltype(policy)>>) {
      if (const status s = combine_logits(policy.policy, logits, combined); s != status::ok)
        return s;
      std::array<processed_row<float>, 3> rows{row(logits[0]), row(logits[1]), row(combined)};
      return with_models(third_row{}, rows, f);
    } else {
      std::array<processed_row<float>, N> rows;
      for (std::size_t k = 0; k < N; ++k) rows[k] = row(logits[k]);
      return with_models(policy, rows, f);
    }
  });
}

template <std::size_t N>
auto tied(std::vector<meter>& m) {
  if constexpr (N == 3) return std::tie(m[0], m[1], m[2]);
  else return std::tie(m[0], m[1]);
}

// Every model at every token, and a token from the combined row.
template <std::size_t N>
continuation standard(const collaboration& c) {
  return [&c](text& t, std::size_t most, std::vector<meter>& models, random_streams& chooser,
              decoded&) {
    const std::size_t v = models[0].vocab_size();
    std::vector<float> logits(N * v), combined(v);
    std::vector<double> scratch(block_count(v));
    no_processor none;
    for (std::size_t i = 0; i < most; ++i) {
      std::array<std::span<const float>, N> rows;
      for (std::size_t k = 0; k < N; ++k) {
        const auto own = std::span(logits).subspan(k * v, v);
        if (const status s = score(t.tokens.first(t.size), models[k], none, own); s != status::ok)
          return s;
        rows[k] = own;
      }
      const status s = with_law<N>(c, rows, combined, [&](const auto& all, const auto& pi) {
        const token_id y =
            chooser.draw({stream::bonus, std::uint32_t(t.size), 0}, weigh(all, pi, scratch));
        if (y == no_token) return status::undefined_target;
        append(t, y, none);
        return status::ok;
      });
      if (s != status::ok) return s;
    }
    return status::ok;
  };
}

// The same, each model on a thread of its own: the first on the caller's.
template <std::size_t N>
continuation parallel(const collaboration& c) {
  return [&c](text& t, std::size_t most, std::vector<meter>& models, random_streams& chooser,
              decoded&) {
    const std::size_t v = models[0].vocab_size();
    std::vector<float> logits(N * v), combined(v);
    std::vector<double> scratch(block_count(v));
    std::array<status, N> outcome{};
    const auto ask = [&](std::size_t k) {
      no_processor none;
      outcome[k] =
          score(t.tokens.first(t.size), models[k], none, std::span(logits).subspan(k * v, v));
    };
    // tokens begun; models that finished, all tokens together
    std::atomic<std::size_t> begun{0}, ended{0};
    std::atomic<bool> over{false};
    std::vector<std::jthread> threads;
    const auto stop = [&] {
      over = true;
      ++begun;
    };
    for (std::size_t k = 1; k < N; ++k)
      threads.emplace_back([&, k] {
        for (std::size_t seen = 0;; ++seen, ++ended) {
          while (begun == seen) std::this_thread::yield();
          if (over) return;
          ask(k);
        }
      });
    no_processor none;
    status s = status::ok;
    for (std::size_t i = 0; i < most && s == status::ok; ++i) {
      ++begun;
      ask(0);
      while (ended < (N - 1) * (i + 1)) std::this_thread::yield();
      std::array<std::span<const float>, N> rows;
      for (std::size_t k = 0; k < N; ++k) {
        rows[k] = std::span(logits).subspan(k * v, v);
        if (outcome[k] != status::ok) s = outcome[k];
      }
      if (s != status::ok) break;
      s = with_law<N>(c, rows, combined, [&](const auto& all, const auto& pi) {
        const token_id y =
            chooser.draw({stream::bonus, std::uint32_t(t.size), 0}, weigh(all, pi, scratch));
        if (y == no_token) return status::undefined_target;
        append(t, y, none);
        return status::ok;
      });
    }
    stop();
    return s;
  };
}

// The logits of N models at the rows of a round: after the text, and after each drafted token.
template <std::size_t N>
struct round_logits {
  text& t;
  std::vector<meter>& models;
  sampling sample;
  std::size_t rows, v = models[0].vocab_size();
  std::vector<float> logits = std::vector<float>(N * rows * v);

  processed_row<float> row(std::size_t k, std::size_t j) const {
    return {std::span<const float>(logits).subspan((k * rows + j) * v, v), sample};
  }
  // the rows of model k from position `first` of a round on, up to the one after the text
  status score(std::size_t k, std::size_t first, std::size_t last) {
    no_processor none;
    return specagg::score(
        t.tokens.first(t.size), models[k], none,
        std::span(logits).subspan((k * rows + first) * v, (last + 1 - first) * v));
  }
};

template <std::size_t N>
continuation speculating(const collaboration& c, std::size_t gamma) {
  return [&c, gamma](text& t, std::size_t most, std::vector<meter>& models, random_streams& chooser,
                     decoded& d) {
    using sides = detail::model_sides<0, N>;
    const std::size_t end = t.size + most;
    round_logits<N> by{t, models, {c.temperature}, gamma + 1};
    std::vector<float> combined(by.v);
    std::vector<double> scratch(block_count(by.v));
    no_processor none;
    while (t.size < end) {
      const std::size_t start = t.size, g = std::min(gamma, end - start - 1);
      const auto at = [&](stream use) {
        return moment{use, std::uint32_t(t.size), std::uint32_t(start)};
      };
      for (std::size_t j = 0; j < g; ++j) {
        if (const status s = by.score(0, j, j); s != status::ok) return s;
        const auto row = normalise(by.row(0, j));
        if (const status s = row.why(); s != status::ok) return s;
        append(t, draw(row, at(stream::draft), chooser, scratch), none);
      }
      for (std::size_t k = 1; k < N; ++k)
        if (const status s = by.score(k, 0, g); s != status::ok) return s;
      t.size = start;
      emission e{.from = origin::accepted};
      std::size_t accepted = 0;
      for (; e.from == origin::accepted; ++accepted) {
        if (accepted == g)  // all: the first model's row for the bonus token
          if (const status s = by.score(0, g, g); s != status::ok) return s;
        std::array<processed_row<float>, N> row;
        for (std::size_t k = 0; k < N; ++k) row[k] = by.row(k, accepted);
        const status s = with_policy<N>(c, [&](const auto& policy) {
          return with_law_of(
              policy, row, by.sample, std::span(combined), [&](const auto& all, const auto& pi) {
                if (accepted < g)
                  return detail::drawing{std::uint32_t(start), chooser, std::span(scratch)}
                      .template keep_or_replace<sides>(
                          all, pi, detail::examine<sides>(all, pi, t.tokens[t.size]), accepted, e);
                e.token = chooser.draw(at(stream::bonus), weigh(all, pi, scratch));
                e.from = origin::bonus;
                return e.token == no_token ? status::undefined_target : status::ok;
              });
        });
        if (s != status::ok) return s;
        if (e.from == origin::accepted) ++t.size;
        else if (const status cut = std::apply(
                     [&](auto&... m) { return truncate(t, t.size, none, m...); }, tied<N>(models));
                 cut != status::ok)
          return cut;
      }
      append(t, e.token, none);
      d.rounds.push_back({g, accepted - 1, accepted, 0});
    }
    return status::ok;
  };
}

template <std::size_t N>
continuation collaborating(const collaboration& c, std::array<std::size_t, N> gamma) {
  return [&c, gamma](text& t, std::size_t most, std::vector<meter>& models, random_streams& chooser,
                     decoded& d) {
    const collaborative_options<N> options{gamma, {c.temperature}, no_token};
    collaborative_workspace<float, N> work(models[0].vocab_size(), options);
    const auto after = [&](const collaborative_result& r, const auto&) {
      d.rounds.push_back({r.drafted, r.accepted, r.emitted, 0});
    };
    return with_policy<N>(c, [&](const auto& policy) {
      return collaborative_decode(tied<N>(models), policy, chooser,
                                  {.text = t, .most = most, .work = work, .after_round = after});
    });
  };
}

struct way {
  std::string method;
  std::size_t gamma;
  continuation decode;
};
template <std::size_t N>
std::vector<way> ways(const collaboration& c, const cos_plan& of, bool quick, bool timed) {
  std::vector<way> all{{"standard", 0, standard<N>(c)}};
  // its calls are those of the standard way
  if (timed && c.of_a_table) all.push_back({"parallel", 0, parallel<N>(c)});
  for (std::size_t g = 1; g <= 5; ++g) {
    const bool ends = g == 1 || g == 5;  // what the paper's tables have
    if (quick && g % 2 == 0) continue;
    if (!ends && !of.every_gamma && !c.of_a_table) continue;
    std::array<std::size_t, N> alone{}, turns;
    turns.fill(1);
    alone[0] = turns[0] = g;
    if (timed ? c.of_a_table && ends : !c.of_the_trade) {
      all.push_back({"sd", g, speculating<N>(c, g)});
      all.push_back({"speculative", g, collaborating<N>(c, alone)});
    }
    if (ends || c.of_a_table || !(timed || c.of_the_trade))
      all.push_back({"alternating", g, collaborating<N>(c, turns)});
  }
  return all;
}
std::vector<way> ways(const collaboration& c, const cos_plan& of, bool quick, bool timed) {
  return c.models.size() == 3 ? ways<3>(c, of, quick, timed) : ways<2>(c, of, quick, timed);
}

std::string name_of(const collaboration& c) {
  std::string all;
  for (const std::string& m : c.models) all += (all.empty() ? "" : "-") + m;
  return all;
}

// What the formulas need: how likely a draft of each model is accepted towards the combined law,
// over a text that was written under that law.
struct known {
  double a_q = NAN, a_p = NAN;
};
known acceptances(lab& lab, const collaboration& c, const std::vector<std::vector<token_id>>& texts,
                  std::size_t written) {
  if (c.models.size() != 2) return {};
  const std::size_t v = lab.open({c.models[0]})[0]->vocab_size();
  std::vector<float> combined(v);
  double q_sum = 0, p_sum = 0, n = 0;
  const readers drafts = lab.open({c.models[0]}), targets = lab.open({c.models[1]});
  cli::session &q = *drafts[0], &p = *targets[0];
  for (const auto& text : texts) {
    const std::size_t rows = std::min(written, text.size() - 1);
    std::vector<float> ql(rows * v), pl(rows * v);
    (void)q.rollback(0);
    (void)p.rollback(0);
    const auto seen = std::span(text).first(text.size() - 1);
    for (const status s : {q.extend(seen, ql), p.extend(seen, pl)})
      if (s != status::ok) throw error("cos", c.policy(), std::string(specagg::name(s)));
    for (std::size_t i = 0; i < rows; ++i, ++n) {
      const std::array<std::span<const float>, 2> logits{std::span(ql).subspan(i * v, v),
                                                         std::span(pl).subspan(i * v, v)};
      const status s = with_law<2>(c, logits, combined, [&](const auto& all, const auto& pi) {
        q_sum += all.sum([&](auto at) { return min(model<0>(at), pi(at)); });
        p_sum += all.sum([&](auto at) { return min(model<1>(at), pi(at)); });
        return status::ok;
      });
      if (s != status::ok) throw error("cos", c.policy(), std::string(specagg::name(s)));
    }
  }
  return {q_sum / n, p_sum / n};
}

// The speed-up of a way of two models, with the time that scoring a draft takes, and without it.
void by_formula(const lab& lab, const collaboration& c, const way& w, known a, double& predicted,
                double& free) {
  const std::string& q = c.models[0];
  const std::string& p = c.models[1];
  const double step = lab.seconds(p, 1), cost = lab.seconds(q, 1) / step;
  const double v = lab.seconds(p, double(w.gamma) + 1) / step;
  if (w.method == "speculative") {
    predicted = plan::naive_cos_speedup(a.a_q, w.gamma, cost, v);
    free = plan::naive_cos_speedup(a.a_q, w.gamma, cost);
  } else if (w.method == "sd") {
    predicted = (1 + cost) * plan::speculative_speedup(a.a_q, w.gamma, cost, v, true);
    free = (1 + cost) * plan::speculative_speedup(a.a_q, w.gamma, cost, 1, true);
  } else if (w.method == "alternating") {
    const double v_q = lab.seconds(q, 2) / lab.seconds(q, 1);
    predicted = plan::rates({a.a_q, a.a_p, w.gamma, 1, cost, v_q, v}).speedup;
    free = plan::rates({a.a_q, a.a_p, w.gamma, 1, cost}).speedup;
  }
}

constexpr std::size_t prompt_tokens = 64;

}  // namespace

void cos_calls(lab& lab, const cos_plan& of, table& out) {
  const auto prompts = lab.prompts(of.prompts, prompt_tokens);
  const auto all = collaborations(of);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const collaboration& c = all[i];
    known a;
    for (const way& w : ways(c, of, lab.how.quick, false)) {
      std::vector<decoded> of_prompt(prompts.size());
      lab.each(prompts.size(), [&](std::size_t k) {
        readers sessions = lab.open(c.models);
        of_prompt[k] = decode_prompt(prompts[k], of.tokens, sessions, w.decode, lab.how.seed, k);
      });
      decoded sum;
      std::vector<std::vector<token_id>> written;
      for (const decoded& d : of_prompt) {
        sum += d;
        written.push_back(d.text);
      }
      if (w.method == "standard") a = acceptances(lab, c, written, of.tokens);
      const double n = double(sum.tokens), all_calls = [&] {
        double calls = 0;
        for (std::size_t m = 0; m < c.models.size(); ++m) calls += double(sum.calls(m));
        return calls;
      }();
      double calls_q = 1, calls_p = 1;  // predicted, a token
      if (w.method == "speculative") {
        const double e = plan::expected_tokens(a.a_q, w.gamma, false);
        calls_q = double(w.gamma) / e;
        calls_p = 1 / e;
      } else if (w.method == "sd") {
        const double e = plan::expected_tokens(a.a_q, w.gamma);
        calls_q = (double(w.gamma) + std::pow(a.a_q, double(w.gamma))) / e;
        calls_p = 1 / e;
      } else if (w.method == "alternating") {
        const auto r = plan::rates(plan::alternating{a.a_q, a.a_p, w.gamma, 1});
        calls_q = r.calls_q / r.tokens;
        calls_p = r.calls_p / r.tokens;
      }
      if (c.models.size() != 2) calls_q = calls_p = NAN;
      out.add(name_of(c), fmt::format("{}", c.policy()), c.value, c.temperature, w.method, w.gamma,
              sum.tokens, a.a_q, a.a_p, double(sum.calls(0)) / n, double(sum.calls(1)) / n,
              all_calls / n, calls_q, calls_p, calls_q + calls_p);
    }
    lab.progress(double(i + 1) / double(all.size()));
  }
}

void cos_speed(lab& lab, const cos_plan& of, table& out) {
  const auto prompts = lab.prompts(of.prompts, prompt_tokens);
  const records counted = lab.read("cos-calls");
  const auto all = collaborations(of);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const collaboration& c = all[i];
    const auto decoders = ways(c, of, lab.how.quick, true);
    // of each repeat
    std::vector<std::vector<double>> rate(decoders.size()), speedups(decoders.size());
    // tokens a second by the calls counted and the part `times`
    std::vector<double> called(decoders.size());
    const auto tokens_a_second = [&](const way& w, decoded& d) {
      d = decode_all(lab, c.models, prompts, of.tokens, w.decode);
      return double(d.tokens) / d.seconds;
    };
    // A repeat: the standard way, every other one, each time another one first, and the standard
    // way again. A speed-up is over the mean of the two; the standard row has their ratio.
    for (std::size_t r = 0; r < of.repeats; ++r) {
      const auto timed = [&](std::size_t w) {
        decoded d;
        rate[w].push_back(tokens_a_second(decoders[w], d));
        double seconds = 0;
        for (std::size_t m = 0; m < c.models.size(); ++m)
          for (std::size_t n = 1; n <= meter::most; ++n)
            seconds += double(d.calls_of[m][n]) * lab.seconds(c.models[m], double(n));
        called[w] = double(d.tokens) / seconds;
        return rate[w].back();
      };
      const std::size_t others = decoders.size() - 1;
      const double before = timed(0);
      for (std::size_t k = 0; k < others; ++k) timed(1 + (k + r) % others);
      const double after = timed(0);
      speedups[0].push_back(after / before);
      for (std::size_t w = 1; w <= others; ++w)
        speedups[w].push_back(rate[w].back() * (1 / before + 1 / after) / 2);
    }
    for (std::size_t w = 0; w < decoders.size(); ++w) {
      // There is no formula for three models: calls are counted.
      double predicted = c.models.size() == 2 ? 1 : called[w] / called[0],
             free = c.models.size() == 2 ? 1 : NAN;
      for (const auto& row : counted)
        if (c.models.size() == 2 && row.at("models") == name_of(c) &&
            row.at("policy") == c.policy() && std::stod(row.at("temperature")) == c.temperature &&
            row.at("method") == decoders[w].method &&
            std::stod(row.at("gamma")) == double(decoders[w].gamma))
          by_formula(lab, c, decoders[w], {std::stod(row.at("a_q")), std::stod(row.at("a_p"))},
                     predicted, free);
      if (decoders[w].method == "parallel") predicted = free = NAN;  // no formula
      out.add(name_of(c), c.policy(), c.value, c.temperature, decoders[w].method, decoders[w].gamma,
              median(rate[w]), median(speedups[w]), predicted, median(speedups[w]) / predicted - 1,
              free, listed(speedups[w]));
    }
    lab.progress(double(i + 1) / double(all.size()));
  }
}

}  // namespace experiments
