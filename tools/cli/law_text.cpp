// SPDX-License-Identifier: Apache-2.0
// specagg law of a policy with state: the joint law of texts, whose tokens have the given rows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include <specagg/audit/text_law.hpp>
#include <specagg/error.hpp>

#include "law.hpp"
#include "policies.hpp"

namespace cli {
namespace {

using namespace specagg;
using numbers = std::vector<double>;
using tokens = std::vector<token_id>;

// texts whose law is walked: unasked, at most
constexpr std::size_t few_texts = 256, most_walked_texts = 4096;
constexpr std::size_t most_texts = 1 << 20, most_printed_texts = 20;

struct rows_of_text {
  std::vector<numbers> q, p;
  std::size_t vocabulary() const { return p[0].size(); }
  std::size_t texts() const {
    double count = 1;
    for (std::size_t i = 0; i < p.size(); ++i) count *= double(vocabulary());
    return count > double(most_texts) ? most_texts + 1 : std::size_t(count);
  }
};

rows_of_text rows_of(const law_options& o) {
  rows_of_text rows{parse_rows("--q", o.q), parse_rows("--p", o.p)};
  if (rows.q.size() != rows.p.size() || rows.p.empty())
    throw error("law", "--q, --p",
                fmt::format("{} and {} rows; a line for each token", rows.q.size(), rows.p.size()));
  for (const auto* all : {&rows.q, &rows.p})
    for (const numbers& row : *all)
      if (row.size() != rows.vocabulary())
        throw error(
            "law", "--q, --p",
            fmt::format("vocabulary_mismatch: {} and {} numbers", rows.vocabulary(), row.size()));
  if (rows.texts() > most_texts)
    throw error("law", "--q, --p",
                fmt::format("{} tokens of {} make more than {} texts", rows.p.size(),
                            rows.vocabulary(), most_texts));
  return rows;
}

// The texts that independent tokens of these rows make.
numbers product_of(const std::vector<numbers>& rows) {
  numbers all{1};
  for (const numbers& row : rows) {
    numbers longer;
    for (const double x : all)
      for (const double y : row) longer.push_back(x * y);
    all = std::move(longer);
  }
  return all;
}

// What the verifier emits, by rounds that draft all but the last token.
numbers emitted(const rows_of_text& rows, const any_stateful& policy, const std::string& verifier,
                status& why) {
  numbers law(rows.texts());
  const auto q_after = [&](const tokens& t) {
    return rows.q[std::min(t.size(), rows.q.size() - 1)];
  };
  const auto p_after = [&](const tokens& t) {
    return rows.p[std::min(t.size(), rows.p.size() - 1)];
  };
  const std::size_t n = rows.p.size(), gamma = std::max<std::size_t>(1, n - 1);
  with_verifier(verifier_number(verifier), 0, 0, [&]<class V>(const V& how) {
    if constexpr (!is_coupled<V>) {
      exhaustive_chooser chooser;
      do {
        const tokens one =
            text_by_rounds(policy, policy.begin(), n, q_after, p_after, how, gamma, chooser, &why);
        if (why != status::ok) return;
        std::size_t at = 0;
        for (const token_id y : one) at = at * rows.vocabulary() + std::size_t(y);
        law[at] += chooser.probability;
      } while (chooser.next());
    }
  });
  return law;
}

struct laws {
  numbers q, p, pi, law;  // law: empty where nobody walked it
  double distance = 0, divergence = 0, worst = 0;
};
laws laws_of(const law_options& o, const rows_of_text& rows, const any_stateful& policy) {
  laws all{product_of(rows.q), product_of(rows.p), {}, {}};
  status why = status::ok;
  all.pi = law_of_texts(
      policy, policy.begin(), rows.p.size(), [&](const tokens& t) { return rows.q[t.size()]; },
      [&](const tokens& t) { return rows.p[t.size()]; }, &why);
  if (why != status::ok) throw error("law", "--q, --p", std::string(name(why)));
  for (std::size_t i = 0; i < all.pi.size(); ++i) {
    const double x = all.pi[i], y = all.p[i];
    all.distance += std::max(0.0, x - y);
    if (x > 0) all.divergence += x * std::log(x / y);
  }
  const std::string verifier = o.verify.empty() ? "token" : o.verify;
  if (verifier == "coupled" || all.pi.size() > (o.enumerate ? most_walked_texts : few_texts))
    return all;
  all.law = emitted(rows, policy, verifier, why);
  if (why != status::ok) throw error("law", "--q, --p", std::string(name(why)));
  for (std::size_t i = 0; i < all.pi.size(); ++i)
    all.worst = std::max(all.worst, std::fabs(all.pi[i] - all.law[i]));
  return all;
}

void print_table(const laws& all, const rows_of_text& rows) {
  std::vector<std::size_t> texts(all.pi.size());
  for (std::size_t i = 0; i < texts.size(); ++i) texts[i] = i;
  if (texts.size() > most_printed_texts) {
    std::ranges::stable_sort(texts, std::greater(), [&](std::size_t i) { return all.pi[i]; });
    texts.resize(most_printed_texts);
  }
  const std::size_t n = rows.p.size(), width = std::max<std::size_t>(6, 4 * n);
  fmt::print("{:>{}} {:>12} {:>12} {:>12} {:>12}\n", "text", width, "q", "p", "pi", "law");
  for (const std::size_t i : texts) {
    std::string words;
    for (std::size_t k = n, left = i; k-- > 0; left /= rows.vocabulary())
      words = fmt::format("{} ", left % rows.vocabulary()) + words;
    words.pop_back();
    fmt::print("{:>{}} {:>12.9f} {:>12.9f} {:>12.9f} {:>12}\n", words, width, all.q[i], all.p[i],
               all.pi[i], all.law.empty() ? "" : fmt::format("{:.9f}", all.law[i]));
  }
  if (texts.size() < all.pi.size())
    fmt::print("the {} most likely of {} texts (--json: all)\n", texts.size(), all.pi.size());
  fmt::print("TV(pi, p) {:.9f}, KL(pi || p) {:.9f}", all.distance, all.divergence);
  if (all.law.empty()) fmt::print("\n");
  else fmt::print("; worst error (largest |law - pi|) {:.1e}\n", all.worst);
}

}  // namespace

void law_of_text(const law_options& o, const stateful_policy& policy) {
  const rows_of_text rows = rows_of(o);
  const laws all = laws_of(o, rows, policy.policy);
  if (!o.json) return print_table(all, rows);
  nlohmann::json out{{"policy", o.policy},
                     {"verify", o.verify.empty() ? "token" : o.verify},
                     {"tokens", rows.p.size()},
                     {"p", all.p},
                     {"pi", all.pi},
                     {"distance_to_target", all.distance},
                     {"divergence", std::isfinite(all.divergence) ? nlohmann::json(all.divergence)
                                                                  : nlohmann::json("inf")}};
  out["law"] = all.law.empty() ? nlohmann::json() : nlohmann::json(all.law);
  if (!all.law.empty()) out["worst_error"] = all.worst;
  fmt::print("{}\n", out.dump(2));
}

}  // namespace cli
