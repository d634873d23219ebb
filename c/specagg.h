/* SPDX-License-Identifier: Apache-2.0
 *
 * specagg for C: decides which drafted tokens a language model emits, exactly, with the same tokens
 * on every machine. docs/c.md has an example.
 *
 * A policy says which law an emitted token has, as a function of q, the draft model's row, and p,
 * the target's. Every struct but specagg_sampling may be zeroed first: zero is the default of a
 * member. No function keeps a pointer. Threads may call all of them at once, each with scratch
 * memory and results of its own. Only specagg_law allocates memory, which it frees before it
 * returns. Nothing that is written may overlap what is read.
 */
#ifndef SPECAGG_H
#define SPECAGG_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SPECAGG_API __attribute__((visibility("default")))
#else
#define SPECAGG_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The number of this header's functions and structs, 1000 major + minor: those of the soname. A
 * library that is loaded by name has the same structs if its specagg_abi_version() is this. */
#define SPECAGG_ABI_MAJOR 0
#define SPECAGG_ABI_MINOR 5
#define SPECAGG_ABI (1000 * SPECAGG_ABI_MAJOR + SPECAGG_ABI_MINOR)

/* No token. In a draft: it ends here. */
#define SPECAGG_NO_TOKEN (-1)

/* What happened to a request, or to a call. */
enum specagg_status {
  SPECAGG_OK,
  SPECAGG_DRAFT_NOT_IN_SUPPORT, /* a drafted token with q = 0: the draft ended before it */
  SPECAGG_TOKEN_OUT_OF_RANGE,   /* a drafted id outside the vocabulary: the draft ended before it */
  SPECAGG_INVALID_ROW,          /* NaN, +inf, a negative probability, or every token masked */
  SPECAGG_NOT_NORMALISED,       /* probabilities whose sum is further than 1e-3 from 1 */
  SPECAGG_UNDEFINED_TARGET,     /* the policy has no law for these rows */
  SPECAGG_VOCABULARY_MISMATCH,
  SPECAGG_INVALID_PARAMETER,
  SPECAGG_CONTEXT_FULL,
  SPECAGG_MODEL_FAILED,
  SPECAGG_STOPPED,
  SPECAGG_ROLLBACK_REFUSED,
  SPECAGG_NO_DRAFT,
  SPECAGG_MISSING_ROW /* there are fewer rows than the position needs */
};

/* What the numbers of a row are. */
enum specagg_kind {
  SPECAGG_LOGITS_F32,
  SPECAGG_LOGITS_F16,
  SPECAGG_LOGITS_BF16,
  SPECAGG_LOGITS_F64,
  SPECAGG_PROBABILITIES_F32,
  SPECAGG_PROBABILITIES_F64
};

/* How drafted tokens are verified; specagg_verifier_name has the names. COUPLED: drafts that
 * specagg_draw drew for a coupled request. */
enum specagg_verifier { SPECAGG_TOKEN, SPECAGG_BLOCK, SPECAGG_MATCH, SPECAGG_COUPLED };

/* The token after a draft whose tokens were all accepted, if the text has not ended. */
enum specagg_bonus {
  SPECAGG_BONUS_POLICY, /* drawn from the policy's law: needs q there if the policy reads it */
  SPECAGG_BONUS_TARGET, /* drawn from p: no row of q is needed there */
  SPECAGG_BONUS_GIVEN,  /* bonus_token, which the caller drew: no row is needed there */
  SPECAGG_BONUS_NONE
};

/* Where an emitted token is from. */
enum specagg_origin {
  SPECAGG_ACCEPTED,
  SPECAGG_RESIDUAL, /* drawn in place of a rejected token */
  SPECAGG_BONUS     /* the bonus, or drawn where the draft ended before its last token */
};

/* A policy with its parameters, made by specagg_policy_parse.
 *   parameters  memory for them, which the caller sets and keeps: copies of the struct share it. May
 *               be NULL if the policy has none
 *   room        how many numbers that memory holds
 *   count       how many the policy has; written
 *   reads_draft whether its law depends on q; written
 *   line        the library's */
typedef struct specagg_policy {
  double* parameters;
  size_t room, count;
  int32_t line, reads_draft;
} specagg_policy;

/* In which order temperature and filters act, each on what the step before has left. */
enum specagg_filter_order {
  SPECAGG_HUGGING_FACE, /* temperature, top-k, top-p, min-p */
  SPECAGG_VLLM,         /* temperature, min-p, top-k, top-p */
  SPECAGG_LLAMA_CPP,    /* top-k, top-p, min-p, temperature */
  SPECAGG_JOINT         /* temperature, top-k and top-p both of the whole row, min-p */
};

/* How rows of logits are sampled: temperature (0: the most likely token), top-k (0, or at least V:
 * off), top-p (1: off), min-p (0: off), and their order, enum specagg_filter_order. Here zero is no
 * default: where no sampling is given, temperature is 1, without filters. */
typedef struct specagg_sampling {
  double temperature;
  uint32_t top_k;
  double top_p, min_p;
  int32_t order;
} specagg_sampling;

/* `count` rows of V numbers, each `stride` bytes after the one before. A mask is -inf in a logit.
 *   data      aligned to its numbers. NULL: no rows; of q: the drafted tokens were chosen, not
 *             drawn, and count is not read
 *   stride    a multiple of a number's size. 0: V numbers
 *   kind      enum specagg_kind. q and p are both of double, or neither
 *   sampling  of logits. NULL: temperature 1, without filters. Not read with probabilities, which
 *             are what the tokens were drawn from */
typedef struct specagg_rows {
  const void* data;
  size_t count, stride;
  int32_t kind;
  const specagg_sampling* sampling;
} specagg_rows;

/* A draft to verify.
 *   vocabulary   V: how many numbers a row has
 *   drafted      [drafted_count]; SPECAGG_NO_TOKEN ends it. May be NULL if drafted_count is 0
 *   q            the rows that the tokens were drawn from, drafted_count of them; one more where
 *                the policy reads q and draws the bonus
 *   p            the target's rows: drafted_count, and one more where a bonus is drawn
 *   policy       NULL: lossless, whose law is p
 *   verifier     enum specagg_verifier
 *   bonus        enum specagg_bonus
 *   bonus_token  read with SPECAGG_BONUS_GIVEN; SPECAGG_NO_TOKEN: none
 *   seed, request, position
 *                random numbers depend on these alone. Every request of a seed has a number of its
 *                own; position: of the first drafted token in the text
 *   end_of_text  [end_of_text_count] tokens that end a text; may be NULL if there are none */
typedef struct specagg_request {
  size_t vocabulary;
  const int32_t* drafted;
  size_t drafted_count;
  specagg_rows q, p;
  const specagg_policy* policy;
  int32_t verifier, bonus, bonus_token;
  uint32_t position;
  uint64_t seed, request;
  const int32_t* end_of_text;
  size_t end_of_text_count;
} specagg_request;

/* What was decided. The caller sets the pointers, and the library writes the rest.
 *   tokens         [drafted_count + 1]: the emitted tokens, then SPECAGG_NO_TOKEN
 *   log_pi, log_p  [drafted_count + 1], or NULL: a token's log-probability under the policy's law
 *                  and under p; NaN of a given bonus, and where there is no token
 *   origins        [drafted_count + 1], or NULL: enum specagg_origin; -1 where there is no token
 *   reasons        [drafted_count + 1], or NULL: SPECAGG_OK, or what ended the draft there
 *   acceptance_of_row, acceptance_of_token
 *                  [drafted_count], or NULL: the probability that a token drawn from the row of q
 *                  is accepted, and that the drafted one is; NaN beyond the draft. They cost a pass
 *                  over the rows of each position
 *   emitted        how many tokens there are
 *   accepted       how many of them were drafted
 *   status         SPECAGG_OK, or why no token follows those that were emitted; where the call was
 *                  refused SPECAGG_INVALID_PARAMETER, with no token emitted
 *   ended          the end-of-text token that was emitted last, or SPECAGG_NO_TOKEN */
typedef struct specagg_result {
  int32_t* tokens;
  double *log_pi, *log_p;
  int32_t *origins, *reasons;
  double *acceptance_of_row, *acceptance_of_token;
  size_t emitted, accepted;
  int32_t status, ended;
} specagg_result;

/* Numbers of one position: how often a token drawn from q is accepted by SPECAGG_TOKEN; the total
 * variation between pi and p, and between q and p; KL(pi || p). */
typedef struct specagg_numbers {
  double acceptance, distance_to_target, distance, divergence;
} specagg_numbers;

/* "MAJOR.MINOR.PATCH". */
SPECAGG_API const char* specagg_version(void);

/* SPECAGG_ABI of the library. */
SPECAGG_API int32_t specagg_abi_version(void);

/* The instruction set that was chosen for this machine, for reports: "avx512". */
SPECAGG_API const char* specagg_isa(void);

/* The name of a status, "invalid_row"; "unknown" of other numbers. */
SPECAGG_API const char* specagg_status_name(int32_t status);

/* The name of a verifier, "token"; NULL of other numbers. */
SPECAGG_API const char* specagg_verifier_name(int32_t verifier);

/* What was wrong with the arguments of this thread's last call of a function below; "" if nothing.
 * It holds until that thread's next call. */
SPECAGG_API const char* specagg_last_error(void);

/* The name of policy 0, 1, ..., "lossless", for specagg_policy_parse; NULL beyond the last. */
SPECAGG_API const char* specagg_policy_name(int32_t number);

/* A policy by its name and parameters, as on the command line: "token_v3:alpha=0.3". What is not
 * named has its default. An unknown name or parameter, a value out of range, or too little room for
 * the parameters is SPECAGG_INVALID_PARAMETER; then their memory may have changed, and *policy has
 * not. */
SPECAGG_API int32_t specagg_policy_parse(const char* text, specagg_policy* policy);

/* Bytes of scratch memory for requests with at most so many tokens in vocabulary and draft;
 * SIZE_MAX if they are more than memory can have. */
SPECAGG_API size_t specagg_scratch(size_t vocabulary, size_t drafted_count);

/* Decides `count` requests, one after the other, on this thread. results[i]: of requests[i]; what
 * may not be NULL is `tokens`. scratch: specagg_scratch of the largest vocabulary and draft, bytes,
 * at any address. SPECAGG_INVALID_PARAMETER: a NULL or an unknown number where none may be, memory
 * that is not aligned, or too little scratch. Then nothing was decided, each result has that
 * status, too, and specagg_last_error says where. What is wrong with rows, tokens or sampling is
 * the status of its request alone. */
SPECAGG_API int32_t specagg_verify(const specagg_request* requests, specagg_result* results,
                                   size_t count, void* scratch, size_t scratch_bytes);

/* Draws drafted token j from row j of q, with the random numbers that belong to this request; with
 * SPECAGG_COUPLED, with the noise that verification shares. The caller writes it to drafted[j];
 * drafted and p are not read. SPECAGG_NO_TOKEN: the row is invalid, or its sampling is out of
 * range; or the arguments are wrong, and specagg_last_error is not "". */
SPECAGG_API int32_t specagg_draw(const specagg_request* request, size_t j, void* scratch,
                                 size_t scratch_bytes);

/* The law of position j of a request, computed in double: pi [V], or NULL; numbers, or NULL.
 * Without rows of q its row is drafted[j] with probability 1. The status says why there is no law,
 * and nothing is written then. Verification in float has this law to 1e-6. */
SPECAGG_API int32_t specagg_law(const specagg_request* request, size_t j, double* pi,
                                specagg_numbers* numbers);

#ifdef __cplusplus
}
#endif

#endif
