// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>

namespace cli {

// specagg dragon serve|device, specagg dssd serve|device: two sites over a network.
void add_two_sites(CLI::App& app);

}  // namespace cli
