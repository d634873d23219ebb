// SPDX-License-Identifier: Apache-2.0
// What the tests of the decoders share: texts of toy models, and the law they should have.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include <specagg/audit/exact_law.hpp>
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"

namespace {

constexpr std::size_t vocabulary = 3;
const auto keep_all = [](const specagg::emission&) { return true; };

struct penalty_memory {
  std::vector<std::uint32_t> counts;
  std::vector<specagg::token_id> distinct, text;
  explicit penalty_memory(std::size_t longest = 256, std::size_t tokens = vocabulary)
      : counts(tokens), distinct(tokens), text(longest) {}
  specagg::penalties with(specagg::penalty_options o) { return {o, counts, distinct, text}; }
};

// What a decoder is given, each of one type, so that it is compiled once. Randomness: every branch
// of it, or the production streams. The moments that it is given may be spoiled.
struct either {
  specagg::exhaustive_chooser* tree = nullptr;
  specagg::random_streams streams = specagg::random_streams(0);
  specagg::moment (*spoil)(specagg::moment) = [](specagg::moment m) { return m; };
  either(specagg::exhaustive_chooser& every) : tree(&every) {}
  either(const specagg::random_streams& some) : streams(some) {}
  bool coin(specagg::moment m, double w, double t) {
    return tree ? tree->coin(spoil(m), w, t) : streams.coin(spoil(m), w, t);
  }
  template <class W>
  specagg::token_id draw(specagg::moment m, const W& w) {
    return tree ? tree->draw(spoil(m), w) : streams.draw(spoil(m), w);
  }
};
using watcher = std::function<bool(const specagg::emission&)>;
// A verifier of drafts that are drawn by the chooser.
struct any_verifier : specagg::token_verifier {
  std::variant<specagg::token_verifier, specagg::block_verifier, specagg::match_verifier> chosen;
  any_verifier(specagg::token_verifier v = {}) : chosen(v) {}
  any_verifier(specagg::block_verifier v) : chosen(v) {}
  any_verifier(specagg::match_verifier v) : chosen(v) {}
  template <class... A>
  specagg::verdict verify(const specagg::draft& drafted, A&&... a) const {
    return std::visit([&](const auto& v) { return v.verify(drafted, a...); }, chosen);
  }
};
// for_each_verifier, and what it calls is compiled once for those that are one type above.
template <class F>
void for_each_verifier_compiled_once(std::uint64_t seed, std::uint64_t request, F&& f) {
  specagg::for_each_verifier(seed, request, [&]<class V>(const V& verifier) {
    if constexpr (specagg::is_coupled<V>) f(verifier);
    else f(any_verifier(verifier));
  });
}
// A verifier of trees.
struct any_tree_verifier {
  std::variant<specagg::traversal, specagg::recursive_rejection> chosen;
  any_tree_verifier(const auto& one) : chosen(one) {}
  template <class... A>
  specagg::tree_verdict verify(A&&... a) const {
    return std::visit([&](const auto& v) { return v.verify(a...); }, chosen);
  }
};
// A length of drafts of one of the types.
template <class... Lengths>
struct any_length {
  std::variant<Lengths...> chosen;
  bool reads_acceptances, reads_confidence;
  template <class L>
    requires(std::is_same_v<L, Lengths> || ...)
  any_length(const L& one)
      : chosen(one),
        reads_acceptances(one.reads_acceptances),
        reads_confidence(one.reads_confidence) {}
  void begin() {
    std::visit([](auto& l) { l.begin(); }, chosen);
  }
  bool another(std::size_t drafter) const {
    return std::visit([=](const auto& l) { return l.another(drafter); }, chosen);
  }
  bool keep(std::size_t drafter, double confidence) {
    return std::visit([=](auto& l) { return l.keep(drafter, confidence); }, chosen);
  }
  void observe(std::span<const specagg::draft_acceptance> acceptances, std::size_t emitted,
               std::span<const std::size_t> asked) {
    std::visit([=](auto& l) { l.observe(acceptances, emitted, asked); }, chosen);
  }
};

// Penalties that remember what they were pushed: after decoding it must be the text.
struct witness {
  specagg::penalties inner;
  std::vector<specagg::token_id> pushed;
  void push(specagg::token_id t) {
    (void)inner.push(t);
    pushed.push_back(t);
  }
  void pop() {
    inner.pop();
    pushed.pop_back();
  }
  template <class T>
  void apply(std::span<T> logits) const {
    inner.apply(logits);
  }
};
static_assert(specagg::Processor<witness>);

// A model's probabilities after a context, processed as the decoders have to.
inline std::vector<double> probabilities(const specagg::toy_source<double>& model,
                                         const std::vector<specagg::token_id>& context,
                                         const specagg::sampling& s = {},
                                         const specagg::penalty_options& penalty = {}) {
  std::vector<double> logits(model.vocab_size());
  model.row(context, logits);
  penalty_memory memory;
  auto processor = memory.with(penalty);
  for (const specagg::token_id t : context) (void)processor.push(t);
  processor.apply(std::span(logits));
  const auto row = specagg::normalise(specagg::processed_row<double>(logits, s));
  if (row.why() != specagg::status::ok) FAIL("a toy model's row");
  std::vector<double> p(logits.size());
  for (std::size_t v = 0; v < p.size(); ++v) p[v] = row[v];
  return p;
}

// The largest error of a joint law over texts that follow token 0, against the product of what
// promised(context) gives each next token. A text has `length` tokens unless it ends before.
template <class Law, class Promised>
double worst_joint_error(const Law& law, std::size_t length, specagg::token_id end_of_text,
                         Promised promised) {
  double worst = 0, total = 0;
  for (const auto& [tokens, probability] : law) {
    double due = 1;
    std::vector<specagg::token_id> context{0};
    for (const specagg::token_id x : tokens) {
      due *= promised(context)[std::size_t(x)];
      context.push_back(x);
    }
    const auto end = std::ranges::find(tokens, end_of_text);
    if (end == tokens.end()) CHECK(tokens.size() == length);
    else CHECK(end + 1 == tokens.end());  // nothing stands after the end
    worst = std::max(worst, std::fabs(probability - due));
    total += probability;
  }
  CHECK(total == Approx(1).epsilon(1e-12));
  return worst;
}

// Rows of three kinds within one draft: one-hot, sparse or dense by the length of the text, from a
// toy model's row.
struct mixed_drafter {
  template <class R>
  using normal_form = specagg::normal_form<R>;
  using row_type =
      specagg::compiled_once<specagg::any_row<normal_form<specagg::one_hot_row<double>>,
                                              normal_form<specagg::sparse_row<double>>,
                                              normal_form<specagg::processed_row<double>>>>;
  specagg::toy_source<double> model{vocabulary, 1};
  std::array<std::array<double, vocabulary>, 4> logits;
  std::array<std::array<specagg::token_id, 2>, 4> ids;
  std::array<std::array<double, 2>, 4> two;
  std::size_t known = 0, asked = 0;

  std::size_t vocab_size() const { return vocabulary; }
  std::size_t position() const { return known; }
  specagg::status rollback(std::size_t n) {
    known = std::min(known, n);
    return specagg::status::ok;
  }
  template <class P>
  specagg::status next(const specagg::draft_position& at, P&, row_type& row, double& confidence) {
    const std::size_t j = at.drafted;
    known = at.tokens.size();
    confidence = 0.5;
    ++asked;
    model.row(at.tokens, logits[j]);
    const auto top = specagg::token_id(std::ranges::max_element(logits[j]) - logits[j].begin());
    switch (at.tokens.size() % 3) {
      case 0: row = specagg::normalise(specagg::one_hot_row<double>(top, vocabulary)); break;
      case 1:
        ids[j] = {top == 0 ? 1 : 0, top == 2 ? 1 : 2};
        two[j] = {0.25, 0.75};
        row = specagg::normalise(specagg::sparse_row<double>(ids[j], two[j], vocabulary));
        break;
      default: row = specagg::normalise(specagg::processed_row<double>(logits[j]), at.confidence);
    }
    return row.why();
  }
};

// Rows of two tokens that also depend on where the round began, and on a seed.
struct started_drafter {
  using row_type = specagg::normal_form<specagg::processed_row<double>>;
  std::uint64_t seed = 1;
  std::array<std::array<double, 2>, 8> logits = {};
  std::size_t vocab_size() const { return 2; }
  std::size_t position() const { return 0; }
  specagg::status rollback(std::size_t) { return specagg::status::ok; }
  template <class P>
  specagg::status next(const specagg::draft_position& at, P&, row_type& row, double& confidence) {
    auto& own = logits[at.drafted];
    specagg::toy_source<double>(2, seed + 7 * (at.tokens.size() - at.drafted)).row(at.tokens, own);
    row = specagg::normalise(specagg::processed_row<double>(own), at.confidence);
    confidence = std::max(row[0], row[1]);
    return row.why();
  }
};

// Coupled verification whose noise is enumerated: each position has one number, with which draft
// and target draw by inverse transform. (For two tokens that is the race of verify/coupled.hpp.) So
// every token has exactly the law pi, if what decides pi does not depend on that number.
struct enumerated_coupled {
  static constexpr bool is_coupled = true;
  template <class C>
  static specagg::token_id draw(C& chooser, std::size_t position, const std::vector<double>& law) {
    return chooser.draw({specagg::stream::draft, std::uint32_t(position), 0}, law);
  }
  template <specagg::Row R, class C>
  specagg::token_id propose(const R& row, std::uint32_t start, std::size_t j, C& chooser,
                            std::span<double>) const {
    const auto& q = normalise(row);
    if (q.why() != specagg::status::ok) return specagg::no_token;
    std::vector<double> law(q.size());
    for (std::size_t v = 0; v < law.size(); ++v) law[v] = q[v];
    return draw(chooser, start + j, law);
  }
  template <class Q, class P, class Policy, class C>
  specagg::verdict verify(const specagg::draft& drafted, Q& q_rows, P& p_rows, const Policy& policy,
                          C& chooser, std::span<specagg::emission> out, std::span<double>) const {
    specagg::verdict result;
    const std::size_t g = drafted.size();
    for (specagg::draft_acceptance& a : drafted.acceptances) a = {};
    for (std::size_t j = 0; j < g || (j == g && !drafted.ends_text(g)); ++j) {
      specagg::token_id x = specagg::no_token;
      result.why = specagg::detail::law_source{policy, q_rows, p_rows}.with_law(
          j, [&](const auto& rows, const auto& pi) {
            std::vector<double> law(rows.size());
            for (std::size_t v = 0; v < law.size(); ++v) law[v] = pi(at(rows, v)).v;
            x = draw(chooser, drafted.start + j, law);
            return specagg::status::ok;
          });
      if (result.why != specagg::status::ok) return result;
      const bool kept = j < g && x == drafted.tokens[j];
      out[result.emitted++] = {
          .token = x, .from = kept ? specagg::origin::accepted : specagg::origin::residual};
      if (!kept) break;
      if (!drafted.acceptances.empty()) drafted.acceptances[result.accepted] = {1, 1};
      ++result.accepted;
    }
    return result;
  }
};

// Fails, or returns rows of NaN, at a chosen call.
template <class T>
struct faulty : specagg::toy_source<T> {
  std::size_t fail_at = std::size_t(-1), nan_at = fail_at, n = 0;
  using specagg::toy_source<T>::toy_source;
  specagg::status extend(std::span<const specagg::token_id> tokens, std::span<T> logits) {
    if (n++ == fail_at) return specagg::status::model_failed;
    const specagg::status s = specagg::toy_source<T>::extend(tokens, logits);
    if (n - 1 == nan_at) logits[logits.size() / 2] = std::numeric_limits<T>::quiet_NaN();
    return s;
  }
};

}  // namespace
