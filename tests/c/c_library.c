/* SPDX-License-Identifier: Apache-2.0
 * The C library against the C++ library, bit for bit, and what it refuses. */
#include "specagg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expected.h"

enum { V = 1500, GAMMA = 3, OUT = GAMMA + 1 };

static int checks = 0, failures = 0;
#define CHECK(x)                                              \
  do {                                                        \
    ++checks;                                                 \
    if (!(x)) {                                               \
      ++failures;                                             \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
    }                                                         \
  } while (0)

/* Counts what is allocated, in the library, too. */
extern void* __libc_malloc(size_t);
static int allocations = 0;
void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}

/* ---- rows ---- */

static uint64_t state = 1;
static double uniform(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (double)(state >> 11) / 9007199254740992.0;
}

static uint16_t bf16_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}
/* Of normal numbers of at least 2^-14: what is below is 0. */
static uint16_t f16_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int exponent = (int)(bits >> 23 & 255) - 127;
  const uint32_t sign = bits >> 16 & 0x8000;
  return (uint16_t)(exponent < -14 ? sign
                                   : sign | (uint32_t)(exponent + 15) << 10 | (bits >> 13 & 1023));
}

/* One round: its rows in every kind, and where they are. */
struct round {
  float f32[2][OUT][V], sums[2][OUT][V];
  double f64[2][OUT][V], sums64[2][OUT][V];
  uint16_t f16[2][OUT][V], bf16[2][OUT][V];
  int32_t drafted[GAMMA];
};
static struct round now;

static void make_round(void) {
  for (int m = 0; m < 2; ++m)
    for (int j = 0; j < OUT; ++j) {
      double total = 0;
      for (int v = 0; v < V; ++v) {
        const float x = (float)(6 * uniform() * uniform()) + (m ? now.f32[0][j][v] : 0);
        now.f32[m][j][v] = x;
        now.f64[m][j][v] = x;
        now.f16[m][j][v] = f16_of(x);
        now.bf16[m][j][v] = bf16_of(x);
        total += exp(x);
      }
      for (int v = 0; v < V; ++v) {
        now.sums64[m][j][v] = exp(now.f64[m][j][v]) / total;
        now.sums[m][j][v] = (float)now.sums64[m][j][v];
      }
    }
}
static specagg_rows rows_of(int model, int kind, size_t count, const specagg_sampling* sampling) {
  const void* const data[] = {now.f32[model], now.f16[model],  now.bf16[model],
                              now.f64[model], now.sums[model], now.sums64[model]};
  specagg_rows rows = {0};
  rows.data = data[kind];
  rows.count = count;
  rows.kind = kind;
  rows.sampling = sampling;
  return rows;
}

/* ---- results ---- */

struct room {
  int32_t tokens[OUT], origins[OUT], reasons[OUT];
  double log_pi[OUT], log_p[OUT], of_row[GAMMA], of_token[GAMMA];
};
static specagg_result result_in(struct room* room, int acceptances) {
  specagg_result result = {0};
  memset(room, 77, sizeof *room);
  result.tokens = room->tokens;
  result.origins = room->origins;
  result.reasons = room->reasons;
  result.log_pi = room->log_pi;
  result.log_p = room->log_p;
  result.acceptance_of_row = acceptances ? room->of_row : NULL;
  result.acceptance_of_token = acceptances ? room->of_token : NULL;
  return result;
}

/* The same number, or none in both: NaN has many bits. */
static int same(const double* a, const double* b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (memcmp(a + i, b + i, sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]))) return 0;
  return 1;
}

static uint64_t hash = 1469598103934665603u;
static void put(const void* bytes, size_t n) {
  for (size_t i = 0; i < n; ++i) hash = (hash ^ ((const unsigned char*)bytes)[i]) * 1099511628211u;
}

static int seen_origin[3], seen_status[SPECAGG_MISSING_ROW + 1];
static void compare(const specagg_request* request, int policy, void* scratch, size_t bytes) {
  static struct room mine, theirs;
  const int acceptances = request->seed % 2 == 0;
  specagg_result a = result_in(&mine, acceptances), b = result_in(&theirs, acceptances);
  const int before = allocations;
  CHECK(specagg_verify(request, &a, 1, scratch, bytes) == SPECAGG_OK);
  CHECK(allocations == before);
  CHECK(strcmp(specagg_last_error(), "") == 0);
  expected_verify(request, policy, &b);
  CHECK(memcmp(mine.tokens, theirs.tokens, sizeof mine.tokens) == 0);
  CHECK(memcmp(mine.origins, theirs.origins, sizeof mine.origins) == 0);
  CHECK(memcmp(mine.reasons, theirs.reasons, sizeof mine.reasons) == 0);
  CHECK(same(mine.log_pi, theirs.log_pi, OUT) && same(mine.log_p, theirs.log_p, OUT));
  if (acceptances) {
    CHECK(same(mine.of_row, theirs.of_row, GAMMA) && same(mine.of_token, theirs.of_token, GAMMA));
    CHECK(now.drafted[0] < 0 || (mine.of_row[0] >= 0 && mine.of_row[0] <= 1.00001));
  }
  CHECK(a.emitted == b.emitted && a.accepted == b.accepted);
  CHECK(a.status == b.status && a.ended == b.ended);
  ++seen_status[a.status];
  for (size_t j = 0; j < a.emitted; ++j) ++seen_origin[mine.origins[j]];
  put(mine.tokens, sizeof mine.tokens);
  for (size_t j = 0; j < a.emitted; ++j)
    if (!isnan(mine.log_pi[j])) put(&mine.log_pi[j], sizeof(double));
}

/* ---- tests ---- */

static specagg_policy policies[EXPECTED_POLICIES];
static double parameters[EXPECTED_POLICIES][4];

/* Every policy, verifier, kind of rows and bonus. */
static void same_as_cpp(void) {
  const specagg_sampling greedy = {0, 0, 1, 0, SPECAGG_HUGGING_FACE};
  specagg_sampling warm = {0.7, 40, 0.8, 0.01, SPECAGG_HUGGING_FACE};
  const int32_t ends[] = {3, 5};
  const size_t bytes = specagg_scratch(V, GAMMA);
  char* const memory = malloc(bytes + 9);
  memory[bytes + 8] = 42; /* behind scratch */
  for (int n = 0; n < 1200; ++n) {
    if (n % 12 == 0) make_round();
    const int policy = n % EXPECTED_POLICIES, kind = n / 5 % 6, without = n % 7 == 3;
    const int target = kind == 4 ? SPECAGG_LOGITS_BF16 : kind; /* of two kinds in one request */
    const specagg_sampling* const how = n % 3 == 0 ? NULL : n % 31 == 1 ? &greedy : &warm;
    warm.order = n / 7 % 4;
    specagg_request r = {0};
    r.vocabulary = V;
    r.drafted = now.drafted;
    r.drafted_count = GAMMA;
    r.policy = policy == 0 && n % 2 ? NULL : &policies[policy];
    r.verifier = n / 30 % 4;
    r.bonus = n % 11 % 4;
    r.bonus_token = n % 13 == 0 ? SPECAGG_NO_TOKEN : n;
    r.seed = (uint64_t)n;
    r.request = (uint64_t)n * 7;
    r.position = (uint32_t)n * 5;
    r.end_of_text = ends;
    r.end_of_text_count = n % 4 == 0 ? 2 : 0;
    r.q = rows_of(0, kind, OUT, how);
    r.p = rows_of(1, target, n % 17 == 5 ? 2 : OUT, how);
    char* const scratch = memory + n % 8; /* at any address */
    for (size_t j = 0; j < GAMMA; ++j) {
      const int before = allocations;
      now.drafted[j] = specagg_draw(&r, j, scratch, bytes);
      CHECK(allocations == before);
      CHECK(now.drafted[j] >= 0 && now.drafted[j] == expected_draw(&r, j));
    }
    if (n % 19 == 2) now.drafted[n % GAMMA] = n % 2 ? V : SPECAGG_NO_TOKEN;
    if (n % 2 == 0) r.q.count = GAMMA;
    if (without) r.q.data = NULL;
    if (without && (target == SPECAGG_LOGITS_F64 || policy == 0)) r.verifier = SPECAGG_TOKEN;
    compare(&r, policy, scratch, bytes);
    double pi[V], due[V];
    specagg_numbers a, b;
    if (target == kind && kind % 3 == 0 && !without) {
      const int32_t why = specagg_law(&r, 1, pi, &a);
      if (kind == SPECAGG_LOGITS_F64) {
        CHECK(why == expected_law(&r, policy, 1, due, &b));
        CHECK(why != SPECAGG_OK || (same(pi, due, V) && memcmp(&a, &b, sizeof a) == 0));
      } else {
        CHECK(why == SPECAGG_OK && specagg_law(&r, 1, NULL, NULL) == SPECAGG_OK);
      }
    }
  }
  CHECK(memory[bytes + 8] == 42);
  for (int i = 0; i < 3; ++i) CHECK(seen_origin[i] > 50);
  CHECK(seen_status[SPECAGG_OK] > 500 && seen_status[SPECAGG_MISSING_ROW] > 5);
  free(memory);
}

/* Of a batch each request has its own status; strides; tokens alone. */
static void a_batch(void) {
  enum { B = 5 };
  const size_t bytes = specagg_scratch(V, GAMMA);
  void* const scratch = malloc(bytes);
  specagg_request r[B];
  specagg_result results[B];
  int32_t tokens[B][OUT];
  const specagg_sampling below_zero = {-1, 0, 1, 0, SPECAGG_VLLM},
                         no_order = {1, 0, 1, 0, SPECAGG_JOINT + 1};
  make_round();
  memset(r, 0, sizeof r);
  memset(results, 0, sizeof results);
  for (int i = 0; i < B; ++i) {
    r[i].vocabulary = i == 4 ? V / 2 : V;
    r[i].request = (uint64_t)i;
    r[i].drafted = now.drafted;
    r[i].drafted_count = GAMMA;
    r[i].q = rows_of(0, SPECAGG_LOGITS_F32, OUT, NULL);
    r[i].p = rows_of(1, SPECAGG_LOGITS_F32, OUT, NULL);
    r[i].p.stride = r[i].q.stride = V * sizeof(float);
    results[i].tokens = tokens[i];
  }
  for (size_t j = 0; j < GAMMA; ++j) now.drafted[j] = specagg_draw(&r[0], j, scratch, bytes);
  float broken[OUT][V];
  memcpy(broken, now.f32[1], sizeof broken);
  broken[0][7] = NAN;
  r[1].p.data = broken;
  r[2].p.sampling = &below_zero;
  r[3].drafted_count = 0;
  r[3].bonus = SPECAGG_BONUS_GIVEN;
  r[3].bonus_token = V; /* outside the vocabulary */
  r[3].p.data = NULL;
  r[3].p.count = 0;
  CHECK(specagg_verify(r, results, B, scratch, bytes) == SPECAGG_OK);
  CHECK(results[0].status == SPECAGG_OK && results[0].emitted > 0 && tokens[0][0] >= 0);
  CHECK(results[1].status == SPECAGG_INVALID_ROW && results[1].emitted == 0);
  CHECK(tokens[1][0] == SPECAGG_NO_TOKEN);
  CHECK(results[2].status == SPECAGG_INVALID_PARAMETER && results[2].emitted == 0);
  CHECK(results[3].status == SPECAGG_TOKEN_OUT_OF_RANGE && results[3].emitted == 0);
  CHECK(results[4].status == SPECAGG_OK && results[4].emitted > 0);
  r[3].bonus_token = 9;
  CHECK(specagg_verify(r + 3, results + 3, 1, scratch, bytes) == SPECAGG_OK);
  CHECK(results[3].emitted == 1 && tokens[3][0] == 9);
  CHECK(specagg_verify(NULL, NULL, 0, NULL, 0) == SPECAGG_OK);
  r[2].p.sampling = &no_order;
  CHECK(specagg_verify(r + 2, results + 2, 1, scratch, bytes) == SPECAGG_OK);
  CHECK(results[2].status == SPECAGG_INVALID_PARAMETER && results[2].emitted == 0);

  /* Policies that read the draft need its row for the bonus, unless it is another. */
  double lambda;
  specagg_policy ensemble = {&lambda, 1, 0, 0, 0};
  CHECK(specagg_policy_parse("ensemble", &ensemble) == SPECAGG_OK && ensemble.reads_draft);
  r[0].policy = &ensemble;
  r[0].q = r[0].p; /* all are accepted */
  for (size_t j = 0; j < GAMMA; ++j) now.drafted[j] = specagg_draw(&r[0], j, scratch, bytes);
  r[0].q.count = GAMMA;
  CHECK(specagg_verify(r, results, 1, scratch, bytes) == SPECAGG_OK);
  CHECK(results[0].status == SPECAGG_MISSING_ROW && results[0].emitted == GAMMA);
  r[0].bonus = SPECAGG_BONUS_TARGET;
  CHECK(specagg_verify(r, results, 1, scratch, bytes) == SPECAGG_OK);
  CHECK(results[0].status == SPECAGG_OK && results[0].emitted == OUT);
  free(scratch);
}

static int said(const char* text) {
  if (strstr(specagg_last_error(), text)) return 1;
  fprintf(stderr, "said: %s\n", specagg_last_error());
  return 0;
}

/* Arguments that cannot be used: nothing is written, and the message says where. */
static void refused(void) {
  const size_t bytes = specagg_scratch(V, GAMMA);
  char* const scratch = malloc(bytes);
  specagg_request good = {0}, r;
  struct room room;
  specagg_result result = result_in(&room, 1), two[2];
  const specagg_policy unknown = {NULL, 0, 0, 99, 0}, without = {NULL, 0, 2, 1, 1};
  now.drafted[0] = now.drafted[1] = now.drafted[2] = 1;
  good.vocabulary = V;
  good.drafted = now.drafted;
  good.drafted_count = GAMMA;
  good.q = rows_of(0, SPECAGG_LOGITS_F32, OUT, NULL);
  good.p = rows_of(1, SPECAGG_LOGITS_F32, OUT, NULL);
#define REFUSED(change, text)                                                           \
  do {                                                                                  \
    r = good;                                                                           \
    change;                                                                             \
    result.status = SPECAGG_OK;                                                         \
    result.emitted = 3;                                                                 \
    CHECK(specagg_verify(&r, &result, 1, scratch, bytes) == SPECAGG_INVALID_PARAMETER); \
    CHECK(said(text) && room.tokens[0] == 0x4d4d4d4d);                                  \
    CHECK(result.status == SPECAGG_INVALID_PARAMETER && result.emitted == 0);           \
    CHECK(specagg_draw(&r, 0, scratch, bytes) == SPECAGG_NO_TOKEN && said(text));       \
  } while (0)
  REFUSED(r.vocabulary = 0, "request 0: vocabulary: 0 is not in [1, 2^31)");
  REFUSED(r.drafted = NULL, "request 0: drafted: is NULL");
  REFUSED(r.end_of_text_count = 1, "request 0: end_of_text: is NULL");
  REFUSED(r.q.kind = 6, "request 0: q.kind: 6 is none of enum specagg_kind");
  REFUSED(r.p.kind = -1, "request 0: p.kind: -1 is none");
  REFUSED(r.p.data = (const char*)r.p.data + 1, "request 0: p: data and stride must be multiples");
  REFUSED(r.q.stride = 3, "request 0: q: data and stride must be multiples of 4 bytes");
  REFUSED(r.q = rows_of(0, SPECAGG_LOGITS_F64, OUT, NULL), "request 0: q, p: the kind of one");
  REFUSED(r.p.data = NULL, "request 0: p.data: is NULL");
  REFUSED(r.policy = &unknown, "request 0: policy: was not made by specagg_policy_parse");
  REFUSED(r.policy = &without, "request 0: policy: was not made by specagg_policy_parse");
  REFUSED(r.verifier = 4, "request 0: verifier: 4 is unknown");
  REFUSED(r.bonus = -1, "request 0: bonus: -1 is unknown");
  REFUSED(r.vocabulary = 1024 * V, "request 0: scratch: has");
  for (int shift = 40; shift < 64; ++shift)
    REFUSED(r.drafted_count = (size_t)1 << shift, "request 0: scratch: has");
  REFUSED(r.drafted_count = (size_t)-1, "request 0: scratch: has");
#undef REFUSED
  CHECK(specagg_verify(&good, &result, 1, scratch, bytes - 1) == SPECAGG_INVALID_PARAMETER);
  CHECK(said("scratch: has") && specagg_verify(&good, &result, 1, NULL, bytes) != SPECAGG_OK);
  CHECK(specagg_verify(NULL, &result, 1, scratch, bytes) != SPECAGG_OK &&
        said("requests: is NULL"));
  CHECK(specagg_verify(&good, NULL, 1, scratch, bytes) != SPECAGG_OK && said("results: is NULL"));
  CHECK(specagg_verify(NULL, &result, 1, scratch, (size_t)-1) != SPECAGG_OK);
  r = good;
  r.drafted_count = (size_t)1 << 60;
  CHECK(specagg_verify(&r, &result, 1, scratch, (size_t)-1) != SPECAGG_OK && said("scratch: has"));
  /* The status of every request of a refused call says that nothing was decided. */
  memset(two, 0, sizeof two);
  CHECK(specagg_verify(NULL, two, 2, scratch, bytes) != SPECAGG_OK);
  for (int i = 0; i < 2; ++i)
    CHECK(two[i].status == SPECAGG_INVALID_PARAMETER && two[i].ended == SPECAGG_NO_TOKEN);
  result.tokens = NULL;
  CHECK(specagg_verify(&good, &result, 1, scratch, bytes) != SPECAGG_OK &&
        said("result 0: tokens"));
  CHECK(specagg_draw(&good, OUT, scratch, bytes) == SPECAGG_NO_TOKEN && said("q: has no row 4"));
  CHECK(specagg_draw(NULL, 0, scratch, bytes) == SPECAGG_NO_TOKEN && said("request: is NULL"));
  CHECK(specagg_law(NULL, 0, NULL, NULL) == SPECAGG_INVALID_PARAMETER && said("request: is NULL"));
  CHECK(specagg_law(&good, OUT, NULL, NULL) == SPECAGG_MISSING_ROW);
  now.f32[0][0][0] = NAN;
  CHECK(specagg_draw(&good, 0, scratch, bytes) == SPECAGG_NO_TOKEN && said(""));
  CHECK(strcmp(specagg_last_error(), "") == 0); /* a row, not an argument */
  free(scratch);
}

static void parsed(void) {
  double memory[8];
  specagg_policy policy = {memory, 8, 9, -5, 0};
  const char* const wrong[][2] = {
      {"telepathy", "policy: there is no \"telepathy\""},
      {"regret-budget", "policy: there is no \"regret-budget\""}, /* it has state */
      {"", "policy: there is no \"\""},
      {"lossy:alpha", "policy lossy: \"alpha\" is not of the form key=value"},
      {"lossy:beta=1,alpha=", "policy lossy: alpha: \"\" is not a number"},
      {"lossy:alpha=0.2x", "policy lossy: alpha: \"0.2x\" is not a number"},
      {"lossy:alpha=1", "policy lossy: alpha: 1 is not in [0, 1)"},
      {"lossy:alpha=nan", "policy lossy: alpha: nan is not in"},
      {"ensemble:lambda=1.5", "policy ensemble: lambda: 1.5 is not in [0, 1]"},
      {"ensemble:lambda=0.5,lambda=0.5", "policy ensemble: lambda is given twice"},
      {"ensemble:alpha=0.5", "policy ensemble: \"alpha\" is no parameter of it"},
      {"bild:greedy=2", "policy bild: greedy: \"2\" is neither true nor false"},
      {"lossy:alpha=0.5,beta=0.1", "policy lossy: these parameters do not fit together"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    CHECK(specagg_policy_parse(wrong[i][0], &policy) == SPECAGG_INVALID_PARAMETER);
    CHECK(said(wrong[i][1]) && policy.line == -5 && policy.count == 9);
  }
  CHECK(specagg_policy_parse(NULL, &policy) == SPECAGG_INVALID_PARAMETER && said("text: is NULL"));
  CHECK(specagg_policy_parse("opt", NULL) == SPECAGG_INVALID_PARAMETER && said("policy: is NULL"));
  CHECK(specagg_policy_parse("bild:alpha=1.2,greedy=true", &policy) == SPECAGG_OK);
  CHECK(policy.parameters[0] == 1.2 && policy.parameters[1] == 1 && policy.reads_draft);
  CHECK(specagg_policy_parse("lossy:beta=exact", &policy) == SPECAGG_OK);
  CHECK(specagg_policy_parse("lossless", &policy) == SPECAGG_OK && !policy.reads_draft);
  CHECK(policy.line == 0 && policy.count == 0);
  policy.room = 1;
  CHECK(specagg_policy_parse("lossy", &policy) == SPECAGG_INVALID_PARAMETER);
  CHECK(said("policy lossy: has 2 parameters, and there is room for 1"));
  policy.parameters = NULL;
  policy.room = 8;
  CHECK(specagg_policy_parse("typical", &policy) == SPECAGG_INVALID_PARAMETER);
  CHECK(said("policy typical: has 2 parameters, and there is room for 0"));
  CHECK(specagg_policy_parse("minimum", &policy) == SPECAGG_OK && policy.count == 0);
  policy.parameters = memory;
  for (int i = 0; i < EXPECTED_POLICIES; ++i) {
    policies[i].parameters = parameters[i];
    policies[i].room = 4;
    CHECK(specagg_policy_parse(expected_policies[i], &policies[i]) == SPECAGG_OK);
  }
  int32_t count = 0;
  for (const char* name; (name = specagg_policy_name(count)) != NULL; ++count)
    CHECK(specagg_policy_parse(name, &policy) == SPECAGG_OK);
  CHECK(count > 20 && strcmp(specagg_policy_name(0), "lossless") == 0);
  CHECK(specagg_policy_name(-1) == NULL && specagg_policy_name(count + 1) == NULL);
  CHECK(specagg_abi_version() == SPECAGG_ABI);
  CHECK(strcmp(specagg_verifier_name(SPECAGG_TOKEN), "token") == 0);
  CHECK(strcmp(specagg_verifier_name(SPECAGG_COUPLED), "coupled") == 0);
  CHECK(specagg_verifier_name(-1) == NULL && specagg_verifier_name(4) == NULL);
  CHECK(strcmp(specagg_status_name(SPECAGG_INVALID_ROW), "invalid_row") == 0);
  CHECK(strcmp(specagg_status_name(SPECAGG_MISSING_ROW), "missing_row") == 0);
  CHECK(strcmp(specagg_status_name(14), "unknown") == 0);
  CHECK(strcmp(specagg_status_name(-1), "unknown") == 0);
}

int main(void) {
  parsed();
  same_as_cpp();
  a_batch();
  refused();
  fprintf(stderr, "specagg %s, %s: %d checks, %d failed\n", specagg_version(), specagg_isa(),
          checks, failures);
  printf("%016llx\n", (unsigned long long)hash); /* of all tokens: the same on every machine */
  return failures != 0;
}
