// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <set>

#include "../tools/cli/policies.hpp"
#include "cli/command.hpp"

TEST_CASE(
    "law --grid: every policy x verifier x gamma 1..3 emits its law to 1e-12 on the whole 1/8 "
    "grid") {
  const cli::ran r = cli::run("law --grid --json");
  REQUIRE(r.status == 0);
  const auto table = nlohmann::json::parse(r.out);
  std::set<std::string> policies;
  for (const auto& line : table) {
    INFO(line.dump());
    policies.insert(std::string(line["policy"]).substr(0, std::string(line["policy"]).find(':')));
    CHECK(line["pairs"] == 2025);
    CHECK(double(line["worst_error"]) < 1e-12);
    CHECK(double(line["worst_error"]) >= 0);
  }
  CHECK(policies.size() == cli::known_policies().size());
  CHECK(table.size() % 4 == 0);
}
