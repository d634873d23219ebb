// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: each of two ranks has a part of the logits, and both emit the same tokens.
#include <specagg/specagg.hpp>

#include <barrier>
#include <cstdio>
#include <future>
#include <vector>

#include <specagg/shards/sharded_row.hpp>

using namespace specagg;
constexpr std::size_t drafts = 2, count = 2 * drafts + 1;  // rows: of the draft, then of the target
const std::vector<std::size_t> begins{0, 2048, 5000};      // a shard begins at a multiple of 1024

// Verifies a draft on one rank. logits: [count][own tokens]. all_gather(mine, all): the engine's.
template <class AllGather>
verdict verify_shard(std::span<const token_id> drafted, const std::vector<float>& logits,
                     std::size_t rank, AllGather& all_gather, std::span<emission> out) {
  using shards = vocabulary_shards;
  std::vector<double> memory(shards::memory_of(begins, count)), scratch(verify_scratch(5000));
  shards together(all_gather, begins, rank, memory);
  std::vector<normalised_row<sharded_row<float>>> rows(count);
  const auto make_row = [&](std::size_t i) {  // run() merges the exchanges of all calls
    const token_id expected = i < 2 * drafts ? drafted[i % drafts] : no_token;
    const float* own = &logits[i * logits.size() / count];
    rows[i] = normalise(sharded_row(own, together, {.temperature = 0.8}, expected));
  };
  verdict found;
  const auto verify_one = [&](std::size_t) {
    const std::span all(std::as_const(rows));
    found = verify_token(draft{.tokens = drafted}, all.first(drafts), all.last(drafts + 1),
                         lossless{}, random_streams(/*seed=*/42), out, scratch);
  };
  const bool gathered = together.run(count, make_row) && together.run(1, verify_one);
  return gathered ? found : verdict{.why = status::model_failed};
}

int main() {
  const std::vector<token_id> drafted{40, 4000};
  std::vector<double> board(1000);  // what the ranks, which are threads here, exchange
  std::barrier meet(2);
  const auto last_token = [&](std::size_t rank) {
    std::vector<float> logits(count * (begins[rank + 1] - begins[rank]), 1.5f);
    auto all_gather = [&](std::span<const double> mine, std::span<double> all) {
      std::copy(mine.begin(), mine.end(), &board[rank * mine.size()]);
      meet.arrive_and_wait();
      std::copy_n(board.begin(), all.size(), all.begin());
      return meet.arrive_and_wait(), true;
    };
    emission out[drafts + 1];
    return out[verify_shard(drafted, logits, rank, all_gather, out).accepted].token;
  };
  auto other = std::async(std::launch::async, last_token, 1);
  std::printf("after 40, 4000: %d; ", last_token(0));
  std::printf("on the other rank %d\n", other.get());
}

// Output:
// after 40, 4000: 3283; on the other rank 3283
