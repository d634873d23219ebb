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
    const json e = {
        {"message", message}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}};
    return json{{"error", e}}.dump(-1, ' ', false, json::error_handler_t::replace);
  }
};

// `lossless` reads no row of the draft, so it works with drafts of any kind, or none. All others
// have a row for every token.
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
  std::size_t prompts;         // of a call
};

inline api_error no_model(const std::string& name, const std::string& has) {
  return {404, "the model \"" + name + "\" does not exist; this server has \"" + has + "\"",
          "model", "model_not_found"};
}

// The members of a JSON object, each of which is taken once; what is left over is an error. One
// that is null asks for nothing, as if it were not there: clients write all members that they know.
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
      throw api_error{
          400, fmt::format("\"{}\" must be a number from {:g} to {:g}", name, low, high), name};
    return x.get<double>();
  }
  std::uint64_t integer(const std::string& name, std::uint64_t otherwise, std::uint64_t low,
                        std::uint64_t high) {
    const json& x = take(name);
    if (x.is_null()) return otherwise;
    if (!x.is_number_unsigned() || x.get<std::uint64_t>() < low || x.get<std::uint64_t>() > high)
      throw api_error{400, fmt::format("\"{}\" must be an integer from {} to {}", name, low, high),
                      name};
    return x.get<std::uint64_t>();
  }
  bool flag(const std::string& name) {
    const json& x = take(name);
    if (!x.is_null() && !x.is_boolean())
      throw api_error{400, "\"" + name + "\" must be true or false", name};
    return x.is_boolean() && x.get<bool>();
  }
  std::string string(const std::string& name, const std::string& otherwise) {
    const json& x = take(name);
    if (!x.is_null() && !x.is_string())
      throw api_error{400, "\"" + name + "\" must be a string", name};
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
      if (!taken_.contains(name) && !value.is_null())
        throw api_error{400, "unrecognized request argument: " + name, name};
  }

 private:
  const json& of_;
  std::set<std::string> taken_;
};

// What a message says: a string, or an array of parts that are texts.
inline std::string content(members& message) {
  const json& all = message.take("content");
  if (all.is_string()) return all.get<std::string>();
  const auto wrong = [] {
    throw api_error{400, "\"content\" must be a string or an array of texts", "messages"};
  };
  if (!all.is_array()) wrong();
  std::string text;
  for (const json& part : all) {
    members p(part);
    if (p.string("type", "") != "text" || !part.contains("text")) wrong();
    text += p.string("text", "");
    p.none_left();
  }
  return text;
}

// One user's turn after the other, with the model's answers between them.
inline std::vector<specagg::token_id> conversation(const json& messages,
                                                   const specagg::llama_cpp::tokenizer& tokens,
                                                   const specagg::llama_cpp::chat_template& turns) {
  const auto wrong = [](const std::string& why) {
    throw api_error{400, "\"messages\" " + why, "messages"};
  };
  if (!messages.is_array() || messages.empty()) wrong("must be an array of messages");
  std::optional<std::string> system;
  std::vector<std::string> texts;  // user, assistant, user, ...
  for (const json& message : messages) {
    members m(message);
    const std::string role = m.string("role", ""), text = content(m);
    m.neutral("tool_calls", {json::array()});
    m.neutral("annotations", {json::array()});
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

// What OpenAI's API has and this server has not, where it asks for nothing.
inline void ask_for_nothing(members& m, bool chat) {
  m.neutral("n", {1});
  m.neutral("logprobs", {false});
  m.neutral("presence_penalty", {0});
  m.neutral("frequency_penalty", {0});
  m.neutral("logit_bias", {json::object()});
  m.neutral("service_tier", {"auto", "default"});
  if (chat) {
    m.neutral("top_logprobs", {0});
    m.neutral("store", {false});
    m.neutral("response_format", {json{{"type", "text"}}});
    m.neutral("tools", {json::array()});
    m.neutral("tool_choice", {"none", "auto"});
    m.neutral("parallel_tool_calls", {true, false});
    m.neutral("functions", {json::array()});
    m.neutral("function_call", {"none", "auto"});
    m.neutral("modalities", {json::array({"text"})});
  } else {
    m.neutral("best_of", {1});
    m.neutral("echo", {false});
    m.neutral("suffix", {""});
  }
  (void)m.take("user");
  (void)m.take("metadata");
}

// The prompts of /v1/completions: a text, an array of texts, an array of tokens, or an array of
// such arrays.
inline std::vector<std::vector<specagg::token_id>> prompts(
    const json& given, std::size_t most, const specagg::llama_cpp::tokenizer& tokens) {
  const auto wrong = [](const std::string& why) {
    throw api_error{400, "\"prompt\" " + why, "prompt"};
  };
  const auto is_token = [&](const json& x) {
    return x.is_number_unsigned() && x.get<std::uint64_t>() < tokens.size();
  };
  const auto one = [&](const json& x) {
    if (x.is_string()) return tokens.encode(x.get<std::string>());
    if (!x.is_array() || !std::all_of(x.begin(), x.end(), is_token))
      wrong(fmt::format("must be a text, tokens below {}, or an array of these", tokens.size()));
    return x.get<std::vector<specagg::token_id>>();
  };
  const bool several = given.is_array() && !given.empty() && !given[0].is_number();
  std::vector<std::vector<specagg::token_id>> all;
  if (several && given.size() > most)
    wrong(fmt::format("has {} prompts; a call may have {}", given.size(), most));
  if (!several) all.push_back(one(given));
  else std::transform(given.begin(), given.end(), std::back_inserter(all), one);
  return all;
}

// One request for each prompt. turns: null if the model has no chat template. Throws api_error.
inline std::vector<std::shared_ptr<request>> parse_requests(
    const std::string& body, bool chat, const request_limits& most,
    const specagg::llama_cpp::tokenizer& tokens, const specagg::llama_cpp::chat_template* turns) {
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
  const auto r = std::make_shared<request>();
  r->chat = chat;
  if (const auto name = m.string("model", most.model); name != most.model)
    throw no_model(name, most.model);
  std::vector<std::vector<specagg::token_id>> texts;
  try {
    if (chat && !turns)
      throw api_error{400, "this model has no chat template; use /v1/completions", "messages"};
    if (chat) texts.push_back(conversation(m.take("messages"), tokens, *turns));
    else texts = prompts(m.take("prompt"), most.prompts, tokens);
  } catch (const specagg::error& e) {
    throw api_error{400, e.what(), chat ? "messages" : "prompt"};
  }
  // "max_completion_tokens" is the newer name; where both are given, both hold.
  const std::uint64_t longest = m.integer("max_tokens", UINT64_MAX, 1, most.context);
  const std::uint64_t newer =
      chat ? m.integer("max_completion_tokens", UINT64_MAX, 1, most.context) : UINT64_MAX;
  const std::uint64_t asked = std::min(longest, newer);
  r->how.temperature = m.number("temperature", 1, 0, 1e6);
  r->how.top_p = m.number("top_p", 1, 1e-9, 1);
  r->how.min_p = m.number("min_p", 0, 0, 1);
  r->how.top_k = static_cast<std::uint32_t>(m.integer("top_k", 0, 0, UINT32_MAX));
  const bool seeded = !m.take("seed").is_null();
  r->seed = m.integer("seed", 0, 0, UINT64_MAX);
  r->gamma = m.integer("gamma", most.gamma, 0, most.gamma);
  const std::string drafter = m.string("draft", most.draft_model ? "model" : "lookup");
  const std::vector<std::string> names = {"none", "lookup", "counts", "model"};
  const auto chosen = std::find(names.begin(), names.end(), drafter);
  if (chosen == names.end())
    throw api_error{400, "\"draft\" must be none, lookup, counts or model", "draft"};
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
    throw api_error{
        400, "this policy needs a row of a draft model for every token (\"draft\": \"model\")",
        "policy"};
  if (const json& stop = m.take("stop"); stop.is_string()) r->stops = {stop.get<std::string>()};
  else if (stop.is_array() && stop.size() <= 4 &&
           std::all_of(stop.begin(), stop.end(), [](const json& s) { return s.is_string(); }))
    r->stops = stop.get<std::vector<std::string>>();
  else if (!stop.is_null())
    throw api_error{400, "\"stop\" must be a string or an array of up to 4 strings", "stop"};
  r->stream = m.flag("stream");
  if (const json& options = m.take("stream_options"); !options.is_null()) {
    if (!r->stream)
      throw api_error{400, "\"stream_options\" needs \"stream\": true", "stream_options"};
    members o(options);
    r->usage = o.flag("include_usage");
    o.neutral("include_obfuscation", {false});
    o.none_left();
  }
  r->origins = m.flag("origins");
  ask_for_nothing(m, chat);
  m.none_left();

  std::vector<std::shared_ptr<request>> requests;
  for (auto& text : texts) {
    if (text.empty()) throw api_error{400, "\"prompt\" has no tokens", "prompt"};
    const std::size_t rest = most.context - std::min(most.context, text.size());
    const std::size_t tokens_asked = asked != UINT64_MAX ? asked
                                     : chat              ? std::max<std::size_t>(rest, 1)
                                                         : 16;
    if (tokens_asked > rest)
      throw api_error{
          400,
          fmt::format("the prompt has {} tokens and {} are asked for; a request may have {} in all",
                      text.size(), tokens_asked, most.context),
          newer < longest ? "max_completion_tokens" : "max_tokens", "context_length_exceeded"};
    requests.push_back(std::make_shared<request>(*r));
    requests.back()->prompt = std::move(text);
    requests.back()->max_tokens = tokens_asked;
    if (!seeded) requests.back()->seed = std::random_device()();
  }
  return requests;
}
