// SPDX-License-Identifier: Apache-2.0
// specagg dragon device, dssd device and dragon profile.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "site_ends.hpp"
#include "terminal.hpp"

namespace cli {
namespace {

using namespace specagg;
using namespace specagg::sites;
using namespace std::chrono_literals;

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

hello terms_of(const two_sites_options& o, const site_maker& library, std::size_t prompt) {
  hello h{.life = random_bits(), .from = side::l};
  h.kind = o.dragon ? meaning_of(o.noise, noises) : meaning_of(o.split, splits);
  h.session = random_bits();
  if (!o.session.empty()) {
    const char* end = o.session.data() + o.session.size();
    const auto [at, failure] = std::from_chars(o.session.data(), end, h.session, 16);
    if (failure != std::errc() || at != end)
      throw error("--session " + o.session, "", "is no hexadecimal number of 64 bits");
  }
  h.model_l = short_text(std::filesystem::path(o.site.model).stem().string());
  h.codec = {.vocabulary = library.vocab_size(),
             .format = meaning_of(o.codec, codecs),
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
  h.first = meaning_of(o.first, firsts);
  if (!valid(h)) throw error("the row codec", o.codec, "cannot have this top-k, top-p or total");
  return h;
}

std::string written(const site_maker& library, std::span<const token_id> tokens) {
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
    const std::string text = written(library, tokens.subspan(i, n));
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
    const auto row = normalise(processed_row<float>(std::span<const float>(logits), o.sample));
    const status s = row.why();
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
    ordered_json j{{"side", "device"},
                   {"protocol", "alone"},
                   {"text", written(library, fresh)},
                   {"tokens", std::vector<token_id>(fresh.begin(), fresh.end())},
                   {"seconds_per_token", each}};
    add_mapped(j, library);
    fmt::print("{}\n", line_of(j));
  } else {
    fmt::print("{}\n\n{} tokens, {:.2f} ms a token\n", shown(written(library, fresh)), fresh.size(),
               1e3 * each);
  }
}

std::vector<token_id> prompt_of(const two_sites_options& o, const site_maker& library) {
  const std::string prompt = o.prompt_file.empty() ? o.prompt : content_of(o.prompt_file);
  const std::vector<token_id> tokens =
      prompt.empty() ? std::vector<token_id>() : library.encode(prompt);
  if (tokens.empty()) throw error("--prompt", "", "is empty");
  return tokens;
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
  // Whether there is none, so that one may begin.
  bool begins() {
    const std::lock_guard lock(mutex);
    return std::exchange(over, false);
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
  ordered_json j = report(r);
  const auto emitted = j["tokens"].get<std::vector<token_id>>();
  const std::string text = written(library, emitted);
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

// Connects again and again until the text has ended or there is no hope; returns what went wrong.
std::string decode_together(const two_sites_options& o, const net::security& security,
                            net::client& client, connection_end& connection, running& r) {
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
    if (now >= next && connection.begins()) {
      next = now + pause;
      pause = std::min(2 * pause, std::chrono::milliseconds(2000));
      client.connect([&](const auto& out) { return std::make_shared<to_site>(r.site, out); },
                     [&](const std::string& why) { connection.ended(why, security); });
    }
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
  while (!connection.begins()) {  // its calls refer to what is above
    std::this_thread::sleep_for(2ms);
    client.tick();
  }
  return problem;
}

}  // namespace

void device(two_sites_options o) {
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
  const std::string problem = decode_together(o, security, client, connection, r);
  conclude(o, *library, r, problem);
  if (trace) trace->check();
}

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
    ordered_json points = ordered_json::array();
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

}  // namespace cli
