// SPDX-License-Identifier: Apache-2.0
// A request to verify a draft, or a tree of drafts, as one object; and many of them verified in one
// call, on the threads of the caller's pool or on this one.
#pragma once
#include <span>
#include <type_traits>

#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// One request: the arguments of verify_token and of the other verifiers of chains. In a batch
// drafts may differ in length (ragged), rows in every parameter, and policies if Policy is any_of
// (policy/any_of.hpp). A coupled verifier has its noise instead and does not use `chooser`.
template <class QRows, class PRows, class Policy, class C>
struct verification {
  using verdict_type = verdict;
  using default_verifier = token_verifier;
  draft drafted;
  QRows q_rows;  // lists of rows (rows/rows.hpp), by value: spans, rows_of(), rows_of_logits()
  PRows p_rows;
  Policy policy;
  C chooser;
  std::span<emission> out;  // one more than drafted
};
template <class Q, class P, class Policy, class C>
verification(draft, Q, P, Policy, C, std::span<emission>) -> verification<Q, P, Policy, C>;

// One request with a tree of drafts: the arguments of verify_tree. It has memory of its own, except
// for the scratch, which verify() is given.
template <class Laws, class QRows, class PRows, class Policy, class C, class T>
struct tree_verification {
  using value_type = T;  // of the rows
  using verdict_type = tree_verdict;
  using default_verifier = traversal;
  draft_tree tree;
  Laws laws;
  QRows q_rows;
  PRows p_rows;
  Policy policy;
  C chooser;
  tree_memory<T> memory;
};
template <class L, class Q, class P, class Policy, class C, class T>
tree_verification(draft_tree, L, Q, P, Policy, C, tree_memory<T>)
    -> tree_verification<L, Q, P, Policy, C, T>;

// Verifies one request and returns its verdict. It writes the request's `out` and acceptances, and
// changes a chooser that has a state.
//   verifier   token_verifier, block_verifier, match_verifier, coupled_verifier
//   scratch    verify_scratch(V, gamma) doubles, gamma the draft's length
template <class Request, class Verifier>
  requires requires(Request& r) { verification{r}; }
verdict verify(Request&& request, const Verifier& verifier, std::span<double> scratch) {
  return verifier.verify(request.drafted, request.q_rows, request.p_rows, request.policy,
                         request.chooser, request.out, scratch);
}
// Verifies one request with a tree. verifier: traversal, recursive_rejection; scratch:
// verify_scratch(V) doubles.
template <class Request, class Verifier>
  requires requires(Request& r) { tree_verification{r}; }
tree_verdict verify(Request&& request, const Verifier& verifier, std::span<double> scratch) {
  auto memory = request.memory;
  memory.scratch = scratch;
  return verifier.verify(request.tree, request.laws, request.q_rows, request.p_rows, request.policy,
                         request.chooser, memory);
}

// A pool is anything with for_ranges(count, grain, body), which calls body(begin, end) for ranges
// that cover [0, count) once, from any thread, and returns when all are done; if body throws, it
// waits for the calls that have begun, and the first exception goes to its caller. this_thread has
// no threads of its own; thread_pool (thread_pool.hpp) has.
struct this_thread {
  template <class Body>
  void for_ranges(std::size_t count, std::size_t /*grain*/, Body&& body) {
    if (count > 0) body(std::size_t{0}, count);
  }
};

// Contract: specagg.hpp.
template <class Request,
          class One = std::remove_cvref_t<std::invoke_result_t<const Request&, std::size_t>>,
          class Verifier = typename One::default_verifier, class Pool = this_thread>
void verify_batch(const Request& request, std::span<typename One::verdict_type> verdicts,
                  std::span<double> scratch, const Verifier& verifier = {}, Pool&& pool = {}) {
  const std::size_t part = verdicts.empty() ? 0 : scratch.size() / verdicts.size();
  pool.for_ranges(verdicts.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::span<double> own = scratch.subspan(i * part, part);
      if constexpr (requires { verifier(i); }) verdicts[i] = verify(request(i), verifier(i), own);
      else verdicts[i] = verify(request(i), verifier, own);
    }
  });
}

SPECAGG_END
