// SPDX-License-Identifier: Apache-2.0
// The options of both ends of a gRPC connection: credentials, limits, addresses.
#pragma once
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

#include <specagg/config.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN
namespace net {

// TLS unless `insecure`; all fields are PEM text. A server needs a certificate and a key. With an authority it requires
// certificates of its clients, signed by that authority (mutual TLS). A client checks the server against the authority,
// or against the system's authorities if it is empty. It sends its own certificate if it has one. The token, if any,
// must be the same at both ends.
struct security {
  bool insecure = false;
  std::string certificate = {}, key = {}, authority = {}, token = {};
};

struct limits {
  std::size_t most_message_bytes = 1 << 20;
  std::size_t most_queued_bytes = 4 << 20;  // queued for one peer
  std::size_t most_connections = 64;
  double messages_per_second = 5000;  // from one peer; twice as many in a burst
  double silence_seconds = 20;        // a connection ends if nothing comes for this long
};

namespace detail {

// Takes the same time for a wrong token as for a right one, so that the time reveals nothing.
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
// gRPC aborts the program if a header has any other character.
inline const std::string& checked(const std::string& token) {
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; }))
    throw error("the token", "", "has blanks, or characters that are not ASCII");
  return token;
}
// gRPC would use another port for a number above 65535, and 443 if there is none.
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

}  // namespace net
SPECAGG_END
