// SPDX-License-Identifier: Apache-2.0
// What a part of any program of the experiments needs: its settings, a table that becomes a CSV
// file, finished parts read back, means and their errors.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include <specagg/error.hpp>

namespace experiments {

struct settings {
  bool quick = false;
  std::uint64_t seed = 1;
  unsigned threads = 0;  // of the exact parts; no number depends on it
  std::filesystem::path out = "build/experiments";
};

// Rows of text; numbers to 9 digits.
class table {
 public:
  explicit table(std::string header = "") : text_(header.empty() ? "" : header + "\n") {}
  template <class... Cells>
  void add(const Cells&... cells) {
    std::size_t n = begin_.empty() ? 0 : 1;
    text_ += begin_;
    ((text_ += (n++ ? "," : "") + cell(cells)), ...);
    text_ += '\n';
  }
  // the first cell of all further rows
  void begin_with(const std::string& first) { begin_ = first; }
  const std::string& text() const { return text_; }

 private:
  template <class T>
  static std::string cell(const T& x) {
    if constexpr (std::is_floating_point_v<T>) return std::isnan(x) ? "" : fmt::format("{:.9g}", x);
    else return fmt::format("{}", x);
  }
  std::string text_, begin_;
};

// A finished part, read back: rows by column.
using records = std::vector<std::map<std::string, std::string>>;
inline records read(const settings& how, const std::string& part) {
  for (const char* folder : {"exact", "timed"}) {
    std::ifstream file(how.out / folder / (part + ".csv"));
    if (!file) continue;
    records all;
    std::vector<std::string> header;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("#")) continue;
      std::vector<std::string> cells(1);
      for (const char c : line) c == ',' ? (void)cells.emplace_back() : (void)(cells.back() += c);
      if (header.empty()) {
        header = cells;
        continue;
      }
      auto& one = all.emplace_back();
      for (std::size_t i = 0; i < header.size(); ++i) one[header[i]] = cells.at(i);
    }
    return all;
  }
  throw specagg::error(part, "", "has not been measured");
}

// Mean of f(i), i < n, and its standard error; `together` successive ones count as one observation,
// for the positions of one window depend on each other.
struct estimate {
  double mean = 0, se = 0;
};
template <class F>
estimate mean_of(std::size_t begin, std::size_t end, std::size_t together, F&& f) {
  double sum = 0, squares = 0, n = 0;
  for (std::size_t i = begin; i < end; i += together, ++n) {
    double x = 0;
    for (std::size_t k = 0; k < together; ++k) x += f(i + k) / double(together);
    sum += x;
    squares += x * x;
  }
  const double mean = sum / n;
  return {mean, n > 1 ? std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1)) : NAN};
}
inline double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.empty() ? NAN : x[x.size() / 2];
}
// One cell for what each repeat measured: report.py's errors are from it.
inline std::string listed(const std::vector<double>& x) {
  return fmt::format("{:.5g}", fmt::join(x, ";"));
}

}  // namespace experiments
