// SPDX-License-Identifier: Apache-2.0
// What a client asks for, as OpenAI's API spells it, and what the engine writes for it.
#pragma once
#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <specagg/decoders.hpp>

#include "../cli/backends.hpp"
#include "../cli/policies.hpp"
#include "../cli/terminal.hpp"
#include "members.hpp"
#include "stops.hpp"

// `lossless` reads no row of the draft, so it works with drafts of any kind, or none. All others
// have a row for every token.
using request_policy = specagg::any_of<specagg::lossless, cli::any_policy>;

enum class drafts { none, lookup, counts, model, head };
inline const std::vector<std::string> draft_names = {"none", "lookup", "counts", "model", "head"};
enum class ended { no, stop, length, failed };

// Of the target model's row before a token, at temperature 1 and before penalties and filters: the
// log-probability of the token, and the most likely tokens with theirs.
struct model_logprobs {
  struct one {
    specagg::token_id token;
    double log_p;
  };
  double log_p = 0;
  std::vector<one> most_likely = {};
};
// A token of the text.
struct written_token : specagg::emission {
  model_logprobs model = {};   // where it was asked for
  std::size_t characters = 0;  // of the text before it
};

// Tells the thread of a call that one of its requests has ended, or in a stream gone on.
struct bell {
  std::condition_variable rings;
  std::uint64_t rung = 0;
};

// One text that is asked for: a choice of the answer.
struct request {
  using biases = std::vector<std::pair<specagg::token_id, float>>;
  std::vector<specagg::token_id> prompt;
  std::size_t max_tokens = 16, gamma = 0;
  specagg::sampling how;
  specagg::penalty_options penalties;
  std::shared_ptr<const biases> bias;  // null: none
  std::uint64_t seed = 0, choice = 0;  // of the random numbers
  request_policy policy;
  drafts draft = drafts::none;
  std::shared_ptr<stop_list> stop;  // null: none
  bool stream = false, usage = false, origins = false, chat = false;
  std::optional<std::size_t> logprobs;  // of so many other tokens; none: not even of the text's
  std::shared_ptr<bell> told = std::make_shared<bell>();
  // Written by the engine; its lock protects them.
  std::uint64_t number = 0;  // in the order of arrival
  std::vector<written_token> tokens;
  std::string text;
  std::size_t characters = 0;                 // of the text
  std::shared_ptr<const stop_strings> stops;  // while it is written
  stop_strings::state stop_state = 0;
  std::size_t prompt_read = 0, steps = 0, drafted = 0, accepted = 0;
  specagg::plan::acceptance_record record = {};  // of all steps, with what a stop string cut off
  std::vector<std::size_t> step_drafted, step_accepted;  // of each, where server_options want it
  enum ended ended = ended::no;
  std::string failure;
  int status = 500;  // of the answer, if it has failed
  bool cancelled = false;

  bool reads_draft() const { return std::holds_alternative<cli::any_policy>(policy.chosen); }
  bool repeats() const { return penalties.repetition != 1; }
  bool occurs() const { return penalties.presence != 0 || penalties.frequency != 0; }
  std::size_t longest() const { return prompt.size() + max_tokens; }  // tokens of the whole text

  // Appends a token with these bytes. True: a stop string is complete, and cut off.
  bool append(written_token e, std::string_view bytes) {
    e.characters = characters;
    tokens.push_back(std::move(e));
    for (const char c : bytes) {
      text += c;
      characters += (c & 0xC0) != 0x80;
      const std::size_t n = stops ? stops->read(stop_state, c) : 0;
      if (n == 0) continue;
      text.resize(text.size() - n);
      return true;
    }
    return false;
  }
  // The bytes that no later token takes back, cut between characters.
  std::size_t sure() const {
    if (ended != ended::no) return text.size();
    return text.size() - std::max(stops ? stops->begun(stop_state) : 0, cli::unfinished(text));
  }
};

// What the server's options allow.
struct request_limits {
  std::string model;           // its name
  std::size_t context, gamma;  // tokens of a request; of a draft
  std::size_t draft_context;   // tokens of a request whose policy reads the draft
  bool draft_model, head;      // there is one
  std::size_t choices;         // of a call
  std::string no_chat = {};    // why there is no chat
};

inline api_error no_model(const std::string& name, const std::string& has) {
  return {404, "the model \"" + name + "\" does not exist; this server has \"" + has + "\"",
          "model", "model_not_found"};
}

inline const char* const no_tools = "the model answers with text and calls no tools";

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
    (void)p.take("prompt_cache_breakpoint");
    p.none_left();
  }
  return text;
}

// One user's turn after the other, with the model's answers between them.
inline std::vector<specagg::token_id> conversation(const json& messages, const cli::chat& turns) {
  const auto wrong = [](const std::string& why) {
    throw api_error{400, "\"messages\" " + why, "messages"};
  };
  if (!messages.is_array() || messages.empty()) wrong("must be an array of messages");
  std::optional<std::string> system;
  std::vector<std::string> texts;  // user, assistant, user, ...
  for (const json& message : messages) {
    members m(message);
    const std::string role = m.string("role", ""), text = content(m);
    (void)m.string("name", "");  // templates have roles alone
    m.neutral("tool_calls", {json::array()}, no_tools);
    m.neutral("annotations", {json::array()}, "messages are texts");
    m.none_left();
    if (&message == &messages[0] && (role == "system" || role == "developer")) system = text;
    else if (role != (texts.size() % 2 ? "assistant" : "user"))
      wrong("must have roles user and assistant in turn, after a system message or none");
    else texts.push_back(text);
  }
  if (texts.size() % 2 == 0) wrong("must end with one of role user");
  return turns.tokens(system, texts);
}

// What OpenAI's API has and this server has not, where it asks for nothing.
inline void ask_for_nothing(members& m, bool chat) {
  m.neutral("service_tier", {"auto", "default"}, "there is one tier");
  m.neutral("reasoning_effort", {"none"}, "the model answers at once");
  m.neutral("verbosity", {"medium"}, "a text is as long as the model makes it");
  if (chat) {
    m.neutral("store", {false}, "no answer is stored");
    m.neutral("response_format", {json{{"type", "text"}}}, "the model answers with text");
    m.neutral("tools", {json::array()}, no_tools);
    m.neutral("tool_choice", {"none", "auto"}, no_tools);
    m.neutral("parallel_tool_calls", {true, false}, no_tools);
    m.neutral("functions", {json::array()}, no_tools);
    m.neutral("function_call", {"none", "auto"}, no_tools);
    m.neutral("modalities", {json::array({"text"})}, "the model answers with text");
  } else {
    m.neutral("best_of", {1}, "all choices are returned (\"n\")");
    m.neutral("echo", {false}, "an answer is what follows the prompt");
    m.neutral("suffix", {""}, "the model writes from left to right");
  }
  // Who asks, what may be kept, and what the answer may be like: no text depends on it.
  for (const char* hint : {"user", "safety_identifier", "metadata", "prompt_cache_key",
                           "prompt_cache_options", "prompt_cache_retention", "prediction"})
    (void)m.take(hint);
}

// Log-probabilities: of so many tokens beside the answer's; none: not even of those.
inline std::optional<std::size_t> parse_logprobs(members& m, bool chat) {
  if (!chat) {
    const json& x = m.take("logprobs");
    if (x.is_null() || x == json(false)) return std::nullopt;
    return m.integer("logprobs", 0, 0, 5);
  }
  const bool wanted = m.flag("logprobs");
  const std::uint64_t others = m.integer("top_logprobs", 0, 0, 20);
  if (others > 0 && !wanted)
    throw api_error{400, "\"top_logprobs\" needs \"logprobs\": true", "top_logprobs"};
  if (!wanted) return std::nullopt;
  return others;
}

// {"TOKEN": number, ...}, added to the logits.
inline std::shared_ptr<const request::biases> parse_bias(members& m, std::size_t vocabulary) {
  const json& x = m.take("logit_bias");
  if (x.is_null() || (x.is_object() && x.empty())) return nullptr;
  const auto wrong = [&] {
    throw api_error{400,
                    fmt::format("\"logit_bias\" must have tokens below {} as names (\"5\", not "
                                "\"05\"), and numbers from -100 to 100",
                                vocabulary),
                    "logit_bias"};
  };
  if (!x.is_object()) wrong();
  const auto all = std::make_shared<request::biases>();
  for (const auto& [name, by] : x.items()) {
    specagg::token_id token = 0;
    const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (failure != std::errc() || end != name.data() + name.size() || token < 0 ||
        std::to_string(token) != name || std::size_t(token) >= vocabulary || !by.is_number() ||
        !(std::abs(by.get<double>()) <= 100))
      wrong();
    all->emplace_back(token, by.get<float>());
  }
  return all;
}

inline std::shared_ptr<stop_list> parse_stops(members& m) {
  const json& x = m.take("stop");
  if (x.is_null()) return nullptr;
  std::vector<std::string> all;
  if (x.is_string()) all.push_back(x.get<std::string>());
  else if (x.is_array() &&
           std::all_of(x.begin(), x.end(), [](const json& s) { return s.is_string(); }))
    all = x.get<std::vector<std::string>>();
  else throw api_error{400, "\"stop\" must be a string or an array of strings", "stop"};
  return std::make_shared<stop_list>(std::move(all));
}

inline drafts parse_drafter(members& m, const request_limits& most) {
  const std::string name = m.string("draft", most.head          ? "head"
                                             : most.draft_model ? "model"
                                                                : "lookup");
  const auto chosen = std::find(draft_names.begin(), draft_names.end(), name);
  if (chosen == draft_names.end())
    throw api_error{400, "\"draft\" must be none, lookup, counts, model or head", "draft"};
  const auto drafter = drafts(chosen - draft_names.begin());
  if (drafter == drafts::model && !most.draft_model)
    throw api_error{400, "\"draft\": this server has no draft model (--draft)", "draft"};
  if (drafter == drafts::head && !most.head)
    throw api_error{400, "\"draft\": this server has no draft head (--head)", "draft"};
  return drafter;
}

// The prompts of /v1/completions: a text, an array of texts, an array of tokens, or an array of
// such arrays.
inline std::vector<std::vector<specagg::token_id>> prompts(const json& given, std::size_t most,
                                                           const cli::tokenizer& tokens) {
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

// Throws api_error, also where a name stands twice in one object: nobody knows which was meant.
inline json parse_body(const std::string& body) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  const auto look = [&](int depth, json::parse_event_t event, json& value) {
    using is = json::parse_event_t;
    if (depth > 16) throw api_error{400, "the body is nested too deeply"};
    if (event == is::object_start) names.emplace_back();
    if (event == is::object_end) names.pop_back();
    if (event == is::key && !names.back().insert(value.get<std::string>()).second)
      throw api_error{400, value.dump() + " is given twice", value.get<std::string>()};
    return true;
  };
  try {
    return json::parse(body, look);
  } catch (const json::exception& e) {
    throw api_error{400, std::string("the body is no valid JSON: ") + e.what()};
  }
}

inline specagg::filter_order parse_filter_order(members& m) {
  const std::string given = m.string("filter_order", name(specagg::filter_order()));
  std::string known;
  for (const specagg::filter_order one : specagg::filter_orders) {
    if (given == name(one)) return one;
    known += std::string(known.empty() ? "" : ", ") + name(one);
  }
  throw api_error{400, "\"filter_order\" is one of " + known, "filter_order"};
}

// How the tokens of a text are drafted and drawn.
inline void parse_sampling(members& m, request& r, const request_limits& most,
                           std::size_t vocabulary) {
  r.how.temperature = m.number("temperature", 1, 0, 1e6);
  r.how.top_p = m.number("top_p", 1, 1e-9, 1);
  r.how.min_p = m.number("min_p", 0, 0, 1);
  r.how.top_k = static_cast<std::uint32_t>(m.integer("top_k", 0, 0, UINT32_MAX));
  r.how.order = parse_filter_order(m);
  r.gamma = m.integer("gamma", most.gamma, 0, most.gamma);
  r.draft = parse_drafter(m, most);
  if (r.draft == drafts::none) r.gamma = 0;
  try {
    const auto policy = cli::parse_policy(m.string("policy", "lossless"), r.how.temperature);
    if (!std::holds_alternative<specagg::lossless>(policy.chosen)) r.policy = policy;
  } catch (const specagg::error& e) {
    const std::string why = e.what();  // which begins with the command line's option
    throw api_error{400, why.substr(why.starts_with("--") ? 2 : 0), "policy"};
  }
  if (r.reads_draft() && r.draft != drafts::model)
    throw api_error{
        400, "this policy needs a row of a draft model for every token (\"draft\": \"model\")",
        "policy"};
  r.penalties = {.repetition = m.number("repetition_penalty", 1, 1e-3, 1e3),
                 .presence = m.number("presence_penalty", 0, -2, 2),
                 .frequency = m.number("frequency_penalty", 0, -2, 2)};
  r.bias = parse_bias(m, vocabulary);
}

inline void parse_stream(members& m, request& r) {
  r.stream = m.flag("stream");
  const json& options = m.take("stream_options");
  if (options.is_null()) return;
  if (!r.stream)
    throw api_error{400, "\"stream_options\" needs \"stream\": true", "stream_options"};
  members o(options);
  r.usage = o.flag("include_usage");
  o.neutral("include_obfuscation", {false}, "parts are as long as their texts");
  o.none_left();
}

// How many tokens an answer may have. A policy that reads the draft needs its row for each token;
// all others go on without drafts where the draft model's context is full.
struct lengths {
  std::uint64_t asked = UINT64_MAX;  // it was not said
  std::string name = "max_tokens";   // of the field that said it
  // "max_completion_tokens" is the newer name; where both are given, both hold.
  lengths(members& m, bool chat, std::size_t context) {
    asked = m.integer("max_tokens", UINT64_MAX, 1, context);
    const std::uint64_t newer =
        chat ? m.integer("max_completion_tokens", UINT64_MAX, 1, context) : UINT64_MAX;
    if (newer < asked) asked = newer, name = "max_completion_tokens";
  }
  std::size_t after(std::size_t prompt, const request& r, const request_limits& most) const {
    const bool of_draft = r.reads_draft() && most.draft_context < most.context;
    const std::size_t context = of_draft ? most.draft_context : most.context,
                      rest = context - std::min(context, prompt),
                      wanted = asked != UINT64_MAX ? asked
                               : r.chat            ? std::max<std::size_t>(rest, 1)
                                                   : 16;
    if (wanted > rest)
      throw api_error{
          400,
          fmt::format("the prompt has {} tokens and {} are asked for; a request {}may "
                      "have {} in all",
                      prompt, wanted, of_draft ? "whose policy reads the draft model's rows " : "",
                      context),
          name, "context_length_exceeded"};
    return wanted;
  }
};

inline std::uint64_t random_seed() {
  std::random_device bits;  // 32 at a time
  return std::uint64_t(bits()) << 32 | bits();
}

// The requests of a call: for each prompt as many as "n" says. turns: null if the model has no chat
// template that is known. Throws api_error.
inline std::vector<std::shared_ptr<request>> parse_requests(const std::string& body, bool chat,
                                                            const request_limits& most,
                                                            const cli::tokenizer& tokens,
                                                            const cli::chat* turns) {
  const json all = parse_body(body);
  members m(all);
  const auto r = std::make_shared<request>();
  r->chat = chat;
  if (const auto name = m.string("model", most.model); name != most.model)
    throw no_model(name, most.model);
  std::vector<std::vector<specagg::token_id>> texts;
  try {
    if (chat && !turns) throw api_error{400, most.no_chat + "; use /v1/completions", "messages"};
    if (chat) texts.push_back(conversation(m.take("messages"), *turns));
    else texts = prompts(m.take("prompt"), most.choices, tokens);
  } catch (const specagg::error& e) {
    throw api_error{400, e.what(), chat ? "messages" : "prompt"};
  }
  const lengths length(m, chat, most.context);
  parse_sampling(m, *r, most, tokens.size());
  const auto seed = m.bits("seed");
  r->stop = parse_stops(m);
  r->logprobs = parse_logprobs(m, chat);
  parse_stream(m, *r);
  r->origins = m.flag("origins");
  const std::uint64_t n = m.integer("n", 1, 1, most.choices);
  if (n * texts.size() > most.choices)
    throw api_error{400,
                    fmt::format("\"n\": {} choices of {} prompts; a call may have {} in all", n,
                                texts.size(), most.choices),
                    "n"};
  ask_for_nothing(m, chat);
  m.none_left();

  std::vector<std::shared_ptr<request>> requests;
  for (auto& text : texts) {
    if (text.empty()) throw api_error{400, "\"prompt\" has no tokens", "prompt"};
    r->max_tokens = length.after(text.size(), *r, most);
    r->prompt = std::move(text);
    r->seed = seed ? *seed : random_seed();
    for (r->choice = 0; r->choice < n; ++r->choice)
      requests.push_back(std::make_shared<request>(*r));  // with one bell
  }
  return requests;
}
