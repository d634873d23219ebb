// SPDX-License-Identifier: Apache-2.0
// A program of ExecuTorch as a source of logits: what its exporters write for language models,
// forward(tokens, input_pos) with a cache in the program, or forward(tokens) without one.
#pragma once
#include <specagg/kernel/simd.hpp>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <specagg/backend/engine_source.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN

// How an executorch_source calls its module.
struct executorch_options {
  std::string method = "forward";
  std::size_t capacity = 0;  // tokens of the context. 0: what the program says of itself
  // 0: a call has as many tokens as there are, at most what the program takes. n: every call has
  // exactly n tokens. Shorter ones are filled up with tokens that are overwritten later, which
  // takes room for n - 1 tokens. Then a row does not depend on how the tokens were grouped into
  // calls, if the program computes the rows of a call alike. A program of a fixed shape needs it.
  std::size_t exact_calls = 0;
  // False for a program whose cache forgets tokens (a ring for windows of attention or sinks), or
  // that has a recurrent state: rollback() is refused but to position 0. Such a program must begin
  // anew where input_pos is 0.
  bool goes_back = true;
};

// Models Engine (backend/engine_source.hpp). The module must outlive it, and is called by it alone.
// A cache is not cleared: a token sees its own position and those before, and they are written
// first. So going back costs nothing.
class executorch_engine {
  using Module = ::executorch::extension::ET_MODULE_NAMESPACE::Module;
  using Type = ::executorch::aten::ScalarType;

 public:
  // Throws specagg::error if the method cannot be loaded, has another form, or does not say how
  // long its context is.
  explicit executorch_engine(Module& module, const executorch_options& options = {})
      : module_(&module), options_(options) {
    using ::executorch::runtime::Error;
    if (const Error e = module.load_method(options.method); e != Error::Ok)
      refuse(std::string("ExecuTorch cannot load it (") + ::executorch::runtime::to_string(e) +
             ")");
    const auto meta = module.method_meta(options.method);
    if (!meta.ok() || meta->num_inputs() < 1 || meta->num_inputs() > 2 || meta->num_outputs() < 1)
      refuse("is not forward(tokens) or forward(tokens, input_pos)");
    cached_ = meta->num_inputs() == 2;
    const auto tokens = meta->input_tensor_meta(0), logits = meta->output_tensor_meta(0);
    if (!tokens.ok() || tokens->scalar_type() != Type::Long || tokens->sizes().size() != 2)
      refuse("its tokens are not 64-bit numbers of shape [1, n]");
    if (cached_) {
      const auto start = meta->input_tensor_meta(1);
      if (!start.ok() || start->scalar_type() != Type::Long || start->sizes().size() != 1)
        refuse("its input_pos is not a list of 64-bit numbers");
      position_of_each_ = start->sizes()[0] > 1;
    }
    if (!logits.ok() || logits->sizes().size() < 2) refuse("its output is not rows of logits");
    type_ = logits->scalar_type();
    if (type_ != Type::Float && type_ != Type::Half && type_ != Type::BFloat16)
      refuse("its logits are not float, half or bfloat16");
    const auto shape = logits->sizes();
    vocab_ = std::size_t(shape[shape.size() - 1]);
    most_ = std::size_t(tokens->sizes()[1]);
    rows_of_all_ = std::size_t(shape[shape.size() - 2]) == most_;
    if (options.exact_calls > most_ || (options.exact_calls > 1 && !rows_of_all_))
      refuse("exact_calls is more than the program takes, or gives rows of");
    if (options.exact_calls > 0) most_ = options.exact_calls;
    capacity_ = options.capacity;
    for (const char* name : {"get_max_context_len", "get_max_seq_len"})
      if (capacity_ == 0) capacity_ = number_of(name);
    if (!cached_) capacity_ = capacity_ == 0 ? most_ : std::min(capacity_, most_);
    const std::size_t filling = cached_ && options.exact_calls > 0 ? options.exact_calls - 1 : 0;
    if (capacity_ <= filling)
      refuse("the length of its context is not known (executorch_options::capacity), or too small");
    capacity_ -= filling;
  }

  std::size_t vocab_size() const { return vocab_; }
  std::size_t capacity() const { return capacity_; }
  std::size_t most() const { return most_; }
  bool rows_of_all() const { return rows_of_all_; }

  status call(std::span<const token_id> text, std::size_t from, std::span<float> rows) {
    using namespace ::executorch::extension;
    if (!cached_) from = 0;
    const std::size_t n = text.size() - from, in_call = std::max(n, options_.exact_calls);
    ids_.assign(text.begin() + std::ptrdiff_t(from), text.end());
    ids_.resize(in_call, text.back());
    positions_.resize(position_of_each_ ? in_call : 1);
    std::iota(positions_.begin(), positions_.end(), std::int64_t(from));
    const auto list = [](std::vector<std::int64_t>& of, std::vector<std::int32_t> sizes) {
      return make_tensor_ptr(std::move(sizes), static_cast<void*>(of.data()), Type::Long);
    };
    const auto tokens = list(ids_, {1, std::int32_t(in_call)});
    const auto positions = list(positions_, {std::int32_t(positions_.size())});
    std::vector<::executorch::runtime::EValue> inputs{tokens};
    if (cached_) inputs.emplace_back(positions);
    const auto outputs = module_->execute(options_.method, inputs);
    if (!outputs.ok() || outputs->empty() || !outputs->at(0).isTensor())
      return status::model_failed;
    const auto logits = outputs->at(0).toTensor();
    if (std::size_t(logits.numel()) != (rows_of_all_ ? in_call : 1) * vocab_ ||
        logits.scalar_type() != type_)
      return status::model_failed;
    const std::size_t first = rows_of_all_ ? n * vocab_ - rows.size() : 0;
    const auto* const stored = static_cast<const char*>(logits.const_data_ptr()) +
                               first * std::size_t(logits.element_size());
    if (type_ == Type::Float) detail::copy_logits<float>(stored, rows);
    else if (type_ == Type::Half) detail::copy_logits<f16>(stored, rows);
    else detail::copy_logits<bf16>(stored, rows);
    return status::ok;
  }
  status cut(std::size_t position) {
    const bool can = position == 0 || !cached_ || options_.goes_back;
    return can ? status::ok : status::rollback_refused;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw error("ExecuTorch", "method " + options_.method, why);
  }
  // The answer of a method without arguments; 0 if there is none.
  std::size_t number_of(const std::string& method) {
    const auto names = module_->method_names();
    if (!names.ok() || !names->contains(method)) return 0;
    const auto answer = module_->get(method);
    return answer.ok() && answer->isInt() ? std::size_t(answer->toInt()) : 0;
  }

  Module* module_;
  executorch_options options_;
  Type type_{};
  bool cached_ = false, position_of_each_ = false, rows_of_all_ = false;
  std::size_t vocab_ = 0, most_ = 0, capacity_ = 0;
  std::vector<std::int64_t> ids_, positions_;  // of a call
};

// A LogitSource.
class executorch_source : public engine_source<executorch_engine> {
 public:
  explicit executorch_source(::executorch::extension::ET_MODULE_NAMESPACE::Module& module,
                             const executorch_options& options = {})
      : engine_source(module, options) {}
};

SPECAGG_END
