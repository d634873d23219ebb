// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/tensor.hpp>

#include "support/catch.hpp"

using namespace specagg::cpu;

TEST_CASE(
    "a row of a tensor takes the bytes of its elements, quantised ones 18, 20 or 34 for each 32") {
  CHECK(row_bytes(tensor_type::f32, 64) == 256);
  CHECK(row_bytes(tensor_type::f16, 64) == 128);
  CHECK(row_bytes(tensor_type::bf16, 64) == 128);
  CHECK(row_bytes(tensor_type::q4_0, 64) == 36);
  CHECK(row_bytes(tensor_type::q4_1, 64) == 40);
  CHECK(row_bytes(tensor_type::q8_0, 64) == 68);
}
TEST_CASE("types of tensors have the names of the GGUF specification, later ones their number") {
  using specagg::cpu::detail::tensor_type_name;
  CHECK((tensor_type_name(0) == "F32" && tensor_type_name(1) == "F16" &&
         tensor_type_name(8) == "Q8_0"));
  CHECK((tensor_type_name(12) == "Q4_K" && tensor_type_name(27) == "I64" &&
         tensor_type_name(30) == "BF16"));
  CHECK((tensor_type_name(39) == "MXFP4" && tensor_type_name(40) == "40"));
}
