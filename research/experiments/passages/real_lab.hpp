// SPDX-License-Identifier: Apache-2.0
// What the parts of real.cpp share: the model that reads, and Debian's documents.
#pragma once
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "../parts.hpp"
#include "documents.hpp"

namespace experiments {

namespace fs = std::filesystem;

inline fs::path model_file() {  // named, or where scripts/get-model puts it
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value ? std::string(value) : std::string();
  };
  if (!set("SPECAGG_SMOLLM2").empty()) return set("SPECAGG_SMOLLM2");
  const fs::path folder = !set("SPECAGG_MODELS").empty() ? fs::path(set("SPECAGG_MODELS"))
                          : !set("XDG_CACHE_HOME").empty()
                              ? fs::path(set("XDG_CACHE_HOME")) / "specagg"
                              : fs::path(set("HOME")) / ".cache" / "specagg";
  return folder / "SmolLM2-135M-Instruct.Q4_1.gguf";
}
inline const std::string script = SPECAGG_MODELS "/../research/experiments/passages/documents.py";

struct question {
  std::string purpose, answer;
};

struct documents_folder {
  std::string path = (fs::temp_directory_path() / "specagg-XXXXXX").string();
  documents_folder() {
    if (!mkdtemp(path.data())) throw error(path, "", "cannot be made");
    if (std::system(fmt::format("python3 '{}' '{}/of'", script, path).c_str()) != 0)
      throw error(script, "", "wrote no documents");
    path += "/of";
  }
  ~documents_folder() {
    std::error_code ignored;
    fs::remove_all(fs::path(path).parent_path(), ignored);
  }
};

struct real_lab {
  explicit real_lab(const settings& s) : how(s) {}
  const settings how;
  std::function<void(double)> progress = [](double) {};

  const reader& model() {
    if (!reads_) {
      if (!fs::exists(model_file()))
        throw error(model_file().string(), "", "is not there: scripts/get-model downloads it");
      reads_ = std::make_unique<reader>(model_file().string());
    }
    return *reads_;
  }
  const corpora& documents() {
    if (!documents_) {
      folder_ = std::make_unique<documents_folder>();
      const std::string& f = folder_->path;
      std::vector<collection> of;
      for (const std::string kind : {"books", "manual"})  // the device's, the cloud's
        of.push_back({kind, f + "/passages/" + kind, f + "/" + kind + ".test.txt"});
      documents_ = std::make_unique<corpora>(std::move(of), f + "/passages", model());
    }
    return *documents_;
  }
  std::vector<question> questions() {
    documents();
    std::vector<question> all;
    std::ifstream file(folder_->path + "/questions.tsv");
    for (std::string line; std::getline(file, line);)
      all.push_back({line.substr(0, line.find('\t')), line.substr(line.find('\t') + 1)});
    return all;
  }

 private:
  std::unique_ptr<const documents_folder> folder_;
  std::unique_ptr<const reader> reads_;
  std::unique_ptr<const corpora> documents_;
};

using row_of = std::vector<float>;  // probabilities
inline void to_probabilities(std::span<float> row) {
  const auto sum = sum_exponentials(row.data(), row.size(), 1);
  for (float& x : row) x = float(std::exp(double(x) - double(sum.max)) / double(sum.total));
}

void answers(real_lab& lab, table& out);  // answers.cpp
void latency(real_lab& lab, table& out);  // latency.cpp

}  // namespace experiments
