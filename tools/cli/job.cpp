// SPDX-License-Identifier: Apache-2.0
#include "job.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <specagg/format.hpp>

#include "costs.hpp"
#include "files.hpp"
#include "lists.hpp"
#include "terminal.hpp"

namespace cli {

using namespace specagg;
using std::chrono::steady_clock;

model::model(const std::string& file, backend& on)
    : path(file), session(on.open(file)), tokens(open_tokenizer(on, file)) {}
model::model(const std::string& file, backend& on, const model& target, bool sparse)
    : path(file), tokens(open_tokenizer(on, target.path)) {
  auto head = on.open_head(file, *target.session);
  if (sparse) {
    head_map = &head->map();
    session = std::move(head);
  } else session = over_target(std::move(head));
}

void decoded::count(const round_report& round) {
  ++rounds;
  drafted += round.drafted;
  expected += round.expected;
  for (const std::uint8_t drafter : round.drafters) ++drafted_by[drafter];
}
void decoded::count(const round_report& round, std::size_t i) {
  const bool draft = i < round.accepted;
  accepted += draft;
  const int drafter = draft && i < round.drafters.size() ? round.drafters[i] : -1;
  drafters.push_back(drafter);
  if (drafter >= 0) ++accepted_by[std::size_t(drafter)];
}
std::size_t decoded::draft_calls() const {
  std::size_t n = 0;
  for (const auto& m : models) n += m.calls;
  return n - target_calls();
}
double decoded::draft_seconds() const {
  double t = 0;
  for (const auto& m : models) t += m.seconds;
  return t - target_seconds();
}

namespace {

// The prompt, but for its last token, goes into every cache before the clock of decoding starts:
// the target first, since a draft head reads what the target makes of it.
void read_prompt(const job& j, decoded& result) {
  const auto start = steady_clock::now();
  const std::size_t due = j.prompt.size() - 1;
  for (auto m = j.models.rbegin(); m != j.models.rend(); ++m) {
    session& reads = *(*m)->session;
    const std::size_t seen = std::min({j.known, reads.position(), due});
    status s = reads.rollback(seen);
    // a draft model may be full before it begins
    if (s == status::ok && due < reads.capacity())
      s = reads.extend(std::span(j.prompt).subspan(seen, due - seen), {});
    if (m == j.models.rbegin()) result.prompt_known = seen;
    if (s != status::ok) throw error("prompt", "", std::string(name(s)));
  }
  for (const auto& m : j.models) result.models.emplace_back(*m->session);
  result.prompt_seconds = seconds_since(start);
}

// What the decoder's models cost, for --gamma auto.
plan::draft_costs measured_for(job& j, const decoder& d) {
  session* const drafts = d.draft_model.empty() ? nullptr : j.models[0]->session.get();
  if (j.prompt.size() >= 2 * j.measured_at) {
    j.costs = measured_costs(drafts, *j.models.back()->session, j.prompt.back(), j.options.sample,
                             !d.tree.empty());
    j.measured_at = j.prompt.size();
  }
  plan::draft_costs costs = j.costs;
  // The model, the last drafter, is the only one that costs a step.
  if (d.drafters.size() > 1) std::swap(costs.others[d.drafters.size() - 2], costs.draft);
  return costs;
}

error failed(status why, const decoder& d, std::size_t tokens) {
  std::string reason(name(why));
  if (why == status::undefined_target && d.combines && d.space == "law")
    reason += fmt::format(
        ": after temperature and filters the models' rows have too little in common for --policy "
        "{}; --space raw combines them before",
        d.policy);
  return error("decoding", fmt::format("token {}", tokens), reason);
}

}  // namespace

decoded job::run(const decoder& d,
                 const std::function<void(const emission&, const decoded&)>& watch) {
  decoded result;
  const std::size_t vocabulary = tokens().size(), room = prompt.size() + most + d.drafts;
  std::vector<token_id> buffer(prompt), memory(penalties::memory(vocabulary, room + 1));
  buffer.resize(room);
  adjustments processor{penalties(options.penalty, vocabulary, prompt, memory), unused};
  text t{buffer, prompt.size()};
  random_streams chooser(options.seed);
  read_prompt(*this, result);
  if (d.automatic) result.costs = measured_for(*this, d);

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
    result.count(r);
    round = r;
    of_round = 0;
  };
  const auto decode = d.prepare(vocabulary, most);
  const auto start = steady_clock::now();
  const status why =
      decode({t, most, options.sample, ends, result.models, chooser, processor, result.costs,
              accept, after_round, documents, counted, models.front()->head_map});
  result.total_seconds = seconds_since(start);
  if (why != status::ok) throw failed(why, d, result.emissions.size());
  if (result.ended_by.empty()) result.ended_by = "length";
  return result;
}

namespace {

// The options, with the bundled models where none are named.
generate_options completed(generate_options o) {
  if (o.target.empty() && o.draft.empty()) o.draft = SPECAGG_MODELS "/draft.gguf";
  const bool takes_turns = o.decoder != "speculative" && o.decoder != "tree";
  if (o.target.empty() && o.draft == "lookup" && takes_turns)  // the bundled pair
    o.draft = "lookup," SPECAGG_MODELS "/draft.gguf";
  if (o.target.empty()) o.target = SPECAGG_MODELS "/target.gguf";
  return o;
}

void check_ranges(const generate_options& o) {
  const auto in_range = [](const char* option, double x, bool ok) {
    if (!ok) throw error(option, "", fmt::format("{} is out of range", x));
  };
  in_range("--temperature", o.sample.temperature, sampling{o.sample.temperature}.valid());
  in_range("--top-p", o.sample.top_p, sampling{1, 0, o.sample.top_p}.valid());
  in_range("--min-p", o.sample.min_p, sampling{1, 0, 1, o.sample.min_p}.valid());
  in_range("--repeat-penalty", o.penalty.repetition, o.penalty.repetition > 0);
}

void open_models(job& j) {
  const generate_options& o = j.options;
  const decoder& d = j.how;
  auto& models = j.models;
  const auto start = steady_clock::now();
  j.on = make_backend(o.backend, o.threads, o.llama_cpp);
  if (o.backend == "cpu") say_if_fewer(j.on->threads(), o.threads);
  if (!d.draft_model.empty() && !d.head)
    models.push_back(std::make_unique<model>(d.draft_model, *j.on));
  for (const std::string& path : o.models) models.push_back(std::make_unique<model>(path, *j.on));
  models.push_back(std::make_unique<model>(o.target, *j.on));
  if (d.head)
    models.insert(models.begin(),
                  std::make_unique<model>(d.draft_model, *j.on, *models.back(), d.sparse));
  j.load_seconds = seconds_since(start);
  j.context = models.back()->session->capacity();
  for (const auto& m : models) {
    if (d.name != "speculative" && d.name != "tree")  // there a full draft model only ends drafting
      j.context = std::min(j.context, m->session->capacity());
    m->mapped = map_to_target(m->session, m->path, *m->tokens, j.tokens(), o.json);
    if (d.name == "tree" && !m->session->scores_trees())
      throw error(m->path, "",
                  "scores no trees (a model of the target's vocabulary does, on the CPU, and in "
                  "llama.cpp without --exact-batches)");
  }
}

void read_lookups(job& j) {
  const auto drafts = [&](const char* name) {
    return std::count(j.how.drafters.begin(), j.how.drafters.end(), name) > 0;
  };
  const auto add = [](const std::vector<token_id>& document, auto& to) {
    for (const token_id t : document) to.push(t);
    to.end_document();
  };
  for (const std::string& path : j.options.lookups) {
    const std::vector<token_id> document = j.tokens().encode(read_text(path));
    if (j.how.lookup_first || drafts("lookup")) add(document, j.documents);
    if (drafts("counts")) add(document, j.counted);
  }
}

}  // namespace

job prepare(const generate_options& options) {
  job j;
  j.options = completed(options);
  j.how = j.options.draft.empty() ? target_alone() : make_decoder(j.options);
  check_ranges(j.options);
  open_models(j);
  j.most = j.options.max_tokens;
  j.ends = j.tokens().end_tokens();
  j.unused = j.tokens().unused();
  read_lookups(j);
  return j;
}

}  // namespace cli
