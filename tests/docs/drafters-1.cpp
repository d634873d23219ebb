// SPDX-License-Identifier: Apache-2.0
#include <specagg/audit/toy_source.hpp>

int main() {
  std::vector<token_id> buffer(40, 1);
  text t{buffer, 2};
  suffix_automaton documents;
  for (const token_id word : {1, 2, 3, 1, 2}) documents.push(word);
  toy_source<float> target(5, 7);
  return continue_text(t, 20, target, documents) == status::ok && t.size == 22 ? 0 : 1;
}
