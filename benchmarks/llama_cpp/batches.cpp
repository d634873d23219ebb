// SPDX-License-Identifier: Apache-2.0
// Which calls of libllama give rows with the same bits: the table of docs/llama_cpp.md.
//   batches TEXT MODEL...
#include <llama.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr std::size_t longest = 70;  // tokens of text
const std::size_t sizes[] = {1, 2, 3, 4, 5, 8, 9, 16, 33, 64};

// Rows of `tokens` in calls of n.
std::vector<std::vector<float>> rows_in_calls(llama_context* in,
                                              const std::vector<llama_token>& tokens, std::size_t n,
                                              std::size_t vocabulary) {
  llama_memory_clear(llama_get_memory(in), true);
  std::vector<std::vector<float>> rows;
  llama_batch call = llama_batch_init(longest, 0, 1);
  for (std::size_t at = 0; at < tokens.size(); at += n) {
    call.n_tokens = static_cast<std::int32_t>(std::min(n, tokens.size() - at));
    for (std::int32_t k = 0; k < call.n_tokens; ++k) {
      call.token[k] = tokens[at + static_cast<std::size_t>(k)];
      call.pos[k] = static_cast<llama_pos>(at) + k;
      call.n_seq_id[k] = 1;
      call.seq_id[k][0] = 0;
      call.logits[k] = true;
    }
    if (llama_decode(in, call) != 0) {
      std::fprintf(stderr, "batches: llama_decode failed\n");
      std::exit(1);
    }
    for (std::int32_t k = 0; k < call.n_tokens; ++k) {
      const float* row = llama_get_logits_ith(in, k);
      rows.emplace_back(row, row + vocabulary);
    }
  }
  llama_batch_free(call);
  return rows;
}
std::size_t argmax(const std::vector<float>& row) {
  return static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

std::vector<llama_token> first_tokens(const llama_vocab* words, const std::string& text) {
  std::vector<llama_token> tokens(text.size() + 8);
  const auto count =
      llama_tokenize(words, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                     static_cast<std::int32_t>(tokens.size()), true, false);
  tokens.resize(std::min(longest, static_cast<std::size_t>(std::max(count, 0))));
  return tokens;
}

void print_lines(const char* file, const std::string& text) {
  for (const bool repack : {true, false}) {
    llama_model_params how = llama_model_default_params();
    how.use_extra_bufts = repack;
    const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
        llama_model_load_from_file(file, how), llama_model_free);
    if (!model) {
      std::fprintf(stderr, "batches: %s: libllama cannot load it\n", file);
      std::exit(1);
    }
    const llama_vocab* words = llama_model_get_vocab(model.get());
    const std::vector<llama_token> tokens = first_tokens(words, text);
    for (const bool flash : {true, false}) {
      llama_context_params with = llama_context_default_params();
      with.n_ctx = 256;
      with.n_batch = with.n_ubatch = longest;
      with.n_threads = with.n_threads_batch = 1;
      with.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
      const std::unique_ptr<llama_context, decltype(&llama_free)> in(
          llama_init_from_model(model.get(), with), llama_free);
      if (!in) {
        std::fprintf(stderr, "batches: %s: libllama makes no context\n", file);
        std::exit(1);
      }
      const auto vocabulary = static_cast<std::size_t>(llama_vocab_n_tokens(words));
      const auto one = rows_in_calls(in.get(), tokens, 1, vocabulary);
      std::string alike;
      // rows whose argmax differs, over the sizes that are not alike
      std::size_t least = tokens.size(), most = 0;
      double largest = 0;
      for (const std::size_t n : sizes) {
        const auto rows = rows_in_calls(in.get(), tokens, n, vocabulary);
        // A last call that is shorter is no call of n.
        const std::size_t whole = tokens.size() / n * n;
        std::size_t equal = 0, other = 0;
        for (std::size_t i = 0; i < whole; ++i) {
          equal += same(rows[i], one[i]);
          other += argmax(rows[i]) != argmax(one[i]);
          for (std::size_t v = 0; v < vocabulary; ++v)
            largest = std::max(largest, std::fabs(double{rows[i][v]} - double{one[i][v]}));
        }
        if (equal == whole) alike += (alike.empty() ? "" : ", ") + std::to_string(n);
        else {
          least = std::min(least, other);
          most = std::max(most, other);
        }
      }
      std::printf("| %s | %s | %s | %s | ",
                  std::string(file).substr(std::string(file).rfind('/') + 1).c_str(),
                  flash ? "on" : "off", repack ? "on" : "off", alike.c_str());
      const std::string range = least < most ? std::to_string(least) + " to " : "";
      if (largest > 0)
        std::printf("%s%zu of %zu, %.2g |\n", range.c_str(), most, tokens.size(), largest);
      else std::printf("none |\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: batches TEXT MODEL...\n");
    return 2;
  }
  std::ifstream in(argv[1]);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.empty()) {
    std::fprintf(stderr, "batches: %s: is empty or cannot be read\n", argv[1]);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  std::printf(
      "| model | flash attention | repacked weights | calls whose rows are those of calls of one | "
      "others: rows "
      "whose argmax differs, largest difference of a logit |\n| --- | --- | --- | --- | --- |\n");
  for (int i = 2; i < argc; ++i) print_lines(argv[i], text);
}
