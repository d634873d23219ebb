// SPDX-License-Identifier: Apache-2.0
// What links specagg::executorch: ExecuTorch comes with it. A file that is no program is refused.
#include <specagg/backend/executorch/source.hpp>

static_assert(specagg::LogitSource<specagg::executorch_source>);

int main(int, char** arguments) {
  try {
    executorch::extension::Module module(arguments[0]);
    specagg::executorch_source source(module);
  } catch (const specagg::error&) {
    return 0;
  }
  return 1;
}
