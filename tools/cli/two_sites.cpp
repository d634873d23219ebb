// SPDX-License-Identifier: Apache-2.0
// specagg dragon serve|device and specagg dssd serve|device: options, who listens to whom, and what
// is printed.
#include "two_sites.hpp"

#ifdef SPECAGG_CLI_NET
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/sites/net/grpc.hpp>
#include <specagg/sites/net/runner.hpp>
#include <specagg/sites/net/sessions.hpp>

#include "files.hpp"
#include "options.hpp"
#include "site_model.hpp"
#include "terminal.hpp"
#include "trace.hpp"

namespace cli {
namespace {

using namespace specagg;
using namespace specagg::sites;
using json = nlohmann::ordered_json;
using namespace std::chrono_literals;

struct two_sites_options {
  bool dragon = true;
  site_options site;
  std::string backend = "cpu";
  unsigned threads = 1;
  std::uint64_t seed = 1;
  std::string scheduler = "moving", trace;
  // files of `dragon profile`: of the device, of the cloud; or none
  std::array<std::string, 2> profiles = {};
  std::array<decode_profile, 2> decode = {};  // what is in them
  bool as_json = false;
  // the wire
  std::string address = "127.0.0.1:7411", certificate, key, authority, token;  // files
  bool insecure = false;
  // serve
  std::size_t sessions = 16;
  double keep = 600;
  // device
  std::string prompt = "ROMEO:\nO, she doth teach the torches to burn bright!\n", prompt_file;
  std::uint32_t max_tokens = 200, look_ahead = 8, gamma = 4;
  sampling sample = {.temperature = 0.8};
  std::string noise = "shared", split = "dssd", codec = "half", first = "device", session;
  std::uint32_t row_top_k = 64, row_total = 1024;
  double row_top_p = 1, give_up = 30;
  bool alone = false, origins = false;
};

// ---- what both ends do --------------------------------------------------------------------------

// A text may end within a character.
std::string line_of(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}
std::string read(const std::string& path) {
  if (path.empty()) return {};
  const std::string text = read_text(path);
  if (text.empty()) throw error(path, "", "is empty");
  return text;
}
net::security security_of(const two_sites_options& o, bool serves) {
  net::security s{o.insecure, read(o.certificate), read(o.key), read(o.authority), read(o.token)};
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
constexpr std::pair<const char*, scheduling> schedulings[] = {
    {"device", scheduling::l},      {"cloud", scheduling::r},
    {"eq8", scheduling::eq8},       {"recursion", scheduling::recursion},
    {"moving", scheduling::moving}, {"random", scheduling::random}};
scheduling scheduling_of(const std::string& name) {
  for (const auto& [n, s] : schedulings)
    if (name == n) return s;
  throw error("--scheduler " + name, "",
              "is unknown (device, cloud, eq8, recursion, moving, random are known)");
}

// How rows are made of logits, as the hello says it.
std::string text_of(const sampling& s) {
  return fmt::format("temperature {:.9g} top-k {} top-p {:.9g} min-p {:.9g}", s.temperature,
                     s.top_k, s.top_p, s.min_p);
}
sampling sampling_of(const std::string& text) {
  sampling s;
  if (std::sscanf(text.c_str(), "temperature %lg top-k %u top-p %lg min-p %lg", &s.temperature,
                  &s.top_k, &s.top_p, &s.min_p) != 4 ||
      text_of(s) != text || !s.valid())
    throw error("sampling", "", "\"" + text.substr(0, 60) + "\" is not understood here");
  return s;
}
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
  std::shared_ptr<site_maker> made;
  if (o.backend == "llama.cpp") made = make_llama_cpp_site_maker(o.site);
  else if (o.backend == "cpu") made = make_cpu_site_maker(o.site);
  else throw error("--backend " + o.backend, "", "is unknown here (cpu, llama.cpp are known)");
  if (const vocabulary_map* map = made->map(); map && !o.as_json) say_mapped(o.site.model, *map);
  return made;
}
void add_mapped(json& j, const site_maker& of) {
  if (const vocabulary_map* map = of.map())
    j["mapped"] = {{"tokens", map->size()}, {"of", map->draft_size()}};
}
std::uint64_t random_bits() {
  std::random_device r;
  return std::uint64_t(r()) << 32 | r();
}

// A session's model, made for `most` tokens, if there is room in it for a text of so many.
std::shared_ptr<site> model_for(const two_sites_options& o, site_maker& library, std::size_t tokens,
                                std::size_t most) {
  auto model = library.make(most, o.threads);
  say_if_fewer(model->threads(), o.threads);
  if (model->capacity() < tokens)
    throw error(o.site.model, "",
                fmt::format("has room for a text of {} tokens, not {}", model->capacity(), tokens));
  return model;
}

// Decode times that `dragon profile` measured, where its file is given.
std::array<decode_profile, 2> profiles_of(const two_sites_options& o) {
  std::array<decode_profile, 2> all;
  for (std::size_t s = 0; s < 2; ++s) {
    if (o.profiles[s].empty()) continue;
    const json j = json::parse(read(o.profiles[s]), nullptr, false);
    std::array<double, 3> k;
    for (std::size_t i = 0; i < 3; ++i) {
      const char* name = std::array{"k_a", "k_b", "k_c"}[i];
      if (!j.is_object() || !j.contains(name) || !j[name].is_number())
        throw error(o.profiles[s], name,
                    "is missing: this is no output of specagg dragon profile --json");
      k[i] = j[name];
    }
    if (!(k[1] > 0)) throw error(o.profiles[s], "k_b", fmt::format("is {:g}, not above 0", k[1]));
    all[s] = decode_profile(plan::decode_time{k[0], k[1], k[2]});
  }
  return all;
}

struct running {
  std::shared_ptr<session_watch> watch;
  std::shared_ptr<live_profile> profile;
  std::shared_ptr<net::running_site> site;
};

// A site of either protocol, either side, with its model on its thread.
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
      scheduling_of(o.scheduler), {r.profile, r.watch.get()}, terms.look_ahead, o.seed};
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

// Of a site at rest.
json report(const session_watch& w, const net::counters& c, const std::string& problem,
            const live_profile& profile) {
  json j{{"session", fmt::format("{:016x}", w.terms.session)},
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

json report(const running& r) {
  const net::counters c = r.site->count();
  const std::string problem = r.site->problem();
  json j;
  r.site->at_rest([&] { j = report(*r.watch, c, problem, *r.profile); });
  return j;
}

// "device  120 tokens | acceptance 0.71 | epoch 98 | aggregates | 301 ms round trip | 41 bytes a
//          token sent"
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

// ---- serve --------------------------------------------------------------------------------------

// gRPC makes threads as it goes, and where it cannot, it loses what they were to do: a connection
// falls silent, and gRPC's end waits for it for ever. So a session is refused that leaves no room
// for so many more threads,
constexpr unsigned threads_of_grpc = 8;
// and this thread, made in time, ends the program if gRPC has not ended 5 seconds after it was told
// to.
class way_out {
 public:
  explicit way_out(std::function<void()> last_words) : last_words_(std::move(last_words)) {
    try {
      thread_ = std::thread([this] { watch(); });
    } catch (const std::system_error& e) {
      throw error("serve", "", "no thread can be made (" + printable(e.what()) + ")");
    }
  }
  ~way_out() {
    told(over_);
    thread_.join();
  }
  void from_now() { told(ends_); }

 private:
  void told(bool& what) {
    const std::lock_guard lock(mutex_);
    what = true;
    changed_.notify_all();
  }
  void watch() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ends_ || over_; });
    if (changed_.wait_for(lock, 5s, [&] { return over_; })) return;
    last_words_();
    std::fputs(
        "specagg: serve: gRPC does not end (too little memory, or too few threads?): left as it "
        "is\n",
        stderr);
    std::_Exit(2);
  }
  const std::function<void()> last_words_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false, over_ = false;
  std::thread thread_;
};

void serve(two_sites_options o) {
  scheduling_of(o.scheduler);
  o.decode = profiles_of(o);
  const auto library = open_sites(o);
  model_for(o, *library, o.site.most, o.site.most);
  const net::security security = security_of(o, true);
  const auto trace = o.trace.empty() ? nullptr : std::make_shared<trace_file>(o.trace);
  const std::uint64_t vocabulary = hash_of_vocabulary(*library),
                      tokenization = hash_of_tokenization(*library);
  std::mutex mutex;
  std::map<std::uint64_t, running> all;

  const auto agree = [&](const hello& proposed) {
    if (o.dragon != (proposed.kind <= protocol::dragon_shared))
      throw error("protocol", "",
                  fmt::format("this is a server of {}", o.dragon ? "dragon" : "dssd"));
    if (proposed.most_tokens > o.site.most)
      throw error("most tokens", "",
                  fmt::format("{} there, {} at most here", proposed.most_tokens, o.site.most));
    hello terms = proposed;
    terms.from = side::r;
    terms.heard = false;
    terms.life = random_bits();
    terms.model_r = short_text(std::filesystem::path(o.site.model).stem().string());
    terms.codec.vocabulary = library->vocab_size();
    terms.vocabulary_hash = vocabulary;
    terms.tokenization_hash = tokenization;
    terms.seed_hash = hash_of_seed(o.seed, terms.session);
    terms.end_of_text = library->eos();
    terms.real_bytes = 4;
    if (!valid(terms)) throw error("hello", "", "the terms are not valid here");
    return terms;
  };
  const auto make = [&](const hello& terms) {
    running r = run_site(o, terms, {}, *library, o.site.most, trace);
    if (thread_pool(threads_of_grpc).threads() < threads_of_grpc)
      throw error("this session", "", "there is no room for its threads");
    const std::lock_guard lock(mutex);
    all[terms.session] = r;
    return r.site;
  };
  const auto ended = [&](net::running_site& site, const hello& terms) {
    running r;
    {
      const std::lock_guard lock(mutex);
      const auto found = all.find(terms.session);
      if (found == all.end() || found->second.site.get() != &site) return;
      r = found->second;
      all.erase(found);
    }
    const json j = report(r);
    const std::string line =
        o.as_json
            ? line_of(j)
            : fmt::format("session {:016x}: {} tokens, {} bytes sent{}", terms.session,
                          j["tokens"].size(), j["bytes"]["sent"].get<std::size_t>(),
                          j.contains("problem") ? ", " + j["problem"].get<std::string>() : "");
    // fmt::print throws, and this is called by a destructor, too
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
  };
  net::sessions sessions(agree, make, o.sessions, o.keep, ended);
  way_out out([&] {
    std::vector<running> left;
    {
      const std::lock_guard lock(mutex);
      for (const auto& [id, r] : all) left.push_back(r);
    }
    for (const running& r : left) ended(*r.site, r.watch->terms);
  });
  until_interrupted();
  {
    net::server server(o.address, security, limits_of(o, library->vocab_size()),
                       [&](const auto& to) { return sessions.accept(to); });
    const std::string where =
        o.address.starts_with("unix:")
            ? o.address
            : fmt::format("{}:{}", o.address.substr(0, o.address.rfind(':')), server.port());
    if (o.as_json) fmt::print("{}\n", line_of(json{{"listening", where}}));
    else
      fmt::print("listening on {} with {}{}\n", where, o.site.model,
                 o.site.folder.empty()
                     ? ""
                     : fmt::format(", {} passages of {}", library->passage_count(), o.site.folder));
    flush_output();
    const bool live = knows_escapes(STDERR_FILENO);
    for (int i = 0; !interrupted; ++i) {
      std::this_thread::sleep_for(10ms);
      server.tick();
      sessions.tick();
      if (!live || i % 20 != 0) continue;
      std::string line = fmt::format("{} connections", server.connections());
      const std::lock_guard lock(mutex);
      if (!all.empty()) {  // the last of them
        line +=
            fmt::format(", {} sessions | ", all.size()) + live_line(side::r, all.rbegin()->second);
      }
      fmt::print(stderr, "\r\033[K{}", line);
      std::fflush(stderr);
    }
    if (live) fmt::print(stderr, "\r\033[K");
    out.from_now();
  }
  if (trace) trace->check();
}

// ---- device -------------------------------------------------------------------------------------

// Passes a connection on to the site.
struct to_site final : net::listener {
  std::shared_ptr<net::running_site> site;
  std::shared_ptr<net::outlet> out;
  to_site(std::shared_ptr<net::running_site> s, std::shared_ptr<net::outlet> o)
      : site(std::move(s)), out(std::move(o)) {
    site->connected(out);
  }
  void received(std::span<const std::uint8_t> bytes) override { site->received(out.get(), bytes); }
  void closed(const std::string&) override { site->disconnected(out.get()); }
};

constexpr std::pair<const char*, protocol> splits[] = {{"dsd", protocol::dsd},
                                                       {"dsd-block", protocol::dsd_block},
                                                       {"dssd", protocol::dssd},
                                                       {"shared", protocol::split_shared}};

hello terms_of(const two_sites_options& o, const site_maker& library, std::size_t prompt) {
  hello h{.life = random_bits(), .from = side::l};
  if (o.dragon) {
    if (o.noise != "shared" && o.noise != "independent")
      throw error("--noise " + o.noise, "", "is unknown (shared, independent are known)");
    h.kind = o.noise == "shared" ? protocol::dragon_shared : protocol::dragon;
  } else {
    const auto found = std::find_if(std::begin(splits), std::end(splits),
                                    [&](auto& known) { return o.split == known.first; });
    if (found == std::end(splits))
      throw error("--split " + o.split, "", "is unknown (dsd, dsd-block, dssd, shared are known)");
    h.kind = found->second;
  }
  h.session = random_bits();
  if (!o.session.empty()) {
    const char* end = o.session.data() + o.session.size();
    const auto [at, failure] = std::from_chars(o.session.data(), end, h.session, 16);
    if (failure != std::errc() || at != end)
      throw error("--session " + o.session, "", "is no hexadecimal number of 64 bits");
  }
  h.model_l = short_text(std::filesystem::path(o.site.model).stem().string());
  using values = row_codec::values;
  if (o.codec != "full" && o.codec != "half" && o.codec != "counts")
    throw error("--codec " + o.codec, "", "is unknown (full, half, counts are known)");
  h.codec = {.vocabulary = library.vocab_size(),
             .format = o.codec == "full"   ? values::full
                       : o.codec == "half" ? values::half
                                           : values::counts,
             .top_k = o.row_top_k,
             .top_p = o.row_top_p,
             .total = o.codec == "counts" ? o.row_total : 0};
  h.vocabulary_hash = hash_of_vocabulary(library);
  h.seed_hash = hash_of_seed(o.seed, h.session);
  h.tokenization_hash = hash_of_tokenization(library);
  h.sampling = short_text(text_of(o.sample));
  h.end_of_text = library.eos();
  h.look_ahead = o.dragon ? o.look_ahead : o.gamma;
  h.most_tokens = std::uint32_t(prompt) + o.max_tokens;
  h.prompt = std::uint32_t(prompt);
  if (o.first != "device" && o.first != "cloud")
    throw error("--first " + o.first, "", "is unknown (device, cloud are known)");
  h.first = o.first == "device" ? side::l : side::r;
  if (!valid(h)) throw error("the row codec", o.codec, "cannot have this top-k, top-p or total");
  return h;
}

std::string text_of(const site_maker& library, std::span<const token_id> tokens) {
  std::string text;
  for (const token_id t : tokens) text += library.piece(t);
  return text;
}

// A line for each stretch of tokens that are the draft of one site, of both, or of neither.
void print_origins(const site_maker& library, std::span<const token_id> tokens,
                   std::span<const std::string> origins) {
  fmt::print("\n");
  for (std::size_t i = 0, n; i < tokens.size(); i += n) {
    for (n = 1; i + n < tokens.size() && origins[i + n] == origins[i];) ++n;
    const std::string text = text_of(library, tokens.subspan(i, n));
    fmt::print("{:7} | {}\n", origins[i], printable(text, 1u << 20));
  }
}

// Appends max_tokens tokens to the prompt, or as many as there are until `end`, by one site's own
// model and documents. decoded: the seconds of each call of the model; at: when each token was
// drawn.
struct lone_text {
  std::vector<token_id> tokens;
  std::vector<double> decoded, at;
};
lone_text write_alone(const two_sites_options& o, site_maker& library, std::uint64_t session,
                      std::span<const token_id> prompt, token_id end) {
  lone_text text{{prompt.begin(), prompt.end()}, {}, {}};
  const std::size_t most = prompt.size() + o.max_tokens;
  const auto model = model_for(o, library, most, most);
  model->begin(prompt.size());
  std::vector<float> logits(model->vocab_size());
  std::vector<double> scratch(verify_scratch(model->vocab_size()));
  random_streams chooser(o.seed, session, 0);
  const std::atomic<bool> stop = false;
  while (text.tokens.size() < most && (text.at.empty() || text.tokens.back() != end) &&
         !interrupted) {
    double h = 0;
    const auto position = std::uint32_t(text.tokens.size());
    const auto began = net::clock::now();
    if (const status s = model->see(text.tokens, logits, h, stop); s != status::ok)
      throw error("the model", fmt::format("token {}", position), std::string(name(s)));
    text.decoded.push_back(std::chrono::duration<double>(net::clock::now() - began).count());
    processed_row<float> row(std::span<const float>(logits), o.sample);
    const status s = row.normalise();
    const token_id x = s == status::ok
                           ? draw(row, moment{stream::draft, position, 0}, chooser, scratch)
                           : no_token;
    if (x == no_token)
      throw error("the row", fmt::format("token {}", position), std::string(name(s)));
    text.tokens.push_back(x);
    text.at.push_back(trace_file::seconds(net::clock::now()));
  }
  return text;
}

// dragon device --alone
void run_alone(const two_sites_options& o, site_maker& library, const hello& terms,
               std::span<const token_id> prompt) {
  const auto [text, decoded, at] =
      write_alone(o, library, terms.session, prompt, terms.end_of_text);
  const auto fresh = std::span<const token_id>(text).subspan(terms.prompt);
  const double each = at.size() > 1 ? (at.back() - at.front()) / double(at.size() - 1) : 0;
  if (o.as_json) {
    json j{{"side", "device"},
           {"protocol", "alone"},
           {"text", text_of(library, fresh)},
           {"tokens", std::vector<token_id>(fresh.begin(), fresh.end())},
           {"seconds_per_token", each}};
    add_mapped(j, library);
    fmt::print("{}\n", line_of(j));
  } else {
    fmt::print("{}\n\n{} tokens, {:.2f} ms a token\n", shown(text_of(library, fresh)), fresh.size(),
               1e3 * each);
  }
}

std::vector<token_id> prompt_of(const two_sites_options& o, const site_maker& library) {
  const std::string prompt = o.prompt_file.empty() ? o.prompt : read(o.prompt_file);
  const std::vector<token_id> tokens =
      prompt.empty() ? std::vector<token_id>() : library.encode(prompt);
  if (tokens.empty()) throw error("--prompt", "", "is empty");
  return tokens;
}

// dragon profile: the offline stage of DRAGON's section 5.2
void profile(const two_sites_options& o) {
  const auto library = open_sites(o);
  const std::vector<token_id> prompt = prompt_of(o, *library);
  until_interrupted();
  // The first call reads the prompt. An end of the text is no reason to stop: only times matter.
  const lone_text text = write_alone(o, *library, 0, prompt, no_token);
  if (text.decoded.size() < 3)
    throw error("dragon profile", "", "interrupted before there was anything to fit");
  const std::vector<double> seconds(text.decoded.begin() + 1, text.decoded.end());
  std::vector<double> context(seconds.size()), scratch(seconds.size());
  for (std::size_t i = 0; i < context.size(); ++i) context[i] = double(prompt.size() + 1 + i);
  const plan::decode_time line = plan::fit_decode_time(context, seconds, scratch);
  if (o.as_json) {
    json points = json::array();
    for (std::size_t i = 0; i < context.size(); ++i) points.push_back({context[i], seconds[i]});
    fmt::print("{}\n", line_of({{"model", o.site.model},
                                {"documents", o.site.folder},
                                {"threads", o.threads},
                                {"k_a", line.k_a},
                                {"k_b", line.k_b},
                                {"k_c", line.k_c},
                                {"points", points}}));
    return;
  }
  fmt::print(
      "Time to decode a token, ms: {:.4g} + {:.4g} x tokens of context\n\ncontext  measured  "
      "line\n",
      1e3 * line.k_c, 1e3 * line.slope());
  // lines of the table: medians of so many calls
  const std::size_t tenth = (context.size() + 9) / 10;
  for (std::size_t i = 0; i < context.size(); i += tenth) {
    const std::size_t n = std::min(tenth, context.size() - i);
    std::vector<double> some(seconds.begin() + std::ptrdiff_t(i),
                             seconds.begin() + std::ptrdiff_t(i + n));
    std::nth_element(some.begin(), some.begin() + std::ptrdiff_t(n / 2), some.end());
    const double middle = context[i] + double(n - 1) / 2;
    fmt::print("{:7.0f}  {:8.3f}  {:.3f}\n", middle, 1e3 * some[n / 2], 1e3 * line(middle));
  }
}

// Of a device that connects again and again: how its last connection ended. Any thread.
struct connection_end {
  std::mutex mutex;
  bool over = true;
  std::string why;
  // since when every connection fails for a reason that is known, and that time hardly mends: one
  // end has no TLS, or a certificate is wrong
  std::optional<net::clock::time_point> hopeless;

  void ended(const std::string& reason, const net::security& security) {
    const std::lock_guard lock(mutex);
    over = true;
    why = reason;
    if (net::probable_cause(why, security).empty()) hopeless.reset();
    else if (!hopeless) hopeless = net::clock::now();
  }
  // Why no further connection is tried; empty if one is. answered: when the other end was last
  // heard; none: never.
  std::string given_up(double seconds, net::clock::time_point began,
                       std::optional<net::clock::time_point> answered) {
    const std::lock_guard lock(mutex);
    const auto now = net::clock::now();
    if (hopeless && !answered && now - *hopeless > 3s) return why;
    if (now - answered.value_or(began) <= std::chrono::duration<double>(seconds)) return {};
    return fmt::format("no answer for {:g} s ({})", seconds, why.empty() ? "silence" : why);
  }
};

// What a device prints at the end. Throws specagg::error if the text is not whole.
void conclude(const two_sites_options& o, const site_maker& library, const running& r,
              const std::string& problem) {
  json j = report(r);
  const auto emitted = j["tokens"].get<std::vector<token_id>>();
  const std::string text = text_of(library, emitted);
  const bool whole = r.site->finished();
  // Who got no token has nothing to go on with: the same command begins anew.
  const std::string hint =
      emitted.empty() ? ""
                      : fmt::format("; --session {:016x} goes on with it", r.watch->terms.session);
  if (o.as_json) {
    j["text"] = text;
    j["finished"] = whole;
    add_mapped(j, library);
    if (!problem.empty()) j["problem"] = problem;
    fmt::print("{}\n", line_of(j));
  } else if (!emitted.empty()) {
    fmt::print("{}\n", shown(text));
    if (o.origins) print_origins(library, emitted, j["origins"].get<std::vector<std::string>>());
    fmt::print("\n{} tokens, {:.2f} ms a token", emitted.size(),
               1e3 * j.value("seconds_per_token", 0.0));
    if (j.contains("seconds_per_token_predicted"))
      fmt::print(" (the recursion says {:.2f})",
                 1e3 * j["seconds_per_token_predicted"].get<double>());
    fmt::print("\n{}\n{}\n", live_line(side::l, r), live_line(side::r, r));
  }
  std::fflush(stdout);
  if (!whole)
    throw error(o.address, fmt::format("token {}", emitted.size()),
                (problem.empty() ? "interrupted" : problem) + hint);
}

void device(two_sites_options o) {
  scheduling_of(o.scheduler);
  o.decode = profiles_of(o);
  const net::security security = security_of(o, false);
  const auto library = open_sites(o);
  // Freeing two vocabularies takes 30 ms; the system does it at once. (Libllama frees what it has.)
  if (o.backend == "cpu") {
    [[maybe_unused]] static const auto* const kept = new auto(library);
  }
  const std::vector<token_id> tokens = prompt_of(o, *library);
  const hello terms = terms_of(o, *library, tokens.size());
  until_interrupted();
  if (o.alone) return run_alone(o, *library, terms, tokens);
  const auto trace = o.trace.empty() ? nullptr : std::make_shared<trace_file>(o.trace);
  running r = run_site(o, terms, tokens, *library, terms.most_tokens, trace);

  connection_end connection;
  net::client client(o.address, security, limits_of(o, library->vocab_size()));
  const bool live = knows_escapes(STDERR_FILENO);
  const auto began = net::clock::now();
  std::optional<net::clock::time_point> answered;
  auto next = began;
  auto pause = 100ms;
  std::size_t heard = 0;
  std::string problem;
  for (int i = 0; !interrupted; ++i) {
    const auto now = net::clock::now();
    if (const std::size_t n = r.site->count().received; n > heard) {
      heard = n;
      answered = now;
      pause = 100ms;
    }
    if (problem = r.site->problem(); !problem.empty() || r.site->finished()) break;
    if (problem = connection.given_up(o.give_up, began, answered); !problem.empty()) break;
    bool again = false;
    {
      const std::lock_guard lock(connection.mutex);
      again = connection.over && now >= next;
      if (again) {
        connection.over = false;
        next = now + pause;
        pause = std::min(2 * pause, std::chrono::milliseconds(2000));
      }
    }
    if (again)
      client.connect([&](const auto& out) { return std::make_shared<to_site>(r.site, out); },
                     [&](const std::string& why) { connection.ended(why, security); });
    std::this_thread::sleep_for(50ms);
    client.tick();
    r.site->tick();
    if (live && i % 2 == 0) {
      fmt::print(stderr, "\r\033[K{}\n\033[K{}\033[A", live_line(side::l, r),
                 live_line(side::r, r));
      std::fflush(stderr);
    }
  }
  if (live) fmt::print(stderr, "\r\033[K\n\033[K\033[A");
  client.close("the text has ended");
  for (;;) {  // its calls refer to what is above
    {
      const std::lock_guard lock(connection.mutex);
      if (connection.over) break;
    }
    std::this_thread::sleep_for(2ms);
    client.tick();
  }
  conclude(o, *library, r, problem);
  if (trace) trace->check();
}

// ---- options ------------------------------------------------------------------------------------

void add_model(CLI::App* c, two_sites_options& o, bool serves) {
  c->add_option("--model", o.site.model,
                std::string("GGUF file of this side's model [the bundled ") +
                    (serves ? "target" : "draft") + " model]")
      ->type_name("FILE");
  c->add_option("--vocabulary", o.site.vocabulary,
                "GGUF file with the text's tokens, if they are not this model's: its rows are "
                "mapped to them")
      ->type_name("FILE");
  add_backend(c, o.backend, o.site.llama_cpp, {"cpu", "llama.cpp"});
  c->add_option("--threads", o.threads, "Threads of the model")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  c->add_option("--seed", o.seed, "Of all random numbers, the same at both ends")
      ->capture_default_str();
}
void add_documents(CLI::App* c, two_sites_options& o) {
  c->add_option("--documents", o.site.folder,
                "Folder of text to retrieve from; it stays on this side")
      ->type_name("FOLDER");
  c->add_option("--passages", o.site.documents, "Passages read side by side, at most")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  c->add_option("--rescore", o.site.rescore,
                "Score their relevance again every so many tokens; 0: once")
      ->capture_default_str();
}
std::vector<no_effect> without_effect(const CLI::App& c, const two_sites_options& o) {
  std::vector<no_effect> rows = without_effect_on(o.backend);
  rows.push_back(without_effect_at(o.sample));
  if (o.dragon)
    rows.push_back({!given(c, "--documents"), "without --documents", {"--passages", "--rescore"}});
  return rows;
}
void add_prompt(CLI::App* c, two_sites_options& o, const char* max_tokens, std::uint32_t least) {
  c->add_option("--prompt", o.prompt, "Text to continue");
  c->add_option("--prompt-file", o.prompt_file, "File with the text to continue")
      ->type_name("FILE")
      ->excludes("--prompt");
  c->add_option("--max-tokens", o.max_tokens, max_tokens)
      ->check(CLI::Range(least, std::uint32_t(1) << 20))
      ->capture_default_str();
}
void add_common(CLI::App* c, two_sites_options& o, bool serves) {
  add_model(c, o, serves);
  c->add_flag("--insecure", o.insecure, "Without TLS");
  c->add_option("--certificate", o.certificate, "PEM file with this end's certificate")
      ->type_name("FILE");
  c->add_option("--key", o.key, "PEM file with its private key")->type_name("FILE");
  c->add_option(
       "--authority", o.authority,
       serves ? "PEM file: only clients with a certificate signed by this may connect (mutual TLS)"
              : "PEM file: the server's certificate must be signed by this (default: the system's)")
      ->type_name("FILE");
  c->add_option("--token-file", o.token, "File with a token that both ends must have")
      ->type_name("FILE");
  c->add_option("--trace", o.trace,
                "File to write every event to, as JSON lines (scripts/plot-pipelines draws them)")
      ->type_name("FILE");
  c->add_flag("--json", o.as_json, "JSON instead of text");
  if (!o.dragon) return;
  add_documents(c, o);
  for (std::size_t s = 0; s < 2; ++s) {
    const std::string of = s == 0 ? "device" : "cloud";
    c->add_option("--profile-" + of, o.profiles[s],
                  "What dragon profile --json printed there: known before it begins")
        ->type_name("FILE");
  }
  std::vector<std::string> names;
  for (const auto& [name, schedule] : schedulings) names.emplace_back(name);
  takes(c->add_option("--scheduler", o.scheduler,
                      "Who aggregates; moving: always where the drafts are"),
        names)
      ->capture_default_str();
}
void add_serve(CLI::App* c, two_sites_options& o) {
  add_common(c, o, true);
  c->add_option("--listen", o.address, "HOST:PORT (port 0: any) or unix:PATH")
      ->capture_default_str();
  c->add_option("--sessions", o.sessions, "At a time, at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  c->add_option("--most-tokens", o.site.most,
                "Tokens of a session's text at most, prompt included: memory is kept for them")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--keep", o.keep, "Seconds a session is kept without a connection")
      ->check(CLI::Range(0.0, 1e7))
      ->capture_default_str();
  c->callback([c, &o] {
    refuse_without_effect(*c, without_effect(*c, o));
    serve(o);
  });
}
void add_device(CLI::App* c, two_sites_options& o) {
  add_common(c, o, false);
  c->add_option("--connect", o.address, "HOST:PORT or unix:PATH of the server")
      ->capture_default_str();
  add_prompt(c, o, "Tokens to emit at most", 1);
  add_sampling(c, o.sample);
  takes(c->add_option("--codec", o.codec, "Rows on the wire"), {"full", "half", "counts"})
      ->capture_default_str();
  c->add_option("--row-top-k", o.row_top_k, "Tokens of a row that are sent; 0: all")
      ->capture_default_str();
  c->add_option("--row-top-p", o.row_top_p, "Mass of a row that is sent")
      ->check(CLI::Range(1e-9, 1.0))
      ->capture_default_str();
  c->add_option("--row-total", o.row_total, "Counts of a row, for --codec counts")
      ->capture_default_str();
  c->add_option("--session", o.session,
                "Go on with this session (hexadecimal); default: a new one");
  c->add_option("--give-up", o.give_up, "Seconds without a connection until it ends")
      ->check(CLI::Range(0.1, 1e7))
      ->capture_default_str();
  c->add_flag("--alone", o.alone, "Decode with this side's model alone, to compare");
  if (o.dragon) {
    takes(c->add_option("--noise", o.noise, "Of both sides' drafts; shared is fastest"),
          {"shared", "independent"})
        ->capture_default_str();
    c->add_option("--look-ahead", o.look_ahead,
                  "Drafts beyond the last aggregation; 1: synchronous")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    takes(c->add_option("--first", o.first, "Who aggregates first"), {"device", "cloud"})
        ->capture_default_str();
    c->add_flag("--origins", o.origins,
                "Also print whose draft each stretch of the text was: the device's, the cloud's, "
                "both's, neither's; --json always has it");
  } else {
    std::vector<std::string> names;
    for (const auto& [name, protocol] : splits) names.emplace_back(name);
    takes(c->add_option("--split", o.split, "How drafts are verified over the link"), names)
        ->capture_default_str();
    c->add_option("--gamma", o.gamma, "Tokens drafted a round")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
  }
  c->callback([c, &o] {
    auto rows = without_effect(*c, o);
    rows.push_back({o.codec != "counts", "without --codec counts", {"--row-total"}});
    if (o.dragon) rows.push_back({o.as_json, "with --json: it has them", {"--origins"}});
    if (!o.dragon)
      rows.push_back({o.split == "shared",
                      "with --split shared: it sends no rows",
                      {"--codec", "--row-top-k", "--row-top-p", "--row-total"}});
    if (o.alone)
      rows.push_back({true, "with --alone",
                      all_but(*c, {"--alone",         "--model",  "--vocabulary",  "--backend",
                                   "--exact-batches", "--rpc",    "--threads",     "--seed",
                                   "--session",       "--json",   "--documents",   "--passages",
                                   "--rescore",       "--prompt", "--prompt-file", "--max-tokens",
                                   "--temperature",   "--top-k",  "--top-p",       "--min-p"})});
    refuse_without_effect(*c, rows);
    device(o);
  });
}

void add_profile(CLI::App* c, two_sites_options& o) {
  add_model(c, o, false);
  add_documents(c, o);
  add_prompt(c, o, "Tokens to decode: the line is fitted to their times", 3);
  add_sampling(c, o.sample);
  c->add_flag("--json", o.as_json,
              "JSON instead of text, with every time: for --profile-device, --profile-cloud");
  c->callback([c, &o] {
    refuse_without_effect(*c, without_effect(*c, o));
    profile(o);
  });
}

}  // namespace

void add_two_sites(CLI::App& app) {
  static std::deque<two_sites_options> all;  // the callbacks refer to them
  const auto add = [&](bool dragon, const char* name, const char* what) {
    CLI::App* c = app.add_subcommand(name, what);
    c->require_subcommand(1);
    for (const bool serves : {true, false}) {
      two_sites_options& o = all.emplace_back();
      o.dragon = dragon;
      o.site.model = std::string(SPECAGG_MODELS) + (serves ? "/target.gguf" : "/draft.gguf");
      if (serves)
        add_serve(
            c->add_subcommand("serve", "The server: many devices, one after another or at once"),
            o);
      else
        add_device(
            c->add_subcommand("device",
                              "The client, on a device: decodes one prompt together with a server"),
            o);
    }
    if (!dragon) return;
    two_sites_options& o = all.emplace_back();
    o.site.model = std::string(SPECAGG_MODELS) + "/draft.gguf";
    add_profile(c->add_subcommand(
                    "profile", "How long this side decodes, as a function of the context's length"),
                o);
  };
  add(true, "dragon", "Two sites with documents of their own, one text (DRAGON)");
  add(false, "dssd",
      "A client drafts, a server verifies: split speculative decoding (DSD, DSSD; the authors of "
      "DSSD state a patent "
      "filing, CN2025108856278)");
}

}  // namespace cli

#else

#include <specagg/error.hpp>

namespace cli {

void add_two_sites(CLI::App& app) {
  for (const char* name : {"dragon", "dssd"})
    app.add_subcommand(
           name, "Two sites over a network: not in this program, which was built without gRPC")
        ->allow_extras()
        ->callback([name] {
          throw specagg::error(
              name, "",
              "is not in this program, which was built without gRPC: install it (Debian, Ubuntu: "
              "libgrpc++-dev; elsewhere: name it in CMAKE_PREFIX_PATH), then run cmake again");
        });
}

}  // namespace cli

#endif
