// SPDX-License-Identifier: Apache-2.0
// The only header that includes Catch2, whose versions 2 and 3 differ in headers and in where
// Approx lives.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
