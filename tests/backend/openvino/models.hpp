// SPDX-License-Identifier: Apache-2.0
// Small models of random weights, built of OpenVINO's operations in the form of its exporters.
#pragma once
#include <openvino/op/ops.hpp>
#include <openvino/openvino.hpp>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace test {

struct ov_options {
  unsigned seed = 1;
  bool stateful = true;
  ov::element::Type logits = ov::element::f32;
  bool last_row_only = false;
};

// Two layers of attention over a vocabulary of 17 with 64 positions, a head of 16.
class ov_builder {
 public:
  static constexpr std::size_t V = 17, positions = 64;
  explicit ov_builder(const ov_options& how) : how_(how), random_(how.seed) {}

  std::shared_ptr<ov::Model> attention_model() {
    using namespace ov::op;
    const auto ids = parameter("input_ids", {1, -1}), mask = parameter("attention_mask", {1, -1}),
               at = parameter("position_ids", {1, -1});
    if (how_.stateful) beam_ = parameter("beam_idx", {-1}, ov::element::i32);
    node x = std::make_shared<v1::Add>(gather(weights({V, dim}, 0.5f), ids, 0),
                                       gather(weights({positions, dim}, 0.5f), at, 0));
    // A token sees the positions up to its own: [1, 1, n, all].
    const auto all = std::make_shared<v0::Squeeze>(dimension(mask, 1), wholes({0}));
    const auto keys = std::make_shared<v4::Range>(whole(0), all, whole(1), ov::element::i64);
    const auto seen =
        std::make_shared<v1::LessEqual>(keys, std::make_shared<v0::Unsqueeze>(at, wholes({1, 3})));
    const auto bias = std::make_shared<v1::Select>(seen, number(0), number(-1e9f));
    for (int layer = 0; layer < 2; ++layer) {
      const node q = times(x, {dim, dim}, 0.3f), k = kept(times(x, {dim, dim}, 0.3f), layer, "key"),
                 v = kept(times(x, {dim, dim}, 0.3f), layer, "value");
      const node seen_by =
          std::make_shared<v13::ScaledDotProductAttention>(in_head(q), k, v, bias, false);
      const node h = std::make_shared<v1::Add>(
          x, times(std::make_shared<v0::Squeeze>(seen_by, wholes({1})), {dim, dim}, 0.3f));
      const node up = std::make_shared<v0::Relu>(times(h, {dim, 2 * dim}, 0.3f));
      x = std::make_shared<v1::Add>(h, times(up, {2 * dim, dim}, 0.3f));
    }
    return model(x);
  }

  // The state is a sum over the tokens: it cannot go back. Its third dimension has `size` numbers.
  std::shared_ptr<ov::Model> recurrent_model(std::size_t size) {
    using namespace ov::op;
    const auto ids = parameter("input_ids", {1, -1});
    beam_ = parameter("beam_idx", {-1}, ov::element::i32);
    const ov::PartialShape shape{-1, 1, std::int64_t(size)};
    const auto variable = std::make_shared<ov::op::util::Variable>(
        ov::op::util::VariableInfo{shape, ov::element::f32, "sum"});
    const auto start = v0::Constant::create(ov::element::f32, {1, 1, size}, {0.0f});
    const node before = gather(std::make_shared<v6::ReadValue>(start, variable), beam_, 0);
    const node sums = std::make_shared<v1::Add>(
        std::make_shared<v0::CumSum>(gather(weights({V, size}, 0.5f), ids, 0), whole(1)), before);
    const node last =
        std::make_shared<v8::Slice>(sums, wholes({-1}), wholes({-2}), wholes({-1}), wholes({1}));
    sinks_.push_back(std::make_shared<v6::Assign>(last, variable));
    return model(times(std::make_shared<v0::Tanh>(sums), {size, dim}, 0.5f));
  }

 private:
  using node = std::shared_ptr<ov::Node>;
  static constexpr std::size_t dim = 16;

  node parameter(const std::string& name, const ov::PartialShape& shape,
                 ov::element::Type type = ov::element::i64) {
    const auto made = std::make_shared<ov::op::v0::Parameter>(type, shape);
    made->output(0).set_names({name});
    parameters_.push_back(made);
    return made;
  }
  static node whole(std::int64_t x) {
    return ov::op::v0::Constant::create(ov::element::i64, {}, {x});
  }
  static node wholes(const std::vector<std::int64_t>& x) {
    return ov::op::v0::Constant::create(ov::element::i64, {x.size()}, x);
  }
  static node number(float x) { return ov::op::v0::Constant::create(ov::element::f32, {}, {x}); }
  node weights(const ov::Shape& shape, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> w(ov::shape_size(shape));
    for (auto& x : w) x = normal(random_);
    return ov::op::v0::Constant::create(ov::element::f32, shape, w);
  }
  node times(const node& x, const ov::Shape& shape, float scale) {
    return std::make_shared<ov::op::v0::MatMul>(x, weights(shape, scale));
  }
  static node gather(const node& from, const node& which, std::int64_t axis) {
    return std::make_shared<ov::op::v8::Gather>(from, which, whole(axis));
  }
  static node dimension(const node& of, std::int64_t axis) {
    return gather(std::make_shared<ov::op::v3::ShapeOf>(of), wholes({axis}), 0);
  }
  // [1, n, dim] as [1, 1, n, dim]
  static node in_head(const node& x) {
    return std::make_shared<ov::op::v0::Unsqueeze>(x, wholes({1}));
  }
  // Keys or values, after those of the state.
  node kept(const node& x, int layer, const std::string& what) {
    using namespace ov::op;
    if (!how_.stateful) return in_head(x);
    const ov::PartialShape shape{-1, 1, -1, std::int64_t(dim)};
    const auto variable = std::make_shared<ov::op::util::Variable>(
        ov::op::util::VariableInfo{shape, ov::element::f32, what + std::to_string(layer)});
    const auto none = v0::Constant::create(ov::element::f32, {1, 1, 0, dim}, std::vector<float>{});
    const node before = gather(std::make_shared<v6::ReadValue>(none, variable), beam_, 0);
    const node all = std::make_shared<v0::Concat>(ov::NodeVector{before, in_head(x)}, 2);
    sinks_.push_back(std::make_shared<v6::Assign>(all, variable));
    return all;
  }
  std::shared_ptr<ov::Model> model(node x) {
    using namespace ov::op;
    if (how_.last_row_only)
      x = std::make_shared<v8::Slice>(x, wholes({-1}), wholes({-2}), wholes({-1}), wholes({1}));
    node logits = times(x, {dim, V}, 0.3f);
    if (how_.logits != ov::element::f32)
      logits = std::make_shared<v0::Convert>(logits, how_.logits);
    const auto result = std::make_shared<v0::Result>(logits);
    result->output(0).set_names({"logits"});
    return std::make_shared<ov::Model>(ov::ResultVector{result}, sinks_, parameters_);
  }

  ov_options how_;
  std::mt19937 random_;
  node beam_;
  ov::ParameterVector parameters_;
  ov::SinkVector sinks_;
};

// OpenVINO's own precision of a cache on a CPU is u8: then a row depends on the calls before it.
inline ov::CompiledModel compiled(const std::shared_ptr<ov::Model>& model,
                                  ov::element::Type cache = ov::element::f32) {
  static ov::Core core;
  return core.compile_model(model, "CPU", ov::hint::inference_precision(ov::element::f32),
                            ov::hint::kv_cache_precision(cache), ov::inference_num_threads(1));
}

}  // namespace test
