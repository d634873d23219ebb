// SPDX-License-Identifier: Apache-2.0
// What links specagg::net: gRPC comes with it. A server, and a client that is not let in.
#include <specagg/sites/net/grpc.hpp>
#include <specagg/sites/net/sessions.hpp>

#include <atomic>
#include <string>
#include <thread>

int main() {
  namespace net = specagg::net;
  net::server server("127.0.0.1:0", {.insecure = true, .token = "secret"}, {},
                     [](const auto&) { return nullptr; });
  net::client client("127.0.0.1:" + std::to_string(server.port()),
                     {.insecure = true, .token = "guess"}, {});
  std::atomic<int> outcome = -1;
  client.connect(
      [](const auto&) { return nullptr; },
      [&](const std::string& why) { outcome = why == "the token is missing or wrong" ? 0 : 1; });
  for (int i = 0; i < 1000 && outcome < 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return outcome;
}
