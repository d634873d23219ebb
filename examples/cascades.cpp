// SPDX-License-Identifier: Apache-2.0
// Cascades: a policy says where the large model is needed. Sequential, oracle and speculative.
#include <specagg/decoders.hpp>

#include <cstdio>
#include <vector>

#include <specagg/audit/toy_source.hpp>

using namespace specagg;

constexpr std::size_t V = 20, most = 20000;

// Decodes a text, and prints how many calls a token took and what it is worth to the large model.
void measure(const char* what, auto&& decode) {
  toy_source<float> small(V, 1, 2, 12, most + 1), large(V, 1, 2, 16, most + 1);
  std::vector<token_id> memory(most + 1);
  text t{memory, 1};
  random_streams random(/*seed=*/42);
  const status why = decode(t, small, large, random);
  std::vector<float> row(V);
  double quality = 0;
  for (std::size_t i = 1; i < t.size; ++i) {
    large.row(t.tokens.first(i), row);
    quality += double(row[std::size_t(t.tokens[i])]) - log_sum_exp(row);
  }
  const auto n = double(t.size - 1);
  std::printf("%-22s calls: small %.2f large %.2f; mean log p %.2f (%s)\n", what,
              double(small.calls) / n, double(large.calls) / n, quality / n, name(why));
}

int main() {
  cascade_workspace<float> work(V, cascade_options{});
  measure("sequential, chow", [&](text& t, auto& small, auto& large, auto& random) {
    return sequential_decode(small, large, chow{0.8}, random,
                             {.text = t, .most = most, .work = work});
  });
  measure("oracle, opt", [&](text& t, auto& small, auto& large, auto& random) {
    return oracle_decode(small, large, opt{0.1}, random, {.text = t, .most = most, .work = work});
  });
  const auto speculative = [&](const char* what, const auto& policy) {
    measure(what, [&](text& t, auto& small, auto& large, auto& random) {
      speculative_workspace<float> memory(V, {.gamma = 4});
      return speculative_decode(small, large, policy, random,
                                {.text = t, .most = most, .work = memory});
    });
  };
  speculative("speculative, lossless", lossless{});
  speculative("speculative, chow", chow{0.8});
  speculative("speculative, opt", opt{0.1});
  speculative("speculative, token-v3", token_v3{0.3});
}

// Output:
// sequential, chow       calls: small 0.91 large 0.09; mean log p -1.58 (ok)
// oracle, opt            calls: small 1.00 large 1.00; mean log p -1.32 (ok)
// speculative, lossless  calls: small 0.96 large 0.24; mean log p -1.30 (ok)
// speculative, chow      calls: small 1.00 large 0.20; mean log p -1.61 (ok)
// speculative, opt       calls: small 1.13 large 0.24; mean log p -1.30 (ok)
// speculative, token-v3  calls: small 1.44 large 0.34; mean log p -1.05 (ok)
