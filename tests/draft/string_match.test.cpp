// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/string_match.hpp>

#include "draft/toy_vocabularies.hpp"

using namespace specagg;

namespace {

constexpr std::size_t V = 4;
using string_match = string_match_drafter<toy, longest_match, longest_match>;
static_assert(Drafter<string_match, penalties>);

// Token j of what the model writes greedily after a text, in the target's tokens; no_token if it
// ends before.
token_id written_by_hand(const toy& model, const tokens& text, std::size_t j) {
  tokens context = encoded_at_once(text), target;
  std::string bytes;
  std::vector<double> logits(of_draft.size());
  for (std::size_t own = 0; target.size() < j + 2 && own < 4 * (j + 2); ++own) {
    model.row(context, logits);
    const auto d = std::size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (of_draft[d].is == kind::special) break;
    context.push_back(token_id(d));
    bytes += of_draft[d].bytes;
    target = longest_match{&of_target}(bytes);
  }
  return j < target.size() ? target[j] : no_token;
}

}  // namespace

TEST_CASE(
    "a string match proposes the text that the model writes greedily, in the target's tokens") {
  std::size_t proposed = 0, ended = 0;
  for (std::uint64_t seed = 1; seed < 60; ++seed) {
    toy model(of_draft.size(), seed);
    retokenised_toy source(model, toy_text());
    string_match drafter(source, of_draft, V, longest_match{&of_target});
    no_processor none;
    // 2 is rolled back
    for (const tokens& text : {tokens{0}, tokens{0, 2}, tokens{0, 1}, tokens{0, 1, 2}}) {
      tokens whole = text;
      normal_form<one_hot_row<double>> row;
      double confidence = -1;
      for (std::size_t j = 0; j < 3; ++j) {
        REQUIRE(drafter.rollback(std::min(drafter.position(), text.size() - (j == 0))) ==
                status::ok);
        const status s = drafter.next({whole, j}, none, row, confidence);
        const token_id due = written_by_hand(model, text, j);
        if (s != status::ok) {
          CHECK((s == status::no_draft && due == no_token));
          ++ended;
          break;
        }
        CHECK(row.token() == due);
        CHECK((confidence > 0 && confidence <= 1));
        CHECK(drafter.position() == text.size());
        whole.push_back(row.token());
        ++proposed;
      }
    }
    CHECK(model.misuses == 0);
  }
  CHECK(proposed > 300);
  CHECK(ended > 20);
}
TEST_CASE("a draft that another drafter began is not continued") {
  std::size_t continued = 0;
  for (std::uint64_t seed = 1; seed < 30; ++seed) {
    toy model(of_draft.size(), seed);
    retokenised_toy source(model, toy_text());
    string_match drafter(source, of_draft, V, longest_match{&of_target});
    no_processor none;
    normal_form<one_hot_row<double>> row;
    double confidence;
    if (drafter.next({tokens{0}, 0}, none, row, confidence) != status::ok) continue;
    const token_id first = row.token();
    continued += drafter.next({tokens{0, first}, 1}, none, row, confidence) == status::ok;
    CHECK(drafter.next({tokens{0, first == 1 ? 0 : 1}, 1}, none, row, confidence) ==
          status::no_draft);
  }
  CHECK(continued > 5);
}
TEST_CASE(
    "texts drafted by a string match have the target's joint law, and at temperature 0 are the "
    "target's") {
  std::size_t drafted = 0, reused = 0;
  const auto law = exact_law(
      [&](auto& chooser) {
        toy d(of_draft.size(), 4), m(V, 2);
        retokenised_toy source(d, toy_text());
        string_match drafter(source, of_draft, V, longest_match{&of_target});
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        drafting_workspace<double, normal_form<one_hot_row<double>>> work(V, {.gamma = 3});
        REQUIRE(speculative_decode(drafter, m, lossless{}, chooser,
                                   {.text = t,
                                    .most = 4,
                                    .work = work,
                                    .after_round = [&](const auto& r, const auto&) {
                                      drafted += r.drafted;
                                    }}) == status::ok);
        CHECK(drafter.position() <= t.size);
        CHECK(d.misuses + m.misuses == 0);
        return tokens(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(reused == 0);
  const toy m(V, 2);
  CHECK(worst_joint_error(law, 4, no_token, [&](const tokens& c) { return probabilities(m, c); }) <
        1e-12);
  CHECK(drafted > 100);
}
TEST_CASE("what ends the model ends the draft: its context, a row of NaN, a wrong vocabulary") {
  no_processor none;
  normal_form<one_hot_row<double>> row;
  double confidence;
  toy small(of_draft.size(), 4, 2, 3, 1);
  retokenised_toy full(small, toy_text());
  string_match in_full(full, of_draft, V, longest_match{&of_target});
  CHECK(in_full.next({tokens{1, 1}, 0}, none, row, confidence) == status::context_full);
  CHECK(in_full.next({tokens{1, 1, 9}, 0}, none, row, confidence) == status::token_out_of_range);
  faulty<double> broken(of_draft.size(), 4);
  broken.nan_at = 0;
  retokenising_source<faulty<double>, longest_match> reads(broken, toy_text());
  string_match_drafter nan(reads, of_draft, V, longest_match{&of_target});
  CHECK(nan.next({tokens{0}, 0}, none, row, confidence) == status::invalid_row);
  toy other(3, 4);
  retokenised_toy wrong(other, toy_text());
  string_match in_wrong(wrong, of_draft, V, longest_match{&of_target});
  CHECK(in_wrong.next({tokens{0}, 0}, none, row, confidence) == status::no_draft);
}
