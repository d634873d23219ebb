// SPDX-License-Identifier: Apache-2.0
// Speculative decoding with a drafter and a target model: draft up to gamma tokens, score them in
// one call, verify, commit, roll both back.
// Proved: proofs/decode.v, `speculative_decode_has_law`, `block_decode_has_law`.
#pragma once
#include <span>

#include <specagg/decode/detail/misfit.hpp>
#include <specagg/decode/detail/speculation.hpp>
#include <specagg/draft/model.hpp>

SPECAGG_BEGIN
namespace detail {

// f(text), with these arguments as a text; a draft model becomes a drafter.
template <class D, class M, class Policy, class C, class W, class F, class... Given>
auto with_text(text& t, std::size_t most, D& draft, M& target, const Policy& policy, C& random,
               W& work, F&& f, Given&... given) {
  if constexpr (LogitSource<D>) {
    model_drafter<D> drafter(draft, work.draft_logits, work.options.sample);
    return detail::with_text(t, most, drafter, target, policy, random, work, f, given...);
  } else {
    auto&& processor = detail::by_name<with::processor, no_processor>(given...);
    auto&& accept = detail::by_name<with::accept, accept_all>(given...);
    const auto& verifier = detail::by_name<with::verifier, token_verifier>(given...);
    auto&& length = detail::by_name<with::length, fixed_draft_length>(given...);
    together_text one(t, most, draft, target, policy, random, work, with::processor{processor},
                      with::accept{accept}, with::verifier{verifier}, with::length{length});
    return f(one);
  }
}

template <class D>
struct row_of_draft {
  using type = typename D::row_type;
};
template <LogitSource D>
struct row_of_draft<D> {
  using type = normal_form<processed_row<typename D::value_type>>;
};
template <class W, class D, class M>
struct check_drafting_workspace {
  static constexpr bool fits =
      object_of<W, drafting_workspace<value_type_of<M>, typename row_of_draft<D>::type>>;
  static void say() {
    static_assert(fits,
                  "specagg: with a drafter the workspace is a drafting_workspace, not const, of "
                  "the target's value_type and the drafter's row_type, made with the options "
                  "(docs/drafters.md)");
  }
};
template <class W, LogitSource D, class M>
struct check_drafting_workspace<W, D, M> : check_workspace<W, speculative_workspace, M> {};
template <class V, class D, class C>
struct check_verifier {
  static constexpr bool fits = requires(const V& verifier, typename row_of_draft<D>::type& row,
                                        C& random, std::size_t n, std::span<double> scratch) {
    verifier.propose(row, std::uint32_t(n), n, random, scratch);
  };
  static void say() {
    static_assert(fits,
                  "specagg: this verifies no drafts of this decoder: with::verifier{v} takes "
                  "token_verifier{}, block_verifier{}, match_verifier{}, coupled_verifier{noise} "
                  "(docs/decoders.md)");
  }
};
template <class L>
struct check_length {
  static constexpr bool fits = DraftLength<L>;
  static void say() {
    static_assert(fits,
                  "specagg: this is no DraftLength: with::length{l} takes an object with the "
                  "members of fixed_draft_length (decode/speculative.hpp, docs/decoders.md)");
  }
};

template <class Names, class Text, class Most, class D, class M, class C, class W, class... Given>
using misfit_of_speculation = typename first_misfit<
    check_text<Text, Most>, check_model<M>,
    check_processor<by_name_t<with::processor, no_processor, Given...>, M>,
    check_drafter<
        D, Drafter<std::remove_reference_t<D>, by_name_t<with::processor, no_processor, Given...>>>,
    check_one_value_type<D, M, true>, check_chooser<C>,
    check_drafting_workspace<W, std::remove_reference_t<D>, M>,
    check_given<Names, speculative_result, W, M, Given...>,
    check_verifier<by_name_t<with::verifier, token_verifier, Given...>, std::remove_reference_t<D>,
                   std::remove_reference_t<C>>,
    check_length<by_name_t<with::length, fixed_draft_length, Given...>>>::type;

}  // namespace detail

// Appends 1 to `most` tokens to the text (0 only if `why` is not ok). It works in the workspace and
// allocates no memory. `draft` is a draft model, whose rows are sampled as the target's, or a
// drafter. If it has no row (a lookup that finds nothing, a draft model whose context is full) it
// drafts nothing. That ends the text only if the policy reads the draft's row: `why` is then the
// drafter's status. invalid_parameter: nothing may be appended, the policy's parameters are out of
// range, or the workspace was made for a smaller gamma. By name it takes a processor, a verifier
// and a length.
//
// A round that fails (or throws) leaves text, drafter and length as they were, so the next one with
// the same arguments draws the same draft again: the law stays exact, although what fails may
// depend on the draft.
template <class Text, class Most, class D, class M, class Policy, class C, class W, class... Given>
speculative_result speculative_round(Text&& t, Most most, D&& draft, M&& target,
                                     const Policy& policy, C&& random, W&& work, Given&&... given) {
  using misfit =
      detail::misfit_of_speculation<detail::names<with::processor, with::verifier, with::length>,
                                    Text, Most, D, M, C, W, Given...>;
  if constexpr (detail::Misfit<misfit>) return detail::refuse<speculative_result, misfit>();
  else
    return detail::with_text(
        t, std::size_t(most), draft, target, policy, random, work,
        [](auto& one) { return detail::run_round(detail::speculation(one)); }, given...);
}

// Runs rounds as decode_rounds does, with a draft model or a drafter:
//   speculative_workspace<float> work(vocab_size, decode_options{.gamma = 4});
//   speculative_decode(text, 64, draft_model, target_model, lossless{}, random, work)
// A drafter takes a drafting_workspace<float, row_type>. By name it takes what a round takes,
// accept and after_round.
template <class Text, class Most, class D, class M, class Policy, class C, class W, class... Given>
status speculative_decode(Text&& t, Most most, D&& draft, M&& target, const Policy& policy,
                          C&& random, W&& work, Given&&... given) {
  using misfit = detail::misfit_of_speculation<
      detail::names<with::processor, with::verifier, with::length, with::accept, with::after_round>,
      Text, Most, D, M, C, W, Given...>;
  if constexpr (detail::Misfit<misfit>) return detail::refuse<status, misfit>();
  else {
    auto&& after_round = detail::by_name<with::after_round, ignore_round>(given...);
    const auto write = [&](auto& one) {
      while (one.goes_on()) {
        detail::speculation round(one);
        after_round(detail::run_round(round), work);
        round.settle();
        round.ask_accept();
      }
      return one.why;
    };
    return detail::with_text(t, std::size_t(most), draft, target, policy, random, work, write,
                             given...);
  }
}

SPECAGG_END
