// SPDX-License-Identifier: Apache-2.0

int main() {
  const double alphas[] = {0, 0.5};
  write_curve(alphas, [](double alpha) { return specagg::ensemble{alpha}; });
  return std::ifstream("trade-off.csv").peek() == std::ifstream::traits_type::eof() ? 1 : 0;
}
