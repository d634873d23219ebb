/* SPDX-License-Identifier: Apache-2.0
 * A speculative step in C: an engine's own logits, by the C library (docs/c.md).
 * cc c_library.c $(pkg-config --cflags --libs specagg-c) */
#include <specagg.h>
#include <stdio.h>
#include <stdlib.h>

enum { V = 32000, GAMMA = 4 };
static float q[GAMMA * V], p[(GAMMA + 1) * V]; /* logits of the draft model and of the target */

int main(void) {
  for (unsigned i = 0; i < (GAMMA + 1) * V; ++i) p[i] = (float)(i * 2654435761u % 1000) / 100;
  for (unsigned i = 0; i < GAMMA * V; ++i) q[i] = 0.98f * p[i] + (float)(i % 7) / 1000;

  int32_t drafted[GAMMA], tokens[GAMMA + 1];
  double parameters[8];
  specagg_policy policy = {.parameters = parameters, .room = 8};
  if (specagg_policy_parse("lossy:alpha=0.1", &policy)) return puts(specagg_last_error()), 2;
  const specagg_sampling how = {.temperature = 0.8, .top_k = 50, .top_p = 0.95};
  const specagg_request request = {.vocabulary = V,
                                   .drafted = drafted,
                                   .drafted_count = GAMMA,
                                   .policy = &policy,
                                   .q = {.data = q, .count = GAMMA, .sampling = &how},
                                   .p = {.data = p, .count = GAMMA + 1, .sampling = &how},
                                   .bonus = SPECAGG_BONUS_TARGET,
                                   .seed = 42,
                                   .request = 7,
                                   .position = 17};
  specagg_result result = {.tokens = tokens};
  const size_t bytes = specagg_scratch(V, GAMMA);
  void* scratch = malloc(bytes); /* once, for all steps */

  for (size_t j = 0; j < GAMMA; ++j) drafted[j] = specagg_draw(&request, j, scratch, bytes);
  if (specagg_verify(&request, &result, 1, scratch, bytes)) return puts(specagg_last_error()), 2;
  for (size_t j = 0; j < result.emitted; ++j)
    printf("position %zu: token %d%s\n", request.position + j, (int)tokens[j],
           j < result.accepted ? " (accepted)" : "");
  free(scratch);
  return result.status;
}

// Output:
// position 17: token 9182 (accepted)
// position 18: token 13182 (accepted)
// position 19: token 14718
