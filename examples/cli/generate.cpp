// SPDX-License-Identifier: Apache-2.0
// specagg generate: one prompt, two models, one policy.
#include "generate.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/format.hpp>

#include "policies.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using std::chrono::steady_clock;
double seconds_since(steady_clock::time_point t) {
  return std::chrono::duration<double>(steady_clock::now() - t).count();
}

// One model file, and one text in it.
struct model {
  std::shared_ptr<const cpu::llama_weights> weights;
  cpu::llama session;
  cpu::tokenizer tokens;
  model(const std::string& path, std::shared_ptr<cpu::thread_pool> pool)
      : model(std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(path)), std::move(pool)) {}
  model(std::shared_ptr<const cpu::llama_weights> w, std::shared_ptr<cpu::thread_pool> pool)
      : weights(w), session(w, std::move(pool)), tokens(w->file) {}
};

// The law p by its own type: its bonus needs no row of the draft.
template <class F>
void with_policy(const any_policy& policy, F&& f) {
  if (std::holds_alternative<lossless>(policy.rule)) f(lossless{});
  else f(policy);
}
template <class F>
void with_verifier(const std::string& name, std::uint64_t seed, F&& f) {
  if (name == "token") f(token_verifier{});
  else if (name == "block") f(block_verifier{});
  else if (name == "match") f(match_verifier{});
  else if (name == "coupled") f(coupled_verifier{shared_noise(seed)});
  else throw error("--verify " + name, "", "is unknown (token, block, match, coupled are known)");
}

// What one decoding gave.
struct decoded {
  std::vector<emission> emissions;
  std::string text, ended_by;
  std::size_t rounds = 0, drafted = 0, accepted = 0;
  double expected = 0;  // sum over rounds of expected_tokens
  std::size_t target_calls = 0, draft_calls = 0;
  double target_seconds = 0, draft_seconds = 0, total_seconds = 0, prompt_seconds = 0;

  double other_seconds() const { return total_seconds - target_seconds - draft_seconds; }
  double per_target_call() const { return double(emissions.size()) / double(std::max<std::size_t>(target_calls, 1)); }
  double acceptance() const { return drafted ? double(accepted) / double(drafted) : 0; }
  double tokens_per_second() const { return double(emissions.size()) / total_seconds; }
};

// What does not change between the decodings of one command.
struct job {
  const generate_options& options;
  model& draft_model;
  model& target_model;
  std::vector<token_id> prompt;
  std::size_t most;  // tokens to emit

  // Decodes the prompt once. watch(emission, text so far) sees each token.
  template <class Watch>
  decoded run(const any_policy& policy, std::size_t gamma, Watch&& watch) const {
    decoded result;
    const std::size_t vocabulary = target_model.session.vocab_size(), room = prompt.size() + most;
    std::vector<token_id> buffer(prompt), distinct(vocabulary), history(room + gamma + 1);
    buffer.resize(room + gamma);
    std::vector<std::uint32_t> counts(vocabulary);
    penalties processor(options.penalty, counts, distinct, history);
    for (const token_id t : prompt) processor.push(t);
    text t{buffer, prompt.size()};
    random_streams chooser(options.seed);
    speculative_workspace<float> work(vocabulary, gamma);

    // The prompt, but for its last token, goes into both caches before the clock of decoding starts.
    auto start = steady_clock::now();
    const std::span<const token_id> before(prompt.data(), prompt.size() - 1);
    target_model.session.rollback(0), draft_model.session.rollback(0);
    status why = target_model.session.extend(before, {});
    if (why == status::ok && gamma > 0) why = draft_model.session.extend(before, {});
    if (why != status::ok) throw error("prompt", "", std::string(name(why)));
    result.prompt_seconds = seconds_since(start);

    metered d(draft_model.session), m(target_model.session);
    const decode_options decode{gamma, options.sample, target_model.tokens.eos(), gamma > 0};
    const auto accept = [&](const emission& e) {
      const std::size_t from = result.text.size();
      result.text += target_model.tokens.piece(e.token);
      result.emissions.push_back(e);
      if (e.token == decode.end_of_text) result.ended_by = "end of text";
      if (const std::size_t stop = find_stop(result.text, from, options.stops); stop != std::string::npos) {
        result.text.resize(stop);
        result.ended_by = "stop";
      }
      watch(e, result);
      return result.ended_by.empty();
    };
    const auto after_round = [&](const speculative_result& round, const auto& w) {
      ++result.rounds, result.drafted += round.drafted, result.accepted += round.accepted;
      result.expected += expected_tokens(std::span(w.overlaps).first(round.drafted));
    };
    start = steady_clock::now();
    with_policy(policy, [&](const auto& rule) {
      with_verifier(options.verify, options.seed, [&](const auto& verifier) {
        why = speculative_decode(t, most, d, m, rule, chooser, processor, decode, work, accept, after_round, verifier);
      });
    });
    result.total_seconds = seconds_since(start);
    result.target_calls = m.calls, result.target_seconds = m.seconds;
    result.draft_calls = d.calls, result.draft_seconds = d.seconds;
    if (why != status::ok)
      throw error("decoding", fmt::format("token {}", result.emissions.size()), std::string(name(why)));
    if (result.ended_by.empty()) result.ended_by = "length";
    return result;
  }
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// The target alone and the policy, timed in turn.
struct comparison {
  static constexpr int repeats = 5;
  decoded alone, speculative;  // the last of each
  double seconds_alone = 0, seconds_speculative = 0, measured = 0, predicted = 0, c = 0, v = 0, expected = 0;
};

comparison compare(const job& j, const any_policy& policy) {
  comparison r;
  std::vector<double> a, s, ratio, c, v;
  progress bar("decoding");
  for (int i = 0; i < comparison::repeats; ++i) {
    const auto tick = [&](double half) {
      return [&, half](const emission&, const decoded& d) {
        bar.show((i + half + 0.5 * double(d.emissions.size()) / double(j.most)) / comparison::repeats);
      };
    };
    r.alone = j.run({lossless{}}, 0, tick(0));
    r.speculative = j.run(policy, j.options.gamma, tick(0.5));
    const double step = r.alone.target_seconds / double(r.alone.target_calls);
    a.push_back(1 / r.alone.tokens_per_second()), s.push_back(1 / r.speculative.tokens_per_second());
    ratio.push_back(a.back() / s.back());
    c.push_back(r.speculative.draft_calls ? r.speculative.draft_seconds / double(r.speculative.draft_calls) / step : 0);
    v.push_back(r.speculative.target_seconds / double(r.speculative.target_calls) / step);
  }
  r.seconds_alone = median(a), r.seconds_speculative = median(s), r.measured = median(ratio), r.c = median(c),
  r.v = median(v);
  r.expected = r.speculative.expected / double(r.speculative.rounds);
  r.predicted = r.expected / fma(r.c, double(r.speculative.draft_calls) / double(r.speculative.rounds), r.v);
  return r;
}

nlohmann::json report(const decoded& d) {
  nlohmann::json tokens = nlohmann::json::array(), origins = tokens, log_pi = tokens, log_p = tokens;
  for (const emission& e : d.emissions) {
    tokens.push_back(e.token), origins.push_back(name(e.from)), log_pi.push_back(e.log_pi), log_p.push_back(e.log_p);
  }
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
          {"target_calls", d.target_calls},
          {"draft_calls", d.draft_calls},
          {"tokens_per_target_call", d.per_target_call()},
          {"expected_tokens_per_round", d.rounds ? d.expected / double(d.rounds) : 0},
          {"seconds",
           {{"prompt", d.prompt_seconds},
            {"draft", d.draft_seconds},
            {"target", d.target_seconds},
            {"other", d.other_seconds()},
            {"total", d.total_seconds}}},
          {"tokens_per_second", d.tokens_per_second()}};
}

std::string marked_text(const decoded& d, const cpu::tokenizer& tokens) {
  std::string all;
  std::size_t size = 0;
  for (const emission& e : d.emissions) {
    std::string piece = tokens.piece(e.token);
    piece.resize(std::min(piece.size(), d.text.size() - size));  // a stop string is cut off
    size += piece.size();
    all += marked(piece, e.from);
  }
  return all;
}

double mean_log_p(const decoded& d) {
  double sum = 0;
  for (const emission& e : d.emissions) sum += e.log_p;
  return d.emissions.empty() ? 0 : sum / double(d.emissions.size());
}

void print_summary(const decoded& d) {
  fmt::print("{} tokens in {:.0f} ms ({:.0f} tokens/s): draft {:.0f} %, target {:.0f} %, everything else {:.1f} %\n",
             d.emissions.size(), 1e3 * d.total_seconds, d.tokens_per_second(), 100 * d.draft_seconds / d.total_seconds,
             100 * d.target_seconds / d.total_seconds, 100 * d.other_seconds() / d.total_seconds);
  if (d.drafted > 0)
    fmt::print("acceptance {:.3f} ({} of {} drafted), {:.2f} tokens per target call ({} calls)\n", d.acceptance(),
               d.accepted, d.drafted, d.per_target_call(), d.target_calls);
}

std::string read_prompt(const generate_options& o) {
  if (o.prompt_file.empty()) return o.prompt;
  try {
    std::ifstream file;
    file.exceptions(std::ios::failbit | std::ios::badbit);
    file.open(o.prompt_file, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure&) {
    throw error(o.prompt_file, "", "cannot be read");
  }
}

}  // namespace

void generate(const generate_options& o) {
  const any_policy policy = parse_policy(o.policy);
  const auto in_range = [](const char* option, double x, bool ok) {
    if (!ok) throw error(option, "", fmt::format("{} is out of range", x));
  };
  in_range("--temperature", o.sample.temperature, sampling{o.sample.temperature}.valid());
  in_range("--top-p", o.sample.top_p, sampling{1, 0, o.sample.top_p}.valid());
  in_range("--min-p", o.sample.min_p, sampling{1, 0, 1, o.sample.min_p}.valid());
  in_range("--repeat-penalty", o.penalty.repetition, o.penalty.repetition > 0);
  const auto start = steady_clock::now();
  const auto pool = std::make_shared<cpu::thread_pool>(o.threads);
  model target_model(o.target, pool), draft_model(o.draft, pool);
  const double load_seconds = seconds_since(start);
  if (draft_model.tokens.hash() != target_model.tokens.hash())
    throw error(o.draft, "vocabulary",
                fmt::format("differs from that of {} ({} and {} tokens); draft and target must share one", o.target,
                            draft_model.tokens.size(), target_model.tokens.size()));

  const std::string prompt = read_prompt(o);
  job j{o, draft_model, target_model, target_model.tokens.encode(prompt), o.max_tokens};
  if (j.prompt.empty()) {
    if (target_model.tokens.bos() == no_token)
      throw error("prompt", "", "is empty, and the model has no token that begins a text");
    j.prompt.push_back(target_model.tokens.bos());
  }
  const std::size_t context = std::min(target_model.session.capacity(), draft_model.session.capacity());
  if (j.prompt.size() >= context)
    throw error("prompt", "", fmt::format("has {} tokens, the models' context holds {}", j.prompt.size(), context));
  j.most = std::min(o.max_tokens, context - j.prompt.size());

  nlohmann::json out;
  if (o.compare) {
    const comparison r = compare(j, policy);
    if (o.json) {
      out = report(r.speculative);
      out["target_alone"] = report(r.alone);
      out["speedup_measured"] = r.measured, out["speedup_predicted"] = r.predicted;
      out["c"] = r.c, out["v"] = r.v, out["repeats"] = comparison::repeats;
      out["mean_logprob_target"] = mean_log_p(r.speculative),
      out["target_alone"]["mean_logprob_target"] = mean_log_p(r.alone);
      out["identical_to_target_alone"] = r.alone.text == r.speculative.text;
    } else {
      fmt::print("{}\n{}{}\n\n", bold("prompt"), prompt, prompt.ends_with('\n') ? "" : "\n");
      fmt::print("{}\n{}\n", bold("target alone"), r.alone.text);
      print_summary(r.alone);
      fmt::print("\n{}  {} {} {}\n{}\n",
                 bold(fmt::format("{}, gamma {}, temperature {:g}", o.policy, o.gamma, o.sample.temperature)),
                 marked("accepted draft", origin::accepted), marked("residual", origin::residual),
                 marked("bonus", origin::bonus), marked_text(r.speculative, target_model.tokens));
      print_summary(r.speculative);
      fmt::print("mean log-probability under the target {:.3f} (target alone {:.3f})\n", mean_log_p(r.speculative),
                 mean_log_p(r.alone));
      fmt::print("{}\n", bold(fmt::format("speed-up measured {:.2f} (median of {}), predicted {:.2f} = E / (c g + v): "
                                          "E {:.3f}, c {:.3f}, g {:.2f}, v {:.3f}",
                                          r.measured, comparison::repeats, r.predicted, r.expected, r.c,
                                          double(r.speculative.draft_calls) / double(r.speculative.rounds), r.v)));
    }
  } else {
    std::size_t printed = 0;
    const auto stream_out = [&](const emission& e, const decoded& d) {
      if (o.json) return;
      std::size_t until = d.text.size();
      if (d.ended_by.empty()) until -= std::max(held_back(d.text, o.stops), unfinished(d.text));
      if (until > printed)
        fmt::print("{}", marked(std::string_view(d.text).substr(printed, until - printed), e.from)),
            std::fflush(stdout), printed = until;
    };
    const decoded d = j.run(policy, o.gamma, stream_out);
    if (o.json) out = report(d);
    else {
      if (printed < d.text.size()) fmt::print("{}", d.text.substr(printed));
      fmt::print("\n\n"), print_summary(d);
    }
  }
  if (o.json) {
    out["prompt"] = prompt, out["policy"] = o.policy, out["verify"] = o.verify, out["gamma"] = o.gamma,
    out["temperature"] = o.sample.temperature, out["seed"] = o.seed;
    out["instruction_set"] = instruction_set, out["threads"] = o.threads, out["seconds"]["load"] = load_seconds;
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

}  // namespace cli
