// SPDX-License-Identifier: Apache-2.0
#include "policies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <limits>

namespace cli {

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
    const auto bound = [](double b) {
      return b == unbounded ? "inf" : b == -unbounded ? "-inf" : fmt::format("{:g}", b);
    };
    throw specagg::error(input_, key,
                         fmt::format("{} is not in [{}, {}{}", text, bound(low), bound(high),
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

void parameters::none_left(const std::string& known) const {
  if (values_.empty()) return;
  throw specagg::error(input_, values_.begin()->first,
                       known.empty() ? std::string("this policy has no parameters")
                                     : "is no parameter of this policy (" + known + ")");
}

const std::vector<rule>& rules() {
  using namespace specagg;
  using P = parameters;
  const auto any_alpha = [](P& p) { return p.number("alpha", 0, -unbounded, unbounded); };
  const auto lambda = [](P& p) { return p.number("lambda", 0.5, 0, 1); };
  const auto realign = [](P& p) -> any_policy {
    return {geometric{p.number("lambda", 0.5, -unbounded, unbounded)}};
  };
  static const std::vector<rule> all = {
      {"lossless", "", "p", [](P&) -> any_policy { return {lossless{}}; }},
      {"lossy", "alpha=0, beta=exact", "min(q, p/(1-alpha)) + (R/S) (p/beta - q)+",
       [](P& p) -> any_policy {
         const double alpha = p.number("alpha", 0, 0, 1, true);
         const bool exact = p.is("beta", "exact");
         return {lossy{
             alpha, exact ? lossy::exact : p.number("beta", lossy::exact, 1 - alpha, unbounded)}};
       }},
      {"lenient", "alpha=0", "lossy with beta 1",
       [](P& p) -> any_policy { return {lossy{p.number("alpha", 0, 0, 1, true), 1}}; }},
      {"mentored", "kl=0", "lossy with the alpha that makes KL(p || pi) = kl",
       [](P& p) -> any_policy { return {mentored{p.number("kl", 0, 0, unbounded)}}; }},
      {"chow", "alpha=0", "p if max q < 1 - alpha, else q",
       [=](P& p) -> any_policy { return {chow{any_alpha(p)}}; }},
      {"chow-log", "alpha=0", "p if H(q) > alpha, else q",
       [=](P& p) -> any_policy { return {chow_log{any_alpha(p)}}; }},
      {"diff", "alpha=0", "p if max q < max p - alpha, else q",
       [=](P& p) -> any_policy { return {diff{any_alpha(p)}}; }},
      {"diff-log", "alpha=0", "p if H(p) < H(q) - alpha, else q",
       [=](P& p) -> any_policy { return {diff_log{any_alpha(p)}}; }},
      {"opt", "alpha=0", "p if max q < max p - alpha TV(p, q), else q",
       [=](P& p) -> any_policy { return {opt{any_alpha(p)}}; }},
      {"opt-log", "alpha=0", "p if H(p) < H(q) - alpha TV(p, q), else q",
       [=](P& p) -> any_policy { return {opt_log{any_alpha(p)}}; }},
      {"bild", "alpha=0, d=cross|greedy",
       "p if D > alpha, else q; D = -sum q log p, or -log p(argmax q)",
       [=](P& p) -> any_policy {
         return {bild{any_alpha(p),
                      !p.is("d", "cross") && (p.is("d", "greedy") || p.temperature == 0)}};
       }},
      {"token-v1", "alpha=0", "q (1-r) + eta p, r = 1 iff q(v) < max p - alpha",
       [=](P& p) -> any_policy { return {token_v1{any_alpha(p)}}; }},
      {"token-v2", "alpha=0", "q (1-r) + eta p, r = 1 iff p(v) < max p - alpha",
       [=](P& p) -> any_policy { return {token_v2{any_alpha(p)}}; }},
      {"token-v3", "alpha=0", "q (1-r) + eta p, r = 1 iff p(v) < (1-alpha) max p",
       [=](P& p) -> any_policy { return {token_v3{any_alpha(p)}}; }},
      {"ensemble", "lambda=0.5", "lambda q + (1-lambda) p",
       [=](P& p) -> any_policy { return {ensemble{lambda(p)}}; }},
      {"contrastive", "mu=0.1, plausibility=0, form=plain|plus",
       "softmax(l_p - mu l_q), or softmax((1+mu) l_p - mu l_q)",
       [](P& p) -> any_policy {
         const double mu = p.number("mu", 0.1, -unbounded, unbounded);
         const double plausibility = p.number("plausibility", 0, 0, 1);
         return {contrastive{mu, plausibility, !p.is("form", "plain") && p.is("form", "plus")}};
       }},
      {"geometric", "lambda=0.5", "norm(q^lambda p^(1-lambda))", realign},
      {"realign", "lambda=0.5", "softmax(lambda l_q + (1-lambda) l_p), the same", realign},
      {"power", "lambda=0.5, rho=1", "norm((lambda q^rho + (1-lambda) p^rho)^(1/rho))",
       [=](P& p) -> any_policy {
         const double weight = lambda(p);
         return {power{weight, p.number("rho", 1, -unbounded, unbounded)}};
       }},
      {"min", "", "norm(min(q, p))", [](P&) -> any_policy { return {minimum<>{}}; }},
      {"max", "", "norm(max(q, p))", [](P&) -> any_policy { return {maximum<>{}}; }},
  };
  return all;
}

namespace {

std::pair<std::string, std::map<std::string, std::string>> split(const std::string& text) {
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
  for (const rule& r : rules()) {
    names.push_back(r.name);
    if (r.name != name) continue;
    parameters p(input, std::move(values));
    p.temperature = temperature;
    const any_policy policy = r.make(p);
    p.none_left(r.keys);
    return policy;
  }
  throw specagg::error(
      input, "policy",
      fmt::format("\"{}\" is unknown ({} are known)", name, fmt::join(names, ", ")));
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
