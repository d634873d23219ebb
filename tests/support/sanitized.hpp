// SPDX-License-Identifier: Apache-2.0
// SPECAGG_SANITIZED: whether AddressSanitizer or ThreadSanitizer is on. They reserve terabytes of
// address space, so a limit of memory (ulimit -v) stops the program before it begins; and they take
// ten times as long.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // g++
#define SPECAGG_SANITIZED 1
#elif defined(__has_feature)  // clang++
#define SPECAGG_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SPECAGG_SANITIZED 0
#endif
