// SPDX-License-Identifier: Apache-2.0
// Headers of platforms define macros of common words. Our headers can be included after them.
#include "support/catch.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

// windows.h
#define near
#define far
#define small char
#define interface struct
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define IN
#define OUT
#define OPTIONAL
#define ERROR 0
#define DELETE 0x10000
#define TRUE 1
#define FALSE 0
// AssertMacros.h of macOS
#define check(assertion) static_cast<void>(assertion)
#define verify(assertion) static_cast<void>(assertion)
#define require(assertion, label) \
  if (!(assertion)) goto label
// sys/sysmacros.h
#define major(device) ((device) >> 8)
#define minor(device) ((device) & 255)

#include <specagg/sites.hpp>

#include "../../c/specagg.h"

// They are the includer's again (specagg/detail/restore_macros.hpp).
#if !defined(near) || !defined(far) || !defined(small) || !defined(min) || !defined(max) || \
    !defined(check) || !defined(verify)
#error "a macro of the includer is gone"
#endif
static_assert(min(1, 2) == 1 && max(1, 2) == 2);

#undef check
#undef verify

TEST_CASE("the headers can be included after macros of common words") {
  const double inf = specagg::infinity, q[] = {0, -inf}, p[] = {-inf, 0};
  const specagg::token_id drafted[] = {0};
  specagg::emission out[1];
  double scratch[specagg::verify_scratch(2)];
  const auto verdict =
      specagg::verify_token({.tokens = drafted, .bonus = false}, specagg::rows_of_logits(q, 2),
                            specagg::rows_of_logits(p, 2), specagg::minimum<>{},
                            specagg::random_streams(1, 0), out, scratch);
  CHECK(verdict.why == specagg::status::undefined_target);  // no token has min(q, p) > 0
}
