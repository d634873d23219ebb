// SPDX-License-Identifier: Apache-2.0
// specagg score: the log-probability of every token of a text; with a draft model, what drafting it
// would give.
#include "score.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include <specagg/format.hpp>
#include <specagg/plan/acceptance.hpp>
#include <specagg/plan/speedup.hpp>
#include <specagg/kernels.hpp>

#include "backends.hpp"
#include "costs.hpp"
#include "files.hpp"
#include "mapped_model.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using json = nlohmann::ordered_json;

// Position i is that of token i; the first has no row before it.
struct scored {
  std::vector<double> logprobs;  // of tokens 1 ...
  std::vector<double> overlaps;  // sum min(q, p) at positions 1 ...; without a draft model empty
};

scored score_tokens(const std::vector<token_id>& ids, session& target, session* draft) {
  constexpr std::size_t most = 32;  // rows at once
  const std::size_t V = target.vocab_size();
  std::vector<float> p(most * V), q(draft ? most * V : 0);
  scored all;
  progress bar("scoring");
  for (std::size_t i = 0; i + 1 < ids.size(); i += most) {
    const std::size_t n = std::min(most, ids.size() - 1 - i);
    const auto part = std::span(ids).subspan(i, n);
    for (session* m : {&target, draft}) {
      if (!m) continue;
      const status s = m->extend(part, std::span(m == &target ? p : q).first(n * V));
      if (s != status::ok) throw error("text", fmt::format("token {}", i), std::string(name(s)));
    }
    for (std::size_t k = 0; k < n; ++k) {
      const auto sum = sum_exponentials(p.data() + k * V, V, 1);
      const double logprob =
          double(p[k * V + std::size_t(ids[i + k + 1])]) - double(sum.max) - std::log(sum.total);
      if (!(logprob <= 0))
        throw error("text", fmt::format("token {}", i + k + 1), "its row is invalid");
      all.logprobs.push_back(logprob);
      if (!draft) continue;
      const auto q_row = normalise(softmax_row<float>(q.data() + k * V, V)),
                 p_row = normalise(softmax_row<float>(p.data() + k * V, V));
      if (q_row.why() != status::ok || p_row.why() != status::ok)
        throw error("text", fmt::format("token {}", i + k + 1), "its row is invalid");
      all.overlaps.push_back(acceptance_rate(q_row, p_row));
    }
    bar.show(double(i + n) / double(ids.size()));
  }
  return all;
}

// Tokens a call of the target emits, where every drafted token is accepted with its position's
// overlap: the mean over all places at which a draft of gamma tokens could begin.
double expected_tokens_of(const std::vector<double>& overlaps, std::size_t gamma) {
  if (overlaps.size() < gamma) return std::nan("");
  double sum = 0;
  const std::size_t places = overlaps.size() - gamma + 1;
  for (std::size_t i = 0; i < places; ++i)
    sum += plan::expected_tokens(std::span(overlaps).subspan(i, gamma));
  return sum / double(places);
}

constexpr std::size_t most_gamma = 8;

struct drafting {
  double acceptance = 0;  // mean overlap
  std::array<double, most_gamma> expected = {}, speedup = {};
  double c = 0, d = 0;   // a draft step, and each scored token after the first, over a target step
  std::size_t best = 0;  // gamma of the largest speed-up; 0: none is above 1
  double v(std::size_t gamma) const { return 1 + double(gamma) * d; }  // scoring a draft
};

drafting drafting_of(const std::vector<double>& overlaps, session& draft, session& target,
                     token_id any) {
  drafting found;
  for (const double a : overlaps) found.acceptance += a / double(overlaps.size());
  const plan::draft_costs costs = measured_costs(&draft, target, any, {});
  found.c = costs.draft;
  found.d = costs.verify;
  for (std::size_t g = 1; g <= most_gamma; ++g) {
    found.expected[g - 1] = expected_tokens_of(overlaps, g);
    found.speedup[g - 1] =
        plan::round_speedup(found.expected[g - 1], double(g), found.c, found.v(g));
    if (found.speedup[g - 1] > (found.best ? found.speedup[found.best - 1] : 1)) found.best = g;
  }
  return found;
}

// A text, and what was found.
struct scores {
  const tokenizer& tokens;
  const std::vector<token_id>& ids;
  bool drafted;                  // there is a draft model
  const mapped_session* mapped;  // it, with another vocabulary; null: it has the target's
  scored of;
  double mass;                                   // of mapped, over the text's rows
  std::optional<struct drafting> drafting = {};  // of a text that is long enough
  double nll() const {
    double sum = 0;
    for (const double l : of.logprobs) sum -= l;
    return sum;
  }
  double perplexity() const {
    return std::exp(nll() / double(std::max<std::size_t>(of.logprobs.size(), 1)));
  }
};

void print_json(const scores& s) {
  json pieces = json::array(), logprobs = json::array({nullptr});
  for (const token_id t : s.ids) pieces.push_back(s.tokens.piece(t));
  for (const double l : s.of.logprobs) logprobs.push_back(l);
  json out{{"ids", s.ids},
           {"pieces", pieces},
           {"logprobs", logprobs},
           {"nll", s.nll()},
           {"perplexity", s.perplexity()}};
  if (s.drafted) out["overlap"] = s.of.overlaps;
  if (s.mapped)
    out["mapped"] = {
        {"tokens", s.mapped->map().size()}, {"of", s.mapped->map().draft_size()}, {"mass", s.mass}};
  if (s.drafting)
    out.update({{"acceptance", s.drafting->acceptance},
                {"expected_tokens", s.drafting->expected},
                {"c", s.drafting->c},
                {"d", s.drafting->d},
                {"speedup_predicted", s.drafting->speedup},
                {"gamma", s.drafting->best}});
  fmt::print("{}\n", out.dump(-1, ' ', false, json::error_handler_t::replace));
}

void print_table(const scores& s) {
  fmt::print("{:>8}  {:>9}  {}piece\n", "id", "logprob", s.drafted ? "overlap  " : "");
  for (std::size_t i = 0; i < s.ids.size(); ++i) {
    const std::string logprob = i == 0 ? "" : fmt::format("{:.4f}", s.of.logprobs[i - 1]);
    const std::string overlap = !s.drafted ? ""
                                : i == 0   ? "         "
                                           : fmt::format("{:7.4f}  ", s.of.overlaps[i - 1]);
    fmt::print(
        "{:>8}  {:>9}  {}{}\n", s.ids[i], logprob, overlap,
        printable(
            json(s.tokens.piece(s.ids[i])).dump(-1, ' ', false, json::error_handler_t::replace),
            1000));
  }
  fmt::print("\ntokens {}, nll {:.4f}, perplexity {:.4f}\n", s.ids.size(), s.nll(), s.perplexity());
  if (s.mapped) fmt::print("mapped tokens have {:.4f} of the draft's probability\n", s.mass);
}

void print_drafting(const drafting& d) {
  fmt::print("acceptance {:.4f}; a draft step costs {:.3f} target steps (c)\n\n", d.acceptance,
             d.c);
  fmt::print("{:>5}  {:>15}  {:>6}  {:>8}\n", "gamma", "expected tokens", "v", "speed-up");
  for (std::size_t g = 1; g <= most_gamma; ++g)
    fmt::print("{:>5}  {:>15.3f}  {:>6.3f}  {:>8.3f}\n", g, d.expected[g - 1], d.v(g),
               d.speedup[g - 1]);
  if (d.best)
    fmt::print("\ndrafting pays: {:.2f} times as fast with gamma {}\n", d.speedup[d.best - 1],
               d.best);
  else fmt::print("\ndrafting does not pay on this machine\n");
}

}  // namespace

void score(const score_options& o) {
  if (o.text.empty() == o.text_file.empty())
    throw error("score", "", "needs --text or --text-file");
  const auto on = make_backend(o.backend, o.threads, o.llama_cpp);
  const auto target = on->open(o.model);
  const auto own = open_tokenizer(*on, o.model);
  const tokenizer& tokens = *own;
  std::unique_ptr<session> draft = o.draft.empty() ? nullptr : on->open(o.draft);
  const auto others = draft ? open_tokenizer(*on, o.draft) : nullptr;
  const mapped_session* const mapped =
      draft ? map_to_target(draft, o.draft, *others, tokens, o.json) : nullptr;
  const std::vector<token_id> ids =
      tokens.encode(o.text_file.empty() ? o.text : read_text(o.text_file));
  if (ids.empty()) throw error("text", "", "has no tokens");
  std::size_t context = target->capacity();
  if (draft) context = std::min(context, draft->capacity());
  if (ids.size() > context)
    throw error("text", "",
                fmt::format("has {} tokens, the context holds {}", ids.size(), context));

  scores s{tokens, ids, bool(draft), mapped, score_tokens(ids, *target, draft.get()), 1};
  if (mapped) s.mass = mapped->mass();
  if (draft && s.of.overlaps.size() >= most_gamma)
    s.drafting = drafting_of(s.of.overlaps, *draft, *target, ids.back());
  if (o.json) return print_json(s);
  print_table(s);
  if (s.drafting) print_drafting(*s.drafting);
  else if (draft)
    fmt::print("acceptance: the text is too short ({} tokens are needed)\n", most_gamma + 1);
}

}  // namespace cli
