// SPDX-License-Identifier: Apache-2.0
// A model that reads documents, and what DRAGON's figure 5 compares: the likelihood of held-out
// text against the number of passages. Exact at every position of a known text; nothing is sampled.
//
//   none        no passage
//   cloud, device   the passages of one site, their rows mixed (output aggregation)
//   both        DRAGON, which has the law of DRDG/TW: the sites' rows mixed at every token
//   sequence    DRDG/SW (RAG-Sequence): the likelihoods of the whole continuation, mixed once
//   crcg-cloud, crcg-device   the passages of one site, one after the other in one context
//   drcg        those of both, the best first
//   ...-256     of these as many as 256 tokens hold, the paper's context
#pragma once
#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/error.hpp>
#include <specagg/sites/aggregate.hpp>
#include <specagg/decoders.hpp>
#include <specagg/thread_pool.hpp>

#include "../../../tools/cli/passages.hpp"
#include "../table.hpp"

namespace experiments {

using namespace specagg;
using namespace specagg::sites;

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw error(path.string(), "", "cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

using passage = std::vector<token_id>;

// A session reads "<begin> passage <newline> passage <newline> ... text", and without a passage
// "<begin> text", as cli::site_model does.
class reader {
 public:
  explicit reader(const std::string& file)
      : weights(std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(file))),
        tokens(weights->file),
        name(file),
        newline_(tokens.encode("\n").back()) {}

  const std::shared_ptr<const cpu::llama_weights> weights;
  const cpu::tokenizer tokens;
  const std::string name;

  cpu::llama session(std::size_t capacity = 0) const {
    return cpu::llama(weights, nullptr, capacity);
  }
  // of a text, without a begin
  std::vector<token_id> encode(const std::string& text) const {
    auto t = tokens.encode(text);
    if (!t.empty() && t.front() == tokens.bos()) t.erase(t.begin());
    return t;
  }
  // One more passage.
  void read(cpu::llama& s, const passage& p) const {
    std::vector<token_id> more;
    if (s.position() > 0) more.push_back(newline_);
    else if (tokens.bos() != no_token) more.push_back(tokens.bos());
    more.insert(more.end(), p.begin(), p.end());
    check(s.extend(more, {}));
  }
  // The rows before each of the last rows.size() / V tokens of the text.
  void rows(cpu::llama& s, std::span<const token_id> text, std::span<float> logits) const {
    std::vector<token_id> more;
    if (s.position() > 0) more.push_back(newline_);
    else if (tokens.bos() != no_token) more.push_back(tokens.bos());
    more.insert(more.end(), text.begin(), text.end() - 1);
    check(s.extend(more, logits));
  }
  // ln p(y) of each of the last `scored` tokens. The session is left as it was.
  std::vector<double> likelihood(cpu::llama& s, std::span<const token_id> text,
                                 std::size_t scored) const {
    const std::size_t v = s.vocab_size(), begin = s.position();
    std::vector<float> logits(scored * v);
    rows(s, text, logits);
    check(s.rollback(begin));
    std::vector<double> nats(scored);
    for (std::size_t i = 0; i < scored; ++i) {
      const auto row = std::span<const float>(logits).subspan(i * v, v);
      const auto sum = sum_exponentials(row.data(), v, 1);
      nats[i] = double(row[std::size_t(text[text.size() - scored + i])]) - double(sum.max) -
                std::log(double(sum.total));
    }
    return nats;
  }
  void check(status s) const {
    if (s != status::ok) throw error(name, "", std::string(specagg::name(s)));
  }

 private:
  const token_id newline_;
};

// Passages with their scores for one query, the best first. Of two indexes one passage may have two
// scores.
struct found {
  std::vector<passage> passages;
  std::vector<double> scores;
  std::size_t size() const { return passages.size(); }
};
inline found search(const cli::passages& index, const std::string& query, std::size_t n) {
  found f;
  const auto ids = index.find(query, n);
  for (const auto id : ids) f.passages.push_back(index.tokens(id));
  f.scores = index.scores(query, ids);
  return f;
}
// The first and the second half of the best 2 n: of the cloud, and of the device (section 7.2).
inline std::pair<found, found> deal(const found& all, std::size_t n) {
  const std::size_t both = std::min(2 * n, all.size()), first = (both + 1) / 2;
  const auto part = [&](std::size_t begin, std::size_t end) {
    const auto cut = [&](const auto& x) {
      return std::decay_t<decltype(x)>(x.begin() + std::ptrdiff_t(begin),
                                       x.begin() + std::ptrdiff_t(end));
    };
    return found{cut(all.passages), cut(all.scores)};
  };
  return {part(0, first), part(first, both)};
}
inline found first_of(const found& all, std::size_t n) {
  const auto end = std::ptrdiff_t(std::min(n, all.size()));
  return {{all.passages.begin(), all.passages.begin() + end},
          {all.scores.begin(), all.scores.begin() + end}};
}

// The corpora of an experiment: `passages` holds a folder for each collection, `test` a held-out
// text. Of two, the first is the device's and the second the cloud's.
struct collection {
  std::string name, folder, test;
};
struct corpora {
  std::vector<collection> of;
  cli::passages all;                                      // one corpus
  std::vector<std::unique_ptr<const cli::passages>> own;  // or one for each site
  corpora(std::vector<collection> c, const std::string& folder, const reader& reads)
      : of(std::move(c)), all(folder, reads.tokens) {
    for (const collection& x : of)
      own.push_back(std::make_unique<const cli::passages>(x.folder, reads.tokens));
  }
};

// Nats of relevance per unit of BM25; the first is the program's.
inline constexpr std::array<double, 3> scales{0.1, 0.3, 1};
inline constexpr std::array<std::size_t, 6> counts{0, 1, 2, 4, 8, 16};  // passages of each site
inline constexpr std::size_t most_passages = 16, most_own = 4;  // the latter with two corpora
inline constexpr std::size_t query_tokens = 64, continued = 64, paper_context = 256;

// Windows of a query and its continuation, spread evenly over a held-out text. The seed shifts
// them.
inline std::vector<std::vector<token_id>> windows_of(const reader& reads, const std::string& file,
                                                     std::size_t count, std::uint64_t seed) {
  const std::vector<token_id> tokens = reads.encode(content_of(file));
  const std::size_t size = query_tokens + continued;
  if (tokens.size() < count * size) throw error(file, "", "is too short");
  const std::size_t step = tokens.size() / count, shift = seed % (step - size + 1);
  std::vector<std::vector<token_id>> all;
  for (std::size_t w = 0; w < count; ++w) {
    const auto from = tokens.begin() + std::ptrdiff_t(w * step + shift);
    all.emplace_back(from, from + std::ptrdiff_t(size));
  }
  return all;
}

// Passages in one context, read once: to a shorter one it is rolled back.
class context {
 public:
  // s: has read nothing, or is rolled back; with room for a text of `text` tokens
  context(const reader& reads, const found& of, cpu::llama& s, std::size_t text)
      : reads_(reads), of_(of), session_(s) {
    fit_ = std::min((s.capacity() - 1 - text) / (cli::passages::length + 1), of.size());
  }
  // n, or as many passages as there are and fit
  std::size_t fit(std::size_t n) const { return std::min(n, fit_); }
  // After the first fit(n) passages.
  void read(std::size_t n) {
    n = fit(n);
    if (n + 1 < ends_.size()) ends_.resize(n + 1);
    reads_.check(session_.rollback(ends_.back()));
    while (ends_.size() <= n) {
      reads_.read(session_, of_.passages[ends_.size() - 1]);
      ends_.push_back(session_.position());
    }
  }
  cpu::llama& session() { return session_; }

 private:
  const reader& reads_;
  const found& of_;
  cpu::llama& session_;
  std::size_t fit_;
  std::vector<std::size_t> ends_ = {0};
};
// Tokens of the longest context, and passages that the paper's holds beside a text.
inline std::size_t context_room(std::size_t text) {
  return 1 + 2 * most_passages * (cli::passages::length + 1) + text;
}
inline std::size_t passages_in_paper_context(std::size_t text) {
  return (paper_context - text) / cli::passages::length;
}

// f(i) for every i < count on all threads, and the share that is done; throws what the first threw.
inline void each_of(std::size_t count, unsigned threads,
                    const std::function<void(double)>& progress,
                    const std::function<void(std::size_t)>& f) {
  thread_pool pool(threads ? threads : std::max(1u, std::thread::hardware_concurrency()));
  std::mutex mutex;
  std::size_t done = 0;
  std::vector<std::exception_ptr> failed(count);
  pool.for_ranges(count, 1, [&](std::size_t begin, std::size_t end) {
    for (auto i = begin; i < end; ++i) {
      try {
        f(i);
      } catch (...) {
        failed[i] = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      progress(double(++done) / double(count));
    }
  });
  for (const auto& e : failed)
    if (e) std::rethrow_exception(e);
}

// A site's law: ln p^s of each token, from the passages' own, and h^s.
struct site_law {
  double h = -infinity;
  std::vector<double> nats;
};
inline site_law mix(std::span<const double> scores, double scale,
                    std::span<const std::vector<double>* const> of_passage, std::size_t n) {
  site_law s{-infinity, std::vector<double>(n, -infinity)};
  for (const double r : scores) s.h = log_add(s.h, scale * r);
  for (std::size_t d = 0; d < scores.size(); ++d)
    for (std::size_t i = 0; i < n; ++i)
      s.nats[i] = log_add(s.nats[i], scale * scores[d] - s.h + (*of_passage[d])[i]);
  return s;
}

// A window of held-out text, and what is found there.
struct job {
  std::size_t text, window;
  std::vector<token_id> tokens;
  std::vector<std::function<void(table&)>> rows = {};
};
inline std::vector<job> jobs_of(const reader& reads, const corpora& documents, std::size_t of_each,
                                std::uint64_t seed) {
  std::vector<job> jobs;
  for (std::size_t t = 0; t < documents.of.size(); ++t) {
    auto w = windows_of(reads, documents.of[t].test, of_each, seed);
    for (std::size_t i = 0; i < w.size(); ++i) jobs.push_back({t, i, std::move(w[i])});
  }
  return jobs;
}

inline double mean_nats(std::span<const double> likelihoods) {
  double sum = 0;
  for (const double x : likelihoods) sum -= x / double(likelihoods.size());
  return sum;
}

// The rows of figure 5 for one window.
class figure_5_window {
 public:
  figure_5_window(const reader& reads, const corpora& documents, job& of)
      : reads_(reads),
        documents_(documents),
        j_(of),
        one_(reads.session(2 + cli::passages::length + of.tokens.size())) {}
  void run() {
    const auto query =
        reads_.tokens.decode(std::span<const token_id>(j_.tokens).first(query_tokens));
    add("none", "none", NAN, 0, mean_nats(*after({})), NAN);
    const found all = search(documents_.all, query, 2 * most_passages);
    std::vector<found> own;
    for (const auto& index : documents_.own) own.push_back(search(*index, query, most_own));
    for (const std::size_t n : counts) {
      if (n == 0) continue;
      const auto [cloud, device] = deal(all, n);
      aggregated("dealt", n, device, cloud);
      if (n <= most_own) aggregated("own", n, first_of(own[0], n), first_of(own[1], n));
    }
    in_one_context(all);
  }

 private:
  void add(const char* from, const std::string& law, double scale, std::size_t n, double nats,
           double weight) {
    j_.rows.emplace_back([=, &j = j_, &text = documents_.of[j_.text].name](table& to) {
      to.add(text, j.window, from, law, scale, n, nats, weight);
    });
  }
  // ln p of the window's tokens after a passage, which is read once, for any laws.
  const std::vector<double>* after(const passage& p) {
    auto& nats = read_[p];
    if (nats.empty()) {
      reads_.check(one_.rollback(0));
      if (!p.empty()) reads_.read(one_, p);
      nats = reads_.likelihood(one_, j_.tokens, continued);
    }
    return &nats;
  }
  // Passages read side by side, l on the device and r in the cloud.
  void aggregated(const char* from, std::size_t n, const found& l, const found& r) {
    std::vector<const std::vector<double>*> in_l, in_r;
    for (const passage& p : l.passages) in_l.push_back(after(p));
    for (const passage& p : r.passages) in_r.push_back(after(p));
    for (const double scale : scales) {
      const site_law p_l = mix(l.scores, scale, in_l, continued),
                     p_r = mix(r.scores, scale, in_r, continued);
      const site_weights eta = weigh_sites(p_l.h, p_r.h);
      std::vector<double> both(continued);
      double all_l = eta.log_l, all_r = eta.log_r;
      for (std::size_t i = 0; i < continued; ++i) {
        both[i] = log_add(eta.log_l + p_l.nats[i], eta.log_r + p_r.nats[i]);
        all_l += p_l.nats[i];
        all_r += p_r.nats[i];
      }
      add(from, "both", scale, n, mean_nats(both), eta.l);
      add(from, "sequence", scale, n, -log_add(all_l, all_r) / double(continued), eta.l);
      if (l.size()) add(from, "device", scale, n, mean_nats(p_l.nats), eta.l);
      if (r.size()) add(from, "cloud", scale, n, mean_nats(p_r.nats), eta.l);
    }
  }
  // What is compared with: passages one after the other, before the text.
  void in_one_context(const found& all) {
    cpu::llama of_best = reads_.session(context_room(j_.tokens.size())),
               of_device = reads_.session(of_best.capacity());
    const std::size_t in_256 = passages_in_paper_context(j_.tokens.size());
    const auto nats_in = [&](context& c, std::size_t n, std::map<std::size_t, double>& known) {
      n = c.fit(n);
      if (const auto k = known.find(n); k != known.end()) return k->second;
      c.read(n);
      return known[n] = mean_nats(reads_.likelihood(c.session(), j_.tokens, continued));
    };
    context best(reads_, all, of_best, j_.tokens.size());
    std::map<std::size_t, double> known;
    for (const std::size_t n : counts) {
      if (n == 0) continue;
      const auto [cloud, device] = deal(all, n);
      context second(reads_, device, of_device, j_.tokens.size());
      std::map<std::size_t, double> of_second;
      for (const bool paper : {true, false}) {
        const auto law = [&](const char* name, context& c, std::size_t k, auto& cache) {
          add("dealt", fmt::format("{}{}", name, paper ? "-256" : ""), NAN, n,
              nats_in(c, paper ? std::min(k, in_256) : k, cache), NAN);
        };
        law("crcg-cloud", best, cloud.size(), known);
        law("drcg", best, cloud.size() + device.size(), known);
        if (device.size()) law("crcg-device", second, device.size(), of_second);
      }
    }
  }

  const reader& reads_;
  const corpora& documents_;
  job& j_;
  cpu::llama one_;
  std::map<passage, std::vector<double>> read_;
};

// Figure 5, with one corpus dealt to both sites and with a corpus for each. A row for each window:
// text, window, corpora, law, scale, passages a site, nats of a token of the continuation, device's
// weight.
inline void figure_5(const reader& reads, const corpora& documents, std::size_t of_each,
                     const settings& how, table& out, const std::function<void(double)>& progress) {
  std::vector<job> jobs = jobs_of(reads, documents, of_each, how.seed);
  each_of(jobs.size(), how.threads, progress,
          [&](std::size_t i) { figure_5_window(reads, documents, jobs[i]).run(); });
  for (const job& j : jobs)
    for (const auto& add : j.rows) add(out);
}

}  // namespace experiments
