// SPDX-License-Identifier: Apache-2.0
// The terms that two sites must agree on before they work together. Each site sends them first, and
// they limit the size of all later messages.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <specagg/random.hpp>
#include <specagg/sites/codec.hpp>
#include <specagg/plan/side.hpp>

SPECAGG_BEGIN
namespace sites {

// 4: messages end with a checksum (message.hpp). Another version is refused. Version 3 is left out:
// with one bit changed it would be 2, a version without checksums.
inline constexpr std::uint32_t protocol_version = 4;
// Whether messages of this version end with a checksum.
constexpr bool has_checksums(std::uint32_t version) { return version != 1 && version != 2; }
inline constexpr std::size_t most_tokens_in_message = 64, most_text_in_message = 200;

// dragon...: the drafts of the two sites are independent, or drawn with the Gumbel-max coupling.
// The other values are the protocols of split.hpp.
enum class protocol : std::uint8_t { dragon, dragon_shared, dsd, dsd_block, dssd, split_shared };
constexpr std::string_view name(protocol p) {
  constexpr std::string_view names[] = {"dragon",    "dragon-shared", "dsd",
                                        "dsd-block", "dssd",          "split-shared"};
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

// The first message in each direction. hello_for() makes a hello that works as it is. The fields
//   version .. from    are each end's own: one end is l, the other r
//   all from `kind` on must be the same at both ends, except that an empty model name and a
//                      tokenization_hash of 0 stand for any. If they differ, the connection ends,
//                      and problem() of both ends names the first difference
// docs/two-sites-driver.md says which fields matter to whom.
struct hello {
  std::uint32_t version = protocol_version;
  // the sender has heard the other end's hello on this connection: no answer is needed
  bool heard = false;
  std::uint64_t life = 0;  // a new number each time the sender starts with empty memory
  side from = side::l;

  protocol kind = protocol::dragon;
  std::uint64_t session = 0;              // its name, at a server with many
  short_text model_l = {}, model_r = {};  // an empty name stands for any model
  row_codec codec = {};
  std::size_t real_bytes = 4;  // of the rows' numbers: 4, or 8 if rows are doubles
  std::uint64_t vocabulary_hash = 0, seed_hash = 0;
  // of tokenization_probe's tokens; 0: this end reads no text, so any will do
  std::uint64_t tokenization_hash = 0;
  short_text sampling = {};  // temperature, filters, policy: everything else that rows depend on
  token_id end_of_text = no_token;
  std::uint32_t look_ahead = 4;      // K of DRAGON, gamma of DSSD: 1 .. 64
  std::uint32_t most_tokens = 4096;  // the largest size of the text, prompt included
  // its number of tokens: DRAGON drafts nothing before they are known
  std::uint32_t prompt = 0;
  side first = side::l;  // the side that aggregates first
};

// The hello of one side for rows of V numbers of type T (float or double), full rows and defaults
// for all else: what two sites in one program need. Change fields before a site is made from the
// hello.
template <class T = float>
[[nodiscard]] constexpr hello hello_for(std::size_t vocab_size, side from,
                                        protocol kind = protocol::dragon) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "specagg: rows are floats or doubles");
  hello h;
  h.from = from;
  h.kind = kind;
  h.codec.vocabulary = vocab_size;
  h.real_bytes = sizeof(T);
  return h;
}

// The largest number of bytes of an encoded row.
inline std::size_t row_bytes(const hello& h) {
  return h.real_bytes == 8 ? h.codec.max_bytes<double>() : h.codec.max_bytes<float>();
}
// Whether a site can be made from this hello: every number is in its range.
[[nodiscard]] inline bool valid(const hello& h) {
  return h.kind <= protocol::split_shared && h.from <= side::r && h.first <= side::r &&
         h.codec.valid() && (h.real_bytes == 4 || h.real_bytes == 8) && h.look_ahead >= 1 &&
         h.look_ahead <= most_tokens_in_message && h.most_tokens >= 1 &&
         h.prompt <= h.most_tokens &&
         (h.end_of_text == no_token ||
          (h.end_of_text >= 0 && std::size_t(h.end_of_text) < h.codec.vocabulary));
}
// Whether the device sends the rows of its drafts.
constexpr bool sends_rows_up(protocol p) { return p == protocol::dsd || p == protocol::dsd_block; }
// The size that no message exceeds.
inline std::size_t most_message_bytes(const hello& h) {
  return 1024 + 16 * most_tokens_in_message +
         (sends_rows_up(h.kind) ? h.look_ahead : 1) * row_bytes(h);
}
// A number that differs between seeds and does not reveal them.
constexpr std::uint64_t hash_of_seed(std::uint64_t seed, std::uint64_t request = 0) {
  const auto r =
      philox({std::uint32_t(request), std::uint32_t(request >> 32), 1, 0x68617368u}, seed);
  return std::uint64_t(r[1]) << 32 | r[0];
}
// FNV-1a, string after string. The hash of a vocabulary is the hash of its pieces in the order of
// their ids.
constexpr std::uint64_t hash_of_text(std::string_view s,
                                     std::uint64_t before = 0xcbf29ce484222325u) {
  for (const char c : s) before = (before ^ std::uint8_t(c)) * 0x100000001b3u;
  return (before ^ 0x100u) * 0x100000001b3u;  // end of a piece
}

// FNV-1a of token ids. The hash of a tokenization is the hash of the tokens of tokenization_probe,
// line by line.
inline std::uint64_t hash_of_tokens(std::span<const token_id> tokens) {
  std::uint64_t hash = hash_of_text("");
  for (const token_id t : tokens) hash = hash_of_text(std::to_string(t), hash);
  return hash;
}
// A text that tokenizers cut differently: digits, runs of blanks, letters with marks, and
// characters that are letters, digits or marks only for tables of Unicode from 6.1, 8, 9, 11, 13,
// 14, 15, 15.1, 16 and 17 on (two or three of each), next to blanks, letters, digits, punctuation
// and ends of lines. Two ends with different tables make different tokens of this text.
inline constexpr std::string_view tokenization_probe =
    "It's 1 22 333 4444 55555 I'LL don't x=3.14; \t\ta  b   c    d\n\n\n e\r\n\r\n  f \n "
    "g\xc2\xa0h\xe3\x80\x80i "
    "e\xcc\x81 na\xc3\xafve \xc2\xb2\xc2\xbd \xd9\xa3\xe0\xa5\xaa "
    "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e "
    "\xed\x95\x9c\xea\xb5\xad \xf0\x9f\x98\x80\xe2\x80\x8d\xef\xb8\x8f!? "
    "\xe0\xa2\xa0\xe0\xa2\xa1 a\xe0\xa2\xa0 1\xe0\xa2\xa0.\xe0\xa2\xa0\n"
    "\xe1\x8f\xb8\xea\xad\xb0 a\xe1\x8f\xb8 1\xe1\x8f\xb8.\xe1\x8f\xb8\n"
    "\xe1\xb2\x80\xf0\x91\xb1\x90 a\xe1\xb2\x80 1\xf0\x91\xb1\x91.\xe1\xb2\x80\n"
    "\xe1\xb2\x90\xf0\x90\xb4\xb0 a\xe1\xb2\x90 1\xf0\x90\xb4\xb1.\xe1\xb2\x90\n"
    "\xea\x9f\x87\xf0\x91\xa5\x90 a\xea\x9f\x87 1\xf0\x91\xa5\x91.\xea\x9f\x87\n"
    "\xea\x9f\x80\xe0\xa2\x98 a\xea\x9f\x80 1\xe0\xa2\x98.\xea\x9f\x80\n"
    "\xf0\x91\xbc\x84\xf0\x91\xbd\x90 a\xf0\x91\xbc\x84 1\xf0\x9e\x93\xb0.\xf0\x91\xbd\x91\n"
    "\xf0\xae\xaf\xb0\xf0\xae\xaf\xb1 a\xf0\xae\xaf\xb0 1\xf0\xae\xaf\xb0.\xf0\xae\xaf\xb0\n"
    "\xf0\x90\xb5\x8a\xf0\x90\xb5\x80 a\xea\x9f\x8b 1\xf0\x90\xb5\x81.\xe0\xa2\x97\n"
    "\xea\x9f\x8e\xea\x9f\x92 a\xf0\xb2\x8e\xb0 1\xea\x9f\x8f.\xe1\xab\x8f\n";

// The first difference of two ends: "vocabulary: 32000 on the device, 50272 on the server", as both
// ends word it (the device is side l). Empty if there is no difference.
[[nodiscard]] inline std::string first_difference(const hello& here, const hello& there) {
  std::string found;
  const bool own_l = here.from == side::l;
  const auto text = [](const auto& x) {
    if constexpr (requires { x.view(); }) return std::string(x.view());
    else return std::to_string(x);
  };
  const auto differ = [&](std::string_view what, const auto& a, const auto& b) {
    if (found.empty() && text(a) != text(b))
      found = std::string(what) + ": " + text(own_l ? a : b) + " on the device, " +
              text(own_l ? b : a) + " on the server";
  };
  const auto both = [&](std::string_view what, auto member) {
    differ(what, member(here), member(there));
  };
  both("version", [](const hello& h) { return h.version; });
  both("protocol", [](const hello& h) { return short_text(name(h.kind)); });
  both("session", [](const hello& h) { return h.session; });
  if (found.empty() && here.from == there.from)
    found = std::string("side: both ends are the ") + (own_l ? "device" : "server");
  if (here.model_l.size > 0 && there.model_l.size > 0)
    both("model of l", [](const hello& h) { return h.model_l; });
  if (here.model_r.size > 0 && there.model_r.size > 0)
    both("model of r", [](const hello& h) { return h.model_r; });
  both("vocabulary", [](const hello& h) { return h.codec.vocabulary; });
  both("hash of the vocabulary", [](const hello& h) { return h.vocabulary_hash; });
  if (found.empty() && here.tokenization_hash != there.tokenization_hash &&
      here.tokenization_hash != 0 && there.tokenization_hash != 0)
    found =
        "tokenization: the two ends make different tokens of one text (do their tables of Unicode "
        "differ?)";
  if (found.empty() && here.seed_hash != there.seed_hash)
    found = "seed: device and server have different ones (--seed of their commands)";
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
  if (found.empty() && here.codec.top_p != there.codec.top_p)
    found = "codec, top-p: they differ in the last digits";
  return found;
}

}  // namespace sites
SPECAGG_END
