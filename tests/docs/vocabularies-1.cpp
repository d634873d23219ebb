// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/toy_source.hpp>

int main() {
  const std::vector<token_text> tokens{{"a"}, {"b"}, {"c"}};
  const auto encode = [](std::string_view bytes) {
    std::vector<token_id> ids;
    for (const char byte : bytes) ids.push_back(byte - 'a');
    return ids;
  };
  toy_source<float> model(3, 1), target(3, 2);
  std::vector<token_id> buffer(40, 1);
  text t{buffer, 2};
  return continue_text(t, 20, model, target, encode, tokens, tokens) == status::ok && t.size == 22
             ? 0
             : 1;
}
