// SPDX-License-Identifier: Apache-2.0
// What links specagg::openvino: OpenVINO comes with it. A model without tokens is refused.
#include <specagg/backend/openvino/source.hpp>

#include <openvino/op/ops.hpp>
#include <openvino/openvino.hpp>

static_assert(specagg::LogitSource<specagg::openvino_source>);

int main() {
  const auto number =
      std::make_shared<ov::op::v0::Parameter>(ov::element::f32, ov::PartialShape{1, 2});
  const auto twice = std::make_shared<ov::op::v1::Add>(number, number);
  const auto model =
      std::make_shared<ov::Model>(ov::OutputVector{twice}, ov::ParameterVector{number});
  number->output(0).set_names({"number"});
  try {
    specagg::openvino_source source(ov::Core().compile_model(model, "CPU"),
                                    specagg::openvino_options{.capacity = 8});
  } catch (const specagg::error&) {
    return 0;
  }
  return 1;
}
