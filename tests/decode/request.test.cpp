// SPDX-License-Identifier: Apache-2.0
// The request of a decoder, and the references in it.
#include <specagg/decode/request.hpp>
#include <specagg/decode/speculative.hpp>
#include <specagg/decode/together.hpp>
#include <specagg/decode/together_text.hpp>

#include <concepts>
#include <type_traits>
#include <vector>

#include "decode/toy_text.hpp"

using namespace specagg;
using T = float;

namespace {

constexpr std::size_t V = 40, most = 64, prompt = 3;
using tokens = std::vector<token_id>;

struct a_text {
  tokens buffer = tokens(prompt + most, 7);
  text written{buffer, prompt};
  tokens appended() const {
    return {buffer.begin() + prompt, buffer.begin() + std::ptrdiff_t(written.size)};
  }
};
template <class... How>
tokens appended_at_most(std::size_t n, speculative_workspace<T>& work, const How&... how) {
  toy_source<T> q(V, 1), p(V, 2);
  a_text t;
  REQUIRE(speculative_decode(q, p, ensemble{0.3}, random_streams(11),
                             {.text = t.written, .most = n, .work = work}, how...) == status::ok);
  return t.appended();
}
template <class... How>
tokens appended(speculative_workspace<T>& work, const How&... how) {
  return appended_at_most(most, work, how...);
}

struct counter {
  std::size_t calls = 0;
  bool operator()(const emission&) { return ++calls > 0; }
};
struct forbids_even {
  std::size_t pushed = 0, applied = 0;
  bool is_none = false;
  void push(token_id) { ++pushed; }
  void pop() { --pushed; }
  void apply(std::span<T> logits) {
    ++applied;
    for (std::size_t v = 0; v < logits.size(); v += 2) logits[v] = -infinity;
  }
  bool none() const { return is_none; }
};
using counting = function_ref<int(int)>;
int twice(int x) { return 2 * x; }

}  // namespace

TEST_CASE("a function_ref calls the object it was made of, and copies nothing") {
  int calls = 0;
  auto f = [&calls](int x) {
    ++calls;
    return x + calls;
  };
  const counting one = f, copy = one;
  CHECK((one(10) == 11 && copy(10) == 12 && calls == 2));
  const counting none;
  CHECK((!none && one));
  // const objects, pointers to functions, moved arguments, results that convert
  const auto constant = [](int x) { return x - 1; };
  int (*const pointer)(int) = twice;
  CHECK((counting(constant)(4) == 3 && counting(pointer)(4) == 8));
  const counting by_name = twice, by_address = &twice, null = static_cast<int (*)(int)>(nullptr);
  CHECK((by_name(3) == 6 && by_address(3) == 6 && !null));
  const lasting_function_ref<int(int)> lasting = twice;
  CHECK(lasting(5) == 10);
  const auto size = [](tokens x) { return x.size(); };
  CHECK(function_ref<double(tokens)>(size)(tokens(5)) == 5);
  std::size_t seen = 0;
  const auto returns_more = [&](int x) { return seen = std::size_t(x); };
  const function_ref<void(int)> ignores(returns_more);
  ignores(9);
  CHECK(seen == 9);
  static_assert(!std::constructible_from<counting, int>);
  static_assert(!std::constructible_from<counting, decltype(size)&>);
}

TEST_CASE("what lasts longer than the call is made of objects with names") {
  using call = function_ref<bool(const emission&)>;
  using lasting = lasting_function_ref<bool(const emission&)>;
  static_assert(std::constructible_from<call, counter> && std::constructible_from<call, counter&>);
  static_assert(std::constructible_from<lasting, counter&>);
  static_assert(std::constructible_from<lasting, const lasting&>);
  static_assert(!std::constructible_from<lasting, counter>);
  static_assert(!std::constructible_from<lasting, const counter>);
  using one = together_text<model_drafter<toy_source<T>>, toy_source<T>, lossless, random_streams>;
  using request = text_request<one::workspace_type>;
  static_assert(std::constructible_from<one, model_drafter<toy_source<T>>&, toy_source<T>&,
                                        const lossless&, random_streams&, const request&>);
  static_assert(!std::constructible_from<one, model_drafter<toy_source<T>>&, toy_source<T>&,
                                         lossless, random_streams&, const request&>);
  static_assert(std::constructible_from<processor_ref<T>, forbids_even&>);
  static_assert(!std::constructible_from<processor_ref<T>, forbids_even>);
  static_assert(!std::constructible_from<processor_ref<T>, const forbids_even&>);
  static_assert(Processor<processor_ref<T>, T> && Processor<const processor_ref<T>, T>);
}

TEST_CASE("a processor_ref passes on each call") {
  std::vector<T> row(4);
  processor_ref<T> nothing;
  CHECK(nothing.none());
  nothing.push(1);
  nothing.pop();
  nothing.apply(row);
  CHECK(row == std::vector<T>(4));
  forbids_even even;
  const processor_ref<T> p = even;
  CHECK(!p.none());
  even.is_none = true;
  CHECK(p.none());
  p.push(1);
  p.push(1);
  p.pop();
  CHECK(even.pushed == 1);
  p.apply(row);
  CHECK((even.applied == 1 && row[0] == -infinity && row[1] == 0));
  no_processor none;
  CHECK(processor_ref<T>(none).none());
}

TEST_CASE("a request's members are used, and those left out have defaults") {
  speculative_workspace<T> work(V, {.gamma = 3});
  const tokens plain = appended(work);
  CHECK(plain == appended(work, token_verifier{}, fixed_draft_length{}));
  CHECK(plain != appended(work, block_verifier{}));
  toy_source<T> q(V, 1), p(V, 2);
  a_text t;
  forbids_even even;
  counter calls;
  std::size_t rounds = 0, emitted = 0;
  const auto after_round = [&](const speculative_result& r, speculative_workspace<T>& w) {
    ++rounds;
    emitted += r.emitted;
    CHECK(&w == &work);
    CHECK(calls.calls <= emitted);  // accept is asked after it
  };
  REQUIRE(speculative_decode(q, p, ensemble{0.3}, random_streams(11),
                             {.text = t.written,
                              .most = most,
                              .work = work,
                              .processor = even,
                              .accept = calls,
                              .after_round = after_round}) == status::ok);
  CHECK((rounds > 0 && emitted == most && calls.calls == most));
  CHECK(even.pushed == most);
  for (const token_id y : t.appended()) CHECK(y % 2 == 1);
}

TEST_CASE("a together_text keeps a verifier and a length without a name") {
  speculative_workspace<T> work(V, {.gamma = 3});
  toy_source<T> q(V, 1), p(V, 2);
  model_drafter drafter(q, std::span(work.draft_logits));
  a_text t;
  random_streams random(11);
  const ensemble policy{0.3};
  counter calls;
  const block_verifier block;
  together_text plain(drafter, p, policy, random,
                      {.text = t.written, .most = 20, .work = work, .accept = calls});
  together_text named(drafter, p, policy, random,
                      {.text = t.written, .most = 20, .work = work, .accept = calls}, block);
  together_text kept(drafter, p, policy, random,
                     {.text = t.written, .most = 20, .work = work, .accept = calls},
                     block_verifier{}, fixed_draft_length{});
  static_assert(std::same_as<decltype(plain.verifier), token_verifier>);
  static_assert(std::same_as<decltype(named.verifier), const block_verifier&>);
  static_assert(std::same_as<decltype(kept.verifier), block_verifier>);
  static_assert(std::same_as<decltype(kept.length), fixed_draft_length>);
  together_workspace<decltype(kept)> shared;
  const std::vector one = {&kept};
  while (together_round(one, shared) > 0) {
  }
  CHECK(calls.calls == 20);
  CHECK(t.appended() == appended_at_most(20, work, block));
}

TEST_CASE("the options of a workspace may be changed between texts") {
  speculative_workspace<T> work(V, {.gamma = 3});
  const tokens before = appended(work);
  work.options = {.gamma = 2, .sample = {.temperature = 0.5}};
  speculative_workspace<T> made(V, work.options);
  const tokens after = appended(work);
  CHECK(after == appended(made));
  CHECK(after != before);
  work.options.gamma = 4;
  toy_source<T> q(V, 1), p(V, 2);
  a_text t;
  CHECK(speculative_round(q, p, lossless{}, random_streams(1),
                          {.text = t.written, .most = most, .work = work})
            .why == status::invalid_parameter);
}
