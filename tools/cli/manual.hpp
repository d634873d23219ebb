// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>

namespace cli {

// specagg man: the manual page in roff, written from the program's own commands and options.
void add_manual(CLI::App& program);

}  // namespace cli
