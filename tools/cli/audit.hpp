// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include <specagg/audit/goodness_of_fit.hpp>

namespace cli {

struct audit_options {
  std::string law;  // a JSON file
  double alpha = specagg::usual_false_alarm;
  bool json = false;
};

// specagg audit: whether the tokens on standard input fit a law. Throws specagg::error for bad
// input.
bool audit(const audit_options& options);

}  // namespace cli
