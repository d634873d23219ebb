// SPDX-License-Identifier: Apache-2.0
// Another policy at each position: parameters that change along the text, as the ensemble weights
// of DIVERSED (arXiv:2604.07622), or a policy that depends on the tokens before.
#pragma once
#include <specagg/policy/policy.hpp>

SPECAGG_BEGIN

// A list with a policy for each position, as policies_of() makes it.
template <class P>
concept PolicyList = requires { P::of_each_position; };

// The list that policies_of() returns. It declares what the policies declare.
template <class Make>
struct made_policies {
  Make make;
  using policy = std::remove_cvref_t<std::invoke_result_t<const Make&, std::size_t>>;
  static constexpr bool of_each_position = true;
  static constexpr bool reads_draft = specagg::reads_draft<policy>;
  static constexpr bool reads_confidence = specagg::reads_confidence<policy>;
  static constexpr bool reads_ids = specagg::reads_ids<policy>;
  static constexpr std::size_t models = models_of<policy>;
  SPECAGG_FUNCTION policy operator[](std::size_t j) const { return make(j); }
};
// make(j) is the policy of the token after j drafted tokens, or after node j of a tree; all have
// one type, which may be any_of. It may depend on the text and on the j drafted tokens (the path to
// the node), not on later ones, nor on random numbers. Then each token has the law that its own
// policy gives there, with every verifier, and for trees: the proofs let pi be another function
// after each text. make may be asked for j several times. A policy with parameters out of range
// ends the step at its position with invalid_parameter. Verifiers take the list where they take a
// policy; decoders do not, because a position has no number of its own there, and CUDA kernels do
// not.
template <class Make>
SPECAGG_FUNCTION made_policies<Make> policies_of(Make make) {
  return {make};
}

SPECAGG_END
