// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .speculative_round
// LATER: .*DraftsFor
#include <specagg/decoders.hpp>

using namespace specagg;

struct same_again {  // proposes the last token once more
  using row_type = normal_form<one_hot_row<float>>;
  std::size_t size;
  std::size_t vocab_size() const { return size; }
  std::size_t position() const { return 0; }
#ifndef SPECAGG_BROKEN
  status rollback(std::size_t) { return status::ok; }
#endif
  template <class P>
  status next(const draft_position& at, P&, row_type& row, double& confidence) {
    row = normalise(one_hot_row<float>(at.tokens.back(), size));
    confidence = 0.5;
    return row.why();
  }
};

struct table {  // a target model
  using value_type = float;
  std::size_t vocab_size() const { return 1; }
  std::size_t capacity() const { return 100; }
  std::size_t position() const { return 0; }
  status extend(std::span<const token_id>, std::span<float>) { return status::ok; }
  status rollback(std::size_t) { return status::ok; }
};

speculative_result draft_and_verify(text& t, same_again& drafter, table& target);
speculative_result draft_and_verify(text& t, same_again& drafter, table& target) {
  drafting_workspace<float, normal_form<one_hot_row<float>>> work(drafter.size, {});
  random_streams chooser(1);
  return speculative_round(drafter, target, lossless(), chooser,
                           {.text = t, .most = 10, .work = work});
}
