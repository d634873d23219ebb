// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/first_of.hpp>

#include <vector>

#include <specagg/draft/lookup.hpp>
#include <specagg/draft/model.hpp>

#include "decode/toy_text.hpp"

using namespace specagg;

namespace {
using tokens = std::vector<token_id>;
using source = toy_source<double>;
using lookup = lookup_drafter<double>;
using model_draft = model_drafter<source>;
using lookup_then_model = first_of<lookup, model_draft>;
static_assert(Drafter<lookup_then_model>);
static_assert(
    std::is_same_v<lookup_then_model::row_type,
                   any_row<normal_form<one_hot_row<double>>, normal_form<processed_row<double>>>>);
static_assert(std::is_same_v<first_of<lookup, lookup>::row_type, normal_form<one_hot_row<double>>>);
static_assert(
    std::is_same_v<first_of<lookup, lookup_then_model>::row_type, lookup_then_model::row_type>);
static_assert(first_of<lookup_then_model, lookup>::drafters == 3);

// Asks the second drafter alone in every other round.
struct moody : fixed_draft_length {
  std::size_t round = 0;
  void begin() { ++round; }
  bool another(std::size_t drafter) const { return drafter == 1 || round % 2 == 0; }
};
using lengths = any_length<moody, fixed_draft_length, plan::draft_length_controller>;
const any_verifier block = block_verifier();
}  // namespace

TEST_CASE(
    "texts drafted by a lookup, and by a model where it has nothing, have the target's joint law") {
  suffix_automaton documents;
  for (const token_id x : {0, 1, 2, 2, 0, 1}) documents.push(x);
  std::size_t of_lookup = 0, of_model = 0, reused = 0;
  const auto law = exact_law(
      [&](exhaustive_chooser& tree) {
        either chooser(tree);
        source d(vocabulary, 1), m(vocabulary, 2);
        std::vector<double> logits(4 * vocabulary);
        lookup first(vocabulary, 16, &documents);
        model_draft second(d, logits);
        lookup_then_model drafter(first, second);
        std::vector<token_id> buffer(16);
        text t{buffer, 1};
        drafting_workspace<double, lookup_then_model::row_type> work(vocabulary, {.gamma = 3});
        lengths length = moody();
        REQUIRE(speculative_decode(drafter, m, lossless{}, chooser,
                                   {.text = t,
                                    .most = 4,
                                    .work = work,
                                    .after_round =
                                        [&](const auto& r, const auto& w) {
                                          for (std::size_t j = 0; j < r.drafted; ++j)
                                            (w.drafters[j] == 0 ? of_lookup : of_model) += 1;
                                        }},
                                   block, length) == status::ok);
        CHECK(drafter.position() <= t.size);
        CHECK(d.misuses + m.misuses == 0);
        return tokens(buffer.begin() + 1, buffer.begin() + std::ptrdiff_t(t.size));
      },
      &reused);
  CHECK(reused == 0);
  const source m(vocabulary, 2);
  CHECK(worst_joint_error(law, 4, no_token, [&](const tokens& c) { return probabilities(m, c); }) <
        1e-12);
  CHECK(of_lookup > 100);
  CHECK(of_model > 100);
}
TEST_CASE(
    "a model is not called for a token that a lookup proposes, and reads what it missed when it is "
    "asked") {
  source d(20, 5, 1), m(20, 5, 1);
  std::vector<double> logits(5 * 20);
  lookup first(20, 300);
  model_draft second(d, logits, {0});
  lookup_then_model drafter(first, second);
  std::vector<token_id> buffer(300);
  text t{buffer, 1};
  drafting_workspace<double, lookup_then_model::row_type> work(20, {.sample = {0}});
  either chooser = random_streams(1);
  lengths length = fixed_draft_length();
  std::size_t drafted = 0, accepted = 0, of_model = 0;
  REQUIRE(speculative_decode(drafter, m, lossless{}, chooser,
                             {.text = t,
                              .most = 200,
                              .work = work,
                              .after_round =
                                  [&](const auto& r, const auto& w) {
                                    drafted += r.drafted;
                                    accepted += r.accepted;
                                    for (std::size_t j = 0; j < r.drafted; ++j)
                                      of_model += w.drafters[j] == 1;
                                  }},
                             block, length) == status::ok);
  CHECK(accepted == drafted);  // the draft is the target
  CHECK(of_model > 0);
  CHECK(d.calls == of_model);
  CHECK(of_model < drafted / 2);
  CHECK(d.misuses + m.misuses == 0);
}
TEST_CASE("both drafters go back, whichever is ahead, and the other stays where it is") {
  using sizes = std::vector<std::size_t>;
  const auto positions = [](std::size_t of_first, std::size_t of_second, std::size_t n) {
    source a(20, 1), b(20, 2);
    std::vector<double> logits(20);
    model_draft first(a, logits), second(b, logits);
    first_of both(first, second);
    const tokens text(9);
    REQUIRE(a.extend(std::span(text).first(of_first), {}) == status::ok);
    REQUIRE(b.extend(std::span(text).first(of_second), {}) == status::ok);
    CHECK(both.position() == std::max(of_first, of_second));
    CHECK(rollback(n, both) == status::ok);
    CHECK(a.misuses + b.misuses == 0);
    return sizes{a.position(), b.position()};
  };
  CHECK(positions(9, 2, 5) == sizes{5, 2});
  CHECK(positions(2, 9, 5) == sizes{2, 5});
  CHECK(positions(9, 8, 5) == sizes{5, 5});
  CHECK(positions(4, 3, 5) == sizes{4, 3});
}
TEST_CASE("a row that was not worth a token will do for the bonus where a later drafter has none") {
  source d(20, 5, 1), m(20, 5, 1, 3);
  std::vector<double> logits(5 * 20);
  lookup last(20, 300);
  model_draft first(d, logits);
  first_of drafter(first, last);
  std::vector<token_id> buffer{1, 2};
  buffer.resize(120);
  text t{buffer, 2};
  drafting_workspace<double, decltype(drafter)::row_type> work(20, {.gamma = 4});
  either chooser = random_streams(1);
  // A row of the model costs more than it is worth.
  plan::draft_length_controller length({1, 0.3, 0.2, 0, {0.0}}, 2);
  CHECK(speculative_decode(drafter, m, ensemble{0.4}, chooser,
                           {.text = t, .most = 100, .work = work}, token_verifier{},
                           length) == status::ok);
  CHECK(t.size == 102);
}
TEST_CASE(
    "where both have nothing the last one's status is reported. Different vocabularies are "
    "refused") {
  source d(20, 5, 1, 3, 4), other(21, 5, 1), m(20, 5, 1);
  std::vector<double> logits(5 * 21);
  lookup first(20, 300);
  model_draft second(d, logits), wrong(other, logits);
  lookup_then_model drafter(first, second), mismatched(first, wrong);
  std::vector<token_id> buffer{1, 2, 3, 4, 5, 6};
  buffer.resize(20);
  text t{buffer, 6};
  drafting_workspace<double, lookup_then_model::row_type> work(20, {});
  either chooser = random_streams(1);
  lengths length = fixed_draft_length();
  const auto r = speculative_round(drafter, m, lossless{}, chooser,
                                   {.text = t, .most = 5, .work = work}, block, length);
  CHECK((r.why == status::ok && r.drafted == 0 && r.draft_why == status::context_full));
  CHECK(speculative_round(drafter, m, ensemble{0.3}, chooser, {.text = t, .most = 5, .work = work})
            .why == status::context_full);
  CHECK(speculative_round(mismatched, m, lossless{}, chooser, {.text = t, .most = 5, .work = work},
                          block, length)
            .why == status::vocabulary_mismatch);
}
