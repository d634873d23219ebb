// SPDX-License-Identifier: Apache-2.0
// specagg law: which token comes out, with what probability, computed by walking every branch of
// the verifier.
#include "law.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <vector>

#include <specagg/audit/audit_policy.hpp>
#include <specagg/audit/coupled_law.hpp>
#include <specagg/audit/exact_law.hpp>
#include <specagg/error.hpp>
#include <specagg/format.hpp>

#include "files.hpp"
#include "lists.hpp"
#include "options.hpp"
#include "policies.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using json = nlohmann::json;
using numbers = std::vector<double>;

// tokens of rows whose every branch is walked unasked
constexpr std::size_t few = 64;
constexpr std::size_t most_walked = 1024, most_coupled = 512;  // on request

struct result {
  status why = status::ok;
  numbers target, law;  // law: empty where it was not enumerated
  double acceptance = 0, overlap = 0;
};

// The law of the token that stands at the first position of the text: drafted by q, verified by
// `verify`.
template <class Policy, class R, class Verify>
numbers emitted_law(const Policy& policy, const R& q, const R& p, Verify verify, double& acceptance,
                    status& why, progress& bar) {
  const std::size_t size = q.size();
  numbers law(size), scratch(verify_scratch(size, 1));
  exhaustive_chooser chooser;
  acceptance = 0;
  double done = 0;
  do {
    const auto row = normalise(q);
    why = row.why();
    if (why != status::ok) return {};
    const token_id y = draw_draft(row, 0, 0, chooser, scratch);
    emission out[2];
    const verdict v = verify(draft{{&y, 1}, 0, no_token, false}, std::array{q}, std::array{p},
                             policy, chooser, out, scratch);
    if (v.why != status::ok) {
      why = v.why;
      return numbers();
    }
    law[std::size_t(out[0].token)] += chooser.probability;
    if (v.accepted) acceptance += chooser.probability;
    bar.show(done += chooser.probability);
  } while (chooser.next());
  return law;
}

// Rows as the policy sees them: probabilities, and those at temperature 1 that they come from.
using row = confident_row<dense_row<double>, dense_row<double>>;
row with_confidence(const numbers& x, const numbers& confidence) {
  return {dense_row<double>(x), dense_row<double>(confidence)};
}

// Of rows of more than `few` tokens the law is enumerated on request alone; target, acceptance and
// overlap take a few passes over the rows.
result law_of(const any_policy& policy, const std::string& verifier, const row& q, const row& p,
              bool enumerate) {
  result r;
  r.target = target_law(policy, q, p, &r.why);
  if (r.why != status::ok) return r;
  const std::size_t size = q.size();
  const auto drafted = normalise(q);
  if (r.why = drafted.why(); r.why != status::ok) return r;
  numbers probabilities(size);
  for (std::size_t v = 0; v < size; ++v) probabilities[v] = drafted[v];
  const bool coupled = verifier == "coupled";
  r.overlap = acceptance_rate(probabilities, r.target);
  if (size > few && !enumerate) {
    r.acceptance = r.overlap;
    if (coupled) r.acceptance = coupled_acceptance(probabilities, r.target);
    if (verifier == "match")
      r.acceptance =
          std::inner_product(r.target.begin(), r.target.end(), probabilities.begin(), 0.0);
    return r;
  }
  if (const std::size_t most = coupled ? most_coupled : most_walked; size > most)
    throw error("--enumerate", "",
                fmt::format("the rows have {} tokens; --verify {} is enumerated for at most {}",
                            size, verifier, most));
  progress bar("enumerating");
  const auto walk = [&](auto verify) {
    r.law = emitted_law(policy, q, p, verify, r.acceptance, r.why, bar);
  };
  if (coupled) {  // no chooser to walk: the joint law in closed form, summed over the drafts
    const auto after_row = [&](std::size_t i) { bar.show(double(i + 1) / double(size)); };
    const numbers joint = coupled_joint_law(probabilities, r.target, after_row);
    r.law.resize(size);
    for (std::size_t i = 0; i < joint.size(); ++i) r.law[i % size] += joint[i];
    for (std::size_t i = 0; i < size; ++i) r.acceptance += joint[i * size + i];
  } else {
    with_verifier(verifier_number(verifier), 0, 0, [&]<class V>(const V& v) {
      if constexpr (!is_coupled<V>) walk([&](auto&&... a) { return v.verify(a...); });
    });
  }
  return r;
}

void check_verifier(const std::string& input, const std::string& name) {
  if (std::ranges::find(verifiers, name) != verifiers.end()) return;
  throw error(input, "verify",
              fmt::format("\"{}\" is unknown ({} are known)", name, fmt::join(verifiers, ", ")));
}

// An option's value: the text itself, or @FILE. input: what messages call it.
std::string text_of(const std::string& given, std::string& input) {
  if (!given.starts_with('@')) return given;
  std::ifstream file(given.substr(1), std::ios::binary);
  input += " " + given;
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file || text.empty()) throw error(input, "", "cannot be read, or is empty");
  return text;
}
// Numbers separated by commas or white space.
numbers numbers_in(const std::string& text, const std::string& input) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  numbers row;
  const char *at = text.data(), *const end = at + text.size();
  const auto skip = [&] {
    while (at != end && space(*at)) ++at;
  };
  skip();
  for (bool more = true; more; more = at != end) {
    const char* const stop = std::find_if(at, end, [&](char c) { return c == ',' || space(c); });
    double x = 0;
    const auto [after, failure] = std::from_chars(at, stop, x);
    if (failure != std::errc() || after != stop)
      throw error(
          input, fmt::format("entry {}", row.size()),
          fmt::format("\"{:.40}\" is not a number", std::string_view(at, std::size_t(stop - at))));
    row.push_back(x);
    at = stop;
    skip();
    if (at != end && *at == ',') {
      ++at;
      skip();
      if (at == end)
        throw error(input, fmt::format("entry {}", row.size()), "is missing after the last comma");
    }
  }
  return row;
}
numbers parse_row(std::string option, const std::string& given) {
  const std::string text = text_of(given, option);
  return numbers_in(text, option);
}

// Rounding may leave a sum of probabilities an ulp above 1.
json number(double x) {
  return std::isfinite(x) ? json(std::clamp(x, 0., 1.)) : json(fmt::format("{}", x));
}
json list(const numbers& x) {
  json out = json::array();
  for (const double v : x) out.push_back(number(v));
  return out;
}
// What is said of a pair of rows, in the batch and by --json.
json described(const result& r) {
  json out = {{"pi", list(r.target)},
              {"law", list(r.law)},
              {"acceptance", number(r.acceptance)},
              {"status", "ok"}};
  if (r.target.size() > few) out["overlap"] = number(r.overlap);
  if (r.law.empty()) out["law"] = nullptr;
  return out;
}

// ---- one JSON object a line ---------------------------------------------------------------------

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

json answer(const json& line, bool enumerate) {
  if (!line.is_object()) throw error("line", "", "is not a JSON object");
  for (const auto& [key, value] : line.items())
    if (std::string(
            " id policy params verify q p q_logits p_logits q_confidence p_confidence expect ")
            .find(" " + key + " ") == std::string::npos)
      throw error("key", key, "is unknown");
  std::map<std::string, std::string> values;
  const json params = line.value("params", json::object());
  if (!params.is_object()) throw error("params", "", "is not a JSON object");
  for (const auto& [key, value] : params.items()) {
    if (value.is_string()) values[key] = value.get<std::string>();
    else if (value.is_boolean()) values[key] = value.get<bool>() ? "true" : "false";
    else if (value.is_number()) values[key] = fmt::format("{}", value.get<double>());
    else throw error("params", key, "is neither a number nor a word");
  }
  if (!line.contains("policy") || !line["policy"].is_string())
    throw error("policy", "", "is missing");
  const any_policy policy = make_policy("params", line["policy"].get<std::string>(), values);
  if (line.contains("verify") && !line["verify"].is_string())
    throw error("verify", "", "is not a word");
  const std::string verifier = line.value("verify", "token");
  check_verifier("line", verifier);
  // Logits become probabilities first; given probabilities may come with those at temperature 1.
  status why = status::ok;
  const auto row_of = [&](const std::string& key) {
    numbers x = row_in(line, line.contains(key + "_logits") ? key + "_logits" : key);
    if (!line.contains(key + "_logits")) return x;
    const auto softmax = normalise(softmax_row<double>(x));
    if (const status s = softmax.why(); s != status::ok) {
      why = s;
      return x;
    }
    numbers probabilities(x.size());
    for (std::size_t v = 0; v < x.size(); ++v) probabilities[v] = softmax[v];
    return probabilities;
  };
  const auto confidence_of = [&](const std::string& key, const numbers& x) {
    return line.contains(key + "_confidence") ? row_in(line, key + "_confidence") : x;
  };
  const numbers q = row_of("q"), p = row_of("p"), qc = confidence_of("q", q),
                pc = confidence_of("p", p);
  if (why != status::ok) return {{"status", name(why)}};
  const result r =
      law_of(policy, verifier, with_confidence(q, qc), with_confidence(p, pc), enumerate);
  return r.why != status::ok ? json{{"status", name(r.why)}} : described(r);
}

void batch(bool enumerate) {
  // bytes of a line: four rows of a large vocabulary take a fifth of that
  constexpr std::size_t most = 64 << 20;
  std::string text;
  for (std::size_t number = 0; read_line(text, number, most); ++number) {
    json out, id;
    try {
      if (text.find_first_not_of(" \t\r") == std::string::npos) throw error("line", "", "is empty");
      const json line = json::parse(text);
      if (line.is_object() && line.contains("id")) id = line["id"];
      out = answer(line, enumerate);
    } catch (const json::exception& e) {
      out = {{"status", "not JSON: " + printable(e.what())}};
    } catch (const std::exception& e) {
      out = {{"status", printable(e.what(), 4000)}};
    }
    json ordered = {{"id", id}};
    ordered.update(out);
    fmt::print("{}\n", ordered.dump(-1, ' ', false, json::error_handler_t::replace));
  }
}

// ---- every policy, every verifier, every pair of the grid ---------------------------------------

void grid(const law_options& o) {
  std::vector<std::string> policies;
  for (const known_policy& r : known_policies())
    policies.insert(policies.end(), r.samples.begin(), r.samples.end());
  const std::vector<std::string> chosen = o.policy.empty() ? policies : std::vector{o.policy};
  const std::vector<std::string> chosen_verifiers =
      o.verify.empty() ? verifiers : std::vector{o.verify};
  json table = json::array();
  progress bar("enumerating");
  if (!o.json)
    fmt::print("{:<38} {:<8} {:>6} {:>14} {:>10} {:>12}\n", "policy", "verify", "pairs", "gamma",
               "undefined", "worst error");
  double done = 0;
  const double all = double(chosen.size() * chosen_verifiers.size());
  for (const std::string& text : chosen)
    for (const std::string& v : chosen_verifiers) {
      const any_policy policy = parse_policy(text);
      const auto show = [&](double part) { bar.show((done + part) / all); };
      policy_audit found;
      with_verifier(verifier_number(v), 0, 0,
                    [&](const auto& verifier) { found = audit_policy(policy, verifier, show); });
      const std::size_t undefined = found.undefined + found.no_law;
      const double worst = found.worst.error;
      table.push_back({{"policy", text},
                       {"verify", v},
                       {"pairs", found.pairs},
                       {"undefined", undefined},
                       {"worst_error", worst}});
      bar.clear();
      if (!o.json)
        fmt::print("{:<38} {:<8} {:>6} {:>14} {:>10} {:>12.1e}\n", text, v, found.pairs,
                   v == "coupled" ? "joint law" : "1, 2, 3", undefined, worst);
      std::fflush(stdout);
      bar.show(++done / all);
    }
  if (o.json) fmt::print("{}\n", table.dump(2));
}

double worst_error(const result& r) {
  double worst = 0;
  for (std::size_t v = 0; v < r.law.size(); ++v)
    worst = std::max(worst, std::abs(r.target[v] - r.law[v]));
  return worst;
}

constexpr std::size_t most_printed = 20;  // tokens of a row of more than `few`

void print_table(const result& r, const numbers& q, const numbers& p) {
  const bool whole = r.target.size() <= few;
  std::vector<std::size_t> tokens(r.target.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  if (!whole) {
    std::ranges::stable_sort(tokens, std::greater(), [&](std::size_t v) { return r.target[v]; });
    tokens.resize(most_printed);
  }
  fmt::print("{:>6} {:>12} {:>12} {:>12} {:>12}\n", "token", "q", "p", "pi", "law");
  for (const std::size_t v : tokens) {
    const double x = r.law.empty() ? r.target[v] : r.law[v];
    fmt::print(
        "{:>6} {:>12.9f} {:>12.9f} {:>12.9f} {:>12}  {}\n", v, q[v], p[v], r.target[v],
        r.law.empty() ? "" : fmt::format("{:.9f}", x),
        coloured(fmt::fg(fmt::terminal_color::green), std::string(std::size_t(40 * x + 0.5), '#')));
  }
  if (!whole)
    fmt::print("the {} most likely of {} tokens (--json: all)\n", tokens.size(), r.target.size());
  fmt::print("acceptance {:.9f}", std::min(1., r.acceptance));
  if (!whole) fmt::print(", overlap {:.9f}", r.overlap);
  if (r.law.empty()) {
    fmt::print("; the law of more than {} tokens is enumerated with --enumerate\n", few);
    return;
  }
  fmt::print(", worst error (largest |law - pi|) {:.1e}\n", worst_error(r));
}

}  // namespace

std::vector<std::vector<double>> parse_rows(std::string option, const std::string& given) {
  std::vector<numbers> rows;
  std::istringstream lines(text_of(given, option));
  for (std::string line; std::getline(lines, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos)
      rows.push_back(numbers_in(line, fmt::format("{} row {}", option, rows.size())));
  return rows;
}

void law(const law_options& o) {
  if (o.batch) return batch(o.enumerate);
  const auto chosen = [](const std::string& given, const char* otherwise) {
    return given.empty() ? otherwise : given;
  };
  const std::string policy_name = chosen(o.policy, "lossless"),
                    verifier = chosen(o.verify, "token");
  const auto stateful = parse_stateful(policy_name);
  const any_policy policy = stateful ? any_policy() : parse_policy(policy_name);
  check_verifier("--verify " + verifier, verifier);
  if (stateful && (o.grid || !o.tree.empty()))
    throw error(o.grid ? "--grid" : "--tree " + o.tree, "",
                "has no effect with a policy with state");
  if (o.grid) return grid(o);
  if (o.q.empty() || o.p.empty())
    throw error(o.q.empty() ? "--q" : "--p", "",
                "is missing (probabilities, separated by commas, or @FILE)");
  if (stateful) return law_of_text(o, *stateful);
  const numbers q = parse_row("--q", o.q), p = parse_row("--p", o.p);
  if (q.size() != p.size())
    throw error("law", "--q, --p",
                fmt::format("vocabulary_mismatch: {} and {} numbers", q.size(), p.size()));
  if (!o.tree.empty())
    return law_of_tree(o, policy_name, q, p, parse_shape(o.tree), proposal_named(o.propose));
  const result r =
      law_of(policy, verifier, with_confidence(q, q), with_confidence(p, p), o.enumerate);
  if (r.why != status::ok) throw error("law", "--q, --p", std::string(name(r.why)));
  if (!o.json) return print_table(r, q, p);
  json out = described(r);
  out["policy"] = policy_name;
  out["verify"] = verifier;
  if (!r.law.empty()) out["worst_error"] = worst_error(r);
  fmt::print("{}\n", out.dump(2));
}

}  // namespace cli
