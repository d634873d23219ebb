// SPDX-License-Identifier: Apache-2.0
// What the explorer's page asks of the library, compiled to WebAssembly (tools/explorer/build): one
// function, a question and an answer in JSON. Policies, verifiers, trees, laws and audits are the
// library's headers; nothing is computed in the page.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <specagg/audit/audit_policy.hpp>
#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/audit/tree_law.hpp>
#include <specagg/plan/dragon.hpp>
#include <specagg/plan/link.hpp>
#include <specagg/plan/speedup.hpp>
#include <specagg/policy/catalogue.hpp>
#include <specagg/printable.hpp>

#include "equation.hpp"

namespace explorer {
namespace {

using namespace specagg;
using json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& why) { throw std::runtime_error(why); }

// ---- policies -------------------------------------------------------------------------------

// The policy of a typed equation. Its values are kept for each pair of rows, because an audit binds
// it to the same rows thousands of times.
struct typed {
  std::string text;
  double alpha = 0;
  std::shared_ptr<std::map<numbers, std::shared_ptr<numbers>>> known =
      std::make_shared<std::map<numbers, std::shared_ptr<numbers>>>();
  static constexpr bool reads_ids = true, reads_confidence = false;
  template <class Rows>
  auto bind(const Rows& rows) const {
    numbers both;
    for (std::size_t v = 0; v < rows.size(); ++v) both.push_back(double(at(rows, token_id(v)).q.v));
    for (std::size_t v = 0; v < rows.size(); ++v) both.push_back(double(at(rows, token_id(v)).p.v));
    std::shared_ptr<numbers>& kept = (*known)[both];
    if (!kept) {
      const auto middle = both.begin() + std::ptrdiff_t(rows.size());
      const numbers q(both.begin(), middle), p(middle, both.end());
      kept = std::make_shared<numbers>(equation(text, q, p, alpha).value());
    }
    return [pi = kept](auto at) {
      using V = decltype(at.p);
      using T = typename V::value_type;
      T ids[V::lanes], found[V::lanes];
      at.id.store(ids);
      for (int k = 0; k < V::lanes; ++k)
        found[k] = std::size_t(ids[k]) < pi->size() ? T((*pi)[std::size_t(ids[k])]) : T(0);
      return V::load(found);
    };
  }
};
using any_policy = compiled_once<any_catalogued>;

template <class Line>
auto with_parameters(const Line& line, const json& given) {
  auto policy = line.values[0];
  for (auto i = given.begin(); i != given.end(); ++i) {
    bool known = false;
    for (const auto& one : line.parameters) {
      if (i.key() != one.name) continue;
      known = true;
      if (one.flag) policy.*one.flag = i->template get<bool>();
      else if (i->is_number()) policy.*one.number = i->template get<double>();
    }
    if (!known) fail(i.key() + " is no parameter of " + line.name);
  }
  return policy;
}
// f(policy): one of the catalogue, or a typed one.
template <class F>
json with_policy(const json& asked, F&& f) {
  if (asked.contains("equation"))
    return f(typed{asked["equation"].get<std::string>(), asked.value("alpha", 0.0)});
  const std::string name = asked.at("name").get<std::string>();
  std::optional<any_policy> found;
  for_each_in_catalogue([&](const auto& line) {
    if (name != line.name) return;
    found.emplace();
    found->chosen = with_parameters(line, asked.value("parameters", json::object()));
  });
  if (!found) fail("policy \"" + name + "\" is unknown");
  if (!valid(*found)) fail("a parameter of " + name + " is out of range");
  return f(*found);
}
json catalogue_of() {
  json all = json::array();
  for_each_in_catalogue([&](const auto& line) {
    json parameters = json::array();
    const auto& usual = line.values[0];
    for (const auto& one : line.parameters) {
      if (one.flag) parameters.push_back({{"name", one.name}, {"flag", bool(usual.*one.flag)}});
      else
        parameters.push_back({{"name", one.name},
                              {"value", usual.*one.number},
                              {"low", one.low},
                              {"high", one.high},
                              {"open", one.open},
                              {"word", one.word ? json(one.word) : json()}});
      const auto& worth = line.values[line.values.size() > 1];  // the first with other parameters
      if (one.number && worth.*one.number != usual.*one.number)
        parameters.back()["worth"] = worth.*one.number;
    }
    all.push_back({{"name", line.name}, {"law", line.law}, {"parameters", parameters}});
  });
  return all;
}

// ---- rows -----------------------------------------------------------------------------------

numbers row_in(const json& asked, const char* key) {
  numbers row;
  for (const json& x : asked.at(key)) row.push_back(x.get<double>());
  if (row.empty() || row.size() > 64) fail(std::string(key) + " has no tokens, or more than 64");
  double sum = 0;
  for (const double x : row) {
    if (!(x >= 0)) fail(std::string(key) + " has a negative entry");
    sum += x;
  }
  if (!(sum > 0 && std::isfinite(sum))) fail(std::string(key) + " has no mass");
  for (double& x : row) x /= sum;
  return row;
}
std::size_t gamma_in(const json& asked) {
  const double gamma = asked.value("gamma", 4.0);
  if (!(gamma >= 1 && gamma <= 16)) fail("gamma is not 1 to 16");
  return std::size_t(gamma);
}
struct pair_of_rows {
  numbers q, p;
  explicit pair_of_rows(const json& asked) : q(row_in(asked, "q")), p(row_in(asked, "p")) {
    if (q.size() != p.size()) fail("q and p have different numbers of tokens");
  }
};
template <class Policy>
numbers law_of(const Policy& policy, const pair_of_rows& rows) {
  status why = status::ok;
  numbers pi = target_law(policy, rows.q, rows.p, &why);
  if (pi.empty()) {
    const numbers values = detail::bound_to(detail::unchecked(policy), rows.q, rows.p);
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    if (!values.empty())
      fail("pi is no law: its sum is " + std::to_string(sum) + ", or an entry is negative");
    fail(std::string("pi: ") + name(why));
  }
  return pi;
}
// f(verifier) for the one of this name.
template <class F>
void with_verifier(const std::string& wanted, std::uint64_t seed, F&& f) {
  if (!specagg::with_verifier(verifier_number(wanted), seed, 0, f))
    fail("verifier \"" + wanted + "\" is unknown");
}

template <class List>
json names_of() {
  json names = json::array();
  for_each_verifier<List>(0, 0, [&](const auto& verifier) { names.push_back(verifier.name); });
  return names;
}

// ---- answers --------------------------------------------------------------------------------

// One drafted token, every branch walked: the law of the first emitted token, and acceptance.
template <class Policy, class Verifier>
std::pair<numbers, double> emitted(const Policy& policy, const Verifier& verifier,
                                   const pair_of_rows& rows, const numbers& pi) {
  const std::size_t V = pi.size();
  numbers law(V);
  double accepted = 0;
  if constexpr (is_coupled<Verifier>) {
    const numbers joint = coupled_joint_law(rows.q, pi);
    for (std::size_t i = 0; i < joint.size(); ++i) law[i % V] += joint[i];
    for (std::size_t i = 0; i < V; ++i) accepted += joint[i * V + i];
  } else {
    const auto walked = exact_law([&](exhaustive_chooser& chooser) {
      numbers scratch(verify_scratch(V, 1));
      dense_row<double> q(rows.q), p(rows.p);
      const token_id y = draw_draft(q, 0, 0, chooser, scratch);
      emission out[2];
      const verdict v =
          verifier.verify(draft{{&y, 1}, 0, no_token, false}, std::array{q}, std::array{p}, policy,
                          chooser, std::span(out), std::span(scratch));
      if (v.why != status::ok) fail(name(v.why));
      return std::pair(out[0].token, v.accepted);
    });
    for (const auto& [result, probability] : walked) {
      law[std::size_t(result.first)] += probability;
      accepted += result.second ? probability : 0;
    }
  }
  return {law, accepted};
}

json law(const json& asked) {
  const pair_of_rows rows(asked);
  const std::string verify = asked.value("verify", "token");
  const std::size_t gamma = gamma_in(asked);
  return with_policy(asked.at("policy"), [&](const auto& policy) {
    const numbers pi = law_of(policy, rows);
    json out;
    with_verifier(verify, 0, [&](const auto& verifier) {
      const std::pair<numbers, double> walked = emitted(policy, verifier, rows, pi);
      const numbers& enumerated = walked.first;
      const double accepted = walked.second;
      double worst = 0, mass = 0;
      numbers residual(pi.size());
      for (std::size_t v = 0; v < pi.size(); ++v) {
        worst = std::max(worst, std::abs(enumerated[v] - pi[v]));
        mass += residual[v] = std::max(0.0, pi[v] - rows.q[v]);
      }
      for (double& x : residual) x = mass > 0 ? x / mass : 0;
      const dense_row<double> law_row{std::span<const double>(pi)},
          q{std::span<const double>(rows.q)}, p{std::span<const double>(rows.p)};
      out = {{"pi", pi},
             {"residual", residual},
             {"law", enumerated},
             {"worst_error", worst},
             {"acceptance", accepted},
             {"best_acceptance", acceptance_rate(q, law_row)},
             {"distance", total_variation(law_row, p)},
             {"models_distance", total_variation(q, p)},
             {"divergence", kl_divergence(law_row, p)},
             {"tokens", plan::expected_tokens(std::min(1.0, accepted), gamma)}};
    });
    return out;
  });
}

// The policy of this line with x in [0, 1] over the range of its first number, or as it is usually.
template <class Line>
any_policy at_place(const Line& line, double& x) {
  auto policy = line.values[0];
  for (const auto& one : line.parameters) {
    if (!one.number) continue;
    const double low = std::isfinite(one.low) ? one.low : -1, t = x * 0.999;
    x = std::isfinite(one.high) ? low + (one.high - low) * (one.open ? t : x)
                                : low + t / (1 - t) / 4;
    policy.*one.number = x;
    break;
  }
  any_policy any;
  any.chosen = policy;
  return any;
}
// What each policy gives and takes on these rows: its acceptance and TV(pi, p), over its first
// parameter. Points are added where a curve has a gap; many a policy has two laws only.
json curves(const json& asked) {
  const pair_of_rows rows(asked);
  const dense_row<double> q{std::span<const double>(rows.q)}, p{std::span<const double>(rows.p)};
  json all = json::array();
  using point = std::array<double, 3>;
  for_each_in_catalogue([&](const auto& line) {
    std::map<double, point> points;  // by x in [0, 1]
    const auto add = [&](double x) {
      double parameter = x;
      const any_policy policy = at_place(line, parameter);
      if (!valid(policy)) return;
      const numbers pi = target_law(policy, rows.q, rows.p);
      if (pi.empty()) return;
      const dense_row<double> law_row{std::span<const double>(pi)};
      points[x] = {parameter, acceptance_rate(q, law_row), total_variation(law_row, p)};
    };
    const bool varies = std::any_of(line.parameters.begin(), line.parameters.end(),
                                    [](const auto& one) { return bool(one.number); });
    for (int i = 0; i <= (varies ? 8 : 0); ++i) add(i / 8.0);
    for (int halved = 0; halved < 2; ++halved) {
      const std::map<double, point> known = points;
      for (auto b = known.begin(), a = b; b != known.end(); a = b++)
        if (std::abs(b->second[1] - a->second[1]) + std::abs(b->second[2] - a->second[2]) > 0.03)
          add((a->first + b->first) / 2);
    }
    json shown = json::array();
    for (const auto& [x, one] : points) shown.push_back(one);
    all.push_back({{"name", line.name}, {"points", shown}});
  });
  return all;
}

// Draws as the library does, and writes down each decision.
struct recorder {
  random_streams streams;
  json log = json::array();
  bool coin(moment m, double w, double t) {
    const bool yes = streams.coin(m, w, t);
    log.push_back({{"what", "coin"},
                   {"position", m.position},
                   {"probability", w > 0 && t > 0 ? std::min(1.0, w / t) : double(w > 0)},
                   {"number", streams.uniform(m)},
                   {"accepted", yes}});
    return yes;
  }
  template <class Weights>
  token_id draw(moment m, const Weights& weights) {
    const token_id token = streams.draw(m, weights);
    static constexpr const char* uses[] = {"draft", "coin", "residual", "bonus", "side", "shared"};
    log.push_back({{"what", uses[std::size_t(m.use)]}, {"position", m.position}, {"token", token}});
    return token;
  }
};

json step(const json& asked) {
  const pair_of_rows rows(asked);
  const std::size_t gamma = gamma_in(asked), V = rows.q.size();
  const std::uint64_t seed = asked.value("seed", std::uint64_t(1));
  return with_policy(asked.at("policy"), [&](const auto& policy) {
    json out;
    (void)law_of(policy, rows);
    with_verifier(asked.value("verify", "token"), seed, [&](const auto& verifier) {
      recorder chooser{random_streams(seed)};
      numbers scratch(verify_scratch(V, gamma));
      const dense_row<double> q{std::span<const double>(rows.q)},
          p{std::span<const double>(rows.p)};
      std::vector<dense_row<double>> q_rows(gamma + 1, q), p_rows(gamma + 1, p);
      std::vector<token_id> drafted;
      for (std::size_t j = 0; j < gamma; ++j)
        drafted.push_back(
            verifier.propose(q_rows[j], 0, std::uint32_t(j), chooser, std::span(scratch)));
      std::vector<emission> emitted(gamma + 1);
      const verdict v = verifier.verify(draft{drafted, 0, no_token, true}, q_rows, p_rows, policy,
                                        chooser, std::span(emitted), std::span(scratch));
      json tokens = json::array();
      for (std::size_t i = 0; i < v.emitted; ++i) tokens.push_back(emitted[i].token);
      out = {{"drafted", drafted},
             {"accepted", v.accepted},
             {"emitted", tokens},
             {"status", name(v.why)},
             {"decisions", chooser.log}};
    });
    return out;
  });
}

// A tree of drafts, every node with the same two rows: what each verifier accepts over all trees
// that can be drafted; and one drawn tree, with the probability that traversal accepts each node.
template <class Policy>
json drawn_tree(const Policy& policy, const drafted_tree<double>& drafts, std::uint64_t seed) {
  const std::size_t V = drafts.q[0].size(), nodes = drafts.paths.size(),
                    levels = drafts.depths.back();
  const auto verify = [&](auto&& chooser) {
    std::vector<emission> out(levels + 1);
    std::vector<tree_node> memory(nodes);
    numbers residual(V * (levels + 1)), sums(verify_scratch(V));
    const tree_verdict v = verify_tree(drafts.tree(), drafts.laws, drafts.q, drafts.p, policy,
                                       chooser, tree_memory<double>{out, memory, residual, sums});
    if (v.why != status::ok) fail(name(v.why));
    return std::pair(std::size_t(v.node), out[v.accepted].token);
  };
  numbers accepted(nodes);
  for (const auto& [result, probability] : exact_law(verify)) {
    std::size_t n = result.first;
    for (; n != 0; n = drafts.parents[n]) accepted[n] += probability;
    accepted[0] += probability;
  }
  json all = json::array();
  for (std::size_t n = 0; n < nodes; ++n)
    all.push_back({{"parent", drafts.parents[n]},
                   {"depth", drafts.depths[n]},
                   {"token", n == 0 ? json() : json(drafts.tokens[n - 1])},
                   {"accepted", accepted[n]}});
  const auto [last, token] = verify(random_streams(seed));
  return {{"nodes", all}, {"last", last}, {"token", token}};
}

json tree(const json& asked) {
  const pair_of_rows rows(asked);
  std::vector<std::size_t> shape;
  for (const json& x : asked.at("shape")) shape.push_back(x.get<std::size_t>());
  const std::string propose = asked.value("propose", "greedy");
  const std::uint64_t seed = asked.value("seed", std::uint64_t(1));
  proposal kind = proposal::greedy;
  for (const proposal one :
       {proposal::greedy, proposal::sampled, proposal::top, proposal::independent})
    if (propose == name(one)) kind = one;
  double nodes = 1, trees = 1, all = 1;
  for (const std::size_t b : shape) {
    if (b < 1 || b > 4) fail("a node has 1 to 4 children");
    for (std::size_t i = 0; i < b && kind != proposal::top; ++i)
      trees *= std::pow(double(rows.q.size()), kind == proposal::greedy && i > 0 ? 0 : nodes);
    nodes *= double(b);
    all += nodes;
  }
  if (shape.empty() || shape.size() > 4 || all > 64 || trees > 3e4)
    fail("too many trees can be drafted to walk them all: fewer tokens, levels or children");
  return with_policy(asked.at("policy"), [&](const auto& policy) {
    const numbers pi = law_of(policy, rows);
    const auto alike = [](const numbers& row) {
      return [&row](const std::vector<token_id>&) { return row; };
    };
    const auto found = [&](auto verify) {
      const round_error e =
          worst_error_of_tree(policy, shape, kind, alike(rows.q), alike(rows.p), verify, alike(pi));
      if (e.why != status::ok) fail(name(e.why));
      return json{{"accepted", e.accepted}, {"worst_error", e.error}};
    };
    const drafted_tree<double> drafts(shape, kind, alike(rows.q), alike(rows.p),
                                      random_streams(seed));
    json out{{"drawn", drawn_tree(policy, drafts, seed)}};
    for_each_verifier<all_tree_verifiers>(0, 0, [&](const auto& verifier) {
      out[verifier.name] = found([&](auto&&... a) { return verifier.verify(a...); });
    });
    return out;
  });
}

// Whether a typed equation is a law on every pair of rows of the library's grid, and what token
// verification of one drafted token emits there, every branch walked.
json is_law(const json& asked) {
  const typed policy{asked.at("equation").get<std::string>(), asked.value("alpha", 0.0)};
  policy_audit found;
  for (std::size_t i = 0; i < grid_round<double>::rounds(); ++i) {
    const grid_round<double> r{i};
    const numbers pi = detail::count_pair(policy, r, found);
    if (pi.empty()) continue;
    const auto always = [](const auto& row) {
      return [row](const std::vector<token_id>&) { return row; };
    };
    const round_error e = worst_error_of_round(
        policy, 1, always(r.q({})), always(r.p({})), [](auto&&... a) { return verify_token(a...); },
        always(pi));
    if (e.error > found.worst.error) found.worst = e;
  }
  json out{{"passed", found.passed()},
           {"pairs", found.pairs},
           {"undefined", found.undefined},
           {"no_law", found.no_law},
           {"worst_error", found.worst.error}};
  for (std::size_t i = 0; found.no_law > 0 && i < grid_round<double>::rounds(); ++i) {
    const grid_round<double> r{i};
    const auto q = r.q({}), p = r.p({});
    const numbers pi = detail::bound_to(detail::unchecked(policy), q, p);
    if (pi.empty() || !target_law(policy, q, p).empty()) continue;
    out["example"] = {
        {"q", q}, {"p", p}, {"pi", pi}, {"sum", std::accumulate(pi.begin(), pi.end(), 0.0)}};
    break;
  }
  return out;
}

json audit(const json& asked) {
  const numbers law = row_in(asked, "law");
  numbers counts(law.size());
  for (const json& token : asked.at("tokens")) {
    const auto v = token.get<long long>();
    if (v < 0 || std::size_t(v) >= law.size())
      fail("token " + std::to_string(v) + " is not in the vocabulary of " +
           std::to_string(law.size()));
    ++counts[std::size_t(v)];
  }
  const fit f = goodness_of_fit(counts, law, asked.value("alpha", usual_false_alarm));
  return {{"samples", std::accumulate(counts.begin(), counts.end(), 0.0)},
          {"distance", f.distance},
          {"expected_distance", f.expected_distance},
          {"p_value", f.p_value},
          {"fits", f.passed},
          {"detectable_tv", f.detectable <= 1 ? json(f.detectable) : json()},
          {"counts", counts}};
}

std::string said(double x) {
  const bool whole = std::abs(x) < 1e15 && x == std::trunc(x);
  return whole ? json(std::int64_t(x)).dump() : json(x).dump();
}

// Two sites: what each protocol sends, and its speed-up over the target model alone. Milliseconds,
// and Mbit/s: 1000 bits in a millisecond.
json sites(const json& asked) {
  const auto number = [&](const char* key, double low, double high) {
    const double x = asked.at(key).get<double>();
    if (!(x >= low && x <= high))
      fail(std::string(key) + ": " + said(x) + " is not " + said(low) + " to " + said(high) + ".");
    return x;
  };
  const std::size_t gamma = std::size_t(number("gamma", 1, 64));
  const double a = number("acceptance", 0, 1), V = number("vocabulary", 1, 1e7),
               up = 1000 * number("up", 1e-3, 1e6), down = 1000 * number("down", 1e-3, 1e6),
               draft_ms = number("t_slm", 0, 1e5), target_ms = number("t_llm", 1e-3, 1e6);
  const plan::link link{up, down, 2 * number("delay", 0, 1e5)};
  const plan::split s{gamma, V, number("bits", 1, 64), 32};
  const double row =
      plan::quantised_row_bits(std::size_t(V), std::min<std::size_t>(64, std::size_t(V)), 64);
  json all = json::array();
  const auto line = [&](const char* protocol, const plan::traffic& t, double accepted) {
    const double comm = plan::communication(t, link),
                 tokens = plan::expected_tokens(accepted, gamma);
    all.push_back({{"protocol", protocol},
                   {"bytes_up", plan::bytes(t.up)},
                   {"bytes_down", plan::bytes(t.down)},
                   {"round_ms", plan::split_latency(gamma, draft_ms, target_ms, comm)},
                   {"tokens", tokens},
                   {"speedup", plan::split_speedup(tokens, gamma, draft_ms, target_ms, comm)}});
  };
  line("DSD", plan::dsd_traffic(s), a);
  line("DSSD", plan::dssd_traffic(s, a), a);
  line("coupled", plan::coupled_traffic(s), plan::least_coupled_acceptance(1 - a));
  line("quantised", plan::quantised_traffic(s, row), a);
  return all;
}

// Two sites that emit one law of both: the time of a token, by the side that aggregates.
json sides(const json& asked) {
  const auto number = [&](const char* key, double high) {
    const double x = asked.at(key).get<double>();
    if (!(x >= 0 && x <= high))
      fail(std::string(key) + ": " + said(x) + " is not 0 to " + said(high) + ".");
    return x;
  };
  const double a = number("acceptance", 1), delay = number("delay", 1e5);
  const plan::dragon d{number("t_slm", 1e5), number("t_llm", 1e6), delay, delay,
                       plan::agreement_of(a, a)};
  return {{"device", plan::latency(d)}, {"server", plan::latency(plan::exchanged(d))}};
}

json answer(const json& asked) {
  const std::string what = asked.at("ask").get<std::string>();
  if (what == "catalogue") return catalogue_of();
  if (what == "verifiers")
    return {{"chains", names_of<all_verifiers>()}, {"trees", names_of<all_tree_verifiers>()}};
  if (what == "law") return law(asked);
  if (what == "curves") return curves(asked);
  if (what == "step") return step(asked);
  if (what == "tree") return tree(asked);
  if (what == "equation") return is_law(asked);
  if (what == "audit") return audit(asked);
  if (what == "sites") return sites(asked);
  if (what == "sides") return sides(asked);
  fail("\"" + what + "\" cannot be asked");
}

}  // namespace
}  // namespace explorer

// The answer lives until the next question. {"error": why} if there is none.
extern "C" const char* specagg_explore(const char* question) {
  static std::string text;
  explorer::json found;
  try {
    found = explorer::answer(explorer::json::parse(question));
  } catch (const std::exception& e) {
    found = {{"error", specagg::printable(e.what(), 400)}};
  }
  text = found.dump(-1, ' ', false, explorer::json::error_handler_t::replace);
  return text.c_str();
}
