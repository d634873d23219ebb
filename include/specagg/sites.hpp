// SPDX-License-Identifier: Apache-2.0
// All of specagg.hpp, and two sites: the law of DRAGON and the split verification of DSSD, their
// protocols as state machines, and a simulated network. A header of its own, because the protocols
// allocate and use std::function and std::string. For real networks: net/
// (docs/two-sites-driver.md).
#pragma once
#include <specagg/detail/hide_macros.hpp>
#include <specagg/decoders.hpp>
#include <specagg/sites/aggregate.hpp>
#include <specagg/sites/codec.hpp>
#include <specagg/sites/documents.hpp>
#include <specagg/sites/dragon.hpp>
#include <specagg/sites/dragon_decode.hpp>
#include <specagg/sites/dssd.hpp>
#include <specagg/sites/handshake.hpp>
#include <specagg/sites/hello.hpp>
#include <specagg/sites/message.hpp>
#include <specagg/sites/scheduler.hpp>
#include <specagg/sites/simulation.hpp>
#include <specagg/sites/split.hpp>
#include <specagg/detail/restore_macros.hpp>
