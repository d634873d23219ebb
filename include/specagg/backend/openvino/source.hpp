// SPDX-License-Identifier: Apache-2.0
// A model that OpenVINO runs as a source of logits: what its exporters write for language models,
// with inputs input_ids, attention_mask, position_ids and beam_idx (the last three where the model
// has them), and with keys and values in the model's state, or without them.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <openvino/runtime/compiled_model.hpp>
#include <openvino/runtime/infer_request.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <specagg/backend/engine_source.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN

// How an openvino_source calls its model.
struct openvino_options {
  std::size_t capacity = 0;       // tokens of the context; the model does not say how many it takes
  std::size_t most = 512;         // tokens in a call
  std::size_t sequence_axis = 2;  // that of the tokens in the model's states
};

// Models Engine (backend/engine_source.hpp), with an infer request of its own. Going back copies
// the states, cut to the tokens that stay. It is refused, but to position 0, if a state has no axis
// of tokens (a recurrent model).
class openvino_engine {
 public:
  // Throws specagg::error if the model has other inputs, or no logits of shape [1, n, V] or [1, V].
  openvino_engine(ov::CompiledModel model, const openvino_options& options)
      : request_(model.create_infer_request()), states_(request_.query_state()), options_(options) {
    if (options.capacity == 0 || options.most == 0) refuse("capacity and most must not be 0");
    for (const auto& port : model.inputs()) {
      const std::string name = port.get_any_name();
      const auto type = port.get_element_type();
      const bool known = name == "input_ids" || name == "attention_mask" ||
                         name == "position_ids" || name == "beam_idx";
      if (!known || (type != ov::element::i64 && type != ov::element::i32))
        refuse("input " + name + " is not known, or not of whole numbers");
      inputs_.push_back({name, type});
    }
    for (const auto& output : model.outputs())
      if (model.outputs().size() == 1 || output.get_names().contains("logits")) output_ = output;
    if (!output_.get_node() || output_.get_partial_shape().rank().is_dynamic() ||
        output_.get_partial_shape().size() < 2 ||
        output_.get_partial_shape().rbegin()->is_dynamic())
      refuse("it has no logits of a known size of vocabulary");
    const auto shape = output_.get_partial_shape();
    vocab_ = std::size_t(shape.rbegin()->get_length());
    const auto rows = shape.rbegin()[1];
    rows_of_all_ = shape.size() > 2 && rows.get_max_length() != 1;
    const auto type = output_.get_element_type();
    if (type != ov::element::f32 && type != ov::element::f16 && type != ov::element::bf16)
      refuse("its logits are not f32, f16 or bf16");
  }

  std::size_t vocab_size() const { return vocab_; }
  std::size_t capacity() const { return options_.capacity; }
  std::size_t most() const { return options_.most; }
  bool rows_of_all() const { return rows_of_all_; }

  status call(std::span<const token_id> text, std::size_t from, std::span<float> rows) try {
    if (lost_) return status::model_failed;
    if (states_.empty()) from = 0;
    const std::size_t n = text.size() - from;
    for (const input& of : inputs_) {
      const auto give = [&](const ov::Shape& shape, auto&& value) {
        ov::Tensor to(of.type, shape);
        for (std::size_t i = 0; i < to.get_size(); ++i)
          if (of.type == ov::element::i64) to.data<std::int64_t>()[i] = std::int64_t(value(i));
          else to.data<std::int32_t>()[i] = std::int32_t(value(i));
        request_.set_tensor(of.name, to);
      };
      if (of.name == "input_ids") give({1, n}, [&](std::size_t i) { return text[from + i]; });
      else if (of.name == "position_ids") give({1, n}, [&](std::size_t i) { return from + i; });
      else if (of.name == "attention_mask") give({1, text.size()}, [](std::size_t) { return 1; });
      else give({1}, [](std::size_t) { return 0; });
    }
    request_.infer();
    length_ = text.size();
    const ov::Tensor logits = request_.get_tensor(output_);
    if (logits.get_size() != (rows_of_all_ ? n : 1) * vocab_) return status::model_failed;
    const auto type = logits.get_element_type();
    const std::size_t first = logits.get_size() - rows.size();
    const auto* const stored = static_cast<const char*>(logits.data()) + first * type.size();
    if (type == ov::element::f32) detail::copy_logits<float>(stored, rows);
    else if (type == ov::element::f16) detail::copy_logits<f16>(stored, rows);
    else detail::copy_logits<bf16>(stored, rows);
    return status::ok;
  } catch (const std::exception&) {
    return status::model_failed;
  }

  status cut(std::size_t position) try {
    if (position == 0) {
      for (auto& state : states_) state.reset();
      lost_ = false;
      length_ = 0;
      return status::ok;
    }
    const std::size_t axis = options_.sequence_axis;
    std::vector<ov::Tensor> kept;
    for (const auto& state : states_) {
      const ov::Tensor all = state.get_state();
      ov::Shape end = all.get_shape();
      if (end.size() <= axis || end.data()[axis] != length_) return status::rollback_refused;
      end.data()[axis] = position;
      kept.emplace_back(all.get_element_type(), end);
      ov::Tensor(all, ov::Coordinate(end.size(), 0), end).copy_to(kept.back());
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      states_[i].set_state(kept[i]);
      lost_ = true;  // until all of them are set
    }
    lost_ = false;
    length_ = position;
    return status::ok;
  } catch (const std::exception&) {
    return status::rollback_refused;
  }

 private:
  struct input {
    std::string name;
    ov::element::Type type;
  };
  [[noreturn]] static void refuse(const std::string& why) { throw error("OpenVINO", "model", why); }

  ov::InferRequest request_;
  std::vector<ov::VariableState> states_;
  openvino_options options_;
  std::vector<input> inputs_;
  ov::Output<const ov::Node> output_;
  std::size_t vocab_ = 0, length_ = 0;  // length_: of the text in the states
  bool rows_of_all_ = false;
  bool lost_ = false;  // the states are of different lengths
};

// A LogitSource.
class openvino_source : public engine_source<openvino_engine> {
 public:
  openvino_source(const ov::CompiledModel& model, const openvino_options& options)
      : engine_source(model, options) {}
};

SPECAGG_END
