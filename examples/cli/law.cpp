// SPDX-License-Identifier: Apache-2.0
// specagg law: which token comes out, with what probability, computed by walking every branch of the verifier.
#include "law.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include <specagg/audit/coupled_law.hpp>
#include <specagg/audit/exact_law.hpp>
#include <specagg/error.hpp>
#include <specagg/format.hpp>

#include "policies.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using json = nlohmann::json;
using numbers = std::vector<double>;

struct result {
  status why = status::ok;
  numbers target, law;
  double acceptance = 0;
};

// The law of the token that stands at the first position of the text: drafted by q, judged by `verify`.
template <class Policy, class R, class Verify>
numbers emitted_law(const Policy& policy, const R& q, const R& p, Verify verify, double& acceptance, status& why) {
  const std::size_t size = q.size();
  numbers law(size), scratch(verify_scratch(size, 1));
  exhaustive_chooser chooser;
  acceptance = 0;
  do {
    auto row = q;
    why = row.normalise();
    if (why != status::ok) return {};
    const token_id y = draw(row, {stream::draft, 0, 0}, chooser, scratch);
    emission out[2];
    const verdict v = verify(draft{{&y, 1}, 0, no_token, false}, std::array{q}, std::array{p}, policy, chooser, out, scratch);
    if (v.why != status::ok) return why = v.why, numbers();
    law[std::size_t(out[0].token)] += chooser.probability;
    if (v.accepted) acceptance += chooser.probability;
  } while (chooser.next());
  return law;
}

// Rows as the policy sees them: probabilities, and the untempered ones behind them.
using row = confident_row<dense_row<double>, dense_row<double>>;
row with_confidence(const numbers& x, const numbers& confidence) { return {dense_row<double>(x), dense_row<double>(confidence)}; }

result law_of(const any_policy& policy, const std::string& verifier, const row& q, const row& p) {
  result r;
  r.target = target_law(policy, q, p, &r.why);
  if (r.why != status::ok) return r;
  if (verifier == "coupled") {  // no chooser to walk: the joint law in closed form, summed over the drafts
    row drafted = q;
    if (r.why = drafted.normalise(); r.why != status::ok) return r;
    numbers probabilities(q.size());
    for (std::size_t v = 0; v < q.size(); ++v) probabilities[v] = drafted[v];
    const numbers joint = coupled_joint_law(probabilities, r.target);
    r.law.resize(q.size());
    for (std::size_t i = 0; i < joint.size(); ++i) r.law[i % q.size()] += joint[i];
    r.acceptance = coupled_acceptance(probabilities, r.target);
  } else if (verifier == "block") {
    r.law = emitted_law(policy, q, p, [](auto&&... a) { return verify_block(a...); }, r.acceptance, r.why);
  } else if (verifier == "match") {
    r.law = emitted_law(policy, q, p, [](auto&&... a) { return verify_match(a...); }, r.acceptance, r.why);
  } else {
    r.law = emitted_law(policy, q, p, [](auto&&... a) { return verify_token(a...); }, r.acceptance, r.why);
  }
  return r;
}

void check_verifier(const std::string& input, const std::string& name) {
  for (const char* known : {"token", "block", "coupled", "match"})
    if (name == known) return;
  throw error(input, "verify", "\"" + name + "\" is unknown (token, block, coupled, match are known)");
}

numbers parse_row(const char* option, const std::string& text) {
  numbers row;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    double x = 0;
    const auto [stop, failure] = std::from_chars(text.data() + i, text.data() + end, x);
    if (failure != std::errc() || stop != text.data() + end)
      throw error(option, fmt::format("entry {}", row.size()), fmt::format("\"{}\" is not a number", text.substr(i, end - i)));
    row.push_back(x);
    i = end + 1;
  }
  return row;
}

json number(double x) { return std::isfinite(x) ? json(x) : json(fmt::format("{}", x)); }
json list(const numbers& x) {
  json out = json::array();
  for (const double v : x) out.push_back(number(v));
  return out;
}

// ---- one JSON object a line ------------------------------------------------------------------------------------------

numbers row_in(const json& line, const std::string& key) {
  if (!line.contains(key)) throw error(key, "", "is missing");
  const json& in = line[key];
  if (!in.is_array() || in.empty()) throw error(key, "", "is not a list of numbers");
  numbers row;
  for (const json& x : in) {
    if (x.is_number()) row.push_back(x.get<double>());
    else if (x == "-inf") row.push_back(-infinity);
    else throw error(key, fmt::format("entry {}", row.size()), "is not a number");
  }
  return row;
}

json answer(const json& line) {
  if (!line.is_object()) throw error("line", "", "is not a JSON object");
  for (const auto& [key, value] : line.items())
    if (std::string(" id policy params verify q p q_logits p_logits q_confidence p_confidence expect ").find(" " + key + " ") ==
        std::string::npos)
      throw error("key", key, "is unknown");
  std::map<std::string, std::string> values;
  const json params = line.value("params", json::object());
  if (!params.is_object()) throw error("params", "", "is not a JSON object");
  for (const auto& [key, value] : params.items()) {
    if (!value.is_number() && !value.is_string()) throw error("params", key, "is neither a number nor a word");
    values[key] = value.is_string() ? value.get<std::string>() : fmt::format("{}", value.get<double>());
  }
  if (!line.contains("policy") || !line["policy"].is_string()) throw error("policy", "", "is missing");
  const any_policy policy = make_policy("params", line["policy"].get<std::string>(), values);
  if (line.contains("verify") && !line["verify"].is_string()) throw error("verify", "", "is not a word");
  const std::string verifier = line.value("verify", "token");
  check_verifier("line", verifier);
  // Logits become probabilities first; given probabilities may come with untempered ones.
  status why = status::ok;
  const auto row_of = [&](const std::string& key) {
    numbers x = row_in(line, line.contains(key + "_logits") ? key + "_logits" : key);
    if (!line.contains(key + "_logits")) return x;
    softmax_row<double> softmax(x);
    if (const status s = softmax.normalise(); s != status::ok) why = s;
    numbers probabilities(x.size());
    for (std::size_t v = 0; v < x.size(); ++v) probabilities[v] = softmax[v];
    return probabilities;
  };
  const auto confidence_of = [&](const std::string& key, const numbers& x) {
    return line.contains(key + "_confidence") ? row_in(line, key + "_confidence") : x;
  };
  const numbers q = row_of("q"), p = row_of("p"), qc = confidence_of("q", q), pc = confidence_of("p", p);
  if (why != status::ok) return {{"status", name(why)}};
  const result r = law_of(policy, verifier, with_confidence(q, qc), with_confidence(p, pc));
  if (r.why != status::ok) return {{"status", name(r.why)}};
  return {{"target", list(r.target)}, {"law", list(r.law)}, {"acceptance", r.acceptance}, {"status", "ok"}};
}

void batch() {
  std::string text;
  while (std::getline(std::cin, text)) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    json out, id;
    try {
      const json line = json::parse(text);
      if (line.is_object() && line.contains("id")) id = line["id"];
      out = answer(line);
    } catch (const json::exception& e) {
      out = {{"status", std::string("not JSON: ") + e.what()}};
    } catch (const std::exception& e) {
      out = {{"status", e.what()}};
    }
    json ordered = {{"id", id}};
    ordered.update(out);
    fmt::print("{}\n", ordered.dump(-1, ' ', false, json::error_handler_t::replace));
  }
}

void print_table(const result& r, const numbers& q, const numbers& p) {
  fmt::print("{:>6} {:>12} {:>12} {:>12} {:>12}\n", "token", "q", "p", "target", "emitted");
  for (std::size_t v = 0; v < q.size(); ++v)
    fmt::print("{:>6} {:>12.9f} {:>12.9f} {:>12.9f} {:>12.9f}  {}\n", v, q[v], p[v], r.target[v], r.law[v],
               coloured(fmt::fg(fmt::terminal_color::green), std::string(std::size_t(40 * r.law[v] + 0.5), '#')));
  double worst = 0;
  for (std::size_t v = 0; v < q.size(); ++v) worst = std::max(worst, std::abs(r.target[v] - r.law[v]));
  fmt::print("acceptance {:.9f}, largest |emitted - target| {:.1e}\n", r.acceptance, worst);
}

}  // namespace

void law(const law_options& o) {
  if (o.batch) return batch();
  const any_policy policy = parse_policy(o.policy);
  check_verifier("--verify " + o.verify, o.verify);
  if (o.q.empty() || o.p.empty()) throw error(o.q.empty() ? "--q" : "--p", "", "is missing (probabilities, separated by commas)");
  const numbers q = parse_row("--q", o.q), p = parse_row("--p", o.p);
  const result r = law_of(policy, o.verify, with_confidence(q, q), with_confidence(p, p));
  if (r.why != status::ok) throw error("law", "--q, --p", std::string(name(r.why)));
  if (o.json)
    fmt::print("{}\n", json{{"policy", o.policy}, {"verify", o.verify}, {"target", list(r.target)}, {"law", list(r.law)},
                            {"acceptance", r.acceptance}, {"status", "ok"}}.dump(2));
  else print_table(r, q, p);
}

}  // namespace cli
