// SPDX-License-Identifier: Apache-2.0
// A draft head, read from its file and checked.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <specagg/backend/cpu/llama_weights.hpp>
#include <specagg/draft/vocabulary_map.hpp>

SPECAGG_BEGIN
namespace cpu {

// By which a head knows its target: FNV-1a, 64 bits, of the final norm's weights as 32-bit floats.
// It does not depend on how the target's matrices are quantised.
[[nodiscard]] inline std::uint64_t fingerprint(const layer_weights& w) {
  std::uint64_t h = 14695981039346656037u;
  for (std::size_t c = 0; c < w.dim; ++c)
    for (int byte = 0; byte < 4; ++byte)
      h = (h ^ (std::bit_cast<std::uint32_t>(w.output_norm[c]) >> 8 * byte & 255)) * 1099511628211u;
  return h;
}

// A GGUF file with general.architecture = "specagg-head" (tools/train-head writes it). The layers
// are those of a Llama file, with metadata that begin with "specagg-head.", and the same tensors.
// Beside them:
//   fc.weight            [dim, 2 dim]: the first layer's input from a hidden state of the target
//                        (the first dim columns) and the embedding of the token that follows it,
//                        which is the target's
//   output.weight        [K, dim], for a vocabulary of K tokens
//   specagg-head.d2t     K numbers, int32: token d is token d + d2t[d] of the target, as in the
//                        files of EAGLE-3
//   specagg-head.target_vocab_size, specagg-head.target_fingerprint   of the target that it was
//                                                                     trained for
// dim is the target's. Throws specagg::error.
struct head_weights : layer_weights {
  matrix input;
  vocabulary_map map;  // from the head's tokens to the target's
  std::uint64_t target_fingerprint = 0;

  explicit head_weights(gguf_file from, bool repack = true,
                        const std::function<void(double)>& progress = {})
      : layer_weights(std::move(from), "specagg-head") {
    vocab = tokens_of("output.weight");
    output = take_matrix("output.weight", vocab, dim, repack, progress);
    input = take_matrix("fc.weight", dim, 2 * dim, repack, progress);
    take_layers("draft head", repack, progress);
    const auto target_vocab = size("specagg-head.target_vocab_size", 1u << 31);
    target_fingerprint = file.integer("specagg-head.target_fingerprint");
    auto to = file.numbers<std::int32_t>("specagg-head.d2t");
    if (to.size() != vocab)
      file.fail("specagg-head.d2t",
                joined("has ", to.size(), " numbers, output.weight ", vocab, " rows"));
    for (std::size_t d = 0; d < to.size(); ++d) {
      const auto t = std::int64_t{to[d]} + std::int64_t(d);
      if (t < 0 || t >= std::int64_t(target_vocab))
        file.fail("specagg-head.d2t", joined("maps token ", d, " to ", t, " (the target has ",
                                             target_vocab, " tokens)"));
      to[d] = token_id(t);
    }
    if (make_vocabulary_map(to, target_vocab, map) != status::ok)
      file.fail("specagg-head.d2t", "maps two tokens to one");
  }

  // Throws specagg::error if the head was made for another target.
  void check_target(const llama_weights& target) const {
    const auto refuse = [&](const std::string& why) {
      throw error(
          file.name(), "",
          joined("is a draft head for another target than ", target.file.name(), ": ", why));
    };
    if (dim != target.dim)
      refuse(joined("its hidden states have ", dim, " numbers, the target's ", target.dim));
    if (map.target_size() != target.vocab)
      refuse(joined("it knows ", map.target_size(), " tokens, the target has ", target.vocab));
    if (target_fingerprint != fingerprint(target)) refuse("the final norm's weights differ");
  }
};

}  // namespace cpu
SPECAGG_END
