// SPDX-License-Identifier: Apache-2.0
// Messages between two sites over gRPC: one bidirectional stream for each connection, one message of site/message.hpp
// in each frame, its bytes as they are (no protocol buffers). The only header that names gRPC.
//
// Bounded: of a peer, one message is in memory at a time, none longer than limits::most_message_bytes; a peer that
// sends more messages a second than it may is read more slowly, and TCP makes it wait. Towards a peer that does not
// read, most_queued_bytes wait, and what comes then is dropped. Nothing is inflated: a small message cannot become a
// large one. Dead peers are found by HTTP/2 pings, silent ones by the clock.
//
// No exception of a listener gets into gRPC: it ends the connection.
#pragma once
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <specagg/error.hpp>
#include <specagg/net/transport.hpp>

SPECAGG_BEGIN
namespace net {

// TLS unless `insecure`; all as PEM text. A server needs certificate and key; with an authority it wants certificates
// of its clients, signed by it (mutual TLS). A client checks the server against the authority, or the system's if it is
// empty, and shows its own certificate if it has one. The token, if any, must be the same at both.
struct security {
  bool insecure = false;
  std::string certificate = {}, key = {}, authority = {}, token = {};
};

struct limits {
  std::size_t most_message_bytes = 1 << 20;
  std::size_t most_queued_bytes = 4 << 20;  // towards one peer
  std::size_t most_connections = 64;
  double messages_per_second = 5000;  // of one peer; twice as many in a burst
  double silence_seconds = 20;        // a connection on which nothing comes for so long ends
};

namespace detail {

inline constexpr char method[] = "/specagg.Sites/Connect";
inline constexpr std::size_t message_overhead = 256;  // memory of a queued message besides its bytes
inline constexpr double closing_seconds = 3;          // until a connection that is to end is cut

// What both ends of a stream do. Reactor: gRPC's server or client reactor. Lives until gRPC is done with it.
template <class Reactor>
class stream : public Reactor, public outlet, public std::enable_shared_from_this<stream<Reactor>> {
 public:
  explicit stream(const limits& l) : limits_(l), allowance_(2 * l.messages_per_second) {}

  void send(std::span<const std::uint8_t> bytes) override {
    const std::lock_guard lock(mutex_);
    const std::size_t size = bytes.size() + message_overhead;
    if (!open_ || closing_ || queued_ + size > limits_.most_queued_bytes) return;
    const grpc::Slice slice(bytes.data(), bytes.size());
    out_.emplace_back(&slice, 1), queued_ += size;
    if (out_.size() == 1) this->StartWrite(&out_.front());
  }
  void close(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    begin_to_close(why);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return lost();
    std::shared_ptr<listener> to;
    {
      const std::lock_guard lock(mutex_);
      listening_ = true, to = listener_;
    }
    try {
      std::vector<grpc::Slice> slices;
      if (in_.Dump(&slices).ok()) {
        bytes_.clear();
        for (const auto& s : slices) bytes_.insert(bytes_.end(), s.begin(), s.end());
        in_.Clear();
        to->received(bytes_);
      }
    } catch (const std::exception&) {
      close("an error at the other end");
    }
    const std::lock_guard lock(mutex_);
    allowance_ = std::min(2 * limits_.messages_per_second, allowance_ + limits_.messages_per_second * since(refilled_));
    heard_ = refilled_ = clock::now(), listening_ = false;
    if (!open_) return;
    if ((allowance_ -= 1) > 0) this->StartRead(&in_);
    else paused_ = true;
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    queued_ -= out_.front().Length() + message_overhead, out_.pop_front();
    if (!ok) out_.clear(), queued_ = 0;
    if (!open_) return;
    if (!out_.empty()) this->StartWrite(&out_.front());
    else if (closing_) all_sent();
  }
  // Every 20 ms or so: reads on, gives up what takes too long.
  void tick() {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    if (closing_ && since(closing_since_) > closing_seconds) cancel();  // the other end does not read, or not answer
    if (!open_) return;
    if (!listening_ && since(heard_) > limits_.silence_seconds) begin_to_close("nothing was heard for too long");
    if (open_ && paused_ && since(refilled_) > 0.02) {
      allowance_ += limits_.messages_per_second * since(refilled_), refilled_ = clock::now(), paused_ = false;
      this->StartRead(&in_);
    }
  }
  void cut() {
    const std::lock_guard lock(mutex_);
    if (!gone_) cancel();
  }

 protected:
  static double since(clock::time_point t) { return std::chrono::duration<double>(clock::now() - t).count(); }
  // Asks who listens and begins to read; false if nobody does.
  bool listen(const accept_function& accept) {
    std::shared_ptr<stream> self;
    std::shared_ptr<listener> who;
    {
      const std::lock_guard lock(mutex_);
      self = self_;
    }
    try {
      who = accept(self);
    } catch (const std::exception&) {
    }
    const std::lock_guard lock(mutex_);
    listener_ = who, heard_ = clock::now();
    if (who && open_) this->StartRead(&in_);
    return who != nullptr;
  }
  virtual void all_sent() = 0;  // and nothing more will be; under the lock
  virtual void finish() = 0;    // no operation is begun after it; under the lock
  virtual void cancel() = 0;    // what is under way fails; under the lock, not after OnDone
  void begin_to_close(const std::string& why) {
    if (!open_ || closing_) return;
    closing_ = true, why_ = why, closing_since_ = clock::now();
    if (out_.empty()) all_sent();
  }
  void end() {
    if (!open_) return;
    open_ = false;
    if (!closing_) closing_ = true, closing_since_ = clock::now();
    finish();
  }
  void lost() {
    const std::lock_guard lock(mutex_);
    end();
  }
  // The last that gRPC calls. `this` may be no more when it returns.
  void done(const std::string& status) {
    std::shared_ptr<stream> self;
    std::shared_ptr<listener> listener;
    std::string why;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true, open_ = false;
      self.swap(self_), listener.swap(listener_);
      why = why_.empty() ? status : why_;
    }
    try {
      if (listener) listener->closed(why);
    } catch (const std::exception&) {
    }
  }

  const limits limits_;
  std::mutex mutex_;
  std::shared_ptr<listener> listener_;
  std::shared_ptr<stream> self_;
  grpc::ByteBuffer in_;
  std::vector<std::uint8_t> bytes_;
  std::deque<grpc::ByteBuffer> out_;
  std::size_t queued_ = 0;
  bool open_ = true, closing_ = false, paused_ = false, listening_ = false, gone_ = false;
  std::string why_;
  double allowance_;
  clock::time_point heard_ = clock::now(), refilled_ = heard_, closing_since_;
};

class server_stream final : public stream<grpc::ServerGenericBidiReactor> {
 public:
  server_stream(grpc::CallbackServerContext* context, const limits& l) : stream(l), context_(context) {}
  // forget(this): gRPC is done with it.
  void begin(const accept_function& accept, std::function<void(server_stream*)> forget) {
    keep(std::move(forget));
    StartSendInitialMetadata();
    if (!listen(accept)) close("nobody listens");
  }
  void refuse(const grpc::Status& why) {  // instead of begin()
    keep([](server_stream*) {});
    const std::lock_guard lock(mutex_);
    status_ = why, end();
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
    self_ = shared_from_this(), forget_ = std::move(forget);
  }
  void all_sent() override { end(); }
  void finish() override {
    if (!why_.empty()) status_ = grpc::Status(grpc::StatusCode::ABORTED, why_);
    Finish(status_);
  }
  void cancel() override { context_->TryCancel(); }
  grpc::CallbackServerContext* context_;  // gone after OnDone
  grpc::Status status_;
  std::function<void(server_stream*)> forget_;
};

class client_stream final : public stream<grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  client_stream(const std::shared_ptr<grpc::Channel>& channel, const std::string& token, const limits& l,
                accept_function accept, std::function<void(const std::string&)> ended)
      : stream(l), stub_(channel), accept_(std::move(accept)), ended_(std::move(ended)) {
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    stub_.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
  }
  void begin() {
    const std::lock_guard lock(mutex_);
    self_ = shared_from_this();
    AddHold();  // operations are begun outside gRPC's own calls, until end()
    StartCall();
  }
  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return lost();
    if (!listen(accept_)) close("nobody listens");
  }
  void OnDone(const grpc::Status& s) override {
    const auto ended = std::move(ended_);
    const std::string why = s.ok() ? "the other end closed the connection" : s.error_message();
    done(why);
    try {
      ended(why);
    } catch (const std::exception&) {
    }
  }

 private:
  void all_sent() override { StartWritesDone(); }  // the server ends the stream
  void finish() override { RemoveHold(); }
  void cancel() override { context_.TryCancel(); }
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  accept_function accept_;
  std::function<void(const std::string&)> ended_;
};

// As long for a wrong token as for a right one.
inline bool same(std::string_view a, std::string_view b) {
  unsigned difference = a.size() != b.size();
  for (std::size_t i = 0; i < a.size(); ++i) difference |= unsigned(a[i] ^ b[i % std::max<std::size_t>(b.size(), 1)]);
  return difference == 0;
}

template <class Arguments>
void keep_alive(Arguments&& set) {
  set(GRPC_ARG_KEEPALIVE_TIME_MS, 10000), set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1), set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}
// gRPC aborts the program at a header with any other character.
inline const std::string& checked(const std::string& token) {
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; }))
    throw error("the token", "", "has blanks, or characters that are not ASCII");
  return token;
}
// gRPC takes another port for one beyond 65535, and 443 for none.
inline const std::string& checked_address(const std::string& address, unsigned lowest_port) {
  if (address.starts_with("unix:")) return address;
  const std::size_t colon = std::min(address.rfind(':'), address.size());
  const std::string host = address.substr(0, colon), port = address.substr(std::min(colon + 1, address.size()));
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (host.empty() || colon == address.size() || (!bracketed && host.find(':') != std::string::npos))
    throw error(address, "", "is neither HOST:PORT, [IPV6]:PORT nor unix:PATH");
  unsigned number = 0;
  const auto [end, failure] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (failure != std::errc() || end != port.data() + port.size() || number < lowest_port || number > 65535)
    throw error(address, "port", "\"" + port + "\" is no number from " + std::to_string(lowest_port) + " to 65535");
  return address;
}

}  // namespace detail

// Accepts connections until it is destroyed, which ends them all and waits for their listeners' last calls.
// accept(outlet) says who listens, or nobody; it is called on gRPC's threads, several at a time. There are few of them:
// who keeps one for long keeps other connections waiting.
class server {
 public:
  // address: "host:port", "[IPv6]:port", port 0 for any; or "unix:path". Throws specagg::error if it cannot listen
  // there.
  server(const std::string& address, const security& s, const limits& l, accept_function accept)
      : service_(detail::checked(s.token), l, std::move(accept)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(detail::checked_address(address, 0), credentials(s), &port_);
    builder.RegisterCallbackGenericService(&service_);
    builder.SetMaxReceiveMessageSize(int(l.most_message_bytes));
    detail::keep_alive([&](const char* name, int value) { builder.AddChannelArgument(name, value); });
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60000);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    server_ = builder.BuildAndStart();
    if (!server_ || (port_ == 0 && address.rfind("unix:", 0) != 0))
      throw error(address, "", "cannot be listened to (in use, no such address, or a bad certificate or key)");
  }
  ~server() { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200)); }
  int port() const { return port_; }
  void tick() { service_.tick(); }  // every 20 ms or so
  std::size_t connections() { return service_.connections(); }

 private:
  class service final : public grpc::CallbackGenericService {
   public:
    service(std::string token, const limits& l, accept_function accept)
        : token_(std::move(token)), limits_(l), accept_(std::move(accept)) {}
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
      const auto s = std::make_shared<detail::server_stream>(context, limits_);
      const auto refuse = [&](grpc::StatusCode code, const char* why) {
        s->refuse(grpc::Status(code, why));
        return s.get();
      };
      const auto& given = context->client_metadata();
      const auto found = given.find("authorization");
      const std::string_view shown =
          found == given.end() ? std::string_view() : std::string_view(found->second.data(), found->second.size());
      if (!token_.empty() && !detail::same(shown, "Bearer " + token_))
        return refuse(grpc::StatusCode::UNAUTHENTICATED, "the token is missing or wrong");
      if (context->method() != detail::method) return refuse(grpc::StatusCode::UNIMPLEMENTED, "no such method");
      {
        const std::lock_guard lock(mutex_);
        if (streams_.size() >= limits_.most_connections)
          return refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "there are too many connections");
        streams_.insert(s);
      }
      s->begin(accept_, [this](detail::server_stream* gone) {
        const std::lock_guard lock(mutex_);
        std::erase_if(streams_, [&](const auto& x) { return x.get() == gone; });
      });
      return s.get();
    }
    void tick() {
      std::vector<std::shared_ptr<detail::server_stream>> all;
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
    std::set<std::shared_ptr<detail::server_stream>> streams_;
  };

  static std::shared_ptr<grpc::ServerCredentials> credentials(const security& s) {
    if (s.insecure) return grpc::InsecureServerCredentials();
    grpc::SslServerCredentialsOptions o(s.authority.empty()
                                            ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                            : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    o.pem_root_certs = s.authority;
    o.pem_key_cert_pairs.push_back({s.key, s.certificate});
    return grpc::SslServerCredentials(o);
  }

  service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// One address to connect to, again and again. Its destructor cuts the connection and waits for ended(), so neither
// accept() nor ended() may call it.
class client {
 public:
  client(const std::string& address, const security& s, const limits& l)
      : token_(detail::checked(s.token)), limits_(l) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(int(l.most_message_bytes));
    detail::keep_alive([&](const char* name, int value) { arguments.SetInt(name, value); });
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);  // how long it tries to connect
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    channel_ = grpc::CreateCustomChannel(detail::checked_address(address, 1), credentials(s), arguments);
  }
  ~client() {
    std::unique_lock lock(all_->mutex);
    all_->quit = true;
    if (const auto s = all_->stream.lock()) {
      lock.unlock();
      s->cut();
      lock.lock();
    }
    all_->ended.wait(lock, [&] { return all_->under_way == 0; });
  }
  // Begins to connect. accept() is called once the connection is made; ended(why) once it is over, or cannot be made:
  // only then call this again. Both on gRPC's threads.
  void connect(accept_function accept, std::function<void(const std::string&)> ended) {
    const std::lock_guard lock(all_->mutex);
    if (all_->quit) return;
    const auto s = std::make_shared<detail::client_stream>(
        channel_, token_, limits_, std::move(accept), [all = all_, ended = std::move(ended)](const std::string& why) {
          const is_over last{*all};
          ended(why);
        });
    all_->stream = s, ++all_->under_way;
    s->begin();
  }
  void close(const std::string& why) {  // what was sent arrives first
    if (const auto s = stream()) s->close(why);
  }
  void tick() {  // every 20 ms or so
    if (const auto s = stream()) s->tick();
  }

 private:
  struct connections {
    std::mutex mutex;
    std::condition_variable ended;
    std::weak_ptr<detail::client_stream> stream;
    int under_way = 0;
    bool quit = false;
  };
  struct is_over {
    connections& all;
    ~is_over() {
      const std::lock_guard lock(all.mutex);
      --all.under_way;
      all.ended.notify_all();
    }
  };
  std::shared_ptr<detail::client_stream> stream() {
    const std::lock_guard lock(all_->mutex);
    return all_->stream.lock();
  }
  static std::shared_ptr<grpc::ChannelCredentials> credentials(const security& s) {
    if (s.insecure) return grpc::InsecureChannelCredentials();
    return grpc::SslCredentials({s.authority, s.key, s.certificate});
  }
  const std::string token_;
  const limits limits_;
  std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<connections> all_ = std::make_shared<connections>();
};

}  // namespace net
SPECAGG_END
