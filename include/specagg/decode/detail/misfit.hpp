// SPDX-License-Identifier: Apache-2.0
// What a decoder says of arguments that do not fit (detail/misfit.hpp). Beside each stands an
// overload that takes anything; it is chosen only where a check here fails.
#pragma once
#include <concepts>
#include <tuple>
#include <type_traits>

#include <specagg/draft/drafter.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/detail/misfit.hpp>
#include <specagg/policy/policy.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/random.hpp>
#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN
namespace detail {

// A parameter that takes anything, also in braces.
struct anything {
  template <class... X>
  anything(const X&...) {}
};

template <class Text>
struct check_text {
  static constexpr bool fits = std::derived_from<std::remove_cvref_t<Text>, text>;
  static void say() {
    static_assert(fits,
                  "specagg: a decoder takes a text, the most tokens, the models, policy, chooser, "
                  "options, workspace, in this order (docs/decoders.md)");
  }
};
template <class M>
struct check_model {
  static constexpr bool fits = LogitSource<M>;
  static void say() {
    static_assert(LogitSource<M>,
                  "specagg: this is no LogitSource: a member is missing, or returns another type "
                  "(docs/decoders.md#a-model-of-your-own)");
  }
};
// Proposes: D is a drafter that this decoder takes in the place of a model.
template <class D, bool Proposes>
struct check_drafter {
  static constexpr bool fits = Proposes || LogitSource<D>;
  static void say() {
    static_assert(Proposes || LogitSource<D>,
                  "specagg: this is neither a LogitSource nor a Drafter: a member is missing, or "
                  "returns another type (docs/decoders.md, docs/drafters.md)");
  }
};
template <class D, class M>
struct check_models {
  static constexpr bool fits = !LogitSource<D>;
  static void say() {}
};
template <LogitSource D, LogitSource M>
struct check_models<D, M> {
  static constexpr bool fits = std::same_as<typename D::value_type, typename M::value_type>;
  static void say() {
    static_assert(fits,
                  "specagg: the models must have one value_type, all float or all double "
                  "(docs/decoders.md#a-model-of-your-own)");
  }
};
template <class C>
struct check_chooser {
  static constexpr bool fits = Chooser<C>;
  static void say() {
    static_assert(Chooser<C>,
                  "specagg: this is no Chooser: after the policy comes a random_streams, or your "
                  "own with coin() and draw() (docs/decoders.md)");
  }
};
template <class P, class M>
struct check_processor {
  static constexpr bool fits = Processor<P, typename M::value_type>;
  static void say() {
    static_assert(Processor<P, typename M::value_type>,
                  "specagg: this is no Processor: after the workspace come processor, accept, "
                  "after_round; give {} for what you leave out (docs/decoders.md)");
  }
};

template <class W, template <class> class Work, class M>
struct check_workspace {
  static constexpr bool fits =
      std::derived_from<std::remove_cvref_t<W>, Work<typename std::remove_cvref_t<M>::value_type>>;
  static void say() {
    static_assert(fits,
                  "specagg: after the options comes the workspace of this decoder, of the models' "
                  "value_type: speculative_workspace<float>, tree_workspace<float>, "
                  "cascade_workspace<float> (docs/decoders.md)");
  }
};
template <class Policy>
struct check_decides_by_draft {
  static constexpr bool fits = decides_by_draft<std::remove_cvref_t<Policy>>;
  static void say() {
    static_assert(fits,
                  "specagg: sequential_decode decides before the target is called, so its policy "
                  "reads q alone: chow, chow_log, or your own that declares decides_by_draft "
                  "(docs/decoders.md)");
  }
};
template <class C>
struct check_no_chooser {
  static constexpr bool fits = !Chooser<C>;
  static void say() {
    static_assert(fits,
                  "specagg: bild_decode is greedy and takes no chooser: after the thresholds come "
                  "options and workspace (docs/decoders.md)");
  }
};

// Of a decoder with two models, none of them const. More: checks of its own.
template <class Text, class D, class M, class C, class P, bool Proposes, class... More>
using misfit_of_two =
    typename first_misfit<check_text<Text>, check_drafter<std::remove_reference_t<D>, Proposes>,
                          check_model<std::remove_reference_t<M>>,
                          check_models<std::remove_reference_t<D>, std::remove_reference_t<M>>,
                          check_chooser<std::remove_reference_t<C>>,
                          check_processor<std::remove_reference_t<P>, std::remove_reference_t<M>>,
                          More...>::type;

// Of one with n models.
template <class Models>
struct check_tie {
  static constexpr bool fits = std::is_void_v<Models>;  // never
  static void say() {
    static_assert(fits, "specagg: give the models as std::tie(q, p) (docs/decoders.md)");
  }
};
template <class Text, class Models, class C, class P, class... More>
struct all_fit : first_misfit<check_text<Text>, check_tie<Models>> {};
template <class Text, class First, class... M, class C, class P, class... More>
  requires(sizeof...(M) > 0)
struct all_fit<Text, std::tuple<First&, M&...>, C, P, More...>
    : first_misfit<check_text<Text>, check_model<First>, check_model<M>...,
                   check_models<First, M>..., check_chooser<C>, check_processor<P, First>,
                   More...> {};
template <class Text, class Models, class C, class P, class... More>
using misfit_of_all =
    typename all_fit<Text, std::remove_cvref_t<Models>, std::remove_reference_t<C>,
                     std::remove_reference_t<P>, More...>::type;

}  // namespace detail
SPECAGG_END
