// SPDX-License-Identifier: Apache-2.0
#include <specagg/verify/batch.hpp>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <specagg/thread_pool.hpp>
#include <specagg/decoders.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

using namespace specagg;

namespace {

// Which policy it is does not matter here: the verifiers are compiled once for these.
using any_policy = compiled_once<any_of<lossless, token_v3, ensemble>>;

// Requests of 0 to 4 drafted tokens and a temperature, a policy parameter and a seed of their own;
// some have a row of NaN, and request 5 a token outside the vocabulary.
struct requests {
  static constexpr std::size_t vocabulary = 700, gamma = 4;
  std::size_t count;
  std::vector<float> q, p;
  std::vector<token_id> drafted;
  explicit requests(std::size_t n)
      : count(n),
        q(n * gamma * vocabulary),
        p(n * (gamma + 1) * vocabulary),
        drafted(n * gamma, no_token) {
    numbers noise(4);
    // a few tokens matter: also the match verifier accepts
    for (float& l : p) l = float(400 * noise.uniform());
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < gamma; ++j)
        for (std::size_t v = 0; v < vocabulary; ++v)
          q[(i * gamma + j) * vocabulary + v] =
              p[(i * (gamma + 1) + j) * vocabulary + v] + float(noise.uniform());
    std::vector<double> scratch(verify_scratch(vocabulary));
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < i % (gamma + 1); ++j) {
        random_streams chooser(1, i);
        drafted[i * gamma + j] = draw_draft(q_row(i, j), start(i), j, chooser, scratch);
      }
    if (n > 5) drafted[5 * gamma] = 100000;
    for (std::size_t i = 8; i < n; i += 8)
      p[(i * (gamma + 1) + 1) * vocabulary + 3] = std::nanf("");
  }
  static std::uint32_t start(std::size_t i) { return std::uint32_t(10 * i); }
  sampling how(std::size_t i) const { return {.temperature = 0.5 + 0.1 * double(i % 7)}; }
  processed_row<float> q_row(std::size_t i, std::size_t j) const {
    return {std::span(q).subspan((i * gamma + j) * vocabulary, vocabulary), how(i)};
  }
  processed_row<float> p_row(std::size_t i, std::size_t j) const {
    return {std::span(p).subspan((i * (gamma + 1) + j) * vocabulary, vocabulary), how(i)};
  }
  auto request(std::size_t i, std::span<emission> out) const {
    return verification{
        draft{.tokens = std::span(drafted).subspan(i * gamma, gamma), .start = start(i)},
        rows_of(gamma + 1, [this, i](std::size_t j) { return q_row(i, j); }),
        rows_of(gamma + 1, [this, i](std::size_t j) { return p_row(i, j); }),
        any_policy(token_v3{0.1 * double(i % 5)}),
        random_streams(1, i),
        out.subspan(i * (gamma + 1), gamma + 1)};
  }
};

struct outcome {
  std::vector<verdict> verdicts;
  std::vector<emission> out;
  bool operator==(const outcome& o) const {
    for (std::size_t i = 0; i < verdicts.size(); ++i) {
      const verdict &a = verdicts[i], &b = o.verdicts[i];
      if (a.accepted != b.accepted || a.emitted != b.emitted || a.why != b.why) return false;
      for (std::size_t k = 0; k < a.emitted; ++k) {
        const emission &x = out[i * (requests::gamma + 1) + k],
                       &y = o.out[i * (requests::gamma + 1) + k];
        if (x.token != y.token || x.from != y.from || x.why != y.why ||
            std::memcmp(&x.log_pi, &y.log_pi, 8) != 0)
          return false;
      }
    }
    return true;
  }
};
template <class Verifier, class Pool>
outcome verify(const requests& r, const Verifier& verifier, Pool&& pool) {
  outcome o{std::vector<verdict>(r.count), std::vector<emission>(r.count * (r.gamma + 1))};
  std::vector<double> scratch(r.count * verify_scratch(r.vocabulary, r.gamma));
  verify_batch([&](std::size_t i) { return r.request(i, o.out); }, o.verdicts, scratch, verifier,
               pool);
  return o;
}

// A caller's own pool: one request at a time, last one first.
struct backwards {
  template <class Body>
  void for_ranges(std::size_t count, std::size_t, Body&& body) {
    while (count-- > 0) body(count, count + 1);
  }
};

}  // namespace

TEST_CASE(
    "a batch gives what each request gives alone, on any pool and number of threads, under every "
    "verifier") {
  const requests r(37);
  const auto check = [&](const auto& verifier) {
    outcome alone{std::vector<verdict>(r.count), std::vector<emission>(r.count * (r.gamma + 1))};
    std::vector<double> scratch(verify_scratch(r.vocabulary, r.gamma));
    std::size_t accepted = 0, rejected = 0, failed = 0;
    for (std::size_t i = 0; i < r.count; ++i) {
      const verdict v = [&] {
        if constexpr (requires { verifier(i); })
          return verify(r.request(i, alone.out), verifier(i), scratch);
        else return verify(r.request(i, alone.out), verifier, scratch);
      }();
      alone.verdicts[i] = v;
      accepted += v.accepted;
      rejected += v.accepted < i % 5;
      failed += v.why != status::ok;
    }
    CHECK(accepted > 5);
    CHECK(rejected > 2);
    CHECK(failed > 0);
    CHECK(verify(r, verifier, this_thread()) == alone);
    CHECK(verify(r, verifier, backwards()) == alone);
    for (const unsigned threads : {1u, 2u, 4u}) {
      thread_pool pool(threads);
      CHECK(verify(r, verifier, pool) == alone);
    }
  };
  check(token_verifier{});
  check(block_verifier{});
  check(match_verifier{});
  check([](std::size_t i) { return coupled_verifier{coupled_noise(1, i)}; });
}
TEST_CASE(
    "one request, verified by its own verifier: what the verifier's function gives, with all it "
    "writes") {
  const requests r(13);
  for (std::size_t i = 0; i < r.count; ++i) {
    std::vector<emission> out(r.gamma + 1), due_out(r.gamma + 1);
    std::vector<draft_acceptance> acceptances(r.gamma), due_acceptances(r.gamma);
    std::vector<double> scratch(verify_scratch(r.vocabulary, r.gamma));
    draft drafted{.tokens = std::span(r.drafted).subspan(i * r.gamma, r.gamma),
                  .start = r.start(i),
                  .acceptances = due_acceptances};
    const auto q = rows_of(r.gamma + 1, [&](std::size_t j) { return r.q_row(i, j); });
    const auto p = rows_of(r.gamma + 1, [&](std::size_t j) { return r.p_row(i, j); });
    random_streams random(1, i);
    const any_policy policy = token_v3{0.3};
    const verdict due = verify_match(drafted, q, p, policy, random, due_out, scratch);
    drafted.acceptances = acceptances;
    const verification one{drafted, q, p, policy, random, std::span(out)};
    const verdict v = verify(one, match_verifier(), scratch);
    CHECK(v.accepted == due.accepted);
    CHECK(v.emitted == due.emitted);
    CHECK(v.why == due.why);
    for (std::size_t k = 0; k < v.emitted; ++k) CHECK(out[k].token == due_out[k].token);
    for (std::size_t j = 0; j < r.gamma; ++j)
      CHECK(acceptances[j].of_row == due_acceptances[j].of_row);
  }
}
TEST_CASE(
    "an empty batch is no work. Scratch for too few requests is reported by every request, and "
    "nothing is written") {
  verify_batch([](std::size_t) -> decltype(std::declval<requests>().request(0, {})) { throw 0; },
               {}, {});
  const requests r(4);
  outcome o{std::vector<verdict>(r.count), std::vector<emission>(r.count * (r.gamma + 1))};
  verify_batch([&](std::size_t i) { return r.request(i, o.out); }, o.verdicts, {});
  for (std::size_t i = 0; i < r.count; ++i)
    CHECK((o.verdicts[i].accepted == i || o.verdicts[i].why == status::invalid_parameter ||
           o.verdicts[i].emitted == o.verdicts[i].accepted));
  CHECK(o.verdicts[0].why == status::invalid_parameter);
}
TEST_CASE(
    "what a callback of a batch throws reaches the caller, on any pool, and the pool can be used "
    "again") {
  const requests r(37);
  const outcome due = verify(r, token_verifier{}, this_thread());
  const auto check = [&](auto&& pool) {
    for (const std::size_t bad : {0u, 5u, 36u})
      for (const bool in_rows : {false, true}) {
        std::vector<verdict> verdicts(r.count);
        std::vector<emission> out(r.count * (r.gamma + 1));
        std::vector<double> scratch(r.count * verify_scratch(r.vocabulary, r.gamma));
        const auto request = [&](std::size_t i) {
          if (i == bad && !in_rows) throw std::runtime_error("no such request");
          const auto whole = r.request(i, out);
          const auto rows = rows_of(r.gamma + 1, [=](std::size_t j) {
            if (i == bad && in_rows) throw std::runtime_error("no such row");
            return whole.p_rows[j];
          });
          return verification{whole.drafted, whole.q_rows,  rows,
                              whole.policy,  whole.chooser, whole.out};
        };
        std::string what;
        try {
          verify_batch(request, verdicts, scratch, token_verifier{}, pool);
        } catch (const std::runtime_error& e) {
          what = e.what();
        }
        CHECK(what == (in_rows ? "no such row" : "no such request"));
        CHECK(verify(r, token_verifier{}, pool) == due);
      }
  };
  check(this_thread());
  for (const unsigned threads : {1u, 2u, 4u}) check(thread_pool(threads));
}

namespace {

// Trees of 1 to 12 tokens; request 4 is no tree, request 6 has rows of NaN.
struct tree_requests {
  static constexpr std::size_t vocabulary = 300, count = 13, most = 12;
  std::vector<float> logits;
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> parents;
  tree_requests()
      : logits(count * (most + 1) * vocabulary), tokens(count * most), parents(count * most) {
    numbers noise(9);
    // tokens 0 and 1 have most of the mass, and are drafted
    for (std::size_t k = 0; k < logits.size(); ++k)
      logits[k] = float(3 * noise.uniform()) + (k % vocabulary < 2 ? 8 : 0);
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t n = 0; n < most; ++n) {
        tokens[i * most + n] = token_id(noise.uniform() * 2);
        parents[i * most + n] = std::uint32_t(noise.uniform() * double(n + 1));
      }
    parents[4 * most] = 3;
    std::fill_n(logits.begin() + std::ptrdiff_t(6 * (most + 1) * vocabulary), vocabulary,
                std::nanf(""));
  }
  processed_row<float> row(std::size_t i, std::size_t n) const {
    return processed_row<float>(
        std::span(logits).subspan((i * (most + 1) + n) * vocabulary, vocabulary));
  }
};
struct tree_outcome {
  std::vector<tree_verdict> verdicts = std::vector<tree_verdict>(tree_requests::count);
  std::vector<emission> out =
      std::vector<emission>(tree_requests::count * (tree_requests::most + 1));
  std::vector<tree_node> nodes = std::vector<tree_node>(out.size());
  std::vector<float> residual = std::vector<float>(out.size() * tree_requests::vocabulary);
  // Request i, with its part of the memory. The children have the probability 1: one-hot laws.
  auto request(const tree_requests& r, std::size_t i) {
    constexpr std::size_t most = tree_requests::most, V = tree_requests::vocabulary;
    const std::span<const token_id> tokens = std::span(r.tokens).subspan(i * most, 1 + i % most);
    return tree_verification{
        draft_tree{.tokens = tokens,
                   .parents = std::span(r.parents).subspan(i * most, tokens.size()),
                   .start = std::uint32_t(10 * i)},
        rows_of(tokens.size() + 1,
                [=](std::size_t n) { return one_hot_row<float>(tokens[n - 1], V); }),
        rows_of(tokens.size() + 1, [&r, i](std::size_t n) { return r.row(i, n); }),
        rows_of(tokens.size() + 1, [&r, i](std::size_t n) { return r.row(i, n); }),
        any_policy(ensemble{0.3}),
        random_streams(2, i),
        tree_memory<float>{std::span(out).subspan(i * (most + 1), most + 1),
                           std::span(nodes).subspan(i * (most + 1), most + 1),
                           std::span(residual).subspan(i * (most + 1) * V, (most + 1) * V),
                           {}}};
  }
  bool operator==(const tree_outcome& o) const {
    for (std::size_t i = 0; i < verdicts.size(); ++i) {
      const tree_verdict &a = verdicts[i], &b = o.verdicts[i];
      if (a.accepted != b.accepted || a.emitted != b.emitted || a.why != b.why || a.node != b.node)
        return false;
      for (std::size_t k = i * (tree_requests::most + 1), end = k + a.emitted; k < end; ++k)
        if (out[k].token != o.out[k].token || out[k].from != o.out[k].from) return false;
    }
    return true;
  }
};

}  // namespace

TEST_CASE("a batch of trees gives what each tree gives alone, on any pool, by both verifiers") {
  const tree_requests r;
  const auto check = [&](const auto& verifier) {
    tree_outcome alone;
    std::vector<double> scratch(r.count * verify_scratch(r.vocabulary));
    std::size_t accepted = 0, rejected = 0;
    for (std::size_t i = 0; i < r.count; ++i) {
      alone.verdicts[i] = verify(alone.request(r, i), verifier,
                                 std::span(scratch).first(verify_scratch(r.vocabulary)));
      (alone.verdicts[i].accepted > 0 ? accepted : rejected) += 1;
    }
    CHECK(alone.verdicts[4].why == status::invalid_parameter);
    CHECK(alone.verdicts[6].why == status::invalid_row);
    CHECK(rejected > 2);
    const auto batch = [&](auto&& pool) {
      tree_outcome o;
      verify_batch([&](std::size_t i) { return o.request(r, i); }, o.verdicts, scratch, verifier,
                   pool);
      return o;
    };
    CHECK(batch(this_thread()) == alone);
    CHECK(batch(backwards()) == alone);
    CHECK(batch(thread_pool(3)) == alone);
    return accepted;
  };
  CHECK(check(traversal{}) > 3);
  CHECK(check(recursive_rejection{}) > 3);
  tree_outcome by_default, due;
  std::vector<double> scratch(r.count * verify_scratch(r.vocabulary));
  verify_batch([&](std::size_t i) { return by_default.request(r, i); }, by_default.verdicts,
               scratch);
  verify_batch([&](std::size_t i) { return due.request(r, i); }, due.verdicts, scratch,
               traversal{});
  CHECK(by_default == due);
}
