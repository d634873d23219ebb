// SPDX-License-Identifier: Apache-2.0
// Collaborative decoding (CoS): each token has the law of all models, in fewer calls of each.
#include <specagg/decoders.hpp>

#include <cstdio>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/toy_source.hpp>

using namespace specagg;

constexpr std::size_t V = 50, most = 20000;

// Order 0: the rows do not depend on the text, so closed forms can be compared.
toy_source<double> model(double spread) { return {V, 1, /*order=*/0, spread, most + 1}; }

int main() {
  std::vector<token_id> memory(most + 1);
  random_streams random(/*seed=*/42);
  // Two models take turns: q drafts 3 tokens, p scores them and drafts one, q scores that, ...
  auto q = model(5), p = model(9);
  text t{memory, 1};
  collaborative_workspace<double, 2> work(V, {.gamma = {3, 1}});
  status why = collaborative_decode(std::tie(q, p), ensemble{0.5}, random,
                                    {.text = t, .most = most, .work = work});
  std::printf("calls for each token: %.3f %.3f (%s)\n", double(q.calls) / most,
              double(p.calls) / most, name(why));

  std::vector<double> q_logits(V), p_logits(V);
  q.row({}, q_logits);
  p.row({}, p_logits);
  const softmax_row<double> q_row(q_logits), p_row(p_logits);
  const auto a = plan::ensemble_acceptance(/*lambda=*/0.5, total_variation(q_row, p_row));
  const auto rates = plan::rates({.a_q = a.q, .a_p = a.p, .gamma_q = 3, .gamma_p = 1});
  const std::vector<double> pi = target_law(ensemble{0.5}, q_row, p_row);
  std::vector<double> seen(V);
  for (std::size_t i = 1; i < t.size; ++i) seen[std::size_t(t.tokens[i])] += 1.0 / most;
  std::printf("in closed form:       %.3f %.3f\n", rates.calls_q / rates.tokens,
              rates.calls_p / rates.tokens);
  std::printf("TV of the text's tokens to pi: %.3f, to p: %.3f\n",
              total_variation(dense_row<double>(seen), dense_row<double>(pi)),
              total_variation(dense_row<double>(seen), p_row));

  // Three models, in the same way.
  auto x = model(5), y = model(7), z = model(9);
  t.size = 1;
  collaborative_workspace<double, 3> room(V, {.gamma = {3, 1, 1}});
  why = collaborative_decode(std::tie(x, y, z), mixture<3>{{0.4, 0.3, 0.3}}, random,
                             {.text = t, .most = most, .work = room});
  std::printf("three models:         %.3f %.3f %.3f (%s)\n", double(x.calls) / most,
              double(y.calls) / most, double(z.calls) / most, name(why));
}

// Output:
// calls for each token: 0.917 0.299 (ok)
// in closed form:       0.920 0.299
// TV of the text's tokens to pi: 0.014, to p: 0.116
// three models:         0.799 0.265 0.244 (ok)
