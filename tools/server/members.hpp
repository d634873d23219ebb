// SPDX-License-Identifier: Apache-2.0
// The members of a JSON object, and the errors that a client is told.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

using json = nlohmann::json;

// An answer that is an error. type and code are those that OpenAI's clients know.
struct api_error {
  int status;
  std::string message, param = {}, code = {};
  std::string text() const {
    const auto or_null = [](const std::string& s) { return s.empty() ? json(nullptr) : json(s); };
    const char* type = status >= 500 ? "server_error" : "invalid_request_error";
    const json e = {
        {"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}};
    return json{{"error", e}}.dump(-1, ' ', false, json::error_handler_t::replace);
  }
};

// The members of a JSON object, each of which is taken once; what is left over is an error. One
// that is null asks for nothing, as if it were not there: clients write all members that they know.
class members {
 public:
  explicit members(const json& of) : of_(of) {
    if (!of.is_object()) throw api_error{400, "the body is no JSON object"};
  }
  // Null if it is absent or null.
  const json& take(const std::string& name) {
    static const json null;
    taken_.insert(name);
    const auto at = of_.find(name);
    return at == of_.end() ? null : *at;
  }
  double number(const std::string& name, double otherwise, double low, double high) {
    const json& x = take(name);
    if (x.is_null()) return otherwise;
    if (!x.is_number() || !(x.get<double>() >= low && x.get<double>() <= high))
      throw api_error{
          400, fmt::format("\"{}\" must be a number from {:g} to {:g}", name, low, high), name};
    return x.get<double>();
  }
  std::uint64_t integer(const std::string& name, std::uint64_t otherwise, std::uint64_t low,
                        std::uint64_t high) {
    const json& x = take(name);
    if (x.is_null()) return otherwise;
    if (!x.is_number_unsigned() || x.get<std::uint64_t>() < low || x.get<std::uint64_t>() > high)
      throw api_error{400, fmt::format("\"{}\" must be an integer from {} to {}", name, low, high),
                      name};
    return x.get<std::uint64_t>();
  }
  // Any integer of 64 bits, as its bits. None if it is absent.
  std::optional<std::uint64_t> bits(const std::string& name) {
    const json& x = take(name);
    if (x.is_null()) return std::nullopt;
    if (!x.is_number_integer())
      throw api_error{400, "\"" + name + "\" must be an integer of 64 bits", name};
    return x.get<std::uint64_t>();
  }
  bool flag(const std::string& name) {
    const json& x = take(name);
    if (!x.is_null() && !x.is_boolean())
      throw api_error{400, "\"" + name + "\" must be true or false", name};
    return x.is_boolean() && x.get<bool>();
  }
  std::string string(const std::string& name, const std::string& otherwise) {
    const json& x = take(name);
    if (!x.is_null() && !x.is_string())
      throw api_error{400, "\"" + name + "\" must be a string", name};
    return x.is_null() ? otherwise : x.get<std::string>();
  }
  // What this server does not do may be given as long as it asks for nothing.
  void neutral(const std::string& name, const std::vector<json>& values, const std::string& why) {
    const json& x = take(name);
    if (!x.is_null() && std::find(values.begin(), values.end(), x) == values.end())
      throw api_error{400, "\"" + name + "\" is not served: " + why, name};
  }
  void none_left() const {
    for (const auto& [name, value] : of_.items())
      if (!taken_.contains(name) && !value.is_null())
        throw api_error{400, "\"" + name + "\" is not served: it is unknown here", name};
  }

 private:
  const json& of_;
  std::set<std::string> taken_;
};
