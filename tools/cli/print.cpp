// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include <specagg/format.hpp>

#include "files.hpp"
#include "job.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using nlohmann::json;

json report(const decoded& d) {
  json tokens = json::array(), origins = tokens, log_pi = tokens, log_p = tokens, models = tokens;
  for (const emission& e : d.emissions) {
    tokens.push_back(e.token);
    origins.push_back(name(e.from));
    log_pi.push_back(e.log_pi);
    log_p.push_back(e.log_p);
  }
  for (const metered_model& m : d.models)
    models.push_back({{"calls", m.calls}, {"tokens", m.tokens_in}, {"seconds", m.seconds}});
  return {{"text", d.text},
          {"tokens", tokens},
          {"origin", origins},
          {"logprob", log_pi},
          {"logprob_target", log_p},
          {"ended_by", d.ended_by},
          {"rounds", d.rounds},
          {"drafted", d.drafted},
          {"accepted", d.accepted},
          {"acceptance", d.acceptance()},
          {"target_calls", d.target_calls()},
          {"draft_calls", d.draft_calls()},
          {"models", models},
          {"tokens_per_target_call", d.per_target_call()},
          {"seconds",
           {{"prompt", d.prompt_seconds},
            {"draft", d.draft_seconds()},
            {"target", d.target_seconds()},
            {"output", d.output_seconds},
            {"other", d.other_seconds()},
            {"total", d.total_seconds}}},
          {"tokens_per_second", d.tokens_per_second()}};
}

// The same with which drafter each token came from and what each gave, what --gamma auto measured
// (as plan speculative names it), and the models whose vocabulary is not the target's.
json report(const job& j, const decoded& d) {
  json out = report(d);
  const auto& names = j.how.drafters;
  if (!names.empty())
    for (const int k : d.drafters)
      out["drafter"].push_back(k < 0 ? json() : json(names[std::size_t(k)]));
  for (std::size_t k = 0; k < names.size(); ++k)
    out["drafters"][names[k]] = {{"drafted", d.drafted_by[k]}, {"accepted", d.accepted_by[k]}};
  if (j.how.automatic && !j.options.compare) {
    out["c"] = d.costs.row(names.size() - 1);
    out["d"] = d.costs.verify;
  }
  for (const auto& m : j.models)
    if (m->mapped)
      out["mapped"].push_back({{"model", m->path},
                               {"tokens", m->mapped->map().size()},
                               {"of", m->mapped->map().draft_size()},
                               {"mass", m->mapped->mass()}});
  return out;
}

void print_object(const json& out, int indentation) {
  fmt::print("{}\n", out.dump(indentation, ' ', false, json::error_handler_t::replace));
  flush_output();
}
// An object of one text, with what was asked.
void print_object(const job& j, json out, const std::string& prompt) {
  const generate_options& o = j.options;
  const decoder& d = j.how;
  const bool number =
      !d.gamma.empty() && d.gamma.find_first_not_of("0123456789") == std::string::npos;
  out.update({{"prompt", prompt},
              {"decoder", d.name},
              {"policy", d.policy},
              {"verify", d.verify},
              {"space", d.space},
              {"draft", o.draft},
              {"temperature", o.sample.temperature},
              {"seed", o.seed},
              {"gamma", number ? json(std::stoul(d.gamma)) : json(d.gamma)},
              {"backend", o.backend},
              {"instruction_set", instruction_set},
              {"threads", j.on->threads()}});
  if (d.name == "tree") out["tree"] = d.tree;
  if (!d.propose.empty()) out["propose"] = d.propose;
  if (d.name == "sequential" || d.name == "bild") out["longest_run"] = d.longest_run;
  out["seconds"]["load"] = j.load_seconds;
  print_object(out, 2);
}

// A line that explains the marks of a text; empty where it has none.
std::string legend(const decoded& d) {
  if (output_marks() == marks::none || d.drafted == 0) return {};
  return fmt::format(
      "{}, {}: the target's in place of a rejected draft, {}: the target's after the "
      "drafts\n",
      marked("accepted draft", origin::accepted), marked("residual", origin::residual),
      marked("bonus", origin::bonus));
}

std::string marked_text(const decoded& d, const tokenizer& tokens) {
  std::string all;
  const std::string_view text = d.text;
  std::size_t come = 0, done = 0;
  for (const emission& e : d.emissions) {
    come = std::min(come + tokens.piece(e.token).size(), text.size());  // a stop string is cut off
    // A character of several tokens is marked as the last of them.
    const std::size_t until = come == text.size() ? come : come - unfinished(text.substr(0, come));
    if (until <= done) continue;
    all += marked(text.substr(done, until - done), e.from);
    done = until;
  }
  return all;
}

double mean_log_p(const decoded& d) {
  double sum = 0, n = 0;
  for (const emission& e : d.emissions)
    if (!std::isnan(e.log_p)) {
      sum += e.log_p;
      ++n;
    }  // NaN: the target was not asked
  return n > 0 ? sum / n : 0;
}

void print_summary(std::FILE* to, const decoded& d) {
  fmt::print(to,
             "{} tokens in {:.0f} ms ({:.0f} tokens/s): draft {:.0f} %, target {:.0f} %, output "
             "{:.0f} %, everything else "
             "{:.1f} %\n",
             d.emissions.size(), 1e3 * d.total_seconds, d.tokens_per_second(),
             100 * d.draft_seconds() / d.total_seconds, 100 * d.target_seconds() / d.total_seconds,
             100 * d.output_seconds / d.total_seconds, 100 * d.other_seconds() / d.total_seconds);
  if (d.drafted > 0)
    fmt::print(to,
               "acceptance {:.3f} ({} of {} drafted), {:.2f} tokens per target call ({} calls)\n",
               d.acceptance(), d.accepted, d.drafted, d.per_target_call(), d.target_calls());
}

// Whether the tokens and their log-probabilities are equal, bit for bit.
bool same(const decoded& a, const decoded& b) {
  return std::equal(a.emissions.begin(), a.emissions.end(), b.emissions.begin(), b.emissions.end(),
                    [](const emission& x, const emission& y) {
                      return x.token == y.token && std::bit_cast<std::uint64_t>(x.log_p) ==
                                                       std::bit_cast<std::uint64_t>(y.log_p);
                    });
}

// Where the tokens came from.
std::string origins(const decoded& d) {
  const auto count = [&](origin from) {
    return std::count_if(d.emissions.begin(), d.emissions.end(),
                         [&](const emission& e) { return e.from == from; });
  };
  return fmt::format("from: {} accepted, {} residual, {} bonus", count(origin::accepted),
                     count(origin::residual), count(origin::bonus));
}

// Why drafts pay, or do not.
std::string reason(const comparison& r) {
  const std::string costs =
      fmt::format("a drafted token costs {:.3f} target steps: drafting c {:.3f}, scoring d {:.3f}",
                  r.c + r.d, r.c, r.d);
  if (r.acceptance && r.best.gamma == 0)
    return fmt::format("{}; at acceptance {:.3f} no gamma pays", costs, *r.acceptance);
  if (r.acceptance)
    return fmt::format("{}; at acceptance {:.3f} the best gamma is {}, predicted {:.2f}", costs,
                       *r.acceptance, r.best.gamma, r.best.rate);
  return fmt::format("{}; {:.3f} of them were accepted{}", costs, r.chosen.acceptance(),
                     r.measured < 1 ? ", too few to pay" : "");
}

// The prompt, the text, which is printed once where both are the same, and what drafting gained.
void print_texts(const job& j, const comparison& r, const std::string& prompt) {
  const generate_options& o = j.options;
  const decoder& d = j.how;
  const bool all_models = o.baseline == "all-models", equal = same(r.chosen, r.alone);
  const char* const alone = all_models ? "all models at every token" : "target alone";
  fmt::print("{}\n{}{}\n\n", bold("prompt"), shown(prompt), prompt.ends_with('\n') ? "" : "\n");
  fmt::print("{}\n{}\n", bold(alone),
             equal ? "the same text as below, bit for bit" : shown(r.alone.text));
  print_summary(stdout, r.alone);
  const std::string how = d.propose.empty() ? "lookup" : d.propose;
  const std::string gamma = !d.tree.empty()    ? fmt::format(" {}, {}", d.tree, how)
                            : !d.gamma.empty() ? ", gamma " + d.gamma
                                               : "";
  fmt::print(
      "\n{}\n{}{}\n",
      bold(fmt::format("{} {}{}, temperature {:g}", d.name, d.policy, gamma, o.sample.temperature)),
      legend(r.chosen), marked_text(r.chosen, j.tokens()));
  print_summary(stdout, r.chosen);
  fmt::print("{}{}\n", origins(r.chosen),
             equal ? fmt::format("; the same {} tokens as {}, bit for bit",
                                 r.chosen.emissions.size(), all_models ? alone : "the target alone")
                   : "");
  // at temperature 0 every token is the target's most likely one
  if (!equal)
    fmt::print("mean log-probability of a token under the target: {:.3f} ({} {:.3f})\n",
               mean_log_p(r.chosen), alone, mean_log_p(r.alone));
  fmt::print("{}\n{}\n",
             bold(fmt::format("speed-up measured {:.2f} (median of {}), predicted {:.2f}",
                              r.measured, r.repeats, r.predicted)),
             r.formula);
  if (d.name == "speculative" && r.chosen.drafted > 0) fmt::print("{}\n", reason(r));
}

}  // namespace

decoded run_and_print(job& j, bool explain) {
  const generate_options& o = j.options;
  std::size_t printed = 0;
  const auto stream_out = [&](const emission& e, const decoded& so_far) {
    if (o.json) return;
    std::size_t until = so_far.text.size();
    if (so_far.ended_by.empty())
      until -= std::max(held_back(so_far.text, o.stops), unfinished(so_far.text));
    if (until > printed) {
      fmt::print("{}",
                 marked(std::string_view(so_far.text).substr(printed, until - printed), e.from));
      std::fflush(stdout);
      printed = until;
    }
  };
  const decoded once = j.run(j.how, stream_out);
  if (!o.json) {
    if (printed < once.text.size()) fmt::print("{}", shown(once.text.substr(printed)));
    fmt::print("\n{}", explain ? legend(once) : "");
    flush_output();
  }
  return once;
}

void print_turn(const job& j, const decoded& answer, std::size_t turn, const std::string& asked) {
  if (!j.options.json) return print_summary(stderr, answer);
  json out = report(j, answer);
  out.update({{"turn", turn},
              {"prompt", asked},
              {"prompt_tokens", j.prompt.size()},
              {"prompt_tokens_known", answer.prompt_known}});
  print_object(out, -1);
}
void print_refused(const job& j, const error& why, std::size_t turn, const std::string& asked) {
  const std::string line = fmt::format("turn {}: {}", turn, printable(why.what(), 4000));
  if (j.options.json) print_object({{"turn", turn}, {"prompt", asked}, {"error", line}}, -1);
  else fmt::print(stderr, "specagg: {}\n", line);
}
void print_once(const job& j, const decoded& once, const std::string& prompt) {
  if (j.options.json) return print_object(j, report(j, once), prompt);
  // Not on standard output: that has the text alone.
  fmt::print(stderr, "\n");
  print_summary(stderr, once);
  if (j.how.automatic)
    fmt::print(stderr,
               "{:.2f} tokens drafted a round; measured: a draft step {:.3f} target steps, a "
               "token more to score {:.3f}\n",
               double(once.drafted) / double(once.rounds),
               once.costs.row(j.how.drafters.size() - 1), once.costs.verify);
}

void print_comparison(const job& j, const comparison& r, const std::string& prompt) {
  if (!j.options.json) return print_texts(j, r, prompt);
  const bool all_models = j.options.baseline == "all-models";
  json out = report(j, r.chosen), alone = report(r.alone);
  out.update({{"expected_tokens_per_round",
               r.chosen.expected / double(std::max<std::size_t>(r.chosen.rounds, 1))},
              {"speedup_measured", r.measured},
              {"speedup_predicted", r.predicted},
              {"c", r.c},
              {"v", r.v},
              {"repeats", r.repeats},
              {"mean_logprob_target", mean_log_p(r.chosen)}});
  if (r.acceptance) {
    out["best_gamma"] = r.best.gamma;
    out["best_speedup"] = r.best.rate;
  }
  alone["mean_logprob_target"] = mean_log_p(r.alone);
  out[all_models ? "all_models" : "target_alone"] = std::move(alone);
  if (!all_models) out["identical_to_target_alone"] = r.alone.text == r.chosen.text;
  print_object(j, std::move(out), prompt);
}

}  // namespace cli
