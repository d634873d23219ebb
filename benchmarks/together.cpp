// SPDX-License-Identifier: Apache-2.0
// What long texts cost on the CPU backend, beside libllama where CMake has found it, and what many
// texts gain in one call.
//   bench-together [model.gguf] [threads] [turns]
// Default: the bundled target, two threads, whole texts in 5 turns. Rows and texts are checked
// before times are printed: together they must have the bits and the tokens that they have alone.
// Medians, of 9 where nothing else is said; warm.
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/decoders.hpp>
#if defined(SPECAGG_BENCH_LLAMA)
#include <specagg/backend/llama_cpp/model.hpp>
#include <specagg/backend/llama_cpp/source.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace specagg;
using cpu::llama;

struct setting {
  std::shared_ptr<const cpu::llama_weights> weights;
  std::shared_ptr<thread_pool> pool;
};

std::vector<token_id> some_tokens(std::size_t count, std::size_t vocab, std::size_t seed) {
  std::vector<token_id> tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<token_id>((seed * 104729 + i * i * 31 + i * 7919) % vocab);
  return tokens;
}
void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "bench-together: %s\n", what);
  std::exit(1);
}
template <class Body>
double milliseconds(Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}
double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ptrdiff_t(x.size() / 2), x.end());
  return x[x.size() / 2];
}

#if defined(SPECAGG_BENCH_LLAMA)
struct libllama {
  static constexpr bool found = true;
  std::shared_ptr<llama_model> model;
  std::shared_ptr<llama_context> context;
  llama_cpp::source text;
  libllama(const std::string& file, unsigned threads, std::size_t most)
      : model(llama_cpp::load_model(file)),
        context(llama_cpp::make_context(model, setting_of(threads, most), file)),
        text(context.get()) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  }
  static llama_context_params setting_of(unsigned threads, std::size_t most) {
    auto how = llama_context_default_params();
    how.n_ctx = std::uint32_t(most);
    how.n_threads = how.n_threads_batch = int(threads);
    return how;
  }
  status extend(std::span<const token_id> tokens, std::size_t rows) {
    const status s = text.decode(tokens, rows);
    if (s == status::ok && rows > 0) (void)text.row(0);  // waits for them
    return s;
  }
};
#else
struct libllama {
  static constexpr bool found = false;
  struct {
    std::size_t position() const { return 0; }
    std::span<float> row(std::size_t) const { return {}; }
    status rollback(std::size_t) { return status::ok; }
  } text;
  libllama(const std::string&, unsigned, std::size_t) {}
  status extend(std::span<const token_id>, std::size_t) { return status::ok; }
};
#endif

// How far two rows of logits are apart: the standard deviation of their difference, in that of the
// first.
double apart(std::span<const float> a, std::span<const float> b) {
  const auto deviation = [&](auto&& x) {
    double sum = 0, squares = 0;
    for (std::size_t v = 0; v < a.size(); ++v) sum += x(v), squares += x(v) * x(v);
    const double n = double(a.size());
    return std::sqrt(squares / n - sum / n * (sum / n));
  };
  return deviation([&](std::size_t v) { return double(a[v]) - double(b[v]); }) /
         deviation([&](std::size_t v) { return double(a[v]); });
}

// One text: t(n) where its context has so many tokens.
void time_contexts(const setting& s, const std::string& file) {
  constexpr std::size_t counts[] = {1, 5, 17, 33}, most = std::ranges::max(counts);
  constexpr std::size_t contexts[] = {100, 1000, 2000, 3900};
  const std::size_t V = s.weights->vocab;
  llama model(s.weights, s.pool);
  libllama rival(file, s.pool->threads(), 4096);
  const auto tokens = some_tokens(model.capacity(), V, 1);
  std::vector<float> logits(most * V);
  const auto ours = [&](std::span<const token_id> next, std::size_t rows) {
    check(model.extend(next, std::span(logits).first(rows * V)) == status::ok, "the model failed");
  };
  const auto theirs = [&](std::span<const token_id> next, std::size_t rows) {
    check(rival.extend(next, rows) == status::ok, "libllama failed");
  };
  std::printf("One text: t(n), ms\n\n| context | | n = 1 | 5 | 17 | 33 |\n");
  std::printf("| ---: | --- | ---: | ---: | ---: | ---: |\n");
  for (const std::size_t context : contexts) {
    if (context + most > model.capacity()) break;
    const auto until = std::span(tokens).first(context);
    ours(until.subspan(model.position()), 0);
    theirs(until.subspan(rival.text.position()), 0);
    std::vector<double> times[2][std::size(counts)];
    const auto time = [&](std::size_t who, auto& text, const auto& extend) {
      // The threads of the other sleep by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      for (int round = 0; round < 4; ++round)  // the first is not counted
        for (std::size_t i = 0; i < std::size(counts); ++i) {
          (void)text.rollback(context);
          const auto next = std::span(tokens).subspan(context, counts[i]);
          const auto t = milliseconds([&] { extend(next, counts[i]); });
          if (round > 0) times[who][i].push_back(t);
        }
    };
    for (int turn = 0; turn < 3; ++turn) {  // so that a slow second meets all of them
      time(0, model, ours);
      if (libllama::found) time(1, rival.text, theirs);
    }
    for (std::size_t t = 0; t < most && libllama::found; ++t)
      check(apart(std::span(logits).subspan(t * V, V), rival.text.row(t)) < 0.1,
            "libllama has other rows");
    (void)model.rollback(context);
    (void)rival.text.rollback(context);
    const auto line = [&](const char* who, auto&& number) {
      std::printf("| %zu | %s |", context, who);
      for (std::size_t i = 0; i < std::size(counts); ++i) std::printf(" %.2f |", number(i));
      std::printf("\n");
      std::fflush(stdout);
    };
    const auto of = [&](std::size_t who) {
      return [&times, who](std::size_t i) { return median(times[who][i]); };
    };
    line("specagg", of(0));
    if (!libllama::found) continue;
    line("libllama", of(1));
    line("its time / ours", [&](std::size_t i) { return of(1)(i) / of(0)(i); });
  }
}

// Calls of k texts with n tokens each, after 100 tokens of context.
void time_calls(const setting& s) {
  constexpr std::size_t context = 100, most = 32;
  const std::size_t V = s.weights->vocab;
  std::deque<llama> texts;
  std::vector<std::vector<token_id>> tokens;
  std::vector<std::vector<float>> rows(most), alone(most);
  for (std::size_t i = 0; i < most; ++i) {
    tokens.push_back(some_tokens(context + 5, V, i));
    texts.emplace_back(s.weights, s.pool, context + 28);
    rows[i].resize(5 * V);
    alone[i].resize(5 * V);
    check(texts[i].extend(std::span(tokens[i]).first(context), {}) == status::ok,
          "the model failed");
  }
  std::printf("\nk texts, n tokens of each in one call, %zu of context; against one by one\n\n",
              context);
  std::printf("| n | k | a call, ms | tokens a second | one by one | gain |\n");
  std::printf("| ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const std::size_t n : {1, 5})
    for (const std::size_t k : {1, 8, 32}) {
      const auto next = [&](std::size_t i) { return std::span(tokens[i]).subspan(context, n); };
      std::vector<double> one_by_one, together;
      for (int round = 0; round < 9; ++round) {
        one_by_one.push_back(milliseconds([&] {
          for (std::size_t i = 0; i < k; ++i)
            check(texts[i].extend(next(i), std::span(alone[i]).first(n * V)) == status::ok,
                  "the model failed");
        }));
        for (llama& text : texts) (void)text.rollback(context);
        std::vector<llama::addition> all;
        for (std::size_t i = 0; i < k; ++i)
          all.push_back({&texts[i], next(i), std::span(rows[i]).first(n * V)});
        together.push_back(
            milliseconds([&] { check(llama::extend(all) == status::ok, "the model failed"); }));
        for (llama& text : texts) (void)text.rollback(context);
        for (std::size_t i = 0; i < k; ++i)
          check(std::memcmp(rows[i].data(), alone[i].data(), n * V * sizeof(float)) == 0,
                "a row in a call of several texts is not that of the text alone");
      }
      const double a = median(one_by_one), b = median(together), all = double(n * k);
      std::printf("| %zu | %zu | %.2f | %.0f | %.0f | %.2f |\n", n, k, b, all / b * 1e3,
                  all / a * 1e3, a / b);
    }
}

// Whole texts: 32 of 64 tokens after 32. Lookups draft nothing, up to 4 tokens, or up to 4 by load
// (plan/load.hpp), by times of calls that were measured before.
template <class L>
struct request {
  std::vector<token_id> memory;
  text written{memory, 32};
  random_streams random;
  llama target;
  lookup_drafter<> drafter;
  drafting_workspace<float, normal_form<one_hot_row<float>>> work;
  lossless policy;
  using shared_text =
      together_text<lookup_drafter<>, llama, lossless, random_streams, token_verifier, L>;
  shared_text shared{drafter, target, policy, random, {.text = written, .most = 64, .work = work}};
  request(const setting& s, std::size_t seed, const decode_options& options)
      : memory(some_tokens(128, s.weights->vocab, seed)),
        random(seed),
        target(s.weights, s.pool, 128),
        drafter(s.weights->vocab, 128),
        work(s.weights->vocab, options) {}
};
struct written {
  std::vector<token_id> tokens = {};
  double seconds = 0;
  std::size_t drafted = 0, rounds = 0;
};
template <class L, class Load>
written write(const setting& s, std::size_t at_once, const decode_options& options, Load load) {
  std::deque<request<L>> all;
  for (std::size_t i = 0; i < 32; ++i) all.emplace_back(s, i, options);
  using shared_text = typename request<L>::shared_text;
  std::vector<shared_text*> now;
  together_workspace<shared_text> work;
  std::size_t next = 0;
  written out;
  out.seconds = milliseconds([&] {
                  do {
                    while (now.size() < at_once && next < all.size())
                      now.push_back(&all[next++].shared);
                    (void)together_round(now, work, *s.pool, load);
                    ++out.rounds;
                    for (const shared_text* t : now) out.drafted += t->result.drafted;
                    std::erase_if(now, [](const shared_text* t) { return t->ended; });
                  } while (!now.empty() || next < all.size());
                }) /
                1e3;
  for (request<L>& r : all) {
    check(r.shared.why == status::ok && r.written.size == 96, "a text failed");
    out.tokens.insert(out.tokens.end(), r.memory.begin(), r.memory.begin() + 96);
  }
  return out;
}
void time_texts(const setting& s, std::size_t turns) {
  llama model(s.weights, s.pool, 300);
  const auto context = some_tokens(64, s.weights->vocab, 1);
  check(model.extend(context, {}) == status::ok, "the model failed");
  constexpr std::size_t rows[] = {1, 2, 4, 8, 16, 32, 64, 160};
  const plan::draft_load load(measured_calls(model, rows, {}, 15));
  std::printf("\nms of a call of n rows:");
  for (const auto& p : load.target.points) std::printf(" %zu: %.2f", p.rows, 1e3 * p.seconds);
  std::printf(
      "\n\n32 texts of 64 tokens, lookups, so many texts at once; gain over one by one with drafts "
      "of 4; medians of %zu\n\n| temperature | at once | drafts | tokens a second | gain | drafted "
      "in a round |\n| ---: | ---: | :--- | ---: | ---: | ---: |\n",
      turns);
  struct way {
    std::size_t at_once, gamma;
    bool by_load;
    std::vector<double> seconds = {};
    double drafted = 0;
  };
  for (const double temperature : {0.0, 0.5}) {
    std::vector<way> ways;
    for (const std::size_t at_once : {1, 8, 32})
      for (const std::size_t gamma : {0, 4, 4})
        ways.push_back({at_once, gamma, gamma > 0 && ways.back().gamma > 0});
    std::vector<token_id> alone;
    for (std::size_t turn = 0; turn < turns; ++turn)
      for (way& w : ways) {
        const decode_options how{.gamma = w.gamma, .sample = {.temperature = temperature}};
        const written out = w.by_load ? write<plan::draft_forecast>(s, w.at_once, how, load)
                                      : write<fixed_draft_length>(s, w.at_once, how, each_alone());
        w.seconds.push_back(out.seconds);
        w.drafted = double(out.drafted) / double(out.rounds);
        if (w.at_once == 1 && w.gamma == 4 && !w.by_load) alone = out.tokens;
        // with random tokens and other lengths a text has its law, and other tokens
        if (w.gamma == 4 && (temperature == 0 || !w.by_load))
          check(out.tokens == alone, "texts together and one by one differ");
      }
    for (const way& w : ways)
      std::printf("| %.1f | %zu | %s | %.0f | %.2f | %.1f |\n", temperature, w.at_once,
                  w.by_load     ? "by load"
                  : w.gamma > 0 ? "4"
                                : "none",
                  2048 / median(w.seconds), median(ways[1].seconds) / median(w.seconds), w.drafted);
  }
}

}  // namespace

int main(int count, char** arguments) try {
  const std::string path = count > 1 ? arguments[1] : SPECAGG_MODELS "/target.gguf";
  const unsigned threads = count > 2 ? unsigned(std::atoi(arguments[2])) : 2;
  const setting s{std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(path)),
                  std::make_shared<thread_pool>(threads)};
  std::printf("%s, %u threads, %s\n\n", path.substr(path.rfind('/') + 1).c_str(), s.pool->threads(),
              instruction_set);
  time_contexts(s, path);
  time_calls(s);
  time_texts(s, count > 3 ? std::size_t(std::atoi(arguments[3])) : 5);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
