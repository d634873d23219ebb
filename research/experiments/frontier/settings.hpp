// SPDX-License-Identifier: Apache-2.0
// Every policy at each acceptance rate, on rows that were read.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <specagg/thread_pool.hpp>

#include "../table.hpp"
#include "laws.hpp"

namespace experiments::frontier {

// A window of a text, or a question with its answer: positions, and rounds of drafts that begin at
// some of them, each of gamma positions whose `next` is the drafted token.
struct observed {
  std::string set;
  std::size_t number = 0;
  std::vector<position> positions;
  std::vector<std::vector<position>> rounds;
  std::size_t answer = 0;  // the last positions are the tokens of an answer
};

struct data {
  std::vector<observed> windows, questions;
};
struct laboratory {
  const settings how;
  std::shared_ptr<specagg::thread_pool> pool;
  std::function<void(double)> progress = [](double) {};
  explicit laboratory(const settings& s)
      : how(s), pool(std::make_shared<specagg::thread_pool>(s.threads ? s.threads : 2)) {}
};
// Every policy of the catalogue: those with a knob at each goal that they reach, the others as they
// are by default. A line for each window and each question.
void all_policies(laboratory&, const data&, table&);

}  // namespace experiments::frontier
