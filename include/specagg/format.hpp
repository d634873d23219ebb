// SPDX-License-Identifier: Apache-2.0
// fmt::format("{}", x) for a status or an origin. No other header uses fmt, and nothing else in the
// library needs it.
#pragma once
#include <fmt/format.h>

#include <specagg/verify/verify.hpp>

// format("{:>20}", s): name(s), laid out as a string is.
template <>
struct fmt::formatter<specagg::status> : fmt::formatter<fmt::string_view> {
  auto format(specagg::status s, fmt::format_context& context) const {
    return fmt::formatter<fmt::string_view>::format(specagg::name(s), context);
  }
};
template <>
struct fmt::formatter<specagg::origin> : fmt::formatter<fmt::string_view> {
  auto format(specagg::origin o, fmt::format_context& context) const {
    return fmt::formatter<fmt::string_view>::format(specagg::name(o), context);
  }
};
