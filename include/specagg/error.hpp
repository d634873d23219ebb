// SPDX-License-Identifier: Apache-2.0
// The only exception type of the library. It reports errors of files, sockets and options. The core
// (everything that decides tokens) returns statuses instead and does not include this header.
#pragma once
#include <stdexcept>
#include <string>

#include <specagg/printable.hpp>

namespace specagg {

// what() is one printable line: "input: place: reason", for example "draft.gguf: tensor
// blk.0.attn_q.weight: type Q4_K is not supported (F32, F16, BF16, Q4_0 ... are)". All three may
// have text from outside in them: they are made printable here, and cut to 1000 bytes each.
struct error : std::runtime_error {
  error(const std::string& input, const std::string& place, const std::string& reason)
      : std::runtime_error(line(input) + (place.empty() ? "" : line(place)) +
                           printable(reason, 1000)) {}

 private:
  static std::string line(const std::string& part) { return printable(part, 1000) + ": "; }
};

}  // namespace specagg
