// SPDX-License-Identifier: Apache-2.0
// What a client asks for, as OpenAI's API spells it, and what the engine writes for it.
#pragma once
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <specagg/backend/llama_cpp/chat_template.hpp>
#include <specagg/backend/llama_cpp/tokenizer.hpp>
#include <specagg/specagg.hpp>

#include "../cli/policies.hpp"

using json = nlohmann::json;

// An answer that is an error. type and code are those that OpenAI's clients know.
struct api_error {
  int status;
  std::string message, param = {}, code = {};
  std::string text() const {
    const auto or_null = [](const std::string& s) { return s.empty() ? json(nullptr) : json(s); };
    const char* type = status >= 500 ? "server_error" : "invalid_request_error";
    const json e = {{"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}};
    return json{{"error", e}}.dump(-1, ' ', false, json::error_handler_t::replace);
  }
};

// `lossless` reads no row of the draft, so it works with drafts of any kind, or none. All others have a row for every
// token.
using any_rule = specagg::any_of<specagg::lossless, cli::any_policy>;

enum class drafts { none, lookup, counts, model };
enum class ended { no, stop, length, failed };

struct request {
  std::vector<specagg::token_id> prompt;
  std::size_t max_tokens = 16, gamma = 0;
  specagg::sampling how;
  std::uint64_t seed = 0;
  any_rule policy;
  drafts draft = drafts::none;
  std::vector<std::string> stops;
  bool stream = false, usage = false, origins = false, chat = false;
  // Written by the engine, or by who waits for it; the engine's lock protects them.
  std::vector<specagg::emission> tokens;
  enum ended ended = ended::no;
  std::string failure;
  bool cancelled = false, enough = false;

  bool reads_draft() const { return std::holds_alternative<cli::any_policy>(policy.rule); }
};

// What the server's options allow.
struct request_limits {
  std::string model;           // its name
  std::size_t context, gamma;  // tokens of a request; of a draft
  bool draft_model;            // there is one
};

// The members of a JSON object, each of which is taken once; what is left over is an error.
class members {
 public:
  explicit members(const json& of) : of_(of) {
    if (!of.is_object()) throw api_error{400, "the body is no JSON object"};
  }
  // Null if it is absent or null.
  const json& take(const std::string& name) {
    static const json null;
    taken_.insert(name);
    const auto at = of_.find(name);
    return at == of_.end() ? null : *at;
  }
  double number(const std::string& name, double otherwise, double low, double high) {
    const json& x = take(name);
    if (x.is_null()) return otherwise;
    if (!x.is_number() || !(x.get<double>() >= low && x.get<double>() <= high))
      throw api_error{400, fmt::format("\"{}\" must be a number from {:g} to {:g}", name, low, high), name};
    return x.get<double>();
  }
  std::uint64_t integer(const std::string& name, std::uint64_t otherwise, std::uint64_t low, std::uint64_t high) {
    const json& x = take(name);
    if (x.is_null()) return otherwise;
    if (!x.is_number_unsigned() || x.get<std::uint64_t>() < low || x.get<std::uint64_t>() > high)
      throw api_error{400, fmt::format("\"{}\" must be an integer from {} to {}", name, low, high), name};
    return x.get<std::uint64_t>();
  }
  bool flag(const std::string& name) {
    const json& x = take(name);
    if (!x.is_null() && !x.is_boolean()) throw api_error{400, "\"" + name + "\" must be true or false", name};
    return x.is_boolean() && x.get<bool>();
  }
  std::string string(const std::string& name, const std::string& otherwise) {
    const json& x = take(name);
    if (!x.is_null() && !x.is_string()) throw api_error{400, "\"" + name + "\" must be a string", name};
    return x.is_null() ? otherwise : x.get<std::string>();
  }
  // What this server does not do may be given as long as it asks for nothing.
  void neutral(const std::string& name, const std::vector<json>& values) {
    const json& x = take(name);
    if (!x.is_null() && std::find(values.begin(), values.end(), x) == values.end())
      throw api_error{400, "\"" + name + "\" is not supported", name};
  }
  void none_left() const {
    for (const auto& [name, value] : of_.items())
      if (!taken_.contains(name)) throw api_error{400, "unrecognized request argument: " + name, name};
  }

 private:
  const json& of_;
  std::set<std::string> taken_;
};

// One user's turn after the other, with the model's answers between them.
inline std::vector<specagg::token_id> conversation(const json& messages, const specagg::llama_cpp::tokenizer& tokens,
                                                   const specagg::llama_cpp::chat_template& turns) {
  const auto wrong = [](const std::string& why) { throw api_error{400, "\"messages\" " + why, "messages"}; };
  if (!messages.is_array() || messages.empty()) wrong("must be an array of messages");
  std::optional<std::string> system;
  std::vector<std::string> texts;  // user, assistant, user, ...
  for (const json& message : messages) {
    members m(message);
    const std::string role = m.string("role", ""), text = m.string("content", "");
    m.neutral("name", {});
    m.none_left();
    if (&message == &messages[0] && (role == "system" || role == "developer")) system = text;
    else if (role != (texts.size() % 2 ? "assistant" : "user"))
      wrong("must have roles user and assistant in turn, after a system message or none");
    else texts.push_back(text);
  }
  if (texts.size() % 2 == 0) wrong("must end with one of role user");
  auto all = turns.first(system, texts[0]);
  for (std::size_t i = 1; i < texts.size(); i += 2) {
    const auto said = tokens.encode_inside(texts[i]);
    all.insert(all.end(), said.begin(), said.end());
    turns.next(all, texts[i + 1]);
  }
  return all;
}

// turns: null if the model has no chat template. Throws api_error.
inline std::shared_ptr<request> parse_request(const std::string& body, bool chat, const request_limits& most,
                                              const specagg::llama_cpp::tokenizer& tokens,
                                              const specagg::llama_cpp::chat_template* turns) {
  const auto shallow = [](int depth, json::parse_event_t, json&) {
    if (depth > 16) throw api_error{400, "the body is nested too deeply"};
    return true;
  };
  json all;
  try {
    all = json::parse(body, shallow);
  } catch (const json::exception& e) {
    throw api_error{400, std::string("the body is no valid JSON: ") + e.what()};
  }
  members m(all);
  auto r = std::make_shared<request>();
  r->chat = chat;
  if (const auto name = m.string("model", most.model); name != most.model)
    throw api_error{404, "the model \"" + name + "\" does not exist; this server has \"" + most.model + "\"", "model",
                    "model_not_found"};
  try {
    if (chat && !turns) throw api_error{400, "this model has no chat template; use /v1/completions", "messages"};
    if (chat) r->prompt = conversation(m.take("messages"), tokens, *turns);
    else r->prompt = tokens.encode(m.string("prompt", ""));
  } catch (const specagg::error& e) {
    throw api_error{400, e.what(), chat ? "messages" : "prompt"};
  }
  if (r->prompt.empty()) throw api_error{400, "\"prompt\" has no tokens", "prompt"};
  const char* length = chat && !m.take("max_completion_tokens").is_null() ? "max_completion_tokens" : "max_tokens";
  const std::size_t rest = most.context - std::min(most.context, r->prompt.size());
  r->max_tokens = m.integer(length, chat ? std::max<std::size_t>(rest, 1) : 16, 1, most.context);
  (void)m.take("max_tokens");
  if (r->max_tokens > rest)
    throw api_error{400,
                    fmt::format("the prompt has {} tokens and {} are asked for; a request may have {} in all",
                                r->prompt.size(), r->max_tokens, most.context),
                    length, "context_length_exceeded"};
  r->how.temperature = m.number("temperature", 1, 0, 1e6);
  r->how.top_p = m.number("top_p", 1, 1e-9, 1);
  r->how.min_p = m.number("min_p", 0, 0, 1);
  r->how.top_k = static_cast<std::uint32_t>(m.integer("top_k", 0, 0, UINT32_MAX));
  r->seed = m.integer("seed", std::random_device()(), 0, UINT64_MAX);
  r->gamma = m.integer("gamma", most.gamma, 0, most.gamma);
  const std::string drafter = m.string("draft", most.draft_model ? "model" : "lookup");
  const std::vector<std::string> names = {"none", "lookup", "counts", "model"};
  const auto chosen = std::find(names.begin(), names.end(), drafter);
  if (chosen == names.end()) throw api_error{400, "\"draft\" must be none, lookup, counts or model", "draft"};
  r->draft = drafts(chosen - names.begin());
  if (r->draft == drafts::model && !most.draft_model)
    throw api_error{400, "this server has no draft model (--draft)", "draft"};
  try {
    const auto policy = cli::parse_policy(m.string("policy", "lossless"), r->how.temperature);
    if (!std::holds_alternative<specagg::lossless>(policy.rule)) r->policy = policy;
  } catch (const specagg::error& e) {
    throw api_error{400, e.what(), "policy"};
  }
  if (r->reads_draft() && r->draft != drafts::model)
    throw api_error{400, "this policy needs a row of a draft model for every token (\"draft\": \"model\")", "policy"};
  if (const json& stop = m.take("stop"); stop.is_string()) r->stops = {stop.get<std::string>()};
  else if (stop.is_array() && stop.size() <= 4 &&
           std::all_of(stop.begin(), stop.end(), [](const json& s) { return s.is_string(); }))
    r->stops = stop.get<std::vector<std::string>>();
  else if (!stop.is_null()) throw api_error{400, "\"stop\" must be a string or an array of up to 4 strings", "stop"};
  r->stream = m.flag("stream");
  if (const json& options = m.take("stream_options"); !options.is_null())
    r->usage = members(options).flag("include_usage");
  r->origins = m.flag("origins");
  m.neutral("n", {1}), m.neutral("best_of", {1}), m.neutral("echo", {false}), m.neutral("logprobs", {false, 0});
  m.neutral("presence_penalty", {0}), m.neutral("frequency_penalty", {0}), m.neutral("logit_bias", {json::object()});
  m.neutral("suffix", {""}), m.neutral("top_logprobs", {0}), m.neutral("store", {false});
  (void)m.take("user"), (void)m.take("metadata");
  m.none_left();
  return r;
}
