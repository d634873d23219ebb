// SPDX-License-Identifier: Apache-2.0
// The map from the tokens of a draft model to those of a target with another vocabulary.
#pragma once
#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <specagg/kernel/softmax.hpp>
#include <specagg/token.hpp>

SPECAGG_BEGIN

// A token as a tokenizer knows it.
//   text     its bytes in a text; a token without bytes is not in any text
//   spare    its bytes too, but the tokenizer writes these bytes as another token (a byte token "A"
//            if there is also a piece "A")
//   special  a control token; `bytes` is its name ("<|im_end|>"), and never stands in a text
struct token_text {
  enum class kind : std::uint8_t { text, spare, special };
  std::string bytes;
  kind is = kind::text;

  // Its bytes in a text: none of a special token.
  std::string_view in_text() const {
    return is == kind::special ? std::string_view() : std::string_view(bytes);
  }
};

// Makes tokens with the same bytes spare, except for one of them: the token that encode(bytes), the
// tokenizer, gives for these bytes, else the lowest id. Special tokens and tokens without bytes
// stay as they are.
void mark_spare_tokens(std::vector<token_text>& all, auto&& encode) {
  using kind = token_text::kind;
  std::unordered_map<std::string_view, std::size_t> known;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].is == kind::special) continue;
    const auto [first, is_new] = known.emplace(all[i].bytes, i);
    if (is_new || all[i].bytes.empty()) continue;
    const std::vector<token_id> written = encode(all[i].bytes);
    const bool keep_this = written.size() == 1 && written[0] == token_id(i);
    all[keep_this ? first->second : i].is = kind::spare;
    if (keep_this) first->second = i;
  }
}

// Maps tokens of a draft's vocabulary to tokens of the target's: each to one or none, no two to the
// same. A map is data, made once. Only making a map allocates.
class vocabulary_map {
 public:
  vocabulary_map() = default;

  // The sizes of the two vocabularies; all is 0 until make_vocabulary_map() has made it.
  std::size_t draft_size() const { return to_.size(); }
  std::size_t target_size() const { return target_size_; }
  std::size_t size() const { return targets_.size(); }  // mapped tokens

  // The token of the target that is token d of the draft; no_token for none.
  token_id to(token_id d) const {
    return d >= 0 && std::size_t(d) < to_.size() ? to_[std::size_t(d)] : no_token;
  }
  // The token of the draft that is token t of the target; no_token for none. O(log size()).
  token_id from(token_id t) const {
    const auto i = std::lower_bound(targets_.begin(), targets_.end(), t);
    return i != targets_.end() && *i == t ? drafts_[std::size_t(i - targets_.begin())] : no_token;
  }
  // The mapped tokens: targets() ascends, and drafts()[i] is mapped to targets()[i].
  std::span<const token_id> targets() const { return targets_; }
  std::span<const token_id> drafts() const { return drafts_; }

 private:
  friend status make_vocabulary_map(std::span<const token_id>, std::size_t, vocabulary_map&);
  std::vector<token_id> to_, targets_, drafts_;
  std::size_t target_size_ = 0;
};

// Makes a map from data: to[d] is a token of the target, or no_token. (EAGLE-3 files hold `d2t` =
// to[d] - d.)
//   token_out_of_range   to[d] is neither no_token nor below target_size
//   invalid_parameter    two tokens are mapped to one
// On any status but ok `map` is as it was. The memory depends on to.size() only: target_size may
// come from a file that nobody trusts.
inline status make_vocabulary_map(std::span<const token_id> to, std::size_t target_size,
                                  vocabulary_map& map) {
  vocabulary_map made;
  made.to_.assign(to.begin(), to.end());
  made.target_size_ = target_size;
  for (std::size_t d = 0; d < to.size(); ++d) {
    if (to[d] == no_token) continue;
    if (to[d] < 0 || std::size_t(to[d]) >= target_size) return status::token_out_of_range;
    made.drafts_.push_back(token_id(d));
  }
  std::sort(made.drafts_.begin(), made.drafts_.end(),
            [&](token_id a, token_id b) { return to[std::size_t(a)] < to[std::size_t(b)]; });
  for (const token_id d : made.drafts_) {
    const token_id t = to[std::size_t(d)];
    if (!made.targets_.empty() && made.targets_.back() == t) return status::invalid_parameter;
    made.targets_.push_back(t);
  }
  map = std::move(made);
  return status::ok;
}

// The map of two vocabularies. It maps tokens of equal bytes, and special tokens of equal names,
// but never one kind to the other. Spare tokens are not mapped. If several tokens of one vocabulary
// have the same bytes, the lowest id is mapped.
inline vocabulary_map map_of_equal_tokens(std::span<const token_text> draft,
                                          std::span<const token_text> target) {
  using kind = token_text::kind;
  std::unordered_map<std::string_view, token_id> of_text, of_special;
  const auto names = [&](const token_text& t) -> auto& {
    return t.is == kind::special ? of_special : of_text;
  };
  for (std::size_t t = 0; t < target.size(); ++t)
    if (target[t].is != kind::spare && !target[t].bytes.empty())
      names(target[t]).emplace(target[t].bytes, token_id(t));
  std::vector<token_id> to(draft.size(), no_token);
  for (std::size_t d = 0; d < draft.size(); ++d) {
    if (draft[d].is == kind::spare) continue;
    auto& known = names(draft[d]);
    const auto found = known.find(draft[d].bytes);
    if (found == known.end()) continue;
    to[d] = found->second;
    known.erase(found);  // a later token with these bytes finds none
  }
  vocabulary_map map;
  // no id is out of range, and none is met twice
  (void)make_vocabulary_map(to, target.size(), map);
  return map;
}

// Whether a logit is -inf.
template <class S>
bool is_masked(S logit) {
  return detail::number(logit) == -std::numeric_limits<computed<S>>::infinity();
}

// Writes the draft's logits into a row of the target's vocabulary: the logits of mapped tokens at
// their places, -inf elsewhere. So the row is masked before its softmax, and temperature and
// filters act after. logits: draft_size(), row: target_size(); they must not overlap. Returns
// whether one of the mapped tokens is not masked (NaN counts: the row must be found invalid).
template <class S>
bool map_logits(const vocabulary_map& map, std::span<const S> logits, std::span<S> row) {
  std::fill(row.begin(), row.end(), detail::stored<S>(-std::numeric_limits<double>::infinity()));
  bool any = false;
  for (std::size_t i = 0; i < map.size(); ++i) {
    const S l = logits[std::size_t(map.drafts()[i])];
    row[std::size_t(map.targets()[i])] = l;
    any = any || !is_masked(l);
  }
  return any;
}

// The part Z of the draft's probability at temperature 1 that its mapped tokens have. NaN for an
// invalid row.
template <class S>
double mass_kept(std::span<const S> logits, std::span<const S> mapped) {
  return exp(log_sum_exp(mapped) - log_sum_exp(logits));
}

SPECAGG_END
