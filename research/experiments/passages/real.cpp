// SPDX-License-Identifier: Apache-2.0
// DRAGON (Liu et al. 2025) with a model that reads: SmolLM2-135M-Instruct on both sites, documents
// from Debian's packages (documents.py). Figure 5 (real-dragon-dealt), questions with exact answers
// (real-dragon-answers), the rows that the sites send (real-dragon-rows), seconds of a step
// (real-dragon-times), and what follows from these and the paper's delays: figures 6 and 7
// (real-dragon-latency).
#include <stdlib.h>

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <optional>

#include <specagg/format.hpp>
#include <specagg/plan/dragon.hpp>
#include <specagg/sites/codec.hpp>

#include "../../../tools/cli/scheduled.hpp"
#include "../parts.hpp"
#include "documents.hpp"

namespace experiments {
namespace {

namespace fs = std::filesystem;

fs::path model_file() {  // named, or where scripts/get-model puts it
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value ? std::string(value) : std::string();
  };
  if (!set("SPECAGG_SMOLLM2").empty()) return set("SPECAGG_SMOLLM2");
  const fs::path folder = !set("SPECAGG_MODELS").empty() ? fs::path(set("SPECAGG_MODELS"))
                          : !set("XDG_CACHE_HOME").empty()
                              ? fs::path(set("XDG_CACHE_HOME")) / "specagg"
                              : fs::path(set("HOME")) / ".cache" / "specagg";
  return folder / "SmolLM2-135M-Instruct.Q4_1.gguf";
}
const std::string script = SPECAGG_MODELS "/../research/experiments/passages/documents.py";

struct question {
  std::string purpose, answer;
};

struct documents_folder {
  std::string path = (fs::temp_directory_path() / "specagg-XXXXXX").string();
  documents_folder() {
    if (!mkdtemp(path.data())) throw error(path, "", "cannot be made");
    if (std::system(fmt::format("python3 '{}' '{}/of'", script, path).c_str()) != 0)
      throw error(script, "", "wrote no documents");
    path += "/of";
  }
  ~documents_folder() {
    std::error_code ignored;
    fs::remove_all(fs::path(path).parent_path(), ignored);
  }
};

struct real_lab {
  explicit real_lab(const settings& s) : how(s) {}
  const settings how;
  std::function<void(double)> progress = [](double) {};

  const reader& model() {
    if (!reads_) {
      if (!fs::exists(model_file()))
        throw error(model_file().string(), "", "is not there: scripts/get-model downloads it");
      reads_ = std::make_unique<reader>(model_file().string());
    }
    return *reads_;
  }
  const corpora& documents() {
    if (!documents_) {
      folder_ = std::make_unique<documents_folder>();
      const std::string& f = folder_->path;
      std::vector<collection> of;
      for (const std::string kind : {"books", "manual"})  // the device's, the cloud's
        of.push_back({kind, f + "/passages/" + kind, f + "/" + kind + ".test.txt"});
      documents_ = std::make_unique<corpora>(std::move(of), f + "/passages", model());
    }
    return *documents_;
  }
  std::vector<question> questions() {
    documents();
    std::vector<question> all;
    std::ifstream file(folder_->path + "/questions.tsv");
    for (std::string line; std::getline(file, line);)
      all.push_back({line.substr(0, line.find('\t')), line.substr(line.find('\t') + 1)});
    return all;
  }

 private:
  std::unique_ptr<const documents_folder> folder_;
  std::unique_ptr<const reader> reads_;
  std::unique_ptr<const corpora> documents_;
};

void dealt(real_lab& lab, table& out) {
  figure_5(lab.model(), lab.documents(), lab.how.quick ? 1 : 24, lab.how, out, lab.progress);
}

// ---- exact answers ------------------------------------------------------------------------------

using row_of = std::vector<float>;  // probabilities
void to_probabilities(std::span<float> row) {
  const auto sum = sum_exponentials(row.data(), row.size(), 1);
  for (float& x : row) x = float(std::exp(double(x) - double(sum.max)) / double(sum.total));
}

// The model's row after a prompt after one passage, and after any answer so far. Computed once.
class answering {
 public:
  answering(const reader& reads, const passage& p, std::span<const token_id> prompt,
            std::span<const token_id> truth)
      : reads_(reads), session_(reads.session(2 + p.size() + prompt.size() + most_answer)) {
    if (!p.empty()) reads.read(session_, p);
    std::vector<token_id> text(prompt.begin(), prompt.end());
    text.insert(text.end(), truth.begin(), truth.end());
    text.push_back(no_token);  // is not read
    const std::size_t v = session_.vocab_size();
    std::vector<float> logits((truth.size() + 1) * v);
    reads.rows(session_, text, logits);
    begin_ = session_.position() - truth.size();
    for (std::size_t i = 0; i <= truth.size(); ++i) {
      const auto row = std::span(logits).subspan(i * v, v);
      to_probabilities(row);
      rows_[{truth.begin(), truth.begin() + std::ptrdiff_t(i)}] = {row.begin(), row.end()};
    }
    known_.assign(truth.begin(), truth.end());
  }
  const row_of& after(const std::vector<token_id>& answer) {
    const auto at = rows_.find(answer);
    if (at != rows_.end()) return at->second;
    std::size_t same = 0;  // of the text that the session has read; one token must be new
    while (same + 1 < answer.size() && same < known_.size() && known_[same] == answer[same]) ++same;
    reads_.check(session_.rollback(begin_ + same));
    row_of& row = rows_[answer];
    row.resize(session_.vocab_size());
    reads_.check(session_.extend(std::span(answer).subspan(same), row));
    known_ = answer;
    to_probabilities(row);
    return row;
  }
  static constexpr std::size_t most_answer = 24;

 private:
  const reader& reads_;
  cpu::llama session_;
  std::size_t begin_ = 0;  // of the answer
  std::vector<token_id> known_;
  std::map<std::vector<token_id>, row_of> rows_;
};

token_id most_likely(const row_of& row) {
  return token_id(std::max_element(row.begin(), row.end()) - row.begin());
}

void answers(real_lab& lab, table& out) {
  const reader& reads = lab.model();
  const corpora& documents = lab.documents();
  const std::size_t wanted = lab.how.quick ? 2 : 100;
  struct job {
    question of;
    std::vector<token_id> prompt, truth;
    std::vector<std::function<void(table&)>> rows = {};
  };
  std::vector<job> jobs;
  for (const question& q : lab.questions()) {
    if (jobs.size() == wanted) break;
    const std::string prompt = "The C function to " + q.purpose + " is called";
    job j{q, reads.encode(prompt), {}};
    const auto whole = reads.encode(prompt + " " + q.answer);
    if (whole.size() <= j.prompt.size() || whole.size() > j.prompt.size() + 12 ||
        !std::equal(j.prompt.begin(), j.prompt.end(), whole.begin()))
      continue;
    j.truth.assign(whole.begin() + std::ptrdiff_t(j.prompt.size()), whole.end());
    jobs.push_back(std::move(j));
  }
  // An answer ends before the first token that cannot go on with a name.
  const auto ends = [&](token_id t) {
    const std::string piece = reads.tokens.piece(t);
    return piece.empty() ||
           !(std::isalnum(static_cast<unsigned char>(piece[0])) || piece[0] == '_');
  };
  const auto run = [&](job& j) {
    const auto add = [&](const std::string& law, double scale, std::size_t n, bool exact,
                         std::size_t rank) {
      j.rows.emplace_back(
          [=, &j](table& to) { to.add(j.of.answer, law, scale, n, exact ? 1 : 0, rank); });
    };
    // Greedy: the most likely token of each row is the answer's next, and then one that ends it.
    const auto exact = [&](const auto& row_after) {
      std::vector<token_id> answer;
      for (const token_id t : j.truth) {
        if (most_likely(row_after(answer)) != t) return false;
        answer.push_back(t);
      }
      return ends(most_likely(row_after(answer)));
    };
    {
      answering none(reads, {}, j.prompt, j.truth);
      add("none", NAN, 0, exact([&](const auto& a) -> const row_of& { return none.after(a); }), 0);
    }
    const found all = search(documents.all, j.of.purpose, 2 * most_passages);
    std::vector<std::unique_ptr<answering>> later;
    std::size_t rank = 0;  // of the first passage that has the answer
    for (const passage& p : all.passages) {
      later.push_back(std::make_unique<answering>(reads, p, j.prompt, j.truth));
      if (rank == 0 && reads.tokens.decode(p).find(j.of.answer) != std::string::npos)
        rank = later.size();
    }
    for (const std::size_t n : counts) {
      if (n == 0) continue;
      const auto [cloud, device] = deal(all, n);
      for (const double scale : scales) {
        struct site {
          std::size_t begin, end;
          double h = -infinity;
        };
        site r{0, cloud.size()}, l{cloud.size(), cloud.size() + device.size()};
        for (site* s : {&l, &r})
          for (auto d = s->begin; d < s->end; ++d) s->h = log_add(s->h, scale * all.scores[d]);
        const site_weights eta = weigh_sites(l.h, r.h);
        const auto row = [&](const site& s, const std::vector<token_id>& answer) {
          row_of mixed(reads.weights->vocab);
          for (auto d = s.begin; d < s.end; ++d) {
            const auto w = float(std::exp(scale * all.scores[d] - s.h));
            const row_of& own = later[d]->after(answer);
            for (std::size_t v = 0; v < mixed.size(); ++v) mixed[v] += w * own[v];
          }
          return mixed;
        };
        const auto both = [&](const std::vector<token_id>& answer) {
          row_of mixed = row(l, answer);
          const row_of other = row(r, answer);
          for (std::size_t v = 0; v < mixed.size(); ++v)
            mixed[v] = float(eta.l) * mixed[v] + float(eta.r) * other[v];
          return mixed;
        };
        const auto at = [&](const site& s) {
          return [&row, &s](const std::vector<token_id>& answer) { return row(s, answer); };
        };
        const bool exact_l = l.begin < l.end && exact(at(l)), exact_r = exact(at(r));
        add("device", scale, n, exact_l, rank);
        add("cloud", scale, n, exact_r, rank);
        add("both", scale, n, exact(both), rank);
        // Each site writes its answer; the likelier one under both is taken.
        bool chosen = exact_l && exact_r;
        if (exact_l != exact_r) {
          const auto written = [&](const site& s) {
            std::vector<token_id> answer;
            do answer.push_back(most_likely(row(s, answer)));
            while (!ends(answer.back()) && answer.size() < j.truth.size() + 4);
            return answer;
          };
          const auto likelihood = [&](const std::vector<token_id>& answer) {
            double in_l = eta.log_l, in_r = eta.log_r;
            std::vector<token_id> before;
            for (const token_id t : answer) {
              if (l.begin < l.end) in_l += std::log(double(row(l, before)[std::size_t(t)]));
              in_r += std::log(double(row(r, before)[std::size_t(t)]));
              before.push_back(t);
            }
            return log_add(in_l, in_r);
          };
          const double of_l = l.begin < l.end ? likelihood(written(l)) : -infinity,
                       of_r = likelihood(written(r));
          chosen = exact_l ? of_l > of_r : of_r > of_l;
        }
        add("sequence", scale, n, chosen, rank);
      }
    }
    const std::size_t text = j.prompt.size() + answering::most_answer,
                      in_256 = passages_in_paper_context(text);
    cpu::llama session = reads.session(context_room(text));
    context best(reads, all, session, text);
    std::map<std::size_t, bool> known;
    const auto in_context = [&](std::size_t n) {
      n = best.fit(n);
      if (const auto k = known.find(n); k != known.end()) return k->second;
      best.read(n);
      std::vector<token_id> whole(j.prompt);
      whole.insert(whole.end(), j.truth.begin(), j.truth.end());
      whole.push_back(no_token);
      const std::size_t v = reads.weights->vocab, begin = session.position();
      std::vector<float> logits((j.truth.size() + 1) * v);
      reads.rows(session, whole, logits);
      reads.check(session.rollback(begin));
      return known[n] = exact([&](const std::vector<token_id>& answer) {
               const auto at = logits.begin() + std::ptrdiff_t(answer.size() * v);
               return row_of(at, at + std::ptrdiff_t(v));
             });
    };
    for (const std::size_t n : counts) {
      if (n == 0) continue;
      const auto [cloud, device] = deal(all, n);
      for (const bool paper : {true, false})
        for (const auto& [law, k] :
             {std::pair{"crcg-cloud", cloud.size()}, {"drcg", cloud.size() + device.size()}})
          add(fmt::format("{}{}", law, paper ? "-256" : ""), NAN, n,
              in_context(paper ? std::min(k, in_256) : k), rank);
    }
  };
  each_of(jobs.size(), lab.how.threads, lab.progress, [&](std::size_t i) { run(jobs[i]); });
  for (const job& j : jobs)
    for (const auto& add : j.rows) add(out);
}

// ---- rows ---------------------------------------------------------------------------------------

// What the sites send at positions of held-out text, two passages a site as in figure 6, and how
// often each accepts the other's tokens.
void rows(real_lab& lab, table& out) {
  const reader& reads = lab.model();
  const corpora& documents = lab.documents();
  const std::size_t of_each = lab.how.quick ? 1 : 16, each = lab.how.quick ? 2 : 16;
  const std::size_t v = reads.weights->vocab;
  std::vector<job> jobs = jobs_of(reads, documents, of_each, lab.how.seed);
  using values = row_codec::values;
  const std::vector<std::pair<const char*, row_codec>> codecs{
      {"whole", {.vocabulary = v}},
      {"top-p 0.8 half", {.vocabulary = v, .format = values::half, .top_p = 0.8}},
      {"top-k 64 half", {.vocabulary = v, .format = values::half, .top_k = 64}},
      {"counts 8 of 64", {.vocabulary = v, .format = values::counts, .top_k = 8, .total = 64}}};
  const auto run = [&](job& j) {
    const auto query = reads.tokens.decode(std::span<const token_id>(j.tokens).first(query_tokens));
    const found all = search(documents.all, query, 4);
    const auto [cloud, device] = deal(all, 2);
    const auto row_of_site = [&](const found& f, double& h) {
      std::vector<std::vector<float>> of;
      std::vector<double> relevance;
      for (std::size_t d = 0; d < f.size(); ++d) {
        cpu::llama s = reads.session(2 + cli::passages::length + j.tokens.size());
        reads.read(s, f.passages[d]);
        reads.rows(s, j.tokens, of.emplace_back(continued * v));
        relevance.push_back(scales[0] * f.scores[d]);
      }
      std::vector<float> mixed(each * v), scratch(2 * f.size());
      for (std::size_t i = 0; i < each; ++i) {
        std::vector<std::span<const float>> at;
        for (const auto& x : of) at.push_back(std::span(x).subspan(i * (continued / each) * v, v));
        const site_share share =
            mix_documents<float>(at, relevance, std::span(mixed).subspan(i * v, v), scratch);
        reads.check(share.why);
        h = share.h;
      }
      return mixed;
    };
    double h_l = 0, h_r = 0;
    std::vector<float> l = row_of_site(device, h_l), r = row_of_site(cloud, h_r);
    const site_weights eta = weigh_sites(h_l, h_r);
    for (std::size_t i = 0; i < each; ++i) {
      std::array<row_of, 2> whole;
      for (std::size_t s = 0; s < 2; ++s) {
        const auto at = (s == 0 ? l : r).begin() + std::ptrdiff_t(i * v);
        whole[s].assign(at, at + std::ptrdiff_t(v));
        to_probabilities(whole[s]);
      }
      // a list of numbers, each with as many digits as its double needs
      std::size_t json = 2 * v;
      for (const float x : whole[1]) json += fmt::formatted_size("{}", double(x));
      for (const auto& [name, codec] : codecs) {
        std::array<row_of, 2> sent;
        std::size_t bytes = 0;
        double tv = 0;
        for (std::size_t s = 0; s < 2; ++s) {
          std::vector<std::uint8_t> buffer(codec.max_bytes<float>());
          std::vector<token_id> ids(codec.max_tokens());
          std::vector<float> mass(v);
          const auto coded =
              encode(codec, dense_row<float>(std::span<const float>(whole[s])), buffer, ids, mass);
          reads.check(coded.why);
          const auto& decoded = coded.row;
          reads.check(decoded.why());
          sent[s].resize(v);
          for (std::size_t x = 0; x < v; ++x) sent[s][x] = decoded[x];
          if (s == 0) continue;
          bytes = coded.bytes;
          for (std::size_t x = 0; x < v; ++x)
            tv += std::abs(double(sent[s][x]) - double(whole[s][x])) / 2;
        }
        const agreement a =
            agreement_of(std::span<const float>(sent[0]), std::span<const float>(sent[1]), eta);
        j.rows.emplace_back([=, &j, &documents, name = name](table& to) {
          to.add(documents.of[j.text].name, j.window, i, name, json, bytes, tv, a.both, a.only_l,
                 a.only_r);
        });
      }
    }
  };
  each_of(jobs.size(), lab.how.threads, lab.progress, [&](std::size_t i) { run(jobs[i]); });
  for (const job& j : jobs)
    for (const auto& add : j.rows) add(out);
}

// ---- seconds ------------------------------------------------------------------------------------

// A token after two passages read side by side: on one thread (the device), on two (the cloud).
// What reading a token costs, in texts of the lengths that figure 7 reads.
void times(real_lab& lab, table& out) {
  const reader& reads = lab.model();
  const std::size_t repeats = lab.how.quick ? 3 : 21;
  const auto add = [&](const char* what, unsigned threads, std::size_t tokens, auto&& once) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i <= repeats; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      once();
      const double s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (i > 0) seconds.push_back(s);  // the first one warms up
    }
    std::sort(seconds.begin(), seconds.end());
    out.add(what, threads, tokens, seconds[repeats / 2], seconds[repeats / 4],
            seconds[3 * repeats / 4]);
    lab.progress(0.1);
  };
  std::vector<token_id> text(512);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = token_id(1000 + 7 * i % 20000);
  const std::span<const token_id> some(text);
  for (const unsigned threads : {1u, 2u}) {
    const auto pool = std::make_shared<thread_pool>(threads);
    std::vector<cpu::llama> sessions;
    std::vector<std::vector<float>> logits(2, std::vector<float>(reads.weights->vocab));
    for (std::size_t d = 0; d < 2; ++d) {
      sessions.push_back(reads.session(256));
      reads.check(sessions[d].extend(some.first(160), {}));
    }
    add("step of two documents", threads, 1, [&] {
      pool->for_ranges(2, 1, [&](std::size_t begin, std::size_t end) {
        for (auto d = begin; d < end; ++d) {
          reads.check(sessions[d].extend(some.subspan(200, 1), logits[d]));
          reads.check(sessions[d].rollback(160));
        }
      });
    });
    for (const std::size_t n : {64u, 128u, 320u}) {
      cpu::llama s(reads.weights, threads > 1 ? pool : nullptr, 512);
      add("read", threads, n, [&] {
        reads.check(s.extend(some.first(n), {}));
        reads.check(s.rollback(0));
      });
    }
  }
}

// Figures 6 and 7 with these seconds and acceptances: 20 tokens are decoded under 0 to 300 ms of
// added delay, by the simulation that the bundled models have. The link has 100 Mbit/s, as theirs.
void latency(real_lab& lab, table& out) {
  const records measured = experiments::read(lab.how, "real-dragon-times"),
                sent = experiments::read(lab.how, "real-dragon-rows");
  const auto number = [](const auto& r, const char* column) {
    return std::strtod(r.at(column).c_str(), nullptr);
  };
  const auto seconds = [&](const char* what, const char* threads, const char* tokens) {
    for (const auto& r : measured)
      if (r.at("what") == what && r.at("threads") == threads && r.at("tokens") == tokens)
        return number(r, "seconds");
    throw error("real-dragon-times", what, "is missing");
  };
  agreement law;
  double n = 0, row_bytes = 0;
  for (const auto& r : sent) {
    if (r.at("codec") != "top-p 0.8 half") continue;
    law.both += number(r, "both");
    law.only_l += number(r, "only_l");
    law.only_r += number(r, "only_r");
    row_bytes += number(r, "bytes");
    ++n;
  }
  if (n == 0) throw error("real-dragon-rows", "", "is missing");
  law = {law.both / n, law.only_l / n, law.only_r / n};
  const reader& reads = lab.model();
  const double device = seconds("step of two documents", "1", "1"),
               cloud = seconds("step of two documents", "2", "1");
  constexpr double base = 0.001, link = 100e6 / 8;  // bytes a second
  constexpr std::uint32_t tokens = 20;
  std::size_t repeats = lab.how.quick ? 4 : 200;
  const auto times = [&](double delay, const agreement& accept, std::uint32_t look_ahead,
                         sites::scheduling how) {
    const cli::scheduled_setting setting{device, cloud, base, delay, accept, tokens, look_ahead};
    std::vector<double> ms(repeats);
    for (std::size_t i = 0; i < repeats; ++i)
      ms[i] = 1e3 * cli::scheduled_run(setting, how, lab.how.seed + i).all / double(tokens);
    return ms;
  };
  const auto add = [&](const char* what, double delay, std::string_view side, auto&& of) {
    const estimate e = mean_of(0, repeats, 1, of);
    out.add(what, 1e3 * delay, side, repeats, e.mean, e.se);
  };
  const auto exactly = [&](const char* what, double delay, double x) {
    out.add(what, 1e3 * delay, "", 1, x, NAN);
  };
  exactly("acceptance of the device", 0, law.l());
  exactly("acceptance of the cloud", 0, law.r());
  exactly("device ms", 0, 1e3 * device);
  exactly("cloud ms", 0, 1e3 * cloud);
  // keys and values of a token, as floats
  const double kept =
      2 * double(reads.weights->layers.size() * reads.weights->kv_heads * reads.weights->head_dim) *
      sizeof(float);
  exactly("bytes of a token's keys and values", 0, kept);
  constexpr double delays[] = {0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3};
  constexpr std::pair<const char*, sites::scheduling> sides[] = {
      {"device", sites::scheduling::l},
      {"cloud", sites::scheduling::r},
      {"random", sites::scheduling::random}};
  for (const double delay : delays) {
    const double way = base + delay / 2;
    const auto synchronous = times(delay, {}, 1, sites::scheduling::l),
               eq8 = times(delay, law, 16, sites::scheduling::eq8);
    add("ms", delay, "token-wise", [&](std::size_t i) { return synchronous[i]; });
    add("ms", delay, "Eq 8", [&](std::size_t i) { return eq8[i]; });
    // rows as DRAGON sends them, or as whole rows of 16 bits
    for (const auto& [name, bytes] :
         {std::pair{"sequence-wise", row_bytes / n},
          {"sequence-wise of whole rows", 2 * double(reads.weights->vocab)}})
      exactly(name, delay,
              1e3 * plan::sequence_wise_latency({device, cloud, way, way}, tokens, bytes / link));
    add("saved", delay, "Eq 8", [&](std::size_t i) { return 1 - eq8[i] / synchronous[i]; });
    for (const auto& [name, how] : sides) {
      const auto other = times(delay, law, 16, how);
      add("ms", delay, name, [&](std::size_t i) { return other[i]; });
      add("Eq 8 adds", delay, name, [&](std::size_t i) { return eq8[i] / other[i] - 1; });
    }
    // Figure 7: a query of 64 tokens, and two documents of 64 on each side, whose keys and values
    // are kept there. Retrieval takes the paper's 52.6 ms.
    constexpr double retrieval = 0.0526;
    const double step = device, query = 2 * seconds("read", "1", "64"),
                 at_cloud = 2 * seconds("read", "2", "64");
    const plan::dragon first{query + step, at_cloud + cloud, way, way, {}};
    const auto ms = [&](const char* name, double x) {
      out.add("first ms", 1e3 * delay, name, 1, 1e3 * (retrieval + x), NAN);
    };
    ms("device alone", query + step);
    ms("DRAGON", plan::first_token_latency(first));
    const double alone = step / 2;  // one context, not two side by side
    ms("DRCG/Text",
       plan::first_token_by_text({alone, cloud, way, way, {}}, seconds("read", "1", "320")));
    ms("DRCG/KV",
       plan::first_token_by_cache({alone + query / 2, cloud, way, way, {}}, 128 * kept / link));
    lab.progress(delay / 0.6);
  }
  repeats = lab.how.quick ? 8 : 2000;
  for (const double delay : {0.1, 0.3}) {
    const auto eq8 = times(delay, law, 16, sites::scheduling::eq8);
    for (const auto& [name, how] : sides) {
      const auto other = times(delay, law, 16, how);
      add("ms saved", delay, name, [&](std::size_t i) { return other[i] - eq8[i]; });
    }
    lab.progress(0.5 + delay / 0.6);
  }
}

const std::vector<part<real_lab>> parts = {
    {"real-dragon-dealt", false, 450, 20,
     "text,window,corpora,law,scale,passages,nats,device_weight", dealt},
    {"real-dragon-answers", false, 420, 12, "answer,law,scale,passages,exact,rank", answers},
    {"real-dragon-rows", false, 60, 3,
     "text,window,position,codec,json_bytes,bytes,tv,both,only_l,only_r", rows},
    {"real-dragon-times", true, 40, 5, "what,threads,tokens,seconds,quartile_1,quartile_3", times},
    {"real-dragon-latency", true, 60, 2, "what,delay_ms,side,sequences,mean,se", latency,
     "real-dragon-times real-dragon-rows"},
};

}  // namespace
}  // namespace experiments

int main(int argc, char** argv) {
  namespace e = experiments;
  return e::program(argc, argv, "specagg-experiments-documents",
                    "DRAGON with SmolLM2 and documents of Debian: a CSV file for each part",
                    e::parts,
                    {e::model_file(), e::script, "/usr/share/doc/debian-policy/policy.txt.gz",
                     "/usr/share/developers-reference/developers-reference.txt.gz",
                     "/usr/share/man/man3/printf.3.gz"});
}
