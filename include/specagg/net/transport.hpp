// SPDX-License-Identifier: Apache-2.0
// What sites need of a network: somebody to give messages to, and somebody to give them to us.
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

using clock = std::chrono::steady_clock;

// How messages leave, to one other end. Any thread may call it. send() does not wait: what a full queue does not hold
// is dropped, and the protocol asks again. close() lets what is queued leave first.
struct outlet {
  virtual ~outlet() = default;
  virtual void send(std::span<const std::uint8_t> bytes) = 0;
  virtual void close(const std::string& why) = 0;
};

// Who listens to a connection, on the transport's threads, one call at a time.
struct listener {
  virtual ~listener() = default;
  virtual void received(std::span<const std::uint8_t> bytes) = 0;
  virtual void closed(const std::string& why) = 0;  // the last call
};
// Who is to listen to a new connection.
using accept_function = std::function<std::shared_ptr<listener>(const std::shared_ptr<outlet>&)>;

}  // namespace net
SPECAGG_END
