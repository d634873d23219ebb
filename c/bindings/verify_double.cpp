// SPDX-License-Identifier: Apache-2.0
// Verification of rows that are computed in double. Built once for each instruction set.
#include "verify.hpp"

extern "C" void specagg_engine_verify_double(const engine::request* r, verdict* result) {
  *result = verify_any<double_row>(*r);
}
