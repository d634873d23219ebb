// SPDX-License-Identifier: Apache-2.0
// A policy that somebody types, as the equation of pi(v): an expression of q, p and numbers.
//   q p            the probabilities of token v in the draft's and the target's row
//   alpha          a number given beside the equation; name = expression; names another value
//   + - * / ^      < <= > >= (1 or 0)   a ? b : c   ( )
//   min(a, b) max(a, b) abs(a) exp(a) log(a) sqrt(a) positive(a)     token by token
//   sum(a) max(a) min(a)                                             over the row: one number
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace explorer {

using numbers = std::vector<double>;

// Reads an equation and computes its values for one pair of rows, in one pass over the text.
// Throws std::runtime_error, which names the place.
class equation {
 public:
  equation(std::string_view text, const numbers& q, const numbers& p, double alpha) : text_(text) {
    names_ = {{"q", q}, {"p", p}, {"alpha", numbers(q.size(), alpha)}};
    size_ = q.size();
  }
  numbers value() {
    if (text_.size() > 2000) fail("more than 2,000 characters");  // each is read for 2,025 rows
    for (;;) {
      skip();
      const std::size_t start = at_;
      const std::string name = word();
      skip();
      const bool defines = !name.empty() && next("=") && !next("==");
      if (!defines) {
        at_ = start;
        numbers pi = choice();
        skip();
        if (next(";")) ++at_;
        skip();
        if (at_ != text_.size()) fail("an operator is missing");
        return pi;
      }
      ++at_;
      names_[name] = choice();
      skip();
      if (!next(";")) fail("a semicolon is missing");
      ++at_;
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw std::runtime_error("character " + std::to_string(at_ + 1) + ": " + why);
  }
  void skip() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  bool next(std::string_view wanted) const { return text_.substr(at_).starts_with(wanted); }
  bool take(std::string_view wanted) {
    skip();
    if (!next(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  std::string word() {
    const std::size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalpha(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_' ||
            (at_ > start && std::isdigit(static_cast<unsigned char>(text_[at_])))))
      ++at_;
    return std::string(text_.substr(start, at_ - start));
  }
  template <class F>
  static numbers both(numbers a, const numbers& b, F f) {
    for (std::size_t v = 0; v < a.size(); ++v) a[v] = f(a[v], b[v]);
    return a;
  }
  numbers choice() {
    numbers condition = comparison();
    if (!take("?")) return condition;
    const numbers yes = choice();
    if (!take(":")) fail("\":\" is missing");
    const numbers no = choice();
    for (std::size_t v = 0; v < condition.size(); ++v)
      condition[v] = condition[v] != 0 ? yes[v] : no[v];
    return condition;
  }
  numbers comparison() {
    numbers left = sum();
    if (take("<=")) return both(left, sum(), std::less_equal<double>());
    if (take(">=")) return both(left, sum(), std::greater_equal<double>());
    if (take("<")) return both(left, sum(), std::less<double>());
    if (take(">")) return both(left, sum(), std::greater<double>());
    return left;
  }
  numbers sum() {
    numbers left = product();
    for (;;) {
      if (take("+")) left = both(left, product(), std::plus<double>());
      else if (take("-")) left = both(left, product(), std::minus<double>());
      else return left;
    }
  }
  numbers product() {
    numbers left = power();
    for (;;) {
      if (take("*")) left = both(left, power(), std::multiplies<double>());
      else if (take("/")) left = both(left, power(), std::divides<double>());
      else return left;
    }
  }
  numbers power() {
    if (take("-")) return both(numbers(size_), power(), std::minus<double>());
    const numbers base = atom();
    if (!take("^")) return base;
    return both(base, power(), [](double a, double b) { return std::pow(a, b); });
  }
  numbers atom() {
    skip();
    if (++depth_ > 100) fail("parentheses are nested too deeply");
    numbers found;
    if (take("(")) {
      found = choice();
      if (!take(")")) fail("\")\" is missing");
    } else if (const std::string name = word(); !name.empty()) {
      found = take("(") ? called(name) : named(name);
    } else {
      found = number();
    }
    --depth_;
    return found;
  }
  numbers number() {
    char* end = nullptr;
    const std::string rest(text_.substr(at_));
    const double x = std::strtod(rest.c_str(), &end);
    if (end == rest.c_str())
      fail(rest.empty() ? "the equation ends too soon" : "no number or name");
    at_ += std::size_t(end - rest.c_str());
    return numbers(size_, x);
  }
  numbers named(const std::string& name) const {
    const auto found = names_.find(name);
    if (found == names_.end())
      fail("\"" + name + "\" is unknown (q, p, alpha, and what a line before defines)");
    return found->second;
  }
  // `name`, after its opening parenthesis.
  numbers called(const std::string& name) {
    numbers a = choice();
    const bool pair = take(",");
    const numbers b = pair ? choice() : numbers();
    if (!take(")")) fail("\")\" is missing");
    if (pair && name == "min") return both(a, b, [](double x, double y) { return y < x ? y : x; });
    if (pair && name == "max") return both(a, b, [](double x, double y) { return x < y ? y : x; });
    if (pair) fail("\"" + name + "\" does not take two values (min and max do)");
    if (name == "sum" || name == "min" || name == "max") {
      double all = name == "sum" ? 0 : a[0];
      for (const double x : a)
        all = name == "sum" ? all + x : name == "min" ? std::min(all, x) : std::max(all, x);
      return numbers(size_, all);
    }
    using function = double (*)(double);
    static const std::map<std::string, function> known = {
        {"abs", [](double x) { return std::abs(x); }},
        {"exp", [](double x) { return std::exp(x); }},
        {"log", [](double x) { return std::log(x); }},
        {"sqrt", [](double x) { return std::sqrt(x); }},
        {"positive", [](double x) { return x > 0 ? x : 0; }}};
    const auto found = known.find(name);
    if (found == known.end())
      fail("\"" + name + "\" is no function (min, max, sum, abs, exp, log, sqrt, positive)");
    for (double& x : a) x = found->second(x);
    return a;
  }

  std::string_view text_;
  std::map<std::string, numbers> names_;
  std::size_t size_ = 0, at_ = 0, depth_ = 0;
};

}  // namespace explorer
