// SPDX-License-Identifier: Apache-2.0
#include "../tools/cli/chat.hpp"

#include <specagg/backend/cpu/llama.hpp>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/models.hpp"
#include "backend/cpu/tiny_models.hpp"
#include "cli/command.hpp"
#include "support/catch.hpp"
#include "support/smollm2.hpp"

using namespace specagg;
using cli::ran, cli::refuses, cli::run;

#if defined(SPECAGG_PCRE2)

namespace {

using ids = std::vector<token_id>;

void append(ids& to, const ids& more) { to.insert(to.end(), more.begin(), more.end()); }
// Tests run at the same time in one folder. So each process has files of its own, which are removed
// when it ends.
std::string own(const std::string& name) {
  static struct files {
    std::set<std::string> names;
    ~files() {
      for (const auto& n : names) std::filesystem::remove(n);
    }
  } all;
  return *all.names.insert(std::to_string(getpid()) + "-" + name).first;
}
std::string written(const std::string& name, const test::gguf_writer& file) {
  std::ofstream(own(name), std::ios::binary) << file.bytes();
  return own(name);
}
// One object for each turn.
std::vector<nlohmann::json> answers(const std::string& arguments, const std::string& turns) {
  std::ofstream(own("turns.tmp")) << turns;
  const ran r = run("generate --chat --json " + arguments, own("turns.tmp"));
  INFO(arguments << "\n" << r.out);
  REQUIRE(r.status == 0);
  std::vector<nlohmann::json> all;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

// A vocabulary of single bytes with markers of the given type, and this template.
test::gguf_writer with_template(const std::string& form, std::int32_t marker_type = 3,
                                bool begin = false) {
  std::vector<std::string> pieces = {"<|im_start|>", "<|im_end|>"};
  for (int b = 0; b < 256; ++b)
    pieces.push_back(test::spelled(std::string(1, static_cast<char>(b))));
  std::vector<std::int32_t> types(pieces.size(), 1);
  types[0] = types[1] = marker_type;
  test::gguf_writer to;
  to.string("tokenizer.ggml.model", "gpt2");
  to.string("tokenizer.ggml.pre", "smollm");
  to.strings("tokenizer.ggml.tokens", pieces);
  to.numbers("tokenizer.ggml.token_type", types);
  to.strings("tokenizer.ggml.merges", {});
  to.integer("tokenizer.ggml.bos_token_id", 7);
  to.integer("tokenizer.ggml.eos_token_id", 8);
  to.flag("tokenizer.ggml.add_bos_token", begin);
  to.flag("tokenizer.ggml.add_eos_token", begin);
  if (!form.empty()) to.string("tokenizer.chat_template", form);
  return to;
}

// The commonest ChatML template.
const std::string plain =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";
std::vector<std::string> one_text(const std::string& text) { return {text}; }

}  // namespace

TEST_CASE(
    "a conversation has the tokens of its text, with the markers parsed where the template puts "
    "them") {
  const test::gguf_bytes bytes(test::tiny_model{.byte_level = true}.write().bytes());
  const cli::cpu_tokenizer tokens(bytes.open());
  const auto chat = tokens.chat();
  const cpu::byte_level_bpe words(tokens.file);
  ids all = chat->tokens({}, one_text("What say you?"));
  append(all, words.encode("I pray thee"));
  const std::vector<std::string> texts = {"What say you?", "I pray thee", " And\nthen?"};
  const ids due = words.encode(
      "<|im_start|>system\nSpeak as a player does<|im_end|>\n"
      "<|im_start|>user\nWhat say you?<|im_end|>\n"
      "<|im_start|>assistant\nI pray thee<|im_end|>\n"
      "<|im_start|>user\n And\nthen?<|im_end|>\n"
      "<|im_start|>assistant\n",
      true);
  CHECK(chat->next(all, {}, texts) == due);
  CHECK(chat->tokens({}, texts) == due);
}

TEST_CASE("the system's text is the given one, else the template's own, else there is none") {
  const auto begins = [](const std::string& form, const std::optional<std::string>& given = {},
                         bool begin = false) {
    const test::gguf_bytes bytes(with_template(form, 3, begin).bytes());
    const cli::cpu_tokenizer tokens(bytes.open());
    return tokens.of.decode(tokens.chat()->tokens(given, one_text("Hi")));
  };
  const std::string rest = "user\nHi\nassistant\n";
  CHECK(begins(plain) == rest);
  CHECK(begins(plain, "Be brief.") == "system\nBe brief.\n" + rest);
  CHECK(begins(plain, "") == "system\n\n" + rest);
  CHECK(begins(plain, {}, true) == rest);  // the template writes no begin token
  const std::string own(test::tiny_model::chat_template);
  CHECK(begins(own) == "system\nSpeak as a player does\n" + rest);
  CHECK(begins(own, "Be brief.") == "system\nBe brief.\n" + rest);
  CHECK(begins(own, "") == "system\n\n" + rest);
}

TEST_CASE(
    "the tokens that end a text: the file's end token and end of turn, and those known by their "
    "spelling") {
  const auto ends = [](const test::gguf_writer& file) {
    const test::gguf_bytes bytes(file.bytes());
    return cli::end_tokens_of(bytes.open());
  };
  CHECK(ends(test::tiny_model{.byte_level = true}.write()) == ids{0, 2});
  CHECK(ends(test::tiny_model{}.write()) == ids{2});
  auto file = with_template("");
  CHECK(ends(file) == ids{1, 8});
  file.integer("tokenizer.ggml.eot_token_id", 5);
  CHECK(ends(file) == ids{1, 5, 8});
  auto beyond = with_template("");
  beyond.integer("tokenizer.ggml.eot_token_id", 258);
  CHECK(test::error_of([&] { ends(beyond); }) ==
        "test.gguf: metadata tokenizer.ggml.eot_token_id: 258 is not a token (there are 258)");
  CHECK(ends(with_template("", 1)) == ids{8});  // <|im_end|> that is ordinary text
}

TEST_CASE("a file whose template is not known is refused in a line that names the place") {
  const auto refusal = [](const test::gguf_writer& file) {
    return test::error_of([&] {
      const test::gguf_bytes bytes(file.bytes());
      (void)cli::cpu_tokenizer(bytes.open()).chat();
    });
  };
  const std::string key = "test.gguf: metadata tokenizer.chat_template: ";
  CHECK(refusal(with_template(plain)) == "");
  CHECK(refusal(with_template("")) == key + "is missing: this model has no chat template");
  for (const std::string& other :
       {std::string("[INST]"), std::string("<|im_start|><|im_end|>"), " " + plain, plain + "\n\n"})
    CHECK(refusal(with_template(other)).starts_with(key + "is none that is known exactly"));
  CHECK(refusal(with_template(plain, 1)).find("has no special token <|im_start|>") !=
        std::string::npos);
}

TEST_CASE("a chat answers each line, from the whole conversation, and computes only what is new") {
  const std::string target =
                        written("chat-target.tmp",
                                test::tiny_model{.from = "target", .byte_level = true}.write()),
                    draft = written("chat-draft.tmp", test::tiny_model{.byte_level = true}.write());
  const std::string options = "--temperature 0 --max-tokens 12 --target " + target,
                    second = "And what then?";
  const auto alone = answers(options + " --prompt 'What say you?'", second + "\n\nWho is it?\n");
  REQUIRE(alone.size() == 3);  // an empty line is no turn
  CHECK(alone[0]["prompt"] == "What say you?");
  CHECK(alone[1]["prompt"] == second);
  CHECK(alone[2]["turn"] == 3);
  for (const auto& a : alone)
    CHECK((a["tokens"].size() == 12 && a["ended_by"] == "length" && a["drafted"] == 0));
  // From scratch: the conversation so far, token by token.
  const cli::cpu_tokenizer tokens(cpu::gguf_file::open(target));
  const auto chat = tokens.chat();
  cpu::llama model(std::make_shared<const cpu::llama_weights>(tokens.file));
  std::vector<float> row(model.vocab_size());
  ids text;
  std::vector<std::string> texts;
  std::size_t known = 0;
  for (const auto& a : alone) {
    texts.push_back(a["prompt"]);
    text = texts.size() == 1 ? chat->tokens({}, texts) : chat->next(text, {}, texts);
    CHECK(a["prompt_tokens"] == text.size());
    CHECK(a["prompt_tokens_known"] == known);
    for (const token_id given : a["tokens"].get<ids>()) {
      (void)model.rollback(0);
      REQUIRE(model.extend(text, row) == status::ok);
      REQUIRE(given == std::max_element(row.begin(), row.end()) - row.begin());
      text.push_back(given);
    }
    known = text.size() - 1;  // nothing was computed for the last token yet
    texts.push_back(tokens.of.decode(a["tokens"].get<ids>()));
  }
  // With a draft model, on two threads, and with every turn from standard input: the same answers.
  for (const std::string& more : {" --draft " + draft, std::string(" --threads 2"),
                                  " --draft " + draft + " --decoder sequential"}) {
    const auto others = answers(options + more, "What say you?\n" + second + "\nWho is it?");
    REQUIRE(others.size() == 3);
    for (std::size_t i = 0; i < 3; ++i)
      if (more.find("sequential") == std::string::npos)
        CHECK(others[i]["tokens"] == alone[i]["tokens"]);
    CHECK((others[0]["draft_calls"] != 0 || more == " --threads 2"));
  }
  // What drafting costs is measured once, and again when the conversation is twice as long: in
  // later turns it is the same number.
  const auto automatic =
      answers(options + " --draft " + draft + " --gamma auto", "What say you?\nAye\nNo\nAye\nNo");
  REQUIRE(automatic.size() == 5);
  std::size_t measured = 0;
  for (std::size_t i = 1; i < 5; ++i) measured += automatic[i]["d"] != automatic[i - 1]["d"];
  CHECK(measured < 4);
  CHECK(automatic[4]["d"] == automatic[3]["d"]);
  CHECK(answers(options + " --system 'Be brief'", second)[0]["prompt_tokens"] !=
        answers(options, second)[0]["prompt_tokens"]);
  CHECK(answers(options, "").empty());
}

TEST_CASE("standard output has the answers alone, the counts go to standard error") {
  const std::string target =
      written("chat-target.tmp", test::tiny_model{.from = "target", .byte_level = true}.write());
  const std::string options = "--temperature 0 --max-tokens 12 --target " + target;
  std::ofstream(own("turns.tmp")) << "Who is it?\nAnd then?\n";
  const auto expected = answers(options, "Who is it?\nAnd then?\n");
  const ran r = cli::shell(std::string(SPECAGG_CLI) + " generate --chat " + options + " <" +
                           own("turns.tmp") + " 2>" + own("counts.tmp"));
  CHECK(r.status == 0);
  CHECK(r.out == expected[0]["text"].get<std::string>() + "\n" +
                     expected[1]["text"].get<std::string>() + "\n");
  std::ifstream counts(own("counts.tmp"));
  const std::string said((std::istreambuf_iterator<char>(counts)), {});
  CHECK(said.find("12 tokens in ") != std::string::npos);
}

TEST_CASE(
    "generate --chat --compare decodes the first turn both ways, and says whether the tokens are "
    "the same") {
  const std::string target =
                        written("chat-target.tmp",
                                test::tiny_model{.from = "target", .byte_level = true}.write()),
                    draft = written("chat-draft.tmp", test::tiny_model{.byte_level = true}.write());
  const std::string options = " --max-tokens 30 --gamma 2 --target " + target + " --draft " + draft,
                    greedy = options + " --temperature 0", question = " --prompt 'What say you?'";
  const ran r = run("generate --chat --compare" + greedy + question);
  INFO(r.out);
  CHECK(r.status == 0);
  CHECK(r.out.find("; the same 30 tokens as the target alone, bit for bit\n") != std::string::npos);
  const auto turn = answers(greedy, "What say you?")[0];
  std::vector<std::size_t> from;
  for (const char* name : {"accepted", "residual", "bonus"})
    from.push_back(std::size_t(std::count(turn["origin"].begin(), turn["origin"].end(), name)));
  CHECK(r.out.find(std::to_string(from[0]) + " accepted, " + std::to_string(from[1]) +
                   " residual, " + std::to_string(from[2]) + " bonus;") != std::string::npos);
  const auto compared =
      nlohmann::json::parse(run("generate --json --chat --compare" + greedy + question).out);
  CHECK(compared["tokens"] == turn["tokens"]);
  CHECK(compared["target_alone"]["tokens"] == turn["tokens"]);
  CHECK(compared["repeats"] == 5);
  // another text each way
  const ran drawn = run("generate --chat --compare --temperature 1.5" + options + question);
  CHECK(drawn.status == 0);
  CHECK(drawn.out.find("bit for bit") == std::string::npos);
}

TEST_CASE("a turn ends at each of the file's end tokens, which are not printed") {
  // A model that prefers an end token to the commonest piece, ",".
  for (const token_id end : {0, 2}) {
    test::tiny_model model{.from = "target", .byte_level = true};
    model.like = {end, 1.5};
    const std::string target = written("chat-end.tmp", model.write());
    const auto all =
        answers("--temperature 0 --max-tokens 60 --target " + target, "Who is it?\nAnd then?\n");
    REQUIRE(all.size() == 2);
    for (const auto& a : all) {
      INFO(a);
      CHECK(a["ended_by"] == "end of text");
      CHECK(a["tokens"].back() == end);
      CHECK(a["tokens"].size() < 60);
      CHECK(a["text"].get<std::string>().find("<|") == std::string::npos);
    }
    const ran plain =
        run("generate --json --temperature 0 --max-tokens 60 --prompt 'Who is' --target " + target);
    CHECK(nlohmann::json::parse(plain.out)["ended_by"] == "end of text");
  }
}

TEST_CASE(
    "a text with a byte that no piece stands for ends its turn in a line, and the chat goes on "
    "without it") {
  const test::tiny_model model{.from = "target", .byte_level = true, .without_byte = 0xff};
  const std::string arguments =
      "--temperature 0 --max-tokens 8 --target " + written("chat-lacks.tmp", model.write());
  const auto all = answers(arguments, "\xff!\nWho is it?\nWhat \xff?\nAnd then?\n");
  const auto without = answers(arguments, "Who is it?\nAnd then?\n");
  REQUIRE(all.size() == 4);
  REQUIRE(without.size() == 2);
  for (const std::size_t refused : {0u, 2u}) {
    const std::string line = all[refused]["error"];
    CHECK(line.starts_with("turn " + std::to_string(refused + 1) + ": "));
    CHECK(line.find("the text has the byte 255, which no piece stands for") != std::string::npos);
    CHECK(all[refused]["turn"] == refused + 1);
  }
  for (const std::size_t i : {0u, 1u})
    for (const char* what : {"tokens", "prompt", "prompt_tokens", "prompt_tokens_known"})
      CHECK(all[2 * i + 1][what] == without[i][what]);
  std::ofstream(own("turns.tmp")) << "\xff\n\xff\n";
  const ran lines = run("generate --chat " + arguments, own("turns.tmp"));
  CHECK(lines.status == 0);
  CHECK(std::count(lines.out.begin(), lines.out.end(), '\n') == 2);
  CHECK(lines.out.find("specagg: turn 2: ") != std::string::npos);
  refuses("generate --chat --system \xff " + arguments, {"255"});
}

TEST_CASE("a chat that cannot be is refused in a line") {
  const std::string target =
                        written("chat-target.tmp",
                                test::tiny_model{.from = "target", .byte_level = true}.write()),
                    other = written("chat-other.tmp", test::tiny_model{.from = "target"}.write());
  refuses("generate --chat", {"target.gguf", "tokenizer.chat_template", "is missing"});
  refuses("generate --chat --target " + other, {"chat-other.tmp", "tokenizer.chat_template"});
  refuses("generate --chat --compare --target " + target + " --draft " + target,
          {"--compare", "--prompt"});
  refuses("generate --system x --target " + target, {"--system", "--chat"});
  refuses("generate --gamma 3 --target " + target, {"--gamma 3", "--draft"});
  refuses("generate --decoder bild --target " + target, {"--decoder bild", "--draft"});
  refuses("generate --compare --target " + target, {"--compare", "--draft"});
  refuses("generate --chat --target " + target +
              " --prompt \"$(head -c 20000 /dev/zero | tr '\\0' 'x')\"",
          {"conversation", "context"});
  std::ofstream(own("turns.tmp")) << std::string(20 << 20, 'x');
  const ran r = run("generate --chat --target " + target, own("turns.tmp"));
  CHECK(r.status == 2);
  CHECK(r.out.find("standard input: line 1: has more than") != std::string::npos);
}

TEST_CASE(
    "a damaged chat model and a full disk are a line each, and the next run is as if nothing had "
    "been") {
  const std::string whole = test::tiny_model{.byte_level = true}.write().bytes(),
                    name = own("chat-damaged.tmp");
  const std::string arguments =
      "generate --chat --temperature 0 --max-tokens 5 --prompt x --target " + name;
  const auto with = [&](const std::string& bytes, const char* word) {
    std::ofstream(name, std::ios::binary) << bytes;
    refuses(arguments, {"chat-damaged.tmp: ", word});
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    REQUIRE(from.size() == to.size());
    std::string bytes = whole;
    REQUIRE(bytes.find(from) != std::string::npos);
    return bytes.replace(bytes.find(from), from.size(), to);
  };
  with("", "is empty");
  for (const char* table : {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
                            "tokenizer.ggml.merges", "tokenizer.chat_template"})
    with(whole.substr(0, whole.find(table) + 60), "truncated");
  with(whole.substr(0, whole.find("token_embd.weight") + 10), "truncated");
  with(whole.substr(0, whole.size() - 1), "of tensor data");
  with(changed("tokenizer.ggml.merges", "tokenizer.ggml.marges"), "tokenizer.ggml.merges");
  with(changed("tokenizer.chat_template", "tokenizer.chat_tmplates"), "tokenizer.chat_template");
  with(changed("smollm", "smollo"), "tokenizer.ggml.pre");
  with(changed("<|im_end|>", "<|im_and|>"), "<|im_end|>");  // the token; the template names it
  std::ofstream(name, std::ios::binary) << whole;
  const ran full = run(arguments, "/dev/null", "/dev/full");
  CHECK(full.status == 2);
  CHECK(full.out.find("standard output: cannot be written") != std::string::npos);
  CHECK(run(arguments).status == 0);
}

TEST_CASE(
    "SmolLM2: a chat knows what was said before, stops at its end of turn, and is the same with "
    "drafts",
    "[more]") {
  const std::string file = test::smollm2();
  if (file.empty()) return;
  const std::string options = "--temperature 0 --max-tokens 40 --threads 2 --target " + file;
  const auto all =
      answers(options + " --prompt 'Which city is the capital of Germany?'", "And of Italy?\n");
  REQUIRE(all.size() == 2);
  for (const auto& a : all) {
    INFO(a["text"]);
    CHECK(a["ended_by"] == "end of text");
    CHECK(a["tokens"].back() == 2);
  }
  CHECK(all[0]["text"].get<std::string>().find("Berlin") != std::string::npos);
  CHECK(all[1]["text"].get<std::string>().find("Rome") != std::string::npos);
  CHECK(all[0]["prompt_tokens"] == 38);  // with the template's system text
  const auto drafted = answers(options + " --gamma 2 --draft " + file,
                               "Which city is the capital of Germany?\nAnd of Italy?");
  REQUIRE(drafted.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(drafted[i]["tokens"] == all[i]["tokens"]);
    CHECK(drafted[i]["target_calls"] < all[i]["target_calls"]);
  }
}

#endif
