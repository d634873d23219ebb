// SPDX-License-Identifier: Apache-2.0
// Big Little Decoder: a small model writes greedily, and a large model checks and corrects what it
// wrote. Kim et al. 2023, BiLD (arXiv:2302.07863). Models, emissions and the workspace are those of
// decode/cascade.hpp.
#pragma once
#include <algorithm>

#include <specagg/decode/cascade.hpp>

SPECAGG_BEGIN

// Thresholds of BiLD. If the probability of the small model's token is below `fallback`, it is not
// written, and the large model continues. A written token with -log p > `rollback` is replaced.
// Both read rows at temperature 1.
struct bild_thresholds {
  double fallback = 0.6, rollback = 5;
};

namespace detail {

template <class D, class M, class W>
cascade_result check_run(model_pair<D, M, W>& both, const bild_thresholds& thresholds,
                         std::size_t most) {
  auto& [small, large, how, t, work, processor] = both;
  using T = typename W::value_type;
  const cascade_options& options = work.options;
  cascade_result result;
  const std::size_t start = t.size;
  result.why = most == 0 || options.longest_run > work.longest_run ? status::invalid_parameter
                                                                   : both.ready();
  if (result.why != status::ok) return result;
  // tokens this round may append
  const std::size_t limit = std::min(most, both.room() - start);
  const std::size_t run = std::min(limit, options.longest_run);
  const on_exception restore([&] { (void)both.cut(start); });

  // The small model writes. If it has no row to choose from, the large model continues.
  status s = status::ok;
  bool ended = false;
  for (normal_form<processed_row<T>> row; result.drafted < run && !ended;) {
    s = both.next_row(small, {}, work.small_logits, row);
    if (s != status::ok) break;
    const auto [y, probability] = most_likely(row);
    if (probability < thresholds.fallback) break;
    specagg::append(t, y, processor);
    ++result.drafted;
    ended = options.end_of_text.contains(y);
  }

  // The large model scores, keeps tokens up to the first that it replaces, and else adds one.
  const std::size_t g = result.drafted, rows = g + (!ended && g < limit);
  const auto logits = std::span(work.large_logits).first((g + 1) * work.vocabulary);
  if (s == status::ok || s == status::invalid_row)
    s = specagg::score(t.tokens.first(start + g), large, processor, logits);
  for (std::size_t i = 0; i < rows && result.accepted == i && s == status::ok; ++i) {
    const auto row =
        specagg::normalise(processed_row<T>(logits.subspan(i * work.vocabulary, work.vocabulary)));
    s = row.why();
    if (s != status::ok) break;
    const token_id best = most_likely(row).first, y = i < g ? t.tokens[start + i] : best;
    const double log_p = log(double(row[std::size_t(y)]));
    const bool kept = i < g && (!(-log_p > thresholds.rollback) || best == y);
    work.emissions[i] = {kept ? y : best,
                         kept    ? origin::accepted
                         : i < g ? origin::residual
                                 : origin::bonus,
                         status::ok, 0, kept ? log_p : log(double(row[std::size_t(best)]))};
    result.accepted += kept;
    ++result.emitted;
  }
  const status refused = both.cut(start + result.accepted);
  if (result.emitted > result.accepted)
    specagg::append(t, work.emissions[result.accepted].token, processor);
  result.why = s != status::ok ? s : refused;
  return result;
}

}  // namespace detail

// One round of BiLD. The small model appends its most probable token, until that token's
// probability is too low, longest_run tokens are written, or the text ends. The large model scores
// all of them in one call. The first token that the large model finds too improbable, and that is
// not its own most probable token, is replaced by that one; the tokens after it are dropped. If
// there is no such token, the large model's most probable token is appended, if there is room. An
// end-of-text token of the small model ends the text only if it was kept. Nothing is random.
// invalid_parameter: nothing may be appended, or the workspace was made for a shorter run.
// how: accept and after_round are not called.
template <class D, class M>
  requires Cascades<D, M>
cascade_result bild_round(D&& small, M&& large, const bild_thresholds& thresholds,
                          const cascade_request<M>& how) {
  detail::model_pair both(small, large, how);
  return detail::check_run(both, thresholds, how.most);
}

// Runs rounds as speculative_decode does.
//   bild_decode(small, large, bild_thresholds{0.6, 5}, {.text = text, .most = 64, .work = work})
template <class D, class M>
  requires Cascades<D, M>
status bild_decode(D&& small, M&& large, const bild_thresholds& thresholds,
                   const cascade_request<M>& how) {
  detail::model_pair both(small, large, how);
  return both.decode([&](std::size_t left) { return detail::check_run(both, thresholds, left); });
}

SPECAGG_END
