// SPDX-License-Identifier: Apache-2.0
// A server with OpenAI's API. decoder.hpp writes the texts, engine.hpp gives requests their places,
// request.hpp reads what is asked for, answer.hpp writes what is answered, http.hpp limits what a
// client may do. docs/server.md says how to run it.
#include <arpa/inet.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "../cli/effects.hpp"
#include "answer.hpp"
#include "engine.hpp"
#include "http.hpp"
#include "page.hpp"
#include "request.hpp"

namespace {

using specagg::error;

struct program_options : server_options {
  std::string host = "127.0.0.1", key;
  int port = 8080;
  unsigned drain = 30;  // seconds
};

// Whether a header's value is this word, in small or large letters, with spaces around it or not.
bool is_word(std::string_view value, std::string_view word) {
  const auto first = std::min(value.find_first_not_of(" \t"), value.size());
  value = value.substr(first, value.find_last_not_of(" \t") + 1 - first);
  return std::equal(value.begin(), value.end(), word.begin(), word.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? char(a - 'A' + 'a') : a) == b;
  });
}

bool is_loopback(const std::string& host) {
  in_addr four{};
  return is_word(host, "localhost") || host == "::1" ||
         (inet_pton(AF_INET, host.c_str(), &four) == 1 && ntohl(four.s_addr) >> 24 == 127);
}

// Whether a client that asks for this host, with a port or not, means this machine. Any other name
// may have been given to its address by whoever made the page that asks.
bool own_host(const std::string& host) {
  const bool six = host.starts_with('[');
  const std::size_t end = six ? host.find(']') : host.find(':');
  if (six && end == host.npos) return false;
  const std::string name = six ? host.substr(1, end - 1) : host.substr(0, end),
                    port = end == host.npos ? "" : host.substr(end + six);
  return is_loopback(name) &&
         (port.empty() || (port[0] == ':' && port.find_first_not_of("0123456789", 1) == port.npos));
}

// Whether the page that asks for the key is due, which says nothing of the server.
bool asks_for_key(const httplib::Request& from, const program_options& o) {
  return from.path == "/" && !o.key.empty() && !from.has_header("Authorization");
}

void fail(httplib::Response& to, const api_error& e) {
  to.status = e.status;
  if (e.status == 503) to.set_header("Retry-After", "1");
  to.set_content(e.text(), "application/json");
}

// Throws api_error if the client may not ask.
void check(const httplib::Request& from, const program_options& o) {
  if (!o.key.empty()) {
    const std::string given = from.get_header_value("Authorization"), right = "Bearer " + o.key;
    // the time does not depend on where they differ
    unsigned different = given.size() != right.size();
    for (std::size_t i = 0; i < given.size(); ++i)
      different |= unsigned(given[i] ^ right[i % right.size()]);
    if (different) throw api_error{401, "the key is missing or wrong", "", "invalid_api_key"};
    // a page that a browser shows must not use a server without a key, unless it is the server's
  } else if (const std::string host = from.get_header_value("Host");
             from.has_header("Host") && !own_host(host)) {
    throw api_error{403, "without a key this server is asked for as localhost, 127.0.0.1 or [::1]"};
  } else if (from.has_header("Origin") && from.get_header_value("Origin") != "http://" + host) {
    throw api_error{403, "without a key this server answers no pages of a browser but its own"};
  }
  const std::string type = from.get_header_value("Content-Type");
  if (from.method == "POST" && !is_word(type.substr(0, type.find(';')), "application/json"))
    throw api_error{415, "Content-Type must be application/json"};
}

// Throws api_error if the head is none of HTTP's (RFC 9112, 3.2 and 5.2). cpp-httplib reads it.
void check_head(const httplib::Request& from) {
  if (http_server::here().folded()) throw api_error{400, "a line of the head begins with a space"};
  const std::size_t hosts = from.get_header_value_count("Host");
  if (hosts > 1 || (hosts == 0 && from.version != "HTTP/1.0"))
    throw api_error{400, "Host must stand once in the head"};
}

// Throws api_error if the body cannot be taken, which is known before it is read. cpp-httplib would
// read one that is too long to its end, wait for one without a length, and make gigabytes of some
// compressed bytes.
void check_body(const httplib::Request& from, std::size_t most) {
  if (from.has_header("Content-Encoding"))
    throw api_error{415, "a body may not have a Content-Encoding"};
  const auto length = from.get_header_value("Content-Length");
  for (std::size_t i = 0; i < from.get_header_value_count("Content-Length"); ++i)
    if (const std::string one = from.get_header_value("Content-Length", i);
        one.empty() || one.find_first_not_of("0123456789") != std::string::npos || one != length)
      throw api_error{400, "Content-Length must be one decimal number"};
  if (from.get_header_value<std::uint64_t>("Content-Length") > most)
    throw api_error{413, "the request is too large"};
  const std::size_t transfers = from.get_header_value_count("Transfer-Encoding");
  if (transfers > 1 ||
      (transfers && !is_word(from.get_header_value("Transfer-Encoding"), "chunked")))
    throw api_error{400, "Transfer-Encoding must be chunked"};
  if (transfers && (from.has_header("Content-Length") || from.version == "HTTP/1.0"))
    throw api_error{400, "Transfer-Encoding stands without Content-Length, and in HTTP/1.1"};
  if (transfers) http_server::here().expect_chunks();
  const bool has_body = from.method == "POST" || from.method == "PUT" || from.method == "PATCH";
  if (has_body && !from.has_header("Content-Length") && !transfers)
    throw api_error{411, "Content-Length is missing"};
}

const std::string no_memory_text = api_error{503, no_memory}.text();  // made while there is some

api_error failure(const news& n) { return {n.status, n.failure}; }

void answer_whole(engine& by, answers& all, const std::string& model, const httplib::Request& from,
                  httplib::Response& to) {
  std::vector<news> whole(all.size());
  std::uint64_t seen = 0;
  for (bool more = true; more;) {
    more = false;
    by.wait(*all[0].asked().told, seen);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].how() != ended::no) continue;
      const news n = all[i].next();
      whole[i].text += n.text;
      whole[i].tokens.insert(whole[i].tokens.end(), n.tokens.begin(), n.tokens.end());
      if (n.ended == ended::failed) throw failure(n);
      more |= n.ended == ended::no;
    }
    // A client that has closed its end is asked by a line that clients drop. Before HTTP/1.1 there
    // was none.
    static const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    if (http_server::here().gone([&] {
          return from.version != "HTTP/1.0" &&
                 http_server::here().write(go_on.data(), go_on.size()) > 0;
        }))
      throw api_error{400, "the client closed its connection before the answer was there"};
  }
  std::size_t needed = 0;
  for (std::size_t i = 0; i < all.size(); ++i) needed += memory_of_json(whole[i], all[i].asked());
  need_memory(needed);
  writer write(model, all[0].asked().chat, false, by.models().tokens(), by.of_steps());
  to.set_content(write.whole(whole, all), "application/json");
}
// The next parts of a stream. False: the client is gone.
class stream_of_parts {
 public:
  stream_of_parts(engine& by, std::shared_ptr<answers> all, const std::string& model)
      : by_(by),
        all_(std::move(all)),
        write_(model, all_->front().asked().chat, true, by.models().tokens(), by.of_steps()) {}
  bool next(httplib::DataSink& sink) {
    const auto send = [&](std::string line) {
      line += "\n\n";
      return sink.write(line.data(), line.size());
    };
    bool more = false, failed = false;
    by_.wait(*all_->front().asked().told, seen_);
    for (std::size_t i = 0; i < all_->size(); ++i) {
      answer& a = (*all_)[i];
      if (a.how() == ended::no) {
        const news n = a.next();
        need_memory(memory_of_json(n, a.asked()));
        const std::size_t size = a.asked().prompt.size();
        if (i == 0 && n.prompt_read > std::exchange(read_, n.prompt_read) && n.tokens.empty())
          if (!send(fmt::format(": read {} of {} tokens", read_, size))) return false;
        if (n.ended == ended::failed) send("data: " + failure(n).text());
        else if (!n.text.empty() || !n.tokens.empty() || n.ended != ended::no)
          if (!send("data: " + write_.part(n, a, i))) return false;
      }
      more |= a.how() == ended::no;
      failed |= a.how() == ended::failed;
    }
    // a comment, which clients drop
    if (more) return !http_server::here().gone([&] { return send(":"); });
    if (!failed && all_->front().asked().usage) send("data: " + write_.usage(*all_));
    send("data: [DONE]");
    sink.done();
    return true;
  }

 private:
  engine& by_;
  std::shared_ptr<answers> all_;
  writer write_;
  std::uint64_t seen_ = 0;
  std::size_t read_ = 0;
};
void answer_in_parts(engine& by, const std::shared_ptr<answers>& all, const std::string& model,
                     httplib::Response& to) {
  // What ends a stream where there is no memory, with the sizes of its chunks: cpp-httplib would
  // need memory for them.
  static const std::string last = "data: " + no_memory_text + "\n\ndata: [DONE]\n\n",
                           last_chunks = fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", last.size(), last);
  to.set_header("Cache-Control", "no-cache");
  to.set_chunked_content_provider(
      "text/event-stream", [parts = std::make_shared<stream_of_parts>(by, all, model)](
                               std::size_t, httplib::DataSink& sink) {
        try {
          return parts->next(sink);
        } catch (const std::bad_alloc&) {
          (void)http_server::here().write(last_chunks.data(), last_chunks.size());
          return false;
        }
      });
}

// libllama's threads wait for each other some hundred times in a token. OpenMP's library lets them
// spin for milliseconds, also where the thread that is waited for has no core: on busy cores one
// token takes as long as ten. It reads how long when a program is loaded, so this one loads itself
// again, unless its user has chosen. Not where it was started through ld.so: then that is the
// running program, and has no interpreter.
void spin_for_microseconds(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY") || getauxval(AT_BASE) == 0)
    return;
  std::error_code none;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", none);
  if (none || setenv("GOMP_SPINCOUNT", "300", 1) != 0) return;
  execv(self.c_str(), argv);  // returns only if it fails: then the threads spin
}

// Bytes that requests may have.
double memory_for(const program_options& o) {
  if (o.memory > 0) return double(o.memory) * 0x1p20;
  double all = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)), of_group = all;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> of_group) all = std::min(all, of_group);
  return all / 2;
}

// A connection is a file, and there may be more of them than a shell allows at first.
void allow_files(std::size_t most) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= most) return;
  limit.rlim_cur = std::min<rlim_t>(most, limit.rlim_max);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// What answers have in common.
struct served {
  engine& decoder;
  request_limits most;
  std::unique_ptr<const cli::chat> turns = {};  // null: /v1/completions alone

  served(engine& by, const program_options& o)
      : decoder(by),
        most{.model = std::filesystem::path(o.target).stem().string(),
             .context = by.models().context(),
             .gamma = o.gamma,
             .draft_context = by.models().draft_context(),
             .draft_model = !o.draft.empty(),
             .head = !o.head.empty(),
             .choices = o.requests + o.waiting} {
    try {
      turns = by.models().tokens().chat();
    } catch (const error& e) {  // no chat template that is known
      const std::string_view why =
          e.what();  // without the file's path, which is no client's business
      const auto path = why.find(": ");
      most.no_chat = path == why.npos ? std::string(why) : std::string(why.substr(path + 2));
    }
  }
};

void complete(const served& by, bool chat, const httplib::Request& from, httplib::Response& to) {
  engine& decoder = by.decoder;
  need_memory((std::size_t(1) << 20) + 64 * from.body.size());
  const auto asked =
      parse_requests(from.body, chat, by.most, decoder.models().tokens(), by.turns.get());
  for (const auto& r : asked)
    if (const double bytes = decoder.models().bytes(*r); bytes > decoder.memory())
      throw api_error{400,
                      fmt::format("\"max_tokens\": a text of {} tokens takes {:.0f} MiB; this "
                                  "server has {:.0f} (--memory)",
                                  r->longest(), bytes / 0x1p20, decoder.memory() / 0x1p20),
                      "max_tokens", "context_length_exceeded"};
  if (!decoder.submit(asked))
    throw api_error{503, decoder.draining() ? "the server stops"
                                            : "all places are taken, and the queue is full"};
  const auto all = std::make_shared<answers>();
  for (const auto& r : asked) all->emplace_back(decoder, r);
  if (asked[0]->stream) answer_in_parts(decoder, all, by.most.model, to);
  else answer_whole(decoder, *all, by.most.model, from, to);
}

void answer_completions(http_server& http, const served& by) {
  http.Post("/v1/completions", [&](const httplib::Request& from, httplib::Response& to) {
    complete(by, false, from, to);
  });
  http.Post("/v1/chat/completions", [&](const httplib::Request& from, httplib::Response& to) {
    complete(by, true, from, to);
  });
}

// "alpha=0.3,beta=exact": a policy's first sample, and the usual values that it leaves out.
std::string example_parameters(const cli::known_policy& known) {
  const std::string& sample = known.samples.front();
  const auto colon = sample.find(':');
  std::string all = colon == std::string::npos ? "" : sample.substr(colon + 1);
  const auto given = [&](const std::string& key) {
    return ("," + all).find("," + key + "=") != std::string::npos;
  };
  std::istringstream keys(known.keys);
  for (std::string one; std::getline(keys >> std::ws, one, ',');)
    if (!given(one.substr(0, one.find('=')))) all += (all.empty() ? "" : ",") + one;
  return all;
}

// What the page shows of the server; the default draft first.
json page_facts(const served& by) {
  json drafts = json::array(), policies = json::array();
  if (by.most.head) drafts.push_back("head");
  if (by.most.draft_model) drafts.push_back("model");
  for (const char* name : {"lookup", "counts", "none"}) drafts.push_back(name);
  if (by.most.draft_model)
    for (const auto& known : cli::known_policies())
      policies.push_back({{"name", known.name},
                          {"keys", known.keys},
                          {"law", known.law},
                          {"example", example_parameters(known)}});
  return {{"way", by.turns ? "chat" : "completions"},
          {"model", by.most.model},
          {"drafts", drafts},
          {"policies", policies}};
}

// What may be asked about the server.
void answer_questions(http_server& http, const served& by, const program_options& o) {
  const json one = {
      {"id", by.most.model}, {"object", "model"}, {"created", 0}, {"owned_by", "local"}};
  http.Get("/v1/models", [one](const httplib::Request&, httplib::Response& to) {
    to.set_content(json{{"object", "list"}, {"data", {one}}}.dump(), "application/json");
  });
  http.Get("/v1/models/(.+)", [&by, one](const httplib::Request& from, httplib::Response& to) {
    if (from.matches[1] != by.most.model) throw no_model(from.matches[1], by.most.model);
    to.set_content(one.dump(), "application/json");
  });
  http.Get("/health", [&by](const httplib::Request&, httplib::Response& to) {
    if (by.decoder.draining()) throw api_error{503, "the server stops"};
    to.set_content(R"({"status":"ok"})", "application/json");
  });
  http.Get("/", [&by, &o](const httplib::Request& from, httplib::Response& to) {
    to.set_header("Content-Security-Policy",
                  "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; "
                  "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
                  "frame-ancestors 'none'");
    to.set_content(asks_for_key(from, o) ? page_that_asks_for_key : page_of(page_facts(by)),
                   "text/html; charset=utf-8");
  });
  http.Get("/metrics", [&by](const httplib::Request&, httplib::Response& to) {
    to.set_content(by.decoder.metrics(by.most.model, by.most.gamma), "text/plain; version=0.0.4");
  });
}

// Whom the server does not answer, and what it says where it fails.
void answer_failures(http_server& http, const program_options& o, std::size_t longest_body) {
  using handled = httplib::Server::HandlerResponse;
  http.set_pre_routing_handler(
      [&o, longest_body](const httplib::Request& from, httplib::Response& to) {
        need_memory(1 << 20);  // of what says why not
        try {
          check_head(from);
          if (from.path != "/health" && !asks_for_key(from, o)) check(from, o);
          check_body(from, longest_body);
          return handled::Unhandled;
        } catch (const api_error& e) {
          fail(to, e);
          return handled::Handled;
        }
      });
  http.set_exception_handler(
      [](const httplib::Request&, httplib::Response& to, std::exception_ptr what) {
        try {
          std::rethrow_exception(what);
        } catch (const api_error& e) {
          fail(to, e);
        } catch (const std::bad_alloc&) {
          to.status = 503;
          to.set_header("Retry-After", "1");
          to.set_content(no_memory_text, "application/json");
        } catch (const std::exception& e) {
          fail(to, {500, e.what()});
        }
      });
  http.set_error_handler([](const httplib::Request& from, httplib::Response& to) {
    if (!to.body.empty()) return;
    if (to.status == 400 && http_server::here().full()) to.status = 413;
    const char* why = to.status == 404   ? "there is nothing here"
                      : to.status == 413 ? "the request is too large"
                                         : "the request cannot be read";
    fail(to, {to.status, fmt::format("{}: {} {}", why, from.method, from.path)});
  });
}

// Waits for SIGINT or SIGTERM, which are blocked in all threads, and lets requests end.
void stop_on_signal(engine& decoder, http_server& http, unsigned drain) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  int which;
  sigwait(&ends, &which);
  decoder.drain();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(drain);
  const timespec tenth{0, 100'000'000};
  while (!decoder.idle() && std::chrono::steady_clock::now() < until)
    if (sigtimedwait(&ends, nullptr, &tenth) > 0) break;  // a second signal
  decoder.stop();
  http.finish();
}

void serve(const program_options& o) {
  engine decoder(o.backend == "cpu" ? make_cpu_decoder(o) : make_llama_cpp_decoder(o), o.requests,
                 o.waiting, memory_for(o), o.metrics);
  const served by(decoder, o);
  // A monitor and a request that is refused need a connection, too.
  const http_limits limits{.body = 65536 + 16 * o.context,
                           .connections = o.requests + o.waiting + 16};
  allow_files(limits.connections + 64);
  http_server http(limits);
  answer_completions(http, by);
  answer_questions(http, by, o);
  answer_failures(http, o, limits.body);

  const int port = http.bind(o.host, o.port);
  if (port < 0) throw error(fmt::format("{}:{}", o.host, o.port), "", "cannot be listened to");
  std::thread stopper = start_thread([&] { stop_on_signal(decoder, http, o.drain); });
  std::printf("listening on http://%s:%d\n", o.host.c_str(), port);
  std::fflush(stdout);
  http.listen_after_bind();
  pthread_kill(stopper.native_handle(), SIGTERM);  // if it does not stop because of one
  stopper.join();
}

void add_options(CLI::App& app, program_options& o) {
  app.add_option("--backend", o.backend, "cpu, or llama.cpp where there is libllama")
      ->check(CLI::IsMember({"cpu", "llama.cpp"}))
      ->capture_default_str();
  app.add_option("--target", o.target, "GGUF file of the target model")
      ->required()
      ->type_name("FILE");
  app.add_option("--draft", o.draft, "GGUF file of a draft model with the same vocabulary")
      ->type_name("FILE");
  app.add_option("--head", o.head, "GGUF file of a draft head of the target (--backend cpu)")
      ->type_name("FILE");
  app.add_option("--gamma", o.gamma, "Tokens drafted in a step at most")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--per-request-spec-decode-metrics", o.metrics,
                 "What an answer says of its drafts, as vLLM does: none, summary, or detailed with "
                 "every step")
      ->transform(CLI::CheckedTransformer(step_metrics_names))
      ->default_str("summary");
  app.add_option_function<double>(
         "--synthetic-acceptance-length",
         [&o](double length) { o.synthetic = specagg::synthetic_acceptance{length}; },
         "For benchmarks: tokens a step has on average, at most gamma + 1, whatever the models "
         "say; texts have no law")
      ->type_name("NUMBER")
      ->check(CLI::Range(1.0, 33.0));
  app.add_option(
         "--synthetic-acceptance-rates", o.synthetic_rates,
         "The same by position: how often at least the first, the first two, ... drafted tokens "
         "are accepted; at most gamma numbers, none above the one before it")
      ->type_name("NUMBER,...")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0))
      ->excludes("--synthetic-acceptance-length");
  app.add_option("--requests", o.requests, "Requests decoded at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--queue", o.waiting, "Requests that wait at most; more are answered 503")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--context", o.context, "Tokens of a request, with its answer")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  app.add_option("--memory", o.memory,
                 "MiB that requests may have together (--backend cpu) [half of the machine's]")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--threads", o.threads, "Threads of the models")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--exact-batches", o.llama_cpp.exact_batches,
                 "Compute in calls of so many tokens, so that texts do not depend on other "
                 "requests (--backend llama.cpp; those of cpu never do)")
      ->check(CLI::Range(1, 128));
  app.add_option("--rpc", o.llama_cpp.rpc,
                 "RPC servers that hold the models and compute (--backend llama.cpp)")
      ->type_name("HOST:PORT,...");
  app.add_option("--host", o.host, "Address; one that is not this machine's own needs a key")
      ->capture_default_str();
  app.add_option("--port", o.port, "0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--api-key", o.key,
                 "Key that clients must send; better in the environment, which others cannot read")
      ->envname("SPECAGG_API_KEY");
  app.add_option("--drain", o.drain,
                 "Seconds that requests have to end after SIGTERM, which takes no new ones")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  cli::check_values_of_all(app);
}

}  // namespace

int main(int argc, char** argv) {
  program_options o;
  CLI::App app("An OpenAI-style server with speculative decoding", "specagg-server");
  add_options(app, o);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  try {
    app.parse(argc, argv);
    cli::refuse_without_effect(
        app, {{o.backend == "cpu", "with --backend cpu", {"--exact-batches", "--rpc"}},
              {o.backend != "cpu", "with --backend " + o.backend, {"--head", "--memory"}}});
    if (!o.synthetic_rates.empty())
      o.synthetic = specagg::synthetic_acceptance::of_rates(o.synthetic_rates);
    if (const std::size_t n = o.synthetic_rates.size(); n > o.gamma)
      throw error("--synthetic-acceptance-rates", "",
                  fmt::format("has {} numbers, and --gamma is {}", n, o.gamma));
    if (o.synthetic && !o.synthetic->valid())
      throw error("--synthetic-acceptance-rates", "", "has a number above the one before it");
    if (o.synthetic && o.synthetic->length > double(o.gamma + 1))
      throw error(fmt::format("--synthetic-acceptance-length {:g}", o.synthetic->length), "",
                  fmt::format("--gamma {} has at most {} tokens a step", o.gamma, o.gamma + 1));
    if (o.key.empty() && !is_loopback(o.host))
      throw error("--host " + o.host, "", "needs --api-key");
    if (o.backend == "llama.cpp") spin_for_microseconds(argv);
    serve(o);
    return 0;
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help
  } catch (const std::exception& e) {
    std::fprintf(stderr, "specagg-server: %s\n", e.what());
    return 2;
  }
}
