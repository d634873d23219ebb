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
#include <specagg/verify/synthetic.hpp>
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

// A policy of the library: a line of the catalogue, then of the presets (policy/catalogue.hpp),
// with its parameters in the line's order; or one of these two.
constexpr int phase = -1;        // policy/phase.hpp; parts: inside, outside
constexpr int by_position = -2;  // policy/policies_of.hpp; parts: the policy of each position
struct policy {
  int line = 0;
  std::span<const double> parameters = {};
  const policy* parts = nullptr;
  std::size_t part_count = 0;
  std::span<const specagg::token_id> open = {}, close = {};  // of phase
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

struct request {
  specagg::draft drafted;
  std::size_t vocabulary = 0;
  rows q, p;
  std::size_t verifier = 0;  // its number in specagg::all_verifiers
  engine::policy policy;
  engine::edits edits;
  std::uint64_t seed = 0, id = 0;
  std::span<specagg::emission> out;  // one more than drafted
  std::span<double> scratch;         // verify_scratch(V, gamma)
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
  std::size_t verifier = 0;  // its number in specagg::all_tree_verifiers
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
  engine::policy policy;  // one with state
  double state = 0;       // before the first token
};

// A policy of the library, described (policy/catalogue.hpp).
struct known_policy {
  const char *name, *law;
  bool reads_draft, reads_confidence;
  bool of_text;       // it has state, or it is by_position
  std::size_t count;  // of parameters
};
struct parameter {
  const char* name;
  double low, high, usual;
  bool open, flag;
  const char* word;  // the usual value's name, or null
};

// What an audit found (audit/audit_policy.hpp).
struct audit {
  double worst_error = 0;
  std::size_t pairs = 0, undefined = 0;
  bool passed = false;
};
// Every branch of every round of the grid. Built once, for every machine (python/src/audit.cpp).
audit audited(const policy&, std::size_t verifier);

}  // namespace engine

extern "C" {
const char* specagg_engine_isa();
// Line 0, 1, ..., phase, by_position; false of others.
bool specagg_engine_policy(int line, engine::known_policy* out);
// Parameter k of a line of the catalogue.
engine::parameter specagg_engine_parameter(int line, std::size_t k);
// Of a line of the catalogue.
bool specagg_engine_valid(const engine::policy*);
// By a policy of one position.
void specagg_engine_verify(const engine::request*, specagg::verdict*);
// Parts of it, after edits: the usual case (false: it is another), and the others by their type.
bool specagg_engine_verify_usual(const engine::request*, specagg::verdict*);
void specagg_engine_verify_float(const engine::request*, specagg::verdict*);
void specagg_engine_verify_double(const engine::request*, specagg::verdict*);
// By a policy of a text. state: of the text; read and written.
void specagg_engine_verify_text(const engine::request*, double* state, specagg::verdict*);
// As specagg_engine_verify, where row j of q is cut to the tokens with a byte other than 0 at
// kept + j * stride, V bytes (rows/cut_row.hpp).
void specagg_engine_verify_cut(const engine::request*, const std::uint8_t* kept,
                               std::ptrdiff_t stride, specagg::verdict*);
// After one of them has verified: another result in the place of its own (verify/synthetic.hpp).
void specagg_engine_synthetic(const engine::request*, const specagg::synthetic_acceptance*,
                              specagg::verdict*);
// path: the accepted nodes, as many as accepted; `path` has room for the tree's depth.
void specagg_engine_verify_tree(const engine::tree_request*, specagg::tree_verdict*,
                                std::uint32_t* path);
specagg::token_id specagg_engine_draw(const engine::draw*);
// pi: V doubles, or null for the numbers alone
specagg::status specagg_engine_law(const engine::pair*, double* pi, engine::pair_numbers*);
// pi: the joint law of texts of p.count tokens, V^p.count doubles (audit/text_law.hpp)
specagg::status specagg_engine_law_of_text(const engine::text_rows*, double* pi);
}
