// SPDX-License-Identifier: Apache-2.0
// What two sites must agree on before they work together. Each says it first, and it limits the size of all later
// messages.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <specagg/random.hpp>
#include <specagg/site/codec.hpp>
#include <specagg/site/side.hpp>

SPECAGG_BEGIN

inline constexpr std::uint32_t protocol_version = 1;
inline constexpr std::size_t most_tokens_in_message = 64, most_text_in_message = 200;

// dragon...: the drafts of the two sites are independent, or drawn with shared noise. The others are the protocols of
// split.hpp.
enum class protocol : std::uint8_t { dragon, dragon_shared, dsd, dsd_block, dssd, split_shared };
constexpr std::string_view name(protocol p) {
  constexpr std::string_view names[] = {"dragon", "dragon-shared", "dsd", "dsd-block", "dssd", "split-shared"};
  return names[std::size_t(p)];
}

// Text of at most 200 bytes.
struct short_text {
  std::array<char, most_text_in_message> characters = {};
  std::size_t size = 0;
  short_text() = default;
  short_text(std::string_view s) : size(std::min(s.size(), most_text_in_message)) {
    std::copy_n(s.begin(), size, characters.begin());
  }
  std::string_view view() const { return {characters.data(), size}; }
};

// The first message in each direction. Everything from `kind` on must be the same at both ends.
struct hello {
  std::uint32_t version = protocol_version;
  bool heard = false;      // the sender has heard the other end's hello on this connection: no answer is needed
  std::uint64_t life = 0;  // a new number each time the sender starts with empty memory
  side from = side::l;

  protocol kind = protocol::dragon;
  std::uint64_t session = 0;
  short_text model_l = {}, model_r = {};  // an empty name stands for any model
  row_codec codec = {};
  std::size_t real_bytes = 4;  // of the rows' numbers: 4, or 8 if rows are doubles
  std::uint64_t vocabulary_hash = 0, seed_hash = 0;
  short_text sampling = {};  // temperature, filters, policy: everything else that rows depend on
  token_id end_of_text = no_token;
  std::uint32_t look_ahead = 4;      // K of DRAGON, gamma of DSSD: 1 .. 64
  std::uint32_t most_tokens = 4096;  // the largest size of the text, prompt included
  std::uint32_t prompt = 0;          // its number of tokens: DRAGON drafts nothing before they are known
  side first = side::l;  // the side that aggregates first
};

inline std::size_t row_bytes(const hello& h) {
  return h.real_bytes == 8 ? h.codec.max_bytes<double>() : h.codec.max_bytes<float>();
}
inline bool valid(const hello& h) {
  return h.codec.valid() && (h.real_bytes == 4 || h.real_bytes == 8) && h.look_ahead >= 1 &&
         h.look_ahead <= most_tokens_in_message && h.most_tokens >= 1 && h.prompt <= h.most_tokens &&
         (h.end_of_text == no_token || (h.end_of_text >= 0 && std::size_t(h.end_of_text) < h.codec.vocabulary));
}
constexpr bool sends_rows_up(protocol p) { return p == protocol::dsd || p == protocol::dsd_block; }
// The size that no message exceeds.
inline std::size_t most_message_bytes(const hello& h) {
  return 1024 + 16 * most_tokens_in_message + (sends_rows_up(h.kind) ? h.look_ahead : 1) * row_bytes(h);
}
// A number that differs between seeds and does not reveal them.
constexpr std::uint64_t hash_of_seed(std::uint64_t seed, std::uint64_t request = 0) {
  const auto r = philox({std::uint32_t(request), std::uint32_t(request >> 32), 1, 0x68617368u}, seed);
  return std::uint64_t(r[1]) << 32 | r[0];
}
// FNV-1a, string after string. The hash of a vocabulary is that of its pieces in the order of their ids.
constexpr std::uint64_t hash_of_text(std::string_view s, std::uint64_t before = 0xcbf29ce484222325u) {
  for (const char c : s) before = (before ^ std::uint8_t(c)) * 0x100000001b3u;
  return (before ^ 0x100u) * 0x100000001b3u;  // end of a piece
}

// The first difference of two ends: "vocabulary: 32000 here, 50272 there". Empty if there is none.
inline std::string first_difference(const hello& here, const hello& there) {
  std::string found;
  const auto text = [](const auto& x) {
    if constexpr (requires { x.view(); }) return std::string(x.view());
    else return std::to_string(x);
  };
  const auto differ = [&](std::string_view what, const auto& a, const auto& b) {
    if (found.empty() && text(a) != text(b))
      found = std::string(what) + ": " + text(a) + " here, " + text(b) + " there";
  };
  const auto both = [&](std::string_view what, auto member) { differ(what, member(here), member(there)); };
  both("version", [](const hello& h) { return h.version; });
  both("protocol", [](const hello& h) { return short_text(name(h.kind)); });
  both("session", [](const hello& h) { return h.session; });
  differ("side", int(here.from), 1 - int(there.from));
  if (here.model_l.size > 0 && there.model_l.size > 0) both("model of l", [](const hello& h) { return h.model_l; });
  if (here.model_r.size > 0 && there.model_r.size > 0) both("model of r", [](const hello& h) { return h.model_r; });
  both("vocabulary", [](const hello& h) { return h.codec.vocabulary; });
  both("hash of the vocabulary", [](const hello& h) { return h.vocabulary_hash; });
  both("hash of the seed", [](const hello& h) { return h.seed_hash; });
  both("sampling", [](const hello& h) { return h.sampling; });
  both("codec, values", [](const hello& h) { return int(h.codec.format); });
  both("codec, bytes of a number", [](const hello& h) { return h.real_bytes; });
  both("codec, top-k", [](const hello& h) { return h.codec.top_k; });
  both("codec, top-p", [](const hello& h) { return h.codec.top_p; });
  both("codec, total", [](const hello& h) { return h.codec.total; });
  both("end of text", [](const hello& h) { return h.end_of_text; });
  both("look-ahead", [](const hello& h) { return h.look_ahead; });
  both("most tokens", [](const hello& h) { return h.most_tokens; });
  both("prompt", [](const hello& h) { return h.prompt; });
  both("first side", [](const hello& h) { return int(h.first); });
  if (found.empty() && here.codec.top_p != there.codec.top_p) found = "codec, top-p: they differ in the last digits";
  return found;
}

SPECAGG_END
