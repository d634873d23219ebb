// SPDX-License-Identifier: Apache-2.0
// Edits of rows of logits: penalties and masks.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include <specagg/rows/process.hpp>

#include "engine.hpp"

using namespace specagg;

namespace {

// The rows after edits: penalties and masks, in memory of their own.
struct edited {
  std::vector<std::byte> memory;
  engine::rows rows;
};

template <class S>
void edit_in_place(std::span<S> logits, std::size_t vocabulary, const engine::edits& e,
                   std::span<const token_id> drafted) {
  if (!e.penalties.none()) {
    std::vector<token_id> memory(
        penalties::memory(vocabulary, e.history.size() + drafted.size() + 1));
    penalties text(e.penalties, vocabulary, e.history, memory);
    for (std::size_t j = 0; j * vocabulary < logits.size(); ++j) {
      text.apply(logits.subspan(j * vocabulary, vocabulary));
      if (j < drafted.size()) (void)text.push(drafted[j]);
    }
  }
  if (!e.mask) return;
  for (std::size_t j = 0; j * vocabulary < logits.size(); ++j)
    for (std::size_t v = 0; v < vocabulary; ++v)
      if (e.forbids(j, token_id(v)))
        logits[j * vocabulary + v] = detail::stored<S>(-std::numeric_limits<double>::infinity());
}

edited edit(const engine::rows& all, std::size_t vocabulary, const engine::edits& e,
            std::span<const token_id> drafted) {
  edited out{{}, all};
  if (e.none() || !engine::holds_logits(all.kind)) return out;
  const std::size_t bytes = vocabulary * engine::element_size(all.kind);
  out.memory.resize(bytes * all.count);
  for (std::size_t j = 0; j < all.count; ++j)
    std::copy_n(all.data + std::ptrdiff_t(j) * all.stride, bytes, out.memory.data() + j * bytes);
  out.rows.data = out.memory.data();
  out.rows.stride = std::ptrdiff_t(bytes);
  const auto as = [&]<class S>(S) {
    edit_in_place(std::span(reinterpret_cast<S*>(out.memory.data()), all.count * vocabulary),
                  vocabulary, e, drafted);
  };
  using enum engine::row_kind;
  if (all.kind == logits_f32) as(0.0f);
  else if (all.kind == logits_f64) as(0.0);
  else if (all.kind == logits_f16) as(f16{});
  else as(bf16{});
  return out;
}

// The request with edited rows.
struct edited_request {
  edited q, p;
  engine::request request;
  explicit edited_request(const engine::request& r)
      : q(edit(r.q, r.vocabulary, r.edits, r.drafted.tokens.first(r.drafted.size()))),
        p(edit(r.p, r.vocabulary, r.edits, r.drafted.tokens.first(r.drafted.size()))),
        request(r) {
    request.q = q.rows;
    request.p = p.rows;
  }
};

}  // namespace
