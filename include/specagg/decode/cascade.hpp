// SPDX-License-Identifier: Apache-2.0
// Cascades without speculation: a small model writes, and a large model is called only where it is
// needed.
//   sequential_decode  a deferral rule reads q alone and decides, token by token, whether p is
//                      computed at all
//   oracle_decode      both models compute every token: any policy, executed literally (the
//                      reference for speculation)
//   sequence_decode    the small model writes a whole response; if its confidence is low, the large
//                      one writes another
//   bild_decode        Big Little Decoder (decode/bild.hpp)
// The models may have seen any prefix of the text that these functions get. Each model call is one
// extend(). In the emissions, origin::accepted marks a token of the small model, origin::bonus a
// token of the large model, and origin::residual a token of the large model that replaced one of
// the small model. log_pi is the log-probability under the row that the token was drawn from. log_p
// is the one under p, or NaN where p was not computed. Narasimhan et al. 2025 (arXiv:2405.19261),
// algorithms 2 and 3.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <specagg/decode/request.hpp>
#include <specagg/decode/rounds.hpp>
#include <specagg/verify/token.hpp>

SPECAGG_BEGIN

// The options of a workspace.
struct cascade_options {
  sampling sample = {};  // of both models; BiLD ignores it and is greedy
  end_tokens end_of_text = {};
  // most tokens the small model writes in a row; then the large one is called
  std::size_t longest_run = 10;
  // sequence_decode: most tokens of a response
  std::size_t longest_response = 1024;
  // sequence_decode: the confidence is the geometric mean of the tokens' probabilities
  bool per_token = false;
};

// The result of one round. drafted: tokens that the small model wrote. accepted: those of them that
// were kept (both are 0 where nothing is verified). emitted: tokens appended to the text; they
// remain even if `why` is not ok.
struct [[nodiscard]] cascade_result {
  std::size_t drafted = 0, accepted = 0, emitted = 0;
  status why = status::ok;
};

// All memory that a round needs, allocated once; and the options. These may be changed between
// calls, but for a longest_run of BiLD larger than the one that there is memory for. After a failed
// call the workspace belongs to that text until a call succeeds. T: the type of the models' logits.
template <class T>
struct cascade_workspace {
  using value_type = T;
  using result_type = cascade_result;
  cascade_options options;
  std::size_t vocabulary, longest_run;        // longest_run: that there is memory for
  std::vector<T> small_logits, large_logits;  // V and (longest_run + 1) x V
  std::vector<emission> emissions;            // the longer of longest_run + 1 and longest_response
  std::vector<double> scratch;                // verify_scratch(V)
  // The state that a failed call leaves to the next one: it ended at left_at; left_from is where
  // the small model's run began, or the large model's response.
  std::size_t left_from = 0, left_at = 0;

  // If a run is longer than memory can be counted for, it is made for none: BiLD is refused.
  cascade_workspace(std::size_t vocab_size, const cascade_options& of)
      : options(of),
        vocabulary(vocab_size),
        longest_run(options.longest_run < (std::size_t(1) << 48) / (vocabulary + 1)
                        ? options.longest_run
                        : 0),
        small_logits(vocabulary),
        large_logits((longest_run + 1) * vocabulary),
        emissions(std::max(longest_run + 1, options.longest_response)),
        scratch(verify_scratch(vocabulary)) {}

  // The beginning of the run or response that a failed call left at the end of this text; else the
  // text's end.
  std::size_t left_in(const text& t) const {
    const bool left = t.size > 0 && t.size == left_at && t.tokens[t.size - 1] == emissions[0].token;
    return left ? left_from : t.size;
  }
};

// The view of a deferral rule before the large model is called: one row. It has no p, so a
// policy whose decision reads p does not compile. (The equation for pi may name p, because pi is
// not evaluated on this view.)
template <class V, bool Confidence>
struct view_before_target {
  V q, confidence_q;
};
template <class V>
struct view_before_target<V, false> {
  V q;
};

namespace detail {

// Whether a policy pi = (1 - delta) q + delta p defers, given only a normalised q. delta is its
// equation at q(v) = 0, p(v) = 1.
template <class Policy, class Q>
status defers(const Policy& policy, const Q& q, bool& defer) {
  using V = vec<typename Q::value_type, 1>;
  const auto pi = policy.bind(single_row<view_before_target, reads_confidence<Policy>, Q>(q));
  const double delta = as_double(pi(token_view<V>{V(0), V(1), V(0), V(1)}));
  defer = delta == 1;
  // a mixture of q and p is not a deferral
  return delta == 0 || delta == 1 ? status::ok : status::invalid_parameter;
}

// Two models that write one text, with what the request names.
template <class D, class M, class W>
struct model_pair {
  using T = typename W::value_type;
  using row = normal_form<processed_row<T>>;
  D& small;
  M& large;
  const decode_request<W>& how;
  text& t = how.text;
  W& work = how.work;
  processor_ref<T> processor = how.processor;

  model_pair(D& d, M& m, const decode_request<W>& request) : small(d), large(m), how(request) {}
  status ready() const { return detail::ready(t, work.vocabulary, small, large); }
  std::size_t room() const { return detail::room(t, small, large); }
  // Computes a model's row after the text.
  status next_row(auto& model, const sampling& sample, std::vector<T>& memory, row& found,
                  bool confidence = false) {
    const auto logits = std::span(memory).first(work.vocabulary);
    const status s = specagg::score(t.tokens.first(t.size), model, processor, logits);
    if (s != status::ok) return s;
    found = specagg::normalise(processed_row<T>(logits, sample), confidence);
    return found.why();
  }
  // Draws a token of a run or response that began at `start`, and appends it to the text.
  status write(const row& from, stream use, std::size_t start, auto& chooser, emission& e) {
    const moment m{use, std::uint32_t(t.size), std::uint32_t(start)};
    const token_id y = specagg::draw(from, m, chooser, work.scratch);
    if (y == no_token) return status::invalid_row;
    const bool is_small = use == stream::draft;
    const double log_probability = log(double(from[std::size_t(y)]));
    e = {y, is_small ? origin::accepted : origin::bonus, status::ok, log_probability,
         is_small ? std::nan("") : log_probability};
    specagg::append(t, y, processor);
    return status::ok;
  }
  status cut(std::size_t n) { return specagg::truncate(t, n, processor, small, large); }
  // The result of a round that appended one token, or failed.
  static typename W::result_type one_token(status s) {
    return {.emitted = s == status::ok, .why = s};
  }
  // Runs rounds, as decode_rounds does.
  status decode(auto&& round) {
    return detail::decode(how, round, [&](std::size_t n) { return cut(n); });
  }
};

// The most probable token and its probability; of equals the one with the lowest id.
std::pair<token_id, double> most_likely(const auto& row) {
  const std::size_t best = find_largest(row.logits(), row.size()).id;
  return {token_id(best), double(row[best])};
}

}  // namespace detail

// The arguments of a cascade fit together: two models of one value type, and a chooser.
template <class D, class M, class C = random_streams>
concept Cascades =
    LogitSource<std::remove_reference_t<D>> && LogitSource<std::remove_reference_t<M>> &&
    SameValueType<std::remove_reference_t<D>, std::remove_reference_t<M>> &&
    Chooser<std::remove_reference_t<C>>;
// The request of a cascade with this large model.
template <class M>
using cascade_request =
    decode_request<cascade_workspace<typename std::remove_reference_t<M>::value_type>>;

// Sequential token cascade: the token is drawn from p if the policy defers, or if the small model
// has written longest_run tokens in a row; else from q. The policy decides before the target
// is called, so it is a deferral rule that reads q alone: chow, chow_log, or your own that declares
// decides_by_draft. A run goes on after a call that failed, with its
// workspace.
//   cascade_workspace<float> work(vocab_size, cascade_options{});
//   sequential_decode(small, large, chow{0.3}, random, {.text = text, .most = 64, .work = work})
template <class D, class M, class Policy, class C>
  requires Cascades<D, M, C> && decides_by_draft<Policy>
status sequential_decode(D&& small, M&& large, const Policy& policy, C&& random,
                         const cascade_request<M>& how) {
  if (!specagg::valid(policy)) return status::invalid_parameter;
  detail::model_pair both(small, large, how);
  auto& work = how.work;
  const text& t = how.text;
  const cascade_options& options = work.options;
  std::size_t run = work.left_in(t);  // where the small model's run began
  const status ended = both.decode([&](std::size_t) {
    bool defer = t.size - run >= options.longest_run;
    typename decltype(both)::row row;
    status s = both.ready();
    if (s == status::ok && !defer) {
      s = both.next_row(small, options.sample, work.small_logits, row, reads_confidence<Policy>);
      if (s == status::ok) s = detail::defers(policy, row, defer);
    }
    if (s == status::ok && defer) s = both.next_row(large, options.sample, work.large_logits, row);
    if (s == status::ok)
      s = both.write(row, defer ? stream::bonus : stream::draft, t.size, random, work.emissions[0]);
    if (s == status::ok && defer) run = t.size;
    work.left_from = run;
    work.left_at = t.size;
    return both.one_token(s);
  });
  if (ended == status::ok) work.left_at = 0;
  return ended;
}

// Oracle cascade: every token is drawn from pi. Any policy.
//   oracle_decode(small, large, opt{0.3}, random, {.text = text, .most = 64, .work = work})
template <class D, class M, class Policy, class C>
  requires Cascades<D, M, C>
status oracle_decode(D&& small, M&& large, const Policy& policy, C&& random,
                     const cascade_request<M>& how) {
  using T = typename std::remove_reference_t<M>::value_type;
  using misfit = detail::check_policy<Policy, T>;
  if constexpr (!misfit::fits) {
    misfit::say();
    return {};
  } else {
    if (!specagg::valid(policy)) return status::invalid_parameter;
    detail::model_pair both(small, large, how);
    auto& work = how.work;
    const sampling& sample = work.options.sample;
    constexpr bool confidence = reads_confidence<Policy>;
    return both.decode([&](std::size_t) {
      using row = typename decltype(both)::row;
      row q, p;
      status s = both.ready();
      if (s == status::ok) s = both.next_row(small, sample, work.small_logits, q, confidence);
      if (s == status::ok) s = both.next_row(large, sample, work.large_logits, p, confidence);
      if (s != status::ok) return both.one_token(s);
      emission& e = work.emissions[0];
      e = {.from = origin::bonus};
      const detail::drawing by{std::uint32_t(how.text.size), random, work.scratch};
      const row_pair<confidence, row, row> pair(q, p);
      s = detail::with_pi(policy, pair, [&](const auto& rows, const auto& pi) {
        return by.draw_token(rows, pi, pi, by.at(stream::bonus, 0), e);
      });
      if (s == status::ok) specagg::append(how.text, e.token, both.processor);
      return both.one_token(s);
    });
  }
}

namespace detail {
// The small model's response, whose emissions are in the workspace.
struct response {
  std::size_t tokens = 0;
  double log_confidence = 0;  // the logarithm of its probability, or of the mean of its tokens'
  status why = status::ok;
};
// Writes it, until it ends the text or the text has `end` tokens.
template <class Pair, class C>
response respond(Pair& both, std::size_t end, C& random, typename Pair::row& row) {
  auto& work = both.work;
  const text& t = both.t;
  const cascade_options& options = work.options;
  const std::size_t start = t.size;
  response made;
  for (bool ended = false; t.size < end && !ended;) {
    made.why = both.next_row(both.small, options.sample, work.small_logits, row, true);
    emission& e = work.emissions[made.tokens];
    if (made.why == status::ok) made.why = both.write(row, stream::draft, start, random, e);
    if (made.why != status::ok) break;
    ++made.tokens;
    using one = vec<typename Pair::T, 1>;
    made.log_confidence +=
        log(double(row.open(std::size_t(e.token), 1).template confidence<one>(0, 1).v));
    ended = options.end_of_text.contains(e.token);
  }
  if (options.per_token && made.tokens > 0) made.log_confidence /= double(made.tokens);
  return made;
}
}  // namespace detail

// Sequence-level cascade (Chow's rule for a response). The small model writes until the text ends
// or has how.most more tokens. The large model writes another response from the same start in two
// cases: the probability of the small response under the rows at temperature 1 of q is below 1 -
// alpha, or the small model has a row that no token can be drawn from. With options.per_token the
// geometric mean of its tokens' probabilities is compared instead: the probability of a response
// falls with its length, and of long ones only an alpha next to 1 keeps any. accept() is called
// only after this decision. For a small response it is called token by token, and may still end the
// text in the middle. invalid_parameter: alpha is NaN, or how.most is more than the workspace's
// longest_response. If the large model fails after some tokens, the next call with this workspace
// lets it go on.
//   sequence_decode(small, large, 0.3, random, {.text = text, .most = 64, .work = work})
template <class D, class M, class C>
  requires Cascades<D, M, C>
status sequence_decode(D&& small, M&& large, double alpha, C&& random,
                       const cascade_request<M>& how) {
  detail::model_pair both(small, large, how);
  auto& work = how.work;
  text& t = how.text;
  const std::size_t longest = how.most;
  if (std::isnan(alpha) || longest > work.emissions.size()) return status::invalid_parameter;
  const std::size_t start = work.left_in(t), began = t.size;
  const bool goes_on = start < began;  // the large model, with its response
  const std::size_t end = std::min(began + longest, both.room());
  typename decltype(both)::row row;
  status s = both.ready();
  if (s != status::ok) return s;

  detail::response made;
  if (!goes_on) {
    const detail::on_exception restore([&] { (void)both.cut(began); });
    made = detail::respond(both, end, random, row);
  }
  if (made.why != status::ok && made.why != status::invalid_row) {
    (void)both.cut(began);
    return made.why;
  }
  const bool sure = !goes_on && made.why == status::ok && !(exp(made.log_confidence) < 1 - alpha);

  // If the small response is kept, one round emits it. Otherwise it is removed, and the large
  // model writes token by token.
  s = sure ? specagg::truncate(t, began, both.processor)
           : specagg::truncate(t, began, both.processor, small);
  if (s != status::ok) return s;
  s = both.decode([&](std::size_t) -> cascade_result {
    if (sure) {
      const std::size_t emitted = std::exchange(made.tokens, 0);
      for (std::size_t i = 0; i < emitted; ++i)
        specagg::append(t, work.emissions[i].token, both.processor);
      // no room is left
      return {.emitted = emitted, .why = emitted > 0 ? status::ok : status::context_full};
    }
    s = both.ready();
    if (s == status::ok) s = both.next_row(large, work.options.sample, work.large_logits, row);
    if (s == status::ok) s = both.write(row, stream::bonus, start, random, work.emissions[0]);
    work.left_from = start;
    work.left_at = t.size;
    return both.one_token(s);
  });
  if (s == status::ok) work.left_at = 0;
  return s;
}

SPECAGG_END
