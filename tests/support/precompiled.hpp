// SPDX-License-Identifier: Apache-2.0
// What nearly every test includes and nobody edits, precompiled.
#pragma once
#include "support/catch.hpp"
#if !defined(SPECAGG_SCALAR) && __has_include(<xsimd/xsimd.hpp>)
#include <xsimd/xsimd.hpp>
#endif
