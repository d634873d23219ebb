// SPDX-License-Identifier: Apache-2.0
// A server with OpenAI's API over libllama. engine.hpp decodes, request.hpp reads what is asked
// for, http.hpp limits what a client may do. docs/server.md says how to run it.
#include <sys/auxv.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>

#include "../cli/effects.hpp"
#include "../cli/rpc.hpp"
#include "../cli/terminal.hpp"
#include "engine.hpp"
#include "http.hpp"
#include "request.hpp"

namespace {

struct server_options : engine_options {
  std::string host = "127.0.0.1", key, rpc;
  int port = 8080;
};

// The text of one request as it comes, cut only between characters, and before the first stop
// string.
class answer {
 public:
  struct piece {
    std::string text;
    json tokens = json::array(), origins = json::array();  // of the tokens that came
  };
  answer(engine& by, std::shared_ptr<request> asked) : by_(by), asked_(std::move(asked)) {}
  answer(const answer&) = delete;
  ~answer() {
    if (how_ == ended::no) by_.leave(*asked_, stopped_);
  }
  const request& asked() const { return *asked_; }
  ended how() const { return stopped_ ? ended::stop : how_; }
  std::size_t count() const { return count_; }
  // What has come since the last call. Nothing comes once how() is not ended::no.
  piece next() {
    piece p;
    how_ = by_.more(*asked_, count_, new_);
    const std::size_t searched = text_.size();
    for (const emission& e : new_) {
      text_ += by_.tokens().piece(e.token);
      p.tokens.push_back(e.token);
      p.origins.push_back(e.from == origin::accepted ? "draft" : "target");
    }
    count_ += new_.size();
    std::size_t end = find_stop(text_, searched, asked_->stops);
    stopped_ = end != std::string::npos;
    if (!stopped_) end = text_.size();
    if (how() == ended::no)
      end -= std::max(held_back(text_, asked_->stops), cli::unfinished(text_));
    end = std::max(end, sent_);
    p.text = text_.substr(sent_, end - sent_);
    sent_ = end;
    return p;
  }

 private:
  engine& by_;
  std::shared_ptr<request> asked_;
  std::vector<emission> new_;
  std::string text_;
  std::size_t count_ = 0, sent_ = 0;
  ended how_ = ended::no;
  bool stopped_ = false;  // by a stop string
};

using answers = std::deque<answer>;  // one for each prompt

// The JSON of answers, or of a part of them.
class writer {
 public:
  writer(const std::string& model, bool chat, bool stream) : chat_(chat), stream_(stream) {
    static std::atomic<std::uint64_t> number = 0;
    all_["id"] =
        fmt::format("{}-{:x}-{}", chat ? "chatcmpl" : "cmpl", std::time(nullptr), number++);
    all_["object"] = !chat    ? "text_completion"
                     : stream ? "chat.completion.chunk"
                              : "chat.completion";
    all_["created"] = std::time(nullptr);
    all_["model"] = model;
  }
  std::string part(const answer::piece& p, const answer& a, std::size_t index) {
    all_["choices"] = json::array({choice(p, a, index)});
    return text();
  }
  std::string whole(const std::vector<answer::piece>& pieces, const answers& all) {
    all_["choices"] = json::array();
    for (std::size_t i = 0; i < all.size(); ++i)
      all_["choices"].push_back(choice(pieces[i], all[i], i));
    add_usage(all);
    return text();
  }
  std::string usage(const answers& all) {
    all_["choices"] = json::array();
    add_usage(all);
    return text();
  }

 private:
  json choice(const answer::piece& p, const answer& a, std::size_t index) const {
    json c = {{"index", index}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    if (a.how() != ended::no) c["finish_reason"] = a.how() == ended::length ? "length" : "stop";
    if (!chat_) c["text"] = p.text;
    else c[stream_ ? "delta" : "message"] = {{"role", "assistant"}, {"content", p.text}};
    if (a.asked().origins) {
      c["tokens"] = p.tokens;
      c["origins"] = p.origins;
    }
    return c;
  }
  void add_usage(const answers& all) {
    std::size_t before = 0, written = 0;
    for (const answer& a : all) {
      before += a.asked().prompt.size();
      written += a.count();
    }
    all_["usage"] = {{"prompt_tokens", before},
                     {"completion_tokens", written},
                     {"total_tokens", before + written}};
  }
  std::string text() const { return all_.dump(-1, ' ', false, json::error_handler_t::replace); }
  bool chat_, stream_;
  json all_;
};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void fail(httplib::Response& to, const api_error& e) {
  to.status = e.status;
  if (e.status == 503) to.set_header("Retry-After", "1");
  to.set_content(e.text(), "application/json");
}

// Throws api_error if the client may not ask.
void check(const httplib::Request& from, const server_options& o) {
  if (!o.key.empty()) {
    const std::string given = from.get_header_value("Authorization"), right = "Bearer " + o.key;
    // the time does not depend on where they differ
    unsigned different = given.size() != right.size();
    for (std::size_t i = 0; i < given.size(); ++i)
      different |= unsigned(given[i] ^ right[i % right.size()]);
    if (different) throw api_error{401, "the key is missing or wrong", "", "invalid_api_key"};
    // a page that a browser shows must not use a server without a key
  } else if (from.has_header("Origin")) {
    throw api_error{403, "without a key this server answers no pages of a browser"};
  }
  if (from.method == "POST" &&
      !from.get_header_value("Content-Type").starts_with("application/json"))
    throw api_error{415, "Content-Type must be application/json"};
}

// Throws api_error if the body cannot be taken, which is known before it is read. cpp-httplib would
// read one that is too long to its end, wait for one without a length, and make gigabytes of some
// compressed bytes.
void check_body(const httplib::Request& from, std::size_t most) {
  if (from.has_header("Content-Encoding"))
    throw api_error{415, "a body may not have a Content-Encoding"};
  if (from.get_header_value<std::uint64_t>("Content-Length") > most)
    throw api_error{413, "the request is too large"};
  const std::string transfer = from.get_header_value("Transfer-Encoding");
  if (!transfer.empty() && transfer != "chunked")
    throw api_error{400, "Transfer-Encoding must be chunked"};
  const bool has_body = from.method == "POST" || from.method == "PUT" || from.method == "PATCH";
  if (has_body && !from.has_header("Content-Length") && transfer.empty())
    throw api_error{411, "Content-Length is missing"};
}

void answer_whole(engine& by, answers& all, const std::string& model, const httplib::Request& from,
                  httplib::Response& to) {
  std::vector<answer::piece> whole(all.size());
  std::uint64_t seen = 0;
  for (bool more = true; more;) {
    more = false;
    by.wait(seen);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].how() != ended::no) continue;
      const auto p = all[i].next();
      whole[i].text += p.text;
      whole[i].tokens.insert(whole[i].tokens.end(), p.tokens.begin(), p.tokens.end());
      whole[i].origins.insert(whole[i].origins.end(), p.origins.begin(), p.origins.end());
      if (all[i].how() == ended::failed)
        throw api_error{by.stopped() ? 503 : 500, all[i].asked().failure};
      more |= all[i].how() == ended::no;
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
  to.set_content(writer(model, all[0].asked().chat, false).whole(whole, all), "application/json");
}
void answer_in_parts(engine& by, const std::shared_ptr<answers>& all, const std::string& model,
                     httplib::Response& to) {
  const auto write = std::make_shared<writer>(model, all->front().asked().chat, true);
  to.set_header("Cache-Control", "no-cache");
  to.set_chunked_content_provider(
      "text/event-stream",
      [&by, all, write, seen = std::uint64_t(0)](std::size_t, httplib::DataSink& sink) mutable {
        const auto send = [&](std::string line) {
          line += "\n\n";
          return sink.write(line.data(), line.size());
        };
        bool more = false, failed = false;
        by.wait(seen);
        for (std::size_t i = 0; i < all->size(); ++i) {
          answer& a = (*all)[i];
          if (a.how() == ended::no) {
            const auto p = a.next();
            if (a.how() == ended::failed) send("data: " + api_error{500, a.asked().failure}.text());
            else if (!p.text.empty() || !p.tokens.empty() || a.how() != ended::no)
              if (!send("data: " + write->part(p, a, i))) return false;
          }
          more |= a.how() == ended::no;
          failed |= a.how() == ended::failed;
        }
        // a comment, which clients drop
        if (more) return !http_server::here().gone([&] { return send(":"); });
        if (!failed && all->front().asked().usage) send("data: " + write->usage(*all));
        send("data: [DONE]");
        sink.done();
        return true;
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

void serve(const server_options& o) {
  cli::use_rpc_servers(o.rpc);
  engine decoder(o);
  const std::string model = std::filesystem::path(o.target).stem().string();
  const request_limits most{model, o.context, o.gamma, !o.draft.empty(), o.requests + o.waiting};
  std::optional<llama_cpp::chat_template> turns;
  try {
    turns.emplace(decoder.tokens(), o.target);
  } catch (const error&) {  // no chat template: /v1/completions alone
  }
  // A monitor and a request that is refused need a thread, too.
  const http_limits limits{.body = 65536 + 16 * o.context,
                           .connections = o.requests + o.waiting + 16};
  http_server http(limits);
  const auto complete = [&](bool chat) {
    return [&, chat](const httplib::Request& from, httplib::Response& to) {
      const auto asked =
          parse_requests(from.body, chat, most, decoder.tokens(), turns ? &*turns : nullptr);
      if (!decoder.submit(asked))
        throw api_error{503, "all places are taken, and the queue is full"};
      const auto all = std::make_shared<answers>();
      for (const auto& r : asked) all->emplace_back(decoder, r);
      if (asked[0]->stream) answer_in_parts(decoder, all, model, to);
      else answer_whole(decoder, *all, model, from, to);
    };
  };
  http.Post("/v1/completions", complete(false));
  http.Post("/v1/chat/completions", complete(true));
  const json one = {{"id", model}, {"object", "model"}, {"created", 0}, {"owned_by", "local"}};
  http.Get("/v1/models", [&](const httplib::Request&, httplib::Response& to) {
    to.set_content(json{{"object", "list"}, {"data", {one}}}.dump(), "application/json");
  });
  http.Get("/v1/models/(.+)", [&](const httplib::Request& from, httplib::Response& to) {
    if (from.matches[1] != model) throw no_model(from.matches[1], model);
    to.set_content(one.dump(), "application/json");
  });
  http.Get("/health", [](const httplib::Request&, httplib::Response& to) {
    to.set_content(R"({"status":"ok"})", "application/json");
  });
  http.Get("/metrics", [&](const httplib::Request&, httplib::Response& to) {
    to.set_content(decoder.metrics(), "text/plain; version=0.0.4");
  });
  using handled = httplib::Server::HandlerResponse;
  http.set_pre_routing_handler([&](const httplib::Request& from, httplib::Response& to) {
    try {
      if (from.path != "/health") check(from, o);
      check_body(from, limits.body);
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

  const int port = http.bind(o.host, o.port);
  if (port < 0) throw error(fmt::format("{}:{}", o.host, o.port), "", "cannot be listened to");
  std::printf("listening on http://%s:%d\n", o.host.c_str(), port);
  std::fflush(stdout);
  std::thread stopper([&] {  // SIGINT and SIGTERM are blocked in all threads
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    int which;
    sigwait(&ends, &which);
    decoder.stop();
    http.finish();
  });
  http.listen_after_bind();
  pthread_kill(stopper.native_handle(), SIGTERM);  // if it does not stop because of one
  stopper.join();
}

}  // namespace

int main(int argc, char** argv) {
  spin_for_microseconds(argv);
  server_options o;
  CLI::App app("An OpenAI-style server over libllama, with speculative decoding", "server");
  app.add_option("--target", o.target, "GGUF file of the target model")
      ->required()
      ->type_name("FILE");
  app.add_option("--draft", o.draft, "GGUF file of a draft model with the same vocabulary")
      ->type_name("FILE");
  app.add_option("--gamma", o.gamma, "Tokens drafted in a step at most")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--requests", o.requests, "Requests decoded at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--queue", o.waiting, "Requests that wait at most; more are answered 503")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--context", o.context, "Tokens of a request, with its answer")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  app.add_option("--exact-batches", o.exact_batches,
                 "Compute in calls of so many tokens, so that texts do not depend "
                 "on other requests (docs/llama_cpp.md)")
      ->check(CLI::Range(1, 128));
  app.add_option("--threads", o.threads, "Threads of the models")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--rpc", o.rpc, "RPC servers that hold the models and compute (docs/llama_cpp.md)")
      ->type_name("HOST:PORT,...");
  app.add_option("--host", o.host, "Address; one that is not this machine's own needs a key")
      ->capture_default_str();
  app.add_option("--port", o.port, "0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--api-key", o.key,
                 "Key that clients must send; better in the environment, which others cannot read")
      ->envname("SPECAGG_API_KEY");
  cli::check_values_of_all(app);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  try {
    app.parse(argc, argv);
    if (o.key.empty() && !is_loopback(o.host))
      throw error("--host " + o.host, "", "needs --api-key");
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    serve(o);
    return 0;
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help
  } catch (const std::exception& e) {
    std::fprintf(stderr, "server: %s\n", e.what());
    return 2;
  }
}
