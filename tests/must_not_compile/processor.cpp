// SPDX-License-Identifier: Apache-2.0
// LATER: Processor
// A processor must follow the text in both directions, for the logits of this model.
#include <specagg/decoders.hpp>

using namespace specagg;

struct follows {
  void push(token_id) {}
#ifndef SPECAGG_BROKEN
  void pop() {}
#endif
  void apply(std::span<double>) const {}
};

struct constant {
  using value_type = double;
  std::size_t vocab_size() const { return 2; }
  std::size_t capacity() const { return 9; }
  std::size_t position() const { return 0; }
  status extend(std::span<const token_id>, std::span<double>) { return status::ok; }
  status rollback(std::size_t) { return status::ok; }
};
status use(constant& model, std::span<double> logits) {
  const token_id text[] = {1};
  follows processor;
  return specagg::score(text, model, processor, logits);
}
