// SPDX-License-Identifier: Apache-2.0
// Messages between two sites over gRPC: one bidirectional stream for each connection, one message of site/message.hpp
// in each frame, its bytes as they are (no protocol buffers). Only net/grpc/ names gRPC.
//
// Bounded: of a peer, one message is in memory at a time, none longer than limits::most_message_bytes; a peer that
// sends more messages a second than it may is read more slowly, and TCP makes it wait. Towards a peer that does not
// read, most_queued_bytes wait, and what comes then is dropped. Nothing is inflated: a small message cannot become a
// large one. Dead peers are found by HTTP/2 pings, silent ones by the clock.
//
// No exception of a listener gets into gRPC: it ends the connection.
#pragma once
#include <specagg/net/grpc/client.hpp>
#include <specagg/net/grpc/server.hpp>
