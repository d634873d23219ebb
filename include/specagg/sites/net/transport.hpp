// SPDX-License-Identifier: Apache-2.0
// The network as sites see it: an outlet for the messages they send, and a listener for the
// messages they get.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <specagg/config.hpp>

SPECAGG_BEGIN
namespace net {

// The clock of all times in net/.
using clock = std::chrono::steady_clock;

// Sends messages to one other end. Any thread may call it. send() does not wait: a message that
// does not fit in the queue is dropped, and the protocol asks for it again. close() first sends
// what is queued.
struct outlet {
  virtual ~outlet() = default;
  virtual void send(std::span<const std::uint8_t> bytes) = 0;
  virtual void close(const std::string& why) = 0;
};

// Receives what a connection brings, on the transport's threads, one call at a time.
struct listener {
  virtual ~listener() = default;
  virtual void received(std::span<const std::uint8_t> bytes) = 0;
  virtual void closed(const std::string& why) = 0;  // the last call
};
// Returns the listener of a new connection.
using accept_function = std::function<std::shared_ptr<listener>(const std::shared_ptr<outlet>&)>;

}  // namespace net
SPECAGG_END
