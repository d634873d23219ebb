// SPDX-License-Identifier: Apache-2.0
// FUZZ: -max_len=2048
// Bytes as a message: refused, or a message that is written as it was read. Bytes as what another
// site sends, and when: no machine of DRAGON or split verification crashes, reads beyond its
// memory, emits a token that is none or a position twice, or holds more than was agreed.
#include <specagg/sites/dragon.hpp>
#include <specagg/sites/dssd.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "sites/sealed.hpp"
#include "support/bounded_memory.hpp"

using namespace specagg;
using namespace specagg::sites;

namespace {

struct bytes {
  const std::uint8_t* data;
  std::size_t size;
  std::size_t below(std::size_t n) {
    if (size == 0) return 0;
    --size;
    return *data++ % n;
  }
  std::span<const std::uint8_t> take(std::size_t n) {
    n = std::min(n, size);
    const std::span<const std::uint8_t> s(data, n);
    data += n;
    size -= n;
    return s;
  }
};
void require(bool condition) {
  if (!condition) std::abort();
}

hello terms_of(bytes& in, protocol kind, side from) {
  hello h{.from = from, .kind = kind};
  h.codec = {.vocabulary = 1 + in.below(5),
             .format = row_codec::values(in.below(3)),
             .top_k = 2,
             .total = 7};
  h.real_bytes = in.below(2) ? 4 : 8;
  h.end_of_text = in.below(2) ? no_token : 0;
  h.look_ahead = 1 + std::uint32_t(in.below(5));
  h.most_tokens = 4 + std::uint32_t(in.below(30));
  h.first = side(in.below(2));
  h.prompt = std::uint32_t(in.below(4));
  return h;
}

void check_codec(bytes in) {
  const hello terms = terms_of(in, protocol(in.below(6)), side::l);
  // exactly as long, so that reading on is seen
  const std::vector<std::uint8_t> raw(in.data, in.data + in.size), copy = sealed(raw);
  message m;
  (void)decode(raw, terms, m);
  if (decode(copy, terms, m) != wire::ok) return;
  std::vector<std::uint8_t> again(most_message_bytes(terms));
  again.resize(std::visit([&](const auto& x) { return encode(x, terms, again); }, m));
  require(again == copy);
}

// A message of any kind with fields from the input: reaches deeper than raw bytes.
std::vector<std::uint8_t> some_message(bytes& in, const hello& terms) {
  std::vector<std::uint8_t> out(most_message_bytes(terms));
  const auto n = [&] { return std::uint32_t(in.below(40)); };
  const auto token = [&] { return token_id(in.below(terms.codec.vocabulary + 1)) - 1; };
  const auto write = [&](const auto& m) { out.resize(encode(m, terms, out)); };
  switch (in.below(7)) {
    case 0: write(drafted{n(), n(), token(), float(n()), 0, in.take(in.below(40))}); break;
    case 1: {
      settled_text m{
          .first = n(), .count = in.below(8), .epoch = {n(), n()}, .next = side(in.below(2))};
      for (token_id& t : m.tokens) t = token();
      write(m);
      break;
    }
    case 2: write(progress{n(), n(), n()}); break;
    case 3: {
      split_request m{.start = n(), .correction = token(), .count = in.below(7)};
      for (std::size_t j = 0; j < m.count; ++j) {
        m.tokens[j] = token();
        m.probabilities[j] = double(in.below(9)) / 8;
      }
      m.rows = in.take(in.below(100));
      write(m);
      break;
    }
    case 4: write(split_answer{n(), n() % 8, token(), status::ok, in.take(in.below(40))}); break;
    case 5: write(echo{n(), in.below(2) == 0}); break;
    default: {
      hello h = terms;
      h.from = terms.from == side::l ? side::r : side::l;
      h.life = n();
      h.heard = in.below(2) == 0;
      if (in.below(8) == 0) h.look_ahead = n();
      write(h);
    }
  }
  return out;
}

struct observer {
  std::size_t vocabulary, emitted, sent = 0;
  decode_order order = {};
  score_order scoring = {};
  bool ordered = false, fresh = false;
  std::uint32_t end = 0;  // of the order that was given last
  void send(std::span<const std::uint8_t>) { ++sent; }
  void decode(const decode_order& o) {
    order = o;
    ordered = fresh = true;
    end = o.step;
  }
  void score(const score_order& o) {
    scoring = o;
    fresh = true;
    end = o.end;
  }
  void emit(std::uint32_t position, token_id x) {
    require(position == emitted++ && x >= 0 && std::size_t(x) < vocabulary);
  }
  void aggregates(side) {}
  void echoed(std::uint64_t) {}
};

template <class Site>
void check_site(Site& site, const hello& terms, std::size_t prompt, bytes in) {
  observer sink{terms.codec.vocabulary, prompt};
  std::vector<double> row(terms.codec.vocabulary, 1.0 / double(terms.codec.vocabulary));
  site.start(sink);
  site.connected(sink);
  while (in.size > 0) {
    const std::size_t before = sink.sent;
    switch (in.below(8)) {
      case 0: site.tick(sink); break;
      case 1:
        site.disconnected();
        site.connected(sink);
        break;
      case 2: {
        const auto raw = in.take(in.below(64));
        const std::vector<std::uint8_t> copy(raw.begin(), raw.end());
        site.received(in.below(4) ? sealed(copy) : copy, sink);
        break;
      }
      case 3:
        if constexpr (requires { site.decoded(0u, row, 0.0, 0.0, sink); }) {
          require(!sink.ordered ||
                  (sink.order.keep <= sink.order.step && sink.order.step < terms.most_tokens));
          sink.ordered = false;
          site.decoded(sink.order.ticket, row, 0, 0, sink);
        } else {
          const std::vector<std::vector<double>> rows(terms.look_ahead + 1, row);
          site.scored(sink.scoring.ticket, rows, sink);
        }
        break;
      default: site.received(some_message(in, terms), sink);
    }
    // Each token of an order is there when it is given. Later there may be none.
    for (std::uint32_t i = 0; i < sink.end; ++i) {
      const token_id x = site.token(i);
      require(x < token_id(terms.codec.vocabulary) && (x >= 0 || (x == no_token && !sink.fresh)));
    }
    sink.fresh = false;
    // nobody is made to answer without end
    require(sink.sent - before <= 4 + 2 * terms.look_ahead);
    require(sink.emitted == site.text().size() && site.text().size() <= terms.most_tokens);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::bounded_memory bounded((1 << 20) + 64 * size);
  bytes in{data, size};
  const std::size_t what = in.below(8);
  if (what == 0) {
    check_codec(in);
    return 0;
  }
  const side from = side(in.below(2));
  const auto kind = protocol(what < 4 ? in.below(2) : 2 + in.below(4));
  hello terms = terms_of(in, kind, from);
  terms.real_bytes = 8;
  const std::vector<token_id> prompt(from == side::l ? 1 : in.below(2), 0);
  const random_streams streams(in.below(4));
  const coupled_noise noise(1);
  const auto check = [&](auto site) { check_site(*site, terms, prompt.size(), in); };
  using independent = independent_drafts<>;
  if (kind == protocol::dragon) {
    const independent coupling{streams, random_streams(1, 0, 1)};
    check(std::make_unique<dragon_site<double, independent>>(terms, prompt, coupling));
  } else if (kind == protocol::dragon_shared) {
    check(
        std::make_unique<dragon_site<double, shared_drafts>>(terms, prompt, shared_drafts{noise}));
  } else if (from == side::l) {
    check(std::make_unique<split_device<double>>(terms, prompt, streams, noise));
  } else {
    check(std::make_unique<split_server<double>>(terms, prompt, streams, noise));
  }
  return 0;
}
