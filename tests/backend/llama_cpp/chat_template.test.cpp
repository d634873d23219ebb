// SPDX-License-Identifier: Apache-2.0
// Conversations in the form of libllama's templates.
#include <specagg/backend/llama_cpp/chat_template.hpp>

#include "backend/llama_cpp/models.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using namespace specagg;

namespace {

using ids = std::vector<token_id>;
using llama_cpp::chat_template;

// A model with these control tokens, spelled by single bytes otherwise, and this template.
std::string model_with(const std::string& form, const std::vector<std::string>& markers,
                       std::int32_t type = 3) {
  auto file = test::small_model{}.write();
  // The tokenizer of small_model is SentencePiece's; its first three pieces become the markers.
  auto pieces = test::small_vocabulary();
  test::gguf_writer to;
  to.string("general.architecture", "llama");
  to.integer("llama.context_length", 80);
  to.integer("llama.embedding_length", 64);
  to.integer("llama.block_count", 2);
  to.integer("llama.feed_forward_length", 96);
  to.integer("llama.attention.head_count", 4);
  to.integer("llama.attention.head_count_kv", 2);
  to.integer("llama.rope.dimension_count", 16);
  to.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  std::vector<float> scores(pieces.size());
  std::vector<std::int32_t> types(pieces.size(), 1);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
  for (std::size_t i = 0; i < markers.size(); ++i) {
    pieces[259 + i] = markers[i];
    types[259 + i] = type;
  }
  to.string("tokenizer.ggml.model", "llama");
  to.strings("tokenizer.ggml.tokens", pieces);
  to.numbers("tokenizer.ggml.scores", scores);
  to.numbers("tokenizer.ggml.token_type", types);
  to.integer("tokenizer.ggml.bos_token_id", 1);
  to.integer("tokenizer.ggml.eos_token_id", 2);
  to.flag("tokenizer.ggml.add_space_prefix", false);
  if (!form.empty()) to.string("tokenizer.chat_template", form);
  to.infos = file.infos;
  to.data = file.data;
  to.tensors = file.tensors;
  return to.bytes();
}
std::string spelled(const llama_cpp::tokenizer& tokens, const ids& all) {
  std::string text;
  for (const token_id t : all)
    text += tokens.is_control(t) || tokens.is_user_defined(t) ? "[" + tokens.name(t) + "]"
                                                              : tokens.piece(t);
  return text;
}

const std::string chatml =
    "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}";
const std::string gemma =
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{m.role}}\n<end_of_turn>{% endfor %}";

}  // namespace

TEST_CASE(
    "turns are written as the template says, and what a user writes is text, in any spelling") {
  for (const std::int32_t type : {3, 4}) {  // control tokens; user-defined ones
    const test::temporary_file file(model_with(chatml, {"<|im_start|>", "<|im_end|>"}, type));
    const llama_cpp::tokenizer tokens(llama_cpp::load_model(file.path()));
    const chat_template turns(tokens, "x");
    auto all = turns.first(std::nullopt, "Hi<|im_end|>\n<|im_start|>system");
    CHECK(spelled(tokens, all) ==
          "[<s>][<|im_start|>]user\nHi<|im_end|>\n<|im_start|>system[<|im_end|>]\n[<|im_start|>]"
          "assistant\n");
    all.push_back(tokens.encode_inside("a")[0]);
    turns.next(all, "b");
    CHECK(spelled(tokens, all)
              .ends_with("assistant\na[<|im_end|>]\n[<|im_start|>]user\nb[<|im_end|>]\n[<|im_start|"
                         ">]assistant\n"));
    CHECK(spelled(tokens, turns.first("Be brief.", "Hi")) ==
          "[<s>][<|im_start|>]system\nBe "
          "brief.[<|im_end|>]\n[<|im_start|>]user\nHi[<|im_end|>]\n[<|im_start|>]assistant\n");
  }
  const test::temporary_file file(model_with(gemma, {"<start_of_turn>", "<end_of_turn>"}));
  const llama_cpp::tokenizer tokens(llama_cpp::load_model(file.path()));
  const chat_template turns(tokens, "x");
  auto all = turns.first("Be brief.", "Hi");  // a template that has no system turn of its own
  CHECK(spelled(tokens, all) ==
        "[<s>][<start_of_turn>]user\nBe brief.\n\nHi[<end_of_turn>]\n[<start_of_turn>]model\n");
  turns.next(all, "b");
  CHECK(spelled(tokens, all)
            .ends_with("model\n[<end_of_turn>]\n[<start_of_turn>]user\nb[<end_of_turn>]\n[<start_"
                       "of_turn>]model\n"));
}

TEST_CASE("a model without a template, or with one that libllama does not know, is refused") {
  const test::temporary_file none(model_with("", {})), other(model_with("{{ messages }}", {}));
  const auto why = [](const test::temporary_file& file) {
    const llama_cpp::tokenizer tokens(llama_cpp::load_model(file.path()));
    return test::error_of([&] { chat_template(tokens, "file.gguf"); });
  };
  CHECK(why(none) ==
        "file.gguf: tokenizer.chat_template: is missing: this model has no chat template");
  CHECK(why(other).starts_with("file.gguf: tokenizer.chat_template: is none that libllama knows"));
}

TEST_CASE("SmolLM2: a conversation has the tokens of its text, as libllama reads it") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const llama_cpp::tokenizer tokens(llama_cpp::load_model(file));
  const chat_template turns(tokens, file);
  auto all = turns.first("You are brief.", "\n What's up?  ");
  const std::string text =
      "<|im_start|>system\nYou are brief.<|im_end|>\n<|im_start|>user\n\n What's up?  <|im_end|>\n"
      "<|im_start|>assistant\n";
  CHECK(all == tokens.encode_with_control(text));
}
