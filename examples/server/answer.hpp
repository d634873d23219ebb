// SPDX-License-Identifier: Apache-2.0
// What a client gets, as OpenAI's API spells it.
#pragma once
#include <atomic>
#include <cmath>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <vector>

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

// The JSON of answers, or of a part of them.
class writer {
 public:
  writer(const std::string& model, bool chat, bool stream, const cli::tokenizer& tokens)
      : tokens_(tokens), chat_(chat), stream_(stream) {
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
    if (a.asked().logprobs) c["logprobs"] = logprobs(n);
    if (a.asked().origins) {
      c["tokens"] = c["origins"] = json::array();
      for (const auto& e : n.tokens) {
        c["tokens"].push_back(e.token);
        c["origins"].push_back(e.from == specagg::origin::accepted ? "draft" : "target");
      }
    }
    return c;
  }
  // Of pi, the law that the policy gives the token; and of p, the target's row.
  json logprobs(const news& n) const {
    json content = json::array(), texts = json::array(), pi = json::array(), p = json::array();
    for (const auto& e : n.tokens) {
      const std::string piece = tokens_.piece(e.token);
      if (chat_) {
        content.push_back({{"token", piece},
                           {"logprob", e.log_pi},
                           {"target_logprob", e.log_p},  // null: probability 0
                           {"bytes", std::vector<unsigned char>(piece.begin(), piece.end())},
                           {"top_logprobs", json::array()}});
      } else {
        texts.push_back(piece);
        pi.push_back(e.log_pi);
        p.push_back(e.log_p);
      }
    }
    if (chat_) return {{"content", content}};
    return {{"tokens", texts},
            {"token_logprobs", pi},
            {"target_logprobs", p},
            {"top_logprobs", nullptr}};
  }
  void add_usage(const answers& all) {
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
  std::string text() const { return all_.dump(-1, ' ', false, json::error_handler_t::replace); }
  const cli::tokenizer& tokens_;
  bool chat_, stream_;
  json all_;
};
