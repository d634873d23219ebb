// SPDX-License-Identifier: Apache-2.0
// The exchanges of tasks that ranks run in step (vocabulary_shards::run).
#pragma once
#include <cstddef>
#include <span>

#include <specagg/shards/detail/rank_reader.hpp>

SPECAGG_BEGIN
namespace detail {

// Round e makes the e-th exchange of every unfinished task as one all-gather. A task runs from its
// start in every round: it replays the exchanges of the rounds before, and records one more.
//
//   while (log.begin_round()) {             false: there is no memory for another round
//     for each task: if (log.begin_task(i)) the task calls replay() and record(); log.end_task();
//     if (log.nothing_recorded()) break;    all tasks are done
//     log.send(exchange);
//   }
//
// The memory of a round: its size; the number of doubles that a rank gives; the places where each
// task's doubles begin; the doubles of this rank; the doubles of all ranks.
class exchange_log {
 public:
  exchange_log(std::size_t tasks, std::size_t ranks, std::span<double> memory)
      : tasks_(tasks), ranks_(ranks), memory_(memory) {}

  bool begin_round() {
    last_ = rounds_ > 0 ? at_ : 0;
    at_ = end_;
    ++rounds_;
    recorded_ = 0;
    full_ = full_ || memory_.size() - at_ < header();
    if (!full_) memory_[at_ + 2] = 0;
    return !full_;
  }
  // Whether task i runs in this round: it has recorded something in the round before.
  bool begin_task(std::size_t i) {
    task_ = i;
    read_ = 0;
    reads_ = 1;
    lacks_ = false;
    return rounds_ == 1 || memory_[last_ + 3 + i] > memory_[last_ + 2 + i];
  }
  void end_task() {
    lacks_ = false;
    memory_[at_ + 3 + task_] = double(recorded_);
  }
  // The task's next exchange, of n doubles of each rank, if an earlier round has made it.
  gathered replay(std::size_t n) {
    if (reads_ == rounds_) return {};
    const double* const round = memory_.data() + read_;
    const auto total = std::size_t(round[1]), from = std::size_t(round[2 + task_]);
    if (std::size_t(round[3 + task_]) - from != n) return {};  // it is another task
    read_ += std::size_t(round[0]);
    ++reads_;
    return {round + header() + total + from, total};
  }
  // The place for the n doubles of this rank, which the round sends. Null if there is no memory.
  double* record(std::size_t n) {
    lacks_ = true;
    full_ = memory_.size() - at_ < header() + (ranks_ + 1) * (recorded_ + n);
    if (full_) return nullptr;
    double* const own = memory_.data() + at_ + header() + recorded_;
    recorded_ += n;
    return own;
  }
  // Whether the task has recorded something: what it reads from now on is missing.
  bool lacks() const { return lacks_; }
  // Whether there was too little memory.
  bool full() const { return full_; }
  bool nothing_recorded() const { return recorded_ == 0; }
  // Sends what all tasks have recorded in this round.
  template <class E>
  bool send(const E& exchange) {
    const std::size_t size = header() + (ranks_ + 1) * recorded_;
    memory_[at_] = double(size);
    memory_[at_ + 1] = double(recorded_);
    end_ = at_ + size;
    return exchange(memory_.subspan(at_ + header(), recorded_),
                    memory_.subspan(at_ + header() + recorded_, ranks_ * recorded_));
  }

 private:
  std::size_t header() const { return 3 + tasks_; }
  std::size_t tasks_, ranks_;
  std::span<double> memory_;
  std::size_t rounds_ = 0, last_ = 0, at_ = 0, end_ = 0;  // where rounds begin and end
  std::size_t recorded_ = 0;                              // doubles in this round
  std::size_t task_ = 0, read_ = 0, reads_ = 1;           // where the task reads next
  bool lacks_ = false, full_ = false;
};

}  // namespace detail
SPECAGG_END
