// SPDX-License-Identifier: Apache-2.0
// Writes the models of the example: target.xml and draft.xml. usage: save_models FOLDER
#include "backend/openvino/models.hpp"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  for (const unsigned seed : {1u, 2u})
    ov::save_model(test::ov_builder({.seed = seed}).attention_model(),
                   std::string(arguments[1]) + (seed == 1 ? "/target.xml" : "/draft.xml"), false);
}
