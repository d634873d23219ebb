// SPDX-License-Identifier: Apache-2.0
// What links specagg::cpu: Eigen comes with it, and its vectors are rows.
#include <specagg/decoders.hpp>

#include <Eigen/Core>

int main() {
  const Eigen::VectorXf row = Eigen::VectorXf::Constant(4, 0.25F);
  return specagg::normalise(specagg::as_row(row)).why() == specagg::status::ok ? 0 : 1;
}
