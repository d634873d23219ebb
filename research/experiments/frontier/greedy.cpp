// SPDX-License-Identifier: Apache-2.0
// Greedy rules as engines and papers run them, at temperature 0 with greedy drafts. Each writes its
// own texts, for after a token that is not the target's the text is another one. What a rule reads
// follows published code: TensorRT-LLM's mtpKernels.cu, AMD-AGI/FLy's FLy.py, Kissmetothemoon/ASD's
// budget.py with its stable configuration; MARS as its paper says.
#include <array>
#include <cmath>
#include <functional>

#include "remembering.hpp"

namespace experiments::frontier {
namespace {

// A drafted token in the target's row.
struct seen {
  token_id drafted = no_token, top = no_token, second = no_token;
  double top_logit = 0, second_logit = 0, logit = 0;  // logit: of the drafted token
  double top_p = 0, p = 0;                            // probabilities at temperature 1
  std::size_t rank = 0;                               // tokens with a larger logit
  double entropy = 0;                                 // -sum p ln p over the three likeliest, nats
  bool match() const { return drafted == top; }
};
// What all tokens of a row have in common.
struct known {
  std::array<std::size_t, 3> best{};  // the likeliest
  double sum = 0;                     // of exp(logit - the largest)
};
known known_of(std::span<const float> row) {
  known k;
  std::array<float, 3> x;
  x.fill(-INFINITY);
  for (std::size_t v = 0; v < row.size(); ++v) {
    if (row[v] <= x[2]) continue;
    std::size_t i = 2;
    for (; i > 0 && row[v] > x[i - 1]; --i) {
      x[i] = x[i - 1];
      k.best[i] = k.best[i - 1];
    }
    x[i] = row[v];
    k.best[i] = v;
  }
  const auto p = probabilities(row, {});
  k.sum = 1 / double(p[k.best[0]]);
  return k;
}
seen look(std::span<const float> row, const known& k, token_id drafted) {
  seen s{.drafted = drafted, .top = token_id(k.best[0]), .second = token_id(k.best[1])};
  s.top_logit = row[k.best[0]];
  s.second_logit = row[k.best[1]];
  s.logit = row[std::size_t(drafted)];
  const float least = row[std::size_t(drafted)];
  s.rank = std::size_t(std::count_if(row.begin(), row.end(), [=](float x) { return x > least; }));
  s.top_p = 1 / k.sum;
  s.p = std::exp(s.logit - s.top_logit) / k.sum;
  for (const std::size_t v : k.best) {
    const double x = std::exp(double(row[v]) - s.top_logit) / k.sum;
    s.entropy -= x * std::log(x);
  }
  return s;
}

// How many drafted tokens are kept. spent: what a text has spent, 0 at its beginning.
using keeps = std::function<std::size_t(std::span<const seen>, double& spent)>;
template <class F>
std::size_t while_kept(std::span<const seen> all, F&& kept) {
  std::size_t n = 0;
  while (n < all.size() && kept(all[n])) ++n;
  return n;
}
std::size_t lossless_rule(std::span<const seen> all, double&) {
  return while_kept(all, [](const seen& s) { return s.match(); });
}
keeps tensorrt(double delta) {
  return [=](std::span<const seen> all, double&) {
    return while_kept(all, [&](const seen& s) { return s.rank < 10 && s.p >= s.top_p - delta; });
  };
}
std::size_t mars(std::span<const seen> all, double&) {
  return while_kept(all, [](const seen& s) {
    return s.match() || (s.drafted == s.second && s.second_logit > 0.9 * s.top_logit);
  });
}
// A mismatch stands if the gate is open and the next five drafted tokens match; not at the end.
std::size_t fly(std::span<const seen> all, double&) {
  constexpr std::size_t window = 6;
  std::size_t n = 0;
  for (; n < all.size(); ++n) {
    if (all[n].match()) continue;
    if (all[n].entropy < 0.3 || n + window >= all.size()) break;
    const auto next = all.subspan(n + 1, window - 1);
    if (!std::all_of(next.begin(), next.end(), [](const seen& s) { return s.match(); })) break;
  }
  return n;
}
// Regret in logits: 8 for a text, a quarter for each token that is left in the block, two a block.
std::size_t asd(std::span<const seen> all, double& spent) {
  std::size_t n = 0, mismatches = 0;
  for (double sum = spent; n < all.size(); ++n) {
    if (all[n].match()) continue;
    const double regret = all[n].top_logit - all[n].logit;
    sum += regret;
    if (++mismatches > 2 || sum > 8 || regret > 0.25 * double(all.size() - n)) break;
    spent = sum;
  }
  return n;
}

struct greedy_rule {
  const char* name;
  std::size_t drafted;  // tokens of a draft
  keeps kept;
};
const std::vector<greedy_rule>& greedy_rules() {
  static const std::vector<greedy_rule> all{{"lossless", 4, lossless_rule},
                                            {"TensorRT-LLM, top 10, delta 0.1", 4, tensorrt(0.1)},
                                            {"TensorRT-LLM, top 10, delta 0.3", 4, tensorrt(0.3)},
                                            {"TensorRT-LLM, top 10, delta 0.6", 4, tensorrt(0.6)},
                                            {"lossless", 7, lossless_rule},
                                            {"MARS, 0.9", 7, mars},
                                            {"ASD, stable", 7, asd},
                                            {"lossless", 15, lossless_rule},
                                            {"FLy", 15, fly}};
  return all;
}

token_id likeliest(const std::vector<float>& row) {
  return token_id(std::max_element(row.begin(), row.end()) - row.begin());
}

struct counted {
  double calls = 0, tokens = 0, looked_at = 0, kept = 0, others = 0;
  bool same = true;  // as the target's own text
};
// Writes as many tokens as `own` has after its prompt, or until the text ends.
counted write(remembering& q, remembering& p, std::map<std::vector<token_id>, known>& rows,
              const written& own, const greedy_rule& rule, token_id end) {
  counted c;
  const std::size_t most = own.tokens.size();
  std::vector<token_id> text(own.tokens.begin(), own.tokens.begin() + std::ptrdiff_t(own.prompt));
  double spent = 0;
  while (text.size() < most && (text.size() == own.prompt || text.back() != end)) {
    std::vector<seen> drafts;
    const std::size_t start = text.size();
    while (text.size() < start + rule.drafted && (text.size() == start || text.back() != end))
      text.push_back(likeliest(q.row_after(text)));
    const std::size_t g = text.size() - start;
    p.read(text, g + 1);
    for (std::size_t i = 0; i < g; ++i) {
      const std::vector<token_id> before(text.begin(), text.begin() + std::ptrdiff_t(start + i));
      const auto& row = p.row_after(before);
      known& k = rows[before];
      if (k.sum == 0) k = known_of(row);
      drafts.push_back(look(row, k, text[start + i]));
    }
    const std::size_t n = rule.kept(drafts, spent);
    text.resize(start + n);
    const bool ended = n > 0 && text.back() == end;
    if (!ended) text.push_back(likeliest(p.row_after(text)));
    ++c.calls;
    c.looked_at += double(std::min(n + 1, g));
    c.kept += double(n);
    for (std::size_t i = 0; i < n; ++i) c.others += !drafts[i].match();
    c.tokens += double(n + !ended);
  }
  for (std::size_t i = own.prompt; i < std::min(most, text.size()); ++i)
    c.same &= text[i] == own.tokens[i];
  return c;
}

}  // namespace

void greedy(laboratory& l, const char* draft, table& out) {
  const std::size_t every = l.how.quick ? 2 : 1;  // text: each rule writes all of them anew
  cpu::llama p_model(target(), l.pool, 1024), q_model(draft_named(draft), l.pool, 1024);
  const auto end = token_id(p_model.weights().file.integer("tokenizer.ggml.eos_token_id"));
  remembering q(q_model), p(p_model);
  std::map<std::vector<token_id>, known> rows;
  const auto& texts = texts_at(l, 0);
  for (std::size_t i = 0; i < texts.size(); i += every) {
    for (const greedy_rule& rule : greedy_rules()) {
      const counted c = write(q, p, rows, texts[i], rule, end);
      out.add(fmt::format("\"{}\"", rule.name), rule.drafted, texts[i].set, texts[i].number,
              c.calls, c.tokens, c.looked_at, c.kept, c.others, int(c.same));
    }
    q.forget();
    p.forget();
    rows.clear();
    l.progress(double(i + 1) / double(texts.size()));
  }
}

}  // namespace experiments::frontier
