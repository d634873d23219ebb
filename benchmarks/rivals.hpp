// SPDX-License-Identifier: Apache-2.0
// The lossless verification step as others take it. Each is our own statement of the steps that
// system publishes, in plain C++; none is that system's code, and none stands for its speed on
// other hardware. All work on the same rows, drafts and, where they draw by inverse transform, the
// same uniforms as specagg.
#pragma once
// Before Eigen: g++ 12 warns of its own <immintrin.h> unless kernel/simd.hpp includes it first.
#include "rows.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <vector>

namespace bench {

struct step {
  std::size_t accepted;
  token_id token;
};

// The first token whose cumulative weight exceeds u times the total.
inline token_id multinomial(std::span<const float> w, double u) {
  double total = 0;
  for (const float x : w) total += x;
  u *= total;
  for (std::size_t v = 0; v < w.size(); ++v)
    if ((u -= w[v]) < 0) return token_id(v);
  return token_id(w.size() - 1);
}

struct scalar_softmax {
  static void apply(std::span<const float> logits, std::span<float> out) {
    float top = logits[0], sum = 0;
    for (const float l : logits) top = std::max(top, l);
    for (std::size_t v = 0; v < out.size(); ++v) sum += out[v] = std::exp(logits[v] - top);
    for (float& x : out) x /= sum;
  }
  static void residual(std::span<float> p, std::span<const float> q) {
    for (std::size_t v = 0; v < p.size(); ++v) p[v] = std::max(0.f, p[v] - q[v]);
  }
};
struct eigen_softmax {
  using array = Eigen::Map<Eigen::ArrayXf>;
  using constant = Eigen::Map<const Eigen::ArrayXf>;
  static void apply(std::span<const float> logits, std::span<float> out) {
    const constant l(logits.data(), Eigen::Index(logits.size()));
    array x(out.data(), Eigen::Index(out.size()));
    x = (l - l.maxCoeff()).exp();
    x /= x.sum();
  }
  static void residual(std::span<float> p, std::span<const float> q) {
    array x(p.data(), Eigen::Index(p.size()));
    x = (x - constant(q.data(), Eigen::Index(q.size()))).max(0.f);
  }
};

// Hugging Face transformers, assisted decoding with sampling: softmax of every row of both models
// written out, ratios of all positions, the number of matches, clamp(p - q, 0) of that position,
// multinomial. `probabilities`: the draft's rows are at hand as probabilities, from drafting.
template <class Softmax>
class written_out {
 public:
  written_out(const requests& r, bool probabilities)
      : all_(r),
        known_(probabilities),
        q_(r.count * r.gamma * r.vocabulary),
        p_((r.gamma + 1) * r.vocabulary) {
    if (known_)
      for (std::size_t i = 0; i < r.count; ++i) draft_rows(i);
  }
  step operator()(std::size_t r, std::span<const token_id> drafted, std::uint64_t seed) {
    const std::size_t n = all_.vocabulary, g = all_.gamma;
    if (!known_) draft_rows(r);
    for (std::size_t j = 0; j <= g; ++j)
      Softmax::apply(all_.target(r, j), std::span(p_).subspan(j * n, n));
    const random_streams random(seed, r);
    std::size_t j = 0;
    for (; j < g; ++j) {
      const auto y = std::size_t(drafted[j]);
      if (!random.coin({stream::coin, std::uint32_t(j), 0}, p_[j * n + y], q_[(r * g + j) * n + y]))
        break;
    }
    const std::span<float> last = std::span(p_).subspan(j * n, n);
    if (j < g) Softmax::residual(last, std::span(q_).subspan((r * g + j) * n, n));
    const stream use = j < g ? stream::residual : stream::bonus;
    return {j, multinomial(last, random.uniform({use, std::uint32_t(j), 0}))};
  }

 private:
  void draft_rows(std::size_t r) {
    const std::size_t n = all_.vocabulary, g = all_.gamma;
    for (std::size_t j = 0; j < g; ++j)
      Softmax::apply(all_.draft_logits(r, j), std::span(q_).subspan((r * g + j) * n, n));
  }
  const requests& all_;
  bool known_;
  std::vector<float> q_, p_;
};

// vLLM V1, rejection sampler: target rows as probabilities, the draft's rows at hand as
// probabilities; the token that would replace each position's draft is drawn for EVERY position, by
// an exponential race over (p - q)+; so is the bonus. Its noise is its own, so its tokens are
// others, with the same law.
class draws_everywhere {
 public:
  explicit draws_everywhere(const requests& r)
      : all_(r),
        q_(r.count * r.gamma * r.vocabulary),
        p_((r.gamma + 1) * r.vocabulary),
        noise_(r.vocabulary) {
    const std::size_t n = r.vocabulary;
    for (std::size_t i = 0; i < r.count; ++i)
      for (std::size_t j = 0; j < r.gamma; ++j)
        scalar_softmax::apply(r.draft_logits(i, j),
                              std::span(q_).subspan((i * r.gamma + j) * n, n));
  }
  step operator()(std::size_t r, std::span<const token_id> drafted, std::uint64_t seed) {
    const std::size_t n = all_.vocabulary, g = all_.gamma;
    numbers next(seed);
    // one row of noise a request, as published
    for (float& e : noise_) e = -std::log(float(next()) + 1e-9f);
    std::vector<token_id> recovered(g + 1);
    for (std::size_t j = 0; j <= g; ++j) {
      const std::span<float> p = std::span(p_).subspan(j * n, n);
      scalar_softmax::apply(all_.target(r, j), p);
      float best = -1;
      for (std::size_t v = 0; v < n; ++v) {
        const float w = j < g ? std::max(0.f, p[v] - q_[(r * g + j) * n + v]) : p[v];
        if (const float score = w / noise_[v]; score > best) {
          best = score;
          recovered[j] = token_id(v);
        }
      }
    }
    const random_streams random(seed, r);
    std::size_t j = 0;
    for (; j < g; ++j) {
      const auto y = std::size_t(drafted[j]);
      if (!random.coin({stream::coin, std::uint32_t(j), 0}, p_[j * n + y], q_[(r * g + j) * n + y]))
        break;
    }
    return {j, recovered[j]};
  }

 private:
  const requests& all_;
  std::vector<float> q_, p_, noise_;
};

// llama.cpp, speculative-simple: at each position the target's row becomes an array of {id, logit,
// p}, sorted, softmaxed and drawn from; the draft is kept while the drawn token is the drafted one
// (exact match: it accepts less).
class sorted_structs {
 public:
  explicit sorted_structs(const requests& r) : all_(r), data_(r.vocabulary) {}
  step operator()(std::size_t r, std::span<const token_id> drafted, std::uint64_t seed) {
    const random_streams random(seed, r);
    for (std::size_t j = 0;; ++j) {
      double u = random.uniform({stream::residual, std::uint32_t(j), 0}) * weigh(r, j);
      token_id token = data_.back().id;
      for (const datum& d : data_)
        if ((u -= d.p) < 0) {
          token = d.id;
          break;
        }
      if (j == all_.gamma || token != drafted[j]) return {j, token};
    }
  }
  struct datum {
    token_id id;
    float logit, p;
  };
  // Fills the sorted array with unnormalised probabilities; their sum.
  double weigh(std::size_t r, std::size_t j) {
    const std::span<const float> logits = all_.target(r, j);
    for (std::size_t v = 0; v < data_.size(); ++v) data_[v] = {token_id(v), logits[v], 0};
    std::sort(data_.begin(), data_.end(),
              [](const datum& a, const datum& b) { return a.logit > b.logit; });
    double sum = 0;
    for (datum& d : data_) sum += d.p = std::exp(d.logit - data_[0].logit);
    return sum;
  }
  const std::vector<datum>& data() const { return data_; }

 private:
  const requests& all_;
  std::vector<datum> data_;
};

}  // namespace bench
