// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace cli {

// --version: the version, the instruction set of the kernels, the compiler, and what was built in.
std::string version_text();

}  // namespace cli
