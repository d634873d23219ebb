// SPDX-License-Identifier: Apache-2.0
// DRAGON's figure 5 with a bundled model on both sites: the books of dragon-passages as one corpus,
// whose passages are dealt to both.
#include <stdlib.h>

#include "documents.hpp"

namespace experiments {

void dealt(const settings& how, table& out, const std::function<void(double)>& progress) {
  namespace fs = std::filesystem;
  const std::string texts = SPECAGG_MODELS "/../research/text/";
  std::string folder = (fs::temp_directory_path() / "specagg-XXXXXX").string();
  if (!mkdtemp(folder.data())) throw error(folder, "", "cannot be made");
  struct removed_in_the_end {
    const std::string& of;
    ~removed_in_the_end() {
      std::error_code ignored;
      fs::remove_all(of, ignored);
    }
  } removed{folder};
  std::vector<collection> of;
  for (const std::string name : {"shakespeare", "kjv"}) {
    of.push_back({name, folder + "/" + name, texts + name + "/test.txt"});
    fs::create_directory(of.back().folder);
    fs::copy_file(texts + name + "/valid.txt", of.back().folder + "/valid.txt");
  }
  const reader reads(SPECAGG_MODELS "/target.gguf");
  const corpora documents(std::move(of), folder, reads);
  figure_5(reads, documents, how.quick ? 4 : 96, how, out, progress);
}

}  // namespace experiments
