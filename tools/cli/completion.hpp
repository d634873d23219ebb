// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>

namespace cli {

// specagg completion bash|zsh|fish: a script for the shell, written from the program's own commands
// and options.
void add_completion(CLI::App& program);

}  // namespace cli
