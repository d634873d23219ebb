// SPDX-License-Identifier: Apache-2.0
// The request of a decoder: an argument in braces.
//   speculative_decode(draft, target, lossless{}, random,
//                      {.text = text, .most = 64, .work = work, .accept = until_a_newline},
//                      block_verifier{})
#pragma once
#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include <specagg/draft/drafter.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// ---- the caller's functions ---------------------------------------------------------------------

// A reference to a function of the caller, F = R(A...): two pointers. A function object must
// outlive the reference. A lambda in the argument list of a call outlives that call; a lambda in a
// request with a name does not outlive the declaration. By default there is no function.
template <class F>
class function_ref;
template <class R, class... A>
class function_ref<R(A...)> {
 public:
  function_ref() noexcept {}
  template <class F>
    requires(!std::derived_from<std::remove_cvref_t<F>, function_ref> &&
             std::is_object_v<std::remove_reference_t<F>> && std::is_invocable_r_v<R, F&, A...>)
  function_ref(F&& f)
      : call_([](what of, A... a) -> R {
          return static_cast<R>(
              (*static_cast<std::remove_reference_t<F>*>(of.object))(std::forward<A>(a)...));
        }) {
    of_.object = const_cast<void*>(static_cast<const void*>(std::addressof(f)));
  }
  function_ref(R (*f)(A...)) noexcept
      : call_(f ? +[](what of, A... a) -> R { return of.function(std::forward<A>(a)...); }
                : nullptr) {
    of_.function = f;
  }
  // Refuses an object that cannot be called with A..., and names it. (g++ prints the line.)
  template <class F>
    requires(!std::derived_from<std::remove_cvref_t<F>, function_ref> &&
             std::is_class_v<std::remove_reference_t<F>> && !std::is_invocable_r_v<R, F&, A...>)
  function_ref(F&&) = delete;  // specagg: a function of the request takes other arguments, A...
  explicit operator bool() const { return call_ != nullptr; }
  R operator()(A... a) const { return call_(of_, std::forward<A>(a)...); }

 private:
  union what {
    void* object = nullptr;
    R (*function)(A...);
  };
  what of_;
  R (*call_)(what, A...) = nullptr;
};
// A function_ref that is kept after the call (text_request): its function object needs a name.
template <class F>
class lasting_function_ref : public function_ref<F> {
 public:
  lasting_function_ref() noexcept {}
  template <class X>
    requires std::constructible_from<function_ref<F>, X&>
  lasting_function_ref(X& f) : function_ref<F>(f) {}
  template <class X>
  lasting_function_ref(const X&&) = delete;
};

// ---- the request --------------------------------------------------------------------------------

// Every decoder takes (models, policy, random, request), and after the request a verifier, a
// length, a growth or a drafter of its own. No call keeps a reference to its arguments. Between two
// calls text, models and processor go together, because they hold one text. Each workspace
// documents whether it keeps state between calls. Lifetimes and threads: docs/decoders.md.
//
// Work: the decoder's workspace. Its options say how rows are sampled, how long drafts are and
// which tokens end the text. A request in a variable, with a lambda in it, dangles: give the lambda
// a name, or write decode_request<Work>{...} in the call.
template <class Work>
struct decode_request {
  // The text, with the prompt in it. Tokens are appended to it.
  specagg::text& text;
  // Most tokens that are appended. 0, or a request without it: none.
  std::size_t most;
  // All memory of a round, and the options.
  Work& work;
  // Edits rows of logits and follows the text.
  processor_ref<typename Work::value_type> processor = {};
  // Called for every token that is emitted. False: the text ends after this token.
  function_ref<bool(const emission&)> accept = {};
  // Called after each round, before accept.
  function_ref<void(const typename Work::result_type&, Work&)> after_round = {};
};

// The request of a text that shares rounds with others (together_text). What it names must outlive
// the text's object.
template <class Work>
struct text_request {
  specagg::text& text;
  std::size_t most;
  Work& work;
  processor_ref<typename Work::value_type> processor = {};
  lasting_function_ref<bool(const emission&)> accept = {};
};

// ---- what decoders take beside it ---------------------------------------------------------------

// Two models, or a drafter and a model, with one value type: all float or all double.
template <class D, class M>
concept SameValueType = [] {
  using T = typename M::value_type;
  if constexpr (LogitSource<D>) return std::same_as<typename D::value_type, T>;
  else return std::same_as<typename D::row_type::value_type, typename processed_row<T>::value_type>;
}();

// D proposes tokens for the model M: a draft model, or a drafter (draft/drafter.hpp).
template <class D, class M>
concept DraftsFor = (LogitSource<D> || Drafter<D, processor_ref<typename M::value_type>>) &&  //
                    SameValueType<D, M>;

SPECAGG_END
