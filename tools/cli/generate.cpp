// SPDX-License-Identifier: Apache-2.0
// specagg generate: one prompt, two models, one policy.
#include "generate.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include <specagg/format.hpp>

#include "costs.hpp"
#include "decoders.hpp"
#include "files.hpp"
#include "lists.hpp"
#include "mapped_model.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using std::chrono::steady_clock;
// One model file, and one text in it.
struct model {
  std::string path;
  std::unique_ptr<cli::session> session;
  std::unique_ptr<const tokenizer> tokens;
  const mapped_session* mapped = nullptr;  // the session, where the vocabulary is not the target's
  // of a head's session with rows over its own vocabulary
  const vocabulary_map* head_map = nullptr;
  model(const std::string& file, backend& on)
      : path(file), session(on.open(file)), tokens(open_tokenizer(on, file)) {}
  // A draft head of the target. sparse: as decoder::sparse.
  model(const std::string& file, backend& on, const model& target, bool sparse)
      : path(file), tokens(open_tokenizer(on, target.path)) {
    auto head = on.open_head(file, *target.session);
    if (sparse) {
      head_map = &head->map();
      session = std::move(head);
    } else session = over_target(std::move(head));
  }
};

// What one decoding gave. Of the models, the last is the target.
struct decoded {
  std::vector<emission> emissions;
  std::string text, ended_by;
  std::size_t rounds = 0, drafted = 0, accepted = 0;
  double expected = 0;  // sum over rounds of expected_tokens
  std::vector<metered_model> models;
  std::size_t prompt_known = 0;  // tokens of the prompt that the target had seen before
  double total_seconds = 0, prompt_seconds = 0, output_seconds = 0;  // total: without the prompt
  plan::draft_costs costs;                                           // measured for --gamma auto
  // which drafter each emitted token came from; -1: none
  std::vector<int> drafters;
  std::vector<std::size_t> drafted_by, accepted_by;  // tokens of each drafter

  // The i-th token of a round is one of the text.
  void count(const round_report& round, std::size_t i) {
    const bool draft = i < round.accepted;
    accepted += draft;
    const int drafter = draft && i < round.drafters.size() ? round.drafters[i] : -1;
    drafters.push_back(drafter);
    if (drafter >= 0) ++accepted_by[std::size_t(drafter)];
  }
  std::size_t target_calls() const { return models.back().calls; }
  double target_seconds() const { return models.back().seconds; }
  std::size_t draft_calls() const {
    std::size_t n = 0;
    for (const auto& m : models) n += m.calls;
    return n - target_calls();
  }
  double draft_seconds() const {
    double t = 0;
    for (const auto& m : models) t += m.seconds;
    return t - target_seconds();
  }
  double other_seconds() const {
    return total_seconds - target_seconds() - draft_seconds() - output_seconds;
  }
  double per_target_call() const {
    return double(emissions.size()) / double(std::max<std::size_t>(target_calls(), 1));
  }
  double acceptance() const { return drafted ? double(accepted) / double(drafted) : 0; }
  double tokens_per_second() const { return double(emissions.size()) / total_seconds; }
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.empty() ? 0 : x[x.size() / 2];
}

// What does not change between the decodings of one command.
struct job {
  const generate_options& options;
  std::vector<std::unique_ptr<model>>& models;  // the target is the last
  std::vector<token_id> prompt;
  std::size_t most;              // tokens to emit
  std::vector<token_id> ends;    // the tokens that end a text
  std::vector<token_id> unused;  // those that are never drawn
  // tokens of the prompt that the models may have seen before, in this order
  std::size_t known = 0;
  suffix_automaton documents = suffix_automaton();  // of --lookup, for lookups
  ngram_counts counted = ngram_counts();            // the same for counts
  mutable plan::draft_costs costs = {};             // of --gamma auto, measured when the prompt had
  // so many tokens; again when it has twice as many
  mutable std::size_t measured_at = 0;

  const tokenizer& tokens() const { return *models.back()->tokens; }

  // Decodes the prompt once. watch(emission, text so far) sees each token.
  template <class Watch>
  decoded run(const decoder& d, Watch&& watch) const {
    decoded result;
    const std::size_t vocabulary = tokens().size(), room = prompt.size() + most + d.drafts;
    std::vector<token_id> buffer(prompt), memory(penalties::memory(vocabulary, room + 1));
    buffer.resize(room);
    adjustments processor{penalties(options.penalty, vocabulary, prompt, memory), unused};
    text t{buffer, prompt.size()};
    random_streams chooser(options.seed);

    // The prompt, but for its last token, goes into every cache before the clock of decoding
    // starts: the target first, since a draft head reads what the target makes of it.
    auto start = steady_clock::now();
    for (auto m = models.rbegin(); m != models.rend(); ++m) {
      session& reads = *(*m)->session;
      const std::size_t seen = std::min({known, reads.position(), prompt.size() - 1});
      status s = reads.rollback(seen);
      // a draft model may be full before it begins
      if (s == status::ok && prompt.size() <= reads.capacity())
        s = reads.extend(std::span(prompt).subspan(seen, prompt.size() - 1 - seen), {});
      if (m == models.rbegin()) result.prompt_known = seen;
      if (s != status::ok) throw error("prompt", "", std::string(name(s)));
    }
    for (const auto& m : models) result.models.emplace_back(*m->session);
    result.prompt_seconds = seconds_since(start);
    if (d.automatic) {
      session* const drafts = d.draft_model.empty() ? nullptr : models[0]->session.get();
      if (prompt.size() >= 2 * measured_at) {
        costs = measured_costs(drafts, *models.back()->session, prompt.back(), options.sample,
                               !d.tree.empty());
        measured_at = prompt.size();
      }
      result.costs = costs;
      // The model, the last drafter, is the only one that costs a step.
      if (d.drafters.size() > 1)
        std::swap(result.costs.others[d.drafters.size() - 2], result.costs.draft);
    }

    // A round is reported before its tokens come. Those after a stop string are not of the text.
    round_report round = {};
    std::size_t of_round = 0;
    const auto accept = [&](const emission& e) {
      const std::size_t from = result.text.size();
      result.text += tokens().piece(e.token);
      result.emissions.push_back(e);
      result.count(round, of_round++);
      if (end_tokens(ends).contains(e.token)) result.ended_by = "end of text";
      if (const std::size_t stop = find_stop(result.text, from, options.stops);
          stop != std::string::npos) {
        result.text.resize(stop);
        result.ended_by = "stop";
      }
      const auto before = steady_clock::now();
      watch(e, result);
      result.output_seconds += seconds_since(before);
      return result.ended_by.empty();
    };
    result.drafted_by.resize(d.drafters.size());
    result.accepted_by.resize(d.drafters.size());
    const auto after_round = [&](const round_report& r) {
      ++result.rounds;
      result.drafted += r.drafted;
      result.expected += r.expected;
      for (const std::uint8_t drafter : r.drafters) ++result.drafted_by[drafter];
      round = r;
      of_round = 0;
    };
    const auto decode = d.prepare(vocabulary, most);
    start = steady_clock::now();
    const status why =
        decode({t, most, options.sample, ends, result.models, chooser, processor, result.costs,
                accept, after_round, documents, counted, models.front()->head_map});
    result.total_seconds = seconds_since(start);
    if (why != status::ok) {
      std::string reason(name(why));
      if (why == status::undefined_target && d.combines && d.space == "law")
        reason += fmt::format(
            ": after temperature and filters the models' rows have too little in common for "
            "--policy {}"
            "; --space raw combines them before",
            d.policy);
      throw error("decoding", fmt::format("token {}", result.emissions.size()), reason);
    }
    if (result.ended_by.empty()) result.ended_by = "length";
    return result;
  }
};

// The baseline (the target alone, or all models at every token) and the decoder, timed in turn:
// five times, or as often as `seconds` allow.
struct comparison {
  static constexpr int most_repeats = 5;
  static constexpr double seconds = 20;
  int repeats = 0;
  decoded alone, chosen;  // the last of each
  double measured = 0, predicted = 0;
  std::string formula;  // of the prediction, with its numbers
  double c = 0, v = 0;  // a draft step, and a scoring, in single-token steps of the target
  double d = 0;         // scoring each drafted token
  // Where a model alone drafts: its acceptance, the same at every position, and the gamma that is
  // best by these costs.
  std::optional<double> acceptance = {};
  plan::fixed_draft best = {};
};

// The acceptance with which drafts of gamma tokens give so many tokens a round.
double acceptance_of(double tokens, std::size_t gamma) {
  double low = 0, high = 1;
  for (int i = 0; i < 50; ++i) {
    const double a = (low + high) / 2;
    (plan::expected_tokens(a, gamma) < tokens ? low : high) = a;
  }
  return low;
}
void plan_gamma(comparison& r, const decoder& how) {
  r.d = std::max(0., r.v - 1) * double(r.chosen.rounds) / double(r.chosen.drafted);
  if (how.automatic || how.drafters != std::vector<std::string>{"model"}) return;
  r.acceptance = acceptance_of(r.chosen.expected / double(r.chosen.rounds), how.drafts);
  const auto cost = [&](std::size_t g) { return fma(r.c + r.d, double(g), 1); };
  r.best = plan::best_fixed_draft(*r.acceptance, cost, most_drafted);
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

comparison compare(const job& j, const decoder& d) {
  comparison r;
  const decoder alone = baseline(j.options);
  std::vector<double> ratio, c, v, calls;
  progress bar("decoding");
  const auto start = steady_clock::now();
  for (; r.repeats < comparison::most_repeats && seconds_since(start) < comparison::seconds;
       ++r.repeats) {
    const auto tick = [&](double half) {
      return [&, half](const emission&, const decoded& so_far) {
        // of this repetition
        const double one = half + 0.5 * double(so_far.emissions.size()) / double(j.most);
        const double spent = seconds_since(start), each = spent / (r.repeats + one);
        const double all =
            std::min<double>(comparison::most_repeats, std::ceil(comparison::seconds / each));
        bar.show(std::min(1., (r.repeats + one) / all));
      };
    };
    r.alone = j.run(alone, tick(0));
    r.chosen = j.run(d, tick(0.5));
    const double step = r.alone.target_seconds() / double(r.alone.target_calls());
    ratio.push_back(r.chosen.tokens_per_second() / r.alone.tokens_per_second());
    const auto mean = [](double seconds, std::size_t n) { return n ? seconds / double(n) : 0; };
    c.push_back(mean(r.chosen.draft_seconds(), r.chosen.draft_calls()) / step);
    v.push_back(mean(r.chosen.target_seconds(), r.chosen.target_calls()) / step);
    const auto in_models = [](const decoded& of) {
      return (of.draft_seconds() + of.target_seconds()) / double(of.emissions.size());
    };
    calls.push_back(in_models(r.alone) / in_models(r.chosen));
  }
  r.measured = median(ratio);
  r.c = median(c);
  r.v = median(v);
  if (d.name == "speculative") {
    const double rounds = double(r.chosen.rounds), expected = r.chosen.expected / rounds,
                 steps = double(r.chosen.draft_calls()) / rounds;
    r.predicted = expected / fma(r.c, steps, r.v);
    r.formula = fmt::format(
        "predicted from {:.3f} tokens a round, which costs {:.3f} steps of the target alone: "
        "drafting {:.3f}, scoring {:.3f}",
        expected, fma(r.c, steps, r.v), r.c * steps, r.v);
    if (r.chosen.drafted > 0) plan_gamma(r, d);
  } else {
    r.predicted = median(calls);
    r.formula = fmt::format(
        "predicted from the models' calls: {} of drafts, each {:.3f} steps of the target alone, "
        "and "
        "{} of the target",
        r.chosen.draft_calls(), r.c, r.chosen.target_calls());
  }
  return r;
}

// The models whose vocabulary is not the target's.
void report_mapped(nlohmann::json& out, const std::vector<std::unique_ptr<model>>& models) {
  for (const auto& m : models)
    if (m->mapped)
      out["mapped"].push_back({{"model", m->path},
                               {"tokens", m->mapped->map().size()},
                               {"of", m->mapped->map().draft_size()},
                               {"mass", m->mapped->mass()}});
}

// Which drafter each token came from, and what each gave.
void report_drafters(nlohmann::json& out, const decoded& r, const decoder& d) {
  if (d.drafters.empty()) return;
  for (const int k : r.drafters)
    out["drafter"].push_back(k < 0 ? nlohmann::json() : nlohmann::json(d.drafters[std::size_t(k)]));
  for (std::size_t k = 0; k < d.drafters.size(); ++k)
    out["drafters"][d.drafters[k]] = {{"drafted", r.drafted_by[k]}, {"accepted", r.accepted_by[k]}};
}

// What --gamma auto measured, as plan speculative names it.
void report_costs(nlohmann::json& out, const decoded& r, const decoder& d) {
  if (d.automatic) {
    out["c"] = r.costs.row(d.drafters.size() - 1);
    out["d"] = r.costs.verify;
  }
}

nlohmann::json report(const decoded& d) {
  nlohmann::json tokens = nlohmann::json::array(), origins = tokens, log_pi = tokens,
                 log_p = tokens, models = tokens;
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

// Decodes the prompt once, and prints what comes as it comes. explain: its marks.
decoded run_and_print(const job& j, const decoder& d, bool explain) {
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
  const decoded once = j.run(d, stream_out);
  if (!o.json) {
    if (printed < once.text.size()) fmt::print("{}", shown(once.text.substr(printed)));
    fmt::print("\n{}", explain ? legend(once) : "");
    flush_output();
  }
  return once;
}

std::string dumped(const nlohmann::json& out, int indentation) {
  return out.dump(indentation, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Answers the prompt, if there is one, and every line of standard input. The models keep what they
// have seen.
void converse(job& j, const decoder& d, const chat& turns, std::size_t context) {
  const generate_options& o = j.options;
  const bool at_terminal = isatty(STDIN_FILENO) && !o.json;
  std::optional<std::string> first = o.prompt;
  if (!o.prompt_file.empty()) first = read_text(o.prompt_file);
  (void)turns.first(o.system, "");  // a system text that cannot be tokens ends it all
  for (std::size_t turn = 1, lines = 0;; ++turn) {
    std::string asked;
    if (turn == 1 && first) asked = *first;
    while (asked.empty()) {
      if (at_terminal) {
        fmt::print("{}", bold("> "));
        std::fflush(stdout);
      }
      if (!read_line(asked, lines++, most_text_bytes)) return;
    }
    try {
      std::vector<token_id> prompt = j.prompt;
      if (prompt.empty()) prompt = turns.first(o.system, asked);
      else turns.next(prompt, asked);
      j.prompt = std::move(prompt);
      // the text cannot be tokens: the turn ends, the conversation does not
    } catch (const error& e) {
      if (turn == 1 && first) throw;  // it came from the command line
      const std::string line = fmt::format("turn {}: {}", turn, printable(e.what(), 4000));
      if (o.json) {
        fmt::print("{}", dumped({{"turn", turn}, {"prompt", asked}, {"error", line}}, -1));
        flush_output();
      } else fmt::print(stderr, "specagg: {}\n", line);
      continue;
    }
    if (j.prompt.size() >= context)
      throw error(
          "conversation", fmt::format("turn {}", turn),
          fmt::format("has {} tokens, the models' context holds {}", j.prompt.size(), context));
    j.most = std::min(o.max_tokens, context - j.prompt.size());
    const decoded answer = run_and_print(j, d, turn == 1);
    if (o.json) {
      auto out = report(answer);
      report_drafters(out, answer, d);
      report_costs(out, answer, d);
      report_mapped(out, j.models);
      out["turn"] = turn;
      out["prompt"] = asked;
      out["prompt_tokens"] = j.prompt.size();
      out["prompt_tokens_known"] = answer.prompt_known;
      fmt::print("{}", dumped(out, -1));
      flush_output();
    } else {
      print_summary(stderr, answer);
    }
    for (const emission& e : answer.emissions)
      if (!end_tokens(j.ends).contains(e.token)) j.prompt.push_back(e.token);
    j.known = j.prompt.size();
  }
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

// The prompt, the text, which is printed once where both are the same, and what drafting gained.
void print_comparison(const job& j, const decoder& d, const std::string& prompt,
                      const comparison& r) {
  const generate_options& o = j.options;
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

std::string read_prompt(const generate_options& o) {
  if (!o.prompt_file.empty()) return read_text(o.prompt_file);
  return o.prompt.value_or("ROMEO:\nO, she doth teach the torches to burn bright!\n");
}

}  // namespace

void generate(const generate_options& given) {
  generate_options o = given;
  if (o.target.empty() && o.draft.empty()) o.draft = SPECAGG_MODELS "/draft.gguf";
  const bool takes_turns = o.decoder != "speculative" && o.decoder != "tree";
  if (o.target.empty() && o.draft == "lookup" && takes_turns)  // the bundled pair
    o.draft = "lookup," SPECAGG_MODELS "/draft.gguf";
  if (o.target.empty()) o.target = SPECAGG_MODELS "/target.gguf";
  const decoder d = o.draft.empty() ? target_alone() : make_decoder(o);
  const auto in_range = [](const char* option, double x, bool ok) {
    if (!ok) throw error(option, "", fmt::format("{} is out of range", x));
  };
  in_range("--temperature", o.sample.temperature, sampling{o.sample.temperature}.valid());
  in_range("--top-p", o.sample.top_p, sampling{1, 0, o.sample.top_p}.valid());
  in_range("--min-p", o.sample.min_p, sampling{1, 0, 1, o.sample.min_p}.valid());
  in_range("--repeat-penalty", o.penalty.repetition, o.penalty.repetition > 0);
  const auto start = steady_clock::now();
  const auto on = make_backend(o.backend, o.threads, o.llama_cpp);
  if (o.backend == "cpu") say_if_fewer(on->threads(), o.threads);
  std::vector<std::unique_ptr<model>> models;
  if (!d.draft_model.empty() && !d.head)
    models.push_back(std::make_unique<model>(d.draft_model, *on));
  for (const std::string& path : o.models) models.push_back(std::make_unique<model>(path, *on));
  models.push_back(std::make_unique<model>(o.target, *on));
  if (d.head)
    models.insert(models.begin(),
                  std::make_unique<model>(d.draft_model, *on, *models.back(), d.sparse));
  const double load_seconds = seconds_since(start);
  const tokenizer& tokens = *models.back()->tokens;
  std::size_t context = models.back()->session->capacity();
  for (const auto& m : models) {
    if (d.name != "speculative" && d.name != "tree")  // there a full draft model only ends drafting
      context = std::min(context, m->session->capacity());
    m->mapped = map_to_target(m->session, m->path, *m->tokens, tokens, o.json);
    if (d.name == "tree" && !m->session->scores_trees())
      throw error(m->path, "",
                  "scores no trees (a model of the target's vocabulary does, on the CPU, and in "
                  "llama.cpp without "
                  "--exact-batches)");
  }

  job j{o, models, {}, o.max_tokens, tokens.end_tokens(), tokens.unused()};
  const auto drafts = [&](const char* name) {
    return std::count(d.drafters.begin(), d.drafters.end(), name) > 0;
  };
  for (const std::string& path : o.lookups) {
    const std::vector<token_id> document = tokens.encode(read_text(path));
    if (d.lookup_first || drafts("lookup")) {
      for (const token_id t : document) j.documents.push(t);
      j.documents.end_document();
    }
    if (drafts("counts")) {
      for (const token_id t : document) j.counted.push(t);
      j.counted.end_document();
    }
  }
  std::string prompt;
  if (o.chat) {
    const auto turns = tokens.chat();
    if (!o.compare) return converse(j, d, *turns, context);
    if (!o.prompt && o.prompt_file.empty())
      throw error("--compare", "", "with --chat needs --prompt or --prompt-file");
    j.prompt = turns->first(o.system, prompt = read_prompt(o));
  } else {
    j.prompt = tokens.encode(prompt = read_prompt(o));
  }
  if (j.prompt.empty()) {
    if (tokens.bos() == no_token)
      throw error("prompt", "", "is empty, and the model has no token that begins a text");
    j.prompt.push_back(tokens.bos());
  }
  if (j.prompt.size() >= context)
    throw error(
        "prompt", "",
        fmt::format("has {} tokens, the models' context holds {}", j.prompt.size(), context));
  j.most = std::min(o.max_tokens, context - j.prompt.size());

  nlohmann::json out;
  if (o.compare) {
    const comparison r = compare(j, d);
    if (o.json) {
      out = report(r.chosen);
      report_drafters(out, r.chosen, d);
      out[o.baseline == "all-models" ? "all_models" : "target_alone"] = report(r.alone);
      out["expected_tokens_per_round"] =
          r.chosen.expected / double(std::max<std::size_t>(r.chosen.rounds, 1));
      out["speedup_measured"] = r.measured;
      out["speedup_predicted"] = r.predicted;
      out["c"] = r.c;
      out["v"] = r.v;
      out["repeats"] = r.repeats;
      if (r.acceptance) {
        out["best_gamma"] = r.best.gamma;
        out["best_speedup"] = r.best.rate;
      }
      out["mean_logprob_target"] = mean_log_p(r.chosen);
      if (o.baseline != "all-models") {
        out["target_alone"]["mean_logprob_target"] = mean_log_p(r.alone);
        out["identical_to_target_alone"] = r.alone.text == r.chosen.text;
      } else {
        out["all_models"]["mean_logprob_target"] = mean_log_p(r.alone);
      }
    } else {
      print_comparison(j, d, prompt, r);
    }
  } else {
    if (!o.json) {
      fmt::print("{}", dim(prompt));
      std::fflush(stdout);
    }
    const decoded once = run_and_print(j, d, true);
    if (o.json) {
      out = report(once);
      report_drafters(out, once, d);
    } else {
      // Not on standard output: that has the text alone.
      fmt::print(stderr, "\n");
      print_summary(stderr, once);
      if (d.automatic)
        fmt::print(stderr,
                   "{:.2f} tokens drafted a round; measured: a draft step {:.3f} target steps, a "
                   "token more to score {:.3f}\n",
                   double(once.drafted) / double(once.rounds),
                   once.costs.row(d.drafters.size() - 1), once.costs.verify);
    }
    report_costs(out, once, d);
  }
  if (o.json) {
    report_mapped(out, models);
    out["prompt"] = prompt;
    out["decoder"] = d.name;
    out["policy"] = d.policy;
    out["verify"] = d.verify;
    out["space"] = d.space;
    out["draft"] = o.draft;
    out["temperature"] = o.sample.temperature;
    out["seed"] = o.seed;
    if (d.gamma.find_first_not_of("0123456789") == std::string::npos && !d.gamma.empty())
      out["gamma"] = std::stoul(d.gamma);
    else out["gamma"] = d.gamma;
    if (d.name == "tree") out["tree"] = d.tree;
    if (!d.propose.empty()) out["propose"] = d.propose;
    if (d.name == "sequential" || d.name == "bild") out["longest_run"] = d.longest_run;
    out["backend"] = o.backend;
    out["instruction_set"] = instruction_set;
    out["threads"] = on->threads();
    out["seconds"]["load"] = load_seconds;
    fmt::print("{}", dumped(out, 2));
  }
}

}  // namespace cli
