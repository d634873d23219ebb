// SPDX-License-Identifier: Apache-2.0
// Records of acceptance from files, as engines and benchmarks write them: the answers of vLLM and
// of specagg-server, AIPerf's records, /metrics, and rows.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/plan/acceptance_record.hpp>

#include "lines.hpp"

namespace cli {

// What one file says. requests: the record of each, where the file has them one by one.
struct acceptance_file {
  specagg::plan::acceptance_record all = {};
  std::vector<specagg::plan::acceptance_record> requests = {};
  double missing =
      0;              // drafted tokens that steps of fewer than num_spec_tokens lack, unknown where
  bool rows = false;  // the numbers are probabilities of rows

  // The acceptance length's standard error, from requests that are independent of each other.
  std::optional<double> error() const {
    const double n = double(requests.size()), steps = all.steps(), ratio = all.length() - 1;
    if (n < 2 || !(steps > 0)) return std::nullopt;
    double squares = 0;
    for (const auto& r : requests) {
      const double off = r.accepted_tokens() - ratio * r.steps();
      squares += off * off;
    }
    return std::sqrt(squares * n / (n - 1)) / steps;
  }
  // The mean of the requests' own lengths; those without drafts have none.
  std::optional<double> mean_of_means() const {
    double sum = 0, n = 0;
    for (const auto& r : requests)
      if (r.steps() > 0) sum += r.length(), ++n;
    if (n == 0) return std::nullopt;
    return sum / n;
  }
};

class acceptance_reader {
 public:
  using json = nlohmann::json;
  // most: tokens of a draft, at which a text of rows is cut into drafts.
  acceptance_reader(std::string path, std::size_t most) : path_(std::move(path)), most_(most) {}

  // Throws specagg::error.
  acceptance_file read(const std::string& text) {
    const auto first = text.find_first_not_of(" \t\r\n");
    if (first == text.npos) fail("is empty");
    if (text[first] != '{' && text[first] != '[') read_counters(text);
    else if (json whole = json::parse(text, nullptr, false); !whole.is_discarded()) find(whole, 0);
    else read_lines(text);
    if (!(file_.all.steps() > 0)) fail("has no step with drafted tokens");
    return std::move(file_);
  }

 private:
  static constexpr std::size_t longest = 1000;  // tokens of a draft
  [[noreturn]] void fail(const std::string& why) const {
    throw specagg::error(path_, line_ ? fmt::format("line {}", line_) : "", why);
  }
  double count(const json& x, const char* what) const {
    const double n = x.is_number() ? x.get<double>() : -1;
    if (!(n >= 0 && n <= 1e15 && n == std::floor(n))) fail(fmt::format("{} is no count", what));
    return n;
  }

  void read_lines(const std::string& text) {
    for_each_json_line(text, [&](const json& parsed, std::size_t number) {
      line_ = number;
      if (parsed.is_discarded()) fail("is no JSON");
      find(parsed, 0);
    });
    line_ = 0;
  }
  // A record may stand anywhere in an answer or in a benchmark's file.
  void find(const json& x, int depth) {
    if (depth > 32) fail("is nested too deeply");
    if (x.is_object() && x.contains("acceptance_histogram")) return add_record(x);
    if (x.is_object() && x.contains("overlap")) return add_places(probabilities(x["overlap"]));
    if (x.is_object() && x.contains("acceptances")) {
      file_.rows = true;
      return file_.all.observe_rows(probabilities(x["acceptances"]));
    }
    if (x.is_structured())
      for (const auto& [name, each] : x.items()) find(each, depth + 1);
  }
  std::vector<double> probabilities(const json& x) const {
    std::vector<double> all;
    if (!x.is_array()) fail("has no list of probabilities");
    for (const json& each : x) {
      const double a = each.is_number() ? each.get<double>() : -1;
      if (!(a >= 0 && a <= 1)) fail("has a probability that is not in [0, 1]");
      all.push_back(a);
    }
    return all;
  }
  // Of a text: a draft could begin at each place.
  void add_places(const std::vector<double>& overlaps) {
    file_.rows = true;
    for (std::size_t i = 0; i + most_ <= overlaps.size(); ++i)
      file_.all.observe_rows(std::span(overlaps).subspan(i, most_));
  }

  void add_record(const json& x) {
    specagg::plan::acceptance_record r;
    const std::vector<double> histogram = histogram_of(x["acceptance_histogram"]);
    const auto said = [&](const char* name) -> std::optional<double> {
      if (!x.contains(name) || x[name].is_null()) return std::nullopt;
      return count(x[name], name);
    };
    const auto longest_draft = said("num_spec_tokens");
    if (steps_known(x)) add_steps(x, r);
    else {
      r.accepted = histogram;
      r.drafted = said("num_draft_tokens").value_or(r.accepted_tokens());
      if (longest_draft) file_.missing += std::max(0., r.steps() * *longest_draft - r.drafted);
    }
    for (std::size_t j = 0; j < std::max(histogram.size(), r.accepted.size()); ++j)
      if ((j < histogram.size() ? histogram[j] : 0) != (j < r.accepted.size() ? r.accepted[j] : 0))
        fail("per_step_accepted is not what acceptance_histogram says");
    if (said("num_spec_steps").value_or(r.steps()) != r.steps() ||
        said("num_accepted_draft_tokens").value_or(r.accepted_tokens()) != r.accepted_tokens() ||
        r.accepted_tokens() > r.drafted)
      fail("acceptance_histogram is not what the counts say");
    file_.all.add(r);
    file_.requests.push_back(std::move(r));
  }
  static bool steps_known(const json& x) {
    return x.contains("per_step_accepted") && x["per_step_accepted"].is_array() &&
           x.contains("per_step_drafted") && x["per_step_drafted"].is_array();
  }
  void add_steps(const json& x, specagg::plan::acceptance_record& r) const {
    const json &accepted = x["per_step_accepted"], &drafted = x["per_step_drafted"];
    if (accepted.size() != drafted.size()) fail("per_step_accepted and per_step_drafted differ");
    for (std::size_t i = 0; i < accepted.size(); ++i) {
      const double a = count(accepted[i], "per_step_accepted"),
                   d = count(drafted[i], "per_step_drafted");
      if (a > d || d > double(longest)) fail("per_step_accepted has more than were drafted");
      if (d == 0) r.accepted.resize(std::max<std::size_t>(r.accepted.size(), 1));
      if (d == 0) r.whole.resize(r.accepted.size()), ++r.accepted[0], ++r.whole[0];
      r.observe(std::size_t(d), std::size_t(a));
    }
  }
  // A list, or with AIPerf an object whose names are the numbers of accepted tokens.
  std::vector<double> histogram_of(const json& x) const {
    std::vector<double> all;
    if (x.is_array()) {
      if (x.size() > longest + 1) fail("acceptance_histogram is too long");
      for (const json& each : x) all.push_back(count(each, "acceptance_histogram"));
      return all;
    }
    if (!x.is_object()) fail("acceptance_histogram is no list and no object");
    for (const auto& [name, each] : x.items()) {
      std::size_t j = 0;
      const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), j);
      if (failure != std::errc() || end != name.data() + name.size() || j > longest)
        fail("acceptance_histogram has a name that is no number of tokens");
      if (all.size() <= j) all.resize(j + 1);
      all[j] += count(each, "acceptance_histogram");
    }
    return all;
  }

  // vLLM's counters in the text of /metrics; those of several engines are added.
  void read_counters(const std::string& text) {
    double drafts = 0, drafted = 0, accepted = 0;
    std::vector<double> by_position;
    for_each_line(text, [&](std::string_view one, std::size_t) {
      const auto name = one.substr(0, one.find_first_of("{ "));
      constexpr std::string_view prefix = "spec_decode_num_", suffix = "_total";
      const auto found = name.find(prefix);
      if (one.starts_with('#') || found == name.npos || !name.ends_with(suffix)) return;
      const auto what =
          name.substr(found + prefix.size(), name.size() - found - prefix.size() - suffix.size());
      const double value =
          std::strtod(std::string(one.substr(one.rfind(' ') + 1)).c_str(), nullptr);
      if (!(value >= 0 && value <= 1e15)) fail(std::string(name) + " is no count");
      if (what == "drafts") drafts += value;
      else if (what == "draft_tokens") drafted += value;
      else if (what == "accepted_tokens") accepted += value;
      else if (what == "accepted_tokens_per_pos") {
        constexpr std::string_view label = "position=\"";
        const auto begins = one.find(label);
        const std::size_t j =
            begins == one.npos
                ? longest
                : std::strtoul(std::string(one.substr(begins + label.size())).c_str(), nullptr, 10);
        if (j >= longest) fail(std::string(name) + " has no position");
        if (by_position.size() <= j) by_position.resize(j + 1);
        by_position[j] += value;
      }
    });
    auto& r = file_.all;
    if (drafts == 0 || by_position.empty())
      fail("is no JSON, and has no counters spec_decode_num_..._total");
    double before = drafts;
    for (const double next : by_position) {
      if (next > before) fail("more drafts were accepted to a position than to the one before");
      r.accepted.push_back(before - next);
      before = next;
    }
    r.accepted.push_back(before);
    r.drafted = drafted;
    file_.missing = std::max(0., drafts * double(by_position.size()) - drafted);
    if (r.accepted_tokens() != accepted)
      fail("the accepted tokens by position are not all accepted tokens");
  }

  std::string path_;
  std::size_t most_, line_ = 0;
  acceptance_file file_;
};

}  // namespace cli
