// SPDX-License-Identifier: Apache-2.0
// Every policy at each acceptance rate, on rows that were read.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <specagg/thread_pool.hpp>
#include <specagg/token.hpp>

#include "../table.hpp"
#include "laws.hpp"

namespace experiments::frontier {

// A prompt and the target's own continuation of it: `prompt` tokens, and those that were drawn.
struct written {
  std::string set;
  std::size_t number = 0, prompt = 0;
  std::vector<specagg::token_id> tokens;
  std::size_t place = 0;  // among all texts of a full run, so what is drawn for it
};
// The positions of a continuation, or of the answer of a question, and rounds of drafts that begin
// at some of them, each of gamma positions whose `next` is the drafted token.
struct observed {
  std::string set;
  std::size_t number = 0;
  std::vector<position> positions;
  std::vector<std::vector<position>> rounds;
  bool answer = false;
};

struct data {
  std::vector<observed> texts, questions;
};
struct laboratory {
  const settings how;
  std::shared_ptr<specagg::thread_pool> pool;
  std::map<double, std::vector<written>> texts = {};  // by temperature, once they were drawn
  std::function<void(double)> progress = [](double) {};
  explicit laboratory(const settings& s)
      : how(s), pool(std::make_shared<specagg::thread_pool>(s.threads ? s.threads : 2)) {}
};
// Every policy of the catalogue: those with a knob at lossless acceptance and each gain that they
// reach, the others as they are by default. A line for each text and each question.
void all_policies(laboratory&, const data&, table&);

}  // namespace experiments::frontier
