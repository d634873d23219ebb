// SPDX-License-Identifier: Apache-2.0
// A text of speculative decoding between two rounds: alone (speculative.hpp) or among others
// (together.hpp).
#pragma once
#include <type_traits>
#include <utility>

#include <specagg/decode/length.hpp>
#include <specagg/decode/request.hpp>
#include <specagg/decode/workspace.hpp>
#include <specagg/verify/verifiers.hpp>

SPECAGG_BEGIN

// The arguments of speculative_decode for one text, and how far the text is. D is a drafter; for a
// draft model that is model_drafter. Drafter, models, workspace and processor belong to this text
// alone. All arguments must outlive it, apart from a verifier and a length without a name, which it
// keeps. All texts that share a round have one type; policies may differ where Policy is any_of.
//   together_text one(drafter, target, policy, random, {.text = text, .most = 64, .work = work});
// V, L: the verifier and the length; X& where the object has a name.
template <class D, LogitSource M, class Policy, Chooser C, class V = token_verifier,
          class L = fixed_draft_length>
struct together_text {
  using model_type = M;
  using drafter_type = D;
  using policy_type = Policy;
  using workspace_type = drafting_workspace<typename M::value_type, typename D::row_type>;
  text& written;
  std::size_t most;  // tokens that may still be appended
  D& drafter;
  M& target_model;
  const Policy& policy;
  C& chooser;
  workspace_type& work;
  processor_ref<typename M::value_type> processor;
  lasting_function_ref<bool(const emission&)> accept;
  V verifier;
  L length;
  // After a round: its result; whether the text has ended; and with which status.
  speculative_result result = {};
  bool ended = false;
  status why = status::ok;

  together_text(D& draft, M& target, const Policy& law, C& random,
                const text_request<workspace_type>& how, std::type_identity_t<V> verify_by = V(),
                std::type_identity_t<L> length_by = L())
      : written(how.text),
        most(how.most),
        drafter(draft),
        target_model(target),
        policy(law),
        chooser(random),
        work(how.work),
        processor(how.processor),
        accept(how.accept),
        verifier(std::forward<V>(verify_by)),
        length(std::forward<L>(length_by)) {}
  together_text(D&, M&, const Policy&&, C&, const text_request<workspace_type>&,
                std::type_identity_t<V> = V(), std::type_identity_t<L> = L()) = delete;
  // Whether there is another round.
  bool goes_on() {
    ended = ended || most == 0;
    return !ended;
  }
};
template <class D, class M, class Policy, class C>
together_text(D&, M&, const Policy&, C&,
              const text_request<drafting_workspace<typename M::value_type, typename D::row_type>>&)
    -> together_text<D, M, Policy, C>;
template <class D, class M, class Policy, class C, class V>
together_text(D&, M&, const Policy&, C&,
              const text_request<drafting_workspace<typename M::value_type, typename D::row_type>>&,
              V&&) -> together_text<D, M, Policy, C, V>;
template <class D, class M, class Policy, class C, class V, class L>
together_text(D&, M&, const Policy&, C&,
              const text_request<drafting_workspace<typename M::value_type, typename D::row_type>>&,
              V&&, L&&) -> together_text<D, M, Policy, C, V, L>;

SPECAGG_END
