// SPDX-License-Identifier: Apache-2.0
// The chat templates that are known exactly, by a hash of their whole text. All others are refused:
// the library has no Jinja, and a guess would give other prompts. Each entry was printed by
// scripts/chat-template, which compares it with what jinja2 makes of the template, and laid out by
// scripts/format. To add one: that line, and tests/cli/chat_templates.py for the test.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cli {

// What a template makes of a conversation: start (system, if there is a system text), next for each
// answer and the user's turn after it, end. In these
//   {bos} {eos}   are the tokens that begin and end a text,
//   {default}     is the system text that stands in the template,
//   {s} {u} {a}   are the texts of system, user and answer, after filters:
//     trim              without white space at both ends, as Python's strip()
//     after_thought     what follows the last "</think>"
//     without_thought   the same without its first newlines; a text without "</think>" stays
//     some              an empty system text is none
struct chat_form {
  std::string_view names;               // of models or kinds
  std::array<std::uint64_t, 8> hashes;  // of templates (general_template); 0: none
  std::string_view start, next;
  std::string_view system;  // empty: a system text has no turn of its own, and is refused
  std::string_view end;
  std::string_view reads;  // words that the template reads in texts, one a line: they are refused
};

inline constexpr chat_form chat_forms[] = {
    {"SmolLM2, Qwen2.5, Qwen2.5-VL, MiMo, ChatML",
     {0x0fbfb5c24e90177f, 0x892014ec69dd5be1, 0x407a630ef4f6db4a, 0xefa508ea52bd97a5},
     "<|im_start|>system\n{default}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_start|>system\n{s}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n",
     ""},
    {"ChatML, Qwen3-Instruct-2507, Qwen3-VL, Qwen3-Coder",
     {0x88bf4138d5c826f0, 0x773d13e188afc917, 0x3dbbdd28c4670e85, 0x3751fe8ea48448ab,
      0x99ac253185d6f7c1, 0x21dc9ed0659009cb},
     "<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_start|>system\n{s}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n",
     ""},
    {"ChatML",
     {0x420fcc29f31a339e},
     "<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n<|im_start|>user\n{u}",
     "{s}<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n",
     ""},
    {"ChatML",
     {0x71769a60b37b2975, 0x89bcbd75ce6a3d28, 0x6026a4efc1063551},
     "{bos}<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n<|im_start|>user\n{u}",
     "{bos}<|im_start|>system\n{s}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n",
     ""},
    {"ChatML",
     {0x6336937c1429e601},
     "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_start|>system\n{s}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n",
     ""},
    {"Qwen3",
     {0x2bfdb7aa9754484e, 0x959a4551391a6549},
     "<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a|without_thought}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_start|>system\n{s}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n",
     "<tool_response>"},
    {"Qwen3.5, Qwen3.6",
     {0xf07c510f47fbaca0, 0x8ae3a8bc6e68f114},
     "<|im_start|>user\n{u|trim}",
     "<|im_end|>\n<|im_start|>assistant\n{a|trim|without_thought}<|im_end|>\n<|im_start|>user\n{u|"
     "trim}",
     "<|im_start|>system\n{s|trim}<|im_end|>\n<|im_start|>user\n{u|trim}",
     "<|im_end|>\n<|im_start|>assistant\n<think>\n",
     "<tool_response>"},
    {"Qwen3.5",
     {0x407bbcdeb62737b7},
     "<|im_start|>user\n{u|trim}",
     "<|im_end|>\n<|im_start|>assistant\n{a|trim|without_thought}<|im_end|>\n<|im_start|>user\n{u|"
     "trim}",
     "<|im_start|>system\n{s|trim}<|im_end|>\n<|im_start|>user\n{u|trim}",
     "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
     "<tool_response>"},
    {"StepFun 3.5",
     {0xfdd6351eb8f1a4e8},
     "{bos}<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a|without_thought}<|im_end|>\n<|im_start|>user\n{u}",
     "{bos}<|im_start|>system\n{s}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n<think>\n",
     "<tool_response>"},
    {"MiniCPM5",
     {0x4c5e13d839950fda},
     "{bos}<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a|without_thought}<|im_end|>\n<|im_start|>user\n{u}",
     "{bos}<|im_start|>system\n{s}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n",
     "<tool_response>"},
    {"LFM2",
     {0x64c90fcede246b34, 0x7faef5d8e49cf520, 0x8f22102d7794bb85},
     "{bos}<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n<|im_start|>user\n{u}",
     "{bos}<|im_start|>system\n{s|some}<|im_end|>\n<|im_start|>user\n{u}",
     "<|im_end|>\n<|im_start|>assistant\n",
     ""},
    {"Llama 3",
     {0x0e60067a5537498e},
     "{bos}<|start_header_id|>user<|end_header_id|>\n\n{u|trim}",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{a|trim}<|eot_id|><|start_header_"
     "id|>user<|end_header_id|>\n\n{u|trim}",
     "{bos}<|start_header_id|>system<|end_header_id|>\n\n{s|trim}<|eot_id|><|start_header_id|>user<"
     "|end_header_id|>\n\n{u|trim}",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
     ""},
    {"Llama 3.1, Llama 3.3",
     {0xcc0368e1ffb6b958},
     "{bos}<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
     "2023\nToday Date: 26 Jul "
     "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{u|trim}",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{a|trim}<|eot_id|><|start_header_"
     "id|>user<|end_header_id|>\n\n{u|trim}",
     "{bos}<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
     "2023\nToday Date: 26 Jul "
     "2024\n\n{s|trim}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{u|trim}",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
     ""},
    {"Llama 2",
     {0x54f74c2db3c2b5b9, 0xf344eecf1bd3a427},
     "{bos}[INST] {u|trim}",
     " [/INST] {a|trim} {eos}{bos}[INST] {u|trim}",
     "",
     " [/INST]",
     ""},
    {"Mistral",
     {0xc730acc029ce6ee0},
     "{bos}[INST] {u}",
     " [/INST]{a}{eos} [INST] {u}",
     "",
     " [/INST]",
     ""},
    {"Mixtral",
     {0x8c734b90b4f8d84d},
     "{bos}[INST] {u}",
     " [/INST]{a}{eos}[INST] {u}",
     "",
     " [/INST]",
     ""},
    {"Mistral Nemo",
     {0x20783e9d94168233},
     "{bos}[INST]{u}",
     "[/INST]{a}{eos}[INST]{u}",
     "",
     "[/INST]",
     ""},
    {"Zephyr",
     {0xcd8b49000db02c2c},
     "<|user|>\n{u}",
     "{eos}\n<|assistant|>\n{a}{eos}\n<|user|>\n{u}",
     "<|system|>\n{s}{eos}\n<|user|>\n{u}",
     "{eos}\n<|assistant|>\n",
     ""},
    {"Zephyr",
     {0x4cbed0d6a7c090ec},
     "<|user|>\n{u}",
     "\n<|assistant|>\n{a}{eos}\n<|user|>\n{u}",
     "",
     "\n<|assistant|>\n",
     ""},
    {"OpenChat",
     {0x51c8c94545ac4017},
     "{bos}GPT4 Correct User: {u}",
     "<|end_of_turn|>GPT4 Correct Assistant: {a}<|end_of_turn|>GPT4 Correct User: {u}",
     "{bos}GPT4 Correct System: {s}<|end_of_turn|>GPT4 Correct User: {u}",
     "<|end_of_turn|>GPT4 Correct Assistant:",
     ""},
    {"Gemma",
     {0x5c10ee65212d93b3},
     "{bos}<start_of_turn>user\n{u|trim}",
     "<end_of_turn>\n<start_of_turn>model\n{a|trim}<end_of_turn>\n<start_of_turn>user\n{u|trim}",
     "",
     "<end_of_turn>\n<start_of_turn>model\n",
     ""},
    {"Gemma 3",
     {0xd19b6ff3a49deea5},
     "{bos}<start_of_turn>user\n{u|trim}",
     "<end_of_turn>\n<start_of_turn>model\n{a|trim}<end_of_turn>\n<start_of_turn>user\n{u|trim}",
     "{bos}<start_of_turn>user\n{s}\n\n{u|trim}",
     "<end_of_turn>\n<start_of_turn>model\n",
     ""},
    {"Gemma 4",
     {0xecf8ed96903a3852, 0x1e244f9a64c9873f},
     "{bos}<|turn>user\n{u|trim}",
     "<turn|>\n<|turn>model\n{a|trim}<turn|>\n<|turn>user\n{u|trim}",
     "{bos}<|turn>system\n{s|trim}<turn|>\n<|turn>user\n{u|trim}",
     "<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
     "<channel|>\n<|channel>"},
    {"Gemma 4",
     {0xfd2eff67701906eb, 0xf8853f5ee4557739, 0x9c363b945b2badb4, 0x77a0d11961f44b7e,
      0x8f0d9448769de281},
     "{bos}<|turn>user\n{u|trim}",
     "<turn|>\n<|turn>model\n{a|trim}<turn|>\n<|turn>user\n{u|trim}",
     "{bos}<|turn>system\n{s|trim}<turn|>\n<|turn>user\n{u|trim}",
     "<turn|>\n<|turn>model\n",
     "<channel|>\n<|channel>"},
    {"DeepSeek R1 distilled, DeepSeek V3",
     {0x731e2d647d2bf911, 0x845fdf813c637ee2, 0x4526f885d718fa95},
     "{bos}<\uff5cUser\uff5c>{u}",
     "<\uff5cAssistant\uff5c>{a|after_thought}<\uff5cend\u2581of\u2581sentence\uff5c><"
     "\uff5cUser\uff5c>{u}",
     "{bos}{s}<\uff5cUser\uff5c>{u}",
     "<\uff5cAssistant\uff5c><think>\n",
     ""},
    {"DeepSeek R1 distilled",
     {0xe8dafd0b656d9f87},
     "{bos}<\uff5cUser\uff5c>{u}",
     "<\uff5cAssistant\uff5c>{a|after_thought}<\uff5cend\u2581of\u2581sentence\uff5c><"
     "\uff5cUser\uff5c>{u}",
     "{bos}{s}<\uff5cUser\uff5c>{u}",
     "<\uff5cAssistant\uff5c><think>\n</think>",
     ""},
    {"DeepSeek V3.2",
     {0x28c1eb4c82828d2d},
     "{bos}<\uff5cUser\uff5c>{u}",
     "<\uff5cAssistant\uff5c></"
     "think>{a}<\uff5cend\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>{u}",
     "{bos}{s}<\uff5cUser\uff5c>{u}",
     "<\uff5cAssistant\uff5c><think></think>",
     ""},
    {"DeepSeek V4",
     {0x05c9566651bb7ab5},
     "{bos}<\uff5cUser\uff5c>{u}",
     "<\uff5cAssistant\uff5c></"
     "think>{a}<\uff5cend\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>{u}",
     "{bos}{s}<\uff5cUser\uff5c>{u}",
     "<\uff5cAssistant\uff5c></think>",
     ""},
    {"Granite",
     {0x7772e88b761f8d6e},
     "Question:\n{u}",
     "\n\nAnswer:\n{a}\n\nQuestion:\n{u}",
     "System:\n{s}\n\nQuestion:\n{u}",
     "\n\nAnswer:\n",
     ""},
    {"Granite 4.1",
     {0x0cabcc19a9f80029},
     "<|start_of_role|>user<|end_of_role|>{u}",
     "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>{a}<|end_of_text|>\n<|start_of_"
     "role|>user<|end_of_role|>{u}",
     "<|start_of_role|>system<|end_of_role|>{s|some}<|end_of_text|>\n<|start_of_role|>user<|end_of_"
     "role|>{u}",
     "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
     ""},
    {"Command R",
     {0x0a6d1e7ae67afa57, 0x16913247e5fddff9},
     "{bos}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{u|trim}",
     "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{a|trim}<|END_OF_TURN_TOKEN|><|"
     "START_OF_TURN_TOKEN|><|USER_TOKEN|>{u|trim}",
     "{bos}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{s}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|"
     "USER_TOKEN|>{u|trim}",
     "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
     ""},
    {"Kimi K2",
     {0x03b73e6a09dd8ecb},
     "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot "
     "AI.<|im_end|>\n<|im_user|>user<|im_middle|>{u}",
     "<|im_end|><|im_assistant|>assistant<|im_middle|>{a}<|im_end|><|im_user|>user<|im_middle|>{u}",
     "<|im_system|>system<|im_middle|>{s}<|im_end|><|im_user|>user<|im_middle|>{u}",
     "<|im_end|><|im_assistant|>assistant<|im_middle|>",
     ""},
    {"Kimi K2",
     {0x33021529ac66133e},
     "<|im_system|>system<|im_middle|>You are a helpful "
     "assistant<|im_end|><|im_user|>user<|im_middle|>{u}",
     "<|im_end|><|im_assistant|>assistant<|im_middle|>{a}<|im_end|><|im_user|>user<|im_middle|>{u}",
     "<|im_system|>system<|im_middle|>{s}<|im_end|><|im_user|>user<|im_middle|>{u}",
     "<|im_end|><|im_assistant|>assistant<|im_middle|>",
     ""},
    {"GLM 4.7",
     {0x455b4682700c641e},
     "[gMASK]<sop><|user|>{u}",
     "<|assistant|></think>{a|after_thought|trim}<|user|>{u}",
     "[gMASK]<sop><|system|>{s}<|user|>{u}",
     "<|assistant|><think>",
     ""},
    {"Solar",
     {0xc0bb5de69aeaa2a7},
     "### User:\n{u}",
     "\n\n### Assistant:\n{a}### User:\n{u}",
     "### System:\n{s|some}\n\n### User:\n{u}",
     "\n\n### Assistant:\n",
     ""},
};

// A template without the newline at its end, which Jinja drops, and without the system text that it
// writes where a conversation has none; and this text. Cutting it out is exact: it stands inside
// one literal, whose other characters stay.
struct general_template {
  std::string text;
  std::optional<std::string> system;

  explicit general_template(std::string_view form) : text(form) {
    if (text.ends_with('\n')) text.pop_back();
    const std::string_view before = "<|im_start|>system", after = "<|im_end|>";
    for (std::size_t at = 0; (at = text.find(before, at)) != std::string::npos;) {
      at += before.size();
      const std::size_t from = text.compare(at, 1, "\n") == 0    ? at + 1
                               : text.compare(at, 2, "\\n") == 0 ? at + 2
                                                                 : 0;
      const std::size_t to = text.find(after, at);
      if (from == 0 || to == std::string::npos) continue;
      const std::string said = text.substr(from, to - from);
      if (said.find_first_of("'\"{}\\\r") != std::string::npos) continue;
      system = said;
      text.erase(from, said.size());
      return;
    }
  }
  // FNV-1a, 64 bits.
  std::uint64_t hash() const {
    std::uint64_t h = 14695981039346656037u;
    for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return h;
  }
};

// Null: it is not known.
inline const chat_form* form_of(const general_template& form) {
  const std::uint64_t hash = form.hash();
  for (const chat_form& known : chat_forms)
    for (const std::uint64_t h : known.hashes)
      if (h == hash) return &known;
  return nullptr;
}

}  // namespace cli
