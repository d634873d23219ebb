// SPDX-License-Identifier: Apache-2.0
// specagg audit: a sampler's tokens against the law that it should have.
#include "audit.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <vector>

#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/rows/distribution.hpp>
#include <specagg/error.hpp>
#include <specagg/rows/process.hpp>

#include "files.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using json = nlohmann::ordered_json;
using numbers = std::vector<double>;

numbers numbers_in(const json& in, const std::string& path, const std::string& key,
                   const char* list) {
  if (!in.is_array() || in.empty())
    throw error(path, key, fmt::format("is not a list of {}", list));
  numbers given;
  for (const json& x : in) {
    const bool masked = key == "logits" && x == "-inf";
    if (!x.is_number() && !masked)
      throw error(path, fmt::format("{}, entry {}", key, given.size()), "is not a number");
    given.push_back(masked ? -HUGE_VAL : x.get<double>());
  }
  return given;
}
template <class T>
T option_in(const json& in, const std::string& path, const char* key, T otherwise) {
  if (!in.contains(key)) return otherwise;
  const json& x = in[key];
  if (std::is_integral_v<T> ? !x.is_number_unsigned() : !x.is_number())
    throw error(path, key, "is not a number");
  return x.get<T>();
}
filter_order order_in(const json& x, const std::string& path) {
  std::string known;
  for (const filter_order one : filter_orders) {
    if (x == name(one)) return one;
    known += std::string(known.empty() ? "" : ", ") + name(one);
  }
  throw error(path, "order", "is unknown (" + known + ")");
}
template <class R>
numbers law_of(const R& given, const std::string& path, const char* key) {
  const auto row = normalise(given);
  if (row.why() != status::ok) throw error(path, key, std::string(name(row.why())));
  numbers law(row.size());
  for (std::size_t v = 0; v < law.size(); ++v) law[v] = row[v];
  return law;
}
// A list of probabilities; an object with one under "law" (what specagg law --json prints); or an
// object with "logits" and what an engine samples with.
numbers read_law(const std::string& path) {
  const std::string text = read_text(path);
  const json in = json::parse(text, nullptr, false);
  if (in.is_discarded()) throw error(path, "", "is not JSON");
  if (in.is_object() && in.contains("logits") && !in.contains("law")) {
    for (const auto& [key, value] : in.items())
      if (std::string(" logits temperature top_k top_p min_p order ").find(" " + key + " ") ==
          std::string::npos)
        throw error(path, key, "is unknown (logits, temperature, top_k, top_p, min_p, order)");
    const numbers logits = numbers_in(in["logits"], path, "logits", "logits");
    sampling how{.temperature = option_in(in, path, "temperature", 1.0),
                 .top_k = option_in(in, path, "top_k", 0u),
                 .top_p = option_in(in, path, "top_p", 1.0),
                 .min_p = option_in(in, path, "min_p", 0.0)};
    if (in.contains("order")) how.order = order_in(in["order"], path);
    return law_of(processed_row<double>(logits, how), path, "logits");
  }
  if (in.is_object() && !in.contains("law")) throw error(path, "law", "is missing");
  const numbers law = numbers_in(in.is_object() ? in["law"] : in, path, "law", "probabilities");
  return law_of(dense_row<double>(law), path, "law");
}

// The token of a line; -1: there is none.
long long token_in(std::string_view line) {
  constexpr std::string_view space = " \t\r\n";
  const auto first = line.find_first_not_of(space), last = line.find_last_not_of(space);
  if (first == std::string_view::npos) return -1;
  line = line.substr(first, last - first + 1);
  long long token = -1;
  if (line.front() != '{') {
    const auto [end, failure] = std::from_chars(line.data(), line.data() + line.size(), token);
    return failure == std::errc() && end == line.data() + line.size() ? token : -1;
  }
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object() || !object.contains("token") || !object["token"].is_number_integer())
    return -1;
  return object["token"].get<long long>();
}

// How often each of the law's tokens stands on standard input.
numbers read_counts(std::size_t vocabulary) {
  struct stat input{};
  const bool file = fstat(STDIN_FILENO, &input) == 0 && S_ISREG(input.st_mode) && input.st_size > 0;
  numbers counts(vocabulary);
  progress bar("reading tokens");
  double read = 0;
  std::size_t lines = 0;
  for (std::string text; read_line(text, lines, 4096);) {
    const auto fail = [&](const std::string& why) {
      throw error("standard input", fmt::format("line {}", lines + 1), why);
    };
    const long long token = token_in(text);
    if (token < 0)
      fail(fmt::format("\"{:.40}\" is neither a token id nor {{\"token\": id}}",
                       text.substr(0, text.find('\r'))));
    if (std::size_t(token) >= vocabulary)
      fail(fmt::format("token {}: the law has {} tokens", token, vocabulary));
    ++counts[std::size_t(token)];
    ++lines;
    read += double(text.size() + 1);
    if (lines % 4096 != 0) continue;
    if (file) bar.show(std::min(1., read / double(input.st_size)));
    else bar.count(lines);
  }
  if (lines == 0) throw error("standard input", "", "has no tokens");
  return counts;
}

constexpr std::size_t most_shown = 10;

}  // namespace

bool audit(const audit_options& o) {
  // CLI11 lets NaN pass
  if (!(o.alpha > 0)) throw error("--alpha", "", fmt::format("{} is out of range", o.alpha));
  const numbers law = read_law(o.law), counts = read_counts(law.size());
  const double samples = std::accumulate(counts.begin(), counts.end(), 0.0);
  const fit f = goodness_of_fit(counts, law, o.alpha);
  // How unlikely each count is for a correct sampler. A token of probability 0 that was seen comes
  // first.
  numbers tail(law.size());
  for (std::size_t v = 0; v < law.size(); ++v)
    tail[v] = log_binomial_tail(samples, law[v], 1 - law[v], counts[v]);
  std::vector<std::size_t> worst(law.size());
  std::iota(worst.begin(), worst.end(), 0);
  const auto shown = std::min(most_shown, worst.size());
  std::ranges::partial_sort(
      worst, worst.begin() + std::ptrdiff_t(shown),
      [&](std::size_t a, std::size_t b) { return tail[a] != tail[b] ? tail[a] < tail[b] : a < b; });
  worst.resize(shown);
  const bool finds = f.detectable <= 1;  // no two laws are further apart
  const bool impossible = law[worst[0]] <= 0 && counts[worst[0]] > 0;

  if (o.json) {
    json tokens = json::array();
    for (const std::size_t v : worst)
      tokens.push_back({{"token", v},
                        {"law", law[v]},
                        {"expected", samples * law[v]},
                        {"seen", std::size_t(counts[v])}});
    fmt::print("{}\n", json{{"samples", std::size_t(samples)},
                            {"distance", f.distance},
                            {"expected_distance", f.expected_distance},
                            {"p_value", f.p_value},
                            {"alpha", o.alpha},
                            {"fits", f.passed},
                            {"detectable_tv", finds ? json(f.detectable) : json()},
                            {"worst", tokens}}
                           .dump(2));
    return f.passed;
  }
  fmt::print("samples             {:.0f}\n", samples);
  fmt::print("distance            {:.4f}\n", f.distance);
  fmt::print("expected distance   {:.4f}\n", f.expected_distance);
  fmt::print("p-value             {:.3g}\n", f.p_value);
  fmt::print("alpha               {:g}\n", o.alpha);
  fmt::print("verdict             {}{}\n", f.passed ? "fits" : "does not fit",
             impossible ? fmt::format(": token {} has probability 0", worst[0]) : "");
  constexpr const char* found =
      "{:.4f}: a sampler as far from the law fails with probability 0.999 or more";
  fmt::print("detectable tv       {}\n",
             finds ? fmt::format(found, f.detectable) : "none: too few samples");
  fmt::print("\nworst tokens\n{:>6} {:>12} {:>14} {:>12}\n", "token", "law", "expected", "seen");
  for (const std::size_t v : worst)
    fmt::print("{:>6} {:>12.9f} {:>14.1f} {:>12.0f}\n", v, law[v], samples * law[v], counts[v]);
  return f.passed;
}

}  // namespace cli
