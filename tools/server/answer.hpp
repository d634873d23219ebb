// SPDX-License-Identifier: Apache-2.0
// What a client gets, as OpenAI's API spells it.
#pragma once
#include <atomic>
#include <cmath>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <specagg/printable.hpp>

#include "engine.hpp"

// The text of one request as it comes.
class answer {
 public:
  answer(engine& by, std::shared_ptr<request> asked) : by_(by), asked_(std::move(asked)) {}
  answer(const answer&) = delete;
  ~answer() {
    if (how_ == ended::no) by_.leave(*asked_);
  }
  const request& asked() const { return *asked_; }
  ended how() const { return how_; }
  // What has come since the last call. Nothing comes once how() is not ended::no.
  news next() {
    news n = by_.more(*asked_, tokens_, bytes_);
    tokens_ += n.tokens.size();
    bytes_ += n.text.size();
    how_ = n.ended;
    return n;
  }

 private:
  engine& by_;
  std::shared_ptr<request> asked_;
  std::size_t tokens_ = 0, bytes_ = 0;
  ended how_ = ended::no;
};

using answers = std::deque<answer>;  // one for each choice

// Bytes that are enough to write this.
inline std::size_t memory_of_json(const news& n, const request& asked) {
  return (std::size_t(1) << 20) + 8 * n.text.size() +
         n.tokens.size() * 1024 * (1 + asked.logprobs.value_or(0));
}

// The JSON of answers, or of a part of them.
class writer {
 public:
  writer(const std::string& model, bool chat, bool stream, const cli::tokenizer& tokens,
         step_metrics of_steps)
      : tokens_(tokens), chat_(chat), stream_(stream), of_steps_(of_steps) {
    static std::atomic<std::uint64_t> number = 0;
    all_["id"] =
        fmt::format("{}-{:x}-{}", chat ? "chatcmpl" : "cmpl", std::time(nullptr), number++);
    all_["object"] = !chat    ? "text_completion"
                     : stream ? "chat.completion.chunk"
                              : "chat.completion";
    all_["created"] = std::time(nullptr);
    all_["model"] = model;
  }
  std::string part(const news& n, const answer& a, std::size_t index) {
    if (a.asked().usage) all_["usage"] = nullptr;  // until the last part
    all_["choices"] = json::array({choice(n, a, index)});
    return text();
  }
  std::string whole(const std::vector<news>& of, const answers& all) {
    all_["choices"] = json::array();
    for (std::size_t i = 0; i < all.size(); ++i)
      all_["choices"].push_back(choice(of[i], all[i], i));
    add_usage(all);
    return text();
  }
  // All answers have ended.
  std::string usage(const answers& all) {
    all_["choices"] = json::array();
    add_usage(all);
    return text();
  }

 private:
  json choice(const news& n, const answer& a, std::size_t index) const {
    json c = {{"index", index}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    if (a.how() != ended::no) c["finish_reason"] = a.how() == ended::length ? "length" : "stop";
    if (!chat_) c["text"] = n.text;
    else c[stream_ ? "delta" : "message"] = {{"role", "assistant"}, {"content", n.text}};
    if (a.asked().logprobs) c["logprobs"] = logprobs(n, *a.asked().logprobs);
    if (a.asked().origins) {
      c["tokens"] = c["origins"] = json::array();
      for (const auto& e : n.tokens) {
        c["tokens"].push_back(e.token);
        c["origins"].push_back(e.from == specagg::origin::accepted ? "draft" : "target");
      }
    }
    return c;
  }
  // Of the target model's row at temperature 1, as clients expect; and beyond OpenAI's of pi, the
  // law that the policy gives the token, and of p, the target's row after temperature and filters.
  json logprobs(const news& n, std::size_t others) const {
    return chat_ ? chat_logprobs(n) : completion_logprobs(n, others);
  }
  json chat_logprobs(const news& n) const {
    const auto one = [&](specagg::token_id t, double log_p) {
      const std::string piece = tokens_.piece(t);
      return json{{"token", piece},
                  {"logprob", log_p},
                  {"bytes", std::vector<unsigned char>(piece.begin(), piece.end())}};
    };
    json content = json::array();
    for (const auto& t : n.tokens) {
      json all = one(t.token, t.model.log_p);
      all["top_logprobs"] = json::array();
      for (const auto& other : t.model.most_likely)
        all["top_logprobs"].push_back(one(other.token, other.log_p));
      all["pi_logprob"] = t.log_pi;
      all["target_logprob"] = t.log_p;  // null: probability 0
      content.push_back(std::move(all));
    }
    return {{"content", content}};
  }
  json completion_logprobs(const news& n, std::size_t others) const {
    json all = {{"tokens", json::array()},          {"token_logprobs", json::array()},
                {"text_offset", json::array()},     {"pi_logprobs", json::array()},
                {"target_logprobs", json::array()}, {"top_logprobs", nullptr}};
    if (others > 0) all["top_logprobs"] = json::array();
    for (const auto& t : n.tokens) {
      all["tokens"].push_back(name(t.token));
      all["token_logprobs"].push_back(t.model.log_p);
      all["text_offset"].push_back(t.characters);
      all["pi_logprobs"].push_back(t.log_pi);
      all["target_logprobs"].push_back(t.log_p);
      if (others == 0) continue;
      json top = {{name(t.token), t.model.log_p}};
      for (const auto& other : t.model.most_likely)
        top.emplace(name(other.token), other.log_p);  // the more likely one of two names
      all["top_logprobs"].push_back(std::move(top));
    }
    return all;
  }
  // A token's text; as OpenAI spells it where its bytes are a part of a character: bytes:\xE2\x80
  std::string name(specagg::token_id t) const {
    std::string piece = tokens_.piece(t), spelled = "bytes:";
    bool valid = true;
    for (std::string_view rest = piece; !rest.empty();) {
      const auto c = specagg::utf8::first_code_point(rest);
      valid &= c.valid;
      rest.remove_prefix(c.bytes);
    }
    for (const char c : piece) spelled += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return valid ? piece : spelled;
  }
  void add_usage(const answers& all) {
    // as vLLM, of one text alone, and only where something may be drafted
    if (of_steps_ != step_metrics::none && all.size() == 1 && all[0].asked().gamma > 0)
      all_["metrics"] = {{"speculative_decoding", speculative_decoding(all[0].asked())}};
    std::size_t before = 0, written = 0, steps = 0, drafted = 0, accepted = 0;
    for (const answer& a : all) {
      const request& r = a.asked();
      if (r.choice == 0) before += r.prompt.size();
      written += r.tokens.size();
      steps += r.steps;
      drafted += r.drafted;
      accepted += r.accepted;
    }
    all_["usage"] = {
        {"prompt_tokens", before},
        {"completion_tokens", written},
        {"total_tokens", before + written},
        {"steps", steps},
        {"acceptance", drafted > 0 ? json(double(accepted) / double(drafted)) : json(nullptr)},
        {"completion_tokens_details",
         {{"accepted_prediction_tokens", accepted},
          {"rejected_prediction_tokens", drafted - accepted}}}};
  }
  // vLLM's record of a request (its SpeculativeDecodingMetrics).
  json speculative_decoding(const request& r) const {
    std::vector<std::uint64_t> histogram(r.gamma + 1);
    for (std::size_t j = 0; j < r.record.accepted.size(); ++j)
      histogram[j] = std::uint64_t(r.record.accepted[j]);
    json all = {{"mean_acceptance_length", r.record.length()},
                {"draft_acceptance_rate", r.record.rate()},
                {"acceptance_histogram", histogram},
                {"num_spec_steps", std::uint64_t(r.record.steps())},
                {"num_accepted_draft_tokens", std::uint64_t(r.record.accepted_tokens())},
                {"num_draft_tokens", std::uint64_t(r.record.drafted)},
                {"num_spec_tokens", r.gamma}};
    if (!r.step_accepted.empty()) {
      all["per_step_accepted"] = r.step_accepted;
      all["per_step_drafted"] = r.step_drafted;
    }
    return all;
  }
  std::string text() const { return all_.dump(-1, ' ', false, json::error_handler_t::replace); }
  const cli::tokenizer& tokens_;
  bool chat_, stream_;
  step_metrics of_steps_;
  json all_;
};
