// SPDX-License-Identifier: Apache-2.0
// EXPECT: no matching function for call to .tree_decode
// LATER: .*LogitSource
#include <specagg/audit/toy_source.hpp>
#include <specagg/decoders.hpp>

#include <vector>

using namespace specagg;

struct table {
  using value_type = float;
  std::size_t vocab_size() const { return 4; }
  std::size_t capacity() const { return 100; }
  std::size_t position() const { return 0; }
  status extend(std::span<const token_id>, std::span<float>) { return status::ok; }
#ifndef SPECAGG_BROKEN
  status rollback(std::size_t) { return status::ok; }
#endif
};

status decode(text& t, toy_source<float>& q, table& p, tree_workspace<float>& work);
status decode(text& t, toy_source<float>& q, table& p, tree_workspace<float>& work) {
  random_streams chooser(1);
  return tree_decode(q, p, lossless{}, chooser, {.text = t, .most = 9, .work = work});
}
