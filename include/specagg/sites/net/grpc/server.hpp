// SPDX-License-Identifier: Apache-2.0
// The end that accepts connections.
#pragma once
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <specagg/sites/net/grpc/stream.hpp>

SPECAGG_BEGIN
namespace net {
namespace detail {

class server_stream final : public stream<grpc::ServerGenericBidiReactor> {
 public:
  server_stream(grpc::CallbackServerContext* context, const limits& l)
      : stream(l), context_(context) {}
  // forget(this) is called when gRPC has finished with it.
  void begin(const accept_function& accept, std::function<void(server_stream*)> forget) {
    keep(std::move(forget));
    StartSendInitialMetadata();
    if (!listen(accept)) close("nobody listens");
  }
  void refuse(const grpc::Status& why) {  // instead of begin()
    keep([](server_stream*) {});
    const std::lock_guard lock(mutex_);
    status_ = why;
    end();
  }
  void OnCancel() override { lost(); }
  void OnDone() override {
    std::function<void(server_stream*)> forget;
    {
      const std::lock_guard lock(mutex_);
      forget.swap(forget_);
    }
    forget(this);
    done("the other end is gone");
  }

 private:
  void keep(std::function<void(server_stream*)> forget) {
    const std::lock_guard lock(mutex_);
    self_ = shared_from_this();
    forget_ = std::move(forget);
  }
  void all_sent() override { end(); }
  void finish() override {
    if (!why_.empty()) status_ = grpc::Status(grpc::StatusCode::ABORTED, why_);
    Finish(status_);
  }
  void cancel() override { context_->TryCancel(); }
  grpc::CallbackServerContext* context_;  // not valid after OnDone
  grpc::Status status_;
  std::function<void(server_stream*)> forget_;
};

}  // namespace detail

// Accepts connections until it is destroyed. The destructor ends all connections and waits for the
// last calls of their listeners. accept(outlet) returns the listener, or null. It is called on
// gRPC's threads, several at a time. There are few of these threads, so an accept() that takes long
// makes other connections wait.
class server {
 public:
  // address: "host:port", "[IPv6]:port", port 0 for any free port; or "unix:path". Throws
  // specagg::error if it cannot listen there, and for credentials that cannot be used.
  server(const std::string& address, const security& s, const limits& l, accept_function accept)
      : service_(detail::checked(s.token), l, std::move(accept)) {
    detail::check_credentials(s);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(detail::checked_address(address, 0),
                             s.insecure
                                 ? grpc::InsecureServerCredentials()
                                 : detail::server_credentials(s.certificate, s.key, s.authority),
                             &port_);
    builder.RegisterCallbackGenericService(&service_);
    builder.SetMaxReceiveMessageSize(int(l.most_message_bytes));
    detail::keep_alive(
        [&](const char* name, int value) { builder.AddChannelArgument(name, value); });
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60000);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    server_ = builder.BuildAndStart();
    if (!server_ || (port_ == 0 && address.rfind("unix:", 0) != 0))
      throw error(address, "", "cannot be listened to (in use, or no such address)");
  }
  ~server() {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  }
  // The port that the server listens to. If the address says port 0, the system chooses the port.
  int port() const { return port_; }
  void tick() { service_.tick(); }  // every 20 ms or so
  std::size_t connections() { return service_.connections(); }

 private:
  class service final : public grpc::CallbackGenericService {
   public:
    using stream = detail::server_stream;
    service(std::string token, const limits& l, accept_function accept)
        : token_(std::move(token)), limits_(l), accept_(std::move(accept)) {}
    grpc::ServerGenericBidiReactor* CreateReactor(
        grpc::GenericCallbackServerContext* context) override {
      const auto s = std::make_shared<stream>(context, limits_);
      const auto refuse = [&](grpc::StatusCode code, const char* why) {
        s->refuse(grpc::Status(code, why));
        return s.get();
      };
      const auto& given = context->client_metadata();
      const auto found = given.find("authorization");
      const std::string_view shown =
          found == given.end() ? std::string_view()
                               : std::string_view(found->second.data(), found->second.size());
      if (!token_.empty() && !detail::same(shown, "Bearer " + token_))
        return refuse(grpc::StatusCode::UNAUTHENTICATED, "the token is missing or wrong");
      if (context->method() != detail::method)
        return refuse(grpc::StatusCode::UNIMPLEMENTED, "no such method");
      {
        const std::lock_guard lock(mutex_);
        if (streams_.size() >= limits_.most_connections)
          return refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "there are too many connections");
        streams_.insert(s);
      }
      s->begin(accept_, [this](stream* gone) {
        const std::lock_guard lock(mutex_);
        std::erase_if(streams_, [&](const auto& x) { return x.get() == gone; });
      });
      return s.get();
    }
    void tick() {
      std::vector<std::shared_ptr<stream>> all;
      {
        const std::lock_guard lock(mutex_);
        all.assign(streams_.begin(), streams_.end());
      }
      for (const auto& s : all) s->tick();
    }
    std::size_t connections() {
      const std::lock_guard lock(mutex_);
      return streams_.size();
    }

   private:
    const std::string token_;
    const limits limits_;
    const accept_function accept_;
    std::mutex mutex_;
    std::set<std::shared_ptr<stream>> streams_;
  };

  service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace net
SPECAGG_END
