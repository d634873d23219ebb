// SPDX-License-Identifier: Apache-2.0
// Numbers subsets without gaps (the combinatorial number system), with exact integers. This is the
// shortest code that gives all subsets of one size the same length. Cover 1973, Enumerative source
// encoding.
#pragma once
#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace sites::detail {

// A natural number below 2^2560. The caller must make sure that no result is larger.
class natural {
 public:
  static constexpr std::size_t capacity = 80;
  constexpr natural(std::uint32_t x = 0) : limbs_{x}, size_(x > 0) {}

  friend constexpr std::strong_ordering operator<=>(const natural& a, const natural& b) {
    if (a.size_ != b.size_) return a.size_ <=> b.size_;
    for (std::size_t i = a.size_; i-- > 0;)
      if (a.limbs_[i] != b.limbs_[i]) return a.limbs_[i] <=> b.limbs_[i];
    return std::strong_ordering::equal;
  }
  friend constexpr bool operator==(const natural& a, const natural& b) { return (a <=> b) == 0; }
  constexpr natural& operator+=(const natural& b) {
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < b.size_ || (carry > 0 && i < capacity); ++i) {
      carry += std::uint64_t(limbs_[i]) + b.limbs_[i];
      limbs_[i] = std::uint32_t(carry);
      carry >>= 32;
      if (i >= size_) size_ = i + 1;
    }
    return *this;
  }
  constexpr natural& operator-=(const natural& b) {  // b <= *this
    std::uint64_t borrow = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const std::uint64_t x = std::uint64_t(limbs_[i]) - b.limbs_[i] - borrow;
      limbs_[i] = std::uint32_t(x);
      borrow = x >> 63;
    }
    return trim();
  }
  constexpr natural& operator*=(std::uint32_t x) {
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      carry += std::uint64_t(limbs_[i]) * x;
      limbs_[i] = std::uint32_t(carry);
      carry >>= 32;
    }
    if (carry > 0 && size_ < capacity) limbs_[size_++] = std::uint32_t(carry);
    return trim();
  }
  constexpr natural& operator/=(std::uint32_t x) {  // rounded down; x > 0
    std::uint64_t rest = 0;
    for (std::size_t i = size_; i-- > 0;) {
      rest = rest << 32 | limbs_[i];
      limbs_[i] = std::uint32_t(rest / x);
      rest %= x;
    }
    return trim();
  }

  // Bits of its binary form; 0 for 0.
  constexpr std::size_t bits() const {
    return size_ == 0 ? 0 : 32 * size_ - std::size_t(std::countl_zero(limbs_[size_ - 1]));
  }
  // Writes its bytes, the lowest first. Bytes that `to` has no room for are dropped.
  constexpr void write(std::span<std::uint8_t> to) const {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = i / 4 < size_ ? std::uint8_t(limbs_[i / 4] >> 8 * (i % 4)) : std::uint8_t(0);
  }
  static constexpr natural read(std::span<const std::uint8_t> from) {  // at most 4 * capacity bytes
    natural x;
    for (std::size_t i = 0; i < from.size() && i < 4 * capacity; ++i)
      x.limbs_[i / 4] |= std::uint32_t(from[i]) << 8 * (i % 4);
    x.size_ = capacity;
    return x.trim();
  }

 private:
  constexpr natural& trim() {
    while (size_ > 0 && limbs_[size_ - 1] == 0) --size_;
    return *this;
  }
  std::array<std::uint32_t, capacity> limbs_;  // the lowest first; 0 from size_ on
  std::size_t size_;
};

// m C(n, k).
constexpr natural times_binomial(natural m, std::uint32_t n, std::uint32_t k) {
  if (k > n) return 0;
  // exact: m C(n, j + 1) is an integer
  for (std::uint32_t j = 0; j < k; ++j) {
    m *= n - j;
    m /= j + 1;
  }
  return m;
}

// sum_i m C(c_i, i) over the elements c_1 < c_2 < ... < c_k. This is m times the number of the set
// among all sets of its size; for elements below n the number is in 0 .. C(n, k) - 1.
template <class T>
constexpr natural subset_rank(std::span<const T> elements, const natural& m = 1) {
  natural rank;
  for (std::size_t i = 0; i < elements.size(); ++i)
    rank += times_binomial(m, std::uint32_t(elements[i]), std::uint32_t(i + 1));
  return rank;
}

// Finds the set of a rank. Returns what remains of the rank after subtracting m times the set's
// number. rank < m C(n, k); k = elements.size() <= n.
template <class T>
constexpr natural subset_of_rank(natural rank, std::uint32_t n, std::span<T> elements,
                                 const natural& m = 1) {
  for (std::uint32_t i = std::uint32_t(elements.size()); i > 0; --i) {
    std::uint32_t low = i - 1, high = n;  // low fits, high does not
    while (high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      (times_binomial(m, middle, i) <= rank ? low : high) = middle;
    }
    rank -= times_binomial(m, low, i);
    elements[i - 1] = T(low);
    n = low;
  }
  return rank;
}

}  // namespace sites::detail
SPECAGG_END
