/* SPDX-License-Identifier: Apache-2.0
 * The same decisions by the C++ library itself (expected.cpp), for c_library.c. */
#include "specagg.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The policies that expected.cpp knows, in its order. */
#define EXPECTED_POLICIES 5
extern const char* const expected_policies[EXPECTED_POLICIES];

/* As specagg_verify, specagg_draw and specagg_law of one request, with policy number `policy`. */
void expected_verify(const specagg_request* request, int policy, specagg_result* result);
int32_t expected_draw(const specagg_request* request, size_t j);
int32_t expected_law(const specagg_request* request, int policy, size_t j, double* pi,
                     specagg_numbers* numbers);

#ifdef __cplusplus
}
#endif
