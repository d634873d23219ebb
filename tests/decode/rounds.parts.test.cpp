// SPDX-License-Identifier: Apache-2.0
#include <specagg/decode/rounds.hpp>

#include <array>
#include <stdexcept>
#include <string>

#include "support/catch.hpp"

using namespace specagg;

namespace {

// A round that says which of its parts ran.
struct scripted_round {
  struct outcome {
    int drafted = 0;
    status why = status::ok, draft_why = status::ok;
  } made = {};
  status begins = status::ok, drafts = status::ok, scores = status::ok, verifies = status::ok;
  char throws_in = 0;
  std::string ran = {};

  void run(char part) {
    ran += part;
    if (part == throws_in) throw std::runtime_error("thrown");
  }
  const outcome& result() const { return made; }
  bool runs() const { return made.why == status::ok; }
  void begin() { made.why = begins; }
  status draft() {
    run('d');
    made.drafted = 3;
    made.draft_why = drafts;
    return drafts == status::stopped ? drafts : status::ok;
  }
  status score() {
    run('s');
    return scores;
  }
  void verify() { run('v'); }
  void commit() {
    run('c');
    made.why = verifies;
  }
  void roll_back() { ran += 'r'; }
  void fail(status why) {
    roll_back();
    made = {.why = why, .draft_why = made.draft_why};
  }
};

}  // namespace

TEST_CASE("a round drafts, scores, verifies and commits. A draft that ended early is verified") {
  scripted_round whole{.drafts = status::no_draft, .verifies = status::undefined_target};
  const auto result = detail::run_round(whole);
  CHECK(whole.ran == "dsvc");
  CHECK((result.why == status::undefined_target && result.draft_why == status::no_draft));
  CHECK(result.drafted == 3);
}
TEST_CASE("a round that cannot begin does nothing. One that fails is rolled back, once") {
  scripted_round refused{.begins = status::context_full};
  CHECK(detail::run_round(refused).why == status::context_full);
  CHECK(refused.ran.empty());

  scripted_round stopped{.drafts = status::stopped};
  CHECK(detail::run_round(stopped).why == status::stopped);
  CHECK(stopped.ran == "dr");

  scripted_round failed{.drafts = status::no_draft, .scores = status::context_full};
  const auto result = detail::run_round(failed);
  CHECK(failed.ran == "dsr");
  CHECK((result.why == status::context_full && result.draft_why == status::no_draft));
  CHECK(result.drafted == 0);
}
TEST_CASE(
    "of rounds that run together each fails alone, and all are rolled back where one throws") {
  std::array<scripted_round, 3> rounds;
  rounds[1].scores = status::context_full;
  detail::run_rounds(std::span<scripted_round>(rounds), detail::in_turn());
  CHECK((rounds[0].ran == "dsvc" && rounds[1].ran == "dsr" && rounds[2].ran == "dsvc"));
  std::array<scripted_round, 2> thrown;
  thrown[1].throws_in = 's';
  CHECK_THROWS_AS(detail::run_rounds(std::span<scripted_round>(thrown), detail::in_turn()),
                  std::runtime_error);
  CHECK((thrown[0].ran == "dsr" && thrown[1].ran == "dsr"));
}
TEST_CASE("a round that throws is rolled back, whichever part it was in") {
  for (const char part : {'d', 's', 'v', 'c'}) {
    scripted_round thrown{.throws_in = part};
    CHECK_THROWS_AS(detail::run_round(thrown), std::runtime_error);
    CHECK(thrown.ran.back() == 'r');
    CHECK(thrown.ran[thrown.ran.size() - 2] == part);
  }
}
TEST_CASE("sampled rows are of their own logits, and are normalised when they are looked at") {
  std::array<float, 6> logits{0, 1, 2, 5, 0, 0};
  using row = normal_form<processed_row<float>>;
  std::array<row, 2> memory;
  const auto rows =
      detail::sampled_rows<lossless>(std::span<float>(logits), sampling{0}, std::span<row>(memory));
  REQUIRE(rows.size() == 2);
  CHECK(rows[1][0] == 1.f);
  CHECK(rows[0][2] == 1.f);
  CHECK(&rows[0] == memory.data());
}
