// SPDX-License-Identifier: Apache-2.0
// FUZZ: -max_len=4096
// Bytes as a codec and an encoded row: they give a status, or a row that encodes to the same bytes.
// Bytes as a row: it encodes to what decodes to the same row. Bytes as an uplink and a downlink:
// statuses, never a token out of range.
#include <specagg/sites/codec.hpp>
#include <specagg/sites/split.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "support/bounded_memory.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

struct bytes {
  const std::uint8_t* data;
  std::size_t size;
  template <class T>
  T take() {
    T x{};
    const std::size_t n = size < sizeof x ? size : sizeof x;
    if (n > 0) std::memcpy(&x, data, n);
    data += n;
    size -= n;
    return x;
  }
};

void require(bool condition) {
  if (!condition) std::abort();
}

template <class T>
void check_bytes(const row_codec& codec, std::span<const std::uint8_t> in) {
  std::vector<token_id> ids(codec.max_tokens());
  std::vector<T> mass(codec.max_tokens());
  // exactly as long, so that reading on is seen
  const std::vector<std::uint8_t> copy(in.begin(), in.end());
  const auto row = decode<T>(codec, copy, ids, mass);
  if (row.why != status::ok) return;
  require(row.bytes <= in.size() && row.bytes <= codec.max_bytes<T>());
  std::size_t n = 0;
  double sum = 0;
  for (std::size_t v = 0; v < codec.vocabulary; ++v) {
    const T x = row.row[v];
    require(x >= 0 && x <= 1 + normalisation_tolerance);
    sum += double(x);
    if (mass.size() > n && x > 0) {
      require(std::size_t(ids[n]) == v);
      ++n;
    }
  }
  require(std::fabs(sum - 1) < 1e-3);
  std::vector<std::uint8_t> out(codec.max_bytes<T>());
  const auto again = encode<T>(codec, std::span<const token_id>(ids).first(n),
                               std::span<const T>(mass).first(n), out);
  require(again.why == status::ok && again.bytes == row.bytes &&
          std::equal(out.begin(), out.begin() + std::ptrdiff_t(row.bytes), copy.begin()));
}

template <class T>
void check_row(const row_codec& codec, bytes in) {
  std::vector<T> row(codec.vocabulary);
  double sum = 0;
  for (T& x : row) {
    x = T(in.take<std::uint8_t>() == 0 ? in.take<T>() : T(in.take<std::uint8_t>()));
    sum += double(x);
  }
  for (T& x : row) x = T(double(x) / sum);
  split_workspace<T> here(codec, 1), there(codec, 1);
  const auto sent = encode(codec, row, here.bytes, here.ids, here.mass);
  if (sent.why != status::ok) return;
  const auto got = decode<T>(codec, std::span<const std::uint8_t>(here.bytes).first(sent.bytes),
                             there.ids, there.mass);
  require(got.why == status::ok && got.bytes == sent.bytes);
  for (std::size_t v = 0; v < row.size(); ++v) {
    require(got.row[v] == sent.row[v]);
    if (!(row[v] > 0)) require(got.row[v] == 0);
  }
}

template <class T>
void check_messages(const row_codec& codec, bytes in) {
  constexpr std::size_t gamma = 3;
  split_workspace<T> device(codec, gamma), server(codec, gamma);
  std::vector<token_id> tokens(in.take<std::uint8_t>() % 5);
  for (token_id& t : tokens)
    t = in.take<std::uint8_t>() % 4 == 0 ? in.take<token_id>()
                                         : token_id(in.take<std::uint8_t>() % codec.vocabulary);
  std::vector<T> probabilities(in.take<std::uint8_t>() % 5);
  for (T& x : probabilities)
    x = in.take<std::uint8_t>() % 2 ? in.take<T>() : T(in.take<std::uint8_t>()) / T(256);
  const draft drafted{tokens, in.take<std::uint32_t>(), token_id(in.take<std::uint8_t>())};
  downlink answer{in.take<std::uint8_t>() % 5u,
                  in.take<std::uint8_t>() % 2 ? no_token : in.take<token_id>()};
  random_streams chooser(in.take<std::uint64_t>());
  const std::vector<T> p(codec.vocabulary, T(1) / T(codec.vocabulary));
  const auto p_rows =
      rows_of(drafted.size() + 1, [&](std::size_t) -> const std::vector<T>& { return p; });
  const uplink<T> up{drafted, no_token, probabilities, {in.data, in.size}};
  const auto check = [&](const downlink& down) {
    require(down.accepted <= drafted.size());
    for (std::size_t j = 0; j < down.accepted; ++j)
      require(tokens[j] >= 0 && std::size_t(tokens[j]) < codec.vocabulary);
    require(down.token == no_token ||
            (down.token >= 0 && std::size_t(down.token) < codec.vocabulary));
  };
  check(verify_coded(up, codec, p_rows, chooser, server));
  check(verify_split(up, codec, p_rows, chooser, server));
  answer.row = {in.data, in.size};
  for (const bool row : {true, false}) {
    if (!row) answer.row = {};
    const auto f = finish_round(answer, drafted, codec, p_rows, chooser, device);
    require(f.token == no_token || (f.token >= 0 && std::size_t(f.token) < codec.vocabulary));
  }
}

template <class T>
void check(const row_codec& codec, bytes in, int what) {
  if (what == 0) check_bytes<T>(codec, {in.data, in.size});
  else if (what == 1) check_row<T>(codec, in);
  else check_messages<T>(codec, in);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::bounded_memory bounded((1 << 20) + 64 * size);
  bytes in{data, size};
  const auto kind = in.take<std::uint8_t>();
  row_codec codec{.vocabulary = 1u + in.take<std::uint16_t>() % (kind & 128 ? 2000 : 20),
                  .format = row_codec::values(kind % 3),
                  .top_k = in.take<std::uint8_t>() % 70u,
                  .top_p = kind & 4 ? (1 + in.take<std::uint8_t>()) / 256.0 : 1,
                  .total = in.take<std::uint16_t>() + 1u};
  if (kind & 8) codec.total = 1 + codec.total % 16;
  if (!codec.valid()) return 0;
  const int what = kind >> 4 & 3;
  kind & 64 ? check<double>(codec, in, what) : check<float>(codec, in, what);
  return 0;
}
