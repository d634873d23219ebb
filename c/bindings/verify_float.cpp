// SPDX-License-Identifier: Apache-2.0
// Verification of rows that are computed in float. Built once for each instruction set.
#include "verify.hpp"

extern "C" void specagg_engine_verify_float(const engine::request* r, verdict* result) {
  *result = verify_any<float_row>(*r);
}
