// SPDX-License-Identifier: Apache-2.0
#include "../tools/server/request.hpp"

#include <set>
#include <specagg/backend/cpu/gguf.hpp>
#include <string>

#include "../tools/cli/chat.hpp"
#include "support/catch.hpp"

TEST_CASE("a request without a seed has one of 64 bits. One that is given is any of 64 bits") {
  const cli::cpu_tokenizer tokens(specagg::cpu::gguf_file::open(SPECAGG_MODELS "/target.gguf"));
  const request_limits most{.model = "m",
                            .context = 64,
                            .gamma = 4,
                            .draft_context = 64,
                            .draft_model = false,
                            .head = false,
                            .choices = 8};
  const auto seed = [&](const std::string& more) {
    return parse_requests(R"({"prompt": "And")" + more + "}", false, most, tokens, nullptr)[0]
        ->seed;
  };
  std::set<std::uint64_t> seeds;
  std::uint64_t high = 0;
  for (int i = 0; i < 64; ++i) {
    seeds.insert(seed(""));
    high |= seed("") >> 32;
  }
  CHECK(seeds.size() == 64);
  CHECK(high == UINT32_MAX);  // each bit is 1 in some of 64, or this fails once in 10^18 runs
  CHECK(seed(R"(, "seed": 18446744073709551615)") == UINT64_MAX);
  CHECK(seed(R"(, "seed": -1)") == UINT64_MAX);
  CHECK(seed(R"(, "seed": -9223372036854775808)") == std::uint64_t(1) << 63);
  CHECK(seed(R"(, "seed": null)") != seed(R"(, "seed": null)"));
}
