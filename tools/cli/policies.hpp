// SPDX-License-Identifier: Apache-2.0
// --policy NAME[:key=value,...] to a policy.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/decoders.hpp>

namespace cli {

// Any policy of the library. A decoder is compiled once for all of them.
using any_policy = specagg::compiled_once<specagg::any_catalogued>;

extern const std::vector<std::string> verifiers, tree_verifiers;  // their names

// The parameters somebody wrote, as text; the makers below take what they know, and what is left
// over is an error.
class parameters {
 public:
  double temperature = 1;  // of the rows, where that is known: a default may depend on it
  parameters(std::string input, std::map<std::string, std::string> values)
      : input_(std::move(input)), values_(std::move(values)) {}
  // A number in [low, high] (or [low, high) if `open`), the default if it was not given.
  double number(const std::string& key, double otherwise, double low, double high,
                bool open = false);
  bool is(const std::string& key, const std::string& word);  // takes the value if it is this word
  bool flag(const std::string& key, bool otherwise);         // true or false
  std::string text(const std::string& key, const std::string& otherwise);
  [[noreturn]] void does_not_fit(const std::string& key, double given) const;
  void none_left(const std::string& known) const;

 private:
  std::string input_;
  std::map<std::string, std::string> values_;
};

// A line of the library's catalogue (policy/catalogue.hpp), as text.
struct known_policy {
  std::string name, keys, law;       // for --help
  std::vector<std::string> samples;  // NAME:key=value,... of the values to try it with
  std::function<any_policy(parameters&)> make;
};
const std::vector<known_policy>& known_policies();

// Throw specagg::error: unknown name, unknown key, a value that is no number or out of range.
// `input` names the source of the text in messages.
any_policy make_policy(const std::string& input, const std::string& name,
                       std::map<std::string, std::string> values, double temperature = 1);
any_policy parse_policy(const std::string& text, double temperature = 1);
// A policy with state (policy/stateful.hpp), which `--policy` names as it names the others. Within
// a value of phase / stands for a comma: phase:inside=power:lambda=0.3/rho=2,open=1/5,close=2.
struct stateful_policy {
  specagg::any_stateful policy;
  std::vector<specagg::token_id> open, close;  // what `policy` views
};
// Null: the text names another policy. The rest as parse_policy.
std::unique_ptr<const stateful_policy> parse_stateful(const std::string& text);
struct known_stateful {
  std::string name, keys, law;
};
const std::vector<known_stateful>& known_stateful_policies();
// NAME[:key=value,...] as a name and what its maker has to take.
std::pair<std::string, parameters> parse_parameters(const std::string& text);

// the end of "any finite number"
inline constexpr double unbounded = specagg::infinity;

}  // namespace cli
