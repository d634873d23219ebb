// SPDX-License-Identifier: Apache-2.0
// real-dragon-answers: questions with exact answers, by sites that hold passages, and by one model
// that reads them all.
#include <cctype>

#include "real_lab.hpp"

namespace experiments {
namespace {

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

struct asked {
  question of;
  std::vector<token_id> prompt, truth;
  std::vector<std::function<void(table&)>> rows = {};
};
// Questions whose answers go on where their prompts end, in 12 tokens at most.
std::vector<asked> questions_of(real_lab& lab) {
  const reader& reads = lab.model();
  const std::size_t wanted = lab.how.quick ? 2 : 100;
  std::vector<asked> jobs;
  for (const question& q : lab.questions()) {
    if (jobs.size() == wanted) break;
    const std::string prompt = "The C function to " + q.purpose + " is called";
    asked j{q, reads.encode(prompt), {}};
    const auto whole = reads.encode(prompt + " " + q.answer);
    if (whole.size() <= j.prompt.size() || whole.size() > j.prompt.size() + 12 ||
        !std::equal(j.prompt.begin(), j.prompt.end(), whole.begin()))
      continue;
    j.truth.assign(whole.begin() + std::ptrdiff_t(j.prompt.size()), whole.end());
    jobs.push_back(std::move(j));
  }
  return jobs;
}

// One question, under every law.
class answered {
 public:
  answered(const reader& reads, const corpora& documents, asked& of)
      : reads_(reads), documents_(documents), j_(of) {}
  void run() {
    {
      answering none(reads_, {}, j_.prompt, j_.truth);
      add("none", NAN, 0, exact([&](const auto& a) -> const row_of& { return none.after(a); }));
    }
    all_ = search(documents_.all, j_.of.purpose, 2 * most_passages);
    std::size_t rank = 0;
    for (const passage& p : all_.passages) {
      later_.push_back(std::make_unique<answering>(reads_, p, j_.prompt, j_.truth));
      if (rank == 0 && reads_.tokens.decode(p).find(j_.of.answer) != std::string::npos)
        rank = later_.size();
    }
    rank_ = rank;
    for (const std::size_t n : counts) {
      if (n == 0) continue;
      for (const double scale : scales) by_sites(n, scale);
    }
    in_one_context();
  }

 private:
  using answer = std::vector<token_id>;
  // The passages from begin to end, the device's or the cloud's, and h of their scores.
  struct site {
    std::size_t begin, end;
    double scale, h = -infinity;
  };

  void add(const std::string& law, double scale, std::size_t n, bool exact) {
    j_.rows.emplace_back([=, &j = j_, rank = rank_](table& to) {
      to.add(j.of.answer, law, scale, n, exact ? 1 : 0, rank);
    });
  }
  // An answer ends before the first token that cannot go on with a name.
  bool ends(token_id t) const {
    const std::string piece = reads_.tokens.piece(t);
    return piece.empty() ||
           !(std::isalnum(static_cast<unsigned char>(piece[0])) || piece[0] == '_');
  }
  // Greedy: the most likely token of each row is the answer's next, and then one that ends it.
  template <class RowAfter>
  bool exact(const RowAfter& row_after) const {
    answer so_far;
    for (const token_id t : j_.truth) {
      if (most_likely(row_after(so_far)) != t) return false;
      so_far.push_back(t);
    }
    return ends(most_likely(row_after(so_far)));
  }
  row_of row(const site& s, const answer& so_far) {
    row_of mixed(reads_.weights->vocab);
    for (auto d = s.begin; d < s.end; ++d) {
      const auto w = float(std::exp(s.scale * all_.scores[d] - s.h));
      const row_of& own = later_[d]->after(so_far);
      for (std::size_t v = 0; v < mixed.size(); ++v) mixed[v] += w * own[v];
    }
    return mixed;
  }
  void by_sites(std::size_t n, double scale) {
    const auto [cloud, device] = deal(all_, n);
    site r{0, cloud.size(), scale}, l{cloud.size(), cloud.size() + device.size(), scale};
    for (site* s : {&l, &r})
      for (auto d = s->begin; d < s->end; ++d) s->h = log_add(s->h, scale * all_.scores[d]);
    const site_weights eta = weigh_sites(l.h, r.h);
    const auto both = [&](const answer& so_far) {
      row_of mixed = row(l, so_far);
      const row_of other = row(r, so_far);
      for (std::size_t v = 0; v < mixed.size(); ++v)
        mixed[v] = float(eta.l) * mixed[v] + float(eta.r) * other[v];
      return mixed;
    };
    const auto at = [&](const site& s) {
      return [this, &s](const answer& so_far) { return row(s, so_far); };
    };
    const bool exact_l = l.begin < l.end && exact(at(l)), exact_r = exact(at(r));
    add("device", scale, n, exact_l);
    add("cloud", scale, n, exact_r);
    add("both", scale, n, exact(both));
    // Each site writes its answer; the likelier one under both is taken.
    bool chosen = exact_l && exact_r;
    if (exact_l != exact_r) {
      const auto [of_l, of_r] = likelihoods(l, r, eta);
      chosen = exact_l ? of_l > of_r : of_r > of_l;
    }
    add("sequence", scale, n, chosen);
  }
  // Of what the device writes, and the cloud, under both.
  std::pair<double, double> likelihoods(const site& l, const site& r, const site_weights& eta) {
    const auto written = [&](const site& s) {
      answer text;
      do text.push_back(most_likely(row(s, text)));
      while (!ends(text.back()) && text.size() < j_.truth.size() + 4);
      return text;
    };
    const auto likelihood = [&](const answer& text) {
      double in_l = eta.log_l, in_r = eta.log_r;
      answer before;
      for (const token_id t : text) {
        if (l.begin < l.end) in_l += std::log(double(row(l, before)[std::size_t(t)]));
        in_r += std::log(double(row(r, before)[std::size_t(t)]));
        before.push_back(t);
      }
      return log_add(in_l, in_r);
    };
    return {l.begin < l.end ? likelihood(written(l)) : -infinity, likelihood(written(r))};
  }
  // All passages before one prompt, read by one model.
  void in_one_context() {
    const std::size_t text = j_.prompt.size() + answering::most_answer,
                      in_256 = passages_in_paper_context(text);
    cpu::llama session = reads_.session(context_room(text));
    context best(reads_, all_, session, text);
    std::map<std::size_t, bool> known;
    const auto in_context = [&](std::size_t n) {
      n = best.fit(n);
      if (const auto k = known.find(n); k != known.end()) return k->second;
      best.read(n);
      std::vector<token_id> whole(j_.prompt);
      whole.insert(whole.end(), j_.truth.begin(), j_.truth.end());
      whole.push_back(no_token);
      const std::size_t v = reads_.weights->vocab, begin = session.position();
      std::vector<float> logits((j_.truth.size() + 1) * v);
      reads_.rows(session, whole, logits);
      reads_.check(session.rollback(begin));
      return known[n] = exact([&](const answer& so_far) {
               const auto at = logits.begin() + std::ptrdiff_t(so_far.size() * v);
               return row_of(at, at + std::ptrdiff_t(v));
             });
    };
    for (const std::size_t n : counts) {
      if (n == 0) continue;
      const auto [cloud, device] = deal(all_, n);
      for (const bool paper : {true, false})
        for (const auto& [law, k] :
             {std::pair{"crcg-cloud", cloud.size()}, {"drcg", cloud.size() + device.size()}})
          add(fmt::format("{}{}", law, paper ? "-256" : ""), NAN, n,
              in_context(paper ? std::min(k, in_256) : k));
    }
  }

  const reader& reads_;
  const corpora& documents_;
  asked& j_;
  found all_;
  std::vector<std::unique_ptr<answering>> later_;  // of each passage
  std::size_t rank_ = 0;                           // of the first passage that has the answer
};

}  // namespace

void answers(real_lab& lab, table& out) {
  const reader& reads = lab.model();
  const corpora& documents = lab.documents();
  std::vector<asked> jobs = questions_of(lab);
  each_of(jobs.size(), lab.how.threads, lab.progress,
          [&](std::size_t i) { answered(reads, documents, jobs[i]).run(); });
  for (const asked& j : jobs)
    for (const auto& add : j.rows) add(out);
}

}  // namespace experiments
