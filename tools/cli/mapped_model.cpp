// SPDX-License-Identifier: Apache-2.0
#include "mapped_model.hpp"

namespace cli {

const mapped_session* map_to_target(std::unique_ptr<session>& model, const std::string& path,
                                    const tokenizer& own, const tokenizer& target, bool quiet) {
  if (own.hash() == target.hash()) return nullptr;
  auto mapped = std::make_unique<mapped_session>(std::move(model), own, target);
  const mapped_session* const made = mapped.get();
  model = std::move(mapped);
  if (!quiet) say_mapped(path, made->map());
  return made;
}

}  // namespace cli
