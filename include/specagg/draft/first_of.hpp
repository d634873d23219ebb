// SPDX-License-Identifier: Apache-2.0
// Two drafters in turn: if the first has no row, the second is asked.
#pragma once
#include <algorithm>
#include <type_traits>

#include <specagg/rows/any_row.hpp>
#include <specagg/draft/drafter.hpp>

SPECAGG_BEGIN

// first_of both(lookup, model): every token of a draft comes from the first drafter that has a row
// for it. Both must outlive the object. Both follow the text, and either may be a first_of again. A
// drafter that was not asked costs nothing; a model then reads the tokens that it missed when it is
// asked next.
template <class A, class B>
class first_of {
  template <class... Kinds>
  struct list {};
  template <class R>
  struct kinds {
    using type = list<R>;
  };
  template <class... R>
  struct kinds<any_row<R...>> {
    using type = list<R...>;
  };
  template <class L, class M>
  struct joined;
  template <class... L>
  struct joined<list<L...>, list<>> {
    using type = std::conditional_t<sizeof...(L) == 1, std::tuple_element<0, std::tuple<L...>>,
                                    std::type_identity<any_row<L...>>>;
  };
  template <class... L, class R, class... M>
  struct joined<list<L...>, list<R, M...>>
      : joined<std::conditional_t<(std::is_same_v<L, R> || ...), list<L...>, list<L..., R>>,
               list<M...>> {};

 public:
  // All kinds of rows of both drafters, each kind once.
  using row_type = typename joined<typename kinds<typename A::row_type>::type,
                                   typename kinds<typename B::row_type>::type>::type::type;
  static constexpr std::size_t drafters = drafter_count<A> + drafter_count<B>;
  first_of(A& first, B& second) : first_(&first), second_(&second) {}

  // 0, a size that no row has, if the two differ.
  std::size_t vocab_size() const {
    const std::size_t v = first_->vocab_size();
    return v == std::size_t(second_->vocab_size()) ? v : 0;
  }
  std::size_t position() const {
    return std::max<std::size_t>(first_->position(), second_->position());
  }
  status rollback(std::size_t n) { return specagg::rollback(n, *first_, *second_); }

  // f(drafter, number) for each drafter until f returns true.
  bool in_turn(auto&& f) {
    return specagg::any_in_turn(*first_, f) ||
           specagg::any_in_turn(*second_,
                                [&](auto& d, std::size_t k) { return f(d, drafter_count<A> + k); });
  }
  status next(const draft_position& at, auto& processor, row_type& row, double& confidence) {
    status s = status::no_draft;
    in_turn([&](auto& drafter, std::size_t) {
      typename std::remove_reference_t<decltype(drafter)>::row_type own;
      s = drafter.next(at, processor, own, confidence);
      if (s == status::ok) row = own;
      return s == status::ok || s == status::stopped;
    });
    return s;
  }

 private:
  A* first_;
  B* second_;
};

SPECAGG_END
