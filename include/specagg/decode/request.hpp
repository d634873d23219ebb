// SPDX-License-Identifier: Apache-2.0
// The request of a decoder: its last argument, in braces.
//   speculative_decode(draft, target, lossless{}, random,
//                      {.text = text, .most = 64, .work = work, .accept = until_a_newline},
//                      block_verifier{})
#pragma once
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include <specagg/draft/drafter.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/rows/process.hpp>
#include <specagg/text.hpp>
#include <specagg/verify/verify.hpp>

SPECAGG_BEGIN

// ---- the caller's functions and processors ------------------------------------------------------

// A reference to a function of the caller, F = R(A...): two pointers. The function object must
// outlive the call that the reference is given to; a lambda in the call's own argument list does.
// By default there is no function.
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
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, A... a) -> R {
          return static_cast<R>(
              (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<A>(a)...));
        }) {}
  explicit operator bool() const { return call_ != nullptr; }
  R operator()(A... a) const { return call_(object_, std::forward<A>(a)...); }

 private:
  void* object_ = nullptr;
  R (*call_)(void*, A...) = nullptr;
};
// The same for what keeps the reference after the call (text_request): the function object needs a
// name.
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

// A reference to a processor of logits of type T (rows/process.hpp), which must outlive it. By
// default there is no processor, and nothing is edited. It is itself a Processor<T>.
template <class T>
class processor_ref {
 public:
  processor_ref() noexcept {}
  template <Processor<T> P>
    requires(!std::same_as<P, processor_ref> && !std::is_const_v<P>)
  processor_ref(P& p) : object_(&p), calls_(&calls_of<P>) {}
  void push(token_id t) const {
    if (calls_) calls_->push(object_, t);
  }
  void pop() const {
    if (calls_) calls_->pop(object_);
  }
  void apply(std::span<T> logits) const {
    if (calls_) calls_->apply(object_, logits);
  }
  // Whether apply() changes nothing, for any text.
  bool none() const { return !calls_ || calls_->none(object_); }

 private:
  struct calls {
    void (*push)(void*, token_id);
    void (*pop)(void*);
    void (*apply)(void*, std::span<T>);
    bool (*none)(const void*);
  };
  template <class P>
  static constexpr calls calls_of = {
      [](void* p, token_id t) { (void)static_cast<P*>(p)->push(t); },
      [](void* p) { static_cast<P*>(p)->pop(); },
      [](void* p, std::span<T> logits) { static_cast<P*>(p)->apply(logits); },
      [](const void* p) {
        if constexpr (requires(const P& c) { c.none(); }) return static_cast<const P*>(p)->none();
        else return std::same_as<P, no_processor>;
      }};
  void* object_ = nullptr;
  const calls* calls_ = nullptr;
};

// ---- the request --------------------------------------------------------------------------------

// Every decoder takes (models, policy, random, request), and after the request a verifier, a
// length, a growth or a drafter of its own. No call keeps a reference to its arguments. Between two
// calls text, models and processor go together, because they hold one text. Each workspace
// documents whether it keeps state between calls. Lifetimes and threads: docs/decoders.md.
//
// Work: the decoder's workspace. Its options say how rows are sampled, how long drafts are and
// which tokens end the text.
template <class Work>
struct decode_request {
  // The text, with the prompt in it. Tokens are appended to it.
  specagg::text& text;
  // Most tokens that are appended, at least 1.
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
