// SPDX-License-Identifier: Apache-2.0
// --policy NAME[:key=value,...] to a policy.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/specagg.hpp>

namespace cli {

using any_policy = std::variant<specagg::lossless, specagg::lossy, specagg::opt, specagg::token_v3, specagg::ensemble>;

// The parameters somebody wrote, as text; the makers below take what they know, and what is left over is an error.
class parameters {
 public:
  parameters(std::string input, std::map<std::string, std::string> values)
      : input_(std::move(input)), values_(std::move(values)) {}
  // A number in [low, high] (or [low, high) if `open`), the default if it was not given.
  double number(const std::string& key, double otherwise, double low, double high, bool open = false);
  bool is(const std::string& key, const std::string& word);  // takes the value if it is this word
  void none_left(const std::string& known) const;

 private:
  std::string input_;
  std::map<std::string, std::string> values_;
};

struct rule {
  std::string name, keys, law;  // for --help
  std::function<any_policy(parameters&)> make;
};
const std::vector<rule>& rules();

// Throws specagg::error: unknown name, unknown key, a value that is no number or out of range.
any_policy parse_policy(const std::string& text);

}  // namespace cli
