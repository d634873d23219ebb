// SPDX-License-Identifier: Apache-2.0
// The report of `specagg generate --json`.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.hpp"

namespace cli {

inline nlohmann::json generated(const std::string& arguments) {
  const ran r = run("generate --json " + arguments);
  INFO(r.out);
  REQUIRE(r.status == 0);
  return nlohmann::json::parse(r.out);
}

}  // namespace cli
