// SPDX-License-Identifier: Apache-2.0
// DRAGON: a device and a cloud, each with documents, write one text; then, which should aggregate.
#include <cstdio>

#include <specagg/audit/toy_source.hpp>
#include <specagg/sites.hpp>
using namespace specagg;
using namespace specagg::sites;
using reader = toy_source<float>;

// Models that have read a document each; their rows depend on it and on the text.
std::vector<reader> readers(std::span<const std::vector<token_id>> documents) {
  std::vector<reader> all(documents.size(), reader(40, 7, /*order*/ 20, /*spread*/ 6));
  for (std::size_t d = 0; d < all.size(); ++d)
    if (all[d].extend(documents[d], {}) != status::ok) std::abort();
  return all;
}

int main() {
  const std::vector<std::vector<token_id>> own{{5, 6, 7}, {8, 9}}, common{{1, 2}, {3}, {4, 4}};
  auto at_device = readers(own), at_cloud = readers(common);
  const auto relevance = [](std::span<const token_id> text, std::span<double> R) {
    for (std::size_t d = 0; d < R.size(); ++d) R[d] = 1 - 0.01 * double(d * text.size());
  };
  site_source device{std::span(at_device), relevance};
  site_source cloud{std::span(at_cloud), relevance};
  const auto weights = [&](auto&&) { return weigh_sites(device.h(), cloud.h()); };
  independent_drafts<> drafts{random_streams(7, 0, 0), random_streams(7, 0, 1)};
  std::vector<token_id> buffer(201);
  text t{buffer, 1};  // token 0, and what is written after it
  dragon_workspace<float> work(device.vocab_size(), dragon_options{});
  agreement mean;
  int kept_l = 0, kept_r = 0;
  const auto watch = [&](const dragon_result& round, const auto& rows_of) {
    const agreement a = agreement_of(rows_of.rows[0], rows_of.rows[1], round.weights);
    mean.both += a.both / 200;
    mean.only_l += a.only_l / 200;
    mean.only_r += a.only_r / 200;
    kept_l += round.accepted_l;
    kept_r += round.accepted_r;
  };
  const status s = dragon_decode(device, cloud, weights, drafts,
                                 {.text = t, .most = 200, .work = work, .after_round = watch});
  std::printf("%zu tokens, %s; drafts kept: device %d (Eq 5: %.1f), cloud %d (%.1f)\n", t.size - 1,
              name(s), kept_l, 200 * mean.l(), kept_r, 200 * mean.r());

  for (const double trip : {0.02, 0.1, 0.5}) {  // seconds; 0.1 for a token here, 0.03 there
    const plan::dragon d{0.1, 0.03, trip / 2, trip / 2, mean};
    std::printf("round trip %.2f s: %.3f or %.3f s a token, moving %.3f; Eq 8 says %s\n", trip,
                plan::latency(d), plan::latency(plan::exchanged(d)),
                plan::scheduled_latency(d, 2000, 1),
                plan::side_by_eq8(d) == side::l ? "device" : "cloud");
  }
}

// Output:
// 200 tokens, ok; drafts kept: device 104 (Eq 5: 104.3), cloud 116 (105.2)
// round trip 0.02 s: 0.100 or 0.110 s a token, moving 0.100; Eq 8 says device
// round trip 0.10 s: 0.113 or 0.148 s a token, moving 0.112; Eq 8 says device
// round trip 0.50 s: 0.301 or 0.339 s a token, moving 0.223; Eq 8 says device
