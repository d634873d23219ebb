// SPDX-License-Identifier: Apache-2.0
// The best that n independent drafts of one position allow: a verifier that accepts as much as
// optimum_of_independent (audit/tree_law.hpp) says, for any vocabulary. Allocates; one sort.
//
// Give every draft a height s in [0, 1] and take the highest. If a token of law q has a uniform
// height, token v is taken with probability q(v) E[n s^(n-1) | v]. So if the taken token is to have
// the law w, the heights of v must have a mean of n s^(n-1) that is rho(v) = w(v) / q(v). Such
// heights exist if w(H) >= q(H)^n for every set H of the tokens with the smallest rho (Strassen's
// theorem on the line). optimum_of_independent compares these numbers for w = pi.
#pragma once
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// The verifier for one pair of rows and one n: made once, then choose() for each set of drafts. It
// views q and pi.
class best_of_independent {
 public:
  // q, pi: rows of equal size that sum to 1; q is what each of n >= 1 drafts was drawn from.
  best_of_independent(std::span<const double> q, std::span<const double> pi, std::size_t n)
      : q_(q), pi_(pi), n_(double(n)), taken_(q.size()), first_(q.size()), count_(q.size()) {
    for (std::size_t v = 0; v < q.size(); ++v)
      if (q[v] > 0) order_.push_back(v);
    std::sort(order_.begin(), order_.end(),
              [&](std::size_t a, std::size_t b) { return pi[a] * q[b] < pi[b] * q[a]; });
    wanted_.resize(order_.size());
    want();
    for (std::size_t i = 0; i < order_.size(); ++i) place(order_[i], wanted_[i]);
  }

  // sum min(w, pi), which is optimum_of_independent(q, pi, n) but for rounding.
  double accepted() const {
    double sum = 0;
    for (std::size_t v = 0; v < q_.size(); ++v) sum += std::min(taken_[v], pi_[v]);
    return sum;
  }
  // Returns a drafted token, or a token drawn from (pi - w)+; the law of the result is pi. drafted:
  // n tokens, each drawn from q alone. m: the moment of the drafts' position; its branch counts up
  // by one for each coin. no_token: a drafted token has q = 0, or there are not n drafted tokens.
  token_id choose(std::span<const token_id> drafted, moment m, Chooser auto& chooser) const {
    if (double(drafted.size()) != n_) return no_token;
    double highest = -1;
    token_id y = no_token;
    for (const token_id t : drafted) {
      if (t < 0 || std::size_t(t) >= q_.size() || count_[std::size_t(t)] == 0) return no_token;
      const double s = height(std::size_t(t), m, chooser);
      if (s > highest) {
        highest = s;
        y = t;
      }
    }
    if (chooser.coin(m, pi_[std::size_t(y)], taken_[std::size_t(y)])) return y;
    std::vector<double> left(q_.size()), sums(block_count(q_.size()));
    double owed = 0;
    for (std::size_t v = 0; v < left.size(); ++v)
      owed += left[v] = std::max(0.0, pi_[v] - taken_[v]);
    if (!(owed > 0)) return y;  // pi = w, but for rounding
    for (double& x : left) x /= owed;
    m.use = stream::residual;
    const auto row = specagg::normalise(dense_row<double>(left));
    return chooser.draw(m, weigh(row, [](auto x) { return x; }, sums));
  }

 private:
  struct interval {
    double begin, end;
  };
  std::span<const double> q_, pi_;
  double n_;
  std::vector<double> taken_;               // w
  std::vector<std::size_t> first_, count_;  // of a token's heights, in `heights_`
  std::vector<std::size_t> order_;          // by pi / q, the smallest first
  std::vector<double> wanted_;              // w, in that order
  std::vector<interval> heights_, free_;    // free_: below `top_`, not yet a token's
  double top_ = 0;

  double chance(interval s) const { return std::pow(s.end, n_) - std::pow(s.begin, n_); }

  // Sets w: pi, but pi / q is raised to a level inside the worst set H, and lowered to a level
  // outside H. Inside H the optimum takes all of pi, outside H as much as is drafted.
  void want() {
    double in_pi = 0, in_q = 0, least = 0, pi_h = 0, q_h = 0;
    std::size_t h = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      in_pi += wanted_[i] = pi_[order_[i]];
      in_q += q_[order_[i]];
      if (const double slack = in_pi - std::pow(in_q, n_); slack < least) {
        least = slack;
        h = i + 1;
        pi_h = in_pi;
        q_h = in_q;
      }
    }
    const auto ratio = [&](std::size_t i) { return pi_[order_[i]] / q_[order_[i]]; };
    const auto level = [&](std::size_t begin, std::size_t end, double w, double q) {
      for (std::size_t i = begin; i < end; ++i) wanted_[i] = w / q * q_[order_[i]];
    };
    double w = std::pow(q_h, n_) - pi_h, q = 0;
    for (std::size_t i = 0; i < h; ++i) {
      w += pi_[order_[i]];
      q += q_[order_[i]];
      if (i + 1 == h || w <= q * ratio(i + 1)) {
        level(0, i + 1, w, q);
        break;
      }
    }
    w = 1 - std::pow(q_h, n_) - (in_pi - pi_h);
    q = 0;
    for (std::size_t i = order_.size(); i-- > h;) {
      w += pi_[order_[i]];
      q += q_[order_[i]];
      if (i == h || w >= q * ratio(i - 1)) {
        level(i, order_.size(), w, q);
        break;
      }
    }
  }

  // Gives v heights of length q(v) with chance w: from `top_` on, higher if that is too low, and
  // from the free ones below it if it is too high. Tokens come with rising w / q.
  void place(std::size_t v, double w) {
    double left = q_[v], below = 0;  // below: the chance of what is taken of free_
    first_[v] = heights_.size();
    const auto take = [&](interval s) {
      if (!(s.end > s.begin)) return;
      heights_.push_back(s);
      taken_[v] += chance(s);
    };
    // chance(..) - w falls as x falls
    const auto solve = [](double low, double high, auto&& too_much) {
      for (int i = 0; i < 100 && low < high; ++i) {
        const double middle = low + (high - low) / 2;
        if (middle <= low || middle >= high) break;
        (too_much(middle) ? high : low) = middle;
      }
      return low;
    };
    if (chance({top_, top_ + left}) < w) {
      const double begin = solve(top_, std::max(top_, 1 - left),
                                 [&](double x) { return chance({x, x + left}) > w; });
      if (begin > top_) free_.push_back({top_, begin});
      top_ = begin;
    }
    while (!free_.empty() && chance({top_, top_ + left}) + below > w) {
      interval& last = free_.back();
      const auto with = [&](double x) {  // the chance with the heights from x on of `last`
        return below + chance({x, last.end}) + chance({top_, top_ + left - (last.end - x)});
      };
      const double least = std::max(last.begin, last.end - left);
      const double x =
          with(least) > w ? least : solve(least, last.end, [&](double y) { return with(y) > w; });
      below += chance({x, last.end});
      left -= last.end - x;
      take({x, last.end});
      if (x > last.begin) {
        last.end = x;
        break;
      }
      free_.pop_back();
    }
    take({top_, top_ + left});
    top_ += left;
    count_[v] = heights_.size() - first_[v];
  }

  // The interval that a height of v lies in: its begin. Other tokens have none of it.
  double height(std::size_t v, moment& m, auto& chooser) const {
    double left = 0;
    const std::span<const interval> all(&heights_[first_[v]], count_[v]);
    for (const interval s : all) left += s.end - s.begin;
    for (const interval s : all.first(all.size() - 1)) {
      if (chooser.coin(m, s.end - s.begin, left)) return ++m.branch, s.begin;
      ++m.branch;
      left -= s.end - s.begin;
    }
    return all.back().begin;
  }
};

SPECAGG_END
