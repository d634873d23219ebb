// SPDX-License-Identifier: Apache-2.0
#include <specagg/draft/retokenised.hpp>

#include <random>

#include "draft/toy_vocabularies.hpp"

using namespace specagg;

namespace {

tokens own(const retokenised_text<longest_match>& t) {
  return {t.own_tokens().begin(), t.own_tokens().end()};
}
std::string spelled(std::span<const token_id> all, const texts& of) {
  std::string bytes;
  for (const token_id t : all)
    bytes += of[std::size_t(t)].is == kind::special ? "|" : of[std::size_t(t)].bytes;
  return bytes;
}

}  // namespace

TEST_CASE(
    "own tokens are merged across the boundary of new bytes, and pop gives back those of before") {
  auto t = toy_text();
  REQUIRE(t.push(0) == status::ok);
  CHECK(own(t) == tokens{2});
  REQUIRE(t.push(0) == status::ok);
  CHECK(own(t) == tokens{3});  // "aa" is one token now
  REQUIRE(t.push(2) == status::ok);
  CHECK(own(t) == tokens{3, 2, 0});
  REQUIRE(t.push(0) == status::ok);
  CHECK(own(t) == tokens{3, 2, 5});  // b + a
  t.pop();
  CHECK(own(t) == tokens{3, 2, 0});
  t.pop();
  t.pop();
  CHECK(own(t) == tokens{2});
  t.pop();
  CHECK((own(t).empty() && t.size() == 0));
}
TEST_CASE("after any pushes and pops the own tokens spell the text, and depend on the text alone") {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return std::size_t(random() % n); };
  for (int run = 0; run < 100; ++run) {
    auto t = toy_text();
    tokens text;
    for (int step = 0; step < 200; ++step) {
      if (below(3) == 0)
        for (std::size_t n = below(text.size() + 1) / (1 + below(4)); n > 0; --n) {
          t.pop();
          text.pop_back();
        }
      for (std::size_t n = below(5); n > 0; --n) {
        text.push_back(token_id(below(below(5) == 0 ? 4 : 3)));
        REQUIRE(t.push(text.back()) == status::ok);
      }
      REQUIRE(t.size() == text.size());
      REQUIRE(spelled(t.own_tokens(), of_draft) == spelled(text, of_target));
      auto fresh = toy_text();
      for (const token_id x : text) REQUIRE(fresh.push(x) == status::ok);
      REQUIRE(own(fresh) == own(t));
      if (text.size() <= 4) REQUIRE(own(t) == encoded_at_once(text));
    }
  }
}
TEST_CASE(
    "special tokens become those of their name, are not merged across, and others are left out") {
  const texts theirs{{"a"}, {"b"}, {"<end>", kind::special}, {"<other>", kind::special}, {""}};
  const vocabulary_map map = map_of_equal_tokens(of_draft, theirs);
  const tokens begin{1};
  retokenised_text<longest_match> t(theirs, of_draft, map, {&of_draft}, begin);
  CHECK(own(t) == tokens{1});
  for (const token_id x : {2, 0, 3, 0, 4, 0, 2, 0, 2, 2}) REQUIRE(t.push(x) == status::ok);
  // The first <end> is there already; "a", "a", "a" are neighbours.
  CHECK(own(t) == tokens{1, 3, 2, 1, 2, 1, 1});
  while (t.size() > 0) t.pop();
  CHECK(own(t) == tokens{1});
  // A map that sends text to special tokens does not bring text into the context.
  vocabulary_map wrong;
  REQUIRE(make_vocabulary_map(tokens{0, 1, 2}, 5, wrong) == status::ok);
  retokenised_text<longest_match> u(theirs, of_draft, wrong, {&of_draft});
  REQUIRE(u.push(2) == status::ok);
  CHECK(own(u).empty());
}
TEST_CASE("a character that comes in two tokens is encoded when it is complete") {
  const texts theirs{{"\xc3"}, {"\xa9"}, {"x"}}, mine{{"\xc3"}, {"\xa9"}, {"\xc3\xa9"}, {"x"}};
  const vocabulary_map map = map_of_equal_tokens(mine, theirs);
  retokenised_text<longest_match> t(theirs, mine, map, {&mine});
  REQUIRE(t.push(2) == status::ok);
  REQUIRE(t.push(0) == status::ok);
  CHECK(own(t) == tokens{3, 0});
  REQUIRE(t.push(1) == status::ok);
  CHECK(own(t) == tokens{3, 2});
}
TEST_CASE("ids out of range are refused, and nothing has changed") {
  auto t = toy_text();
  REQUIRE(t.push(0) == status::ok);
  CHECK(t.push(4) == status::token_out_of_range);
  CHECK(t.push(-1) == status::token_out_of_range);
  CHECK((own(t) == tokens{2} && t.size() == 1));
}
TEST_CASE(
    "a token that cannot be written in own tokens is left out, also where an encoder gives other "
    "bytes") {
  const texts theirs{{"a"}, {"x"}, {"b"}};
  const vocabulary_map map = map_of_equal_tokens(of_draft, theirs);
  retokenised_text<longest_match> t(theirs, of_draft, map, {&of_draft});
  for (const token_id x : {0, 1, 2, 1, 0}) REQUIRE(t.push(x) == status::ok);
  CHECK((own(t) == tokens{2, 5} && t.size() == 5));
  t.pop();
  t.pop();
  CHECK(own(t) == tokens{2, 0});
  // 1 is special
  for (const tokens& given : {tokens{}, {2}, {2, 0, 0}, {0, 2}, {2, 0, 1}, {2, 99}, {-1}}) {
    const auto encode = [&](std::string_view) { return given; };
    retokenised_text<decltype(encode)> u(of_target, of_draft, toy_map, encode);
    CHECK(u.push(2) == status::ok);  // "ab"
    CHECK((u.size() == 1 && u.own_tokens().empty()));
    u.pop();
    CHECK(u.size() == 0);
  }
}
TEST_CASE(
    "a retokenising source gives the rows of its model after the own tokens, after any rollback") {
  std::mt19937 random(2);
  const auto below = [&](std::size_t n) { return std::size_t(random() % n); };
  toy model(of_draft.size(), 3, 3);
  retokenised_toy source(model, toy_text());
  static_assert(LogitSource<retokenised_toy>);
  const std::size_t v = source.vocab_size();
  REQUIRE(v == of_draft.size());
  tokens text;
  std::size_t fed = 0;
  for (int step = 0; step < 2000; ++step) {
    if (below(3) == 0) {
      text.resize(text.size() - below(std::min<std::size_t>(text.size(), 4) + 1));
      REQUIRE(source.rollback(text.size()) == status::ok);
    }
    // behind its back
    if (below(50) == 0) REQUIRE(model.rollback(model.position() / 2) == status::ok);
    tokens more(1 + below(4));
    for (token_id& t : more) t = token_id(below(4));
    const std::size_t rows = below(more.size() + 1);
    std::vector<double> logits(rows * v), due(v);
    const std::size_t calls = model.calls;
    REQUIRE(source.extend(more, logits) == status::ok);
    fed += model.calls - calls;
    text.insert(text.end(), more.begin(), more.end());
    REQUIRE(source.position() == text.size());
    for (std::size_t j = 0; j < rows; ++j) {
      auto fresh = toy_text();
      for (std::size_t i = 0; i < text.size() - rows + j + 1; ++i)
        REQUIRE(fresh.push(text[i]) == status::ok);
      model.row(fresh.own_tokens(), due);
      REQUIRE(std::equal(due.begin(), due.end(), logits.begin() + std::ptrdiff_t(j * v)));
    }
    REQUIRE(model.position() == source.own_tokens().size());
    if (text.size() <= 60) continue;
    text.clear();
    REQUIRE(source.rollback(0) == status::ok);
  }
  CHECK(model.misuses == 0);
  CHECK(fed > 2000);
}
TEST_CASE("a failed call of a retokenising source appends nothing, and the next one goes on") {
  toy model(of_draft.size(), 3, 3, 3, 5);
  retokenised_toy source(model, toy_text());
  std::vector<double> logits(of_draft.size()), due(of_draft.size());
  const tokens good{0, 1, 2}, bad{0, 9};
  CHECK(source.extend({}, logits) == status::invalid_parameter);
  REQUIRE(source.extend(good, logits) == status::ok);
  CHECK(source.extend(bad, logits) == status::token_out_of_range);
  CHECK(source.read(bad) == status::token_out_of_range);
  CHECK(source.position() == 3);
  CHECK(source.extend(tokens{1, 1, 1, 1, 1, 1}, logits) == status::context_full);
  CHECK(source.position() == 3);
  REQUIRE(source.extend(tokens{0}, logits) == status::ok);
  model.row(encoded_at_once({0, 1, 2, 0}), due);
  CHECK(logits == due);
  // A text without own tokens has no row.
  const texts theirs{{"<s>", kind::special}, {"a"}};
  const vocabulary_map map = map_of_equal_tokens(of_draft, theirs);
  toy second(of_draft.size(), 3);
  retokenised_toy empty(second, {theirs, of_draft, map, longest_match{&of_draft}});
  CHECK(empty.extend(tokens{0}, logits) == status::no_draft);
  CHECK(empty.extend(tokens{0}, {}) == status::ok);
  CHECK(empty.extend(tokens{1}, logits) == status::ok);
}

namespace {

// A model whose state cannot be rolled back, but to the beginning.
struct forgetful : toy {
  using toy::toy;
  bool refuses_all = false;
  status rollback(std::size_t n) {
    return n > 0 || refuses_all ? status::rollback_refused : toy::rollback(n);
  }
};

}  // namespace

namespace {

// Counts the tokens that it reads.
struct counted : toy {
  using toy::toy;
  std::size_t read = 0;
  status extend(std::span<const token_id> more, std::span<double> logits) {
    read += more.size();
    return toy::extend(more, logits);
  }
};

}  // namespace

TEST_CASE(
    "a source goes on with a text that its model has read in another's, and reads only what is "
    "new") {
  counted model(of_draft.size(), 3, 3);
  retokenising_source<counted, longest_match> source(model, toy_text());
  REQUIRE(source.extend(tokens{0, 1, 0, 2}, {}) == status::ok);
  counted copy = model;
  decltype(source) other(copy, toy_text());
  other.resume(source.save());
  CHECK(other.position() == 4);
  std::vector<double> logits(of_draft.size()), due(of_draft.size());
  copy.misuses = copy.read = 0;
  REQUIRE(other.extend(tokens{1}, logits) == status::ok);
  model.row(encoded_at_once({0, 1, 0, 2, 1}), due);
  CHECK(logits == due);
  CHECK(copy.position() == encoded_at_once({0, 1, 0, 2, 1}).size());
  CHECK((copy.misuses == 0 && copy.read == 1));
  REQUIRE(other.rollback(2) == status::ok);
  REQUIRE(other.extend(tokens{2}, logits) == status::ok);
  model.row(encoded_at_once({0, 1, 2}), due);
  CHECK(logits == due);
  // Also a text that the model has not read.
  REQUIRE(source.rollback(0) == status::ok);
  REQUIRE(source.read(tokens{1, 1, 1}) == status::ok);
  counted third = model;
  decltype(source) last(third, toy_text());
  last.resume(source.save());
  REQUIRE(last.extend(tokens{0}, logits) == status::ok);
  model.row(encoded_at_once({1, 1, 1, 0}), due);
  CHECK(logits == due);
}
TEST_CASE(
    "a model that cannot be rolled back reads the text again. If it refuses that too, its status "
    "is reported") {
  forgetful model(of_draft.size(), 3, 3);
  retokenising_source<forgetful, longest_match> source(model, toy_text());
  std::vector<double> logits(of_draft.size()), due(of_draft.size());
  REQUIRE(source.extend(tokens{0, 1, 2}, logits) == status::ok);
  REQUIRE(source.rollback(1) == status::ok);
  REQUIRE(source.extend(tokens{0}, logits) == status::ok);
  model.row(encoded_at_once({0, 0}), due);
  CHECK(logits == due);
  model.refuses_all = true;
  REQUIRE(source.rollback(0) == status::ok);
  CHECK(source.extend(tokens{1}, logits) == status::rollback_refused);
  CHECK(model.misuses == 0);
}
