// SPDX-License-Identifier: Apache-2.0
// The options of both ends of a gRPC connection: credentials, limits, addresses.
#pragma once
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <specagg/config.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN
namespace net {

// TLS unless `insecure`; all fields are PEM text. A server needs a certificate and a key. With an
// authority it requires certificates of its clients, signed by that authority (mutual TLS). A
// client checks the server against the authority, or against the system's authorities if it is
// empty. It sends its own certificate if it has one. The token, if any, must be the same at both
// ends.
struct security {
  bool insecure = false;
  std::string certificate = {}, key = {}, authority = {}, token = {};
};

// The fault of a PEM text that should be a private key (else a certificate), as far as its markers
// show. Empty: no fault is seen.
inline std::string pem_problem(std::string_view text, bool key) {
  const auto has = [&](std::string_view what) { return text.find(what) != std::string_view::npos; };
  const bool has_key = has("PRIVATE KEY-----");
  const bool has_certificate = has("BEGIN CERTIFICATE-----") || has("BEGIN X509 CERTIFICATE-----");
  if (!has("-----BEGIN ")) return "is no PEM text (there is no line -----BEGIN ...-----)";
  if (key && !has_key)
    return has_certificate ? "has a certificate and no private key" : "has no private key";
  if (!key && !has_certificate)
    return has_key ? "has a private key and no certificate" : "has no certificate";
  if (!has("-----END ")) return "is cut off";
  if (key && (has("ENCRYPTED PRIVATE KEY-----") || has("4,ENCRYPTED")))
    return "is protected by a passphrase, which cannot be asked for here: write the key without "
           "one";
  return {};
}

// The limits that one end of a connection, or a server, sets to its peers.
struct limits {
  std::size_t most_message_bytes = 1 << 20;  // a longer message ends the connection
  std::size_t most_queued_bytes = 4 << 20;   // queued for one peer
  std::size_t most_connections = 64;
  double messages_per_second = 5000;  // from one peer; twice as many in a burst
  double silence_seconds = 20;        // a connection ends if nothing comes for this long
};

namespace detail {

// Takes the same time for a wrong token as for a right one, so that the time reveals nothing.
inline bool same(std::string_view a, std::string_view b) {
  unsigned difference = a.size() != b.size();
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= unsigned(a[i] ^ b[i % std::max<std::size_t>(b.size(), 1)]);
  return difference == 0;
}

void keep_alive(auto&& set) {
  set(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}
// gRPC aborts the program if a header has any other character.
inline const std::string& checked(const std::string& token) {
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; }))
    throw error("the token", "", "has blanks, or characters that are not ASCII");
  return token;
}
inline std::shared_ptr<grpc::ServerCredentials> server_credentials(const std::string& certificate,
                                                                   const std::string& key,
                                                                   const std::string& authority) {
  grpc::SslServerCredentialsOptions o(
      authority.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                        : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  o.pem_root_certs = authority;
  o.pem_key_cert_pairs.push_back({key, certificate});
  return grpc::SslServerCredentials(o);
}
// gRPC shows that it cannot use credentials only by a server that does not start. So a server
// listens here for a moment, at an address of this machine. If no server starts even without
// credentials, nothing is known, and the answer is yes.
inline bool usable(const std::string& certificate, const std::string& key,
                   const std::string& authority) {
  const auto starts = [](const std::shared_ptr<grpc::ServerCredentials>& with) {
    grpc::ServerBuilder builder;
    int port = 0;
    grpc::CallbackGenericService nothing;
    builder.RegisterCallbackGenericService(&nothing);
    builder.AddListeningPort("127.0.0.1:0", with, &port);
    const auto server = builder.BuildAndStart();
    if (server) server->Shutdown(std::chrono::system_clock::now());
    return server != nullptr && port != 0;
  };
  return starts(server_credentials(certificate, key, authority)) ||
         !starts(grpc::InsecureServerCredentials());
}
// Throws specagg::error for credentials that gRPC cannot use. gRPC itself says no more than "empty
// address list" about such credentials.
inline void check_credentials(const security& s) {
  if (s.insecure) return;
  const auto check = [](const char* what, const std::string& text, bool key) {
    const std::string problem = text.empty() ? "" : pem_problem(text, key);
    if (!problem.empty()) throw error(what, "", problem);
  };
  check("the certificate", s.certificate, false);
  check("the key", s.key, true);
  check("the authority", s.authority, false);
  if (s.certificate.empty() && s.key.empty()) return;
  if (!usable(s.certificate, s.key, ""))
    throw error("the certificate and the key", "",
                "do not belong together, or one of them is damaged");
  if (!s.authority.empty() && !usable(s.certificate, s.key, s.authority))
    throw error("the authority", "", "is damaged: no certificate can be read from it");
}

}  // namespace detail

// The probable cause if gRPC reports that a client cannot connect; empty if no cause is known.
[[nodiscard]] inline std::string probable_cause(std::string_view report, const security& s) {
  const auto says = [&](std::string_view what) {
    return report.find(what) != std::string_view::npos;
  };
  if (says("certificate verify failed"))
    return s.authority.empty()
               ? "none of the system's authorities has signed the server's certificate, or it has "
                 "expired"
               : "the authority has not signed the server's certificate, or it has expired";
  if (says("not in peer certificate"))
    return "the server's certificate is for another name than this address";
  if (says("wrong version number")) return "the server does not speak TLS";
  if (says("empty address list"))
    return "the authority is damaged: no certificate can be read from it";
  const bool hung_up = says("Socket closed") || says("onnection reset") || says("Broken pipe");
  if (!says("failed to connect") || !hung_up) return {};
  if (s.insecure) return "the server hangs up: it may want TLS";
  return s.certificate.empty()
             ? "the server hangs up: it may want a certificate of this end (mutual TLS)"
             : "the server hangs up: its authority may not have signed this end's certificate";
}

namespace detail {

// gRPC would use another port for a number above 65535, and 443 if there is none.
inline const std::string& checked_address(const std::string& address, unsigned lowest_port) {
  if (address.starts_with("unix:")) return address;
  const std::size_t colon = std::min(address.rfind(':'), address.size());
  const std::string host = address.substr(0, colon),
                    port = address.substr(std::min(colon + 1, address.size()));
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (host.empty() || colon == address.size() ||
      (!bracketed && host.find(':') != std::string::npos))
    throw error(address, "", "is neither HOST:PORT, [IPV6]:PORT nor unix:PATH");
  unsigned number = 0;
  const auto [end, failure] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (failure != std::errc() || end != port.data() + port.size() || number < lowest_port ||
      number > 65535)
    throw error(address, "port",
                "\"" + port + "\" is no number from " + std::to_string(lowest_port) + " to 65535");
  return address;
}

}  // namespace detail

}  // namespace net
SPECAGG_END
