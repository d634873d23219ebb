// SPDX-License-Identifier: Apache-2.0
#include "policies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace cli {

namespace {
template <class List>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  specagg::for_each_verifier<List>(0, 0, [&](const auto& v) { names.push_back(v.name); });
  return names;
}
}  // namespace
const std::vector<std::string> verifiers = names_of<specagg::all_verifiers>(),
                               tree_verifiers = names_of<specagg::all_tree_verifiers>();

double parameters::number(const std::string& key, double otherwise, double low, double high,
                          bool open) {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  const std::string text = found->second;
  values_.erase(found);
  double x = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(x))
    throw specagg::error(input_, key, fmt::format("\"{}\" is not a number", text));
  if (x < low || x > high || (open && x == high)) {
    throw specagg::error(
        input_, key,
        fmt::format("{} is not in {}{:g}, {:g}{}", text, low == -unbounded ? "(" : "[", low, high,
                    open || high == unbounded ? ")" : "]"));
  }
  return x;
}

bool parameters::is(const std::string& key, const std::string& word) {
  const auto found = values_.find(key);
  if (found == values_.end() || found->second != word) return false;
  values_.erase(found);
  return true;
}

bool parameters::flag(const std::string& key, bool otherwise) {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  if (found->second != "true" && found->second != "false")
    throw specagg::error(input_, key, "\"" + found->second + "\" is neither true nor false");
  const bool given = found->second == "true";
  values_.erase(found);
  return given;
}

std::string parameters::text(const std::string& key, const std::string& otherwise) {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  const std::string given = found->second;
  values_.erase(found);
  return given;
}

void parameters::does_not_fit(const std::string& key, double given) const {
  throw specagg::error(input_, key,
                       fmt::format("{} is out of range beside the other parameters", given));
}

void parameters::none_left(const std::string& known) const {
  if (values_.empty()) return;
  throw specagg::error(input_, values_.begin()->first,
                       known.empty() ? std::string("this policy has no parameters")
                                     : "is no parameter of this policy (" + known + ")");
}

namespace {

template <class Policy>
std::string text_of(const specagg::policy_parameter<Policy>& one, const Policy& value,
                    const Policy& standard) {
  if (one.flag) return fmt::format("{}={}", one.name, value.*one.flag);
  if (one.word && value.*one.number == standard.*one.number)
    return fmt::format("{}={}", one.name, one.word);
  return fmt::format("{}={}", one.name, value.*one.number);
}

template <class Line>
std::string keys_of(const Line& line) {
  const auto& standard = line.values[0];
  std::string keys;
  for (const auto& one : line.parameters)
    keys += (keys.empty() ? "" : ", ") + text_of(one, standard, standard);
  return keys;
}

template <class Line>
typename Line::type made_of(const Line& line, parameters& p) {
  using Policy = typename Line::type;
  const Policy& standard = line.values[0];
  Policy made = standard;
  const bool greedy = std::is_same_v<Policy, specagg::bild> && p.temperature == 0;
  for (const auto& one : line.parameters)
    if (one.flag) made.*one.flag = p.flag(one.name, greedy || standard.*one.flag);
    else if (!one.word)
      made.*one.number = p.number(one.name, standard.*one.number, one.low, one.high, one.open);
    else if (!p.is(one.name, one.word)) {
      const double absent = std::numeric_limits<double>::quiet_NaN();
      const double given = p.number(one.name, absent, one.low, one.high, one.open);
      if (given == standard.*one.number) p.does_not_fit(one.name, given);  // only the word says it
      if (!std::isnan(given)) made.*one.number = given;
    }
  for (const auto& one : line.parameters) {  // a range that depends on the other parameters
    if (!one.number || specagg::valid(made)) continue;
    const double given = std::exchange(made.*one.number, standard.*one.number);
    if (specagg::valid(made)) p.does_not_fit(one.name, given);
    made.*one.number = given;
  }
  return made;
}

template <class Line>
known_policy described(const Line& line) {
  using Policy = typename Line::type;
  const Policy& standard = line.values[0];
  known_policy r{line.name, keys_of(line), line.law, {}, {}};
  for (std::size_t i = line.values.size() > 1; i < line.values.size(); ++i) {
    std::string given;
    for (const auto& one : line.parameters) {
      const std::string text = text_of(one, line.values[i], standard);
      if (text != text_of(one, standard, standard)) given += (given.empty() ? ":" : ",") + text;
    }
    r.samples.push_back(line.name + given);
  }
  r.make = [&line](parameters& p) { return any_policy{made_of(line, p)}; };
  return r;
}

}  // namespace

const std::vector<known_policy>& known_policies() {
  static const std::vector<known_policy> all = [] {
    std::vector<known_policy> lines;
    specagg::for_each_in_catalogue([&](const auto& line) { lines.push_back(described(line)); });
    return lines;
  }();
  return all;
}

namespace {

using named_values = std::pair<std::string, std::map<std::string, std::string>>;

named_values split(const std::string& text) {
  const std::string input = "--policy " + text;
  const auto colon = text.find(':');
  std::map<std::string, std::string> values;
  for (std::size_t i = colon; i != std::string::npos;) {
    const auto end = text.find(',', ++i);
    const std::string item = text.substr(i, end == std::string::npos ? end : end - i);
    const auto equals = item.find('=');
    if (equals == std::string::npos || equals == 0)
      throw specagg::error(input, "parameter \"" + item + "\"", "is not of the form key=value");
    if (!values.emplace(item.substr(0, equals), item.substr(equals + 1)).second)
      throw specagg::error(input, item.substr(0, equals), "is given twice");
    i = end;
  }
  return {text.substr(0, colon), std::move(values)};
}

}  // namespace

any_policy make_policy(const std::string& input, const std::string& name,
                       std::map<std::string, std::string> values, double temperature) {
  std::vector<std::string> names;
  for (const known_policy& r : known_policies()) {
    names.push_back(r.name);
    if (r.name != name) continue;
    parameters p(input, std::move(values));
    p.temperature = temperature;
    const any_policy policy = r.make(p);
    p.none_left(r.keys);
    return policy;
  }
  for (const known_stateful& r : known_stateful_policies())
    if (r.name == name)
      throw specagg::error(
          input, "policy",
          "\"" + name + "\" has state: generate --decoder speculative and law --q --p take it");
  throw specagg::error(
      input, "policy",
      fmt::format("\"{}\" is unknown ({} are known)", name, fmt::join(names, ", ")));
}

namespace {

// Token ids, separated by /.
std::vector<specagg::token_id> ids_of(const std::string& input, const std::string& key,
                                      const std::string& text) {
  std::vector<specagg::token_id> ids;
  for (const char *at = text.data(), *const end = at + text.size();; ++at) {
    specagg::token_id id = -1;
    const auto [stop, failure] = std::from_chars(at, end, id);
    if (failure != std::errc() || id < 0 || (stop != end && *stop != '/'))
      throw specagg::error(input, key, "\"" + text + "\" is no list of token ids (5/17)");
    ids.push_back(id);
    at = stop;
    if (at == end) return ids;
  }
}
void make_phase(const std::string& input, parameters& p, stateful_policy& made) {
  const auto named = [&](const char* key) {
    std::string text = p.text(key, "lossless");
    std::replace(text.begin(), text.end(), '/', ',');
    return parse_policy(text);
  };
  const any_policy inside = named("inside"), outside = named("outside");
  const std::string open = p.text("open", ""), close = p.text("close", "");
  made.open = ids_of(input, "open", open);
  made.close = ids_of(input, "close", close);
  made.policy.chosen = specagg::phase<specagg::any_catalogued, specagg::any_catalogued>{
      inside, outside, made.open, made.close};
}

}  // namespace

const std::vector<known_stateful>& known_stateful_policies() {
  static const std::vector<known_stateful> all = [] {
    std::vector<known_stateful> lines;
    specagg::for_each_in_catalogue<true>(
        [&](const auto& line) { lines.push_back({line.name, keys_of(line), line.law}); });
    lines.push_back({"phase", "inside=lossless, outside=lossless, open=ID, close=ID",
                     "one policy after a token of open, another after one of close"});
    return lines;
  }();
  return all;
}

std::unique_ptr<const stateful_policy> parse_stateful(const std::string& text) {
  auto made = std::make_unique<stateful_policy>();
  for (const known_stateful& known : known_stateful_policies()) {
    if (text.substr(0, text.find(':')) != known.name) continue;
    parameters p = parse_parameters(text).second;
    if (known.name == "phase") make_phase("--policy " + text, p, *made);
    specagg::for_each_in_catalogue<true>([&](const auto& line) {
      if (known.name == line.name) made->policy.chosen = made_of(line, p);
    });
    p.none_left(known.keys);
    return made;
  }
  return nullptr;
}

std::pair<std::string, parameters> parse_parameters(const std::string& text) {
  auto [name, values] = split(text);
  return {name, parameters("--policy " + text, std::move(values))};
}
any_policy parse_policy(const std::string& text, double temperature) {
  auto [name, values] = split(text);
  return make_policy("--policy " + text, name, std::move(values), temperature);
}

}  // namespace cli
