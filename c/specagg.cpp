// SPDX-License-Identifier: Apache-2.0
// The C library: arguments to requests of the engine (c/bindings/engine.hpp), and back.
#include <algorithm>
#include <exception>
#include <limits>
#include <vector>

#include <specagg/config.hpp>
#include <specagg/half.hpp>
#include <specagg/verify/verifiers.hpp>

#include "engine.hpp"
#include "error.hpp"

using c_library::refuse;
using specagg::bonus_choice;
using specagg::token_id;

// The numbers of the header are the library's.
static_assert(SPECAGG_MISSING_ROW == int(specagg::status::missing_row));
static_assert(SPECAGG_INVALID_PARAMETER == int(specagg::status::invalid_parameter));
static_assert(SPECAGG_INVALID_ROW == int(specagg::status::invalid_row));
static_assert(SPECAGG_NO_TOKEN == specagg::no_token);
static_assert(SPECAGG_PROBABILITIES_F64 == int(engine::row_kind::probabilities_f64));
static_assert(SPECAGG_LOGITS_F64 == int(engine::row_kind::logits_f64));
static_assert(SPECAGG_TOKEN == specagg::verifier_number("token"));
static_assert(SPECAGG_BLOCK == specagg::verifier_number("block"));
static_assert(SPECAGG_MATCH == specagg::verifier_number("match"));
static_assert(SPECAGG_COUPLED == specagg::verifier_number("coupled"));
static_assert(SPECAGG_COUPLED + 1 == std::tuple_size_v<specagg::all_verifiers>);
static_assert(SPECAGG_BONUS == int(specagg::origin::bonus));
static_assert(sizeof(token_id) == sizeof(std::int32_t));
static_assert(SPECAGG_ABI_MAJOR == SPECAGG_VERSION_MAJOR);
static_assert(SPECAGG_ABI_MINOR == SPECAGG_VERSION_MINOR);

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// ---- scratch memory: emissions, acceptances, and what the verifier needs -----------------------

struct memory {
  std::span<specagg::emission> out;
  std::span<specagg::draft_acceptance> acceptances;
  std::span<double> scratch;
};
constexpr std::size_t alignment = alignof(specagg::emission);
static_assert(alignment >= alignof(double) && alignment >= alignof(specagg::draft_acceptance));

// Without overflow: see specagg_scratch.
constexpr std::size_t scratch_bytes(std::size_t vocabulary, std::size_t drafted) {
  return alignment - 1 + (drafted + 1) * sizeof(specagg::emission) +
         drafted * sizeof(specagg::draft_acceptance) +
         specagg::verify_scratch(vocabulary, drafted) * sizeof(double);
}
constexpr std::size_t no_memory = std::numeric_limits<std::size_t>::max();

memory divide(void* given, std::size_t vocabulary, std::size_t drafted) {
  auto at = reinterpret_cast<std::uintptr_t>(given);
  at = (at + alignment - 1) / alignment * alignment;
  memory m;
  m.out = {reinterpret_cast<specagg::emission*>(at), drafted + 1};
  std::uninitialized_value_construct(m.out.begin(), m.out.end());
  at += m.out.size_bytes();
  m.acceptances = {reinterpret_cast<specagg::draft_acceptance*>(at), drafted};
  std::uninitialized_value_construct(m.acceptances.begin(), m.acceptances.end());
  m.scratch = {reinterpret_cast<double*>(at + m.acceptances.size_bytes()),
               specagg::verify_scratch(vocabulary, drafted)};
  return m;
}

// ---- checks: whether the arguments can be used --------------------------------------------------

std::int32_t check_rows(const specagg_rows& rows, std::size_t i, const char* name) {
  if (!rows.data) return SPECAGG_OK;
  if (rows.kind < 0 || rows.kind > SPECAGG_PROBABILITIES_F64)
    return refuse("request %zu: %s.kind: %d is none of enum specagg_kind", i, name, int(rows.kind));
  const std::size_t size = engine::element_size(engine::row_kind(rows.kind));
  if (reinterpret_cast<std::uintptr_t>(rows.data) % size || rows.stride % size)
    return refuse("request %zu: %s: data and stride must be multiples of %zu bytes", i, name, size);
  return SPECAGG_OK;
}

bool is_policy(const specagg_policy& given) {
  engine::known_policy known{};
  return given.line >= 0 && specagg_engine_policy(given.line, &known) && !known.of_text &&
         given.count == known.count && (given.parameters || given.count == 0);
}

std::int32_t check_scratch(const specagg_request& r, std::size_t i, void* scratch,
                           std::size_t bytes) {
  const std::size_t needed = specagg_scratch(r.vocabulary, r.drafted_count);
  if (scratch && bytes >= needed && needed != no_memory) return SPECAGG_OK;
  return refuse("request %zu: scratch: has %zu bytes, where %zu are needed", i, scratch ? bytes : 0,
                needed);
}

std::int32_t check(const specagg_request& r, std::size_t i) {
  if (r.vocabulary == 0 || r.vocabulary > 0x7fffffff)
    return refuse("request %zu: vocabulary: %zu is not in [1, 2^31)", i, r.vocabulary);
  if (r.drafted_count > 0 && !r.drafted) return refuse("request %zu: drafted: is NULL", i);
  if (r.end_of_text_count > 0 && !r.end_of_text)
    return refuse("request %zu: end_of_text: is NULL", i);
  if (const auto wrong = check_rows(r.q, i, "q")) return wrong;
  if (const auto wrong = check_rows(r.p, i, "p")) return wrong;
  if (r.q.data && r.p.data &&
      engine::in_double(engine::row_kind(r.q.kind)) !=
          engine::in_double(engine::row_kind(r.p.kind)))
    return refuse("request %zu: q, p: the kind of one is of double, and not of the other", i);
  if (!r.p.data && r.p.count > 0) return refuse("request %zu: p.data: is NULL", i);
  if (r.policy && !is_policy(*r.policy))
    return refuse("request %zu: policy: was not made by specagg_policy_parse", i);
  if (r.verifier < SPECAGG_TOKEN || r.verifier > SPECAGG_COUPLED)
    return refuse("request %zu: verifier: %d is unknown", i, int(r.verifier));
  if (r.bonus < SPECAGG_BONUS_POLICY || r.bonus > SPECAGG_BONUS_NONE)
    return refuse("request %zu: bonus: %d is unknown", i, int(r.bonus));
  return SPECAGG_OK;
}

// ---- arguments to the engine --------------------------------------------------------------------

// The rows from row `first` on.
engine::rows rows_of(const specagg_rows& given, std::size_t vocabulary, std::size_t drafted,
                     std::size_t first = 0) {
  engine::rows rows;
  rows.count = drafted;  // one-hot rows, unless there are others
  if (!given.data) return rows;
  rows.kind = engine::row_kind(given.kind);
  const std::size_t tight = vocabulary * engine::element_size(rows.kind);
  rows.stride = std::ptrdiff_t(given.stride ? given.stride : tight);
  rows.count = given.count > first ? given.count - first : 0;
  rows.data = static_cast<const std::byte*>(given.data);
  if (rows.count > 0) rows.data += std::ptrdiff_t(first) * rows.stride;
  if (given.sampling && engine::holds_logits(rows.kind)) {
    const specagg_sampling& s = *given.sampling;
    const bool known = s.order >= SPECAGG_HUGGING_FACE && s.order <= SPECAGG_JOINT;
    // an unknown order is no order at all: invalid_parameter
    rows.sampling = {s.temperature, s.top_k, s.top_p, s.min_p,
                     specagg::filter_order(known ? s.order : 255)};
  }
  return rows;
}

engine::policy policy_of(const specagg_policy* given) {
  engine::policy policy;
  if (!given) return policy;  // line 0: lossless
  policy.line = given->line;
  policy.parameters = {given->parameters, given->count};
  return policy;
}

bonus_choice bonus_of(const specagg_request& r) {
  if (r.bonus == SPECAGG_BONUS_TARGET) return bonus_choice::target();
  if (r.bonus == SPECAGG_BONUS_NONE) return false;
  if (r.bonus == SPECAGG_BONUS_POLICY) return true;
  const bool known = r.bonus_token < 0 || std::size_t(r.bonus_token) < r.vocabulary;
  return bonus_choice::given(known ? r.bonus_token : -2);  // -2: token_out_of_range
}

engine::request engine_request(const specagg_request& r, const memory& m, bool acceptances) {
  engine::request e;
  e.drafted = {.tokens = std::span(r.drafted, r.drafted_count),
               .start = r.position,
               .end_of_text = std::span(r.end_of_text, r.end_of_text_count),
               .bonus = bonus_of(r)};
  if (acceptances) e.drafted.acceptances = m.acceptances;
  e.vocabulary = r.vocabulary;
  e.q = rows_of(r.q, r.vocabulary, r.drafted_count);
  e.p = rows_of(r.p, r.vocabulary, 0);
  if (!r.p.data)  // no rows, of the same value type
    e.p.kind =
        engine::in_double(e.q.kind) ? engine::row_kind::logits_f64 : engine::row_kind::logits_f32;
  e.verifier = std::size_t(r.verifier);
  e.policy = policy_of(r.policy);
  e.seed = r.seed;
  e.id = r.request;
  e.out = m.out;
  e.scratch = m.scratch;
  return e;
}

// ---- and back -----------------------------------------------------------------------------------

void keep(const specagg::verdict& v, const memory& m, std::size_t measured,
          specagg_result& result) {
  const auto write = [&](auto* to, auto none, auto&& value) {
    for (std::size_t j = 0; to && j < m.out.size(); ++j)
      to[j] = j < v.emitted ? value(m.out[j]) : none;
  };
  using specagg::emission;
  write(result.tokens, token_id(SPECAGG_NO_TOKEN), [](const emission& e) { return e.token; });
  write(result.log_pi, nan, [](const emission& e) { return e.log_pi; });
  write(result.log_p, nan, [](const emission& e) { return e.log_p; });
  write(result.origins, -1, [](const emission& e) { return std::int32_t(e.from); });
  write(result.reasons, 0, [](const emission& e) { return std::int32_t(e.why); });
  for (std::size_t j = 0; j < m.acceptances.size(); ++j) {
    const bool known = j < measured;
    if (result.acceptance_of_row)
      result.acceptance_of_row[j] = known ? m.acceptances[j].of_row : nan;
    if (result.acceptance_of_token)
      result.acceptance_of_token[j] = known ? m.acceptances[j].of_token : nan;
  }
  result.emitted = v.emitted;
  result.accepted = v.accepted;
  result.status = std::int32_t(v.why);
  result.ended = v.ended;
}

// Row j in double: whether there is one. numbers: its memory.
bool row_in_double(const engine::rows& given, std::size_t vocabulary, std::vector<double>& numbers,
                   engine::rows& row) {
  row = given;
  row.count = 1;
  if (given.kind == engine::row_kind::one_hot) return true;
  if (given.count == 0) return false;
  numbers.resize(vocabulary);
  const auto copy = [&]<class S>(const S* from) {
    for (std::size_t v = 0; v < vocabulary; ++v)
      numbers[v] = double(specagg::detail::number(from[v]));
  };
  using enum engine::row_kind;
  if (given.kind == logits_f16) copy(reinterpret_cast<const specagg::f16*>(given.data));
  else if (given.kind == logits_bf16) copy(reinterpret_cast<const specagg::bf16*>(given.data));
  else if (engine::in_double(given.kind)) copy(reinterpret_cast<const double*>(given.data));
  else copy(reinterpret_cast<const float*>(given.data));
  row.kind = engine::holds_logits(given.kind) ? logits_f64 : probabilities_f64;
  row.data = reinterpret_cast<const std::byte*>(numbers.data());
  return true;
}

}  // namespace

const char* specagg_version() { return SPECAGG_VERSION; }
std::int32_t specagg_abi_version() { return SPECAGG_ABI; }
const char* specagg_isa() { return specagg_engine_isa(); }
const char* specagg_status_name(std::int32_t status) {
  return status < 0 || status > SPECAGG_MISSING_ROW ? "unknown" : name(specagg::status(status));
}
const char* specagg_verifier_name(std::int32_t number) {
  const char* name = nullptr;
  specagg::with_verifier(std::size_t(number), 0, 0, [&](const auto& one) { name = one.name; });
  return name;
}
const char* specagg_last_error() { return c_library::last_error; }

std::size_t specagg_scratch(std::size_t vocabulary, std::size_t drafted_count) {
  constexpr std::size_t of_token = scratch_bytes(1, 1) - scratch_bytes(1, 0);
  if (vocabulary > no_memory / 2 || drafted_count > no_memory / 2 / of_token) return no_memory;
  return scratch_bytes(vocabulary, drafted_count);
}

std::int32_t specagg_verify(const specagg_request* requests, specagg_result* results,
                            std::size_t count, void* scratch, std::size_t scratch_bytes) {
  c_library::forget_error();
  for (std::size_t i = 0; results && i < count; ++i) {
    results[i].emitted = results[i].accepted = 0;
    results[i].status = SPECAGG_INVALID_PARAMETER;
    results[i].ended = SPECAGG_NO_TOKEN;
  }
  if (count > 0 && (!requests || !results))
    return refuse("%s: is NULL", requests ? "results" : "requests");
  for (std::size_t i = 0; i < count; ++i) {
    if (const auto wrong = check(requests[i], i)) return wrong;
    if (const auto wrong = check_scratch(requests[i], i, scratch, scratch_bytes)) return wrong;
    if (!results[i].tokens) return refuse("result %zu: tokens: is NULL", i);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const specagg_request& r = requests[i];
    const bool acceptances = results[i].acceptance_of_row || results[i].acceptance_of_token;
    const memory m = divide(scratch, r.vocabulary, r.drafted_count);
    const engine::request e = engine_request(r, m, acceptances);
    specagg::verdict v;
    specagg_engine_verify(&e, &v);
    keep(v, m, acceptances ? e.drafted.size() : 0, results[i]);
  }
  return SPECAGG_OK;
}

std::int32_t specagg_draw(const specagg_request* request, std::size_t j, void* scratch,
                          std::size_t scratch_bytes) {
  c_library::forget_error();
  if (!request) return refuse("request: is NULL"), SPECAGG_NO_TOKEN;
  if (check(*request, 0) || check_scratch(*request, 0, scratch, scratch_bytes))
    return SPECAGG_NO_TOKEN;
  if (!request->q.data || j >= request->q.count)
    return refuse("request 0: q: has no row %zu", j), SPECAGG_NO_TOKEN;
  const memory m = divide(scratch, request->vocabulary, request->drafted_count);
  engine::draw d;
  d.vocabulary = request->vocabulary;
  d.q = rows_of(request->q, request->vocabulary, 0, j);
  d.seed = request->seed;
  d.id = request->request;
  d.start = request->position;
  d.step = std::uint32_t(j);
  d.coupled = request->verifier == SPECAGG_COUPLED;
  d.scratch = m.scratch;
  return specagg_engine_draw(&d);
}

std::int32_t specagg_law(const specagg_request* request, std::size_t j, double* pi,
                         specagg_numbers* numbers) try {
  c_library::forget_error();
  if (!request) return refuse("request: is NULL");
  if (const auto wrong = check(*request, 0)) return wrong;
  engine::pair two;
  std::vector<double> q, p;
  const std::size_t V = request->vocabulary;
  if (!row_in_double(rows_of(request->q, V, 0, j), V, q, two.q) || !request->p.data ||
      !row_in_double(rows_of(request->p, V, 0, j), V, p, two.p))
    return SPECAGG_MISSING_ROW;
  if (!request->q.data && j >= request->drafted_count) return SPECAGG_MISSING_ROW;
  two.vocabulary = V;
  if (!request->q.data) two.drafted = request->drafted[j];
  two.policy = policy_of(request->policy);
  engine::pair_numbers found;
  std::vector<double> law(V);
  const specagg::status why = specagg_engine_law(&two, law.data(), &found);
  if (why != specagg::status::ok) return std::int32_t(why);
  if (pi) std::copy(law.begin(), law.end(), pi);
  if (numbers)
    *numbers = {found.acceptance, found.distance_to_target, found.distance, found.divergence};
  return SPECAGG_OK;
} catch (const std::exception&) {
  return refuse("no memory for rows of %zu numbers", request->vocabulary);
}
