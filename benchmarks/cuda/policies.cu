// SPDX-License-Identifier: Apache-2.0
// Every policy by one verifier: compiled once for each, with -DVERIFIER=token (block, match,
// coupled). With -DPART=0 (to 5) only a part of the policies, so that compilers can work side by
// side. Linked with verify.cu, it adds a table to bench-cuda; scripts/gpu-check leaves it out, as
// nvcc takes half a minute for each policy.
#include "measure.hpp"

#include <type_traits>

#ifndef VERIFIER
#define VERIFIER token
#endif
#ifndef PART
#define PART -1
#endif

namespace bench {
namespace {

using token = token_verifier;
using block = block_verifier;
using match = match_verifier;
using coupled = gpu::coupled;
using chosen = VERIFIER;

template <class S, class Policy>
void measure(const char* name, const Policy& policy, const inputs<S, chosen>& in, const shape& s,
             const timing& read, std::size_t bytes_read) {
  stopwatch watch;
  const std::size_t bytes = bytes_of_rows<S>(s, policy, chosen{});
  const timing t = watch.in_a_row(in.copies(), true, 20, verification(in, policy, chosen{}));
  const double speed = gigabytes_per_second(bytes, t.median);
  const double share = speed / gigabytes_per_second(bytes_read, read.median),
               accepted = in.accepted();
  std::printf("%-8s %-12s %-4s %10.2f %9.0f %6.1f %% %9.2f\n", SPECAGG_STRING(VERIFIER), name,
              type_name<S>(), t.median, speed, 100 * share, accepted);
  output().add("policy", field("verifier", SPECAGG_STRING(VERIFIER)) + ", " +
                             field("policy", name) + ", " + field("type", type_name<S>()) + ", " +
                             field("requests", double(s.requests)) + ", " +
                             field("gamma", double(s.gamma)) + ", " +
                             field("vocabulary", double(s.vocabulary)) + ", " + field("us", t) +
                             ", " + field("bytes", double(bytes)) + ", " + field("share", share) +
                             ", " + field("accepted", accepted));
}

template <class S, class F>
void with_inputs(const shape& s, F&& f) {
  const inputs<S, chosen> in(s, chosen{});
  const std::size_t bytes = bytes_of_rows<S>(s, lossless{}, token_verifier{});
  const timing read = time_of_read(
      in.data(0), 2 * s.requests * (s.gamma + 1) * s.vocabulary * sizeof(S), in.copies(), bytes);
  f([&](const char* name, const auto& policy) { measure<S>(name, policy, in, s, read, bytes); });
}

constexpr bool in_part(int k) { return PART < 0 || PART == k; }

void measure_all(const shape& s) {
  with_inputs<float>(s, [](auto&& f) {
    constexpr std::size_t policies = std::tuple_size_v<decltype(catalogue)>;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      const auto one = [&]<std::size_t K>() {
        constexpr const auto& line = std::get<K>(catalogue);
        if constexpr (in_part(int(K * 6 / policies)) &&
                      !std::remove_cvref_t<decltype(line)>::has_state)
          f(line.name, line.values[line.values.size() > 1]);  // with a sample of its parameters
      };
      (one.template operator()<I>(), ...);
    }(std::make_index_sequence<policies>());
  });
  const auto only_lossless = [](auto&& f) {
    if constexpr (in_part(5)) f("lossless", lossless{});
  };
  if constexpr (in_part(5)) with_inputs<bf16>(s, only_lossless), with_inputs<f16>(s, only_lossless);
}
const bool added = (suites().push_back(measure_all), true);

}  // namespace
}  // namespace bench
