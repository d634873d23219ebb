// SPDX-License-Identifier: Apache-2.0
// What links specagg::llama_cpp: libllama comes with it. A file that is no model is refused.
#include <specagg/backend/llama_cpp/model.hpp>
#include <specagg/backend/llama_cpp/source.hpp>
#include <specagg/logit_source.hpp>

static_assert(specagg::LogitSource<specagg::llama_cpp::source>);

int main(int, char** arguments) {
  try {
    specagg::llama_cpp::load_model(arguments[0]);
  } catch (const specagg::error&) {
    return 0;
  }
  return 1;
}
