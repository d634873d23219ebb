// SPDX-License-Identifier: Apache-2.0

int main() {
  const std::vector<token_id> tokens{1, 2, 3};
  const std::vector<std::uint32_t> parents{0, 0, 1};
  const std::vector<float> target(4 * 5);
  std::vector<emission> out(3);
  const tree_verdict whole = verify(tokens, parents, 7, target, 5, 1, out);
  const tree_verdict without_rows = verify(tokens, parents, 7, {}, 5, 1, out);
  return whole.why == status::ok && whole.emitted == whole.accepted + 1 &&
                 without_rows.why == status::missing_row && without_rows.emitted == 0
             ? 0
             : 1;
}
