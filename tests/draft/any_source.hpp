// SPDX-License-Identifier: Apache-2.0
// A model of any type, and policies of several, so that a decoder is compiled once for all.
#pragma once
#include <span>

#include <specagg/decoders.hpp>

namespace {

struct any_source {
  using value_type = double;
  virtual ~any_source() = default;
  virtual std::size_t vocab_size() const = 0;
  virtual std::size_t capacity() const = 0;
  virtual std::size_t position() const = 0;
  virtual specagg::status rollback(std::size_t n) = 0;
  virtual specagg::status extend(std::span<const specagg::token_id> t,
                                 std::span<double> logits) = 0;
};
struct any_tree_source : any_source {
  virtual specagg::status extend_tree(std::span<const specagg::token_id> t,
                                      std::span<const std::uint32_t> parents,
                                      std::span<double> logits) = 0;
  virtual specagg::status keep_path(std::span<const std::uint32_t> nodes) = 0;
};
// Base: one of the two.
template <class Base, class M>
struct source_of : Base {
  M& model;
  explicit source_of(M& one) : model(one) {}
  std::size_t vocab_size() const override { return model.vocab_size(); }
  std::size_t capacity() const override { return model.capacity(); }
  std::size_t position() const override { return model.position(); }
  specagg::status rollback(std::size_t n) override { return model.rollback(n); }
  specagg::status extend(std::span<const specagg::token_id> t, std::span<double> logits) override {
    return model.extend(t, logits);
  }
};
template <class M>
struct tree_source_of final : source_of<any_tree_source, M> {
  using source_of<any_tree_source, M>::source_of;
  specagg::status extend_tree(std::span<const specagg::token_id> t,
                              std::span<const std::uint32_t> parents,
                              std::span<double> logits) override {
    return this->model.extend_tree(t, parents, logits);
  }
  specagg::status keep_path(std::span<const std::uint32_t> nodes) override {
    return this->model.keep_path(nodes);
  }
};
static_assert(specagg::LogitSource<any_source> && !specagg::TreeSource<any_source>);
static_assert(specagg::TreeSource<any_tree_source>);

using policies = specagg::compiled_once<
    specagg::any_of<specagg::lossless, specagg::ensemble, specagg::token_v3, specagg::opt>>;

}  // namespace
