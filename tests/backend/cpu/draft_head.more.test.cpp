// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/draft_head.hpp>
#include <specagg/backend/cpu/llama.hpp>
#include <specagg/audit/exact_law.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/decoders.hpp>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "backend/cpu/heads.hpp"
#include "support/catch.hpp"

using namespace specagg;
using namespace specagg::cpu;
using test::bundled, test::some_tokens, test::same_bits;

static_assert(DraftHead<draft_head>);

namespace {

// The small target and a small head for it.
struct small_pair {
  test::gguf_bytes target_bytes, head_bytes;
  std::shared_ptr<const llama_weights> target;
  std::shared_ptr<const head_weights> head;
  explicit small_pair(tensor_type type)
      : target_bytes(test::small_model{}.write().bytes()),
        head_bytes(test::small_head{.fingerprint = fingerprint(*test::weights_of(target_bytes)),
                                    .type = type}
                       .write()
                       .bytes()),
        target(test::weights_of(target_bytes)),
        head(test::head_of(head_bytes)) {}
};

std::vector<float> some_states(std::size_t n, std::size_t dim) {
  std::mt19937 random(8);
  std::vector<float> states(n * dim);
  for (float& x : states) x = float(random() % 2001) / 500 - 2;
  return states;
}
std::vector<float> rows_of(draft_head& head, std::span<const token_id> tokens,
                           std::span<const float> states) {
  std::vector<float> logits(tokens.size() * head.vocab_size());
  REQUIRE(head.extend(tokens, states, logits) == status::ok);
  return logits;
}

// The rows in double, from the definition, in plain loops.
using numbers = std::vector<double>;
numbers times(const matrix& m, const numbers& x) {
  numbers y(m.rows);
  std::vector<float> row(padded(m.cols));
  for (std::size_t r = 0; r < m.rows; ++r) {
    read_row(m, r, row.data());
    for (std::size_t c = 0; c < m.cols; ++c) y[r] += double{row[c]} * x[c];
  }
  return y;
}
numbers normed(const numbers& x, const std::vector<float>& weight, float epsilon) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  numbers y(x);
  for (std::size_t c = 0; c < x.size(); ++c)
    y[c] *= double{weight[c]} / std::sqrt(squares / double(x.size()) + double{epsilon});
  return y;
}
std::vector<numbers> rows_by_hand(const head_weights& w, const llama_weights& target,
                                  std::span<const token_id> tokens, std::span<const float> states) {
  const auto& l = w.layers[0];
  const std::size_t group = w.heads / w.kv_heads, D = w.head_dim;
  std::vector<numbers> keys, values, rows;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    numbers pair(states.begin() + std::ptrdiff_t(t * w.dim),
                 states.begin() + std::ptrdiff_t((t + 1) * w.dim));
    std::vector<float> embedding(padded(w.dim));
    read_row(target.embedding, std::size_t(tokens[t]), embedding.data());
    pair.insert(pair.end(), embedding.begin(), embedding.begin() + std::ptrdiff_t(w.dim));
    numbers x = times(w.input, pair), h = normed(x, l.attention_norm, w.epsilon);
    numbers q = times(l.q, h), k = times(l.k, h), y(w.heads * D);
    for (numbers* each : {&q, &k})
      for (std::size_t head = 0; head < each->size() / D; ++head)
        for (std::size_t i = 0; i < w.frequencies.size(); ++i) {
          double& a = (*each)[head * D + 2 * i];
          double& b = (*each)[head * D + 2 * i + 1];
          const double angle =
              double(t) * std::pow(10000., -2. * double(i) / (2. * double(w.frequencies.size())));
          const double turned = a * std::cos(angle) - b * std::sin(angle);
          b = a * std::sin(angle) + b * std::cos(angle);
          a = turned;
        }
    numbers v = times(l.v, h);
    for (numbers* each : {&k, &v})
      for (double& x : *each) x = double(specagg::detail::number(specagg::detail::stored<f16>(x)));
    keys.push_back(k);
    values.push_back(v);
    for (std::size_t head = 0; head < w.heads; ++head) {
      numbers score(t + 1);
      double sum = 0;
      for (std::size_t p = 0; p <= t; ++p) {
        for (std::size_t d = 0; d < D; ++d)
          score[p] += q[head * D + d] * keys[p][head / group * D + d];
        sum += score[p] = std::exp(score[p] / std::sqrt(double(D)));
      }
      for (std::size_t p = 0; p <= t; ++p)
        for (std::size_t d = 0; d < D; ++d)
          y[head * D + d] += score[p] / sum * values[p][head / group * D + d];
    }
    const auto add = [&](const numbers& z) {
      for (std::size_t c = 0; c < w.dim; ++c) x[c] += z[c];
    };
    add(times(l.output, y));
    h = normed(x, l.ffn_norm, w.epsilon);
    numbers gate = times(l.gate, h), up = times(l.up, h);
    for (std::size_t i = 0; i < gate.size(); ++i)
      gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    add(times(l.down, gate));
    rows.push_back(times(w.output, normed(x, w.output_norm, w.epsilon)));
  }
  return rows;
}

std::vector<token_id> encoded(const std::string& text) {
  return tokenizer(bundled("target")->file).encode(text);
}

// A head of the bundled target, and the drafter around it.
struct heading {
  llama target{bundled("target")};
  draft_head head{test::trained_head(), bundled("target")};
  head_source<draft_head, llama> source{head, target};
  heading() { target.keep_hidden(); }
};

}  // namespace

TEST_CASE("a head's rows are those of its definition, in double, for float weights") {
  const small_pair pair(tensor_type::f32);
  const auto tokens = some_tokens(40, pair.target->vocab);
  const auto states = some_states(40, 64);
  draft_head head(pair.head, pair.target);
  const auto rows = rows_of(head, tokens, states);
  const auto due = rows_by_hand(*pair.head, *pair.target, tokens, states);
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    worst = std::max(worst, std::abs(double{rows[i]} - due[i / 10][i % 10]));
    largest = std::max(largest, std::abs(due[i / 10][i % 10]));
  }
  INFO(worst << " of " << largest);
  CHECK(largest > 0.1);
  CHECK(worst < 1e-5 * largest);
}

TEST_CASE("a head has the same bits at once, one by one, after rollbacks and on several threads") {
  for (const auto type :
       {tensor_type::f32, tensor_type::f16, tensor_type::q8_0, tensor_type::q4_1}) {
    const small_pair pair(type);
    const auto tokens = some_tokens(70, pair.target->vocab);
    const auto states = some_states(70, 64);
    draft_head at_once(pair.head, pair.target);
    const auto expected = rows_of(at_once, tokens, states);
    const auto part = [&](std::size_t i, std::size_t n) {
      return std::span(states).subspan(i * 64, n * 64);
    };
    for (const unsigned threads : {1u, 2u}) {
      draft_head head(pair.head, pair.target, std::make_shared<thread_pool>(threads));
      std::mt19937 random(threads);
      for (int step = 0; step < 60; ++step) {
        const std::size_t i = random() % (head.position() + 1);
        (void)head.rollback(i);
        const std::size_t wrong = random() % 3;
        rows_of(head, some_tokens(wrong, pair.target->vocab, 99), part(0, wrong));
        (void)head.rollback(i);
        const std::size_t n = std::min<std::size_t>(70 - i, 1 + random() % 36);
        CHECK(same_bits(rows_of(head, std::span(tokens).subspan(i, n), part(i, n)),
                        std::span(expected).subspan(i * 10, n * 10)));
      }
      for (std::size_t i = 0; i < head.position(); ++i)
        CHECK(same_bits(head.hidden(i), at_once.hidden(i)));
    }
  }
}

TEST_CASE("a head reads its own hidden states where they lie") {
  const small_pair pair(tensor_type::f32);
  const auto tokens = some_tokens(6, pair.target->vocab);
  const auto states = some_states(1, 64);
  draft_head head(pair.head, pair.target), copied(pair.head, pair.target);
  rows_of(head, std::span(tokens).first(1), states);
  rows_of(copied, std::span(tokens).first(1), states);
  for (std::size_t i = 1; i < 6; ++i) {
    const std::vector<float> own(copied.hidden(i - 1).begin(), copied.hidden(i - 1).end());
    CHECK(same_bits(rows_of(head, std::span(tokens).subspan(i, 1), head.hidden(i - 1)),
                    rows_of(copied, std::span(tokens).subspan(i, 1), own)));
  }
}

TEST_CASE("a node of a head's tree has the row and the state of its path alone, bit for bit") {
  for (const auto type : {tensor_type::f32, tensor_type::q8_0}) {
    const small_pair pair(type);
    const auto text = some_tokens(9, pair.target->vocab),
               nodes = some_tokens(6, pair.target->vocab, 2);
    const auto states = some_states(15, 64);
    //  1 - 3 - 6
    //  2 - 4, 5
    const std::vector<std::uint32_t> parents = {0, 0, 1, 2, 2, 3};
    const std::vector<std::vector<std::uint32_t>> paths = {{1},    {2},    {1, 3},
                                                           {2, 4}, {2, 5}, {1, 3, 6}};
    const auto state = [&](std::size_t i) { return std::span(states).subspan(i * 64, 64); };
    draft_head head(pair.head, pair.target);
    rows_of(head, text, std::span(states).first(9 * 64));
    std::vector<float> rows(60), last(10);
    const auto extend = [&](std::size_t from, std::size_t n, std::span<float> logits) {
      return head.extend_tree(std::span(nodes).subspan(from, n),
                              std::span(parents).subspan(from, n),
                              std::span(states).subspan((9 + from) * 64, n * 64), logits);
    };
    REQUIRE(extend(0, 2, std::span(rows).first(20)) == status::ok);
    REQUIRE(extend(2, 3, std::span(rows).subspan(20, 30)) == status::ok);
    REQUIRE(extend(5, 1, last) == status::ok);
    head.cut_tree(5);
    CHECK(head.position() == 14);
    CHECK(head.node_hidden(6).empty());
    CHECK(head.extend(std::span(nodes).first(1), state(9), last) == status::invalid_parameter);
    REQUIRE(extend(5, 1, std::span(rows).subspan(50)) == status::ok);
    for (std::size_t k = 0; k < paths.size(); ++k) {
      draft_head alone(pair.head, pair.target);
      std::vector<float> row = rows_of(alone, text, std::span(states).first(9 * 64));
      for (const auto n : paths[k])
        row = rows_of(alone, std::span(nodes).subspan(n - 1, 1), state(8 + n));
      CHECK(same_bits(std::span(rows).subspan(k * 10, 10), row));
      CHECK(same_bits(head.node_hidden(std::uint32_t(k + 1)), alone.hidden(alone.position() - 1)));
    }
    REQUIRE(head.keep_path(paths.back()) == status::ok);
    CHECK(head.position() == 12);
  }
}

TEST_CASE("a head refuses what does not fit, and appends nothing") {
  const small_pair pair(tensor_type::f32);
  draft_head head(pair.head, pair.target, nullptr, 5);
  const auto states = some_states(6, 64);
  const auto tokens = some_tokens(6, pair.target->vocab);
  std::vector<float> row(10), rows(20);
  const auto some = [&](std::size_t n) { return std::span(states).first(n * 64); };
  CHECK(head.extend(tokens, some(6), row) == status::context_full);
  CHECK(head.extend(std::span(tokens).first(2), some(1), row) == status::invalid_parameter);
  CHECK(head.extend(std::span(tokens).first(1), some(1), rows) == status::invalid_parameter);
  CHECK(head.extend(std::span(tokens).first(1), some(1), std::span(row).first(9)) ==
        status::invalid_parameter);
  for (const token_id bad : {token_id(-1), token_id(271)})
    CHECK(head.extend(std::vector{tokens[0], bad}, some(2), row) == status::token_out_of_range);
  CHECK(head.position() == 0);
  REQUIRE(head.extend(std::span(tokens).first(5), some(5), row) == status::ok);
  CHECK(head.extend(std::span(tokens).first(1), some(1), row) == status::context_full);
  const auto message = test::error_of([&] { draft_head(pair.head, bundled("target")); });
  CHECK(message.find("is a draft head for another target than") != std::string::npos);
}

TEST_CASE("the trained head's rows are those that numpy computes from the two files") {
  std::ifstream file(std::string(SPECAGG_SOURCE_DIR) +
                     "/tests/backend/cpu/target_head.reference.json");
  const auto reference = nlohmann::json::parse(file);
  heading h;
  for (const auto& text : reference) {
    const auto ids = text["ids"].get<std::vector<token_id>>();
    // tokens that the target has read; then the head's own states
    const auto known = text["known"].get<std::size_t>();
    REQUIRE(h.target.rollback(0) == status::ok);
    REQUIRE(h.source.rollback(0) == status::ok);
    REQUIRE(h.target.extend(std::span(ids).first(known), {}) == status::ok);
    std::vector<float> row(h.source.vocab_size());
    REQUIRE(h.source.extend(ids, row) == status::ok);
    const auto tokens = text["tokens"].get<std::vector<std::size_t>>();
    const auto logits = text["logits"].get<std::vector<double>>();
    REQUIRE(tokens.size() >= 8);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      CHECK(double{row[tokens[i]]} == Approx(logits[i]).margin(text["margin"].get<double>()));
    const auto best = std::size_t(std::max_element(row.begin(), row.end()) - row.begin());
    CHECK(best == text["best"].get<std::size_t>());
  }
}

TEST_CASE(
    "with the trained head a text at temperature 0 is the target's own, bit for bit, and drafts "
    "are accepted") {
  const auto decode = [](std::size_t gamma, const auto& verifier, std::size_t& drafted,
                         std::size_t& accepted, std::vector<double>& log_p) {
    heading h;
    const auto prompt =
        encoded("And it came to pass, when the king of Israel heard the words of the prophet,");
    std::vector<token_id> buffer(prompt);
    buffer.resize(prompt.size() + 200);
    specagg::text t{buffer, prompt.size()};
    REQUIRE(h.target.extend(std::span(prompt).first(prompt.size() - 1), {}) == status::ok);
    mapped_drafter drafter(h.source, h.head.weights().map, gamma, {.temperature = 0});
    drafting_workspace<float, normal_form<mapped_row<float>>> work(
        h.target.vocab_size(), {.gamma = gamma, .sample = {.temperature = 0}});
    random_streams chooser(1);
    REQUIRE(speculative_decode(drafter, h.target, lossless{}, chooser,
                               {.text = t,
                                .most = 200,
                                .work = work,
                                .accept =
                                    [&](const emission& e) {
                                      log_p.push_back(e.log_p);
                                      return true;
                                    },
                                .after_round =
                                    [&](const auto& r, const auto&) {
                                      drafted += r.drafted;
                                      accepted += r.accepted;
                                    }},
                               verifier) == status::ok);
    return buffer;
  };
  std::size_t drafted = 0, accepted = 0, nothing = 0;
  std::vector<double> alone, with;
  const auto expected = decode(0, token_verifier(), nothing, nothing, alone);
  CHECK(nothing == 0);
  for (const std::size_t gamma : {1u, 4u, 7u}) {
    with.clear();
    CHECK(decode(gamma, token_verifier(), drafted, accepted, with) == expected);
    CHECK(with == alone);
  }
  CHECK(decode(4, block_verifier(), drafted, accepted, with) == expected);
  INFO(accepted << " of " << drafted);
  CHECK(accepted > 100);
}

TEST_CASE(
    "with the trained head's trees a text at temperature 0 is the target's own, and drafts are "
    "accepted") {
  const std::vector<std::size_t> shape{3, 2, 1}, none{};
  std::size_t accepted = 0;
  const auto decode = [&](const std::vector<std::size_t>& of) {
    heading h;
    const auto prompt =
        encoded("And it came to pass, when the king of Israel heard the words of the prophet,");
    std::vector<token_id> buffer(prompt);
    buffer.resize(prompt.size() + 120);
    specagg::text t{buffer, prompt.size()};
    REQUIRE(h.target.extend(std::span(prompt).first(prompt.size() - 1), {}) == status::ok);
    mapped_source mapped(h.source, h.head.weights().map);
    tree_workspace<float> work(
        h.target.vocab_size(),
        tree_options{.shape = of, .propose = proposal::top, .sample = {.temperature = 0}});
    random_streams chooser(1);
    REQUIRE(tree_decode(mapped, h.target, lossless{}, chooser,
                        {.text = t,
                         .most = 120,
                         .work = work,
                         .after_round = [&](const tree_result& r, const auto&) {
                           accepted += r.accepted;
                         }}) == status::ok);
    return buffer;
  };
  const auto expected = decode(none);
  CHECK(accepted == 0);
  CHECK(decode(shape) == expected);
  INFO(accepted << " of 120");
  CHECK(accepted > 60);
}

TEST_CASE(
    "texts of a cascade with the trained head: every token is the argmax of the policy's law for "
    "rows asked anew") {
  const token_v3 policy{0.3};
  const std::size_t gamma = 3;
  heading h;
  const auto prompt = encoded("ROMEO:\nWhat say you to my suit? I pray thee,");
  std::vector<token_id> buffer(prompt);
  buffer.resize(prompt.size() + 60);
  specagg::text t{buffer, prompt.size()};
  const std::size_t V = h.target.vocab_size();
  REQUIRE(h.target.extend(std::span(prompt).first(prompt.size() - 1), {}) == status::ok);
  mapped_drafter drafter(h.source, h.head.weights().map, gamma, {.temperature = 0});
  drafting_workspace<float, normal_form<mapped_row<float>>> work(
      V, {.gamma = gamma, .sample = {.temperature = 0}});
  random_streams chooser(1);
  std::size_t drafted_tokens = 0, others = 0;
  while (t.size < buffer.size()) {
    const std::size_t start = t.size;
    const auto r = speculative_round(drafter, h.target, policy, chooser,
                                     {.text = t, .most = buffer.size() - start, .work = work});
    REQUIRE(r.why == status::ok);
    for (std::size_t i = start; i < t.size; ++i) {
      // q: the target has read all but the last token before the round; p: all before token i.
      heading anew;
      std::vector<float> q_logits(h.source.vocab_size()), q(V), p(V);
      const bool after_draft = r.drafted == i - start;  // then it has read the draft, too
      REQUIRE(anew.target.extend(std::span(buffer).first(after_draft ? i : start - 1), {}) ==
              status::ok);
      REQUIRE(anew.source.extend(std::span(buffer).first(i), q_logits) == status::ok);
      map_logits<float>(h.head.weights().map, q_logits, q);
      llama target(bundled("target"));
      REQUIRE(target.extend(std::span(buffer).first(i), p) == status::ok);
      const processed_row<float> q_row(q, {.temperature = 0}), p_row(p, {.temperature = 0});
      const auto law = target_law(policy, q_row, p_row);
      REQUIRE(law.size() == V);
      CHECK(law[std::size_t(buffer[i])] == 1);
      (std::size_t(std::max_element(p.begin(), p.end()) - p.begin()) == std::size_t(buffer[i])
           ? others
           : drafted_tokens)++;
    }
  }
  INFO(drafted_tokens << " tokens are not the target's argmax");
  CHECK(drafted_tokens > 0);
}
