// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace CLI {
class App;
}

namespace cli {

// specagg plan cos|speculative|record|dssd|dragon|acceptance: the formulas of include/specagg/plan.
// Throws specagg::error for parameters out of range.
void add_plan(CLI::App& app);
// specagg plan schedulers: no closed form, but a simulation (schedulers.cpp).
void add_schedulers(CLI::App& plan);

}  // namespace cli
