// SPDX-License-Identifier: Apache-2.0
// Numbers for tests: random ones that are the same on every machine, nasty ones, and memory with
// nothing after it.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include <specagg/random.hpp>

// A sequence of random numbers made of integers and exact operations.
class numbers {
 public:
  explicit numbers(std::uint64_t seed) : seed_(seed) {}
  std::uint32_t word() {
    if (used_ == 4) {
      block_ = specagg::philox({std::uint32_t(next_), std::uint32_t(next_ >> 32), 0, 0}, seed_);
      ++next_;
      used_ = 0;
    }
    return block_[used_++];
  }
  std::size_t below(std::size_t n) { return std::size_t(std::uint64_t(word()) * n >> 32); }
  double uniform() {  // [0, 1)
    const std::uint64_t high = word() >> 5;
    return double(high << 26 | word() >> 6) * 0x1p-53;
  }
  double between(double low, double high) { return std::fma(uniform(), high - low, low); }
  // in (-2, 2), variance 1/3
  double bell() { return uniform() + uniform() + uniform() + uniform() - 2; }
  template <class T>
  T bits() {  // any bit pattern
    std::uint64_t b = word();
    b = b << 32 | word();
    T x;
    std::memcpy(&x, &b, sizeof x);
    return x;
  }

 private:
  std::uint64_t seed_, next_ = 0;
  specagg::philox_block block_{};
  std::size_t used_ = 4;
};

// The values arithmetic goes wrong at.
template <class T>
const std::vector<T>& nasty() {
  using L = std::numeric_limits<T>;
  static const std::vector<T> values = [] {
    std::vector<T> v = {T(0),
                        T(1),
                        T(0.5),
                        T(1.5),
                        T(3),
                        1 + L::epsilon(),
                        1 - L::epsilon() / 2,
                        T(1) / 3,
                        T(1e3),
                        L::min(),
                        2 * L::min(),
                        L::min() - L::denorm_min(),
                        L::denorm_min(),
                        5 * L::denorm_min(),
                        L::max(),
                        L::max() / 2,
                        L::infinity(),
                        L::quiet_NaN(),
                        1 / L::epsilon(),
                        1 / L::epsilon() + 1};
    for (std::size_t i = 0, n = v.size(); i < n; ++i) v.push_back(-v[i]);
    return v;
  }();
  return values;
}

// The same bits, or NaN both.
template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

// The neighbours of x.
template <class T>
T above(T x) {
  return std::nextafter(x, std::numeric_limits<T>::infinity());
}
template <class T>
T below(T x) {
  return std::nextafter(x, -std::numeric_limits<T>::infinity());
}

// n elements between two pages that may not be touched: end() is the end of the memory, begin(n)
// its beginning.
template <class T>
class fenced {
 public:
  explicit fenced(std::size_t n)
      : page_(std::size_t(sysconf(_SC_PAGESIZE))),
        room_((n * sizeof(T) + page_ - 1) / page_ * page_) {
    void* m = mmap(nullptr, room_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(m);
    if (mprotect(memory_ + page_, room_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  }
  ~fenced() { munmap(memory_, room_ + 2 * page_); }
  fenced(const fenced&) = delete;
  fenced& operator=(const fenced&) = delete;
  T* begin() const { return reinterpret_cast<T*>(memory_ + page_); }
  T* end() const { return reinterpret_cast<T*>(memory_ + page_ + room_); }

 private:
  std::size_t page_, room_;
  char* memory_;
};
