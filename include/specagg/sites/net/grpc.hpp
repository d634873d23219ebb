// SPDX-License-Identifier: Apache-2.0
// Messages between two sites over gRPC. There is one bidirectional stream for each connection, and
// one message of sites/message.hpp in each frame, as plain bytes (no protocol buffers). Only
// net/grpc/ uses gRPC.
//
// Memory is bounded. One message of a peer is in memory at a time, and none is longer than
// limits::most_message_bytes. If a peer sends more messages per second than it may, they are read
// more slowly, and TCP makes it wait. If a peer does not read, up to most_queued_bytes wait for it,
// and later messages are dropped. Nothing is decompressed, so a small message cannot become a large
// one. HTTP/2 pings detect dead peers, and a time limit detects silent ones.
//
// An exception of a listener does not reach gRPC: it ends the connection.
#pragma once
#include <specagg/sites/net/grpc/client.hpp>
#include <specagg/sites/net/grpc/server.hpp>
