// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/counts.hpp>

#include <map>
#include <random>
#include <vector>

#include "decode/toy_text.hpp"
#include "support/allocations.hpp"

using namespace specagg;

namespace {

using tokens = std::vector<token_id>;

// P(y | h) as the header defines it, by a search of all texts. The last of several counts four
// times.
struct witten_bell {
  std::vector<tokens> texts;
  double operator()(token_id y, const tokens& h) const {
    if (h.empty()) return 0;
    std::map<token_id, double> c;
    double followed = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const tokens& t = texts[i];
      const double weight = texts.size() > 1 && i + 1 == texts.size() ? 4 : 1;
      for (std::size_t end = h.size(); end < t.size(); ++end)
        if (std::equal(h.begin(), h.end(), t.begin() + std::ptrdiff_t(end - h.size()))) {
          c[t[end]] += weight;
          followed += weight;
        }
    }
    const double shorter = (*this)(y, tokens(h.begin() + 1, h.end()));
    if (followed == 0) return shorter;
    const double lambda = double(c.size()) / (double(c.size()) + followed);
    return (1 - lambda) * c[y] / followed + lambda * shorter;
  }
};
// Of every token after text and draft, with histories of at most order - 1 tokens.
std::vector<double> by_search(std::vector<tokens> documents, const tokens& text,
                              const tokens& draft, std::size_t order, std::size_t letters) {
  documents.push_back(text);
  const witten_bell model{documents};
  tokens h = text;
  h.insert(h.end(), draft.begin(), draft.end());
  if (h.size() > order - 1) h.erase(h.begin(), h.end() - std::ptrdiff_t(order - 1));
  std::vector<double> p(letters);
  for (std::size_t v = 0; v < letters; ++v) p[v] = model(token_id(v), h);
  return p;
}
ngram_counts counted(const std::vector<tokens>& documents, std::size_t order = 4) {
  ngram_counts all(order);
  for (const tokens& d : documents) {
    for (const token_id t : d) all.push(t);
    all.end_document();
  }
  return all;
}
template <class T>
status ask(counts_drafter<T>& drafter, const tokens& text, const tokens& draft,
           normal_form<sparse_row<T>>& row, double& confidence) {
  tokens whole = text;
  whole.insert(whole.end(), draft.begin(), draft.end());
  no_processor none;
  return drafter.next({whole, draft.size()}, none, row, confidence);
}
template <class R>
std::vector<double> dense(const R& row) {
  std::vector<double> p(row.size());
  for (std::size_t v = 0; v < p.size(); ++v) p[v] = double(row[v]);
  return p;
}
// The largest difference of the row from p, renormalised.
double off(const normal_form<sparse_row<double>>& row, const std::vector<double>& p) {
  double sum = 0, worst = 0;
  for (const double x : p) sum += x;
  for (std::size_t v = 0; v < p.size(); ++v)
    worst = std::max(worst, std::fabs(row[v] - p[v] / sum));
  return worst;
}

}  // namespace

TEST_CASE(
    "after any tokens, cuts and drafts the row of counts is that of a Witten-Bell model made "
    "anew") {
  static_assert(Drafter<counts_drafter<float>, penalties>);
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return std::size_t(random() % n); };
  std::size_t rows = 0, of_documents = 0, cuts = 0;
  double worst = 0;
  for (int run = 0; run < 150; ++run) {
    const std::size_t letters = 1 + below(5);
    std::vector<tokens> documents(below(3), tokens(20));
    const std::size_t order = 2 + below(4);
    for (tokens& d : documents)
      for (token_id& t : d) t = token_id(below(letters));
    const ngram_counts all = counted(documents, order);
    counts_drafter<double> drafter(letters, 200, 4, {}, &all);
    tokens text;
    for (int step = 0; step < 20; ++step) {
      if (below(5) == 0 && !text.empty()) {
        text.resize(below(text.size() + 1));
        ++cuts;
        REQUIRE(drafter.rollback(text.size()) == status::ok);
        REQUIRE(drafter.position() <= text.size());
      }
      for (std::size_t n = below(4); n > 0; --n) text.push_back(token_id(below(letters)));
      if (below(4) == 0) continue;  // several tokens and cuts before the drafter is asked
      tokens draft;
      std::array<normal_form<sparse_row<double>>, 5> row;
      std::array<std::vector<double>, 5> due;
      std::size_t g = 0;
      for (; g < 5; ++g) {
        double confidence = -1;
        const status s = ask(drafter, text, draft, row[g], confidence);
        due[g] = by_search(documents, text, draft, order, letters);
        const double largest = *std::ranges::max_element(due[g]);
        REQUIRE(s == (largest > 0 ? status::ok : status::no_draft));
        REQUIRE(confidence == Approx(largest * largest * largest).epsilon(1e-12));
        if (s != status::ok) break;
        ++rows;
        of_documents += due[g] != by_search({}, text, draft, order, letters);
        draft.push_back(token_id(below(letters)));
      }
      // all rows are readable
      for (std::size_t j = 0; j < g; ++j) worst = std::max(worst, off(row[j], due[j]));
    }
  }
  CHECK(worst < 1e-12);
  CHECK(rows > 3000);
  CHECK(of_documents > 1000);
  CHECK(cuts > 200);
}
TEST_CASE("the row of counts of a text, by hand") {
  // sure: P
  const auto same = [](const tokens& text, const std::vector<double>& due, double sure) {
    counts_drafter<double> drafter(5, 20, 0);
    normal_form<sparse_row<double>> row;
    double confidence;
    const status s = ask(drafter, text, {}, row, confidence);
    CHECK(s == (due.empty() ? status::no_draft : status::ok));
    if (s == status::ok) CHECK(off(row, due) < 1e-15);
    CHECK(confidence == Approx(sure * sure * sure).epsilon(1e-15));
  };
  // 1 was followed by 2, 2 and 3: lambda = 2 / (2 + 3), P(2) = 3/5 2/3, P(3) = 3/5 1/3. Nothing
  // followed 4 1.
  same({1, 2, 4, 0, 1, 2, 1, 3, 4, 1}, {0, 0, 0.4, 0.2, 0}, 0.4);
  // Now by 0 as well: lambda = 3/7, P(2 | 1) = 4/7 2/4. And 0 1 by 2: lambda = 1/2, P(2 | 0 1) =
  // 1/2 + 1/2 2/7.
  same({1, 2, 4, 0, 1, 2, 1, 3, 4, 1, 0, 1}, {1. / 14, 0, 0.5 + 1. / 7, 1. / 14, 0}, 0.5 + 1. / 7);
  same({1, 2, 4, 0, 1, 2, 1, 3, 4, 1, 0, 3}, {0, 0, 0, 0, 1}, 0.5);
  same({1, 2, 4, 0, 3}, {}, 0);  // nothing followed 3
}
TEST_CASE(
    "temperature and filters act on the row of counts as on a model's row of the same "
    "probabilities") {
  std::mt19937 random(2);
  tokens text(400);
  for (token_id& t : text) t = token_id(random() % 12 * (random() % 12) / 11);
  const auto p = by_search({}, text, {}, ngram_counts::usual_order, 12);
  std::vector<double> logits(12);
  std::ranges::transform(p, logits.begin(),
                         [](double x) { return x > 0 ? std::log(x) : -infinity; });
  for (const sampling s : {sampling{1}, sampling{0.5}, sampling{2}, sampling{1, 3},
                           sampling{0.7, 0, 0.8}, sampling{1, 0, 1, 0.3}}) {
    counts_drafter<double> drafter(12, 400, 1, s);
    normal_form<sparse_row<double>> row;
    double confidence;
    REQUIRE(ask(drafter, text, {}, row, confidence) == status::ok);
    CHECK(confidence == Approx(std::pow(*std::ranges::max_element(p), 3)).epsilon(1e-12));
    const auto due = normalise(processed_row<double>(logits, s));
    REQUIRE(due.why() == status::ok);
    for (std::size_t v = 0; v < 12; ++v) CHECK(row[v] == Approx(due[v]).epsilon(1e-9));
  }
  // Temperature 0: 5 and 3 followed 1 equally often.
  counts_drafter<double> greedy(12, 400, 1, {0});
  normal_form<sparse_row<double>> row;
  double confidence;
  REQUIRE(ask(greedy, {1, 5, 1, 3, 1}, {}, row, confidence) == status::ok);
  CHECK(row[3] == 1);
  CHECK(row[5] == 0);
  counts_drafter<double> wrong(12, 400, 1, {-1});
  CHECK(ask(wrong, {1, 5, 1}, {}, row, confidence) == status::invalid_parameter);
}
TEST_CASE("of more than `most` continuations a row has the most likely. It still sums to 1") {
  constexpr std::size_t V = 999, most = counts_drafter<double>::most;
  tokens text;
  for (token_id t = 1; t < token_id(V); ++t)  // 0 is followed by all others, by every third twice
    for (int n = t % 3 == 0 ? 2 : 1; n > 0; --n) {
      text.push_back(0);
      text.push_back(t);
    }
  text.push_back(0);
  counts_drafter<double> drafter(V, text.size(), 1);
  normal_form<sparse_row<double>> row;
  double confidence, sum = 0;
  REQUIRE(ask(drafter, text, {}, row, confidence) == status::ok);
  std::size_t kept = 0;
  for (std::size_t v = 0; v < V; ++v) {
    const bool due = v > 0 && v % 3 == 0 && v <= 3 * most;  // equally likely ones: the lower ids
    CHECK((row[v] > 0) == due);
    kept += row[v] > 0;
    sum += row[v];
  }
  CHECK(kept == most);
  CHECK(sum == Approx(1).epsilon(1e-12));
}
TEST_CASE("counts never propose a token of a document that the vocabulary lacks") {
  const ngram_counts all = counted({{1, 2, 7}, {1, 2, -5}, {1, 3, 9}, {1, 3, 4}});
  counts_drafter<float> drafter(7, 10, 0, {}, &all);
  normal_form<sparse_row<float>> row;
  double confidence;
  CHECK(ask(drafter, {1, 2}, {}, row, confidence) == status::no_draft);
  REQUIRE(drafter.rollback(0) == status::ok);
  REQUIRE(ask(drafter, {1, 3}, {}, row, confidence) == status::ok);
  CHECK(dense(row) == std::vector<double>{0, 0, 0, 0, 1, 0, 0});
}
TEST_CASE(
    "in a text beyond its capacity counts propose nothing, nor in a draft beyond gamma. They say "
    "which") {
  counts_drafter<float> drafter(7, 4, 1);
  normal_form<sparse_row<float>> row;
  double confidence;
  CHECK(ask(drafter, {1, 1, 1, 1}, {}, row, confidence) == status::ok);
  CHECK(ask(drafter, {1, 1, 1, 1}, {1}, row, confidence) == status::ok);
  CHECK(ask(drafter, {1, 1, 1, 1}, {1, 1}, row, confidence) == status::invalid_parameter);
  CHECK(ask(drafter, {1, 1, 1, 1, 1}, {}, row, confidence) == status::context_full);
}

namespace {

// The joint law of texts of `length` tokens after token 0, drafted by counts of two documents and
// of the text.
double worst_error(std::size_t gamma, std::size_t length, const any_verifier& verifier,
                   const decode_options& given, const penalty_options& penalty,
                   std::size_t& drafted) {
  const ngram_counts all = counted({{0, 1, 2, 2, 1, 0}, {2, 0, 1, 1, 0}}, 3);
  std::size_t reused = 0;
  const auto law = exact_law(
      [&](auto& chooser) {
        toy_source<double> m(vocabulary, 2);
        counts_drafter<double> drafter(vocabulary, 16, gamma, given.sample, &all);
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        decode_options options = given;
        options.gamma = gamma;
        drafting_workspace<double, normal_form<sparse_row<double>>> work(vocabulary, options);
        penalty_memory memory;
        witness processor{memory.with(penalty), {}};
        (void)processor.push(0);
        const status why = speculative_decode(
            drafter, m, lossless{}, chooser,
            {.text = t,
             .most = length,
             .work = work,
             .processor = processor,
             .after_round = [&](const auto& r, const auto&) { drafted += r.drafted; }},
            verifier);
        REQUIRE(why == status::ok);
        CHECK(drafter.position() <= t.size);
        CHECK(processor.pushed == tokens(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size)));
        return tokens(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(reused == 0);
  const toy_source<double> m(vocabulary, 2);
  const token_id end = given.end_of_text.contains(1) ? 1 : no_token;
  return worst_joint_error(law, length, end, [&](const tokens& context) {
    return probabilities(m, context, given.sample, penalty);
  });
}

}  // namespace

TEST_CASE("texts drafted by counts have exactly the target's joint law, under every verifier") {
  const penalty_options penalty{.repetition = 1.7, .presence = 0.3, .frequency = 0.4};
  std::size_t drafted = 0;
  for (std::size_t gamma = 1; gamma <= 3; ++gamma) {
    CHECK(worst_error(gamma, 4, token_verifier(), {}, {}, drafted) < 1e-12);
    CHECK(worst_error(gamma, 4, block_verifier(), {}, {}, drafted) < 1e-12);
    CHECK(worst_error(gamma, 3, match_verifier(), {}, {}, drafted) < 1e-12);
    CHECK(worst_error(gamma, 4, block_verifier(), {.end_of_text = 1}, {}, drafted) < 1e-12);
    CHECK(worst_error(gamma, 3, token_verifier(), {}, penalty, drafted) < 1e-12);
    CHECK(worst_error(gamma, 3, block_verifier(), {.sample = {0.5, 2}}, {}, drafted) < 1e-12);
  }
  CHECK(drafted > 10000);
}
TEST_CASE(
    "a law that reads the row of counts is that of the row they drew from, and ends where there is "
    "none") {
  // Rows depend on how much was committed when they were asked for. So only the first token's law
  // is a known one. every token was followed: there always is a row
  const ngram_counts all = counted({{0, 0, 1, 1, 2, 2, 0}});
  for (const double weight : {0.3, 0.7}) {
    const auto law = exact_law([&](exhaustive_chooser& tree) {
      either chooser(tree);
      toy_source<double> m(vocabulary, 2);
      counts_drafter<double> drafter(vocabulary, 16, 2, {}, &all);
      std::vector<token_id> buffer(16);
      text t{buffer, 1};
      drafting_workspace<double, normal_form<sparse_row<double>>> work(vocabulary, {.gamma = 2});
      REQUIRE(speculative_decode(drafter, m, ensemble{weight}, chooser,
                                 {.text = t, .most = 3, .work = work}) == status::ok);
      return tokens(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
    });
    std::map<token_id, double> first;
    for (const auto& [text, probability] : law) first[text[0]] += probability;
    counts_drafter<double> drafter(vocabulary, 16, 2, {}, &all);
    normal_form<sparse_row<double>> q;
    double confidence;
    REQUIRE(ask(drafter, {0}, {}, q, confidence) == status::ok);
    const toy_source<double> m(vocabulary, 2);
    std::vector<double> p(vocabulary);
    m.row(tokens{0}, p);
    const auto due = target_law(ensemble{weight}, q, processed_row<double>(p));
    for (std::size_t v = 0; v < vocabulary; ++v)
      CHECK(first[token_id(v)] == Approx(due[v]).epsilon(1e-12));
  }
  toy_source<double> m(20, 5, 1, 12);
  counts_drafter<double> drafter(20, 300, 4);
  std::vector<token_id> buffer{3, 4, 3, 4, 3};
  buffer.resize(300);
  text t{buffer, 5};
  drafting_workspace<double, normal_form<sparse_row<double>>> work(20, {});
  either chooser = random_streams(1);
  CHECK(speculative_decode(drafter, m, ensemble{0.5}, chooser,
                           {.text = t, .most = 250, .work = work}) == status::no_draft);
  CHECK((t.size > 5 && t.size < 255));
}
TEST_CASE("texts drafted by a lookup, counts and a model in turn have the target's joint law") {
  using source = toy_source<double>;
  using counts_then_model = first_of<counts_drafter<double>, model_drafter<source>>;
  using all_three = first_of<lookup_drafter<double>, counts_then_model>;
  static_assert(all_three::drafters == 3);
  std::array<std::size_t, 3> by = {};
  std::size_t reused = 0;
  const auto law = exact_law(
      [&](auto& chooser) {
        source d(vocabulary, 1), m(vocabulary, 2);
        std::vector<double> logits(4 * vocabulary);
        lookup_drafter<double> lookup(vocabulary, 16);
        counts_drafter<double> counts(vocabulary, 16, 3);
        model_drafter<source> model(d, logits);
        counts_then_model later(counts, model);
        all_three drafter(lookup, later);
        std::vector<token_id> buffer(16);
        buffer[1] = 1;
        buffer[2] = 0;
        text t{buffer, 3};
        drafting_workspace<double, all_three::row_type> work(vocabulary, {.gamma = 3});
        REQUIRE(speculative_decode(drafter, m, lossless{}, chooser,
                                   {.text = t,
                                    .most = 4,
                                    .work = work,
                                    .after_round =
                                        [&](const auto& r, const auto& w) {
                                          for (std::size_t j = 0; j < r.drafted; ++j)
                                            ++by[w.drafters[j]];
                                        }},
                                   block_verifier{}) == status::ok);
        CHECK(drafter.position() <= t.size);
        CHECK(d.misuses + m.misuses == 0);
        return tokens(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(reused == 0);
  const source m(vocabulary, 2);
  double worst = 0;
  for (const auto& [text, probability] : law) {
    double due = 1;
    tokens context{0, 1, 0};
    REQUIRE(text.size() == 6);
    for (std::size_t i = 2; i < 6; ++i) {
      due *= probabilities(m, context)[std::size_t(text[i])];
      context.push_back(text[i]);
    }
    worst = std::max(worst, std::fabs(probability - due));
  }
  CHECK(law.size() == 81);
  CHECK(worst < 1e-12);
  for (const std::size_t n : by) CHECK(n > 100);
}
TEST_CASE(
    "at temperature 0 a text drafted by counts is that of the target alone, and rounds allocate "
    "nothing") {
  std::size_t drafted = 0, accepted = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    tokens alone;
    for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
      toy_source<float> m(20, seed, 1);  // order 1: it soon repeats itself
      counts_drafter<float> drafter(20, 100, gamma, {0});
      std::vector<token_id> buffer(100);
      text t{buffer, 1};
      drafting_workspace<float, normal_form<sparse_row<float>>> work(
          20, {.gamma = gamma, .sample = {0}});
      random_streams chooser(seed, gamma);
      std::size_t before = allocations;
      const auto after_round = [&](const auto& r, const auto&) {
        drafted += r.drafted;
        accepted += r.accepted;
      };
      const status s =
          speculative_decode(drafter, m, lossless{}, chooser,
                             {.text = t, .most = 60, .work = work, .after_round = after_round});
      CHECK(allocations - before <= 8);  // the toy model's context grows
      REQUIRE(s == status::ok);
      if (gamma == 0) alone = buffer;
      CHECK(buffer == alone);
    }
  }
  std::printf("toy texts at temperature 0: %zu of %zu tokens of counts accepted\n", accepted,
              drafted);
  CHECK(accepted > drafted / 2);
}
TEST_CASE("rows of counts, cut texts and all filters allocate nothing") {
  std::mt19937 random(3);
  for (const sampling s :
       {sampling{1}, sampling{0.5, 40}, sampling{1, 0, 0.9, 0.01}, sampling{0}}) {
    const ngram_counts all = counted({tokens(10, 1)});
    counts_drafter<float> drafter(3000, 4000, 2, s, &all);
    tokens text(4000);
    for (std::size_t i = 0; i < text.size(); ++i)
      text[i] = i % 2 == 0 ? 0 : token_id(random() % 3000);
    normal_form<sparse_row<float>> row;
    double confidence;
    no_processor none;
    const std::size_t before = allocations;
    for (const std::size_t n : {3999u, 4000u, 1999u, 3001u}) {
      (void)drafter.rollback(n);
      for (std::size_t j = 0; j < 3; ++j)
        CHECK(drafter.next({std::span(text).first(n), j}, none, row, confidence) == status::ok);
    }
    CHECK(allocations == before);
  }
}
TEST_CASE("a coupled text is the same with counts, with any gamma, and without drafts") {
  tokens alone;
  for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
    toy_source<float> m(20, 5, 1, 12);
    counts_drafter<float> drafter(20, 300, gamma);
    std::vector<token_id> buffer(300);
    text t{buffer, 1};
    drafting_workspace<float, normal_form<sparse_row<float>>> work(20, {.gamma = gamma});
    random_streams chooser(1);
    std::size_t accepted = 0;
    REQUIRE(speculative_decode(
                drafter, m, lossless{}, chooser,
                {.text = t,
                 .most = 250,
                 .work = work,
                 .after_round = [&](const auto& r, const auto&) { accepted += r.accepted; }},
                coupled_verifier{coupled_noise(3)}) == status::ok);
    if (gamma == 0) alone = buffer;
    else CHECK(accepted > 10);
    CHECK(buffer == alone);
  }
}
