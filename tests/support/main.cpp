// SPDX-License-Identifier: Apache-2.0
// Catch2 2 makes main() from this; Catch2 3 brings its own in Catch2::Catch2WithMain.
#define CATCH_CONFIG_MAIN
#include "support/catch.hpp"
