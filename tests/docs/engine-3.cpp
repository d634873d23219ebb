// SPDX-License-Identifier: Apache-2.0

int main() {
  const std::vector<float> q(3000), p(3000);  // one rank has them all
  const std::vector<const float*> q_rows{q.data()}, p_rows{p.data(), p.data()};
  const std::vector<std::size_t> begins{0, 3000};
  const std::vector<token_id> drafted{1234};
  std::vector<emission> out(2);
  auto alone = [](std::span<const double> own, std::span<double> all) {
    std::copy(own.begin(), own.end(), all.begin());
    return true;
  };
  const verdict v = verify_shards(drafted, q_rows, p_rows, begins, 0, alone, 1, out);
  return v.why == status::ok && v.accepted == 1 && v.emitted == 2 ? 0 : 1;
}
