// SPDX-License-Identifier: Apache-2.0

int main() {
  const std::vector<double> p{0.5, 0.25, 0.25}, other{0.25, 0.5, 0.25};
  const auto drawn_from = [](const std::vector<double>& law) {
    return [&](std::size_t request) {
      specagg::random_streams random(1, request);
      double scratch[1];
      std::vector<specagg::token_id> text;
      for (std::size_t j = 0; j < 2; ++j)
        text.push_back(draw_draft(specagg::dense_row<double>(law), 0, j, random, scratch));
      return text;
    };
  };
  return audit_my_engine(p, drawn_from(p)) && !audit_my_engine(p, drawn_from(other)) ? 0 : 1;
}
