// SPDX-License-Identifier: Apache-2.0
// How many tokens the texts of shared rounds draft (decode/together.hpp), by load: by what a call
// costs with so many rows.
#pragma once
#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <specagg/plan/draft_length.hpp>

SPECAGG_BEGIN
namespace plan {

// Seconds of a call that computes this many rows. Between measured points the time is interpolated
// linearly, before the first point it is the first point's, and after the last point it lies on the
// line through the last two. A single point gives its own time. Without points, and for no rows,
// the time is 0.
struct call_times {
  struct point {
    std::size_t rows;
    double seconds;
  };
  std::vector<point> points = {};  // rows ascending, from 1; seconds not falling
  double operator()(std::size_t rows) const {
    if (rows == 0 || points.empty()) return 0;
    if (rows <= points[0].rows || points.size() == 1) return points[0].seconds;
    std::size_t i = 1;
    while (i + 1 < points.size() && points[i].rows < rows) ++i;
    const point &a = points[i - 1], &b = points[i];
    return a.seconds + (b.seconds - a.seconds) * double(rows - a.rows) / double(b.rows - a.rows);
  }
};

// One budget for the drafts of all texts of a round. Before each j it decides which texts draft a
// j-th token: the most promising first, while a token brings more than it costs.
//
// A token that is emitted with probability g brings g tokens. g is the product of the acceptances
// that the text's length predicts (draft_forecast). If the target's call already has N rows, the
// token costs rho (target(N + 1) - target(N)) tokens. If the drafter is a model, a row that is
// still to be made costs rho times the time of one more row in the drafter's call. rho is the
// expected number of tokens per second. It is the rate of rounds without drafts of as many texts,
// scaled by the measured gain of recent rounds over such rounds (fading by 1 in 100; at least 1).
// The candidates are the next tokens of all texts, up to 8 of each text. The candidate with the
// largest g is added until no candidate is left. Then the number of added tokens is chosen for
// which gain minus cost is largest: so the budget goes beyond a jump of target() if enough
// promising tokens follow it. A text drafts its next token if this token is among the chosen. Then
// the next j is decided, with the new rows.
//
// The budget reads the rows of position j of all texts and the tokens before, and no token drawn at
// position j.
class draft_load {
 public:
  // no_limit: no budget. ahead: how many next tokens of a text are candidates.
  static constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max(), ahead = 8;
  // target: the times of the target's calls. draft: the times of the drafter's calls, with one row
  // of each text (without points a row costs nothing). If target has no points, `most` alone
  // decides.
  call_times target, draft = {};
  std::size_t most = no_limit;  // tokens drafted in a round, of all texts together

  explicit draft_load(call_times of_target, call_times of_draft = {},
                      std::size_t most_drafted = no_limit)
      : target(std::move(of_target)), draft(std::move(of_draft)), most(most_drafted) {}

  // The functions from here on are called by together_round. begin: a round of this many texts
  // begins. Text (below) has
  //   drafts()    whether it may draft a further token; stop() forbids it
  //   left()      how many more tokens it may draft
  //   forecast()  a draft_forecast, or an object of a derived type
  void begin(std::size_t texts) {
    texts_ = texts;
    drafted_ = 0;
    drafting_ = 0;
    rho_ = target(texts) > 0
               ? std::max(1.0, plain_ > 0 ? tokens_ / plain_ : 1.0) * double(texts) / target(texts)
               : 0;
  }
  // Called before the drafters run. Calls stop() of the texts that should not ask for a row. The
  // gain of a token is the mean over the rows that the drafter gave.
  template <class Text>
  void ask(std::span<Text> texts) {
    if (draft.points.empty()) return;
    order_.clear();
    const double price = rho_ * (target(texts_ + drafted_ + 1) - target(texts_ + drafted_));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (!texts[i].drafts()) continue;
      const auto& l = texts[i].forecast();
      order_.push_back({explores(l, 0) ? 1 : l.gain(price), i, 0});
    }
    std::sort(order_.begin(), order_.end(), before);
    double gained = 0, best = 0;
    std::size_t asked = 0;
    for (std::size_t n = 1; n <= order_.size() && n <= most - drafted_; ++n) {
      gained += order_[n - 1].gain;
      if (const double value = fma(-rho_, draft(n), gained); value >= best) {
        best = value;
        asked = n;
      }
    }
    for (std::size_t n = asked; n < order_.size(); ++n) texts[order_[n].text].stop();
    drafting_ += draft(asked);
  }
  // Called when the drafters' rows are known. Calls stop() of the texts that should not draw a
  // token.
  template <class Text>
  void take(std::span<Text> texts) {
    order_.clear();
    drawn_.assign(texts.size(), no_limit);
    calls_.assign(ahead, 0);
    std::size_t n = 0;  // tokens added
    const auto add = [&](const token& x) {
      const auto& l = texts[x.text].forecast();
      if (x.n == 0) drawn_[x.text] = n;
      ++n;
      ++calls_[x.n];
      if (x.n + 1 == std::min(ahead, texts[x.text].left())) return;
      order_.push_back({(x.n == 0 ? l.reached : x.gain) * l.expected_after(x.n), x.text, x.n + 1});
      std::push_heap(order_.begin(), order_.end(), after);
    };
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto& l = texts[i].forecast();
      if (texts[i].drafts()) order_.push_back({explores(l, 1) ? 2 : l.reached, i, 0});
    }
    std::make_heap(order_.begin(), order_.end(), after);
    double value = 0, best = 0;
    std::size_t taken = 0;
    while (!order_.empty() && n < most - drafted_) {
      std::pop_heap(order_.begin(), order_.end(), after);
      const token x = order_.back();
      order_.pop_back();
      const std::size_t rows = texts_ + drafted_ + n, asked = calls_[x.n];
      double price = target(rows + 1) - target(rows);
      if (x.n > 0) price += draft(asked + 1) - draft(asked);
      value += fma(-rho_, price, x.gain);
      add(x);
      if (value < best) continue;
      best = value;
      taken = n;
    }
    for (std::size_t i = 0; i < texts.size(); ++i)
      if (texts[i].drafts()) {
        if (drawn_[i] < taken) ++drafted_;
        else texts[i].stop();
      }
  }
  // The round is over, and has emitted this many tokens.
  void observe(std::size_t emitted) {
    const double plain = target(texts_);
    if (!(plain > 0)) return;
    const double rounds = (target(texts_ + drafted_) + drafting_) / plain;
    tokens_ = fma(tokens_, 1 - 1.0 / 100, double(emitted));
    plain_ = fma(plain_, 1 - 1.0 / 100, rounds * double(texts_));
  }

 private:
  struct token {
    double gain;
    std::size_t text, n;  // n: from 0, after the drafted tokens
  };
  static bool before(const token& a, const token& b) {  // equal gains: by text
    return a.gain > b.gain || (a.gain == b.gain && a.text < b.text);
  }
  static bool after(const token& a, const token& b) { return before(b, a); }
  // Whether a text whose length has kept `kept` rows drafts one token only to measure it. All texts
  // together spend at most 1/100 of their rounds on such tokens.
  bool explores(const auto& l, std::size_t kept) const {
    const double row = target(texts_ + 1) - target(texts_) + draft(1);
    return rho_ > 0 && l.stale_after(kept, double(texts_) * row / target(texts_));
  }

  std::size_t texts_ = 0, drafted_ = 0;  // of this round
  double drafting_ = 0, rho_ = 0;        // seconds of the drafter's calls; tokens a second
  // fading sums: tokens emitted, and tokens that rounds without drafts emit in the same time
  double tokens_ = 0, plain_ = 0;
  std::vector<token> order_;
  std::vector<std::size_t> drawn_, calls_;  // by text: place of its next token; by n: tokens
};

}  // namespace plan
SPECAGG_END
