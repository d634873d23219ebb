// SPDX-License-Identifier: Apache-2.0

int main() {
  const std::size_t gamma = 1;
  const std::vector<float> q(3000), p(6000);  // one rank has them all
  const std::vector<std::size_t> begins{0, 3000};
  const std::vector<token_id> drafted{1234};
  const sharded_request request{drafted, q, p, {}, 7};
  std::vector<verdict> verdicts(2);
  std::vector<emission> out(4);
  auto alone = [](std::span<const double> own, std::span<double> all) {
    std::copy(own.begin(), own.end(), all.begin());
    return true;
  };
  const std::vector<sharded_request> requests{request, request};
  const bool ok = verify_shards(std::span<const sharded_request>(requests), gamma, begins, 0, alone,
                                1, verdicts, out);
  for (const verdict& v : verdicts)
    if (!ok || v.why != status::ok || v.accepted != 1 || v.emitted != 2) return 1;
  return 0;
}
