// SPDX-License-Identifier: Apache-2.0
// What a decoder says of an argument that does not fit (detail/misfit.hpp). The types of arguments
// are those of forwarding references.
#pragma once
#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>

#include <specagg/decode/with.hpp>
#include <specagg/detail/misfit.hpp>
#include <specagg/draft/drafter.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/policy/policy.hpp>
#include <specagg/random.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN
namespace detail {

// Says what does not fit; what is returned is not used.
template <class Result, class Misfit>
Result refuse() {
  Misfit::say();
  return {};
}

// X is an object with a name, is not const, and is a Base.
template <class X, class Base>
concept object_of = std::is_lvalue_reference_v<X> && !std::is_const_v<std::remove_reference_t<X>> &&
                    std::derived_from<std::remove_reference_t<X>, Base>;
template <class X>
using value_type_of = typename std::remove_reference_t<X>::value_type;

template <class Text, class Most>
struct check_text {
  static constexpr bool fits = object_of<Text, text> && std::convertible_to<Most, std::size_t>;
  static void say() {
    static_assert(fits,
                  "specagg: a decoder takes a text, the most tokens, the models, policy, random, "
                  "workspace, in this order (docs/decoders.md)");
  }
};
template <class M>
struct check_model {
  static constexpr bool fits = LogitSource<std::remove_reference_t<M>>;
  static void say() {
    static_assert(
        fits,
        "specagg: this is no LogitSource: value_type, vocab_size(), position(), extend(tokens, "
        "logits), rollback(n) or capacity() is missing, or returns another type "
        "(docs/decoders.md#a-model-of-your-own)");
  }
};
// Proposes: D is a drafter that this decoder takes in the place of a model.
template <class D, bool Proposes>
struct check_drafter {
  static constexpr bool fits = Proposes || LogitSource<std::remove_reference_t<D>>;
  static void say() {
    static_assert(fits,
                  "specagg: this is neither a LogitSource nor a Drafter: a member is missing, or "
                  "returns another type (docs/decoders.md, docs/drafters.md)");
  }
};
// Of two models; Rows: or of the rows of a drafter.
template <class D, class M, bool Rows = false>
struct check_one_value_type {
  static constexpr bool fits = [] {
    if constexpr (LogitSource<std::remove_reference_t<D>>)
      return std::same_as<value_type_of<D>, value_type_of<M>>;
    else if constexpr (Rows)
      return std::same_as<value_type_of<typename std::remove_reference_t<D>::row_type>,
                          value_type_of<processed_row<value_type_of<M>>>>;
    else return true;
  }();
  static void say() {
    static_assert(fits,
                  "specagg: the models, and the rows of a drafter, must have one value_type, all "
                  "float or all double (docs/decoders.md#a-model-of-your-own)");
  }
};
template <class C>
struct check_chooser {
  static constexpr bool fits = Chooser<std::remove_reference_t<C>>;
  static void say() {
    static_assert(fits,
                  "specagg: this is no Chooser: after the policy comes a random_streams, or your "
                  "own with coin() and draw() (docs/decoders.md)");
  }
};
template <bool Fits>
struct check_is_workspace {
  static constexpr bool fits = Fits;
  static void say() {
    static_assert(fits,
                  "specagg: here comes the workspace of this decoder, not const, of the models' "
                  "value_type and number, made with the options: speculative_workspace<float> "
                  "work(vocab_size, options), tree_workspace<float>, cascade_workspace<float>, "
                  "collaborative_workspace<float, 2> (docs/decoders.md)");
  }
};
template <class W, template <class> class Workspace, class M>
struct check_workspace : check_is_workspace<object_of<W, Workspace<value_type_of<M>>>> {};

template <class Names, class... Given>
struct check_names {
  static constexpr bool fits = Names::template take<std::remove_cvref_t<Given>...>;
  static void say() {
    static_assert(fits,
                  "specagg: after the workspace everything is given by its name, as "
                  "with::processor{p}, with::accept{f}; here is something without a name, by one "
                  "that this decoder does not take, or by one name twice. Options are the "
                  "workspace's: leave them out (docs/decoders.md)");
  }
};
template <class P, class M>
struct check_processor {
  static constexpr bool fits = Processor<P, value_type_of<M>>;
  static void say() {
    static_assert(fits,
                  "specagg: this is no Processor: with::processor{p} takes an object with push(), "
                  "pop() and apply() (rows/process.hpp, docs/decoders.md)");
  }
};
template <class Accept>
struct check_accept {
  static constexpr bool fits = std::is_invocable_r_v<bool, Accept&, const emission&>;
  static void say() {
    static_assert(fits,
                  "specagg: accept is a function of an emission, and returns whether the text goes "
                  "on (docs/decoders.md)");
  }
};
template <class After, class Result, class W>
struct check_after_round {
  static constexpr bool fits = std::is_invocable_v<After&, const Result&, W&>;
  static void say() {
    static_assert(fits,
                  "specagg: after_round is a function of a round's result and the workspace "
                  "(docs/decoders.md)");
  }
};

// What is given by name to a decoder that takes these names. A check, too; M: a model.
template <class Names, class Result, class W, class M, class... Given>
struct check_given {
  using misfit = typename first_misfit<
      check_names<Names, Given...>,
      check_processor<by_name_t<with::processor, no_processor, Given...>, M>,
      check_accept<by_name_t<with::accept, accept_all, Given...>>,
      check_after_round<by_name_t<with::after_round, ignore_round, Given...>, Result, W>>::type;
  static constexpr bool fits = !Misfit<misfit>;
  static void say() { misfit::say(); }
};

}  // namespace detail
SPECAGG_END
