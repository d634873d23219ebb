// SPDX-License-Identifier: Apache-2.0
// The verifiers as objects, for algorithms that work with any of them; and the lists of them.
#pragma once
#include <span>
#include <string_view>
#include <tuple>

#include <specagg/verify/block.hpp>
#include <specagg/verify/coupled.hpp>
#include <specagg/verify/match.hpp>
#include <specagg/verify/token.hpp>
#include <specagg/verify/tree.hpp>

SPECAGG_BEGIN

// Whether later rounds draw their tokens with the noise of rejected drafts. A verifier says so by a
// member `static constexpr bool is_coupled = true`.
template <class V>
constexpr bool is_coupled = [] {
  if constexpr (requires { V::is_coupled; }) return V::is_coupled;
  else return false;
}();

// A verifier draws the drafts of a round and verifies them. propose() has the arguments and the
// result of draw_draft (verify/verify.hpp), verify() those of verify_token.
// reads_draft_rows(acceptances): whether verify() reads rows of the draft although the policy does
// not, with acceptances wanted or not. A coupled draft is verified by coupled verification alone.
struct token_verifier {
  static constexpr const char* name = "token";
  static constexpr bool reads_draft_rows(bool /*acceptances*/) { return true; }
  template <Row R, Chooser C>
  token_id propose(const R& q, std::uint32_t start, std::size_t j, C&& chooser,
                   std::span<double> scratch) const {
    return specagg::draw_draft(q, start, j, chooser, scratch);
  }
  template <class... A>
  SPECAGG_FUNCTION verdict verify(const draft& drafted, A&&... a) const {
    return specagg::verify_token(drafted, a...);
  }
};
// verify() is verify_block; its scratch is the largest, verify_scratch(V, gamma).
struct block_verifier : token_verifier {
  static constexpr const char* name = "block";
  template <class... A>
  SPECAGG_FUNCTION verdict verify(const draft& drafted, A&&... a) const {
    return specagg::verify_block(drafted, a...);
  }
};
// verify() is verify_match. It reads rows of the draft for acceptances alone.
struct match_verifier : token_verifier {
  static constexpr const char* name = "match";
  static constexpr bool reads_draft_rows(bool acceptances) { return acceptances; }
  template <class... A>
  SPECAGG_FUNCTION verdict verify(const draft& drafted, A&&... a) const {
    return specagg::verify_match(drafted, a...);
  }
};
// propose() draws with the noise by race(), and verify() is verify_coupled; they use no chooser and
// no scratch.
struct coupled_verifier {
  static constexpr const char* name = "coupled";
  static constexpr bool is_coupled = true;
  static constexpr bool reads_draft_rows(bool /*acceptances*/) { return false; }
  coupled_noise noise;
  template <Row R, class C>
  token_id propose(const R& q, std::uint32_t start, std::size_t j, C&&, std::span<double>) const {
    const auto& row = specagg::normalise(q);
    return row.why() == status::ok ? specagg::race(row, noise, std::uint32_t(start + j)) : no_token;
  }
  template <class Q, class P, class Policy, class C>
  SPECAGG_FUNCTION verdict verify(const draft& drafted, Q&& q_rows, P&& p_rows,
                                  const Policy& policy, C&&, std::span<emission> out,
                                  std::span<double>) const {
    return specagg::verify_coupled(coupled_draft{drafted}, q_rows, p_rows, policy, noise, out);
  }
};

// verify_tree as an object: verify(tree, laws, q_rows, p_rows, policy, chooser, work).
struct traversal {
  static constexpr const char* name = "traversal";
  template <class... A>
  SPECAGG_FUNCTION tree_verdict verify(A&&... a) const {
    return specagg::verify_tree(a...);
  }
};
// verify_tree_recursive as an object.
struct recursive_rejection {
  static constexpr const char* name = "recursive";
  template <class... A>
  SPECAGG_FUNCTION tree_verdict verify(A&&... a) const {
    return specagg::verify_tree_recursive(a...);
  }
};

// The verifiers of drafts that are chains, and of trees. C, Python, CUDA, the command line, tests
// and benchmarks take names and numbers from here. A verifier's number is its place in the list.
using all_verifiers = std::tuple<token_verifier, block_verifier, match_verifier, coupled_verifier>;
using all_tree_verifiers = std::tuple<traversal, recursive_rejection>;

// Calls f(verifier) for each of the list. The coupled verifier has the noise of (seed, request).
template <class List = all_verifiers, class F>
constexpr void for_each_verifier(std::uint64_t seed, std::uint64_t request, F&& f) {
  const auto made = [&]<class V>(const V*) {
    if constexpr (is_coupled<V>) return V{coupled_noise(seed, request)};
    else return V{};
  };
  [&]<class... V>(const std::tuple<V...>*) {
    (f(made(static_cast<const V*>(nullptr))), ...);
  }(static_cast<const List*>(nullptr));
}

// The number of the verifier with this name. Of a name that no verifier has: the list's length.
template <class List = all_verifiers>
constexpr std::size_t verifier_number(std::string_view name) {
  std::size_t number = 0;
  bool found = false;
  specagg::for_each_verifier<List>(0, 0, [&](const auto& verifier) {
    found = found || name == verifier.name;
    number += found ? 0 : 1;
  });
  return number;
}
// Calls f(verifier) for the verifier with this number. False: there is none.
template <class List = all_verifiers, class F>
constexpr bool with_verifier(std::size_t number, std::uint64_t seed, std::uint64_t request, F&& f) {
  std::size_t i = 0;
  specagg::for_each_verifier<List>(seed, request, [&](const auto& verifier) {
    if (i++ == number) f(verifier);
  });
  return number < i;
}

SPECAGG_END
