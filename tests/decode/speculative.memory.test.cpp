// SPDX-License-Identifier: Apache-2.0
// What docs/decoders.md says about the workspaces of decoders. Under AddressSanitizer these tests
// also show that a workspace that was moved views its own memory.
#include <specagg/decode/speculative.hpp>

#include <memory>
#include <utility>
#include <vector>

#include "decode/toy_text.hpp"

using namespace specagg;

namespace {

constexpr std::size_t V = 40, most = 24;

// The text that `decode(text, draft, target, chooser)` appends to a token.
template <class Decode>
std::vector<token_id> text_of(std::uint64_t request, token_id first, Decode&& decode) {
  toy_source<float> draft(V, 1, 2, 1), target(V, 2, 2, 1);
  std::vector<token_id> buffer(64, first);
  text t{buffer, 1};
  random_streams chooser(1, request);
  REQUIRE(decode(t, draft, target, chooser) == status::ok);
  buffer.resize(t.size);
  return buffer;
}

// Text 2 after text 1 in one workspace, which is moved in between, is text 2 in a new one.
template <class Workspace, class Decode>
void check_turns(Workspace&& fresh, Decode&& decode) {
  const auto with = [&](auto& work) {
    return [&](text& t, auto& draft, auto& target, auto& chooser) {
      return decode(t, draft, target, chooser, work);
    };
  };
  auto alone = fresh();
  const auto expected = text_of(2, 9, with(alone));
  auto used = std::make_unique<decltype(fresh())>(fresh());
  CHECK(text_of(1, 5, with(*used)) != expected);
  auto moved = std::move(*used);
  used.reset();
  CHECK(text_of(2, 9, with(moved)) == expected);
}

}  // namespace

TEST_CASE("a workspace of speculative decoding keeps nothing between texts, and may be moved") {
  const decode_options options{.gamma = 3, .sample = {.temperature = 0.8, .top_k = 30}};
  for_each_verifier_compiled_once(7, 0, [&](const auto& verifier) {
    check_turns([&] { return speculative_workspace<float>(V, options); },
                [&](text& t, auto& draft, auto& target, auto& chooser, auto& work) {
                  return speculative_decode(draft, target, token_v3{0.3}, chooser,
                                            {.text = t, .most = most, .work = work}, verifier);
                });
  });
}

TEST_CASE("a workspace of tree decoding keeps nothing between texts, and may be moved") {
  const std::vector<std::size_t> shape{2, 2, 1};
  const tree_options options{.shape = shape, .propose = proposal::sampled};
  check_turns([&] { return tree_workspace<float>(V, options); },
              [&](text& t, auto& draft, auto& target, auto& chooser, auto& work) {
                return tree_decode(draft, target, lossless{}, chooser,
                                   {.text = t, .most = most, .work = work});
              });
}
