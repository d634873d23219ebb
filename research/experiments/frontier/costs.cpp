// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <array>
#include <cmath>
#include <optional>

namespace experiments::frontier {
namespace {

constexpr std::array<double, 3> goals{0.5, 0.7, 0.9};

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
// The mean acceptance over every stride-th position of the windows.
double acceptance_of(const laboratory& l, const knob& k, double x, const data& d,
                     std::size_t stride) {
  std::vector<const position*> all;
  std::size_t n = 0;
  for (const observed& w : d.windows)
    for (const position& at : w.positions)
      if (n++ % stride == 0) all.push_back(&at);
  std::vector<double> each(all.size());
  l.pool->for_ranges(all.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) each[i] = acceptance(k, x, *all[i]);
  });
  double sum = 0;
  for (const double one : each) sum += one;
  return sum / double(all.size());
}
// The value for which the mean acceptance over all positions is `goal`, nearly: bisection on some
// of them, for the goal as it is seen there, which is then corrected. ends: the acceptances of the
// ends of the range. Nothing if the goal is not between them.
std::optional<double> solve(const laboratory& l, const knob& k, double goal,
                            const std::array<double, 2>& ends, const data& d) {
  if ((ends[0] - goal) * (ends[1] - goal) > 0) return std::nullopt;
  const std::size_t some = l.how.quick ? 2 : 24;
  double seen = goal, best = k.low, missed = 1;
  for (int correction = 0; correction < 3; ++correction) {
    double low = k.low, high = k.high, x = 0;
    for (int step = 0; step < 20; ++step) {
      x = 0.5 * (low + high);
      ((acceptance_of(l, k, x, d, some) < seen) == (ends[0] < ends[1]) ? low : high) = x;
    }
    const double off = goal - acceptance_of(l, k, x, d, 1);
    seen += off;
    if (std::fabs(off) >= missed) break;
    missed = std::fabs(off);
    best = x;
    if (missed < 0.001) break;
  }
  return best;
}

// What a policy is worth in a window, and how many tokens of its rounds are accepted. Of a
// question: the probability of the answer.
worth mean_of(const knob& k, double x, const observed& o) {
  const std::size_t n = o.answer ? o.answer : o.positions.size();
  worth sum;
  double right = 1;
  for (std::size_t i = o.positions.size() - n; i < o.positions.size(); ++i) {
    const worth w = measure(k, x, o.positions[i]);
    for (double worth::* m :
         {&worth::acceptance, &worth::tv, &worth::kl, &worth::likeliest, &worth::next})
      sum.*m += w.*m / double(n);
    right *= w.next;
  }
  if (o.answer) sum.next = right;
  sum.kept = o.rounds.empty() ? NAN : 0;
  for (const auto& round : o.rounds) sum.kept += accepted(k, x, round) / double(o.rounds.size());
  return sum;
}
// A line for each window and each question.
void add_lines(const laboratory& l, const data& d, const knob& k, double goal, double x,
               table& out) {
  const std::string text =
      k.parameter ? fmt::format("\"{}:{}={:.6g}\"", k.rule, k.parameter, x) : std::string(k.rule);
  for (const auto* all : {&d.windows, &d.questions}) {
    std::vector<worth> each(all->size());
    l.pool->for_ranges(all->size(), 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) each[i] = mean_of(k, x, (*all)[i]);
    });
    for (std::size_t i = 0; i < all->size(); ++i) {
      const worth& w = each[i];
      out.add(k.rule, text, goal, (*all)[i].set, (*all)[i].number, w.acceptance, w.tv, w.kl,
              w.likeliest, w.next, w.kept);
    }
  }
}
}  // namespace

void all_policies(laboratory& l, const data& d, table& out) {
  const std::vector<knob> all = knobs();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const knob& k = all[i];
    try {
      if (!k.parameter) add_lines(l, d, k, NAN, 0, out);
      else {
        const std::array<double, 2> ends{acceptance_of(l, k, k.low, d, 1),
                                         acceptance_of(l, k, k.high, d, 1)};
        for (const double goal : goals)
          if (const auto x = solve(l, k, goal, ends, d)) add_lines(l, d, k, goal, *x, out);
      }
    } catch (const no_law&) {  // the policy has no law on these rows: no line
    }
    l.progress(0.3 + 0.7 * double(i + 1) / double(all.size()));
  }
}

}  // namespace experiments::frontier
