// SPDX-License-Identifier: Apache-2.0
#include "site_ends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <random>

#include "files.hpp"
#include "terminal.hpp"

namespace cli {

using namespace specagg;
using namespace specagg::sites;

std::string line_of(const ordered_json& j) {
  return j.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}
std::string content_of(const std::string& path) {
  if (path.empty()) return {};
  const std::string text = read_text(path);
  if (text.empty()) throw error(path, "", "is empty");
  return text;
}
net::security security_of(const two_sites_options& o, bool serves) {
  net::security s{o.insecure, content_of(o.certificate), content_of(o.key), content_of(o.authority),
                  content_of(o.token)};
  while (!s.token.empty() && (s.token.back() == '\n' || s.token.back() == '\r')) s.token.pop_back();
  if (!o.token.empty() && s.token.empty()) throw error(o.token, "", "has no token in it");
  if (o.insecure && !(s.certificate + s.key + s.authority).empty())
    throw error("--insecure", "", "excludes --certificate, --key and --authority");
  if (!o.insecure && serves && (s.certificate.empty() || s.key.empty()))
    throw error(
        "serve", "",
        "needs --certificate and --key, or --insecure (no encryption, anybody may connect)");
  if (s.certificate.empty() != s.key.empty())
    throw error("--certificate, --key", "", "are given together or not at all");
  const auto check = [](const std::string& file, const std::string& text, bool key) {
    const std::string problem = file.empty() ? "" : net::pem_problem(text, key);
    if (!problem.empty()) throw error(file, "", problem);
  };
  check(o.certificate, s.certificate, false);
  check(o.key, s.key, true);
  check(o.authority, s.authority, false);
  return s;
}
net::limits limits_of(const two_sites_options& o, std::size_t vocabulary) {
  net::limits l;
  hello largest{.kind = protocol::dsd};
  largest.codec.vocabulary = vocabulary;
  largest.look_ahead = o.dragon ? 1 : most_tokens_in_message;
  l.most_message_bytes = most_message_bytes(largest);
  // twice the look-ahead
  l.most_queued_bytes = (o.dragon ? 2 * most_tokens_in_message : 4) * l.most_message_bytes;
  l.most_connections = 2 * o.sessions + 2;
  return l;
}
std::string text_of(const sampling& s) {
  std::string text = fmt::format("temperature {:.9g} top-k {} top-p {:.9g} min-p {:.9g}",
                                 s.temperature, s.top_k, s.top_p, s.min_p);
  // sites of before have the usual order, and do not know others
  if (s.order != filter_order()) text += std::string(" order ") + name(s.order);
  return text;
}
namespace {
sampling sampling_of(const std::string& text) {
  sampling s;
  for (const filter_order one : filter_orders)
    if (text.ends_with(std::string(" order ") + name(one))) s.order = one;
  if (std::sscanf(text.c_str(), "temperature %lg top-k %u top-p %lg min-p %lg", &s.temperature,
                  &s.top_k, &s.top_p, &s.min_p) != 4 ||
      text_of(s) != text || !s.valid())
    throw error("sampling", "", "\"" + text.substr(0, 60) + "\" is not understood here");
  return s;
}
}  // namespace
std::uint64_t hash_of_vocabulary(const site_maker& of) {
  std::uint64_t hash = hash_of_text("");
  for (std::size_t i = 0; i < of.vocab_size(); ++i)
    hash = hash_of_text(of.piece(token_id(i)), hash);
  return hash;
}
std::uint64_t hash_of_tokenization(const site_maker& of) {
  std::vector<token_id> tokens;
  for (std::string_view rest = tokenization_probe; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    rest.remove_prefix(line.size());
    try {
      const auto more = of.encode(std::string(line));
      tokens.insert(tokens.end(), more.begin(), more.end());
    } catch (const error&) {  // it has a byte without a piece, here as at the other end
      tokens.push_back(no_token);
    }
  }
  return hash_of_tokens(tokens);
}
std::shared_ptr<site_maker> open_sites(const two_sites_options& o) {
  const std::shared_ptr<site_maker> made =
      o.backend == "cpu" ? make_cpu_site_maker(o.site) : make_llama_cpp_site_maker(o.site);
  if (const vocabulary_map* map = made->map(); map && !o.as_json) say_mapped(o.site.model, *map);
  return made;
}
void add_mapped(ordered_json& j, const site_maker& of) {
  if (const vocabulary_map* map = of.map())
    j["mapped"] = {{"tokens", map->size()}, {"of", map->draft_size()}};
}
std::uint64_t random_bits() {
  std::random_device r;
  return std::uint64_t(r()) << 32 | r();
}

std::shared_ptr<site> model_for(const two_sites_options& o, site_maker& library, std::size_t tokens,
                                std::size_t most) {
  auto model = library.make(most, o.threads);
  say_if_fewer(model->threads(), o.threads);
  if (model->capacity() < tokens)
    throw error(o.site.model, "",
                fmt::format("has room for a text of {} tokens, not {}", model->capacity(), tokens));
  return model;
}

std::array<decode_profile, 2> profiles_of(const two_sites_options& o) {
  std::array<decode_profile, 2> all;
  for (std::size_t s = 0; s < 2; ++s) {
    if (o.profiles[s].empty()) continue;
    const ordered_json j = ordered_json::parse(content_of(o.profiles[s]), nullptr, false);
    std::array<double, 3> k;
    for (std::size_t i = 0; i < 3; ++i) {
      const char* name = std::array{"k_a", "k_b", "k_c"}[i];
      if (!j.is_object() || !j.contains(name) || !j[name].is_number())
        throw error(o.profiles[s], name,
                    "is missing: this is no output of specagg dragon profile --ordered_json");
      k[i] = j[name];
    }
    if (!(k[1] > 0)) throw error(o.profiles[s], "k_b", fmt::format("is {:g}, not above 0", k[1]));
    all[s] = decode_profile(plan::decode_time{k[0], k[1], k[2]});
  }
  return all;
}

running run_site(const two_sites_options& o, const hello& terms, std::span<const token_id> prompt,
                 site_maker& library, std::size_t most, const std::shared_ptr<trace_file>& trace) {
  running r{std::make_shared<session_watch>(terms, trace), std::make_shared<live_profile>(o.decode),
            nullptr};
  const auto model = model_for(o, library, terms.most_tokens, most);
  model->begin(terms.prompt);
  const sampling sample = sampling_of(std::string(terms.sampling.view()));
  const auto run = [&]<class Site>(std::unique_ptr<Site> side) {
    r.site = std::make_shared<net::runner<Site, cli::site>>(std::move(side), model, terms, sample,
                                                            r.profile, r.watch);
  };
  const random_streams of_l(o.seed, terms.session, 0), of_r(o.seed, terms.session, 1);
  const coupled_noise noise(o.seed, terms.session);
  const scheduler<net::watched_profile> schedule{
      meaning_of(o.scheduler, schedulings), {r.profile, r.watch.get()}, terms.look_ahead, o.seed};
  if (terms.kind == protocol::dragon)
    run(std::make_unique<dragon_site<float, independent_drafts<>, scheduler<net::watched_profile>>>(
        terms, prompt, independent_drafts<>{of_l, of_r}, schedule));
  else if (terms.kind == protocol::dragon_shared)
    run(std::make_unique<dragon_site<float, shared_drafts, scheduler<net::watched_profile>>>(
        terms, prompt, shared_drafts{noise}, schedule));
  else if (terms.from == side::l)
    run(std::make_unique<split_device<float>>(terms, prompt, of_l, noise));
  else run(std::make_unique<split_server<float>>(terms, prompt, of_r, noise));
  return r;
}

namespace {
// Of a site at rest.
ordered_json report(const session_watch& w, const net::counters& c, const std::string& problem,
                    const live_profile& profile) {
  ordered_json j{{"session", fmt::format("{:016x}", w.terms.session)},
                 {"side", session_watch::name(w.terms.from)},
                 {"protocol", name(w.terms.kind)},
                 {"tokens", w.tokens},
                 {"messages", {{"sent", c.sent}, {"received", c.received}}},
                 {"bytes", {{"sent", c.bytes_sent}, {"received", c.bytes_received}}},
                 {"connections", c.connections},
                 {"decodes", c.decodes},
                 {"given_up", c.given_up},
                 {"decode_seconds", c.decodes ? c.decode_seconds / double(c.decodes) : 0},
                 {"round_trip", profile.round_trip()}};
  if (!problem.empty()) j["problem"] = problem;
  if (w.at.size() > 1)
    j["seconds_per_token"] = (w.at.back() - w.at.front()) / double(w.at.size() - 1);
  if (w.terms.kind >= protocol::dsd) {
    j["rounds"] = w.rounds;
    j["accepted"] = w.accepted;
  }
  if (w.terms.kind <= protocol::dragon_shared) {
    const auto& n = w.outcomes;
    const double sum = double(n[0] + n[1] + n[2] + n[3]), all = std::max(1.0, sum);
    j["accepted"] = {
        {"both", n[0]}, {"only_device", n[1]}, {"only_cloud", n[2]}, {"neither", n[3]}};
    j["accepted_expected"] = {
        {"both", w.expected.both / all},
        {"only_device", w.expected.only_l / all},
        {"only_cloud", w.expected.only_r / all},
        {"neither", (sum - w.expected.both - w.expected.only_l - w.expected.only_r) / all}};
    j["origins"] = w.origins;
    j["aggregated"] = {{"device", w.aggregated[0]}, {"cloud", w.aggregated[1]}};
    // The recursion, with what was measured: decode times, round trip, joint acceptance.
    plan::dragon d = profile.setting();
    d.accept = {double(n[0]) / all, double(n[1]) / all, double(n[2]) / all};
    const side at = w.aggregated[0] >= w.aggregated[1] ? side::l : side::r;
    j["plan"] = {{"c_device", d.c_l}, {"c_cloud", d.c_r}, {"t_device", d.t_l}, {"t_cloud", d.t_r}};
    j["seconds_per_token_predicted"] = plan::simulated_latency(d, at, 20000, 1, w.terms.look_ahead);
  }
  return j;
}
}  // namespace
ordered_json report(const running& r) {
  const net::counters c = r.site->count();
  const std::string problem = r.site->problem();
  ordered_json j;
  r.site->at_rest([&] { j = report(*r.watch, c, problem, *r.profile); });
  return j;
}

std::string live_line(side s, const running& r) {
  const net::counters c = r.site->count();
  const double trip = r.site->round_trip();
  std::string line;
  r.site->at_rest([&] {
    const session_watch& w = *r.watch;
    const auto& n = w.outcomes;
    const std::size_t all = n[0] + n[1] + n[2] + n[3], mine = n[0] + n[s == side::l ? 1 : 2];
    line = fmt::format("{:6} {:5} tokens", session_watch::name(s), w.tokens.size());
    if (all > 0)
      line += fmt::format(" | acceptance {:.2f} | epoch {} | {}", double(mine) / double(all),
                          w.epoch[std::size_t(s)], w.now_at == s ? "aggregates" : "drafts");
    if (w.rounds > 0 && s == side::l)
      line += fmt::format(" | accepted {:.2f} a round", double(w.accepted) / double(w.rounds));
    if (trip > 0) line += fmt::format(" | {:.0f} ms round trip", 1e3 * trip);
    if (!w.tokens.empty())
      line += fmt::format(
          " | {:.0f} bytes a token sent",
          double(s == w.terms.from ? c.bytes_sent : c.bytes_received) / double(w.tokens.size()));
  });
  return line;
}

std::atomic<bool> interrupted = false;
void until_interrupted() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = true; });
  std::signal(SIGPIPE, SIG_IGN);
  setenv("GRPC_VERBOSITY", "NONE", 0);  // what goes wrong is said in one line, by us
}

}  // namespace cli
