// SPDX-License-Identifier: Apache-2.0
#include "policies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <limits>

namespace cli {
namespace {

constexpr double inf = std::numeric_limits<double>::max();

}  // namespace

double parameters::number(const std::string& key, double otherwise, double low, double high, bool open) {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  const std::string text = found->second;
  values_.erase(found);
  double x = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(x))
    throw specagg::error(input_, key, fmt::format("\"{}\" is not a number", text));
  if (x < low || x > high || (open && x == high)) {
    const auto bound = [](double b) { return b == inf ? "inf" : b == -inf ? "-inf" : fmt::format("{:g}", b); };
    throw specagg::error(
        input_, key,
        fmt::format("{} is not in [{}, {}{}", text, bound(low), bound(high), open || high == inf ? ")" : "]"));
  }
  return x;
}

bool parameters::is(const std::string& key, const std::string& word) {
  const auto found = values_.find(key);
  if (found == values_.end() || found->second != word) return false;
  values_.erase(found);
  return true;
}

void parameters::none_left(const std::string& known) const {
  if (values_.empty()) return;
  throw specagg::error(
      input_, values_.begin()->first,
      known.empty() ? std::string("this policy has no parameters") : "is no parameter of this policy (" + known + ")");
}

const std::vector<rule>& rules() {
  using namespace specagg;
  static const std::vector<rule> all = {
      {"lossless", "", "pi = p", [](parameters&) { return any_policy(lossless{}); }},
      {"lossy", "alpha=0, beta=exact", "min(q, p/(1-alpha)) + (R/S) (p/beta - q)+",
       [](parameters& p) {
         const double alpha = p.number("alpha", 0, 0, 1, true);
         const bool exact = p.is("beta", "exact");
         return any_policy(lossy{alpha, exact ? lossy::exact : p.number("beta", lossy::exact, 1 - alpha, inf)});
       }},
      {"opt", "alpha=0", "p if max q < max p - alpha TV(p, q), else q",
       [](parameters& p) { return any_policy(opt{p.number("alpha", 0, -inf, inf)}); }},
      {"token-v3", "alpha=0", "q (1-r) + eta p, r(v) = 1 iff p(v) < (1-alpha) max p",
       [](parameters& p) { return any_policy(token_v3{p.number("alpha", 0, -inf, inf)}); }},
      {"ensemble", "lambda=0.5", "lambda q + (1-lambda) p",
       [](parameters& p) { return any_policy(ensemble{p.number("lambda", 0.5, 0, 1)}); }},
  };
  return all;
}

any_policy parse_policy(const std::string& text) {
  const std::string input = "--policy " + text;
  const auto colon = text.find(':');
  const std::string name = text.substr(0, colon);
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
  std::vector<std::string> names;
  for (const rule& r : rules()) {
    names.push_back(r.name);
    if (r.name != name) continue;
    parameters p(input, values);
    const any_policy policy = r.make(p);
    p.none_left(r.keys);
    return policy;
  }
  throw specagg::error(input, "name", fmt::format("\"{}\" is unknown ({} are known)", name, fmt::join(names, ", ")));
}

}  // namespace cli
