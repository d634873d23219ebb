// SPDX-License-Identifier: Apache-2.0
// DSSD: split verification, and the bytes of each round beside those of sending rows up (DSD).
#include <cstdio>

#include <specagg/audit/toy_source.hpp>
#include <specagg/sites.hpp>
using namespace specagg;
using namespace specagg::sites;

int main() {
  constexpr std::size_t V = 1000, gamma = 4;
  const toy_source<float> model(V, 1, 2, 12);  // of the device; the server's is a sharper one
  std::vector<float> logits((gamma + 1) * V);
  const auto q_rows = rows_of_logits(logits, V);
  const auto p_rows = rows_of_logits(logits, V, {.temperature = 0.7});

  const row_codec codec{.vocabulary = V};                               // what a row is in bytes
  split_workspace<float> device(codec, gamma), server(codec, gamma);    // DSSD
  split_workspace<float> sender(codec, gamma), verifier(codec, gamma);  // DSD: as many tokens
  random_streams at_device(7), at_server(7);
  std::vector<token_id> text{0};
  finished last;
  std::printf("round  accepted  DSSD up  down  DSD up  down\n");
  for (int round = 1; round <= 8; ++round) {
    const auto start = std::uint32_t(text.size());
    const auto next_row = [&] {
      const std::size_t j = text.size() - start;
      model.row(text, std::span(logits).subspan(j * V, V));
      return q_rows[j];
    };
    begin_draft(device, start, no_token, last.correction);
    begin_draft(sender, start);
    for (auto row = next_row(); can_draft(device); row = next_row()) {
      if (draft_split(device, row, at_device) != status::ok) return 1;
      if (draft_coded(sender, codec, row, at_device) != status::ok) return 1;
      text.push_back(device.up.drafted.tokens.back());
    }
    const downlink down = verify_split(device.up, codec, p_rows, at_server, server);
    const downlink rows = verify_coded(sender.up, codec, p_rows, at_server, verifier);
    last = finish_round(down, device.up.drafted, codec, q_rows, at_device, device);
    if (last.why != status::ok || last.token != rows.token) return 1;  // one seed: equal tokens
    text.resize(start + down.accepted);
    text.push_back(last.token);
    std::printf("%5d  %8zu  %7zu  %4zu  %6zu  %4zu\n", round, down.accepted, device.up.bytes(),
                down.bytes(), sender.up.bytes(), rows.bytes());
  }
}

// Output:
// round  accepted  DSSD up  down  DSD up  down
//     1         4       32     5   16016     5
//     2         4       32     5   16016     5
//     3         3       32  4001   16016     5
//     4         3       36  4001   16016     5
//     5         4       36     5   16016     5
//     6         4       32     5   16016     5
//     7         3       32  4001   16016     5
//     8         4       36     5   16016     5
