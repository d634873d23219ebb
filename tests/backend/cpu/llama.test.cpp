// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/attention.hpp>
#include <specagg/backend/cpu/llama.hpp>  // first: it puts the library's intrinsics before Eigen's
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/logit_source.hpp>

#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "backend/cpu/models.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::cpu;
using test::bundled, test::weights_of, test::some_tokens, test::rows_of, test::same_bits;

static_assert(LogitSource<llama>);

TEST_CASE(
    "the bundled models reproduce their references: likelihoods, logits, greedy continuation") {
  // of a token, of a text (relative), of a logit: keys and values are rounded to f16
  const double nll_tolerance = 2e-3, text_tolerance = 1e-4, logit_tolerance = 2e-3;
  for (const std::string name : {"draft", "target", "bard", "bible"}) {
    const auto weights = bundled(name);
    const auto vocab = weights->vocab;
    const tokenizer text(weights->file);
    for (const auto& r : nlohmann::json::parse(
             std::ifstream(std::string(SPECAGG_MODELS) + "/" + name + ".reference.json"))) {
      const auto ids = text.encode(r["text"].get<std::string>());
      REQUIRE(ids == r["ids"].get<std::vector<token_id>>());
      llama model(weights);
      auto logits = rows_of(model, ids);
      const auto log_sum = [&](std::size_t row) {
        double sum = 0;
        for (std::size_t v = 0; v < vocab; ++v) sum += std::exp(double{logits[row * vocab + v]});
        return std::log(sum);
      };
      double all = 0, all_expected = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto nll = log_sum(i) - logits[i * vocab + static_cast<std::size_t>(ids[i + 1])],
                   expected = r["nll_per_token"][i].get<double>();
        CHECK(std::abs(nll - expected) < nll_tolerance);
        all += nll;
        all_expected += expected;
      }
      CHECK(all == Approx(all_expected).epsilon(text_tolerance));
      CHECK(std::abs(log_sum(ids.size() - 1) - r["last_logsumexp"].get<double>()) < nll_tolerance);
      std::vector<float> last(logits.end() - static_cast<std::ptrdiff_t>(vocab), logits.end());
      std::vector<std::size_t> order(vocab);
      for (std::size_t v = 0; v < vocab; ++v) order[v] = v;
      std::stable_sort(order.begin(), order.end(),
                       [&](auto a, auto b) { return last[a] > last[b]; });
      for (std::size_t i = 0; i < 8; ++i) {
        CHECK(order[i] == r["last_logits_top8"][i][0].get<std::size_t>());
        CHECK(std::abs(last[order[i]] - r["last_logits_top8"][i][1].get<double>()) <
              logit_tolerance);
      }
      std::vector<token_id> greedy;
      for (std::size_t i = 0; i < r["greedy_continuation_ids"].size(); ++i) {
        greedy.push_back(
            static_cast<token_id>(std::max_element(last.begin(), last.end()) - last.begin()));
        REQUIRE(model.extend(std::span(&greedy.back(), 1), last) == status::ok);
      }
      CHECK(greedy == r["greedy_continuation_ids"].get<std::vector<token_id>>());
    }
  }
}

TEST_CASE(
    "logits have the same bits fed at once, one by one, in random parts, after rollbacks, on 1, 2 "
    "and 3 threads") {
  const test::gguf_bytes small(test::small_model{}.write().bytes());
  for (const auto& weights : {bundled("draft"), bundled("target"), weights_of(small)}) {
    const auto vocab = weights->vocab;
    const auto tokens = some_tokens(77, vocab);
    llama at_once(weights);
    const auto expected = rows_of(at_once, tokens);
    const auto row = [&](std::size_t i, std::size_t n) {
      return std::span(expected).subspan(i * vocab, n * vocab);
    };
    for (unsigned threads : {1u, 2u, 3u}) {
      llama model(weights, std::make_shared<thread_pool>(threads));
      CHECK(same_bits(rows_of(model, tokens), expected));
      (void)model.rollback(0);
      for (std::size_t i = 0; i < tokens.size(); ++i)
        CHECK(same_bits(rows_of(model, std::span(tokens).subspan(i, 1)), row(i, 1)));
      std::mt19937 random(threads);
      for (std::size_t i = 0, steps = 0; steps < 40; ++steps) {
        // back to anywhere, over wrong tokens of another future
        i = random() % 3 == 0 ? random() % (i + 1) : i;
        (void)model.rollback(i);
        const auto wrong = some_tokens(random() % 4, vocab, 99);
        rows_of(model, wrong);
        (void)model.rollback(i);
        CHECK(model.position() == i);
        const auto n = std::min<std::size_t>(tokens.size() - i, random() % 9);
        CHECK(same_bits(rows_of(model, std::span(tokens).subspan(i, n)), row(i, n)));
        i += n;
      }
    }
  }
}

TEST_CASE(
    "a text of several pages and ranges has the same bits at once, one by one and after rollbacks, "
    "on 1, 2 and 4 threads") {
  const test::gguf_bytes small(test::small_model{.context = 400}.write().bytes());
  for (const auto& weights : {bundled("draft"), weights_of(small)}) {
    const auto tokens = some_tokens(390, weights->vocab);
    llama at_once(weights);
    const auto expected = rows_of(at_once, tokens);
    for (const unsigned threads : {1u, 2u, 4u}) {
      llama model(weights, std::make_shared<thread_pool>(threads));
      CHECK(same_bits(rows_of(model, tokens), expected));
      test::check_rollbacks(model, tokens, expected, threads, 20, 150);
      (void)model.rollback(0);
      for (std::size_t i = 0; i < tokens.size(); ++i)
        REQUIRE(same_bits(rows_of(model, std::span(tokens).subspan(i, 1)),
                          std::span(expected).subspan(i * weights->vocab, weights->vocab)));
    }
  }
}

TEST_CASE("only the last rows are written when fewer are wanted, none for a mere prefill") {
  const auto weights = bundled("draft");
  const auto vocab = weights->vocab;
  const auto tokens = some_tokens(70, vocab);
  llama model(weights);
  const auto all = rows_of(model, tokens);
  for (std::size_t wanted : {0u, 1u, 6u, 37u, 38u, 39u, 69u}) {
    (void)model.rollback(0);
    std::vector<float> logits(wanted * vocab);
    REQUIRE(model.extend(tokens, logits) == status::ok);
    CHECK(same_bits(logits, std::span(all).last(logits.size())));
    CHECK(model.position() == tokens.size());
  }
}

TEST_CASE("the bits of the logits are the same in every build") {
  // A fingerprint of all rows; every compiler, set of flags and instruction set must find the same.
  const auto fingerprint = [](const std::shared_ptr<const llama_weights>& weights) {
    llama model(weights);
    std::uint64_t h = 14695981039346656037u;
    for (float x : rows_of(model, some_tokens(300, weights->vocab)))
      h = (h ^ std::bit_cast<std::uint32_t>(x)) * 1099511628211u;
    return h;
  };
  CHECK(fingerprint(bundled("draft")) == 0xe90e94c25f1a389eu);
  CHECK(fingerprint(bundled("target")) == 0xc8de620bb6c0263au);
  const auto quantised = [&](tensor_type type) {
    const test::gguf_bytes bytes(test::small_model{.type = type, .context = 300}.write().bytes());
    return fingerprint(weights_of(bytes));
  };
  CHECK(quantised(tensor_type::q4_0) == 0x95c96d5054db370bu);
  CHECK(quantised(tensor_type::q4_1) == 0x6a504d12193a183cu);
  CHECK(quantised(tensor_type::q8_0) == 0x44e28500daa18f1eu);
}

TEST_CASE(
    "the float types give the same bits for the same numbers, tied and separate output agree") {
  const auto logits = [](test::small_model m) {
    const test::gguf_bytes bytes(m.write().bytes());
    llama model(weights_of(bytes));
    return rows_of(model, some_tokens(50, model.vocab_size()));
  };
  const auto expected = logits({});
  for (float x : expected) REQUIRE(std::isfinite(x));
  for (auto type : {tensor_type::f16, tensor_type::bf16})
    CHECK(same_bits(logits({.type = type}), expected));
  // Q8_0 has the same numbers, too, but rounds the activations.
  const auto rounded = logits({.type = tensor_type::q8_0});
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    apart = std::max(apart, double(std::abs(rounded[i] - expected[i])));
    size = std::max(size, double(std::abs(expected[i])));
  }
  CHECK((apart > 0 && apart < 0.03 * size));
  CHECK(same_bits(logits({.separate_output = 1}), expected));
  auto negated = logits({.separate_output = -1});
  for (float& x : negated) x = -x;
  CHECK(same_bits(negated, expected));
}

TEST_CASE(
    "a session answers with a status, and appends nothing, when tokens do not fit or are none") {
  const test::gguf_bytes bytes(test::small_model{}.write().bytes());
  const auto weights = weights_of(bytes);
  const auto vocab = weights->vocab;
  llama model(weights);
  CHECK(model.capacity() == 80);
  CHECK(llama(weights, nullptr, 20).capacity() == 20);
  CHECK(llama(weights, nullptr, 1000).capacity() == 80);
  std::vector<float> row(vocab);
  const auto tokens = some_tokens(81, vocab);
  CHECK(model.extend(tokens, {}) == status::context_full);
  CHECK(model.position() == 0);
  CHECK(model.extend(std::span(tokens).first(79), {}) == status::ok);
  for (token_id bad :
       {no_token, static_cast<token_id>(vocab), std::numeric_limits<token_id>::min()}) {
    const token_id one[] = {bad};
    CHECK(model.extend(one, row) == status::token_out_of_range);
  }
  CHECK(model.extend(std::span(tokens).first(2), row) == status::context_full);
  CHECK(model.extend({}, row) == status::invalid_parameter);
  CHECK(model.extend(std::span(tokens).first(1), std::span(row).first(vocab - 1)) ==
        status::invalid_parameter);
  CHECK(model.position() == 79);
  CHECK(model.extend({}, {}) == status::ok);
  CHECK(model.extend(std::span(tokens).first(1), row) == status::ok);
  CHECK(model.position() == model.capacity());
  CHECK(model.extend(std::span(tokens).first(1), row) == status::context_full);
  (void)model.rollback(1000);
  CHECK(model.position() == 80);
}

namespace {
std::atomic<bool> alarmed = false;
static_assert(std::atomic<bool>::is_always_lock_free);
itimerval timer_of(std::chrono::microseconds::rep after) {
  return {{0, 0},
          {static_cast<time_t>(after / 1000000), static_cast<suseconds_t>(after % 1000000)}};
}
}  // namespace

TEST_CASE(
    "a model that is stopped, at any layer, has appended nothing and gives the same bits "
    "afterwards") {
  using std::chrono::steady_clock;
  const auto weights = bundled("target");
  const auto vocab = weights->vocab;
  const auto tokens = some_tokens(40, vocab), wrong = some_tokens(60, vocab, 7);
  llama model(weights), undisturbed(weights);
  const auto expected = rows_of(undisturbed, tokens);
  std::vector<float> row(vocab);
  model.stop_when(&alarmed);
  alarmed = true;
  CHECK(model.extend(tokens, row) == status::stopped);
  CHECK(model.position() == 0);
  CHECK(model.extend({}, {}) == status::ok);
  alarmed = false;
  REQUIRE(model.extend(std::span(tokens).first(30), {}) == status::ok);
  const auto again = [&] {
    const auto rest = rows_of(model, std::span(tokens).subspan(30));
    CHECK(same_bits(rest, std::span(expected).subspan(30 * vocab)));
    (void)model.rollback(30);
  };
  again();
  // A timer sets the flag while 32 tokens (computed in one go) or 60 (in two) are on their way.
  const auto handler = std::signal(SIGALRM, [](int) { alarmed = true; });
  for (const std::size_t many : {32u, 60u}) {
    auto whole = steady_clock::duration::max();
    for (int i = 0; i < 5; ++i) {
      const auto start = steady_clock::now();
      REQUIRE(model.extend(std::span(wrong).first(many), row) == status::ok);
      whole = std::min(whole, steady_clock::now() - start);
      (void)model.rollback(30);
    }
    int on_the_way = 0;  // neither before the first layer nor at the end
    for (int i = 0; on_the_way < 12 || i < 54; ++i) {
      REQUIRE(i < 2000);
      const auto after =
          std::chrono::duration_cast<std::chrono::microseconds>(whole) * (i % 18 + 1) / 24;
      const itimerval timer = timer_of(after.count() + 1);
      const auto begin = steady_clock::now();
      setitimer(ITIMER_REAL, &timer, nullptr);
      const status s = model.extend(std::span(wrong).first(many), row);
      const auto took = steady_clock::now() - begin;
      while (!alarmed) specagg::detail::spin_pause();
      alarmed = false;
      on_the_way += s == status::stopped && took > whole / 50 && took < whole * 6 / 10;
      CHECK((s == status::ok || s == status::stopped));
      CHECK(model.position() == (s == status::ok ? 30 + many : 30));
      (void)model.rollback(30);
      again();
    }
  }
  std::signal(SIGALRM, handler);
  alarmed = true;
  model.stop_when(nullptr);
  again();
  alarmed = false;
}

TEST_CASE("a copy goes on from the same text with the same bits, and neither disturbs the other") {
  const test::gguf_bytes small(test::small_model{.context = 220}.write().bytes());
  for (const auto& weights : {bundled("draft"), bundled("target"), weights_of(small)}) {
    const auto vocab = weights->vocab;
    const auto tokens = some_tokens(200, vocab), other_tokens = some_tokens(30, vocab, 5);
    llama plain(weights), model(weights, std::make_shared<thread_pool>(2));
    const auto expected = rows_of(plain, tokens);
    for (const std::size_t split : {0u, 1u, 16u, 33u, 64u, 100u, 128u, 191u}) {
      const auto rest = [&] { return std::span(tokens).subspan(split); };
      const auto due = std::span(expected).subspan(split * vocab);
      (void)model.rollback(0);
      rows_of(model, std::span(tokens).first(split));
      llama copy(model), shorter(weights, nullptr, 205);
      rows_of(shorter, other_tokens);
      REQUIRE(shorter.adopt(model) == status::ok);
      rows_of(model, std::span(other_tokens).first(9));  // runs into its own cache
      CHECK((copy.position() == split && shorter.position() == split &&
             copy.capacity() == model.capacity()));
      CHECK(same_bits(rows_of(copy, rest()), due));
      CHECK(same_bits(rows_of(shorter, rest()), due));
      (void)model.rollback(split);
      CHECK(same_bits(rows_of(model, rest()), due));
    }
    std::atomic<bool> flag{true};
    model.stop_when(&flag);
    llama copy(model);
    (void)copy.rollback(60);
    CHECK(same_bits(rows_of(copy, std::span(tokens).subspan(60)),
                    std::span(expected).subspan(60 * vocab)));
    llama short_one(weights, nullptr, 40);
    rows_of(short_one, std::span(tokens).first(4));
    CHECK(short_one.adopt(model) == status::context_full);
    CHECK(short_one.position() == 4);
    const auto other = bundled("draft");
    CHECK(llama(other).adopt(model) == status::invalid_parameter);
  }
}

TEST_CASE("a copy of a session with a tree has the tree, too, and neither disturbs the other") {
  const auto weights = bundled("draft");
  const auto vocab = weights->vocab;
  const auto nodes = some_tokens(5, vocab, 2);
  const std::vector<std::uint32_t> parents = {0, 0, 1, 2, 4}, left = {1, 3}, right = {2, 4, 5};
  for (const std::size_t size : {0u, 4u, 60u, 62u, 64u}) {  // a page has 64 positions
    const auto context = some_tokens(size, vocab);
    const auto ends_as = [&](llama& m, std::span<const std::uint32_t> path) {
      auto whole = context;
      REQUIRE(m.keep_path(path) == status::ok);
      for (const std::uint32_t n : path) whole.push_back(nodes[n - 1]);
      CHECK(std::ranges::equal(m.tokens(), whole));
      CHECK(m.position() == whole.size());
      const auto more = some_tokens(3, vocab, 3);
      llama plain(weights);
      if (!whole.empty()) REQUIRE(plain.extend(whole, {}) == status::ok);
      CHECK(same_bits(rows_of(m, more), rows_of(plain, more)));
    };
    llama model(weights);
    model.keep_hidden();
    if (size > 0) REQUIRE(model.extend(context, {}) == status::ok);
    std::vector<float> rows(5 * vocab), again(2 * vocab), due(2 * vocab);
    REQUIRE(model.extend_tree(nodes, parents, rows) == status::ok);
    llama copy(model), other(weights);
    CHECK((copy.position() == size + 5 && std::ranges::equal(copy.tokens(), context)));
    CHECK((copy.adopt(copy) == status::ok && copy.position() == size + 5));
    CHECK(same_bits(copy.node_hidden(4), model.node_hidden(4)));
    CHECK(copy.extend(some_tokens(1, vocab), {}) == status::invalid_parameter);  // end it first
    REQUIRE(other.extend_tree(nodes, parents, {}) == status::ok);
    CHECK(other.adopt(model) == status::ok);
    CHECK((other.position() == size + 5 && std::ranges::equal(other.tokens(), context)));
    // Both go on with the tree, and keep other paths.
    const auto grown = some_tokens(2, vocab, 7);
    const std::vector<std::uint32_t> under = {5, 6};
    REQUIRE(copy.extend_tree(grown, under, again) == status::ok);
    REQUIRE(model.extend_tree(grown, under, due) == status::ok);
    CHECK(same_bits(again, due));
    ends_as(model, left);
    ends_as(copy, right);
    ends_as(other, right);
  }
}

TEST_CASE(
    "a session says which tokens it holds, after rollbacks, trees, copies and what it refused") {
  const auto weights = bundled("draft");
  const auto text = some_tokens(9, weights->vocab), nodes = some_tokens(4, weights->vocab, 2);
  const auto holds = [](const llama& m, const std::vector<token_id>& due) {
    return std::ranges::equal(m.tokens(), due);
  };
  std::vector<token_id> due = text;
  llama model(weights);
  REQUIRE(model.extend(text, {}) == status::ok);
  CHECK(holds(model, due));
  CHECK(model.extend(std::vector<token_id>{1, -1}, {}) == status::token_out_of_range);
  CHECK(holds(model, due));
  const std::vector<std::uint32_t> parents = {0, 0, 1, 2}, path = {2, 4};
  REQUIRE(model.extend_tree(nodes, parents, {}) == status::ok);
  CHECK(holds(model, due));  // without the tree, which has not ended
  REQUIRE(model.rollback(9) == status::ok);
  CHECK(holds(model, due));
  REQUIRE(model.extend_tree(nodes, parents, {}) == status::ok);
  REQUIRE(model.keep_path(path) == status::ok);
  due.insert(due.end(), {nodes[1], nodes[3]});
  CHECK(holds(model, due));
  CHECK(holds(llama(model), due));
  REQUIRE(model.rollback(3) == status::ok);
  due.resize(3);
  CHECK(holds(model, due));
}

TEST_CASE("the last position of a context that is no multiple of 16 works") {
  const test::gguf_bytes bytes(test::small_model{.context = 35}.write().bytes());
  const auto weights = weights_of(bytes);
  llama a(weights), b(weights);
  const auto tokens = some_tokens(35, weights->vocab);
  const auto expected = rows_of(a, tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    CHECK(same_bits(rows_of(b, std::span(tokens).subspan(i, 1)),
                    std::span(expected).subspan(i * weights->vocab, weights->vocab)));
}

TEST_CASE(
    "every NaN of a row or a hidden state is the same one, whichever NaNs and infinities the "
    "weights hold") {
  test::gguf_bytes file(test::small_model{.separate_output = 1}.write().bytes());
  const auto weights = weights_of(file);
  const std::size_t dim = weights->dim, vocab = weights->vocab;
  const auto put = [&](const char* name, std::size_t row, std::size_t col, std::uint32_t bits) {
    file.put(name, row * dim + col, bits);
  };
  const auto nans_of = [](std::span<const float> numbers) {
    std::size_t nans = 0, others = 0;
    for (const float x : numbers) {
      nans += x != x;
      others += x != x && std::bit_cast<std::uint32_t>(x) != 0x7fc00000u;
    }
    CHECK(others == 0);
    return nans;
  };
  // negative
  put("output.weight", 5, 0, 0xffc00001u);
  // signalling
  put("output.weight", 17, 3, 0x7fa00002u);
  // infinities: their
  put("output.weight", 9, 8, 0x7f800000u);
  put("output.weight", 9, 9, 0xff800000u);
  // difference may be made
  put("output.weight", 270, 8, 0x7f800000u);
  put("output.weight", 270, 9, 0x7f800000u);
  llama model(weights);
  model.keep_hidden();
  const auto nans = nans_of(rows_of(model, std::vector<token_id>{1, 2, 3}));
  CHECK((nans >= 3 * 3 && nans <= 3 * 4));
  CHECK(nans_of(model.hidden(2)) == 0);
  put("token_embd.weight", 4, 7, 0xffc12345u);
  CHECK(nans_of(rows_of(model, std::vector<token_id>{4})) == vocab);
  CHECK(nans_of(model.hidden(3)) == dim);
}

TEST_CASE(
    "a session whose memory is out of proportion to the file is refused, a shorter one is not") {
  const test::gguf_bytes bytes(test::small_model{.context = 1 << 24}.write().bytes());
  const auto weights = weights_of(bytes);
  CHECK(llama(weights).capacity() == 4096);
  CHECK(test::error_of([&] { llama(weights, nullptr, 1 << 24); }) ==
        "test.gguf: context of 16777216 tokens: takes 9920 MiB of memory");
}

TEST_CASE(
    "quantised models: the same bits one by one, in parts, all at once, after rollbacks, on 1, 2 "
    "and 4 threads") {
  for (auto type : {tensor_type::q4_0, tensor_type::q4_1, tensor_type::q8_0}) {
    const test::gguf_bytes bytes(test::small_model{.type = type}.write().bytes());
    const auto weights = weights_of(bytes);
    const auto tokens = some_tokens(60, weights->vocab);
    llama once(weights);
    const auto expected = rows_of(once, tokens);
    for (unsigned threads : {1u, 2u, 4u}) {
      llama model(weights, std::make_shared<thread_pool>(threads));
      std::mt19937 random(threads);
      std::vector<float> logits(expected.size());
      std::size_t done = 0;
      while (done < tokens.size()) {
        const auto some = std::min<std::size_t>(1 + random() % 14, tokens.size() - done);
        REQUIRE(model.extend(std::span(tokens).subspan(done, some),
                             std::span(logits).subspan(done * weights->vocab,
                                                       some * weights->vocab)) == status::ok);
        done += some;
        if (random() % 3 != 0) continue;
        done -= random() % some;
        REQUIRE(model.rollback(done) == status::ok);
      }
      CHECK(same_bits(logits, expected));
    }
  }
}

TEST_CASE("weights that were not repacked are refused by name, unless there is nothing to repack") {
  const auto refused = [](tensor_type type) {
    const test::gguf_bytes bytes(test::small_model{.type = type}.write().bytes());
    return test::error_of(
        [&] { llama(std::make_shared<const llama_weights>(bytes.open(), false)); });
  };
  CHECK(refused(tensor_type::f16) == "");
  CHECK(refused(tensor_type::q4_1) ==
        "test.gguf: tensor token_embd.weight: was not repacked for the CPU");
}

TEST_CASE("a model whose weights are not numbers gives rows of NaN, not a crash") {
  auto bytes = test::small_model{}.write().bytes();
  std::memset(bytes.data() + bytes.size() - 4096, 0xff, 4096);
  const test::gguf_bytes kept(bytes);
  llama model(weights_of(kept));
  const auto logits = rows_of(model, some_tokens(3, model.vocab_size()));
  CHECK(std::isnan(logits.back()));
}
