// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/lookup.hpp>

#include <map>
#include <random>
#include <vector>

#include "decode/toy_text.hpp"
#include "support/allocations.hpp"

using namespace specagg;

namespace {

using tokens = std::vector<token_id>;

// What lookup_drafter should propose, by trying every suffix and every occurrence; no_token for
// nothing.
token_id by_search(const std::vector<tokens>& documents, const tokens& text, const tokens& draft,
                   std::size_t least) {
  tokens whole = text;
  whole.insert(whole.end(), draft.begin(), draft.end());
  const auto last_in = [&](const tokens& where, std::size_t length) {
    token_id next = no_token;
    for (std::size_t end = length; end < where.size(); ++end)
      if (std::equal(whole.end() - std::ptrdiff_t(length), whole.end(),
                     where.begin() + std::ptrdiff_t(end - length)))
        next = where[end];
    return next;
  };
  for (std::size_t length = std::min<std::size_t>(whole.size(), 32); length >= least; --length) {
    if (const token_id t = last_in(text, length); t != no_token) return t;
    for (std::size_t d = documents.size(); d-- > 0;)
      if (const token_id t = last_in(documents[d], length); t != no_token) return t;
  }
  return no_token;
}
// What lookup_drafter should propose for a tree, in the same way.
tokens all_by_search(const std::vector<tokens>& documents, const tokens& text, const tokens& draft,
                     std::size_t least) {
  tokens whole = text;
  whole.insert(whole.end(), draft.begin(), draft.end());
  for (std::size_t length = std::min<std::size_t>(whole.size(), 32); length >= least; --length)
    for (const bool own : {true, false}) {
      std::map<token_id, std::size_t> count;
      token_id last = no_token;
      for (const tokens& where : own ? std::vector<tokens>{text} : documents)
        for (std::size_t end = length; end < where.size(); ++end)
          if (std::equal(whole.end() - std::ptrdiff_t(length), whole.end(),
                         where.begin() + std::ptrdiff_t(end - length)))
            ++count[last = where[end]];
      tokens order;
      for (const auto& [t, n] : count) order.push_back(t);
      std::stable_sort(order.begin(), order.end(), [&](token_id a, token_id b) {
        return count[a] != count[b] ? count[a] > count[b] : a == last && b != last;
      });
      if (!order.empty()) return order;
    }
  return {};
}
token_id proposed(lookup_drafter<float>& lookup, const tokens& text, const tokens& draft) {
  tokens whole = text;
  whole.insert(whole.end(), draft.begin(), draft.end());
  normal_form<one_hot_row<float>> row;
  double confidence = -1;
  no_processor none;
  const status s = lookup.next({whole, draft.size()}, none, row, confidence);
  if (s == status::no_draft) return no_token;
  if (s != status::ok) FAIL(name(s));
  CHECK((confidence > 0 && confidence < 1));
  return row.token();
}
suffix_automaton index_of(const std::vector<tokens>& documents) {
  suffix_automaton all;
  for (const tokens& d : documents) {
    for (const token_id t : d) all.push(t);
    all.end_document();
  }
  return all;
}

}  // namespace

TEST_CASE(
    "after any sequence of tokens and roll-backs a lookup proposes what a search of the same "
    "tokens finds") {
  static_assert(Drafter<lookup_drafter<float>, penalties>);
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return std::size_t(random() % n); };
  std::size_t found = 0, of_documents = 0, of_several = 0;
  for (int run = 0; run < 200; ++run) {
    const std::size_t letters = 1 + below(4), least = 1 + below(3);
    std::vector<tokens> documents(below(3), tokens(20));
    for (tokens& d : documents)
      for (token_id& t : d) t = token_id(below(letters));
    const suffix_automaton all = index_of(documents);
    lookup_drafter<float> lookup(letters, 100, &all, least);
    tokens text;
    for (int step = 0; step < 40; ++step) {
      if (below(6) == 0 && !text.empty()) {
        text.resize(below(text.size() + 1));
        REQUIRE(lookup.rollback(text.size()) == status::ok);
        REQUIRE(lookup.position() <= text.size());
      }
      for (std::size_t n = below(4); n > 0; --n) text.push_back(token_id(below(letters)));
      if (below(4) == 0) continue;  // several tokens and roll-backs before the drafter is asked
      lookup_drafter<float> fresh(letters, 100, &all, least);
      tokens draft;
      for (int j = 0; j < 4; ++j) {
        const token_id due = by_search(documents, text, draft, least);
        REQUIRE(proposed(lookup, text, draft) == due);
        REQUIRE(proposed(fresh, text, draft) == due);
        tokens several(1 + below(4)), all_due = all_by_search(documents, text, draft, least);
        if (all_due.size() > several.size()) all_due.resize(several.size());
        tokens whole = text;
        whole.insert(whole.end(), draft.begin(), draft.end());
        several.resize(lookup.continuations({whole, draft.size()}, several));
        REQUIRE(several == all_due);
        of_several += several.size() > 1;
        found += due != no_token;
        of_documents += due != no_token && by_search({}, text, draft, least) != due;
        draft.push_back(below(3) == 0 || due == no_token ? token_id(below(letters)) : due);
      }
    }
  }
  CHECK(found > 5000);
  CHECK(of_documents > 500);
  CHECK(of_several > 1000);
}
TEST_CASE(
    "a lookup continues the most recent occurrence, the text before the documents, and no "
    "document's end") {
  const suffix_automaton all = index_of({{1, 2, 3}, {1, 2, 4}, {5, 6}, {7, 8}});
  const auto next = [&](const tokens& text, std::size_t least = 2) {
    lookup_drafter<float> lookup(10, 100, &all, least);
    return proposed(lookup, text, {});
  };
  CHECK(next({1, 2}) == 4);                    // the last document
  CHECK(next({1, 2, 9, 1, 2}) == 9);           // the text
  CHECK(next({1, 2, 9, 1, 2, 8, 1, 2}) == 8);  // where it was last
  CHECK(next({3, 1, 2, 9, 0, 1, 2}) == 9);
  CHECK(next({5, 6}) == no_token);  // 7 begins another document
  CHECK(next({2}) == no_token);     // shorter than `least`
  CHECK(next({2}, 1) == 4);
  CHECK(next({0, 2, 9, 2}, 1) == 9);
  // a longer suffix in a document before a shorter one in the text
  CHECK(next({0, 2, 9, 1, 2}) == 4);
}
TEST_CASE("a lookup never proposes a token of a document that the vocabulary lacks") {
  const suffix_automaton all = index_of({{1, 2, 6}, {1, 2, 7}, {1, 2, 8}, {1, 2, -5}});
  lookup_drafter<float> lookup(7, 10, &all), larger(8, 10, &all);
  CHECK(proposed(lookup, {1, 2}, {}) == no_token);
  const auto all_of = [](lookup_drafter<float>& drafter) {
    tokens text{1, 2}, found(9);
    found.resize(drafter.continuations({text, 0}, found));
    return found;
  };
  CHECK(all_of(lookup) == tokens{6});
  CHECK(all_of(larger) == tokens{6, 7});
  const suffix_automaton first_beyond = index_of({{1, 2, 7}});
  lookup_drafter<float> none(7, 10, &first_beyond);
  CHECK(proposed(none, {1, 2}, {}) == no_token);
}
TEST_CASE("in a text beyond its capacity a lookup has nothing, and says context_full") {
  lookup_drafter<float> lookup(7, 4);
  normal_form<one_hot_row<float>> row;
  double confidence;
  no_processor none;
  const tokens text{1, 2, 1, 2, 1};
  CHECK(lookup.next({std::span(text).first(4), 0}, none, row, confidence) == status::ok);
  CHECK(row.token() == 1);
  CHECK(lookup.next({text, 1}, none, row, confidence) == status::ok);  // the draft does not count
  CHECK(lookup.next({text, 0}, none, row, confidence) == status::context_full);
}

namespace {

// The joint law of texts of `length` tokens after token 0, drafted by a lookup in two documents and
// in the text.
double worst_error(std::size_t gamma, std::size_t length, const any_verifier& verifier,
                   const decode_options& given, const penalty_options& penalty,
                   std::size_t& drafted) {
  const suffix_automaton all = index_of({{0, 1, 2, 2, 1, 0}, {2, 0, 1, 1, 0}});
  std::size_t reused = 0;
  const auto law = exact_law(
      [&](auto& chooser) {
        toy_source<double> m(vocabulary, 2);
        lookup_drafter<double> lookup(vocabulary, 16, &all, 1);
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        decode_options options = given;
        options.gamma = gamma;
        drafting_workspace<double, normal_form<one_hot_row<double>>> work(vocabulary, options);
        penalty_memory memory;
        witness processor{memory.with(penalty), {}};
        (void)processor.push(0);
        const status why = speculative_decode(
            lookup, m, lossless{}, chooser,
            {.text = t,
             .most = length,
             .work = work,
             .processor = processor,
             .after_round = [&](const auto& r, const auto&) { drafted += r.drafted; }},
            verifier);
        REQUIRE(why == status::ok);
        CHECK(lookup.position() <= t.size);
        CHECK(processor.pushed ==
              std::vector<token_id>(buffer.begin(), buffer.begin() + std::ptrdiff_t(t.size)));
        return std::vector<token_id>(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
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

TEST_CASE("texts drafted by a lookup have exactly the target's joint law, under every verifier") {
  const penalty_options penalty{.repetition = 1.7, .presence = 0.3, .frequency = 0.4};
  std::size_t drafted = 0;
  for (std::size_t gamma = 1; gamma <= 3; ++gamma) {
    CHECK(worst_error(gamma, 4, token_verifier(), {}, {}, drafted) < 1e-12);
    CHECK(worst_error(gamma, 4, block_verifier(), {}, {}, drafted) < 1e-12);
    CHECK(worst_error(gamma, 4, match_verifier(), {}, {}, drafted) < 1e-12);
    CHECK(worst_error(gamma, 4, block_verifier(), {.end_of_text = 1}, {}, drafted) < 1e-12);
    CHECK(worst_error(gamma, 4, token_verifier(), {}, penalty, drafted) < 1e-12);
    CHECK(worst_error(gamma, 3, token_verifier(), {.sample = {0.5, 2}}, {}, drafted) < 1e-12);
  }
  CHECK(drafted > 1000);
}
TEST_CASE(
    "at temperature 0 a text drafted by a lookup is that of the target alone, and rounds allocate "
    "nothing") {
  std::size_t drafted = 0, accepted = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<token_id> alone;
    for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
      toy_source<float> m(20, seed, 1);  // order 1: it soon repeats itself
      lookup_drafter<float> lookup(20, 100);
      std::vector<token_id> buffer(100);
      text t{buffer, 1};
      drafting_workspace<float, normal_form<one_hot_row<float>>> work(
          20, {.gamma = gamma, .sample = {0}});
      random_streams chooser(seed, gamma);
      std::size_t before = allocations;
      const auto after_round = [&](const auto& r, const auto&) {
        drafted += r.drafted;
        accepted += r.accepted;
      };
      const status s =
          speculative_decode(lookup, m, lossless{}, chooser,
                             {.text = t, .most = 60, .work = work, .after_round = after_round});
      CHECK(allocations - before <= 8);  // the toy model's context grows
      REQUIRE(s == status::ok);
      if (gamma == 0) alone = buffer;
      CHECK(buffer == alone);
    }
  }
  std::printf("toy texts at temperature 0: %zu of %zu tokens of the lookup accepted\n", accepted,
              drafted);
  CHECK(accepted > drafted / 2);
}
TEST_CASE("a coupled text is the same with a lookup, with any gamma, and without drafts") {
  std::vector<token_id> alone;
  for (const std::size_t gamma : {0u, 1u, 4u, 8u}) {
    toy_source<float> m(20, 5, 1, 12);
    lookup_drafter<float> lookup(20, 300);
    std::vector<token_id> buffer(300);
    text t{buffer, 1};
    drafting_workspace<float, normal_form<one_hot_row<float>>> work(20, {.gamma = gamma});
    random_streams chooser(1);
    std::size_t accepted = 0;
    REQUIRE(speculative_decode(
                lookup, m, lossless{}, chooser,
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
TEST_CASE(
    "a law that reads the draft's row ends with no_draft where a lookup has nothing, and is exact "
    "up to there") {
  toy_source<float> m(20, 5, 1, 12);
  lookup_drafter<float> lookup(20, 300);
  std::vector<token_id> buffer{3, 4, 3, 4, 3};
  buffer.resize(300);
  text t{buffer, 5};
  drafting_workspace<float, normal_form<one_hot_row<float>>> work(20, {});
  random_streams chooser(1);
  status draft_why = status::ok;
  CHECK(speculative_decode(
            lookup, m, ensemble{0.5}, chooser,
            {.text = t, .most = 250, .work = work, .after_round = [&](const auto& r, const auto&) {
               draft_why = r.draft_why;
             }}) == status::no_draft);
  CHECK(draft_why == status::no_draft);
  CHECK(t.size > 5);
  CHECK(t.size < 255);
}
