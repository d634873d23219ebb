// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <array>
#include <cmath>
#include <optional>
#include <span>

namespace experiments::frontier {
namespace {

constexpr std::array<double, 3> gains{0.05, 0.1, 0.2};  // a quick run has the second alone

// Expected accepted tokens of a round: verify.hpp, expected_tokens(), without the last token.
double accepted(const knob& k, double x, const std::vector<position>& round) {
  double expected = 0, reached = 1;
  for (const position& at : round) {
    const worth w = measure(k, x, at);
    expected += w.acceptance * reached;
    reached *= w.kept;
  }
  return expected;
}
// The mean acceptance: of the positions of a text, then of the texts.
double acceptance_of(const laboratory& l, const knob& k, double x, const data& d) {
  std::vector<double> each(d.texts.size());
  l.pool->for_ranges(each.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      for (const position& at : d.texts[i].positions) each[i] += acceptance(k, x, at);
      each[i] /= double(d.texts[i].positions.size());
    }
  });
  double sum = 0;
  for (const double one : each) sum += one;
  return sum / double(each.size());
}
// The value for which the mean acceptance is `goal`, by bisection. ends: the acceptances of the
// ends of the range. Nothing if the goal is not between them, or is jumped over.
std::optional<double> solve(const laboratory& l, const knob& k, double goal,
                            const std::array<double, 2>& ends, const data& d) {
  if ((ends[0] - goal) * (ends[1] - goal) > 0) return std::nullopt;
  double low = k.low, high = k.high;
  for (int step = 0; step < 48; ++step) {
    const double x = 0.5 * (low + high), seen = acceptance_of(l, k, x, d);
    if (std::fabs(seen - goal) < 1e-4) return x;
    ((seen < goal) == (ends[0] < ends[1]) ? low : high) = x;
  }
  const double x = 0.5 * (low + high);
  if (std::fabs(acceptance_of(l, k, x, d) - goal) > 0.005) return std::nullopt;
  return x;
}

// What a policy is worth in a text, and how many tokens of its rounds are accepted. Of a question:
// the probability of the answer.
worth mean_of(const knob& k, double x, const observed& o) {
  const std::size_t n = o.positions.size();
  worth sum;
  double right = 1;
  for (const position& at : o.positions) {
    const worth w = measure(k, x, at);
    for (double worth::* m : {&worth::acceptance, &worth::tv, &worth::kl, &worth::outside,
                              &worth::likeliest, &worth::next})
      sum.*m += w.*m / double(n);
    right *= w.next;
  }
  if (o.answer) sum.next = right;
  sum.kept = o.rounds.empty() ? NAN : 0;
  for (const auto& round : o.rounds) sum.kept += accepted(k, x, round) / double(o.rounds.size());
  return sum;
}
// A line for each text and each question.
void add_lines(const laboratory& l, const data& d, const knob& k, double gain, double x,
               table& out) {
  const std::string text =
      k.parameter ? fmt::format("\"{}:{}={:.6g}\"", k.rule, k.parameter, x) : std::string(k.rule);
  for (const auto* all : {&d.texts, &d.questions}) {
    std::vector<worth> each(all->size());
    l.pool->for_ranges(all->size(), 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) each[i] = mean_of(k, x, (*all)[i]);
    });
    for (std::size_t i = 0; i < all->size(); ++i) {
      const worth& w = each[i];
      out.add(k.rule, text, gain, (*all)[i].set, (*all)[i].number, w.acceptance, w.tv, w.kl,
              w.outside, w.likeliest, w.next, w.kept);
    }
  }
}
}  // namespace

void all_policies(laboratory& l, const data& d, table& out) {
  const std::vector<knob> all = knobs();
  const auto due = l.how.quick ? std::span(gains).subspan(1, 1) : std::span(gains);
  const double lossless = acceptance_of(l, {"lossless", nullptr, 0, 0}, 0, d);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const knob& k = all[i];
    try {
      if (!k.parameter) add_lines(l, d, k, NAN, 0, out);
      else {
        const std::array<double, 2> ends{acceptance_of(l, k, k.low, d),
                                         acceptance_of(l, k, k.high, d)};
        for (const double gain : due)
          if (const auto x = solve(l, k, lossless + gain, ends, d))
            add_lines(l, d, k, gain, *x, out);
      }
    } catch (const no_law&) {  // the policy has no law on these rows: no line
    }
    l.progress(0.5 + 0.5 * double(i + 1) / double(all.size()));
  }
}

}  // namespace experiments::frontier
