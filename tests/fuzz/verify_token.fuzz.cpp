// SPDX-License-Identifier: Apache-2.0
// Bytes to rows, drafts and policies: for any rows, verification ends, stays in bounds,
// and emits only tokens that their law gives mass.
#include <specagg/decoders.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <specagg/audit/exact_law.hpp>

#include "support/bounded_memory.hpp"

using namespace specagg;

namespace {

struct bytes {
  const std::uint8_t* data;
  std::size_t size;
  template <class T>
  T take() {
    T x{};
    const std::size_t n = size < sizeof x ? size : sizeof x;
    std::memcpy(&x, data, n);
    data += n;
    size -= n;
    return x;
  }
};

template <class Policy, class Q, class P>
void check(const Policy& policy, draft d, const std::vector<Q>& q, const std::vector<P>& p,
           std::uint64_t seed, bool acceptances) {
  random_streams chooser(seed);
  std::size_t most = 1;
  for (const auto& row : p) most = row.size() > most ? row.size() : most;
  for (const auto& row : q) most = row.size() > most ? row.size() : most;
  std::vector<double> scratch(verify_scratch(most));
  std::vector<emission> out(d.tokens.size() + 1);
  std::vector<draft_acceptance> seen(acceptances ? d.tokens.size() : 0);
  d.acceptances = seen;
  const verdict v = verify_token(d, q, p, policy, chooser, out, scratch);
  if (v.emitted > d.tokens.size() + 1 || v.accepted > v.emitted || v.emitted - v.accepted > 1)
    std::abort();
  if (v.why == status::ok && v.emitted == v.accepted && d.bonus && !d.ends_text(d.size()))
    std::abort();
  for (std::size_t i = 0; i < v.emitted; ++i) {
    const std::size_t size = as_row(p[i]).size();
    if (out[i].token < 0 || std::size_t(out[i].token) >= size) std::abort();
    const auto row = normalise(as_row(p[i]));
    if (row.why() != status::ok) std::abort();
    if constexpr (std::is_same_v<Policy, lossless>) {
      if (!(double(row[std::size_t(out[i].token)]) > 0)) std::abort();
    } else {
      const auto law = target_law(policy, q[i], p[i]);
      if (law.size() != size || !(law[std::size_t(out[i].token)] > 0)) std::abort();
    }
    if (std::isnan(out[i].log_pi) || std::isnan(out[i].log_p)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::bounded_memory bounded((1 << 20) + 64 * size);
  bytes in{data, size};
  const std::size_t gamma = in.take<std::uint8_t>() % 4;
  const std::size_t vocabulary =
      1 + in.take<std::uint16_t>() % 40 + (in.take<std::uint8_t>() == 0 ? 1020 : 0);
  const auto kind = in.take<std::uint8_t>();
  const auto which = in.take<std::uint8_t>();
  const double parameter = in.take<float>(), second = in.take<float>();
  sampling how{in.take<float>(), in.take<std::uint8_t>(), in.take<float>(), in.take<float>()};
  if (kind & 16) how = {};
  draft d{.tokens = {},
          .start = in.take<std::uint32_t>(),
          .end_of_text = token_id(in.take<std::uint8_t>()) - 1,
          .bonus = (kind & 32) == 0};
  std::vector<token_id> y;
  for (std::size_t j = 0; j < gamma; ++j)
    y.push_back(kind & 64 ? in.take<token_id>()
                          : token_id(in.take<std::uint8_t>()) % token_id(vocabulary + 2) - 1);
  d.tokens = y;
  const auto seed = in.take<std::uint64_t>();
  // Values: raw floats, or a byte each as 1/16ths, or -inf for some.
  std::vector<std::vector<float>> q(gamma + 1), p(gamma + 1);
  for (auto* rows : {&q, &p})
    for (auto& row : *rows) {
      const bool other_size = in.take<std::uint8_t>() == 77;
      double sum = 0;
      for (std::size_t v = 0; v < vocabulary + other_size; ++v) {
        const float x = (kind & 3) == 0 ? in.take<float>() : float(in.take<std::int8_t>()) / 16;
        row.push_back((kind & 4) && x < -7 ? -std::numeric_limits<float>::infinity()
                      : (kind & 3) == 3    ? (x > 0 ? x : 0)
                                           : x);
        sum += row.back();
      }
      if ((kind & 3) == 3 && sum > 0)
        for (float& x : row) x = float(x / sum);
    }
  const auto with = [&](const auto& policy) {
    if ((kind & 3) == 3) return check(policy, d, q, p, seed, kind & 8);
    std::vector<processed_row<float>> ql, pl;
    for (const auto& row : q) ql.emplace_back(std::span<const float>(row), how);
    for (const auto& row : p) pl.emplace_back(std::span<const float>(row), how);
    check(policy, d, ql, pl, seed, kind & 8);
  };
  switch (which % 5) {
    case 0: with(lossless{}); break;
    case 1: with(ensemble{parameter}); break;
    case 2: with(opt{parameter}); break;
    case 3: with(token_v3{parameter}); break;
    case 4: with(lossy{parameter, which & 8 ? second : lossy::exact}); break;
  }
  return 0;
}
