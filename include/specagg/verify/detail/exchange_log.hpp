// SPDX-License-Identifier: Apache-2.0
// The exchanges of tasks that ranks run in step (vocabulary_shards::run).
#pragma once
#include <cstddef>
#include <span>

#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace detail {

// The numbers that all ranks gave to one exchange: of(r)[k] is number k of rank r.
struct gathered {
  const double* first;
  std::size_t stride;
  const double* of(std::size_t r) const { return first + r * stride; }
};

// Round e performs the e-th exchange of every unfinished task as one all-gather. A task runs from
// its start in every round: it reads the results of the rounds before, and asks for one more
// exchange. The memory of a round: its size; the number of doubles that a rank gives; the places
// where each task's doubles begin; the doubles of this rank; the doubles of all ranks.
class exchange_log {
 public:
  exchange_log() = default;
  exchange_log(std::size_t tasks, std::size_t ranks, std::span<double> memory)
      : tasks_(tasks), ranks_(ranks), memory_(memory) {}

  // Begins a round. False if there is no memory for it.
  bool begin_round() {
    last_ = rounds_ > 0 ? at_ : 0;
    at_ = end_;
    ++rounds_;
    asked_ = 0;
    if (memory_.size() - at_ < header()) return false;
    memory_[at_ + 2] = 0;
    return true;
  }
  // Whether task i is to be run in this round: its part of the last one is not empty.
  bool waits(std::size_t i) const {
    return rounds_ == 1 || memory_[last_ + 3 + i] > memory_[last_ + 2 + i];
  }
  void begin_task(std::size_t i) {
    task_ = i;
    read_ = 0;
    reads_ = 1;
  }
  void end_task(std::size_t i) { memory_[at_ + 3 + i] = double(asked_); }
  // has_next(): whether the next exchange of the task was in an earlier round. next() finds it; it
  // has n doubles.
  bool has_next() const { return reads_ < rounds_; }
  bool next(std::size_t n, gathered& found) {
    if (!has_next()) return false;
    const double* const round = memory_.data() + read_;
    const auto total = std::size_t(round[1]), from = std::size_t(round[2 + task_]);
    if (std::size_t(round[3 + task_]) - from != n) return false;  // it is another task
    found = {round + header() + total + from, total};
    read_ += std::size_t(round[0]);
    ++reads_;
    return true;
  }
  // The place for the n doubles that the task gives next; null if there is no memory for them.
  double* ask(std::size_t n) {
    if (memory_.size() - at_ < header() + (ranks_ + 1) * (asked_ + n)) return nullptr;
    double* const own = memory_.data() + at_ + header() + asked_;
    asked_ += n;
    return own;
  }
  bool nothing_asked() const { return asked_ == 0; }
  template <class E>
  bool exchange(E& exchange) {
    const std::size_t size = header() + (ranks_ + 1) * asked_;
    memory_[at_] = double(size);
    memory_[at_ + 1] = double(asked_);
    end_ = at_ + size;
    const std::span<double> own = memory_.subspan(at_ + header(), asked_);
    return exchange(std::span<const double>(own),
                    memory_.subspan(at_ + header() + asked_, ranks_ * asked_));
  }

 private:
  std::size_t header() const { return 3 + tasks_; }
  std::size_t tasks_ = 0, ranks_ = 0;
  std::span<double> memory_;
  std::size_t rounds_ = 0, last_ = 0, at_ = 0, end_ = 0;  // where rounds begin and end
  std::size_t asked_ = 0;                                 // doubles in this round
  std::size_t task_ = 0, read_ = 0, reads_ = 1;           // where the task reads next
};

}  // namespace detail
SPECAGG_END
