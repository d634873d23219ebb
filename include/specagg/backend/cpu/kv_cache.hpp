// SPDX-License-Identifier: Apache-2.0
// The keys and values of one sequence.
#pragma once
#include <specagg/backend/cpu/product.hpp>  // first: it puts kernel/simd.hpp before Eigen

#include <algorithm>
#include <cstddef>

#include <specagg/backend/cpu/tensor_row.hpp>
#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace cpu {

// Keys are stored in blocks of 16 positions, [layer][kv head][block][dimension][16]. One load is
// one dimension of 16 positions, so 16 scores are summed at once and no sum over lanes is needed.
// Values are stored as [layer][kv head] [position][dimension]. All sizes are padded to multiples of
// 16. Allocated once.
class kv_cache {
 public:
  kv_cache(std::size_t layers, std::size_t heads, std::size_t dims, std::size_t capacity)
      : layers_(layers),
        heads_(heads),
        dims_(dims),
        capacity_(capacity),
        keys_(layers * heads * dims, capacity),
        values_(layers * heads * capacity, dims) {}

  // Where those of one layer and head begin, in the order above.
  float* keys(std::size_t layer, std::size_t head) { return keys_.data() + keys_at(layer, head); }
  float* values(std::size_t layer, std::size_t head) {
    return values_.data() + values_at(layer, head);
  }
  const float* keys(std::size_t layer, std::size_t head) const {
    return keys_.data() + keys_at(layer, head);
  }
  const float* values(std::size_t layer, std::size_t head) const {
    return values_.data() + values_at(layer, head);
  }

  // Of one position: `key` and `value` are arrays of `dims` numbers.
  void store(std::size_t layer, std::size_t head, std::size_t position, const float* key,
             const float* value) {
    float* const to = keys(layer, head) + key_at(position);
    for (std::size_t d = 0; d < dims_; ++d) to[16 * d] = key[d];
    std::copy_n(value, dims_, values(layer, head) + position * padded(dims_));
  }
  // Position `from` of every layer and head becomes position `to`.
  void move(std::size_t from, std::size_t to) {
    for (std::size_t layer = 0; layer < layers_; ++layer)
      for (std::size_t head = 0; head < heads_; ++head) {
        float* const k = keys(layer, head);
        for (std::size_t d = 0; d < dims_; ++d) k[key_at(to) + 16 * d] = k[key_at(from) + 16 * d];
        float* const v = values(layer, head);
        std::copy_n(v + from * padded(dims_), dims_, v + to * padded(dims_));
      }
  }
  // The first n positions of another cache of the same model.
  void copy(const kv_cache& other, std::size_t n) {
    for (std::size_t layer = 0; layer < layers_; ++layer)
      for (std::size_t head = 0; head < heads_; ++head) {
        std::copy_n(other.keys(layer, head), padded(n) * dims_, keys(layer, head));
        std::copy_n(other.values(layer, head), n * padded(dims_), values(layer, head));
      }
  }

 private:
  std::size_t keys_at(std::size_t layer, std::size_t head) const {
    return (layer * heads_ + head) * dims_ * padded(capacity_);
  }
  std::size_t values_at(std::size_t layer, std::size_t head) const {
    return (layer * heads_ + head) * capacity_ * padded(dims_);
  }
  std::size_t key_at(std::size_t position) const {
    return position / 16 * 16 * dims_ + position % 16;
  }

  std::size_t layers_, heads_, dims_, capacity_;
  activation_buffer keys_, values_;
};

}  // namespace cpu
SPECAGG_END
