// SPDX-License-Identifier: Apache-2.0
// All of specagg.hpp, and two sites: the law of DRAGON and the split verification of DSSD, their
// protocols as state machines, and a simulated network. A header of its own, because the protocols
// allocate and use std::function and std::string. For real networks: net/ (docs/two-sites.md).
#pragma once
#include <specagg/specagg.hpp>
#include <specagg/site/aggregate.hpp>
#include <specagg/site/bits.hpp>
#include <specagg/site/codec.hpp>
#include <specagg/site/documents.hpp>
#include <specagg/site/dragon.hpp>
#include <specagg/site/dragon_decode.hpp>
#include <specagg/site/dssd.hpp>
#include <specagg/site/handshake.hpp>
#include <specagg/site/hello.hpp>
#include <specagg/site/message.hpp>
#include <specagg/site/ranking.hpp>
#include <specagg/site/scheduler.hpp>
#include <specagg/site/simulation.hpp>
#include <specagg/site/split.hpp>
