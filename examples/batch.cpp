// SPDX-License-Identifier: Apache-2.0
// What an engine writes for many requests at once: each has its own rule, penalties, temperature,
// seed and draft length, and one call verifies them all.
#include <specagg/specagg.hpp>

#include <cstdio>
#include <vector>

using namespace specagg;

namespace {

// tokens of the vocabulary, and of the longest draft
constexpr std::size_t V = 200, longest = 4;
using any_rule = any_of<lossless, token_v3, ensemble>;  // chosen at run time

// Stands for two models that mostly agree: their logits after a text that ends in `last`.
float target_logit(token_id last, std::size_t v) {
  return float(8 *
               random_streams(1).uniform({stream::side, std::uint32_t(v), std::uint32_t(last)}));
}
float draft_logit(token_id last, std::size_t v) {
  return target_logit(last, v) + 2 * float(random_streams(2).uniform(
                                         {stream::side, std::uint32_t(v), std::uint32_t(last)}));
}

// One request and the memory of its step.
struct request {
  any_rule rule;
  sampling how;
  std::uint64_t seed;
  std::size_t gamma;
  std::vector<token_id> text, drafted = {};
  std::vector<float> q = {}, p = {};  // logits after penalties, [rows][V]
  // of the penalties
  std::vector<std::uint32_t> counts = std::vector<std::uint32_t>(V);
  // of the penalties
  std::vector<token_id> distinct = std::vector<token_id>(V), seen = std::vector<token_id>(64);
  penalties penalty = {};

  // the position of the first drafted token
  std::uint32_t start() const { return std::uint32_t(text.size()); }

  // Fills q and p: gamma + 1 rows each, because a rule may read the draft's row where the bonus is
  // drawn. The penalties of position j count the text and the j drafted tokens before it, in both
  // rows.
  void draft_and_score(const penalty_options& wanted, std::span<double> scratch) {
    penalty = penalties(wanted, counts, distinct, seen);
    for (const token_id t : text) (void)penalty.push(t);  // `seen` has room for all
    random_streams random(seed);
    q.resize((gamma + 1) * V);
    p.resize((gamma + 1) * V);
    for (std::size_t j = 0; j <= gamma; ++j) {
      const token_id last = j > 0 ? drafted[j - 1] : text.back();
      for (std::size_t v = 0; v < V; ++v) {
        q[j * V + v] = draft_logit(last, v);
        p[j * V + v] = target_logit(last, v);
      }
      penalty.apply(std::span(q).subspan(j * V, V));
      penalty.apply(std::span(p).subspan(j * V, V));
      if (j == gamma) break;
      drafted.push_back(draw_draft(rows_of_logits(q, V, how)[j], start(), j, random, scratch));
      (void)penalty.push(drafted.back());
    }
  }
  // What the verifier is given; the emitted tokens go to `out`, longest + 1 of them at most.
  auto to_verify(std::span<emission> out) const {
    return verification{draft{drafted, start()},   rows_of_logits(q, V, how),
                        rows_of_logits(p, V, how), rule,
                        random_streams(seed),      out};
  }
  // The text and the penalties without what was rejected, and with what was drawn instead.
  void commit(const verdict& v, std::span<const emission> out) {
    for (std::size_t j = v.accepted; j < drafted.size(); ++j) penalty.pop();
    for (std::size_t i = v.accepted; i < v.emitted; ++i) (void)penalty.push(out[i].token);
    for (std::size_t i = 0; i < v.emitted; ++i) text.push_back(out[i].token);
    drafted.clear();
  }
};

}  // namespace

int main() {
  request requests[] = {{lossless{}, {.temperature = 0.7}, 11, 4, {5, 9}},
                        {token_v3{0.4}, {.temperature = 1, .top_p = 0.9}, 12, 2, {3}},
                        {ensemble{0.3}, {.temperature = 0.5}, 13, 3, {1, 2, 1}}};
  const penalty_options wanted[] = {{.repetition = 1.3}, {.presence = 0.5, .frequency = 0.2}, {}};
  constexpr std::size_t n = std::size(requests);

  // Memory: one part of scratch and of `out` for each request.
  std::vector<double> scratch(n * verify_scratch(V, longest));
  std::vector<emission> out(n * (longest + 1));
  std::vector<verdict> verdicts(n);
  const auto part = [](std::vector<emission>& all, std::size_t i) {
    return std::span(all).subspan(i * (longest + 1), longest + 1);
  };
  for (std::size_t i = 0; i < n; ++i) requests[i].draft_and_score(wanted[i], scratch);
  verify_batch([&](std::size_t i) { return requests[i].to_verify(part(out, i)); }, verdicts,
               scratch, block_verifier());

  // One by one they come out the same.
  bool same = true;
  std::vector<emission> alone(longest + 1);
  for (std::size_t i = 0; i < n; ++i) {
    const verdict v = verify(requests[i].to_verify(alone), block_verifier(), scratch);
    same &= v.why == status::ok && v.emitted == verdicts[i].emitted;
    for (std::size_t k = 0; same && k < v.emitted; ++k)
      same = alone[k].token == part(out, i)[k].token;
  }
  for (std::size_t i = 0; i < n; ++i) {
    std::printf("request %zu: %zu of %zu drafted tokens kept:", i, verdicts[i].accepted,
                requests[i].drafted.size());
    for (const emission& e : part(out, i).first(verdicts[i].emitted))
      std::printf(" %d (%s)", e.token, name(e.from));
    requests[i].commit(verdicts[i], part(out, i));
    std::printf("; the text has %zu tokens now\n", requests[i].text.size());
  }
  std::printf("one by one: %s\n", same ? "the same" : "NOT THE SAME");
  return same ? 0 : 1;
}
