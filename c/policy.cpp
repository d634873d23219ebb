// SPDX-License-Identifier: Apache-2.0
// "NAME:key=value,..." to a policy, by the engine's list of them.
#include <charconv>
#include <cmath>
#include <string_view>

#include "engine.hpp"
#include "error.hpp"

namespace {

using c_library::refuse;

// "%.*s" of a view
#define TEXT(x) int((x).size()), (x).data()

// Takes what stands before the separator off the text.
std::string_view next_part(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == text.npos ? std::string_view() : text.substr(end + 1);
  return part;
}
// Names may have - or _.
bool same_name(std::string_view known, std::string_view given) {
  if (known.size() != given.size()) return false;
  for (std::size_t i = 0; i < known.size(); ++i)
    if (known[i] != given[i] && !(known[i] == '-' && given[i] == '_')) return false;
  return true;
}

std::int32_t parse_value(const engine::known_policy& known, const engine::parameter& one,
                         std::string_view text, double& value) {
  value = one.usual;
  if (one.word && text == one.word) return SPECAGG_OK;
  const char* const end = text.data() + text.size();
  if (one.flag && (text == "true" || text == "false")) value = text == "true";
  else if (const auto read = std::from_chars(text.data(), end, value);
           read.ec != std::errc() || read.ptr != end)
    return refuse("policy %s: %s: \"%.*s\" is not a number", known.name, one.name, TEXT(text));
  if (one.flag && value != 0 && value != 1)
    return refuse("policy %s: %s: \"%.*s\" is neither true nor false", known.name, one.name,
                  TEXT(text));
  const bool outside = value < one.low || value > one.high || (one.open && value == one.high);
  if (!one.flag && (!std::isfinite(value) || outside))
    return refuse("policy %s: %s: %.*s is not in [%g, %g%s", known.name, one.name, TEXT(text),
                  one.low, one.high, one.open ? ")" : "]");
  return SPECAGG_OK;
}

// The parameters, "key=value,...", into `values`, which has the defaults.
std::int32_t parse_parameters(const engine::known_policy& known, int line, std::string_view text,
                              double* values) {
  std::string_view given = text;  // what was parsed before is looked at again for a key given twice
  while (!text.empty()) {
    std::string_view value = next_part(text, ',');
    const std::string_view item = value, key = next_part(value, '=');
    if (key.size() == item.size())
      return refuse("policy %s: \"%.*s\" is not of the form key=value", known.name, TEXT(item));
    std::size_t k = 0;
    while (k < known.count && key != specagg_engine_parameter(line, k).name) ++k;
    if (k == known.count)
      return refuse("policy %s: \"%.*s\" is no parameter of it", known.name, TEXT(key));
    for (std::string_view before = given; before.data() != item.data();)
      if (std::string_view earlier = next_part(before, ','); next_part(earlier, '=') == key)
        return refuse("policy %s: %.*s is given twice", known.name, TEXT(key));
    if (const auto wrong = parse_value(known, specagg_engine_parameter(line, k), value, values[k]))
      return wrong;
  }
  return SPECAGG_OK;
}

// The line of policy 0, 1, ... among those of one position; -1 beyond the last.
int line_of(std::int32_t number, engine::known_policy& known) {
  for (int line = 0; number >= 0 && specagg_engine_policy(line, &known); ++line)
    if (!known.of_text && number-- == 0) return line;
  return -1;
}

}  // namespace

const char* specagg_policy_name(std::int32_t number) {
  engine::known_policy known{};
  return line_of(number, known) < 0 ? nullptr : known.name;
}

std::int32_t specagg_policy_parse(const char* text, specagg_policy* policy) {
  c_library::forget_error();
  if (!text || !policy) return refuse("%s: is NULL", text ? "policy" : "text");
  std::string_view rest = text;
  const std::string_view name = next_part(rest, ':');
  engine::known_policy known{};
  engine::policy chosen;
  std::int32_t number = 0;
  while ((chosen.line = line_of(number, known)) >= 0 && !same_name(known.name, name)) ++number;
  if (chosen.line < 0) return refuse("policy: there is no \"%.*s\"", TEXT(name));
  const std::size_t room = policy->parameters ? policy->room : 0;
  if (room < known.count)
    return refuse("policy %s: has %zu parameters, and there is room for %zu", known.name,
                  known.count, room);
  for (std::size_t k = 0; k < known.count; ++k)
    policy->parameters[k] = specagg_engine_parameter(chosen.line, k).usual;
  if (const auto wrong = parse_parameters(known, chosen.line, rest, policy->parameters))
    return wrong;
  chosen.parameters = {policy->parameters, known.count};
  if (!specagg_engine_valid(&chosen))
    return refuse("policy %s: these parameters do not fit together", known.name);
  policy->count = known.count;
  policy->line = chosen.line;
  policy->reads_draft = known.reads_draft;
  return SPECAGG_OK;
}
