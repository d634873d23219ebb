// SPDX-License-Identifier: Apache-2.0

int main() {
  std::vector<specagg::token_id> text{2};
  const auto next = [](specagg::token_id, std::span<float> logits) {
    for (float& l : logits) l = 1;
  };
  const auto largest = [](const std::vector<float>& l) {
    return specagg::token_id(std::max_element(l.begin(), l.end()) - l.begin());
  };
  decode(4, text, 5, next, largest);  // what occurs least, of several the lowest id
  return text == std::vector<specagg::token_id>{2, 0, 1, 3, 0, 1} ? 0 : 1;
}
