// SPDX-License-Identifier: Apache-2.0
// The end that opens connections.
#pragma once
#include <grpc/grpc.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <specagg/sites/net/grpc/stream.hpp>

SPECAGG_BEGIN
namespace net {
namespace detail {

class client_stream final
    : public stream<grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  client_stream(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                const limits& l, accept_function accept,
                std::function<void(const std::string&)> ended)
      : stream(l), stub_(channel), accept_(std::move(accept)), ended_(std::move(ended)) {
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    stub_.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
  }
  void begin() {
    const std::lock_guard lock(mutex_);
    self_ = shared_from_this();
    AddHold();  // operations begin outside gRPC's own calls, until end()
    StartCall();
  }
  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return lost();
    if (!listen(accept_)) close("nobody listens");
  }
  void OnDone(const grpc::Status& s) override {
    const auto ended = std::move(ended_);
    const std::string why =
        s.ok() ? "the other end closed the connection" : printable(s.error_message(), 1000);
    done(why);
    try {
      ended(why);
    } catch (const std::exception&) {
    }
  }

 private:
  void all_sent() override { StartWritesDone(); }  // then the server ends the stream
  void finish() override { RemoveHold(); }
  void cancel() override { context_.TryCancel(); }
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  accept_function accept_;
  std::function<void(const std::string&)> ended_;
};

}  // namespace detail

// Connects to one address, as often as connect() is called. Its destructor cuts the connection and
// waits for ended(), so accept() and ended() must not call the destructor. The constructor throws
// specagg::error for credentials that cannot be used.
class client {
 public:
  client(const std::string& address, const security& s, const limits& l)
      : address_(detail::checked_address(address, 1)),
        token_(detail::checked(s.token)),
        limits_(l),
        security_(s) {
    // gRPC stays until the program ends: shut down by the last channel on one of its own threads,
    // it aborts.
    [[maybe_unused]] static const bool stays = (grpc_init(), true);
    // what remains only explains why there is no connection
    security_.key.clear();
    security_.token.clear();
    detail::check_credentials(s);
    credentials_ = credentials(s);
    arguments_.SetMaxReceiveMessageSize(int(l.most_message_bytes));
    detail::keep_alive([&](const char* name, int value) { arguments_.SetInt(name, value); });
    arguments_.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    // the time limit of an attempt to connect
    arguments_.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
    arguments_.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    arguments_.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // a new TCP connection each time: bytes that were lost or damaged may have spoilt the last
    arguments_.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
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
  // Begins to connect. accept() is called when the connection is made. ended(why) is called when it
  // is over or cannot be made; only then may connect() be called again. Both are called on gRPC's
  // threads.
  void connect(accept_function accept, std::function<void(const std::string&)> ended) {
    const std::lock_guard lock(all_->mutex);
    if (all_->quit) return;
    channel_ = grpc::CreateCustomChannel(address_, credentials_, arguments_);
    const auto s = std::make_shared<stream_type>(
        channel_, token_, limits_, std::move(accept),
        [all = all_, with = security_, ended = std::move(ended)](const std::string& why) {
          const is_over last{*all};
          const std::string cause = net::probable_cause(why, with);
          ended(cause.empty() ? why : cause + " (" + why + ")");
        });
    all_->stream = s;
    ++all_->under_way;
    s->begin();
  }
  void close(const std::string& why) {  // first sends what is queued
    if (const auto s = stream()) s->close(why);
  }
  void tick() {  // every 20 to 50 ms
    if (const auto s = stream()) s->tick();
  }

 private:
  using stream_type = detail::client_stream;
  struct connections {
    std::mutex mutex;
    std::condition_variable ended;
    std::weak_ptr<stream_type> stream;
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
  std::shared_ptr<stream_type> stream() {
    const std::lock_guard lock(all_->mutex);
    return all_->stream.lock();
  }
  static std::shared_ptr<grpc::ChannelCredentials> credentials(const security& s) {
    if (s.insecure) return grpc::InsecureChannelCredentials();
    return grpc::SslCredentials({s.authority, s.key, s.certificate});
  }
  const std::string address_, token_;
  const limits limits_;
  security security_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  grpc::ChannelArguments arguments_;
  std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<connections> all_ = std::make_shared<connections>();
};

}  // namespace net
SPECAGG_END
