// SPDX-License-Identifier: Apache-2.0
// The parts of the module.
#pragma once
#include <nanobind/nanobind.h>

namespace python {

void bind_plan(nanobind::module_ plan);
void bind_verify(nanobind::module_& m);
void bind_tree(nanobind::module_& m);  // after bind_verify: its results are verified batches
void bind_rows(nanobind::module_& m);

}  // namespace python
