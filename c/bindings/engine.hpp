// SPDX-License-Identifier: Apache-2.0
// What the Python module (python/src) and the C library (c/) ask of the engine (the sources here),
// as plain data. The engine is built once for each instruction set, and specagg_dispatch chooses
// one at start; the module and the library are built once, for every machine.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <specagg/rows/process.hpp>
#include <specagg/verify/draft_tree.hpp>
#include <specagg/verify/verify.hpp>

namespace engine {

// What the numbers of a row are. one_hot: there are none, the drafted token has probability 1.
enum class row_kind : int {
  logits_f32,
  logits_f16,
  logits_bf16,
  logits_f64,
  probabilities_f32,
  probabilities_f64,
  one_hot,
};
constexpr bool holds_logits(row_kind k) { return k <= row_kind::logits_f64; }
constexpr bool in_double(row_kind k) {
  return k == row_kind::logits_f64 || k == row_kind::probabilities_f64;
}
constexpr std::size_t element_size(row_kind k) {
  return in_double(k) ? 8 : k == row_kind::logits_f16 || k == row_kind::logits_bf16 ? 2 : 4;
}

// `count` rows of V numbers, each `stride` bytes after the one before.
struct rows {
  row_kind kind = row_kind::one_hot;
  const std::byte* data = nullptr;
  std::ptrdiff_t stride = 0;
  std::size_t count = 0;
  specagg::sampling sampling = {};  // of logits
};

// A policy of the library: a line of the catalogue, then of the presets (policy/catalogue.hpp), and
// its parameters in the line's order.
struct policy {
  int line = 0;
  std::array<double, 4> parameters = {};
};

// What a logit is edited by before softmax, of draft and target alike.
struct edits {
  specagg::penalty_options penalties = {};
  std::span<const specagg::token_id> history = {};  // what the penalties count
  const std::uint8_t* mask = nullptr;  // one byte a token: 0 where it may not be emitted
  std::ptrdiff_t mask_stride = 0;      // bytes from the mask of a row to the next one; 0: one mask
  bool none() const { return penalties.none() && !mask; }
  // Whether token v of the vocabulary may not be emitted at position j.
  bool forbids(std::size_t j, specagg::token_id v) const {
    return mask && !mask[std::ptrdiff_t(j) * mask_stride + v];
  }
};

enum class verifier : int { token, block, match, coupled };

// A policy of a whole text (policy/policies_of.hpp, verify/stateful.hpp).
enum class text_kind : int { by_position, regret_budget, entropy_window, phase };
struct text_policy {
  text_kind kind = text_kind::by_position;
  std::span<const policy> policies = {};                     // one a position; or inside, outside
  double first = 0, second = 0;                              // budget, limit; threshold, window
  std::span<const specagg::token_id> open = {}, close = {};  // of phase
};

struct request {
  specagg::draft drafted;
  std::size_t vocabulary = 0;
  rows q, p;
  engine::policy policy;
  engine::edits edits;
  std::uint64_t seed = 0, id = 0;
  std::span<specagg::emission> out;  // one more than drafted
  std::span<double> scratch;         // verify_scratch(V, gamma)
  // What verifies in place of the library's usual sources, after edits: null, or one of
  // specagg_engine_verify_text: by `text`, not `policy`. state: of the text, read and written
  // specagg_engine_verify_cut: row j of q is cut to the tokens with a byte other than 0 at
  //   kept + j * kept_stride, V bytes (rows/cut_row.hpp)
  void (*by)(const request*, verifier, specagg::verdict*) = nullptr;
  const text_policy* text = nullptr;
  double* state = nullptr;
  const std::uint8_t* kept = nullptr;
  std::ptrdiff_t kept_stride = 0;
};

// One row, from which token `step` of the round that begins at `start` is drawn.
struct draw {
  std::size_t vocabulary = 0;
  rows q;
  engine::edits edits;
  std::uint64_t seed = 0, id = 0;
  std::uint32_t start = 0, step = 0;
  bool coupled = false;
  std::span<double> scratch;
};

// A tree of drafts (verify/tree.hpp): node 0 is the text, tokens[i] and parents[i] are those of
// node i + 1. q and p: the rows after each node. proposed: how the children of a node were chosen
// (draft/propose.hpp).
struct tree_request {
  specagg::draft_tree tree;
  std::size_t vocabulary = 0;
  rows q, p;
  int proposed = 0;
  bool recursive = false;
  engine::policy policy;
  std::uint64_t seed = 0, id = 0;
  std::span<specagg::emission> out;  // one more than the tree is deep
  std::span<double> scratch;         // verify_scratch(V)
};

// One pair of rows, in double, and a policy. drafted: the token of a one-hot q.
struct pair {
  std::size_t vocabulary = 0;
  rows q, p;
  specagg::token_id drafted = specagg::no_token;
  engine::policy policy;
};
struct pair_numbers {
  double acceptance = 0;          // sum min(q, pi)
  double distance_to_target = 0;  // TV(pi, p)
  double distance = 0;            // TV(q, p)
  double divergence = 0;          // KL(pi || p)
};

// A text, of which token i has row i of q and of p (in double, as many), whatever was before it.
struct text_rows {
  std::size_t vocabulary = 0;
  rows q, p;
  const text_policy* policy = nullptr;  // one with state
  double state = 0;                     // before the first token
};

// A policy of the library, described (policy/catalogue.hpp).
struct parameter {
  const char* name;
  double low, high, usual;
  bool open, flag;
  const char* word;  // the usual value's name, or null
};
struct known_policy {
  const char *name, *law;
  bool reads_draft, reads_confidence;
  std::size_t count;
  std::array<parameter, 4> parameters;
};

// What an audit found (audit/audit_policy.hpp).
struct audit {
  double worst_error = 0;
  std::size_t pairs = 0, undefined = 0;
  bool passed = false;
};
// Every branch of every round of the grid. Built once, for every machine (python/src/audit.cpp).
audit audited(const policy&, verifier);

}  // namespace engine

extern "C" {
const char* specagg_engine_isa();
// Line 0, 1, ...; false beyond the last.
bool specagg_engine_policy(int line, engine::known_policy* out);
bool specagg_engine_valid(const engine::policy*);
void specagg_engine_verify(const engine::request*, engine::verifier, specagg::verdict*);
// Parts of it, after edits: the usual case (false: it is another), and the others by their type.
bool specagg_engine_verify_usual(const engine::request*, engine::verifier, specagg::verdict*);
void specagg_engine_verify_float(const engine::request*, engine::verifier, specagg::verdict*);
void specagg_engine_verify_double(const engine::request*, engine::verifier, specagg::verdict*);
void specagg_engine_verify_text(const engine::request*, engine::verifier, specagg::verdict*);
void specagg_engine_verify_cut(const engine::request*, engine::verifier, specagg::verdict*);
// path: the accepted nodes, as many as accepted; `path` has room for the tree's depth.
void specagg_engine_verify_tree(const engine::tree_request*, specagg::tree_verdict*,
                                std::uint32_t* path);
specagg::token_id specagg_engine_draw(const engine::draw*);
// pi: V doubles, or null for the numbers alone
specagg::status specagg_engine_law(const engine::pair*, double* pi, engine::pair_numbers*);
// pi: the joint law of texts of p.count tokens, V^p.count doubles (audit/text_law.hpp)
specagg::status specagg_engine_law_of_text(const engine::text_rows*, double* pi);
}
