// SPDX-License-Identifier: Apache-2.0
// A token that is drawn from a row of logits: its weights are the terms of the row's sum.
#include <specagg/rows/any_row.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/verify/token.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// Rows whose blocks have one unit, several units (the row's unit stands first, last or nowhere at
// either end), no finite logit, or logits beyond all units.
template <class T>
std::vector<T> row_of_kind(numbers& random, int kind, std::size_t size) {
  std::vector<T> l(size);
  for (std::size_t v = 0; v < size; ++v) {
    const T x = T(2.5) * T(random.bell());
    const T block = T(v / block_size), blocks = T(block_count(size));
    const T none = -std::numeric_limits<T>::infinity();
    l[v] = kind == 0   ? x
           : kind == 1 ? x * 80
           : kind == 2 ? x + 90 * block
           : kind == 3 ? x + 90 * (blocks - block)
           : kind == 4 ? x - 60 * std::fabs(block - 2)
           : kind == 5 ? (v / block_size % 2 == 0 ? none : x)
           : kind == 6 ? (v % 3 == 0 ? x : T(-1e4))
           : kind == 7 ? x * T(1e7)
                       : T(-55.4) + x / 10 + (block == 1 ? T(1) : T(0));
  }
  return l;
}
constexpr int kinds = 9;
const sampling settings[] = {{},
                             {.temperature = 0.3},
                             {.temperature = 1e-3},
                             {.temperature = 50},
                             {.temperature = 0},
                             {.top_k = 20},
                             {.top_k = 3000},
                             {.temperature = 0.7, .top_p = 0.9},
                             {.min_p = 0.05}};

// What a draw saw.
struct seen {
  double total = 0;
  std::vector<double> blocks, weights;
};
// Notes the weights of a draw.
struct noting {
  seen& to;
  template <class Weights>
  token_id draw(moment, const Weights& w) {
    to.total = w.total;
    to.blocks.assign(w.blocks.begin(), w.blocks.end());
    to.weights.clear();
    for (std::size_t v = 0; v < w.size(); ++v) to.weights.push_back(w[v]);
    return 0;
  }
  bool coin(moment, double, double) { return true; }
};

// Gives one uniform number always.
struct fixed {
  double u;
  bool coin(moment, double w, double t) const { return u * t < w; }
  template <class Weights>
  token_id draw(moment, const Weights& w) const {
    return inverse_transform(w, u);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("the sums that a row's own pass leaves are those of another pass, bit for bit",
                   "", float, double) {
  using T = TestType;
  numbers random(1);
  std::size_t spared = 0;
  for (const std::size_t size : {1u, 700u, 1024u, 5000u, 9000u})
    for (int kind = 0; kind < kinds; ++kind)
      for (const sampling& how : settings) {
        const auto l = row_of_kind<T>(random, kind, size);
        const processed_row<T> row(std::span<const T>(l), how);
        CAPTURE(size, kind, how.temperature, how.top_k, how.top_p, how.min_p);
        std::vector<double> scratch(block_count(size)), other(scratch);
        row_sums sums{scratch};
        const auto normal = normalise(row, sums);
        if (normal.why() != status::ok) continue;  // all masked
        spared += sums.known;
        seen first, second;
        (void)draw(normal, {}, noting{first}, sums);
        (void)draw(normal, {}, noting{second}, std::span(other));
        CHECK(first.total == second.total);
        CHECK(first.blocks == second.blocks);
        CHECK(first.weights == second.weights);
        const std::vector<double> few(scratch.size() - 1);
        row_sums none{std::span(scratch).first(few.size())};
        CHECK((normalise(row, none).why() == status::ok && !none.known));
      }
  CHECK(spared > 100);
}

TEMPLATE_TEST_CASE("weights of a draw are probabilities times their total, where the row has any",
                   "", float, double) {
  using T = TestType;
  numbers random(2);
  for (int kind = 0; kind < kinds; ++kind)
    for (const sampling& how : settings) {
      const auto l = row_of_kind<T>(random, kind, 6000);
      const processed_row<T> row(std::span<const T>(l), how);
      const auto normal = normalise(row);
      REQUIRE(normal.why() == status::ok);
      std::vector<double> scratch(block_count(l.size()));
      seen w;
      (void)draw(normal, {}, noting{w}, std::span(scratch));
      CAPTURE(kind, how.temperature, how.top_k, how.top_p, how.min_p);
      double off = 0, sum = 0;
      bool support = true;
      for (std::size_t v = 0; v < l.size(); ++v) {
        off += std::fabs(w.weights[v] / w.total - double(normal[v]));
        sum += w.weights[v];
        support = support && (w.weights[v] == 0 || normal[v] > 0 || w.weights[v] / w.total < 1e-37);
      }
      // a logit of 1e8 standard deviations has few digits below its unit
      CHECK(off <= 2 * softmax_error<T>(l.size()) + (kind == 7 ? 1e-3 : 1e-5 * (sizeof(T) == 4)));
      CHECK(sum == Approx(w.total).epsilon(2 * sum_error<T>(l.size())));
      CHECK(support);
    }
}

TEMPLATE_TEST_CASE("each way to draw from a row draws one token", "", float, double, bf16, f16) {
  using S = TestType;
  using T = computed<S>;
  numbers random(3);
  const random_streams chooser(5);
  for (int kind = 0; kind < kinds; ++kind)
    for (const sampling& how : settings) {
      std::vector<S> l;
      for (const T x : row_of_kind<T>(random, kind, 5000)) {
        if constexpr (sizeof(S) >= 4) l.push_back(x);
        else l.push_back(specagg::detail::stored<S>(std::clamp(float(x), -6e4f, 6e4f)));
      }
      const processed_row<S> row(std::span<const S>(l), how);
      const any_row<processed_row<S>, softmax_row<S>> any(row);
      const auto normal = normalise(row);
      if (normal.why() != status::ok) continue;
      std::vector<double> scratch(block_count(l.size()));
      CAPTURE(kind, how.temperature, how.top_k, how.top_p, how.min_p);
      bool same = true;
      normal_form<processed_row<S>> kept;
      for (std::uint32_t i = 0; i < 30; ++i) {
        const token_id y = draw_draft(row, i, 0, chooser, scratch);
        same = same && y == draw_draft(row, i, 0, chooser, scratch, kept) &&
               kept.why() == status::ok && kept[std::size_t(y)] == normal[std::size_t(y)];
        const moment m{stream::draft, i, i};
        same = same && y >= 0 && normal[std::size_t(y)] > 0 &&
               y == draw(normal, m, chooser, std::span(scratch)) &&
               y == draw_draft(any, i, 0, chooser, scratch) &&
               y == draw(normalise(any), m, chooser, std::span(scratch)) &&
               y == draw_draft(confident_row(row, row), i, 0, chooser, scratch);
      }
      CHECK(same);
    }
}

TEMPLATE_TEST_CASE("no token is drawn whose probability is 0, whatever its weight", "", float,
                   double) {
  using T = TestType;
  numbers random(5);
  for (const std::size_t size : {40u, 1024u, 5000u})
    for (int round = 0; round < 200; ++round) {
      // A weight that is above 0 in the row's unit, far below its largest, at both ends.
      std::vector<T> l(size);
      for (T& x : l) x = T(20 + 3 * random.bell());
      const T light = sizeof(T) == 4 ? T(-75) : T(-700);
      l[0] = l[size - 1] = light;
      if (round % 2)
        for (std::size_t v = 0; v < size / 2; ++v) l[v] = l[size - 1 - v] = light;
      l[size / 2] = 20;
      std::vector<double> scratch(block_count(size));
      const softmax_row<T> row{std::span<const T>(l)};
      const auto normal = normalise(row);
      bool drawn = true;
      for (const double u : {0., 0x1p-53, 1 - 0x1p-53, 1 - 0x1p-40, 1 - 0x1p-25, 1 - 0x1p-23}) {
        const token_id y = draw_draft(row, 0, 0, fixed{u}, scratch);
        drawn = drawn && y >= 0 && normal[std::size_t(y)] > 0;
      }
      CAPTURE(size, round);
      CHECK(drawn);
    }
}

TEST_CASE("the bonus of a lossless verification is a draw from the row") {
  numbers random(4);
  const random_streams chooser(6);
  for (const sampling& how : settings) {
    const auto l = row_of_kind<float>(random, 0, 5000);
    const std::vector<processed_row<float>> rows{{std::span<const float>(l), how}};
    std::vector<double> scratch(verify_scratch(5000, 0));
    bool same = true;
    for (std::uint32_t i = 0; i < 30; ++i) {
      std::vector<emission> out(1);
      const auto v = verify_token({.start = i}, rows, rows, lossless(), chooser, out, scratch);
      same = same && v.emitted == 1 &&
             out[0].token ==
                 draw(normalise(rows[0]), moment{stream::bonus, i, i}, chooser, std::span(scratch));
    }
    CHECK(same);
  }
}
