// SPDX-License-Identifier: Apache-2.0
// Narasimhan et al. 2025 on questions with one right answer: how likely each rule gives it, against
// the rejection rate. Exact: nothing is sampled.
#include <specagg/error.hpp>

#include "reading.hpp"

namespace experiments::real {

void answers(lab& lab, const pair& models, const std::vector<question>& all, table& out) {
  const readers opened = lab.open({models.q, models.p});
  std::vector<std::vector<float>> rows[2];
  std::size_t v = 0;
  for (std::size_t m = 0; m < 2; ++m) {
    cli::session& one = *opened[m];
    v = one.vocab_size();
    for (const question& q : all) {
      (void)one.rollback(0);
      auto& own = rows[m].emplace_back(q.answer * v);
      const status s = one.extend(std::span(q.text).first(q.text.size() - 1), own);
      if (s != status::ok) throw error(m ? models.p : models.q, q.task, std::string(name(s)));
    }
  }
  std::vector<observed> windows;
  for (std::size_t k = 0; k < all.size(); ++k)
    windows.push_back({all[k].task, k, all[k].answer,
                       [&, k](std::size_t i) -> observed::position {
                         return {std::span(rows[0][k]).subspan(i * v, v),
                                 std::span(rows[1][k]).subspan(i * v, v),
                                 all[k].text[all[k].text.size() - all[k].answer + i]};
                       },
                       true});
  sweep_windows(lab, models.name(), windows,
                {{1, {}}, {0, {"ensemble", "chow", "diff", "opt", "token-v3"}}}, out);
}

}  // namespace experiments::real
