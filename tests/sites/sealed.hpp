// SPDX-License-Identifier: Apache-2.0
// Bytes with the checksum of a message, so that what is in them is looked at.
#pragma once
#include <cstdint>
#include <vector>

#include <specagg/sites/message.hpp>

inline std::vector<std::uint8_t> sealed(std::vector<std::uint8_t> bytes) {
  const std::uint32_t crc = specagg::sites::detail::crc32c(bytes);
  for (std::size_t i = 0; i < specagg::sites::checksum_bytes; ++i)
    bytes.push_back(std::uint8_t(crc >> 8 * i));
  return bytes;
}
